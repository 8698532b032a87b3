//! Properties of every strategy in the registry; a new one is covered without a change here. That without sums has its own
//! test.
mod reference;

use std::sync::Arc;

use paceline_schedule::{
    Bucket, Chunk, Collective, Distribution, Entry, Inside, Knob, Knobs, Piece, Placement, Rates, Roles, Schedule,
    Step, Topology, Volume, build, build_collective, registry, shard, synchronous,
};
use proptest::prelude::*;
use reference::{Executor, Random};

fn buckets(lens: &[u64]) -> Vec<Bucket> {
    (0..).zip(lens).map(|(id, &len)| Bucket { id, len, pull_only: false }).collect()
}

/// Different in every element, bucket and role, so that every wrong sum is detected.
fn value(role: u32, bucket: u32, element: u64) -> i64 {
    let mut random = Random(u64::from(role) << 40 | u64::from(bucket) << 20 | element);
    random.below(1 << 40) as i64 - (1 << 39)
}

/// Runs the schedule and checks its results and volume: sums on the workers that own them, all shards on all workers.
fn check(name: &str, schedule: &dyn Schedule, buckets: &[Bucket], capacity: usize, seed: u64, exact_hops: bool) {
    let roles = schedule.roles();
    let fresh = |role| -> Vec<Vec<i64>> {
        buckets.iter().map(|b| (0..b.len).map(|i| value(role, b.id, i)).collect()).collect()
    };
    let inputs: Vec<_> = (0..roles.total()).map(fresh).collect();
    let outcome = Executor::new(schedule, buckets, inputs.clone(), capacity, seed).run();
    let (workers, collective) = (roles.workers, schedule.collective());
    let range = |piece: Piece| piece.off as usize..(piece.off + piece.len) as usize;
    for (bucket, id) in buckets.iter().zip(0..) {
        let owner = |i: u64| (0..workers).find(|&rank| range(shard(bucket, workers, rank)).contains(&(i as usize)));
        let expected: Vec<i64> = (0..bucket.len as usize)
            .map(|i| match (bucket.pull_only, collective) {
                (true, _) => inputs[workers as usize][id][i],
                (false, Collective::AllGather) => inputs[owner(i as u64).unwrap() as usize][id][i],
                (false, _) => inputs[..workers as usize].iter().map(|worker| worker[id][i]).sum(),
            })
            .collect();
        for worker in 0..workers {
            let complete = if collective.gathers() { bucket.whole() } else { shard(bucket, workers, worker) };
            let (found, wanted) = (&outcome.buffers[worker as usize][id][range(complete)], &expected[range(complete)]);
            assert_eq!(found, wanted, "{name}: worker {worker}, bucket {bucket:?}");
        }
    }
    let volumes = buckets.iter().map(|bucket| schedule.volume(bucket));
    let formula = volumes.fold(Volume::default(), |sum, v| Volume {
        messages: sum.messages + v.messages,
        worker_elements: sum.worker_elements + v.worker_elements,
        server_elements: sum.server_elements + v.server_elements,
        switch_elements: sum.switch_elements + v.switch_elements,
        hops: sum.hops.max(v.hops),
    });
    let (hops, bound) = (outcome.volume.hops, formula.hops);
    assert_eq!(Volume { hops: bound, ..outcome.volume }, formula, "{name}: counted and the strategy's formula");
    assert!(if exact_hops { hops == bound } else { hops <= bound }, "{name}: {hops} hops, formula {bound}");
}

const ODD_SIZES: [u64; 8] = [1, 0, 2, 7, 64, 101, 3, 1000];

/// Servers, the switch's radix, knobs.
type Variant = (u32, Option<u32>, Knobs);

/// Every combination of the knobs that affect this strategy.
fn variants(entry: &Entry) -> Vec<Variant> {
    let mut all = vec![(1, None, Knobs::default())];
    let widen = |all: &mut Vec<Variant>, change: &dyn Fn(&mut Variant)| {
        let more: Vec<_> = all
            .iter()
            .map(|old| {
                let mut new = old.clone();
                change(&mut new);
                new
            })
            .collect();
        all.extend(more);
    };
    if entry.uses(Knob::Servers) {
        widen(&mut all, &|v| v.0 = 3);
        widen(&mut all, &|v| v.2.barrier = false);
    }
    if entry.uses(Knob::Inside) {
        widen(&mut all, &|v| v.2.inside = Inside::Root);
    }
    if entry.uses(Knob::Aggregation) {
        widen(&mut all, &|v| v.1 = Some(3));
    }
    if entry.uses(Knob::Rates) {
        // So slow that even buckets of a few elements count as large.
        widen(&mut all, &|v| v.2.rates = Some(Rates { between: 1_000_000, inside: 10_000, ..Rates::default() }));
    }
    let mut chunked = all.clone();
    for chunk in [Chunk::Whole, Chunk::PerWorker, Chunk::Elements(3)] {
        chunked.extend(all.iter().cloned().map(|mut v| {
            v.2.chunk = Some(chunk);
            v
        }));
    }
    let mut all = chunked;
    if entry.uses(Knob::Placement) {
        let plain: Vec<_> = all.clone();
        for placement in [Placement::Even, Placement::Table(Arc::from([0; 16].as_slice()))] {
            all.extend(plain.iter().cloned().map(|mut v| {
                v.2.placement = placement.clone();
                v
            }));
        }
    }
    if entry.uses(Knob::Distribution) {
        widen(&mut all, &|v| v.2.distribution = Distribution::Block);
    }
    all.retain(|v| v.2.barrier || v.2.distribution == Distribution::RoundRobin);
    all.retain(|v| v.2.placement != Placement::Even || v.2.chunk.is_none());
    all
}

/// Nodes of a rack, which matter to a strategy with a tree of switches: another number in each variant.
fn racks(entry: &Entry, number: u32) -> Option<u32> {
    (entry.uses(Knob::Aggregation) && !number.is_multiple_of(4)).then_some(number % 4 + 1)
}

fn every_variant(workers: impl Iterator<Item = u32>, lens: &[u64], capacity: usize) {
    for workers in workers {
        for entry in registry() {
            for ranks_per_node in [1, 2, 3, 4, 8]
                .into_iter()
                .take(if entry.uses(Knob::Inside) || entry.uses(Knob::Rates) { 5 } else { 1 })
            {
                for (n, (servers, switch_radix, knobs)) in (0u32..).zip(variants(entry)) {
                    let topology = Topology { ranks_per_node, servers, switch_radix, ..Topology::flat(workers) };
                    let topology = topology.in_racks(racks(entry, n));
                    for collective in Collective::ALL.into_iter().filter(|&it| entry.offers(it)) {
                        let name = format!("{} {} {topology:?} {knobs:?}", entry.name, collective.name());
                        let schedule = build_collective(collective, entry.name, &topology, &knobs)
                            .unwrap_or_else(|e| panic!("{name}: {e}"));
                        assert_eq!(schedule.collective(), collective, "{name}");
                        let exact = workers.is_power_of_two() && workers % ranks_per_node == 0;
                        check(&name, &*schedule, &buckets(lens), capacity, u64::from(n + workers), exact);
                    }
                }
            }
        }
    }
}

/// All worlds of up to 17 workers with `PACELINE_TEST_ALL` (`make test-all`); otherwise every shape of tree and ring that
/// differs in kind.
fn worlds() -> impl Iterator<Item = u32> {
    (1..=17).filter(|workers| {
        std::env::var_os("PACELINE_TEST_ALL").is_some() || [1, 2, 3, 4, 5, 6, 7, 8, 9].contains(workers)
    })
}

#[test]
fn sums_and_volume_unbounded() {
    every_variant(worlds(), &ODD_SIZES, usize::MAX);
}

#[test]
fn sums_and_volume_with_one_message_per_channel() {
    every_variant(worlds(), &[1, 40, 0, 7], 1);
}

#[test]
fn sums_and_volume_of_larger_worlds() {
    let all = std::env::var_os("PACELINE_TEST_ALL").is_some();
    every_variant([32, 64].into_iter().take(if all { 2 } else { 1 }), &[0, 129, 5], 2);
}

#[test]
fn tensors_without_gradient_are_distributed_by_servers() {
    for entry in synchronous().into_iter().filter(|entry| entry.uses(Knob::Pull)) {
        let mut some = buckets(&[5, 9, 3]);
        some[1].pull_only = true;
        for barrier in [true, false] {
            let knobs = Knobs { barrier, ..Knobs::default() };
            let schedule = build(entry.name, &Topology::flat(4), &knobs).unwrap();
            // The server keeps its own values only if it does not add: an empty push must not overwrite them.
            check(entry.name, &*schedule, &some, usize::MAX, 7, true);
        }
    }
}

#[test]
fn names_are_unique_and_all_builders_refuse_what_cannot_be() {
    let names: Vec<_> = registry().iter().flat_map(|e| e.aliases.iter().chain([&e.name])).collect();
    for (i, name) in names.iter().enumerate() {
        assert!(!names[..i].contains(name), "{name} twice");
        assert!(paceline_schedule::find(name).is_some());
    }
    for entry in registry() {
        let none = Topology { workers: 0, ..Topology::flat(1) };
        assert!(build(entry.name, &none, &Knobs::default()).is_err_and(|e| e.setting == Some("workers")));
    }
    assert!(
        build("rign", &Topology::flat(2), &Knobs::default())
            .is_err_and(|e| e.remedy.is_some_and(|it| it.contains("ring")))
    );
}

#[test]
fn a_strategy_without_halves_says_which_have_them() {
    for entry in registry() {
        let made = build_collective(Collective::AllGather, entry.name, &Topology::flat(4), &Knobs::default());
        match (entry.offers(Collective::AllGather), made) {
            (true, made) => assert!(made.is_ok(), "{}", entry.name),
            (false, Ok(_)) => panic!("{} offers no all-gather, but has one", entry.name),
            (false, Err(error)) => {
                assert!(
                    error.to_string().starts_with(&format!("strategy: {} has no all-gather", entry.name)),
                    "{error}"
                );
            }
        }
    }
}

/// Lanes are independent only if no two of the same role touch the same element. Each worker has a part in every
/// element.
#[test]
fn lanes_of_a_worker_do_not_overlap() {
    let collectives = registry().iter().flat_map(|entry| Collective::ALL.map(|collective| (entry, collective)));
    for (entry, collective) in collectives.filter(|(entry, collective)| entry.offers(*collective)) {
        for chunk in [None, Some(Chunk::PerWorker), Some(Chunk::Elements(4))] {
            let knobs = Knobs { chunk, ..Knobs::default() };
            let schedule = build_collective(collective, entry.name, &Topology::flat(6), &knobs).unwrap();
            for (bucket, role) in
                buckets(&[1, 50, 1001]).iter().flat_map(|bucket| (0..6).map(move |role| (bucket, role)))
            {
                let covered = covered(&*schedule, bucket, role);
                assert!(covered.iter().all(|&n| n == 1), "{} {}: {covered:?}", entry.name, collective.name());
            }
        }
    }
}

/// Lanes that touch each element of a bucket at a role.
fn covered(schedule: &dyn Schedule, bucket: &Bucket, role: u32) -> Vec<u32> {
    let mut covered = vec![0; bucket.len as usize];
    for lane in 0..schedule.lanes(bucket) {
        let mut mine = vec![false; bucket.len as usize];
        let steps = (0..).map(|pc| schedule.step(bucket, role, lane, pc));
        for step in steps.take_while(|step| *step != Step::Done) {
            if let Step::Send { piece, .. } | Step::Recv { piece, .. } = step {
                mine[piece.off as usize..(piece.off + piece.len) as usize].fill(true);
            }
        }
        for (count, here) in covered.iter_mut().zip(mine) {
            *count += u32::from(here);
        }
    }
    covered
}

/// Messages and elements of all sends of a bucket.
fn sent(schedule: &dyn Schedule, bucket: &Bucket) -> Volume {
    let roles = schedule.roles();
    let mut volume = Volume::default();
    for (role, lane) in (0..roles.total()).flat_map(|role| (0..schedule.lanes(bucket)).map(move |lane| (role, lane))) {
        let steps = (0..).map(|pc| schedule.step(bucket, role, lane, pc));
        for step in steps.take_while(|step| *step != Step::Done) {
            let Step::Send { to, piece, .. } = step else { continue };
            volume.messages += u64::from(to.count);
            let elements = if role < roles.workers { &mut volume.worker_elements } else { &mut volume.server_elements };
            *elements += u64::from(to.count) * piece.len;
        }
    }
    volume
}

/// Asynchronous workers exchange with servers alone, as many bytes as those of `ps`, and each worker's part is its share of that.
#[test]
fn asynchronous_workers_send_what_synchronous_ones_do() {
    let entry = paceline_schedule::find("async-ps").unwrap();
    let plain = |it: &Variant| it.2.distribution == Distribution::RoundRobin && it.2.barrier;
    for ((servers, _, knobs), workers) in
        variants(entry).into_iter().filter(plain).flat_map(|it| [1, 2, 5].map(|workers| (it.clone(), workers)))
    {
        let topology = Topology { servers, ..Topology::flat(workers) };
        let schedule = build(entry.name, &topology, &knobs).unwrap();
        let synchronous = build("ps", &topology, &knobs).unwrap();
        let part = schedule.part().unwrap();
        assert_eq!(part.roles(), Roles { workers: 1, servers, switches: 0 });
        for bucket in buckets(&ODD_SIZES).iter().flat_map(|&one| [one, Bucket { pull_only: true, ..one }]) {
            let name = format!("{topology:?} {knobs:?} {bucket:?}");
            let (volume, own) = (schedule.volume(&bucket), sent(&*part, &bucket));
            assert_eq!(Volume { hops: 0, ..volume }, sent(&*schedule, &bucket), "{name}");
            assert_eq!(volume, synchronous.volume(&bucket), "{name}");
            assert_eq!(own.messages * u64::from(workers), volume.messages, "{name}");
            assert_eq!(own.worker_elements * u64::from(workers), volume.worker_elements, "{name}");
            // Every piece that servers hold waits for the worker's others.
            let barriers: u32 = (0..part.roles().total()).map(|role| part.barriers(&bucket, role)).sum();
            assert_eq!(barriers, part.lanes(&bucket), "{name}");
        }
        assert!(synchronous.part().is_none());
    }
}

proptest! {
    #![proptest_config(ProptestConfig { failure_persistence: None, ..ProptestConfig::default() })]

    #[test]
    fn random_worlds(
        workers in 1u32..40,
        ranks_per_node in 1u32..9,
        servers in 1u32..6,
        strategy in 0..synchronous().len(),
        collective in prop::sample::select(Collective::ALL.to_vec()),
        variant in any::<prop::sample::Index>(),
        capacity in prop::sample::select(vec![1usize, 2, 5, usize::MAX]),
        lens in prop::collection::vec(0u64..300, 0..6),
        seed in any::<u64>(),
    ) {
        let entry = synchronous()[strategy];
        let all = variants(entry);
        let (wanted, switch_radix, knobs) = variant.get(&all).clone();
        let servers = if matches!(knobs.placement, Placement::Table(_)) { wanted } else { servers };
        let topology = Topology { ranks_per_node, servers, switch_radix, ..Topology::flat(workers) };
        let topology = topology.in_racks(racks(entry, seed as u32 % 4));
        let collective = if entry.offers(collective) { collective } else { Collective::AllReduce };
        let schedule = build_collective(collective, entry.name, &topology, &knobs).unwrap();
        let name = format!("{} {} {topology:?} {knobs:?}", entry.name, collective.name());
        check(&name, &*schedule, &buckets(&lens), capacity, seed, false);
    }
}
