//! Converts a file's fields to a [`Trace`], and makes the checks that involve several fields.
use std::collections::{HashMap, HashSet};
use std::mem;

use super::file::{Distributed, GradientFile, LayerFile, SizedTensor, TraceFile, WorkerFile};
use super::{Dtype, Gradient, Layer, Operators, Tensor, Trace, Variable, WorkerTrace};
use crate::document::fields::MAX_TENSOR_BYTES;
use crate::document::{MAX_ENTRIES, Problem, quoted, seconds, shown, with_remedy};
use crate::units::Time;

/// Remedies of workers that differ, and of what is there twice.
const SAME: &str = "the same tensors in all workers";
const ONE: &str = "one of the two";

impl TraceFile {
    /// The trace, with tensors in the order in which the first worker's forward pass needs them.
    pub(super) fn checked(mut self) -> Result<Trace, Problem> {
        let mut tensors = Tensors::default();
        let mut workers = Vec::new();
        let mut sizes: Vec<Size> = Vec::new();
        for (index, worker) in mem::take(&mut self.workers).into_iter().enumerate() {
            let first = index == 0;
            let place = format!("workers[{index}]");
            let checked = check_worker(worker, &place, self.dtype, &mut tensors, first)?;
            if first {
                sizes = checked.sizes;
                for size in &sizes {
                    let tensor = &mut tensors.list[size.tensor as usize];
                    tensor.bytes = size.bytes;
                    tensor.pull_bytes = size.bytes;
                    tensor.shape = size.shape.clone();
                }
            } else {
                same_tensors(&checked, &sizes, &tensors, &place)?;
            }
            workers.push(checked.trace);
        }
        let Some(first) = workers.first() else {
            return Err(Problem::new("workers", "is empty").remedy("at least one recorded worker"));
        };
        check_frozen(&self.frozen, self.dtype, &mut tensors)?;
        let distribution = check_distribution(&self.distribution, self.dtype, &mut tensors)?;
        tensors.all_have_bytes(first)?;
        let variables = check_variables(self.variables, &tensors)?;
        if let Some(operators) = &self.operators {
            check_operators(operators, self.version, &workers, &tensors)?;
        }
        Ok(Trace {
            name: self.name,
            provenance: self.provenance,
            batch: self.batch,
            dtype: self.dtype,
            device: self.device,
            library: self.library,
            tensors: tensors.list,
            workers,
            distribution,
            variables,
            optimizer_bytes: self.optimizer_bytes,
            operators: self.operators,
            backward_spread: self.variation.map_or(0.0, |variation| variation.backward_spread),
        })
    }
}

fn check_operators(
    operators: &Operators,
    version: u64,
    workers: &[WorkerTrace],
    tensors: &Tensors,
) -> Result<(), Problem> {
    if version < 2 {
        return Err(Problem::new("operators", "need version 2").remedy("\"version\": 2"));
    }
    let [worker] = workers else {
        return Err(Problem::new("operators", format!("are one worker's, and there are {}", workers.len()))
            .remedy("one worker, or no operators"));
    };
    let names = worker.gradients.iter().map(|gradient| tensors.list[gradient.tensor as usize].name.as_str());
    operators.check(worker.forward.len(), names)
}

/// Tensors by index and by name.
#[derive(Default)]
struct Tensors {
    list: Vec<Tensor>,
    by_name: HashMap<String, u32>,
}

impl Tensors {
    fn find(&self, name: &str) -> Option<u32> {
        self.by_name.get(name).copied()
    }

    /// Adds a tensor whose bytes are known later; `None` beyond the limit.
    fn add(&mut self, name: String) -> Option<u32> {
        let index = u32::try_from(self.list.len()).ok().filter(|&index| (index as usize) < MAX_ENTRIES)?;
        self.list.push(Tensor { name: name.clone(), bytes: 0, pull_bytes: 0, frozen_bytes: 0, shape: None });
        self.by_name.insert(name, index);
        Some(index)
    }

    fn find_or_add(&mut self, name: &str, place: &str) -> Result<u32, Problem> {
        match self.find(name) {
            Some(index) => Ok(index),
            None => self.add(name.to_owned()).ok_or_else(|| {
                Problem::new(place, format!("more than {MAX_ENTRIES} tensors"))
                    .remedy("fewer: fuse some of them into one")
            }),
        }
    }

    fn name(&self, index: u32) -> String {
        shown(&self.list[index as usize].name)
    }

    fn all_have_bytes(&self, first: &WorkerTrace) -> Result<(), Problem> {
        // Indices are in the order of the forward pass, so this also finds the first layer that needs a tensor.
        for (at, layer) in first.forward.iter().enumerate() {
            if let Some(&index) = layer.tensors.iter().find(|&&index| self.list[index as usize].most_bytes() == 0) {
                let name = &self.list[index as usize].name;
                let message = format!("needs {}, which has no gradient", self.name(index));
                let remedy =
                    format!("\"frozen\": [{{\"tensor\": {}, \"bytes\": …}}] if it is not trained", quoted(name));
                return Err(Problem::new(format!("workers[0].forward[{at}]"), message).remedy(remedy));
            }
        }
        let total: u128 = self.list.iter().map(|tensor| u128::from(tensor.most_bytes())).sum();
        if total > u128::from(MAX_TENSOR_BYTES) {
            let message = format!("all tensors together must be at most 1e15 bytes (a petabyte), not {total}");
            return Err(Problem::new("", message).remedy("sizes in bytes"));
        }
        Ok(())
    }
}

struct CheckedWorker {
    trace: WorkerTrace,
    /// Bytes of each gradient, in the file's order.
    sizes: Vec<Size>,
    /// Whether the forward pass needs the tensor, by index.
    needed: Vec<bool>,
}

/// The first worker defines which tensors exist.
fn check_worker(
    worker: WorkerFile,
    place: &str,
    dtype: Dtype,
    tensors: &mut Tensors,
    first: bool,
) -> Result<CheckedWorker, Problem> {
    let WorkerFile { forward, gradients, backward_s, optimizer_s } = worker;
    let forward = check_forward(forward, place, tensors, first)?;
    let mut needed = vec![false; tensors.list.len()];
    for &index in forward.iter().flat_map(|layer| &layer.tensors) {
        needed[index as usize] = true;
    }
    let (gradients, sizes) = check_gradients(gradients, place, dtype, tensors, &needed)?;
    let last = gradients.last().map_or(Time::ZERO, |gradient| gradient.ready);
    let backward = backward_s.unwrap_or(last);
    if backward < last {
        let message = format!("must be at least {}, the last gradient's time", seconds::write(last));
        return Err(Problem::new(format!("{place}.backward_s"), message).value(seconds::write(last)));
    }
    // Times read from a file have been checked individually; scaled and shifted ones have not.
    if backward.max(optimizer_s) > seconds::longest() {
        return Err(
            Problem::new(place, "its backward pass or optimizer takes longer than a day").remedy("times in seconds")
        );
    }
    let trace = WorkerTrace { forward, gradients, backward, optimizer: optimizer_s };
    Ok(CheckedWorker { trace, sizes, needed })
}

fn check_forward(
    forward: Vec<LayerFile>,
    place: &str,
    tensors: &mut Tensors,
    first: bool,
) -> Result<Vec<Layer>, Problem> {
    let mut layers = Vec::with_capacity(forward.len());
    let mut total: u128 = 0;
    for (at, layer) in forward.into_iter().enumerate() {
        // Built only if it is shown: a trace may have a million layers.
        let here = || format!("{place}.forward[{at}]");
        let mut indices = Vec::with_capacity(layer.tensors.len());
        for name in &layer.tensors {
            let index = match tensors.find(name) {
                Some(index) => index,
                None if first => tensors.find_or_add(name, &here())?,
                None => {
                    let message = format!("needs {}, which no layer of workers[0] needs", shown(name));
                    return Err(Problem::new(here(), message).remedy(SAME));
                }
            };
            indices.push(index);
        }
        if let Some(index) = repeated(&indices) {
            return Err(Problem::new(here(), format!("names {} twice", tensors.name(index))).remedy("the name once"));
        }
        total += u128::from(layer.duration_s.0);
        layers.push(Layer {
            name: layer.layer,
            duration: layer.duration_s,
            tensors: indices,
            activation_bytes: layer.activation_bytes,
            backward_bytes: layer.backward_bytes,
        });
    }
    if seconds::within_a_day(total).is_none() {
        let message = "all layers together must be at most a day";
        return Err(Problem::new(format!("{place}.forward"), message).remedy("times in seconds"));
    }
    Ok(layers)
}

fn repeated(indices: &[u32]) -> Option<u32> {
    let mut sorted = indices.to_vec();
    sorted.sort_unstable();
    sorted.windows(2).find(|pair| pair[0] == pair[1]).map(|pair| pair[0])
}

/// A gradient's size as a file states it.
struct Size {
    tensor: u32,
    bytes: u64,
    shape: Option<Vec<u64>>,
}

type Gradients = (Vec<Gradient>, Vec<Size>);

fn check_gradients(
    gradients: Vec<GradientFile>,
    place: &str,
    dtype: Dtype,
    tensors: &Tensors,
    needed: &[bool],
) -> Result<Gradients, Problem> {
    let mut seen: Vec<Option<usize>> = vec![None; tensors.list.len()];
    let mut list = Vec::with_capacity(gradients.len());
    let mut sizes = Vec::with_capacity(gradients.len());
    for (at, gradient) in gradients.into_iter().enumerate() {
        let here = || format!("{place}.gradients[{at}]");
        let Some(tensor) = tensors.find(&gradient.tensor).filter(|&tensor| needed[tensor as usize]) else {
            let message = format!("no layer needs {}", shown(&gradient.tensor));
            let remedy = format!("\"tensors\": [{}] in the layer that uses it", quoted(&gradient.tensor));
            return Err(Problem::new(here(), message).remedy(remedy));
        };
        if let Some(before) = seen[tensor as usize].replace(at) {
            let message = format!("{} has a gradient already, gradients[{before}]", tensors.name(tensor));
            return Err(Problem::new(here(), message).remedy(ONE));
        }
        dtype.whole_elements(gradient.bytes).map_err(|message| Problem::new(here() + ".bytes", message))?;
        list.push(Gradient { tensor, ready: gradient.ready_s });
        if let Some(shape) = &gradient.shape {
            let elements = shape.iter().fold(1u64, |all, &size| all.saturating_mul(size));
            if elements != gradient.bytes / dtype.size() {
                let whole = gradient.bytes / dtype.size();
                let message = format!(
                    "{shape:?} has {elements} elements, and {} bytes of {} are {whole}",
                    gradient.bytes,
                    dtype.name()
                );
                return Err(Problem::new(here() + ".shape", message).value(format!("[{whole}]")));
            }
        }
        sizes.push(Size { tensor, bytes: gradient.bytes, shape: gradient.shape });
    }
    // Stable: gradients that become ready together keep the order in which they were written.
    list.sort_by_key(|gradient| gradient.ready);
    Ok((list, sizes))
}

impl Dtype {
    /// Returns the bytes if they are whole elements; the error is a message for the user.
    pub(super) fn whole_elements(self, bytes: u64) -> Result<u64, String> {
        if bytes.is_multiple_of(self.size()) {
            return Ok(bytes);
        }
        let (name, size) = (self.name(), self.size());
        let message = format!("{bytes} bytes are not whole {name} elements of {size} bytes");
        Err(with_remedy(message, format!("{} bytes, or another dtype", bytes.next_multiple_of(size))))
    }
}

/// Checks that every further worker has the tensors of the first, with the same bytes.
fn same_tensors(worker: &CheckedWorker, sizes: &[Size], tensors: &Tensors, place: &str) -> Result<(), Problem> {
    let mut own: Vec<Option<u64>> = vec![None; tensors.list.len()];
    for size in &worker.sizes {
        own[size.tensor as usize] = Some(size.bytes);
    }
    for &Size { tensor, bytes, .. } in sizes {
        let name = tensors.name(tensor);
        match own[tensor as usize].take() {
            Some(same) if same == bytes => {}
            Some(other) => {
                let message = format!("{name} has {other} bytes here and {bytes} in workers[0]");
                return Err(Problem::new(place, message).remedy(SAME));
            }
            None => {
                let message = format!("{name} has no gradient here and one in workers[0]");
                return Err(Problem::new(place, message).remedy(SAME));
            }
        }
    }
    if let Some(tensor) = (0..).zip(&own).find_map(|(tensor, bytes)| bytes.map(|_| tensor)) {
        let name = tensors.name(tensor);
        return Err(Problem::new(place, format!("{name} has a gradient here and none in workers[0]")).remedy(SAME));
    }
    if let Some(tensor) = (0..).zip(&worker.needed).find_map(|(tensor, &needed)| (!needed).then_some(tensor)) {
        let name = tensors.name(tensor);
        return Err(Problem::new(place, format!("no layer needs {name}, which one of workers[0] does")).remedy(SAME));
    }
    Ok(())
}

/// Parameters that are not trained: some layer needs each, and none has a gradient.
fn check_frozen(file: &[SizedTensor], dtype: Dtype, tensors: &mut Tensors) -> Result<(), Problem> {
    for (at, SizedTensor { tensor, bytes }) in file.iter().enumerate() {
        let here = || format!("frozen[{at}]");
        let name = shown(tensor);
        let Some(index) = tensors.find(tensor) else {
            let remedy = format!("\"tensors\": [{}] in the layer that uses it", quoted(tensor));
            return Err(Problem::new(here(), format!("no layer needs {name}")).remedy(remedy));
        };
        let tensor = &mut tensors.list[index as usize];
        if tensor.bytes > 0 {
            return Err(Problem::new(here(), format!("{name} has a gradient, so it is trained")).remedy(ONE));
        }
        if tensor.frozen_bytes > 0 {
            return Err(Problem::new(here(), format!("{name} is listed twice")).remedy(ONE));
        }
        dtype.whole_elements(*bytes).map_err(|message| Problem::new(here() + ".bytes", message))?;
        tensor.frozen_bytes = *bytes;
    }
    Ok(())
}

/// The order of all tensors that are not frozen; those not mentioned follow in the order of the forward pass.
fn check_distribution(file: &[Distributed], dtype: Dtype, tensors: &mut Tensors) -> Result<Vec<u32>, Problem> {
    let mut order = Vec::new();
    let mut placed = vec![false; tensors.list.len()];
    for (at, entry) in file.iter().enumerate() {
        let here = || format!("distribution[{at}]");
        let name = shown(&entry.tensor);
        let found = tensors.find(&entry.tensor);
        let has_gradient = found.is_some_and(|index| tensors.list[index as usize].bytes > 0);
        if found.is_some_and(|index| tensors.list[index as usize].frozen_bytes > 0) {
            let message = format!("{name} is frozen, so servers do not distribute it");
            return Err(Problem::new(here(), message).remedy(ONE));
        }
        if found.is_some_and(|index| placed[index as usize]) {
            return Err(Problem::new(here(), format!("{name} is distributed twice")).remedy(ONE));
        }
        let index = match entry.bytes {
            None if has_gradient => tensors.find_or_add(&entry.tensor, &here())?,
            None => {
                let remedy = format!("{{\"tensor\": {}, \"bytes\": …}}", quoted(&entry.tensor));
                return Err(Problem::new(here(), format!("{name} has no gradient")).remedy(remedy));
            }
            Some(_) if has_gradient => {
                let message = format!("{name} has a gradient, which gives its bytes");
                return Err(Problem::new(here(), message).remedy(quoted(&entry.tensor)));
            }
            Some(bytes) => {
                dtype.whole_elements(bytes).map_err(|message| Problem::new(here() + ".bytes", message))?;
                let index = tensors.find_or_add(&entry.tensor, &here())?;
                tensors.list[index as usize].pull_bytes = bytes;
                index
            }
        };
        placed.resize(tensors.list.len(), false);
        placed[index as usize] = true;
        order.push(index);
    }
    let is_left = |index: u32| !placed[index as usize] && tensors.list[index as usize].frozen_bytes == 0;
    order.extend((0..placed.len() as u32).filter(|&index| is_left(index)));
    Ok(order)
}

/// The order of creation. A variable that is no tensor of the trace states its bytes, which nothing sends.
fn check_variables(file: Vec<Distributed>, tensors: &Tensors) -> Result<Vec<Variable>, Problem> {
    let mut seen: HashSet<String> = HashSet::with_capacity(file.len());
    let mut variables = Vec::with_capacity(file.len());
    let mut total: u128 = 0;
    for (at, Distributed { tensor: name, bytes }) in file.into_iter().enumerate() {
        let problem = |message: String| Problem::new(format!("variables[{at}]"), message);
        if !seen.insert(name.clone()) {
            return Err(problem(format!("{} is listed twice", shown(&name))).remedy(ONE));
        }
        let tensor = tensors.find(&name);
        match (tensor, bytes) {
            (Some(_), Some(_)) => {
                let message = format!("{} is a tensor of the trace, which gives its bytes", shown(&name));
                return Err(problem(message).remedy(quoted(&name)));
            }
            (None, None) => {
                let message = format!("{} is no tensor of the trace", shown(&name));
                return Err(problem(message).remedy(format!("{{\"tensor\": {}, \"bytes\": …}}", quoted(&name))));
            }
            _ => {}
        }
        total += u128::from(bytes.unwrap_or(0));
        variables.push(Variable { name, tensor, bytes: bytes.unwrap_or(0) });
    }
    if total > u128::from(MAX_TENSOR_BYTES) {
        let message = format!("all variables together must be at most 1e15 bytes (a petabyte), not {total}");
        return Err(Problem::new("variables", message).remedy("sizes in bytes"));
    }
    Ok(variables)
}
