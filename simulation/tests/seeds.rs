//! A seed gives the same schedule each time, and the seeds of old failures find nothing any more.
use paceline_os::world::Choices;
use paceline_simulation::check::violations;
use paceline_simulation::program::execute;
use paceline_simulation::scenario::{Call, Focus, Scenario};
use paceline_simulation::search::run_alone;

#[test]
fn a_seed_gives_the_same_schedule_each_time() {
    for seed in 0..60 {
        let scenario = Scenario::new(seed, Focus::default());
        let [first, second] = [(); 2].map(|()| run_alone(&scenario, true, None));
        assert_eq!(first.outcome.digest, second.outcome.digest, "seed {seed}");
        assert_eq!(first.outcome.log, second.outcome.log, "seed {seed}");
        assert_eq!((first.outcome.turns, first.outcome.time), (second.outcome.turns, second.outcome.time));
    }
}

#[test]
fn another_seed_gives_another_schedule() {
    let mut scenario = Scenario::new(1, Focus { harmless: true, small: true });
    let first = run_alone(&scenario, false, None);
    scenario.seed += 1;
    assert_ne!(first.outcome.digest, run_alone(&scenario, false, None).outcome.digest);
}

/// Each line of the corpus is a scenario that has failed once, and why.
#[test]
fn what_failed_once_fails_no_more() {
    let corpus = include_str!("../corpus.jsonl");
    let mut scenarios = 0;
    for line in corpus.lines().filter(|line| !line.is_empty()) {
        let entry: serde_json::Value = serde_json::from_str(line).expect("a line of the corpus is JSON");
        let scenario: Scenario = serde_json::from_value(entry["scenario"].clone()).expect("it holds a scenario");
        let run = run_alone(&scenario, false, None);
        assert_eq!(violations(&scenario, &run), Vec::<String>::new(), "{}", entry["why"]);
        scenarios += 1;
    }
    assert!(scenarios > 0);
}

/// Two ranks, one operation, and every schedule that differs in at most one decision from the first.
#[test]
fn every_schedule_of_a_small_world() {
    for (call, transport) in [(Call::AllReduce, "tcp"), (Call::AllReduce, "shm"), (Call::Transfer, "shm")] {
        let mut scenario = Scenario::new(7, Focus { harmless: true, small: true });
        scenario.transport = transport.into();
        scenario.strategy = Some("recursive-doubling".into());
        (scenario.hosts, scenario.ranks, scenario.servers) = (vec![0, 0], 2, 1);
        (scenario.dedicated, scenario.multicast, scenario.sliced, scenario.streams) = (false, false, false, 1);
        (scenario.groups, scenario.leaves, scenario.starts) = (vec![vec![0, 1]], vec![None; 2], vec![0; 2]);
        scenario.faults.clear();
        scenario.steps.truncate(1);
        let step = &mut scenario.steps[0];
        (step.call, step.group, step.elements, step.later) = (call, 0, 4, 0);
        (step.root, step.other, step.in_step) = (0, 1, None);
        step.delays = vec![0; 2];
        let mut choices = Choices::new(1);
        let mut schedules = 0;
        loop {
            let run = execute(&scenario, false, Some(&mut choices));
            assert_eq!(violations(&scenario, &run), Vec::<String>::new(), "{:?}", choices.prefix);
            schedules += 1;
            if !choices.advance() {
                break;
            }
        }
        assert!(schedules > 50, "{schedules} schedules of {call:?} over {transport}");
    }
}
