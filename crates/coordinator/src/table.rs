//! The first rank's table of tensors that are not ready everywhere.
use std::collections::BTreeMap;

use crate::event::{Agreed, Decision, Report, Stall, Time};
use crate::request::Request;

#[derive(Clone, Debug, PartialEq, Eq, Hash)]
struct Waiting {
    /// By rank.
    asked: Vec<Option<Request>>,
    since: Time,
    warned: Time,
}

/// Tensors by name, and the ranks that submitted them.
#[derive(Clone, Debug, PartialEq, Eq, Hash)]
pub struct Table {
    waiting: BTreeMap<String, Waiting>,
    joined: Vec<bool>,
    /// Display names of the ranks.
    called: Vec<u32>,
}

impl Table {
    /// A table for ranks with these display names.
    #[must_use]
    pub fn new(called: Vec<u32>) -> Table {
        Table { waiting: BTreeMap::new(), joined: vec![false; called.len()], called }
    }

    /// Whether no tensor waits.
    #[must_use]
    pub fn is_empty(&self) -> bool {
        self.waiting.is_empty()
    }

    /// Handles all ranks' reports, in rank order.
    pub fn take(&mut self, now: Time, reports: Vec<Report>) -> Decision {
        let mut complete = Vec::new();
        let joined: Vec<bool> = reports.iter().map(|report| report.joined).collect();
        let more_joined = joined != self.joined;
        self.joined = joined;
        for (rank, report) in reports.into_iter().enumerate() {
            for request in report.requests {
                let name = request.name.clone();
                let ranks = self.joined.len();
                let entry = self.waiting.entry(name.clone()).or_insert_with(|| Waiting {
                    asked: vec![None; ranks],
                    since: now,
                    warned: now,
                });
                entry.asked[rank] = Some(request);
                if self.all_asked(&name) {
                    complete.push(name);
                }
            }
        }
        if more_joined {
            let rest = self.waiting.keys().filter(|name| self.all_asked(name) && !complete.contains(name));
            let rest: Vec<String> = rest.cloned().collect();
            complete.extend(rest);
        }
        let mut decision = Decision::default();
        for name in complete {
            let Some(entry) = self.waiting.remove(&name) else { continue };
            match agree(&name, entry.asked, &self.called) {
                Ok(agreed) => decision.agreed.push(agreed),
                Err(reason) => decision.refused.push((name, reason)),
            }
        }
        decision
    }

    fn all_asked(&self, name: &str) -> bool {
        self.waiting
            .get(name)
            .is_some_and(|entry| entry.asked.iter().zip(&self.joined).all(|(asked, &joined)| asked.is_some() || joined))
    }

    /// Tensors that have waited for this long without a recent warning: one entry for all that wait for the same ranks.
    ///
    /// Includes tensors that are due soon after, so that the tensors of a layer do not cause a message each.
    pub fn stalled(&mut self, now: Time, after: Time) -> Vec<Stall> {
        let (joined, called) = (&self.joined, &self.called);
        let mut stalls: Vec<Stall> = Vec::new();
        let waited = |entry: &Waiting| if entry.patient() { 0 } else { now.saturating_sub(entry.warned) };
        if !self.waiting.values().any(|entry| waited(entry) >= after) {
            return stalls;
        }
        for (name, entry) in self.waiting.iter_mut().filter(|(_, entry)| !entry.patient() && waited(entry) >= after / 2)
        {
            entry.warned = now;
            let one = entry.stall(name, now, joined, called);
            match stalls.iter_mut().find(|stall| (&stall.have, &stall.lack) == (&one.have, &one.lack)) {
                Some(stall) => stall.take(one),
                None => stalls.push(one),
            }
        }
        stalls
    }

    /// Removes tensors that have waited too long, with the reason.
    pub fn give_up(&mut self, now: Time, after: Time) -> Vec<(String, String)> {
        let late = |entry: &Waiting| !entry.patient() && now.saturating_sub(entry.since) >= after;
        let names: Vec<String> =
            self.waiting.iter().filter(|(_, entry)| late(entry)).map(|(name, _)| name.clone()).collect();
        let mut refused = Vec::new();
        for name in names {
            let Some(entry) = self.waiting.remove(&name) else { continue };
            let stall = entry.stall(&name, now, &self.joined, &self.called);
            let limit = "the limit is HOROVOD_STALL_SHUTDOWN_TIME_SECONDS";
            refused.push((name, format!("{}; {limit}", stall.describe())));
        }
        refused
    }

    /// When the next warning or failure is due.
    #[must_use]
    pub fn due(&self, warn: Option<Time>, give_up: Option<Time>) -> Option<Time> {
        let times = self.waiting.values().filter(|entry| !entry.patient()).flat_map(|entry| {
            [warn.map(|after| entry.warned + after), give_up.map(|after| entry.since + after)].into_iter().flatten()
        });
        times.min()
    }
}

impl Waiting {
    fn patient(&self) -> bool {
        self.asked.iter().flatten().all(|request| request.patient)
    }

    fn stall(&self, name: &str, now: Time, joined: &[bool], called: &[u32]) -> Stall {
        let ranks = |wanted: bool| {
            let those = self.asked.iter().zip(joined).enumerate();
            let those = those.filter(move |(_, (asked, joined))| asked.is_some() == wanted && (wanted || !**joined));
            those.map(|(rank, _)| called[rank]).collect()
        };
        Stall {
            names: vec![name.into()],
            waited: now.saturating_sub(self.since),
            have: ranks(true),
            lack: ranks(false),
        }
    }
}

impl Stall {
    /// Adds tensors that wait for the same ranks.
    fn take(&mut self, other: Stall) {
        self.names.extend(other.names);
        self.waited = self.waited.max(other.waited);
    }

    /// A message for the user.
    #[must_use]
    pub fn describe(&self) -> String {
        let (waited, lack, have) = (seconds(self.waited), ranks(&self.lack), ranks(&self.have));
        match self.names.as_slice() {
            [name] => format!("tensor '{name}' has waited {waited} for {lack}; {have} asked for it"),
            names => {
                let shown: Vec<String> = names.iter().take(3).map(|name| format!("'{name}'")).collect();
                let more = names.len() - shown.len();
                let more = if more > 0 { format!(" and {more} more") } else { String::new() };
                format!(
                    "{} tensors have waited up to {waited} for {lack}; {have} asked for them: {}{more}",
                    names.len(),
                    shown.join(", ")
                )
            }
        }
    }
}

/// `0.3 s`, `75 s`.
fn seconds(time: Time) -> String {
    match time / 100_000_000 {
        tenths @ 0..100 => format!("{}.{} s", tenths / 10, tenths % 10),
        tenths => format!("{} s", tenths / 10),
    }
}

fn ranks(ranks: &[u32]) -> String {
    let shown: Vec<String> = ranks.iter().take(8).map(u32::to_string).collect();
    let more =
        if ranks.len() > shown.len() { format!(" and {} more", ranks.len() - shown.len()) } else { String::new() };
    format!("rank{} {}{more}", if ranks.len() == 1 { "" } else { "s" }, shown.join(", "))
}

/// Checks that all ranks submitted the same; returns what differs.
fn agree(name: &str, asked: Vec<Option<Request>>, called: &[u32]) -> Result<Agreed, String> {
    let mut first: Option<(usize, &Request)> = None;
    let wanted = asked.iter().flatten().next();
    for (rank, request) in asked.iter().enumerate() {
        let Some(request) = request else {
            if wanted.is_some_and(|wanted| !wanted.terms.can_do_without(rank as u32)) {
                return Err(format!(
                    "tensor '{name}': {} is not supported with Join at this time: rank {} has joined; only sums and \
                     averages go on without it",
                    wanted.map_or_else(String::new, |wanted| wanted.terms.what()),
                    called[rank]
                ));
            }
            continue;
        };
        let Some((other, known)) = first else {
            first = Some((rank, request));
            continue;
        };
        if let Some((what, a, b)) = known.terms.difference(&request.terms) {
            return Err(format!(
                "tensor '{name}': the {what} is {a} on rank {} and {b} on rank {}; {}",
                called[other],
                called[rank],
                remedy(what)
            ));
        }
        if known.together != request.together {
            return Err(format!(
                "tensor '{name}': ranks {} and {} have it in different groups of tensors; group the same tensors on all \
                 ranks",
                called[other], called[rank]
            ));
        }
    }
    let Some((_, request)) = first else { return Err(format!("tensor '{name}': no rank asked for it")) };
    let request = Request { own: Vec::new(), ..request.clone() };
    let any = asked.iter().flatten().any(|request| !request.own.is_empty());
    let own = if any {
        asked.into_iter().map(|asked| asked.map_or_else(Vec::new, |request| request.own)).collect()
    } else {
        Vec::new()
    };
    Ok(Agreed { request, own })
}

/// The remedy where ranks request different operations under one name.
fn remedy(what: &str) -> &'static str {
    match what {
        "operation" => "call the same operation for this name on all ranks, or give each its own name",
        "shape" => "give it the same shape on all ranks: pad it, or use allgather, whose first dimension may differ",
        "shape after the first dimension" => "only the first dimension may differ between ranks: pad the others",
        "dtype" => "convert it to one dtype on all ranks",
        "device" => "move it to the same kind of device on all ranks",
        "root rank" => "give all ranks the same root_rank",
        _ => "give the same on all ranks",
    }
}
