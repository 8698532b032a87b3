//! Runs many schedules: worker processes, which are renewed because killed virtual processes leave memory behind.
use std::collections::BTreeMap;
use std::io::{BufRead, BufReader, Write};
use std::process::{Command, Stdio};
use std::sync::mpsc;
use std::time::{Duration, Instant};

use serde::{Deserialize, Serialize};

use crate::check::violations;
use crate::program::{Result, Run, execute};
use crate::scenario::{Focus, Scenario};

/// Schedules of a worker before it is renewed.
const RENEWED: u64 = 2_000;
/// Seconds of processor time after which a schedule that has not ended kills its worker.
const LONGEST: i64 = 60;
/// How often a long search says how far it is.
const SAY_EVERY: Duration = Duration::from_secs(30);
/// Violations that are shown.
const SHOWN: usize = 20;
/// Branches that the runtime counts.
const BRANCHES: &[&str] = include!(concat!(env!("OUT_DIR"), "/branches.rs"));

/// Memory of a search.
#[derive(Default, Debug, Serialize, Deserialize)]
pub struct Summary {
    /// Schedules.
    pub schedules: u64,
    /// Turns of threads.
    pub turns: u64,
    /// Errors, with their numbers masked.
    pub errors: BTreeMap<String, u64>,
    /// Branches.
    pub counters: BTreeMap<String, u64>,
    /// Seeds, and what is wrong.
    pub violations: Vec<(u64, String)>,
}

impl Summary {
    fn add(&mut self, other: Summary) {
        self.schedules += other.schedules;
        self.turns += other.turns;
        other.errors.into_iter().for_each(|(text, count)| *self.errors.entry(text).or_default() += count);
        other.counters.into_iter().for_each(|(name, count)| *self.counters.entry(name).or_default() += count);
        self.violations.extend(other.violations);
    }

    /// Adds a run.
    pub fn record(&mut self, seed: u64, scenario: &Scenario, run: &Run) {
        self.schedules += 1;
        self.turns += run.outcome.turns;
        let errors = run.stories.iter().flat_map(|story| {
            let failed = story.records.iter().filter_map(|record| match &record.result {
                Result::Failed(error) => Some(error),
                _ => None,
            });
            failed.chain(&story.error)
        });
        for error in errors.chain(&run.outcome.reports) {
            *self.errors.entry(masked(error)).or_default() += 1;
        }
        for (name, count) in &run.outcome.counters {
            *self.counters.entry((*name).to_owned()).or_default() += count;
        }
        self.violations.extend(violations(scenario, run).into_iter().take(3).map(|what| (seed, what)));
    }
}

/// A text without its numbers.
#[must_use]
pub fn masked(text: &str) -> String {
    let mut masked = String::new();
    for c in text.chars() {
        match c {
            '0'..='9' if masked.ends_with('#') => {}
            '0'..='9' => masked.push('#'),
            other => masked.push(other),
        }
    }
    masked
}

/// Runs a scenario in a thread of its own: see [`hashing`](crate::hashing).
#[must_use]
pub fn run_alone(scenario: &Scenario, log: bool, mutant: Option<&str>) -> Run {
    std::thread::scope(|scope| {
        let body = || {
            paceline_os::world::set_mutant(mutant);
            Alone(execute(scenario, log, None))
        };
        scope.spawn(body).join().expect("a schedule").0
    })
}

struct Alone(Run);

#[allow(unsafe_code, reason = "what a run returns is owned data")]
// SAFETY: the world is gone when a run is returned; it holds texts and numbers.
unsafe impl Send for Alone {}

/// How to search.
#[derive(Clone, Debug)]
pub struct Options {
    /// The first seed.
    pub first: u64,
    /// For how long.
    pub time: Duration,
    /// Worker processes.
    pub jobs: u64,
    /// Which scenarios.
    pub focus: Focus,
    /// A fault that is put back.
    pub mutant: Option<String>,
    /// Ends with the first violation.
    pub until_found: bool,
}

/// The body of a worker: prints a line for each schedule and a summary.
pub fn work(options: &Options, stride: u64) {
    std::panic::set_hook(Box::new(|_| {}));
    let mut summary = Summary::default();
    let begun = Instant::now();
    let mut out = std::io::stdout().lock();
    for number in 0..RENEWED {
        if begun.elapsed() >= options.time {
            break;
        }
        let seed = options.first + number * stride;
        let _ = writeln!(out, "s{seed}");
        let _ = out.flush();
        alarm(LONGEST);
        let scenario = Scenario::new(seed, options.focus);
        let run = run_alone(&scenario, false, options.mutant.as_deref());
        // What fails without the mutant, too, is not what is sought.
        if options.mutant.is_some()
            && !violations(&scenario, &run).is_empty()
            && !violations(&scenario, &run_alone(&scenario, false, None)).is_empty()
        {
            continue;
        }
        summary.record(seed, &scenario, &run);
        if options.until_found && !summary.violations.is_empty() {
            break;
        }
    }
    alarm(0);
    let _ = writeln!(out, "j{}", serde_json::to_string(&summary).unwrap_or_default());
}

#[allow(unsafe_code, reason = "a system call without a safe wrapper")]
fn alarm(seconds: i64) {
    let never = libc::timeval { tv_sec: 0, tv_usec: 0 };
    let timer = libc::itimerval { it_interval: never, it_value: libc::timeval { tv_sec: seconds, tv_usec: 0 } };
    // SAFETY: the timer is initialized, and the old one is not asked for.
    unsafe { libc::setitimer(libc::ITIMER_PROF, &raw const timer, std::ptr::null_mut()) };
}

/// Searches with worker processes of this program.
pub fn search(options: &Options) -> Summary {
    let (send, receive) = mpsc::channel();
    let begun = Instant::now();
    for job in 0..options.jobs {
        let (send, options) = (send.clone(), options.clone());
        std::thread::spawn(move || {
            let mut first = options.first + job;
            while begun.elapsed() < options.time {
                let left = options.time.saturating_sub(begun.elapsed());
                let (summary, last) = one_worker(&Options { first, time: left, ..options.clone() });
                first = last + options.jobs;
                let found = !summary.violations.is_empty();
                if send.send(summary).is_err() || (found && options.until_found) {
                    return;
                }
            }
        });
    }
    drop(send);
    let (mut summary, mut said) = (Summary::default(), Instant::now());
    for one in receive {
        for (seed, what) in &one.violations {
            eprintln!("seed {seed}: {what}");
        }
        summary.add(one);
        if said.elapsed() >= SAY_EVERY {
            said = Instant::now();
            let Summary { schedules, violations, .. } = &summary;
            eprintln!("{:.0} s: {schedules} schedules, {} violations", begun.elapsed().as_secs_f64(), violations.len());
        }
        if options.until_found && !summary.violations.is_empty() {
            break;
        }
    }
    summary
}

fn one_worker(options: &Options) -> (Summary, u64) {
    let program = std::env::current_exe().expect("the path of this program");
    let mut command = Command::new(program);
    command.args(["worker", &options.first.to_string(), &options.jobs.to_string()]);
    command.arg(options.time.as_secs_f64().to_string());
    command.args([options.focus.harmless, options.focus.small, options.until_found].map(|flag| flag.to_string()));
    command.args(&options.mutant);
    // Worlds come and go by the thousand: their memory stays with the process, instead of being mapped anew (a third more
    // schedules a second). mallopt(3).
    for name in ["MALLOC_MMAP_THRESHOLD_", "MALLOC_TRIM_THRESHOLD_", "MALLOC_TOP_PAD_"] {
        command.env(name, (64 << 20).to_string());
    }
    let mut child = command.stdout(Stdio::piped()).spawn().expect("a worker");
    let (mut summary, mut last) = (Summary::default(), options.first);
    for line in BufReader::new(child.stdout.take().expect("its output")).lines().map_while(std::result::Result::ok) {
        if let Some(seed) = line.strip_prefix('s') {
            last = seed.parse().unwrap_or(last);
        } else if let Some(json) = line.strip_prefix('j') {
            summary = serde_json::from_str(json).unwrap_or_default();
        }
    }
    let status = child.wait().expect("a worker's end");
    if !status.success() {
        summary.violations.push((last, format!("crash: the worker ended with {status}")));
    }
    (summary, last)
}

/// Prints a summary for a person.
pub fn print(summary: &Summary, options: &Options, took: Duration) {
    let rate = summary.schedules as f64 / took.as_secs_f64() / options.jobs as f64;
    println!(
        "{} schedules in {:.0} s: {rate:.0} a second and core, {:.0} a minute; {} turns each",
        summary.schedules,
        took.as_secs_f64(),
        rate * 60.0,
        summary.turns / summary.schedules.max(1)
    );
    println!("{} distinct messages:", summary.errors.len());
    for (text, count) in &summary.errors {
        println!("  {count:>7}  {text}");
    }
    println!("{} of {} branches reached:", summary.counters.len(), BRANCHES.len());
    for (name, count) in &summary.counters {
        println!("  {count:>9}  {name}");
    }
    for name in BRANCHES.iter().filter(|&&name| !summary.counters.contains_key(name)) {
        println!("  not reached: {name}");
    }
    println!("{} violations", summary.violations.len());
    let mut shown: BTreeMap<String, (u64, u64, &str)> = BTreeMap::new();
    for (seed, what) in &summary.violations {
        shown.entry(masked(what)).or_insert((*seed, 0, what)).1 += 1;
    }
    for (seed, count, what) in shown.values().take(SHOWN) {
        println!("  seed {seed} and {} more: {what}", count - 1);
    }
}
