//! Every constant of the model: name, unit, value and source. The documentation prints this table.
use paceline_schedule::Refusal;
use serde::Deserialize;

/// A constant for the documentation.
#[derive(Clone, Copy, Debug)]
pub struct Constant {
    /// Its name in files of constants.
    pub name: &'static str,
    /// Empty for a pure number.
    pub unit: &'static str,
    /// The default; a file of constants can override it.
    pub default: f64,
    /// Valid values.
    pub range: (f64, f64),
    /// A description.
    pub meaning: &'static str,
    /// The source of the value.
    pub source: &'static str,
}

/// Declares the struct, its defaults and its table together, so that they cannot differ.
macro_rules! constants {
    ($($name:ident: $default:literal $unit:literal in $least:literal..=$most:literal, $meaning:literal, $source:literal;)*) => {
        /// The model's constants; docs/explanation/coordinator-model.md shows each with its source.
        #[derive(Clone, Debug, PartialEq, Deserialize)]
        #[serde(default, deny_unknown_fields)]
        pub struct Constants {
            $(#[doc = $meaning] pub $name: f64,)*
        }

        impl Default for Constants {
            fn default() -> Constants {
                Constants { $($name: $default,)* }
            }
        }

        impl Constants {
            /// All constants, in the order in which the model uses them.
            pub const TABLE: &'static [Constant] = &[$(Constant {
                name: stringify!($name),
                unit: $unit,
                default: $default,
                range: ($least, $most),
                meaning: $meaning,
                source: $source,
            },)*];

            /// The values, in the order of the table.
            #[must_use]
            pub fn values(&self) -> Vec<f64> {
                vec![$(self.$name),*]
            }
        }
    };
}

constants! {
    cycle_ms: 5.0 "ms" in 0.0..=10_000.0, "a coordinator sleeps until this long after its last wake-up",
        "HOROVOD_CYCLE_TIME of the published runs (5 ms; 1 ms is Horovod's default today)";
    consensus_step_ms: 0.006 "ms" in 0.0..=1_000.0,
        "the all-reduce of the cache's bits takes this times log2 of the processes",
        "an all-reduce of 8 bytes takes log2 N exchanges; `paceline probe` measures one";
    turn_ms: 0.2 "ms" in 0.0..=1_000.0,
        "duration of a turn without waiting; an exchange that ends within it is seen in the same turn",
        "assumed: twice the duration of an exchange among 24,576 processes";
    contention_share: 0.44 "" in 0.0..=1.0,
        "share of an iteration on one node in which input pipeline and graph scheduling are both active",
        "median of eight published networks (Pumma et al.), 0.23 to 0.56; `simulate` takes a network's own where it is published";
    nodes_per_tensor: 25.0 "" in 0.0..=1_000_000.0, "nodes of a training step's graph for every tensor that is reduced",
        "median of nine published graphs (Pumma et al.), 19 to 41; `simulate` takes a network's own where it is published";
    preemption_per_node: 0.000049 "" in 0.0..=10.0,
        "preemptions of a process's scheduling for every node that it schedules while both are active",
        "fitted: the lateness of a process that remains without a coordinator";
    preemption_mean_ms: 3.6 "ms" in 0.0..=1_000.0,
        "mean length of a preemption; exponential; one caused by a spin lasts at most as long as the spin",
        "fitted, as above; a slice of Linux's scheduler is 3 to 6 ms";
    oversleep_probability: 0.0008 "" in 0.0..=1.0, "a wake-up is late with this probability, while both are active",
        "fitted: gain of a common sleep (Pumma et al.)";
    oversleep_mean_ms: 15.0 "ms" in 0.0..=1_000.0,
        "mean lateness of such a wake-up; exponential, so that one of many thousand is late by tens of ms, as published",
        "fitted, as above";
    spin_preemption_per_node: 0.00039 "" in 0.0..=10.0,
        "further preemptions for every node scheduled while the process's own coordinator spins",
        "fitted: gain of a graph's order (Pumma et al.)";
    test_ms: 1.0 "ms" in 0.01..=10_000.0, "a coordinator that does not block tests a pending all-reduce this often",
        "assumed: the shortest sleep that Horovod's loop takes";
    order_ms: 1.0 "ms" in 0.0..=1_000.0,
        "what a coordinator in graph order does for a bucket: place in the order, fusion buffer",
        "fitted: overhead of the background thread on 24,576 GPUs (Pumma et al.)";
    cores: 7.0 "" in 2.0..=1_000.0, "cores of a process",
        "the published runs: 42 usable cores of a node of Summit for 6 processes";
    pipeline_cores: 5.0 "" in 1.0..=1_000.0, "cores left to the input pipeline by a partition",
        "assumed: one core each for coordinator and scheduling; the pipeline is active longer by cores / this";
    copy_launch_ms: 0.005 "ms" in 0.0..=1_000.0,
        "a copy of a tensor into or out of the fusion buffer takes at least this",
        "launch of a CUDA copy, about 5 us";
    copy_gb_per_s: 400.0 "GB/s" in 0.001..=1_000_000.0, "rate of such a copy",
        "a V100 reads and writes 900 GB/s, and a copy does both";
    congestion: 0.27 "" in 0.0..=10.0,
        "with every doubling of the nodes, a byte's time in the network grows by this share of its original value",
        "fitted to Summit under imbalance (Pumma et al.); 0 is the strategy's closed form";
    collective_step_ms: 0.3 "ms" in 0.0..=1_000.0,
        "additional time of an all-reduce: this times (1 + log2 of the nodes)",
        "fitted to Summit under imbalance (Pumma et al.); 0 is the strategy's closed form";
}

/// A coordinator that never sleeps still takes this for a cycle, ms.
const SHORTEST_CYCLE: f64 = 0.01;

impl Constants {
    /// How long a coordinator that negotiates takes for a cycle at least, ms.
    pub(super) fn cycle(&self) -> f64 {
        self.cycle_ms.max(SHORTEST_CYCLE)
    }

    /// # Errors
    /// A constant is out of range; the message names the first.
    pub fn check(&self) -> Result<(), Refusal> {
        for (constant, value) in Constants::TABLE.iter().zip(self.values()) {
            let (least, most) = constant.range;
            if !(least..=most).contains(&value) {
                let reason = format!("{}: must be {least}-{most}, not {value}", constant.name);
                let nearest = value.clamp(least, most);
                return Err(Refusal::new(reason).remedy(format!("\"{}\": {nearest}", constant.name)));
            }
        }
        if self.pipeline_cores > self.cores {
            let reason = format!("pipeline_cores: must be at most cores, {}, not {}", self.cores, self.pipeline_cores);
            return Err(Refusal::new(reason).remedy(format!("\"pipeline_cores\": {}", self.cores)));
        }
        Ok(())
    }
}
