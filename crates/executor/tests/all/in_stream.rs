//! Programs as commands for streams: results are right in whatever order the streams run, nothing is read too early or
//! overwritten too soon, and no stream gets stuck.
use std::collections::HashMap;

use paceline_executor::in_stream::{Command, Extent, InStream, MOST_EXTENTS, Place, in_stream};
use paceline_executor::program::{
    Broadcast, DirectAllGather, DirectAllReduce, DirectReduceScatter, Program, Reduce, Scheduled,
};
use paceline_schedule::{
    Bucket, Chunk, Collective, Distribution, Knobs, Schedule, Topology, build_collective, shard, synchronous,
};
use proptest::prelude::*;

/// The memory of all ranks, and what streams have done.
struct World<'a> {
    plan: &'a InStream,
    memory: HashMap<Place, Vec<i64>>,
    next: Vec<usize>,
    /// By giver and taker.
    signals: Vec<Vec<u32>>,
    factor: i64,
}

impl World<'_> {
    fn ready(&self, rank: usize) -> bool {
        match self.plan.commands[rank].get(self.next[rank]) {
            None => false,
            Some(Command::Wait { rank: other, signals }) => self.signals[*other as usize][rank] >= *signals,
            Some(_) => true,
        }
    }

    fn run(&mut self, rank: usize) {
        match &self.plan.commands[rank][self.next[rank]] {
            Command::Wait { .. } => {}
            Command::Signal { to } => to.iter().for_each(|&to| self.signals[rank][to as usize] += 1),
            Command::Combine { to, from, len, complete } => {
                assert!((1..=MOST_EXTENTS).contains(&to.len()) && (1..=MOST_EXTENTS).contains(&from.len()));
                let factor = if *complete { self.factor } else { 1 };
                let get = |at: &Extent, index: u64| self.memory[&at.place][(at.off + index) as usize];
                let sums: Vec<i64> =
                    (0..*len).map(|index| from.iter().map(|at| get(at, index)).sum::<i64>() * factor).collect();
                for at in to {
                    let place = self.memory.get_mut(&at.place).unwrap();
                    place[at.off as usize..][..*len as usize].copy_from_slice(&sums);
                }
            }
        }
        self.next[rank] += 1;
    }
}

/// A command that uses memory: its elements, its place in its rank's stream, and what has happened before.
#[derive(Debug)]
struct Used {
    from: u64,
    to: u64,
    rank: usize,
    index: usize,
    writes: bool,
    clock: Vec<usize>,
}

/// Two ranks' commands that touch the same memory, one of them to write, are in an order that the signals enforce.
fn no_races(plan: &InStream) {
    // What each command has behind it, by rank: found by running once; the order is that of the signals alone.
    let ranks = plan.commands.len();
    let (mut next, mut clocks) = (vec![0; ranks], vec![vec![0usize; ranks]; ranks]);
    // By giver and taker.
    let mut signaled: Vec<Vec<Vec<Vec<usize>>>> = vec![vec![Vec::new(); ranks]; ranks];
    let mut uses: HashMap<Place, Vec<Used>> = HashMap::new();
    loop {
        let mut any = false;
        for rank in 0..ranks {
            while let Some(command) = plan.commands[rank].get(next[rank]) {
                match command {
                    Command::Wait { rank: other, signals } => {
                        let Some(learned) = signaled[*other as usize][rank].get(*signals as usize - 1).cloned() else {
                            break;
                        };
                        assert_ne!(*other as usize, rank);
                        clocks[rank].iter_mut().zip(learned).for_each(|(own, other)| *own = (*own).max(other));
                    }
                    Command::Signal { to } => {
                        clocks[rank][rank] = next[rank] + 1;
                        to.iter().for_each(|&to| signaled[rank][to as usize].push(clocks[rank].clone()));
                    }
                    Command::Combine { to, from, len, .. } => {
                        for (extents, writes) in [(from, false), (to, true)] {
                            for at in extents {
                                let (from, to, index) = (at.off, at.off + len, next[rank]);
                                let used = Used { from, to, rank, index, writes, clock: clocks[rank].clone() };
                                uses.entry(at.place).or_default().push(used);
                            }
                        }
                    }
                }
                next[rank] += 1;
                any = true;
            }
        }
        if !any {
            break;
        }
    }
    for (rank, commands) in plan.commands.iter().enumerate() {
        assert_eq!(next[rank], commands.len(), "rank {rank} is stuck at {:?}", commands.get(next[rank]));
        assert!((0..ranks).all(|to| signaled[rank][to].len() == plan.signals[rank][to] as usize));
    }
    for (place, uses) in &mut uses {
        let owner = match *place {
            Place::Role(role) => role as usize % ranks,
            Place::Spare(rank) => rank as usize,
        };
        // What the owner's stream was told before.
        uses.push(Used { from: 0, to: u64::MAX, rank: owner, index: 0, writes: true, clock: vec![0; ranks] });
        for (at, one) in uses.iter().enumerate() {
            for other in &uses[..at] {
                let (apart, reads) = (one.to <= other.from || other.to <= one.from, !one.writes && !other.writes);
                let before = |one: &Used, other: &Used| other.clock[one.rank] > one.index;
                let ordered = one.rank == other.rank || before(one, other) || before(other, one);
                assert!(apart || reads || ordered, "{place:?}: {one:?} and {other:?} are in no order");
            }
        }
        // At the end of its stream, nobody uses a rank's memory any more.
        for used in uses {
            assert!(
                used.rank == owner || clocks[owner][used.rank] > used.index,
                "{place:?} is still used at the end: {used:?}"
            );
        }
    }
}

/// Whose stream does the work of each rank, if some share a device: the first of each.
fn sharing(ranks: u32, seed: u64) -> Vec<u32> {
    let devices = 1 + seed % u64::from(ranks);
    let device = |rank: u32| match seed / 7 % 2 {
        0 => u64::from(rank) % devices,
        _ => u64::from(rank) * devices / u64::from(ranks),
    };
    (0..ranks).map(|rank| (0..=rank).find(|&other| device(other) == device(rank)).unwrap()).collect()
}

fn elements(rank: u32, len: u64) -> Vec<i64> {
    (0..len as i64).map(|index| index * 17 + i64::from(rank) * 1009 + 3).collect()
}

/// Runs the streams in an order that the seed decides; returns the memory of the ranks.
fn run(plan: &InStream, memory: HashMap<Place, Vec<i64>>, factor: i64, mut seed: u64) -> HashMap<Place, Vec<i64>> {
    let ranks = plan.commands.len();
    let mut world = World { plan, memory, next: vec![0; ranks], signals: vec![vec![0; ranks]; ranks], factor };
    for (rank, &elements) in plan.spare.iter().enumerate() {
        world.memory.insert(Place::Spare(rank as u32), vec![-1; elements as usize]);
    }
    loop {
        let ready: Vec<usize> = (0..ranks).filter(|&rank| world.ready(rank)).collect();
        if ready.is_empty() {
            break;
        }
        seed = seed.wrapping_mul(6364136223846793005).wrapping_add(1442695040888963407);
        world.run(ready[(seed >> 33) as usize % ready.len()]);
    }
    assert!((0..ranks).all(|rank| world.next[rank] == plan.commands[rank].len()), "stuck");
    world.memory
}

fn check(
    collective: Collective,
    name: &str,
    (ranks, per_node, servers): (u32, u32, u32),
    chunk: Chunk,
    len: u64,
    seed: u64,
) {
    let topology = Topology { ranks_per_node: per_node.min(ranks), servers, ..Topology::flat(ranks) };
    let entry = paceline_schedule::find(name).unwrap();
    let chunk = entry.uses(paceline_schedule::Knob::Chunk).then_some(chunk);
    let knobs = Knobs { chunk, distribution: Distribution::default(), ..Knobs::default() };
    let schedule: std::sync::Arc<dyn Schedule> =
        std::sync::Arc::from(build_collective(collective, name, &topology, &knobs).unwrap());
    let roles = schedule.roles().total();
    let program = Scheduled { schedule, bucket: Bucket { id: 3, len, pull_only: false } };
    let factor = if collective == Collective::AllReduce && roles > 1 { 5 } else { 1 };
    let plan = in_stream(&program, (roles, ranks), &sharing(ranks, seed), |_| None).unwrap();
    no_races(&plan);
    let bucket = Bucket { id: 3, len, pull_only: false };
    let shard = |rank: u32| shard(&bucket, ranks, rank);
    let memory = (0..roles).map(|role| {
        let mut own = elements(role, len);
        if collective == Collective::AllGather && role < ranks {
            let (from, upto) = (shard(role).off, shard(role).off + shard(role).len);
            own.iter_mut().enumerate().for_each(|(at, x)| {
                if !(from..upto).contains(&(at as u64)) {
                    *x = -7
                }
            });
        }
        (Place::Role(role), if role < ranks { own } else { vec![-1; len as usize] })
    });
    let after = run(&plan, memory.collect(), factor, seed);
    let sum = |at: u64| (0..ranks).map(|rank| elements(rank, len)[at as usize]).sum::<i64>() * factor;
    for rank in 0..ranks {
        let got = &after[&Place::Role(rank)];
        let own = shard(rank);
        for at in 0..len {
            let want = match collective {
                Collective::AllReduce => sum(at),
                Collective::ReduceScatter if (own.off..own.off + own.len).contains(&at) => sum(at),
                Collective::ReduceScatter => continue,
                Collective::AllGather => {
                    let owner =
                        (0..ranks).find(|&r| (shard(r).off..shard(r).off + shard(r).len).contains(&at)).unwrap();
                    elements(owner, len)[at as usize]
                }
            };
            assert_eq!(got[at as usize], want, "{name} {collective:?}: rank {rank} of {ranks}, element {at} of {len}");
        }
    }
}

proptest! {
    #![proptest_config(ProptestConfig { cases: 1000, failure_persistence: None, ..ProptestConfig::default() })]
    #[test]
    fn strategies_are_right_in_every_order(
        which in 0..64usize, ranks in 1..=9u32, per_node in 1..=4u32, servers in 1..=5u32,
        len in 0..60u64, cut in 1..30u64, whole in any::<bool>(), collective in 0..3usize, seed in any::<u64>(),
    ) {
        let of_streams: Vec<_> = synchronous().into_iter().filter(|entry| entry.name != "native").collect();
        let entry = of_streams[which % of_streams.len()];
        let collective = Collective::ALL[collective];
        // Shards are equal.
        let len = if collective == Collective::AllReduce { len } else { len / 6 * u64::from(ranks) };
        let chunk = if whole { Chunk::Whole } else { Chunk::Elements(cut) };
        if entry.offers(collective) {
            check(collective, entry.name, (ranks, per_node, servers), chunk, len, seed);
        }
    }

    #[test]
    fn roots_give_and_take(ranks in 1..=9u32, root in 0..9u32, len in 0..40u64, chunk in 1..30u64, seed in any::<u64>()) {
        let root = root % ranks;
        let memory = || (0..ranks).map(|rank| (Place::Role(rank), elements(rank, len))).collect::<HashMap<_, _>>();
        let of = |program: &dyn Program, scaled: bool| {
            let piece = paceline_schedule::Piece { off: 0, len };
            let plan = in_stream(program, (ranks, ranks), &sharing(ranks, seed), |rank| (scaled && rank == root).then_some(piece)).unwrap();
            no_races(&plan);
            run(&plan, memory(), 7, seed)
        };
        let after = of(&Broadcast { size: ranks, root, len, chunk }, false);
        for rank in 0..ranks {
            prop_assert_eq!(&after[&Place::Role(rank)], &elements(root, len));
        }
        let after = of(&Reduce { size: ranks, root, len, chunk }, true);
        let sum: Vec<i64> =
            (0..len).map(|at| (0..ranks).map(|rank| elements(rank, len)[at as usize]).sum::<i64>() * 7).collect();
        prop_assert_eq!(&after[&Place::Role(root)], &sum);
    }

    #[test]
    fn every_rank_takes_from_every_other(ranks in 1..=19u32, each in 1..=5u32, len in 0..60u64, align in 1..9u64, seed in any::<u64>()) {
        let sum = |at: usize| (0..ranks).map(|rank| elements(rank, len * u64::from(ranks))[at]).sum::<i64>();
        let of = |program: &dyn Program, memory: &dyn Fn(u32) -> Vec<i64>, factor: i64| {
            let plan = in_stream(program, (ranks, ranks), &sharing(ranks, seed), |_| None).unwrap();
            no_races(&plan);
            run(&plan, (0..ranks).map(|rank| (Place::Role(rank), memory(rank))).collect(), factor, seed)
        };
        let after = of(&DirectAllReduce { size: ranks, owners: (0..ranks).step_by(each as usize).collect(), len, align }, &|rank| elements(rank, len), 3);
        let want: Vec<i64> = (0..len as usize).map(|at| sum(at) * if ranks > 1 { 3 } else { 1 }).collect();
        prop_assert!((0..ranks).all(|rank| after[&Place::Role(rank)] == want));

        // Behind the whole lies what a rank gives, or gets.
        let range = |rank: u32| (u64::from(rank) * len) as usize..((u64::from(rank) + 1) * len) as usize;
        let whole = len * u64::from(ranks);
        let memory = |rank: u32| [vec![-5; whole as usize], elements(rank, len)].concat();
        let after = of(&DirectAllGather { size: ranks, shard: len }, &memory, 1);
        let want: Vec<i64> = (0..ranks).flat_map(|rank| elements(rank, len)).collect();
        prop_assert!((0..ranks).all(|rank| after[&Place::Role(rank)][..whole as usize] == want));

        let memory = |rank: u32| [elements(rank, whole), vec![-5; len as usize]].concat();
        let after = of(&DirectReduceScatter { size: ranks, shard: len }, &memory, 3);
        for rank in 0..ranks {
            let want: Vec<i64> = range(rank).map(|at| sum(at) * if ranks > 1 { 3 } else { 1 }).collect();
            prop_assert_eq!(&after[&Place::Role(rank)][whole as usize..], &want);
        }
    }
}

/// The combines of each rank, and its signals.
fn of_two(name: &str, chunk: Chunk) -> (Vec<usize>, Vec<u32>) {
    let knobs = Knobs { chunk: Some(chunk), ..Knobs::default() };
    let schedule = build_collective(Collective::AllReduce, name, &Topology::flat(2), &knobs).unwrap();
    let program = Scheduled { schedule: schedule.into(), bucket: Bucket { id: 0, len: 100, pull_only: false } };
    let plan = in_stream(&program, (2, 2), &[0, 1], |_| None).unwrap();
    let combines = |commands: &Vec<Command>| commands.iter().filter(|it| matches!(it, Command::Combine { .. })).count();
    (plan.commands.iter().map(combines).collect(), plan.signals.iter().map(|to| to.iter().sum()).collect())
}

#[test]
fn ranks_that_share_a_device_leave_the_work_to_one() {
    let programs: [&dyn Program; 3] = [
        &DirectAllGather { size: 4, shard: 5 },
        &DirectReduceScatter { size: 4, shard: 5 },
        &Broadcast { size: 4, root: 3, len: 20, chunk: 5 },
    ];
    for program in programs {
        let plan = in_stream(program, (4, 4), &[0, 0, 2, 2], |_| None).unwrap();
        no_races(&plan);
        for (rank, commands) in plan.commands.iter().enumerate() {
            let combines = commands.iter().any(|command| matches!(command, Command::Combine { .. }));
            assert!(!combines || rank % 2 == 0, "rank {rank}: {commands:?}");
        }
    }
}

#[test]
fn two_ranks_write_each_others_results() {
    // Each says that it has begun, and that its half is there.
    assert_eq!(of_two("ring", Chunk::PerWorker), (vec![1, 1], vec![2, 2]));
    // One rank does it all.
    assert_eq!(of_two("ring", Chunk::Whole), (vec![0, 1], vec![1, 1]));
    assert_eq!(of_two("halving-doubling", Chunk::Whole), (vec![1, 1], vec![2, 2]));
}
