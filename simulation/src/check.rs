//! Invariants after every schedule.
use std::collections::BTreeSet;

use paceline_os::world::{Ending, SECOND};

use crate::program::{Result, Run};
use crate::scenario::{Call, FORCING, Scenario, What};

/// Seconds after which a death has been noticed, whatever else happens: what was sent before may take two to arrive.
const NOTICED: f64 = 5.0;

/// Seconds that no operation takes longer than its data: the longest sleep is half a second.
const OVERSLEPT: f64 = 0.4;

/// Processes that something happens to from which others may suffer.
#[must_use]
pub fn guilty(scenario: &Scenario) -> BTreeSet<usize> {
    let mut all = BTreeSet::new();
    for fault in scenario.faults.iter().filter(|fault| !fault.what.is_harmless(scenario.timeout)) {
        match fault.what {
            What::Kill(process) | What::Stop(process, _) | What::Starve(process, ..) => drop(all.insert(process)),
            What::Cut(a, b, _) | What::Slow(a, b, _) => {
                let on = |host: usize| host == a || host == b;
                all.extend((0..scenario.hosts.len()).filter(|&process| on(scenario.hosts[process])));
            }
        }
    }
    all.extend((0..scenario.leaves.len()).filter(|&rank| scenario.leaves[rank].is_some()));
    all
}

/// Everything that is wrong.
#[must_use]
pub fn violations(scenario: &Scenario, run: &Run) -> Vec<String> {
    let mut found = Vec::new();
    let guilty = guilty(scenario);
    let outcome = &run.outcome;
    match &outcome.ending {
        Ending::Finished => {}
        Ending::Deadlock(who) => found.push(format!("deadlock: {who}")),
        // A parameter server serves as long as a worker exists, even if that is stopped for ever.
        Ending::TimeLimit if stopped_for_ever(scenario) && workers_have_ended(scenario, run) => {}
        Ending::TimeLimit => found.push(format!("hang: not all have ended after {:.1} s", outcome.time as f64 / 1e9)),
        Ending::TurnLimit => found.push(format!("hang: not all have ended after {} turns", outcome.turns)),
    }
    for (process, text) in &outcome.panics {
        found.push(format!("panic: process {process}: {text}"));
    }
    for (process, names) in &outcome.threads_left {
        found.push(format!("leftover: process {process} has left the job and still runs {}", names.join(", ")));
    }
    for (process, count) in &outcome.descriptors_left {
        found.push(format!("leftover: process {process} has left the job with {count} open descriptors"));
    }
    for (process, story) in run.stories.iter().enumerate() {
        for record in &story.records {
            if let Result::Wrong(what) = &record.result {
                found.push(format!("wrong: rank {process}, step {}: {what}", record.step));
            }
        }
        for what in &story.left_over {
            found.push(format!("leftover: rank {process} has {what} in flight after its last operation"));
        }
        if guilty.contains(&process) {
            continue;
        }
        if outcome.ending == Ending::Finished && story.ended.is_none() {
            found.push(format!("hang: process {process} has not ended"));
        }
        if guilty.is_empty() {
            nothing_failed(scenario, process, run, &mut found);
        } else if joined_before(scenario, run) {
            // Until all have joined, a rank knows of the others only that they do not answer.
            named(scenario, &guilty, process, run, &mut found);
        }
    }
    posted_on_both_sides(scenario, run, &mut found);
    nobody_oversleeps(scenario, run, &mut found);
    noticed_in_time(scenario, &guilty, run, &mut found);
    found
}

/// Whether all had joined before anything happened.
fn joined_before(scenario: &Scenario, run: &Run) -> bool {
    let first = scenario.faults.iter().map(|fault| fault.at * 1000 + SECOND).min().unwrap_or(u64::MAX);
    run.stories.iter().all(|story| story.joined && story.joined_at < first)
}

fn stopped_for_ever(scenario: &Scenario) -> bool {
    scenario.faults.iter().any(|fault| matches!(fault.what, What::Stop(_, None)))
}

fn workers_have_ended(scenario: &Scenario, run: &Run) -> bool {
    let gone = |process: usize| {
        scenario.faults.iter().any(|fault| match fault.what {
            What::Kill(other) | What::Stop(other, None) => other == process,
            _ => false,
        })
    };
    (0..scenario.ranks as usize).all(|rank| run.stories[rank].ended.is_some() || gone(rank))
}

/// Nothing happens that ranks must not survive: nothing fails.
fn nothing_failed(scenario: &Scenario, process: usize, run: &Run, found: &mut Vec<String>) {
    let story = &run.stories[process];
    if let Some(error) = &story.error {
        found.push(format!("failed: process {process}: {error}"));
    }
    for record in &story.records {
        if let Result::Failed(error) = &record.result {
            found.push(format!("failed: rank {process}, step {}: {error}", record.step));
        }
    }
    let mine = (0..scenario.steps.len()).filter(|&step| takes_part(scenario, process, step)).count();
    if story.ended.is_some()
        && story.error.is_none()
        && story.records.len() != mine
        && process < scenario.ranks as usize
    {
        found.push(format!("failed: rank {process} has completed {} of {mine} operations", story.records.len()));
    }
}

fn takes_part(scenario: &Scenario, process: usize, step: usize) -> bool {
    let step = &scenario.steps[step];
    let place = scenario.groups[step.group].iter().position(|&member| member as usize == process);
    place.is_some_and(|place| step.call != Call::Transfer || [step.root, step.other].contains(&(place as u32)))
}

/// Errors name only ranks that something has happened to.
fn named(scenario: &Scenario, guilty: &BTreeSet<usize>, process: usize, run: &Run, found: &mut Vec<String>) {
    let story = &run.stories[process];
    // Before it has joined, a rank knows of the others only who has not come.
    let failed = story.records.iter().filter_map(|record| match &record.result {
        Result::Failed(error) => Some(error),
        _ => None,
    });
    for error in failed.chain(story.error.iter().filter(|_| story.joined)) {
        // Who has not called an operation yet may wait in another one for the rank that is to blame.
        if [" not reached it", " called nothing after op ", " not called an op ", " not sent ", " not received it"]
            .iter()
            .any(|absent| error.contains(absent))
        {
            continue;
        }
        let blamed = blamed(error);
        // Where all answer, or all have left, nobody is named as the one.
        let all = [" also waiting in it", " have left the job"].iter().any(|all| error.contains(all));
        if all && blamed.iter().any(|rank| guilty.contains(rank)) {
            continue;
        }
        if let Some(first) = blamed.first()
            && !guilty.contains(first)
        {
            found.push(format!("blame: rank {process} names rank {first}; to blame are {guilty:?}: {error}"));
        }
        if blamed.is_empty() && process < scenario.ranks as usize {
            found.push(format!("blame: rank {process} names nobody: {error}"));
        }
    }
}

/// The ranks that a message blames, in order. What comes before names who reports it.
#[must_use]
pub fn blamed(error: &str) -> Vec<usize> {
    // `rank 0 waited 3 s for rank 1`, not `'tensor0' waited for it`.
    let seconds = |(at, word): (usize, &str)| {
        Some(&error[at + word.len()..]).filter(|rest| rest.starts_with(|first: char| first.is_ascii_digit()))
    };
    let waited = error.match_indices(" waited ").find_map(seconds);
    let after = waited.or_else(|| error.split_once("could not reach ").map(|(_, rest)| rest)).unwrap_or(error);
    let after = after.split_once(" was waiting for it").map_or(after, |(before, _)| before);
    let mut all = Vec::new();
    let mut rest = after;
    while let Some(at) = rest.find("rank") {
        rest = rest[at + 4..].trim_start_matches('s');
        let Some(numbers) = rest.strip_prefix(' ') else { continue };
        for part in numbers.split(", ") {
            let digits: String = part.chars().take_while(char::is_ascii_digit).collect();
            let Ok(first) = digits.parse::<usize>() else { break };
            let tail = &part[digits.len()..];
            let last =
                tail.strip_prefix('-').map(|last| last.chars().take_while(char::is_ascii_digit).collect::<String>());
            let last = last.and_then(|last| last.parse().ok()).unwrap_or(first);
            all.extend(first..=last);
            if !tail.is_empty() && !tail.starts_with('-') {
                break;
            }
        }
    }
    all
}

/// A rank that leaves is no reason for an operation to fail that it has completed.
fn posted_on_both_sides(scenario: &Scenario, run: &Run, found: &mut Vec<String>) {
    let only_leaves = scenario.faults.iter().all(|fault| fault.what.is_harmless(scenario.timeout));
    let Some(leaver) = scenario.leaves.iter().position(Option::is_some).filter(|_| only_leaves) else { return };
    let before = scenario.leaves[leaver].unwrap_or(0);
    for (process, story) in run.stories.iter().enumerate() {
        if let Some(error) = &story.error {
            found.push(format!("lost: process {process}: {error}"));
        }
        for record in story.records.iter().filter(|record| record.step < before) {
            // A later operation that its group cannot complete fails all others of that group, too.
            let named = format!("'step{}'", record.step);
            let posted = |other: usize| {
                let theirs = run.stories[other].records.iter().find(|theirs| theirs.step == record.step);
                theirs.is_some_and(|theirs| !matches!(&theirs.result, Result::Failed(why) if !why.contains(&named)))
            };
            let by_all = (0..run.stories.len()).all(|other| posted(other) || !takes_part(scenario, other, record.step));
            if let Result::Failed(error) = &record.result
                && by_all
                && error.contains(&named)
                && !error.contains(" cannot run")
            {
                found.push(format!("lost: rank {process}, step {}: {error}", record.step));
            }
        }
    }
}

/// Where nobody computes and nothing goes wrong, nobody sleeps until its longest sleep is over: a wake-up was lost.
fn nobody_oversleeps(scenario: &Scenario, run: &Run, found: &mut Vec<String>) {
    let Scenario { world, steps, ranks, .. } = scenario;
    let computes = steps.iter().any(|step| step.delays.iter().any(|&delay| delay > 0));
    if computes || !scenario.faults.is_empty() || scenario.multicast || scenario.leaves.iter().any(Option::is_some) {
        return;
    }
    let ranks = f64::from(*ranks);
    let kilobytes: f64 = steps.iter().map(|step| step.elements as f64 * ranks * ranks * 8.0 / 1000.0 + 1.0).sum();
    // Where what comes may not be queued, only force helps, and that takes a second.
    let least = FORCING.iter().filter_map(|&name| world.limits.get(name)).min();
    if least.is_some_and(|&bytes| (bytes as f64) < kilobytes * 1000.0) {
        return;
    }
    let link = world.per_kilobyte.max(100) as f64;
    let trips = (world.latency + world.jitter) as f64 * 40.0 * ranks * steps.len() as f64;
    // Where loopback fragments are tiny, another rank waits for each of them, and spins meanwhile.
    let fragment = world.limits.get("loopback fragment").map_or(64.0, |&bytes| bytes as f64 / 1000.0);
    let spins = kilobytes / fragment * world.idle as f64;
    let expected = (kilobytes * link * 3.0 + trips + spins) / 1e9;
    let begun = run.stories.iter().filter_map(|story| story.records.iter().map(|record| record.times.0).min()).max();
    let ended = run.stories.iter().filter_map(|story| story.records.iter().map(|record| record.times.1).max()).max();
    let (Some(begun), Some(ended)) = (begun, ended) else { return };
    let took = ended.saturating_sub(begun) as f64 / 1e9;
    if expected < 0.15 && took > expected + OVERSLEPT {
        found.push(format!("slow: {took:.3} s for what takes at most {expected:.3} s"));
    }
}

/// A death is noticed at once.
fn noticed_in_time(scenario: &Scenario, guilty: &BTreeSet<usize>, run: &Run, found: &mut Vec<String>) {
    let [fault] = &scenario.faults[..] else { return };
    let What::Kill(dead) = fault.what else { return };
    // A rank that has left before does not die.
    let left = run.stories[dead].ended.is_some_and(|at| at <= fault.at * 1000 + SECOND);
    if guilty.len() > 1 || left {
        return;
    }
    for (process, story) in run.stories.iter().enumerate().filter(|(process, _)| !guilty.contains(process)) {
        // Others may wait for a rank that computes, and hears of the death afterwards.
        let with = |step: usize| scenario.groups[scenario.steps[step].group].contains(&(dead as u32));
        for record in story.records.iter().filter(|record| with(record.step)) {
            let since = record.times.0.max(fault.at * 1000 + 1_000_000_000);
            let took = record.times.1.saturating_sub(since) as f64 / 1e9;
            if matches!(record.result, Result::Failed(_)) && took > NOTICED {
                found.push(format!("late: rank {process}, step {} failed {took:.1} s after the death", record.step));
            }
        }
    }
}
