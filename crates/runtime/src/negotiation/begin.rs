//! Turns agreed tensors into an operation of the runtime. A rank that has joined contributes zeros.
#![allow(unsafe_code, reason = "the caller's promise about its memory is passed on")]
use paceline_coordinator::{AgreedBucket, Terms};
use paceline_engine::Submission;
use paceline_executor::timeline::{self, TensorSpan, Timeline};
use paceline_kernels::dtype::{Dtype, ReduceOp};
use paceline_kernels::names::UnknownName;
use paceline_os::sync::Arc;
use paceline_os::sync::atomic::Ordering;
use paceline_transport::error::{Result, RunError};
use paceline_transport::header::Collective;

use super::begun::{self, Begun};
use super::named::{Keep, Named};
use super::output::Output;
use super::status_words::StatusWords;
use crate::communicator::{CollectiveRequest, Communicator, Memory};

/// Begins a bucket of at least one tensor. All ranks begin buckets in the same order. `named`: this rank's tensors;
/// missing ones are replaced by zeros. `number` assigns the bucket to a server. `status` travels behind the tensors. `alone`:
/// some rank has joined.
pub(super) fn begin(
    data: &Arc<Communicator>,
    bucket: &AgreedBucket,
    (named, alone): (&[Option<Arc<Named>>], bool),
    (number, how): (u32, Submission),
    status: Option<&Arc<StatusWords>>,
) -> Result<Begun> {
    let agreed = if data.shared.timeline.on() { timeline::now() } else { 0 };
    let begun = submit(data, bucket, (named, alone), (number, how), status);
    if let Ok(begun) = &begun
        && agreed > 0
    {
        show(&data.shared.timeline, (bucket, named), agreed, begun.number());
    }
    // Other ranks have begun it, so if it cannot begin here, nothing can continue.
    for (place, operation) in named.iter().enumerate() {
        let Some(operation) = operation else { continue };
        if let Some(status) = status {
            let _ = operation.status.set((status.clone(), place));
        }
        match &begun {
            Ok(begun) => operation.begin(begun.clone()),
            Err(error) => operation.fail(error.clone()),
        }
    }
    begun
}

fn show(timeline: &Timeline, (bucket, named): (&AgreedBucket, &[Option<Arc<Named>>]), agreed: u64, operation: u64) {
    for (tensor, operation_of) in bucket.tensors.iter().zip(named) {
        let Some(named) = operation_of else { continue };
        let asked = named.asked_at.load(Ordering::Relaxed);
        timeline.tensor(TensorSpan {
            name: named.name().to_owned(),
            call: tensor.request.terms.call.clone(),
            // It was submitted before the recording began.
            asked: if asked == 0 { agreed } else { asked },
            agreed,
            operation,
            together: bucket.tensors.len(),
            bytes: tensor.request.terms.bytes,
        });
    }
}

/// The request that ranks agreed on by name. An operation that combines nothing has no reduction, and moves elements of
/// types without arithmetic here (`int8`, `bool`, `complex64`) as bytes.
fn understand(terms: &Terms) -> Result<(Collective, ReduceOp, Dtype)> {
    let unknown = |error: UnknownName| {
        RunError::Failed(format!(
            "the ranks agreed on an operation that this rank does not know: {error}; install the same paceline on all hosts"
        ))
    };
    let collective: Collective = terms.call.parse().map_err(unknown)?;
    if !collective.reduces() {
        return Ok((collective, ReduceOp::Sum, terms.dtype.parse().unwrap_or(Dtype::Uint8)));
    }
    Ok((collective, terms.op.parse().map_err(unknown)?, terms.dtype.parse().map_err(unknown)?))
}

fn submit(
    data: &Arc<Communicator>,
    bucket: &AgreedBucket,
    (named, alone): (&[Option<Arc<Named>>], bool),
    (number, how): (u32, Submission),
    status: Option<&Arc<StatusWords>>,
) -> Result<Begun> {
    let first = &bucket.tensors[0];
    let terms = &first.request.terms;
    let (collective, op, dtype) = understand(terms)?;
    let (me, size) = (data.rank() as usize, data.size() as usize);
    let mut keeps: Vec<Keep> = Vec::new();
    let mut inputs: Vec<Memory> = Vec::new();
    for (tensor, operation) in bucket.tensors.iter().zip(named) {
        if let Some(operation) = operation {
            inputs.extend(&operation.inputs);
            keeps.extend(operation.take_keep());
        } else {
            // A joined rank contributes zeros to a sum, and nothing to a gather.
            let sum = collective == Collective::AllReduce;
            let elements = if sum { tensor.request.terms.shape.iter().product() } else { 0 };
            let zeros = Output::new(bytes(elements, dtype)?);
            inputs.push((zeros.address(), elements));
            keeps.push(Box::new(zeros));
        }
    }
    if let Some(status) = status {
        inputs.push(status.memory());
        keeps.push(Box::new(status.clone()));
    }
    let row: u64 = terms.shape.iter().product();
    let own = |from: usize, at: usize| first.own.get(from).and_then(|own| own.get(at)).copied().unwrap_or(0) * row;
    let (counts, out_counts): (Option<Vec<u64>>, Option<Vec<u64>>) = match collective {
        Collective::AllGather => (Some((0..size).map(|rank| own(rank, 0)).collect()), None),
        Collective::AllToAll => {
            let sent = (0..size).map(|to| own(me, to)).collect();
            (Some(sent), Some((0..size).map(|from| own(from, me)).collect()))
        }
        Collective::ReduceScatter => (Some(shares(terms, size)), None),
        _ => (None, None),
    };
    let out = match collective {
        Collective::AllGather => counts.as_ref().map(|counts| counts.iter().sum()),
        Collective::AllToAll => out_counts.as_ref().map(|counts| counts.iter().sum()),
        Collective::ReduceScatter => counts.as_ref().map(|counts| counts[me]),
        _ => None,
    };
    let mut outputs: Vec<Memory> = Vec::new();
    if let Some(elements) = out {
        let output = Arc::new(Output::new(bytes(elements, dtype)?));
        outputs.push((output.address(), elements));
        keeps.push(Box::new(output.clone()));
        if let Some(Some(operation)) = named.first() {
            let _ = operation.output.set(output);
            let _ = operation.own.set(first.own.clone());
        }
    }
    let label = match bucket.tensors.len() {
        1 => first.request.name.clone(),
        n => format!("{} and {} more", first.request.name, n - 1),
    };
    let request = CollectiveRequest {
        collective,
        dtype,
        op,
        inputs: &inputs,
        outputs: &outputs,
        root: terms.root.unwrap_or(0),
        counts: counts.as_deref(),
        out_counts: out_counts.as_deref(),
        prescale: f64::from_bits(terms.scale[0]),
        postscale: f64::from_bits(terms.scale[1]),
        label: &label,
        bucket: Some(number),
        ..CollectiveRequest::default()
    };
    // SAFETY: promised by the caller that submitted the operations; `keeps` owns the rest.
    unsafe { begun::submit(data, (named, alone), &request, Some(Box::new(keeps)), how) }
}

fn bytes(elements: u64, dtype: Dtype) -> Result<usize> {
    let bytes = usize::try_from(elements).ok().and_then(|elements| elements.checked_mul(dtype.size()));
    bytes.ok_or_else(|| RunError::Failed(format!("{elements} elements of {} do not fit into memory", dtype.name())))
}

/// Elements of each rank: rows are divided as equally as possible, and the first ranks get one more.
fn shares(terms: &Terms, size: usize) -> Vec<u64> {
    let rows = terms.shape.first().copied().unwrap_or(0);
    let row: u64 = terms.shape.iter().skip(1).product();
    let (each, more) = (rows / size as u64, rows % size as u64);
    (0..size as u64).map(|rank| (each + u64::from(rank < more)) * row).collect()
}

#[cfg(test)]
mod tests {
    use super::*;

    fn terms(call: &str, op: &str, dtype: &str) -> Terms {
        Terms {
            call: call.into(),
            op: op.into(),
            dtype: dtype.into(),
            device: "cpu".into(),
            shape: vec![3],
            root: None,
            scale: [1f64.to_bits(); 2],
            bytes: 12,
            fusible: true,
            neutral: true,
        }
    }

    #[test]
    fn an_unknown_name_is_an_error_and_no_sum() {
        let known = understand(&terms("all_reduce", "min", "float64")).unwrap();
        assert_eq!(known, (Collective::AllReduce, ReduceOp::Min, Dtype::Float64));
        assert_eq!(understand(&terms("barrier", "", "")).unwrap().0, Collective::Barrier);
        assert_eq!(understand(&terms("broadcast", "", "int32")).unwrap().2, Dtype::Int32);
        assert_eq!(understand(&terms("all_gather", "", "int8")).unwrap().2, Dtype::Uint8);
        for (call, op, dtype) in
            [("all_reduce", "median", "int32"), ("all_reduce", "sum", "int4"), ("sort", "", "int32")]
        {
            let error = understand(&terms(call, op, dtype)).unwrap_err().to_string();
            assert!(error.contains("is not one of"), "{error}");
        }
    }
}
