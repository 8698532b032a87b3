//! `paceline-simulation search SECONDS`, `replay SEED`, `shrink SEED`; a file with a scenario serves for a seed.
use std::time::{Duration, Instant};

use paceline_simulation::check::violations;
use paceline_simulation::scenario::{Focus, Scenario};
use paceline_simulation::search::{Options, print, run_alone, search, work};
use paceline_simulation::shrink::{kind, shrink};

/// The scenario of a seed, or one that `shrink` has printed: the first line of a file.
fn scenario(word: &str, focus: Focus) -> Result<Scenario, String> {
    if let Ok(seed) = word.parse() {
        return Ok(Scenario::new(seed, focus));
    }
    let text =
        std::fs::read_to_string(word).map_err(|error| format!("{word} is neither a seed nor a file: {error}"))?;
    serde_json::from_str(text.lines().next().unwrap_or_default()).map_err(|error| format!("{word}: {error}"))
}

fn main() {
    let words: Vec<String> = std::env::args().skip(1).collect();
    let word = |at: usize| words.get(at).map(String::as_str);
    let number = |at: usize| word(at).and_then(|text| text.parse::<f64>().ok());
    let flag = |name: &str| words.iter().any(|word| word == name);
    let value = |name: &str| words.iter().position(|word| word == name).and_then(|at| words.get(at + 1)).cloned();
    let focus = Focus { harmless: flag("--harmless"), small: flag("--small") };
    match word(0) {
        Some("worker") => {
            let yes = |at: usize| word(at) == Some("true");
            let options = Options {
                first: word(1).and_then(|text| text.parse().ok()).unwrap_or(0),
                time: Duration::from_secs_f64(number(3).unwrap_or(1.0)),
                jobs: 1,
                focus: Focus { harmless: yes(4), small: yes(5) },
                until_found: yes(6),
                mutant: word(7).map(str::to_owned),
            };
            work(&options, word(2).and_then(|text| text.parse().ok()).unwrap_or(1));
        }
        Some("search") => {
            let options = Options {
                first: value("--first").and_then(|text| text.parse().ok()).unwrap_or(0),
                time: Duration::from_secs_f64(number(1).unwrap_or(10.0)),
                jobs: value("--jobs").and_then(|text| text.parse().ok()).unwrap_or(2),
                focus,
                mutant: value("--mutant"),
                until_found: flag("--until-found"),
            };
            let begun = Instant::now();
            let summary = search(&options);
            print(&summary, &options, begun.elapsed());
            std::process::exit(i32::from(!summary.violations.is_empty()));
        }
        Some("replay" | "shrink") => {
            let mutant = value("--mutant");
            let mut scenario = match scenario(word(1).unwrap_or("0"), focus) {
                Ok(scenario) => scenario,
                Err(why) => {
                    eprintln!("{why}");
                    std::process::exit(2);
                }
            };
            std::panic::set_hook(Box::new(|_| {}));
            let run = run_alone(&scenario, false, mutant.as_deref());
            let wrong = violations(&scenario, &run);
            if let Some(first) = wrong.first()
                && word(0) == Some("shrink")
            {
                let sought = kind(first);
                scenario = shrink(scenario, |smaller| {
                    let run = run_alone(smaller, false, mutant.as_deref());
                    violations(smaller, &run).iter().any(|violation| kind(violation) == sought)
                });
            }
            let run = run_alone(&scenario, true, mutant.as_deref());
            println!("{}", serde_json::to_string(&scenario).unwrap_or_default());
            run.outcome.log.iter().for_each(|line| println!("{line}"));
            for (process, story) in run.stories.iter().enumerate() {
                println!(
                    "process {process}: joined {}, error {:?}, ended {:?}",
                    story.joined, story.error, story.ended
                );
                for record in &story.records {
                    let (begun, ended) = record.times;
                    let (step, seconds) = (&scenario.steps[record.step], |time: u64| time as f64 / 1e9);
                    println!(
                        "  {:.6}-{:.6} step {} {:?} of {} in group {}: {:?}",
                        seconds(begun),
                        seconds(ended),
                        record.step,
                        step.call,
                        step.elements,
                        step.group,
                        record.result
                    );
                }
            }
            let outcome = &run.outcome;
            println!(
                "{:?} after {:.6} s and {} turns, digest {:016x}",
                outcome.ending,
                outcome.time as f64 / 1e9,
                outcome.turns,
                outcome.digest
            );
            violations(&scenario, &run).iter().for_each(|what| println!("VIOLATION {what}"));
        }
        _ => {
            eprintln!("paceline-simulation search SECONDS | replay SEED|FILE | shrink SEED|FILE");
            std::process::exit(2);
        }
    }
}
