//! The trace without a model: `allreduce:100MB` is one all-reduce of that size and nothing else, for comparison with
//! closed forms and with the benchmarks of libraries (nccl-tests, osu_allreduce).
use super::{Dtype, Gradient, Layer, Tensor, Trace, WorkerTrace};
use crate::document::{DocumentError, MAX_ENTRIES, shown, with_remedy};
use crate::units::{Time, parse_size};

const PREFIX: &str = "allreduce:";

impl Trace {
    /// `bytes` of float32 gradients in `count` tensors, all ready at once, without computation. The sizes differ by at
    /// most one element.
    ///
    /// # Errors
    /// Bytes that are not a whole number of elements, no tensor or more than a million, or fewer elements than tensors.
    pub fn all_reduce(bytes: u64, count: u32) -> Result<Trace, DocumentError> {
        let name = if count == 1 { size(bytes) } else { format!("{}/{count}", size(bytes)) };
        let name = format!("{PREFIX}{name}");
        let dtype = Dtype::Float32;
        let wrong = |message: &str, remedy: &str| Err(DocumentError::at(&name, "", &with_remedy(message, remedy)));
        let most = crate::document::fields::MAX_TENSOR_BYTES;
        if count == 0 || count as usize > MAX_ENTRIES {
            return wrong(&format!("must have 1-{MAX_ENTRIES} tensors"), "allreduce:100MB/161");
        }
        if bytes > most {
            return wrong("must be at most 1000TB", "allreduce:1000TB");
        }
        if !bytes.is_multiple_of(dtype.size()) {
            let whole = bytes.next_multiple_of(dtype.size()).min(most);
            return wrong("is not a whole number of float32 elements", &format!("{PREFIX}{}", size(whole)));
        }
        let elements = bytes / dtype.size();
        let count64 = u64::from(count);
        if elements < count64 {
            let least = size(dtype.size() * count64);
            return wrong("has fewer elements than tensors", &format!("{PREFIX}{least}/{count}"));
        }
        let tensor = |index: u32| {
            let larger = u64::from(u64::from(index) < elements % count64);
            let bytes = (elements / count64 + larger) * dtype.size();
            Tensor { name: format!("tensor{index}"), bytes, pull_bytes: bytes, frozen_bytes: 0, shape: None }
        };
        let all: Vec<u32> = (0..count).collect();
        let layer = Layer {
            name: "all".into(),
            duration: Time::ZERO,
            tensors: all.clone(),
            activation_bytes: None,
            backward_bytes: None,
        };
        let gradients = all.iter().map(|&tensor| Gradient { tensor, ready: Time::ZERO }).collect();
        Ok(Trace {
            provenance: "one all-reduce, no computation".into(),
            batch: 1,
            dtype,
            device: String::new(),
            library: String::new(),
            tensors: all.iter().map(|&index| tensor(index)).collect(),
            workers: vec![WorkerTrace { forward: vec![layer], gradients, backward: Time::ZERO, optimizer: Time::ZERO }],
            distribution: all,
            operators: None,
            backward_spread: 0.0,
            variables: Vec::new(),
            optimizer_bytes: None,
            name,
        })
    }
}

/// Reads `allreduce:SIZE[/COUNT]`, as in `allreduce:100MB` or `allreduce:100MB/161`.
///
/// # Errors
/// Anything else, or what [`Trace::all_reduce`] refuses.
pub fn parse_all_reduce(spec: &str) -> Result<Trace, DocumentError> {
    let wrong = |message: &str, remedy: &str| Err(DocumentError::at(&shown(spec), "", &with_remedy(message, remedy)));
    let Some(rest) = spec.strip_prefix(PREFIX) else {
        return wrong("is not allreduce:SIZE or allreduce:SIZE/COUNT", "allreduce:100MB/161");
    };
    let (size, count) = rest.split_once('/').unwrap_or((rest, "1"));
    // Rust's own parser would accept a sign.
    let Some(count) = count.parse::<u32>().ok().filter(|_| !count.starts_with('+')) else {
        let remedy = format!("{PREFIX}{size}/161");
        return wrong("must end with the number of tensors", &remedy);
    };
    match parse_size(size) {
        Ok(bytes) => Trace::all_reduce(bytes, count),
        Err(error) => wrong(&error.reason, &format!("sizes as {}", error.remedy)),
    }
}

/// In the largest SI unit that divides it.
fn size(bytes: u64) -> String {
    let units = [(1_000_000_000_000, "TB"), (1_000_000_000, "GB"), (1_000_000, "MB"), (1_000, "kB")];
    match units.into_iter().find(|&(factor, _)| bytes > 0 && bytes.is_multiple_of(factor)) {
        Some((factor, unit)) => format!("{}{unit}", bytes / factor),
        None => format!("{bytes}B"),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_remainder_is_spread_over_the_first_tensors() {
        let trace = parse_all_reduce("allreduce:100B/3").unwrap();
        assert_eq!(trace.name, "allreduce:100B/3");
        assert_eq!(trace.tensors.iter().map(|tensor| tensor.bytes).collect::<Vec<_>>(), [36, 32, 32]);
        assert_eq!(trace.workers[0].compute_time(), Time::ZERO);
    }

    #[test]
    fn the_name_is_the_specification() {
        for spec in ["allreduce:100MB", "allreduce:100MB/161", "allreduce:1TB", "allreduce:1004B", "allreduce:64kB"] {
            let trace = parse_all_reduce(spec).unwrap();
            assert_eq!(trace.name, spec);
            assert_eq!(Trace::from_json(trace.to_json().as_bytes(), "it").unwrap(), trace);
        }
        assert_eq!(parse_all_reduce("allreduce:1KiB").unwrap().name, "allreduce:1024B");
    }

    #[test]
    fn errors_name_the_remedy() {
        for (spec, says) in [
            ("allreduce", "try: allreduce:100MB/161"),
            ("allreduce:100", "try: sizes as 100MB or 100B"),
            ("allreduce:100MB/", "the number of tensors"),
            ("allreduce:100MB/+3", "the number of tensors"),
            ("allreduce:100MB/0", "1-1000000 tensors"),
            ("allreduce:100MB/1000001", "1-1000000 tensors"),
            ("allreduce:2TB/9999999999", "the number of tensors"),
            ("allreduce:10B", "try: allreduce:12B"),
            ("allreduce:8B/3", "try: allreduce:12B/3"),
        ] {
            let error = parse_all_reduce(spec).unwrap_err();
            let error = format!("{error}\n  try: {}", error.remedy().unwrap_or_default());
            assert!(error.contains(says), "{error}");
        }
    }
}
