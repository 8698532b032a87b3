//! Imports the trace format of M. A. Chang et al., "How to Train your DNN: The Network Operator Edition": what a
//! network operator can record without knowing the model. There are two CSV files per model, with one row per send,
//! described in docs/reference/trace-format.md, "Traces of sends".
use std::collections::{BTreeMap, BTreeSet, HashMap, HashSet};
use std::path::Path;

use serde::de::IgnoredAny;

use super::file::{Distributed, GradientFile, LayerFile, TraceFile, WorkerFile};
use super::sends::{Send, rows};
use super::{Dtype, Trace};
use crate::document::fields::check_name;
use crate::document::{DocumentError, Problem, read, seconds, shown, with_remedy};
use crate::nearest;
use crate::pattern::names;
use crate::units::Time;

/// Information that sends do not contain.
#[derive(Clone, Debug, PartialEq)]
pub struct ImportOptions {
    /// The trace's name.
    pub name: String,
    /// How the sends were recorded.
    pub provenance: String,
    /// The hardware on which they were recorded.
    pub device: String,
    /// Samples per worker and iteration.
    pub batch: u32,
    /// Element type of every gradient.
    pub dtype: Dtype,
    /// Duration of the whole forward pass; it is divided equally over the distributed tensors, one layer each.
    pub forward: Time,
    /// Time from the start of the backward pass to a worker's first send: times of sends are relative to it.
    pub first_gradient: Time,
    /// Duration of the whole backward pass. `None`: it ends with the last send.
    pub backward: Option<Time>,
    /// The operation after whose first send a worker's gradients count; its own sends do not.
    pub dependency: Option<String>,
    /// Patterns of tensors that are left out of both files ([`crate::pattern`]).
    pub exclude: Vec<String>,
    /// Name of the aggregation trace in errors.
    pub aggregation_source: String,
    /// Name of the distribution trace in errors.
    pub distribution_source: String,
}

impl Default for ImportOptions {
    /// A float32 model with batch 1 and without a forward pass.
    fn default() -> ImportOptions {
        ImportOptions {
            name: "imported".into(),
            provenance: String::new(),
            device: String::new(),
            batch: 1,
            dtype: Dtype::Float32,
            forward: Time::ZERO,
            first_gradient: Time::ZERO,
            backward: None,
            dependency: None,
            exclude: Vec::new(),
            aggregation_source: "aggregation trace".into(),
            distribution_source: "distribution trace".into(),
        }
    }
}

/// Makes a trace from the text of both files: the gradients that workers send (`aggregation`; every source device is a
/// worker) and the parameters in the order in which servers send them (`distribution`).
///
/// # Errors
/// Anything that docs/reference/trace-format.md does not allow, naming file, line and column.
pub fn import_sends(aggregation: &str, distribution: &str, options: ImportOptions) -> Result<Trace, DocumentError> {
    check_options(&options)?;
    let (for_aggregation, for_distribution) = (&options.aggregation_source, &options.distribution_source);
    let mut excluded = Excluded::new(&options);
    let gradients = rows(aggregation, options.dtype, |tensor| excluded.has(tensor))
        .and_then(|sends| after_dependency(sends, options.dependency.as_deref()))
        .map_err(|problem| problem.of(for_aggregation))?;
    let gradients = excluded.left(gradients).map_err(|problem| problem.of(for_aggregation))?;
    let parameters = rows(distribution, options.dtype, |tensor| excluded.has(tensor))
        .and_then(|sends| excluded.left(sends))
        .map_err(|problem| problem.of(for_distribution))?;
    excluded.all_match(for_aggregation, for_distribution)?;
    let parameters = first_sends(&parameters).map_err(|problem| problem.of(for_distribution))?;
    let workers = workers(&gradients).and_then(|workers| {
        all_are_distributed(&workers, &parameters, for_distribution)?;
        Ok(workers)
    });
    let workers = workers.map_err(|problem| problem.of(for_aggregation))?;
    let with_gradient: HashSet<&str> = workers[0].iter().map(|gradient| gradient.tensor.as_str()).collect();
    let distribution = parameters.iter().map(|send| {
        let bytes = (!with_gradient.contains(send.tensor.as_str())).then_some(send.bytes);
        Distributed { tensor: send.tensor.clone(), bytes }
    });
    let distribution = distribution.collect();
    let workers: Result<Vec<WorkerFile>, Problem> =
        workers.iter().map(|sends| worker(sends, &parameters, &options)).collect();
    let workers = workers.map_err(|problem| problem.of(for_aggregation))?;
    let file = TraceFile {
        _format: IgnoredAny,
        version: 1,
        name: options.name,
        provenance: options.provenance,
        batch: options.batch,
        dtype: options.dtype,
        device: options.device,
        library: String::new(),
        workers,
        distribution,
        frozen: Vec::new(),
        variables: Vec::new(),
        optimizer_bytes: None,
        variation: None,
        operators: None,
    };
    file.checked().map_err(|problem| problem.of(for_aggregation))
}

/// [`import_sends`] of two files; errors use their paths.
///
/// # Errors
/// Files that cannot be read, or that [`import_sends`] refuses.
pub fn read_sends(aggregation: &Path, distribution: &Path, options: ImportOptions) -> Result<Trace, DocumentError> {
    let text = |path: &Path| {
        let source = path.to_string_lossy().into_owned();
        match String::from_utf8(read(path)?) {
            Ok(text) => Ok((text, source)),
            Err(_) => Err(DocumentError::at(
                &source,
                "",
                &with_remedy("is binary or not UTF-8, not CSV", super::sends::HEADER),
            )),
        }
    };
    let (aggregation, aggregation_source) = text(aggregation)?;
    let (distribution, distribution_source) = text(distribution)?;
    import_sends(&aggregation, &distribution, ImportOptions { aggregation_source, distribution_source, ..options })
}

fn check_options(options: &ImportOptions) -> Result<(), DocumentError> {
    let texts = [("name", &options.name), ("provenance", &options.provenance), ("device", &options.device)];
    for (option, text) in texts {
        if option == "name" || !text.is_empty() {
            check_name(text.clone()).map_err(|message| DocumentError::at("import", option, &message))?;
        }
    }
    if options.batch == 0 {
        return Err(DocumentError::at("import", "batch", &with_remedy("must be at least 1, not 0", "{batch=32}")));
    }
    if options.forward.max(options.first_gradient) > seconds::longest() {
        return Err(DocumentError::at(
            "import",
            "",
            &with_remedy("the forward time or the first gradient's is longer than a day", "times in seconds"),
        ));
    }
    Ok(())
}

/// The patterns of [`ImportOptions::exclude`], and which of them have matched a tensor.
struct Excluded<'a> {
    patterns: Vec<(&'a str, bool)>,
    dependency: Option<&'a str>,
}

impl<'a> Excluded<'a> {
    fn new(options: &'a ImportOptions) -> Excluded<'a> {
        let patterns = options.exclude.iter().map(|pattern| (pattern.as_str(), false)).collect();
        Excluded { patterns, dependency: options.dependency.as_deref() }
    }

    /// Whether a tensor is left out; its size then need not be one of a gradient.
    fn has(&mut self, tensor: &str) -> bool {
        let mut some = false;
        for (pattern, matched) in &mut self.patterns {
            if names(pattern, tensor) {
                (some, *matched) = (true, true);
            }
        }
        some || self.dependency == Some(tensor)
    }

    /// The other sends. At least one.
    fn left(&mut self, sends: Vec<Send>) -> Result<Vec<Send>, Problem> {
        let left: Vec<Send> = sends.into_iter().filter(|send| !self.has(&send.tensor)).collect();
        if left.is_empty() {
            return Err(Problem::new("", "has no rows that are not excluded").remedy("a narrower --exclude"));
        }
        Ok(left)
    }

    fn all_match(&self, aggregation: &str, distribution: &str) -> Result<(), DocumentError> {
        let Some((pattern, _)) = self.patterns.iter().find(|(_, matched)| !matched) else { return Ok(()) };
        let message = format!("{} is the name of no tensor in {aggregation} or {distribution}", shown(pattern));
        Err(DocumentError::at("import", "exclude", &with_remedy(message, "--exclude '*/moving_*'")))
    }
}

/// Each worker's sends after the first one of the dependency operation: earlier ones overlap its forward pass.
fn after_dependency(sends: Vec<Send>, dependency: Option<&str>) -> Result<Vec<Send>, Problem> {
    let Some(dependency) = dependency else { return Ok(sends) };
    let mut begun: HashSet<String> = HashSet::new();
    let mut workers: BTreeSet<String> = BTreeSet::new();
    let mut tensors: BTreeSet<String> = BTreeSet::new();
    let mut counted = Vec::new();
    for send in sends {
        if !workers.contains(&send.source) {
            workers.insert(send.source.clone());
        }
        if send.tensor == dependency {
            begun.insert(send.source);
        } else if begun.contains(&send.source) {
            counted.push(send);
        } else {
            tensors.insert(send.tensor);
        }
    }
    if let Some(worker) = workers.iter().find(|worker| !begun.contains(*worker)) {
        let near = nearest(dependency, tensors.iter().map(String::as_str));
        let message = format!("{} never sends the dependency {}", shown(worker), shown(dependency));
        let remedy = near.or_else(|| tensors.first().map(String::as_str));
        let remedy =
            remedy.map_or("{dependency}, one of its sends".into(), |tensor| format!("{{dependency={tensor}}}"));
        return Err(Problem::new("", message).remedy(remedy));
    }
    if counted.is_empty() {
        let message = format!("nothing is sent after the dependency {}", shown(dependency));
        return Err(Problem::new("", message).remedy("{dependency}, an earlier operation"));
    }
    Ok(counted)
}

/// The order in which tensors are first sent to anyone.
fn first_sends(sends: &[Send]) -> Result<Vec<&Send>, Problem> {
    let mut first: HashMap<&str, &Send> = HashMap::new();
    let mut per_destination: HashMap<(&str, &str), &Send> = HashMap::new();
    let mut order = Vec::new();
    for send in sends {
        if let Some(before) = per_destination.insert((&send.tensor, &send.destination), send) {
            return Err(twice(send, before, &format!("to {}", shown(&send.destination))));
        }
        match first.get(send.tensor.as_str()) {
            Some(before) if before.bytes != send.bytes => return Err(other_size(send, before)),
            Some(_) => {}
            None => {
                first.insert(&send.tensor, send);
                order.push(send);
            }
        }
    }
    Ok(order)
}

/// The sends of each source device, by name, so that the order of rows does not affect the numbering of workers.
fn workers(sends: &[Send]) -> Result<Vec<Vec<&Send>>, Problem> {
    let mut workers: BTreeMap<&str, Vec<&Send>> = BTreeMap::new();
    let mut sent: HashMap<(&str, &str), &Send> = HashMap::new();
    let mut sizes: HashMap<&str, &Send> = HashMap::new();
    for send in sends {
        if let Some(before) = sent.insert((&send.source, &send.tensor), send) {
            return Err(twice(send, before, &format!("by {}", shown(&send.source))));
        }
        let before = sizes.entry(&send.tensor).or_insert(send);
        if before.bytes != send.bytes {
            return Err(other_size(send, before));
        }
        workers.entry(&send.source).or_default().push(send);
    }
    for source in workers.keys() {
        if let Some(tensor) = sizes.keys().filter(|tensor| !sent.contains_key(&(*source, **tensor))).min() {
            let message = format!("{} never sends {}", shown(source), shown(tensor));
            return Err(Problem::new("", message).remedy("the same tensors from all workers"));
        }
    }
    Ok(workers.into_values().collect())
}

fn twice(send: &Send, before: &Send, whom: &str) -> Problem {
    let message = format!("{} is sent {whom} a second time (first: line {})", shown(&send.tensor), before.line);
    send.problem("tensor", message).remedy("the rows of one iteration")
}

fn other_size(send: &Send, before: &Send) -> Problem {
    let message = format!("is {}, and {} in line {}, for the same tensor", send.bytes, before.bytes, before.line);
    send.problem("bytes", message).remedy("the same bytes in both lines")
}

/// Checks that every tensor with a gradient is distributed, with the same bytes.
fn all_are_distributed(workers: &[Vec<&Send>], parameters: &[&Send], file: &str) -> Result<(), Problem> {
    let parameters: HashMap<&str, &Send> = parameters.iter().map(|&send| (send.tensor.as_str(), send)).collect();
    for gradient in &workers[0] {
        match parameters.get(gradient.tensor.as_str()) {
            Some(send) if send.bytes == gradient.bytes => {}
            Some(send) => {
                let message = format!("is {}, and {} in line {} of {file}", gradient.bytes, send.bytes, send.line);
                return Err(gradient.problem("bytes", message).remedy("the same bytes in both files"));
            }
            None => {
                let message = format!("{} is not in {file}", shown(&gradient.tensor));
                return Err(gradient.problem("tensor", message).remedy("the same names in both files"));
            }
        }
    }
    Ok(())
}

/// One worker; its times are relative to its own first send, so that network and cluster size cancel out.
fn worker(sends: &[&Send], parameters: &[&Send], options: &ImportOptions) -> Result<WorkerFile, Problem> {
    let first = sends.iter().map(|send| send.ps).min().unwrap_or(0);
    let gradient = |send: &&Send| {
        let ps = send.ps - first + u128::from(options.first_gradient.0);
        let ready_s = seconds::within_a_day(ps).ok_or_else(|| {
            send.problem("time_s", "is more than a day after the worker's first send").remedy("times in seconds")
        })?;
        Ok(GradientFile { tensor: send.tensor.clone(), ready_s, bytes: send.bytes, shape: None })
    };
    let gradients: Vec<GradientFile> = sends.iter().map(gradient).collect::<Result<_, Problem>>()?;
    let last = gradients.iter().map(|gradient| gradient.ready_s).max().unwrap_or(Time::ZERO);
    if let Some(backward) = options.backward.filter(|&backward| backward < last) {
        let (backward, last) = (backward.seconds(), last.seconds());
        let message =
            format!("the last send is {last} s after the start of a backward pass that is said to take {backward} s");
        return Err(Problem::new("", message).remedy(format!("{{backward={last}s}}")));
    }
    Ok(WorkerFile {
        forward: forward(parameters, options.forward),
        gradients,
        backward_s: options.backward,
        optimizer_s: Time::ZERO,
    })
}

/// One layer per tensor, of equal durations that add up to `total`: an equal split fits the study's tables best.
fn forward(parameters: &[&Send], total: Time) -> Vec<LayerFile> {
    let count = parameters.len() as u128;
    // At most the total, which fits.
    let end = |index: u128| Time((u128::from(total.0) * index / count) as u64);
    let layer = |(index, send): (u128, &&Send)| LayerFile {
        layer: send.tensor.clone(),
        duration_s: end(index + 1) - end(index),
        tensors: vec![send.tensor.clone()],
        activation_bytes: None,
        backward_bytes: None,
    };
    (0..).zip(parameters).map(layer).collect()
}

#[cfg(test)]
mod tests {
    use super::*;

    const AGGREGATION: &str = "time_s,tensor,bytes,source,destination
1700000000.002,fc,4000,worker0,ps0
1700000000.102,conv,400,worker0,ps1
1700000000.252,conv,400,worker1,ps1
1700000000.052,fc,4000,worker1,ps0
";
    const DISTRIBUTION: &str = "time_s,tensor,bytes,source,destination
0.1,conv,400,ps1,worker0
0.1,conv,400,ps1,worker1
0.2,mean,8,ps1,worker0
0.3,fc,4000,ps0,worker0
";

    fn options() -> ImportOptions {
        let forward = Time::from_seconds(0.1);
        ImportOptions { batch: 32, forward, first_gradient: Time::from_seconds(0.002), ..ImportOptions::default() }
    }

    fn error(aggregation: &str, distribution: &str) -> String {
        let error = import_sends(aggregation, distribution, options()).unwrap_err().to_string();
        assert!(!error.contains('\n') && error.chars().count() < 400, "{error}");
        error
    }

    #[test]
    fn every_source_device_becomes_a_worker() {
        let trace = import_sends(AGGREGATION, DISTRIBUTION, options()).unwrap();
        let names: Vec<&str> = trace.tensors.iter().map(|tensor| tensor.name.as_str()).collect();
        assert_eq!(names, ["conv", "mean", "fc"]);
        assert_eq!((trace.tensors[1].bytes, trace.tensors[1].pull_bytes), (0, 8));
        let ready: Vec<Vec<f64>> =
            trace.workers.iter().map(|w| w.gradients.iter().map(|g| g.ready.seconds()).collect()).collect();
        assert_eq!(ready, [[0.002, 0.102], [0.002, 0.202]]);
        assert_eq!(trace.workers[0].forward_time(), Time::from_seconds(0.1));
        assert_eq!(trace.workers[0].backward, Time::from_seconds(0.102));
        assert_eq!(trace.workers[0].forward.len(), 3);
        assert_eq!(Trace::from_json(trace.to_json().as_bytes(), "it").unwrap(), trace);
    }

    #[test]
    fn errors_name_file_line_and_column() {
        for (aggregation, says) in [
            ("", "aggregation trace: line 1: is empty"),
            ("time_s,tensor,byte,source,destination\n", "unknown column 'byte'"),
            ("time_s,tensor,bytes,source\n", "the column destination is missing"),
            ("time_s,time_s,tensor,bytes,source,destination\n", "the column time_s occurs twice"),
            (&AGGREGATION[..39], "has no rows"),
            (&AGGREGATION.replace("0.102,", "0.102"), "line 3: has 4 fields, the header 5"),
            (&AGGREGATION.replace("1700000000.002", "soon"), "line 2, column time_s: 'soon' is not a number"),
            (&AGGREGATION.replace("1700000000.002", "-1"), "line 2, column time_s: '-1' is negative"),
            (&AGGREGATION.replace("1700000000.102", "1800000000"), "line 3, column time_s: is more than a day after"),
            (&AGGREGATION.replace(",400,", ",4e2,"), "line 3, column bytes: '4e2' is not whole bytes"),
            (&AGGREGATION.replace(",400,", ",0,"), "line 3, column bytes: '0' is not whole bytes"),
            (&AGGREGATION.replace(",400,", ",402,"), "line 3, column bytes: 402 bytes are not whole float32 elements"),
            (&AGGREGATION.replace(",400,", ",404,"), "is 404, and 400 in line 2 of distribution trace"),
            (&AGGREGATION.replace("conv,400,worker1", "conv,404,worker1"), "is 404, and 400 in line 3, for the same"),
            (&AGGREGATION.replace("conv,400,worker1", "fc,4000,worker1"), "'fc' is sent by 'worker1' a second time"),
            (&AGGREGATION.replace("conv,", "grad,"), "'grad' is not in distribution trace"),
            (&AGGREGATION.replace("worker1", "a\x1bb"), "column source: has the control character U+001B"),
            (&AGGREGATION[..AGGREGATION.len() - 36], "'worker1' never sends 'fc'"),
        ] {
            let error = error(aggregation, DISTRIBUTION);
            assert!(error.contains(says), "{error}");
        }
        let twice = DISTRIBUTION.replace("worker1", "worker0");
        assert!(
            error(AGGREGATION, &twice)
                .contains("distribution trace: line 3, column tensor: 'conv' is sent to 'worker0'")
        );
        let short = ImportOptions { backward: Some(Time::ZERO), ..options() };
        let error = import_sends(AGGREGATION, DISTRIBUTION, short).unwrap_err().to_string();
        assert!(error.contains("the last send is 0.102 s after the start of a backward pass"), "{error}");
    }

    #[test]
    fn options_are_checked() {
        let nameless = ImportOptions { name: String::new(), ..options() };
        assert!(import_sends(AGGREGATION, DISTRIBUTION, nameless).is_err());
        let nothing = ImportOptions { batch: 0, ..options() };
        assert!(import_sends(AGGREGATION, DISTRIBUTION, nothing).is_err());
    }

    const WITH_MORE: &str = "time_s,tensor,bytes,source,destination
1.0,aux/logits,12,worker0,ps0
2.0,loss/begin,4,worker0,ps0
2.002,fc,4000,worker0,ps0
2.05,bn/moving_mean,7,worker0,ps0
2.06,bn/moving_mean,7,worker0,ps0
2.102,conv,400,worker0,ps1
1.5,loss/begin,4,worker1,ps0
1.4,conv,400,worker1,ps1
1.552,fc,4000,worker1,ps0
1.752,conv,400,worker1,ps1
";

    #[test]
    fn sends_count_after_the_dependency_and_without_what_is_excluded() {
        let distribution = format!("{DISTRIBUTION}0.4,bn/moving_mean,7,ps1,worker0\n");
        let more =
            ImportOptions { dependency: Some("loss/begin".into()), exclude: vec!["*/moving_*".into()], ..options() };
        let trace = import_sends(WITH_MORE, &distribution, more.clone()).unwrap();
        assert_eq!(trace, import_sends(AGGREGATION, DISTRIBUTION, options()).unwrap());
        let refused = |aggregation: &str, options: &ImportOptions| {
            import_sends(aggregation, &distribution, options.clone()).unwrap_err()
        };
        let unmatched = ImportOptions { exclude: vec!["moving".into(), "*/moved".into()], ..more.clone() };
        assert!(refused(WITH_MORE, &unmatched).to_string().contains("'*/moved' is the name of no tensor"));
        let unsent = ImportOptions { dependency: Some("loss/began".into()), ..more.clone() };
        let error = refused(WITH_MORE, &unsent);
        assert!(error.to_string().contains("'worker0' never sends the dependency 'loss/began'"), "{error}");
        assert_eq!(error.remedy(), Some("{dependency=loss/begin}"));
        let late = "time_s,tensor,bytes,source,destination\n1.0,fc,4000,worker0,ps0\n2.0,loss/begin,4,worker0,ps0\n";
        let nothing = ImportOptions { exclude: Vec::new(), ..more.clone() };
        assert!(refused(late, &nothing).to_string().contains("nothing is sent after the dependency"));
        let everything = ImportOptions { exclude: vec!["*".into()], ..more };
        assert!(refused(WITH_MORE, &everything).to_string().contains("not excluded"));
    }
}
