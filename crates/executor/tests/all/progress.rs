//! In any order of events, and with however little room: operations complete with the right sums.
//!
//! Ranks play several roles each (worker, server, switch). A test case is a strategy, a network with limits, and a seed
//! for the order of events.

use std::sync::Arc;

use crate::simulated::{Effort, Network, Task, World};
use crate::world::{self, signature};
use paceline_executor::handle::Handle;
use paceline_executor::program::Scheduled;
use paceline_executor::{InStep, Limits, OperationSpec};
use paceline_kernels::dtype::{Dtype, ReduceOp};
use paceline_schedule::{
    Bucket, Chunk, Distribution, Inside, Knobs, Placement, Schedule, Topology, build, find, synchronous,
};
use paceline_transport::header::Collective;
use paceline_transport::space::Space;
use proptest::prelude::*;

const ELEMENT: usize = 8;

/// An all-reduce of all ranks.
#[derive(Clone, Debug)]
struct Operation {
    elements: u64,
    /// Of two communicators.
    group: u32,
    /// By rank.
    late: Vec<bool>,
    waits: Vec<bool>,
}

#[derive(Clone, Debug)]
struct Case {
    strategy: &'static str,
    topology: Topology,
    knobs: Knobs,
    network: Network,
    /// Elements that a switch has memory for.
    window: u64,
    operations: Vec<Operation>,
    /// The operations are one training step.
    step: bool,
}

impl Case {
    fn schedule(&self) -> Arc<dyn Schedule> {
        Arc::from(build(self.strategy, &self.topology, &self.knobs).expect("a strategy that can be built"))
    }

    /// The roles that a rank plays, with memory for each, as a communicator gives them out.
    fn roles(&self, schedule: &dyn Schedule, me: u32, worker: Space, elements: u64) -> Vec<(u32, Space)> {
        let all = schedule.roles();
        let scratch = |role: u32| {
            if role < all.workers + all.servers {
                let mut memory = Space::new(ELEMENT);
                memory.push_scratch(elements);
                memory
            } else {
                Space::windowed(ELEMENT, elements, self.window)
            }
        };
        let helpers = (all.workers..all.total()).filter(|role| role % all.workers == me);
        std::iter::once((me, worker)).chain(helpers.map(|role| (role, scratch(role)))).collect()
    }

    fn task(&self, schedule: &Arc<dyn Schedule>, number: usize, rank: u32, memory: &mut [u8]) -> Task {
        let operation = &self.operations[number];
        let (len, group) = (operation.elements, operation.group);
        let me = place(rank, group, self.topology.workers);
        let bucket = Bucket { id: number as u32, len, pull_only: false };
        let program = Box::new(Scheduled { schedule: schedule.clone(), bucket });
        let roles = self.roles(&**schedule, me, world::space(memory, Dtype::Int64, usize::MAX / ELEMENT), len);
        let last = number + 1 == self.operations.len();
        let spec = OperationSpec {
            step: self.step.then_some(InStep { last, priority: number as u32 % 3 }),
            ..world::operation(signature(Collective::AllReduce, Dtype::Int64, ReduceOp::Sum, len), program, roles)
        };
        Task {
            begin: Box::new(move |executor| {
                let handle: Arc<Handle> = spec.handle.clone();
                executor.begin(group, spec);
                handle
            }),
            late: operation.late[rank as usize],
            waits: operation.waits[rank as usize] && !self.step,
        }
    }

    /// Runs it and checks the sums.
    fn run(&self, patient: bool) -> Result<Effort, TestCaseError> {
        let (schedule, workers) = (self.schedule(), self.topology.workers);
        let mut world = World::new(workers, &self.network);
        for (rank, executor) in (0..).zip(&mut world.executors) {
            for group in 0..2 {
                let mut ranks: Vec<u32> = (0..workers).collect();
                ranks.rotate_left(group as usize % workers as usize);
                executor.add_group(group, ranks, place(rank, group, workers));
            }
        }
        let value = |rank: usize, number: usize, i: u64| (rank as i64 + 1) * 1_000_003 + (number as i64 * 7 + i as i64);
        let mut memory: Vec<Vec<Vec<u8>>> = Vec::new();
        for rank in 0..workers as usize {
            let values = |number: usize| (0..self.operations[number].elements).map(move |i| value(rank, number, i));
            let bytes = |number| values(number).flat_map(i64::to_ne_bytes).collect();
            memory.push((0..self.operations.len()).map(bytes).collect());
        }
        let tasks = (0..).zip(&mut memory).map(|(rank, memory)| {
            let each = memory.iter_mut().enumerate();
            each.map(|(number, memory)| self.task(&schedule, number, rank, memory)).collect()
        });
        let effort = world.run(tasks.collect(), patient).map_err(TestCaseError::fail)?;
        for memory in &memory {
            for (number, memory) in memory.iter().enumerate() {
                for (i, element) in (0..).zip(memory.as_chunks::<ELEMENT>().0) {
                    let sum: i64 = (0..workers as usize).map(|rank| value(rank, number, i)).sum();
                    prop_assert_eq!(i64::from_ne_bytes(*element), sum, "operation {}, element {}", number, i);
                }
            }
        }
        Ok(effort)
    }
}

/// Of a rank in a communicator: each begins with another rank.
fn place(rank: u32, group: u32, workers: u32) -> u32 {
    (rank + workers - group % workers) % workers
}

fn network() -> impl Strategy<Value = Network> {
    let limits = (1usize..12, 1usize..4, 0usize..2000, 0usize..2000, 0u64..4000, 1u32..6, 1usize..12);
    let limits =
        limits.prop_map(|(elements, loopback_fragments, unexpected, unexpected_streams, ahead, window, lanes)| {
            Limits {
                loopback_fragment: elements * ELEMENT,
                loopback_fragments,
                zero_copy_min: 2 * ELEMENT,
                unexpected,
                unexpected_streams,
                ahead,
                window,
                lanes,
            }
        });
    let sizes = (1usize..12, 1usize..4, prop_oneof![Just(0), 1usize..20]);
    (any::<u64>(), sizes, any::<bool>(), limits).prop_map(|(seed, (elements, fragments, extra), far, limits)| Network {
        seed,
        fragment: elements * ELEMENT,
        fragments,
        zero_copy: if extra > 0 { (elements + extra) * ELEMENT } else { 0 },
        far,
        limits,
    })
}

fn knobs() -> impl Strategy<Value = Knobs> {
    let chunk = prop_oneof![
        Just(None),
        Just(Some(Chunk::Whole)),
        Just(Some(Chunk::PerWorker)),
        (1u64..60).prop_map(|elements| Some(Chunk::Elements(elements)))
    ];
    (chunk, any::<[bool; 4]>()).prop_map(|(chunk, [even, block, barrier, root])| Knobs {
        chunk: if even { None } else { chunk },
        placement: if even { Placement::Even } else { Placement::RoundRobin },
        distribution: if block && barrier { Distribution::Block } else { Distribution::RoundRobin },
        barrier,
        inside: if root { Inside::Root } else { Inside::Ring },
        ..Knobs::default()
    })
}

fn topology() -> impl Strategy<Value = Topology> {
    let radix = prop_oneof![Just(None), (2u32..4).prop_map(Some)];
    let racks = prop_oneof![Just(None), (1u32..4).prop_map(Some)];
    (1u32..7, 1u32..4, 1u32..5, radix, racks).prop_map(
        |(workers, ranks_per_node, servers, switch_radix, nodes_per_rack)| {
            let ranks_per_node = ranks_per_node.min(workers);
            let topology = Topology { ranks_per_node, servers, switch_radix, ..Topology::flat(workers) };
            topology.in_racks(nodes_per_rack)
        },
    )
}

fn case(operations: std::ops::Range<usize>) -> impl Strategy<Value = Case> {
    let strategy = (0..synchronous().len()).prop_map(|index| synchronous()[index].name);
    let operations = (operations, topology()).prop_flat_map(|(count, topology)| {
        let each = || prop::collection::vec(prop::bool::weighted(0.3), topology.workers as usize);
        let operation = (0u64..300, 0u32..2, each(), each());
        let operation = operation.prop_map(|(elements, group, late, waits)| Operation { elements, group, late, waits });
        (Just(topology), prop::collection::vec(operation, count))
    });
    (strategy, operations, knobs(), network(), 0u64..40, any::<bool>()).prop_map(
        |(strategy, (topology, mut operations), knobs, network, more, step)| {
            let largest = network.fragment.max(network.zero_copy).max(network.limits.loopback_fragment) / ELEMENT;
            // Training steps exist only with parameter servers that meet.
            let step = step && strategy.starts_with("ps") && knobs.barrier;
            if step {
                operations.iter_mut().for_each(|operation| operation.group = 0);
            }
            Case { strategy, topology, knobs, network, window: largest as u64 + more, operations, step }
        },
    )
}

proptest! {
    #![proptest_config(ProptestConfig { cases: 1000, max_shrink_iters: 20_000, failure_persistence: None, ..ProptestConfig::default() })]

    #[test]
    fn operations_end_whoever_runs_when(case in case(1..6)) {
        case.run(false)?;
    }

    /// Late ranks cost waiting, not memory: for one operation with all lanes in flight, as where servers meet, no
    /// unexpected messages are queued beyond the limits. `sharp`, whose switches have levels, may need more: between two
    /// ranks, what goes up to a switch waits in front of what comes down from another.
    #[test]
    fn one_operation_needs_no_more_than_its_limits(mut case in case(1..2)) {
        case.knobs.barrier = true;
        let effort = case.run(true)?;
        prop_assert!(case.strategy == "sharp" || effort.widened == 0, "{effort:?}");
    }
}

/// Worker, server and switch of rank 0 share its process, and the other rank is late. The worker, which continues as
/// soon as there is room, must not take the room that the switch needs for its sum.
#[test]
fn a_switch_passes_on_beside_a_worker_and_a_server() {
    for seed in 0..50 {
        let limits = Limits { unexpected_streams: 1 << 10, loopback_fragment: 64, ..Limits::default() };
        let network = Network { seed, fragment: 128, fragments: 4, zero_copy: 0, far: true, limits };
        let operation = Operation { elements: 4000, group: 0, late: vec![false, true], waits: vec![false; 2] };
        let case = Case {
            strategy: find("ps-aggregation").expect("a known strategy").name,
            topology: Topology { servers: 2, ..Topology::flat(2) },
            knobs: Knobs::default(),
            network,
            window: 128,
            operations: vec![operation],
            step: false,
        };
        let effort = case.run(true).unwrap_or_else(|error| panic!("seed {seed}: {error}"));
        assert_eq!(effort.widened, 0, "seed {seed}");
    }
}
