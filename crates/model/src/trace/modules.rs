//! Enlarges a model by adding Inception modules in its middle, to show how the gain from a network mechanism depends on
//! the ratio of computation to communication.
//!
//! M. A. Chang et al., "How to Train your DNN: The Network Operator Edition", add up to 125 modules to Inception-v3:
//! compute-heavy ones on activations of 35x35x288 (1.1 MB of weights each) and network-heavy ones on 17x17x768 (8.6
//! MB). Their time is proportional to their output activations, which is how the study distinguishes the two kinds; by
//! multiply-adds (0.35e9 and 0.62e9) the network-heavy one would also be the more compute-heavy. Their structure is
//! Inception-v3's (C. Szegedy et al., "Rethinking the Inception Architecture for Computer Vision", arXiv:1512.00567, as
//! in TensorFlow's slim/nets/inception_v3.py: Mixed_5d and Mixed_6e); a convolution has a weight and batch
//! normalization's beta, but no gamma. Modules of one's own come from a file ([`OwnModule`]).
use std::collections::HashSet;
use std::path::Path;

use super::Trace;
use super::file::{Distributed, GradientFile, LayerFile, TraceFile, WorkerFile};
use super::own_module::{AddedLayer, AddedTensor, OwnModule};
use crate::document::{DocumentError, shown, with_remedy};
use crate::nearest;
use crate::units::{MAX_SECONDS, Time};

/// Output activations of Inception-v3's 21 layers per 299x299 sample (slim's inception_v3): positions, channels.
const INCEPTION_LAYERS: &[(u64, u64)] = &[
    (149 * 149, 32),
    (147 * 147, 32),
    (147 * 147, 64),
    (73 * 73, 64),
    (73 * 73, 80),
    (71 * 71, 192),
    (35 * 35, 192),
    (35 * 35, 256),
    (35 * 35, 288),
    (35 * 35, 288),
    (17 * 17, 768),
    (17 * 17, 768),
    (17 * 17, 768),
    (17 * 17, 768),
    (17 * 17, 768),
    (8 * 8, 1280),
    (8 * 8, 2048),
    (8 * 8, 2048),
    (1, 2048),
    (1, 2048),
    (1, 1001),
];

/// The study's Inception-v3 at [`STUDY_BATCH`] (its table of inputs).
const STUDY_FORWARD_S: f64 = 0.176;
const STUDY_BACKWARD_S: f64 = 0.296;
const STUDY_BATCH: f64 = 32.0;

/// More would exceed a million tensors.
const MOST_MODULES: u32 = 10_000;

/// The kind of module to add.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum ModuleKind {
    /// On 35x35x288: much time for few bytes.
    Compute,
    /// On 17x17x768: eight times the bytes for two thirds of the time.
    Network,
}

struct Convolution {
    branch: u32,
    name: &'static str,
    /// Height and width.
    kernel: (u64, u64),
    channels_in: u64,
    channels_out: u64,
}

impl Convolution {
    fn weights(&self) -> u64 {
        self.kernel.0 * self.kernel.1 * self.channels_in * self.channels_out
    }
}

const fn conv(branch: u32, name: &'static str, kernel: (u64, u64), channels_in: u64, channels_out: u64) -> Convolution {
    Convolution { branch, name, kernel, channels_in, channels_out }
}

/// In the order of the forward pass; branch 3 pools first.
const COMPUTE: &[Convolution] = &[
    conv(0, "conv", (1, 1), 288, 64),
    conv(1, "conv", (1, 1), 288, 48),
    conv(1, "conv_5x5", (5, 5), 48, 64),
    conv(2, "conv", (1, 1), 288, 64),
    conv(2, "conv_3x3a", (3, 3), 64, 96),
    conv(2, "conv_3x3b", (3, 3), 96, 96),
    conv(3, "conv", (1, 1), 288, 64),
];
const NETWORK: &[Convolution] = &[
    conv(0, "conv", (1, 1), 768, 192),
    conv(1, "conv", (1, 1), 768, 192),
    conv(1, "conv_1x7", (1, 7), 192, 192),
    conv(1, "conv_7x1", (7, 1), 192, 192),
    conv(2, "conv", (1, 1), 768, 192),
    conv(2, "conv_7x1a", (7, 1), 192, 192),
    conv(2, "conv_1x7a", (1, 7), 192, 192),
    conv(2, "conv_7x1b", (7, 1), 192, 192),
    conv(2, "conv_1x7b", (1, 7), 192, 192),
    conv(3, "conv", (1, 1), 768, 192),
];

impl ModuleKind {
    /// The name that users type.
    #[must_use]
    pub fn name(self) -> &'static str {
        match self {
            ModuleKind::Compute => "compute",
            ModuleKind::Network => "network",
        }
    }

    fn convolutions(self) -> &'static [Convolution] {
        match self {
            ModuleKind::Compute => COMPUTE,
            ModuleKind::Network => NETWORK,
        }
    }

    /// Its output per sample, as a share of the output of all of Inception-v3's layers.
    fn activation_share(self) -> f64 {
        let own = match self {
            ModuleKind::Compute => 35 * 35 * 288,
            ModuleKind::Network => 17 * 17 * 768,
        };
        let all: u64 = INCEPTION_LAYERS.iter().map(|(positions, channels)| positions * channels).sum();
        f64::from(own) / all as f64
    }

    /// A module's time, split over its convolutions so that the parts add up to it.
    fn split(self, time: Time) -> Vec<Time> {
        let convolutions = self.convolutions();
        let all: u64 = convolutions.iter().map(Convolution::weights).sum();
        let mut done = (0, Time::ZERO);
        let part = |convolution: &Convolution| {
            let weights = done.0 + convolution.weights();
            let end = time.scaled(weights as f64 / all as f64);
            let part = end - done.1;
            done = (weights, end);
            part
        };
        convolutions.iter().map(part).collect()
    }

    /// Its layers, which take these times together. `element`: bytes of one.
    fn layers(self, forward: Time, backward: Time, element: u64) -> Vec<AddedLayer> {
        let times = self.split(forward).into_iter().zip(self.split(backward));
        let layer = |(it, (forward, backward)): (&Convolution, _)| AddedLayer {
            name: format!("branch{}.{}", it.branch, it.name),
            forward,
            backward,
            activation_bytes: None,
            average_bytes: Some(it.channels_out * element),
            tensors: vec![
                AddedTensor { name: "weight".into(), bytes: it.weights() * element, shape: None },
                AddedTensor { name: "beta".into(), bytes: it.channels_out * element, shape: None },
            ],
        };
        self.convolutions().iter().zip(times).map(layer).collect()
    }
}

/// What is added: one of the study's modules, or one of the user's.
#[derive(Clone, Debug, PartialEq)]
pub enum Module {
    /// The study's.
    Study(ModuleKind),
    /// From a file.
    Own(OwnModule),
}

impl Module {
    /// The name that traces with it have.
    #[must_use]
    pub fn name(&self) -> &str {
        match self {
            Module::Study(kind) => kind.name(),
            Module::Own(own) => &own.name,
        }
    }

    /// Its layers for a worker of a trace; `None`: they take longer than a day.
    fn layers(&self, trace: &Trace, worker: usize) -> Option<Vec<AddedLayer>> {
        let recorded = &trace.workers[worker];
        match self {
            Module::Study(kind) => {
                let is_inception = trace.name.to_lowercase().replace(['-', '_', ' '], "").contains("inceptionv3");
                let batches = f64::from(trace.batch) / STUDY_BATCH;
                let (forward, backward) = if is_inception {
                    (recorded.forward_time().seconds(), recorded.backward.seconds())
                } else {
                    (STUDY_FORWARD_S * batches, STUDY_BACKWARD_S * batches)
                };
                let [forward, backward] = [forward, backward].map(|seconds| seconds * kind.activation_share());
                (forward.max(backward) <= MAX_SECONDS)
                    .then(|| kind.layers(Time::from_seconds(forward), Time::from_seconds(backward), trace.dtype.size()))
            }
            Module::Own(own) => own.layers(trace.batch),
        }
    }
}

/// Reads `compute:25`, `network:25` or `mine.json:25`, a file in the format of [`OwnModule`].
///
/// # Errors
/// Anything else, and a file that cannot be read.
pub fn read_modules(spec: &str) -> Result<(Module, u32), DocumentError> {
    let wrong = |message: &str, remedy: &str| DocumentError::at(&shown(spec), "", &with_remedy(message, remedy));
    let (word, count) = spec
        .rsplit_once(':')
        .ok_or_else(|| wrong("is not compute:COUNT, network:COUNT or FILE.json:COUNT", "compute:2"))?;
    let count: Option<u32> = count.parse().ok().filter(|&count| count <= MOST_MODULES);
    let kinds = [ModuleKind::Compute, ModuleKind::Network];
    let known = kinds.into_iter().find(|known| known.name() == word);
    let is_file = known.is_none() && word.contains(['.', '/']);
    if known.is_none() && !is_file {
        let near = nearest(word, kinds.map(ModuleKind::name)).unwrap_or("compute");
        return Err(wrong("unknown module", &format!("{near}:2 (compute, network or FILE.json)")));
    }
    let Some(count) = count else {
        return Err(wrong(&format!("must have 0-{MOST_MODULES} modules"), &format!("{word}:2")));
    };
    let module = match known {
        Some(kind) => Module::Study(kind),
        None => Module::Own(OwnModule::read(Path::new(word))?),
    };
    Ok((module, count))
}

impl Trace {
    /// Adds `count` modules after half of the forward layers: `added0.branch1.conv_5x5.weight` and so on.
    ///
    /// A module of one's own has the times of its file. One of the study's, if the trace is Inception-v3's (judging by
    /// its name), takes the share of the worker's forward and backward time that its activations have of the model's.
    /// For other traces the activations are unknown: there it takes that share of the study's figures for
    /// Inception-v3, 0.176 s forward and 0.296 s backward at batch 32, in proportion to the trace's batch. Its
    /// convolutions share its time in proportion to their multiply-adds. In the backward pass the modules run between
    /// the layers after them and those before them, whose gradients are ready later by the modules' time. Servers
    /// distribute their tensors before the first tensor of the layers after them. With 0 modules the trace is
    /// unchanged.
    ///
    /// # Errors
    /// More than 10 000 modules, times that become longer than a day, or bytes that are not whole elements.
    pub fn with_modules(self, module: &Module, count: u32) -> Result<Trace, DocumentError> {
        let name = self.name.clone();
        if count > MOST_MODULES {
            return Err(DocumentError::at(
                &name,
                "",
                &with_remedy(
                    format!("must have at most {MOST_MODULES} modules"),
                    format!("{{add_module={}:{MOST_MODULES}}}", module.name()),
                ),
            ));
        }
        if count == 0 {
            return Ok(self);
        }
        if let Module::Own(own) = module {
            own.check_elements(&name, self.dtype)?;
            own.check_count(&self, count)?;
        }
        let mut file = TraceFile::from(&self);
        file.operators = None;
        file.name = format!("{name}+{}:{count}", module.name());
        let mut added = Added { layers: Vec::new(), count, first: first_free(&self) };
        // All workers have the same tensors; if their layers differ, the first decides when servers send them.
        let first = &self.workers[0].forward;
        let mut after = first.iter().skip(first.len() / 2).flat_map(|layer| &layer.tensors);
        let place = after.find_map(|tensor| self.distribution.iter().position(|placed| placed == tensor));
        let place = place.unwrap_or(file.distribution.len());
        for (number, worker) in file.workers.iter_mut().enumerate() {
            let too_long = || {
                let message = with_remedy("the added modules would take longer than a day", "fewer of {add_module}");
                DocumentError::at(&name, "", &message)
            };
            added.layers = module.layers(&self, number).ok_or_else(too_long)?;
            let seconds = |time: fn(&AddedLayer) -> Time| added.layers.iter().map(|it| time(it).seconds()).sum::<f64>();
            let longest = seconds(|it| it.forward).max(seconds(|it| it.backward));
            if longest * f64::from(count) > MAX_SECONDS {
                return Err(too_long());
            }
            added.insert(worker);
        }
        file.distribution.splice(place..place, added.tensors().map(|tensor| Distributed { tensor, bytes: None }));
        if !file.variables.is_empty() {
            let next = first.iter().skip(first.len() / 2).flat_map(|layer| &layer.tensors);
            let numbers = self.variable_numbers();
            let place = next.map(|&tensor| numbers[tensor as usize] as usize).min().unwrap_or(usize::MAX);
            let place = place.min(file.variables.len());
            file.variables.splice(place..place, added.variables());
        }
        file.checked().map_err(|problem| problem.of(&name))
    }
}

/// The modules that are added to one worker.
struct Added {
    /// Of one module, in the order of the forward pass.
    layers: Vec<AddedLayer>,
    count: u32,
    /// The first module's number.
    first: u32,
}

impl Added {
    /// The names of all layers, in order of modules.
    fn named(&self) -> impl DoubleEndedIterator<Item = (String, &AddedLayer)> {
        let named = move |module: u32| self.layers.iter().map(move |it| (format!("added{module}.{}", it.name), it));
        (self.first..self.first + self.count).flat_map(named)
    }

    fn tensors(&self) -> impl Iterator<Item = String> {
        self.named().flat_map(|(name, it)| it.tensors.iter().map(move |tensor| format!("{name}.{}", tensor.name)))
    }

    /// The same with the moving averages of batch normalization, where a layer has them.
    fn variables(&self) -> impl Iterator<Item = Distributed> {
        self.named().flat_map(|(name, it)| {
            let average = it.average_bytes.map(|bytes| ["moving_mean", "moving_variance"].map(|own| (own, bytes)));
            let own = it.tensors.iter().map(|tensor| (tensor.name.as_str(), None));
            let averages = average.into_iter().flatten().map(|(own, bytes)| (own, Some(bytes)));
            own.chain(averages).map(move |(own, bytes)| Distributed { tensor: format!("{name}.{own}"), bytes })
        })
    }

    /// Adds the modules to one worker.
    fn insert(&self, worker: &mut WorkerFile) {
        let half = worker.forward.len() / 2;
        // A tensor shared by layers on both sides has its gradient when the earlier one has finished.
        let before: HashSet<&str> =
            worker.forward[..half].iter().flat_map(|layer| &layer.tensors).map(String::as_str).collect();
        let mut start = Time::ZERO;
        let one: u64 = self.layers.iter().map(|it| it.backward.0).sum();
        let total = Time(one * u64::from(self.count));
        for gradient in &mut worker.gradients {
            if before.contains(gradient.tensor.as_str()) {
                gradient.ready_s += total;
            } else {
                start = start.max(gradient.ready_s);
            }
        }
        if let Some(whole) = &mut worker.backward_s {
            *whole += total;
        }
        let layers = self.named().map(|(layer, it)| LayerFile {
            tensors: it.tensors.iter().map(|tensor| format!("{layer}.{}", tensor.name)).collect(),
            layer,
            duration_s: it.forward,
            activation_bytes: it.activation_bytes,
            backward_bytes: None,
        });
        worker.forward.splice(half..half, layers);
        let mut ready_s = start;
        for (layer, it) in self.named().rev() {
            ready_s += it.backward;
            worker.gradients.extend(it.tensors.iter().rev().map(|tensor| GradientFile {
                tensor: format!("{layer}.{}", tensor.name),
                ready_s,
                bytes: tensor.bytes,
                shape: tensor.shape.clone(),
            }));
        }
    }
}

/// Modules may be added twice, of either kind: the second time, the numbering continues.
fn first_free(trace: &Trace) -> u32 {
    let number = |name: &str| name.strip_prefix("added")?.split_once('.')?.0.parse::<u32>().ok();
    let highest = trace.tensors.iter().filter_map(|tensor| number(&tensor.name)).max();
    // A number near 2^32 is not one of our modules; its name differs from all of theirs.
    highest.map_or(0, |highest| highest.checked_add(1 + MOST_MODULES).map_or(0, |_| highest + 1))
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::trace::testing::tiny;

    #[test]
    fn modules_have_the_size_of_inceptions() {
        // By hand, from the channels: 288*(64+48+64+64) + 25*48*64 + 9*64*96 + 9*96*96, and 4*768*192 + 6*7*192*192.
        let weights = |kind: ModuleKind| kind.convolutions().iter().map(Convolution::weights).sum::<u64>();
        assert_eq!(weights(ModuleKind::Compute), 284_160);
        assert_eq!(weights(ModuleKind::Network), 2_138_112);
        // 352,800 and 221,952 of 7,233,001 activations.
        assert!((ModuleKind::Compute.activation_share() - 0.0488).abs() < 1e-4);
        assert!((ModuleKind::Network.activation_share() - 0.0307).abs() < 1e-4);
    }

    #[test]
    fn they_run_in_the_middle() {
        let before = tiny();
        let after = before.clone().with_modules(&Module::Study(ModuleKind::Compute), 2).unwrap();
        assert_eq!(after.name, "tiny+compute:2");
        assert_eq!(after.tensors.len(), before.tensors.len() + 2 * 2 * 7);
        let (old, new) = (&before.workers[0], &after.workers[0]);
        assert_eq!(new.forward[0], old.forward[0]);
        assert_eq!(new.forward[1].name, "added0.branch0.conv");
        assert_eq!(new.forward[8].name, "added1.branch0.conv");
        assert_eq!(new.forward[15].name, "pool");
        let share = 2.0 * ModuleKind::Compute.activation_share();
        let close = |time: Time, seconds: f64| (time.seconds() - seconds).abs() < 1e-10;
        assert!(close(new.forward_time(), old.forward_time().seconds() + 0.176 * share));
        assert!(close(new.backward, old.backward.seconds() + 0.296 * share));
        let order: Vec<_> =
            new.gradients.iter().map(|g| (after.tensors[g.tensor as usize].name.as_str(), g.ready)).collect();
        assert_eq!(order[0], ("fc.weight", old.gradients[0].ready));
        assert_eq!(order[1].0, "added1.branch3.conv.beta");
        assert_eq!(order[28].0, "added0.branch0.conv.weight");
        assert!(close(order[28].1, 0.004 + 0.296 * share));
        assert!(close(order[29].1, 0.024 + 0.296 * share));
        let sent: Vec<_> = after.distribution.iter().map(|&t| after.tensors[t as usize].name.as_str()).collect();
        assert_eq!(sent[..3], ["conv.weight", "conv.bias", "added0.branch0.conv.weight"]);
        assert_eq!(sent[30..], ["fc.weight", "moving_mean"]);
    }

    #[test]
    fn inceptions_own_times_are_used_for_inception() {
        let mut trace = tiny();
        trace.name = "Inception-v3, faster".into();
        let forward = trace.workers[0].forward_time().seconds();
        let added =
            trace.with_modules(&Module::Study(ModuleKind::Network), 1).unwrap().workers[0].forward_time().seconds()
                - forward;
        assert!((added - forward * ModuleKind::Network.activation_share()).abs() < 1e-11);
    }

    #[test]
    fn adding_goes_on_counting_and_stays_readable() {
        let trace = tiny()
            .with_modules(&Module::Study(ModuleKind::Compute), 1)
            .unwrap()
            .with_modules(&Module::Study(ModuleKind::Network), 1)
            .unwrap();
        assert!(trace.tensors.iter().any(|tensor| tensor.name == "added1.branch2.conv_7x1a.weight"));
        assert_eq!(Trace::from_json(trace.to_json().as_bytes(), "it").unwrap(), trace);
        assert_eq!(tiny().with_modules(&Module::Study(ModuleKind::Compute), 0).unwrap(), tiny());
    }

    #[test]
    fn errors_name_the_remedy() {
        for (spec, says) in [
            ("compute", "try: compute:2"),
            ("compote:3", "try: compute:2"),
            ("compute:-1", "0-10000 modules"),
            ("compute:10001", "0-10000 modules"),
        ] {
            let error = read_modules(spec).unwrap_err();
            let error = format!("{error}\n  try: {}", error.remedy().unwrap_or_default());
            assert!(error.contains(says), "{error}");
        }
        assert_eq!(read_modules("network:125").unwrap(), (Module::Study(ModuleKind::Network), 125));
        let mut trace = tiny();
        trace.batch = u32::MAX;
        assert!(
            trace
                .with_modules(&Module::Study(ModuleKind::Network), 1)
                .unwrap_err()
                .to_string()
                .contains("longer than a day")
        );
    }
}
