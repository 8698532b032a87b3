//! Cuts a trace into units: what is gathered, reduced or scattered as one.
//!
//! With sharded parameters a unit is a block of the model, as users wrap it (`fully_shard(block)`); everything else is
//! the root. Otherwise it is a bucket of gradients, which are fused in the order in which they become ready, as in DDP.
use std::collections::{BTreeMap, BTreeSet, HashSet};

use paceline_model::trace::WorkerTrace;
use paceline_model::{Time, Trace};
use paceline_schedule::buckets::fuse;

use crate::options::{IterationError, is_of_experts};

/// The unit of what belongs to no block.
pub const ROOT: &str = "root";

/// A trace in terms of units.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Cut {
    /// Name and elements of each unit.
    pub units: Vec<(String, u64)>,
    /// The block that each unit is part of: that around it for experts that are a unit of their own, else itself.
    pub block_of: Vec<u32>,
    /// Elements of each unit that are not trained.
    pub frozen: Vec<u64>,
    /// Those of no unit.
    pub frozen_elsewhere: u64,
    /// The unit of each tensor; `None`: it has no gradient.
    pub unit_of: Vec<Option<u32>>,
    /// The unit that is kept gathered between forward and backward pass.
    pub root: Option<u32>,
    /// The forward pass, in order.
    pub forward: Vec<Segment>,
    /// The backward pass, in order.
    pub backward: Vec<Segment>,
}

/// A part of a pass that begins when the units that it needs are there.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Segment {
    /// Its units; the first one is the one whose code runs.
    pub units: Vec<u32>,
    /// The layer that it is, where layers stay apart.
    pub layer: Option<String>,
    /// How long it computes.
    pub duration: Time,
    /// Bytes of a sample that it keeps for the backward pass.
    pub activation_bytes: u64,
    /// Bytes of a sample that exist only in it, at most: in the backward pass.
    pub backward_bytes: u64,
    /// The number of its first layer, in the forward pass.
    first_layer: usize,
    /// In the backward pass: segments of the forward pass that it has then passed.
    pub undone: Vec<u32>,
    /// Units with elements whose gradients begin to exist in it.
    pub begun: Vec<(u32, u64)>,
    /// Of those, units with elements of parameters that several layers share.
    pub shared: Vec<(u32, u64)>,
    /// Elements of the largest of the other gradients.
    pub largest: u64,
    /// Units with elements of parameters that several layers share, and whose gradients are added up in it.
    pub summed: Vec<(u32, u64)>,
}

impl Segment {
    fn new(units: Vec<u32>, duration: Time) -> Segment {
        Segment {
            units,
            layer: None,
            duration,
            activation_bytes: 0,
            backward_bytes: 0,
            first_layer: 0,
            undone: Vec::new(),
            begun: Vec::new(),
            shared: Vec::new(),
            largest: 0,
            summed: Vec::new(),
        }
    }
}

/// A worker of so many that hands its gradients to a library: each call delays all later gradients, and each gradient then
/// waits for its agreement. `None`: as without, because that takes no time, there is one worker, or none computes.
#[must_use]
pub fn handing_over(worker: &WorkerTrace, workers: u32, call: Time, agreement: Time) -> Option<WorkerTrace> {
    let nothing = call == Time::ZERO && agreement == Time::ZERO;
    if nothing || workers < 2 || worker.compute_time() == Time::ZERO {
        return None;
    }
    let mut worker = worker.clone();
    worker.gradients.sort_by_key(|gradient| gradient.ready);
    let (mut called, mut agreed) = (Time::ZERO, Time::ZERO);
    for gradient in &mut worker.gradients {
        called += call;
        agreed = agreed.max(gradient.ready + called) + agreement;
        gradient.ready = agreed;
    }
    worker.backward = (worker.backward + called).max(agreed);
    Some(worker)
}

/// Cuts a worker's iteration into blocks: those that match `pattern`, or else those that are numbered.
///
/// `experts_apart`: whether experts are units of their own, which other ranks gather.
///
/// # Errors
/// No layer matches the pattern.
pub fn into_blocks(
    trace: &Trace,
    worker: &WorkerTrace,
    pattern: Option<&str>,
    bucket: Option<u64>,
    experts_apart: bool,
) -> Result<Cut, IterationError> {
    let names: Vec<&str> = worker.forward.iter().map(|layer| layer.name.as_str()).collect();
    let blocks = match pattern {
        Some(pattern) => matching(&names, pattern)?,
        None => numbered(&names),
    };
    let mut numbers: BTreeMap<&str, u32> = BTreeMap::new();
    let mut units: Vec<(String, u64)> = Vec::new();
    let mut unit_of_layer = Vec::with_capacity(names.len());
    let mut root = None;
    if blocks.iter().any(Option::is_some) {
        for block in &blocks {
            let name = block.unwrap_or(ROOT);
            let next = units.len() as u32;
            let number = *numbers.entry(name).or_insert(next);
            if number == next {
                units.push((name.to_owned(), 0));
            }
            if block.is_none() {
                root = Some(number);
            }
            unit_of_layer.push(number);
        }
    } else {
        // Without blocks, layers are wrapped until they have the size of a bucket.
        let mut seen = vec![false; trace.tensors.len()];
        let mut bytes = 0;
        for layer in &worker.forward {
            if units.is_empty() || bucket.is_some_and(|bucket| bytes >= bucket) || (bucket.is_none() && bytes > 0) {
                units.push((layer.name.clone(), 0));
                bytes = 0;
            }
            for &tensor in &layer.tensors {
                if !std::mem::replace(&mut seen[tensor as usize], true) {
                    let tensor = &trace.tensors[tensor as usize];
                    bytes += tensor.bytes + tensor.frozen_bytes;
                }
            }
            unit_of_layer.push(units.len() as u32 - 1);
        }
    }
    let mut unit_of = vec![None; trace.tensors.len()];
    for (layer, &unit) in worker.forward.iter().zip(&unit_of_layer) {
        for &tensor in &layer.tensors {
            if trace.tensors[tensor as usize].bytes > 0 {
                unit_of[tensor as usize].get_or_insert(unit);
            }
        }
    }
    let mut block_of: Vec<u32> = (0..units.len() as u32).collect();
    if experts_apart {
        let mut apart: BTreeMap<u32, u32> = BTreeMap::new();
        for (tensor, unit) in trace.tensors.iter().zip(&mut unit_of).filter(|(tensor, _)| is_of_experts(&tensor.name)) {
            let Some(block) = *unit else { continue };
            let own = *apart.entry(block).or_insert_with(|| {
                units.push((format!("{}.experts", units[block as usize].0), 0));
                block_of.push(block);
                units.len() as u32 - 1
            });
            *unit = Some(own);
            debug_assert!(tensor.bytes > 0);
        }
    }
    let own = |layer: usize| vec![unit_of_layer[layer]];
    let forward = forward(worker, &unit_of, false, own);
    let mut segments: Vec<Segment> = Vec::new();
    let mut before = Time::ZERO;
    for gradient in &worker.gradients {
        let Some(unit) = unit_of[gradient.tensor as usize] else { continue };
        let duration = gradient.ready - before;
        before = gradient.ready;
        match segments.last_mut() {
            Some(last) if last.units == [unit] => last.duration += duration,
            _ => segments.push(Segment::new(vec![unit], duration)),
        }
    }
    let backward = with_memory(ended(segments, worker.backward - before), &forward, trace, worker, &unit_of);
    let frozen = frozen_of(trace, worker, &unit_of_layer, units.len());
    Ok(Cut {
        units: with_elements(units, &unit_of, trace),
        block_of,
        frozen,
        frozen_elsewhere: 0,
        unit_of,
        root,
        forward,
        backward,
    })
}

/// A unit of exchange where nothing is sharded.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Bucket {
    /// Its first tensor, and how many more it has.
    pub name: String,
    /// Numbers of its tensors.
    pub tensors: Vec<u32>,
    /// Of the trace's type.
    pub elements: u64,
    /// It has no gradient: servers distribute it and do not add to it.
    pub pull_only: bool,
    /// Its place in the order in which servers distribute.
    pub priority: u32,
}

/// The buckets of a trace. `None`: bucket i is tensor i, so that a placement counts tensors in model order; tensors without
/// gradient are included if servers distribute them.
#[must_use]
pub fn buckets(trace: &Trace, size: Option<u64>, with_servers: bool) -> Vec<Bucket> {
    bucketed(trace, fused(trace, size, |_| true), with_servers)
}

/// The same without servers, and with experts in buckets of their own, which other ranks exchange.
#[must_use]
pub fn buckets_with_experts_apart(trace: &Trace, size: Option<u64>) -> Vec<Bucket> {
    let of_experts = |tensor: u32| is_of_experts(&trace.tensors[tensor as usize].name);
    let mut groups = fused(trace, size, |tensor| !of_experts(tensor));
    groups.extend(fused(trace, size, of_experts));
    bucketed(trace, groups, false)
}

/// Tensors with gradients for which `counts` holds, fused to this size.
fn fused(trace: &Trace, size: Option<u64>, counts: impl Fn(u32) -> bool) -> Vec<Vec<u32>> {
    if size.is_none() {
        let own = (0u32..).zip(&trace.tensors).filter(|&(i, tensor)| tensor.bytes > 0 && counts(i));
        return own.map(|(i, _)| vec![i]).collect();
    }
    let order: Vec<u32> =
        trace.workers[0].gradients.iter().map(|g| g.tensor).filter(|&tensor| counts(tensor)).collect();
    let bytes: Vec<u64> = order.iter().map(|&t| trace.tensors[t as usize].bytes).collect();
    fuse(&bytes, size).into_iter().map(|range| order[range].to_vec()).collect()
}

fn bucketed(trace: &Trace, mut groups: Vec<Vec<u32>>, with_servers: bool) -> Vec<Bucket> {
    if with_servers {
        let pulled = (0u32..).zip(&trace.tensors).filter(|(_, t)| t.bytes == 0 && t.pull_bytes > 0);
        groups.extend(pulled.map(|(i, _)| vec![i]));
    }
    let mut place = vec![u32::MAX; trace.tensors.len()];
    for (position, &tensor) in (0u32..).zip(&trace.distribution) {
        let slot = &mut place[tensor as usize];
        *slot = position.min(*slot);
    }
    let bucket = |tensors: Vec<u32>| {
        let all = || tensors.iter().map(|&tensor| &trace.tensors[tensor as usize]);
        let pull_only = all().all(|tensor| tensor.bytes == 0);
        let bytes: u64 = all().map(|tensor| if pull_only { tensor.pull_bytes } else { tensor.bytes }).sum();
        let more = tensors.len() - 1;
        let first = &trace.tensors[tensors[0] as usize].name;
        Bucket {
            name: if more == 0 { first.clone() } else { format!("{first} +{more}") },
            // A moving average may have another type: only its bytes matter.
            elements: bytes.div_ceil(trace.dtype.size()),
            pull_only,
            priority: tensors.iter().map(|&tensor| place[tensor as usize]).min().unwrap_or(u32::MAX),
            tensors,
        }
    };
    groups.into_iter().map(bucket).collect()
}

/// Cuts a recorded worker's iteration into these buckets. `order`: in which they are handed over, if not in that of their
/// last gradients. `apart`: what follows the last gradient is a segment of its own, beside that gradient's exchange, and so
/// is each layer.
#[must_use]
pub fn into_buckets(
    trace: &Trace,
    worker: &WorkerTrace,
    buckets: &[Bucket],
    order: Option<&[u32]>,
    apart: bool,
) -> Cut {
    let mut unit_of = vec![None; trace.tensors.len()];
    for (number, bucket) in (0u32..).zip(buckets) {
        bucket.tensors.iter().for_each(|&tensor| unit_of[tensor as usize] = Some(number));
    }
    let mut segments: Vec<Segment> = Vec::new();
    let mut before = Time::ZERO;
    for (ready, unit) in handed_over(worker, &unit_of, buckets.len(), order) {
        match segments.last_mut() {
            Some(last) if ready == before => last.units.push(unit),
            _ => segments.push(Segment::new(vec![unit], ready - before)),
        }
        before = ready;
    }
    let rest = worker.backward.max(before) - before;
    let backward = if apart && rest > Time::ZERO {
        segments.push(Segment::new(Vec::new(), rest));
        segments
    } else {
        ended(segments, rest)
    };
    let forward = forward(worker, &unit_of, apart, |_| Vec::new());
    let backward = with_memory(backward, &forward, trace, worker, &unit_of);
    let units = buckets.iter().map(|bucket| (bucket.name.clone(), bucket.elements)).collect();
    let elsewhere = trace.tensors.iter().map(|tensor| tensor.frozen_bytes / trace.dtype.size()).sum();
    Cut {
        units,
        block_of: (0..buckets.len() as u32).collect(),
        frozen: vec![0; buckets.len()],
        frozen_elsewhere: elsewhere,
        unit_of,
        root: None,
        forward,
        backward,
    }
}

/// The order in which a worker's buckets become ready.
#[must_use]
pub fn ready_order(trace: &Trace, worker: &WorkerTrace, buckets: &[Bucket]) -> Vec<u32> {
    let mut unit_of = vec![None; trace.tensors.len()];
    for (number, bucket) in (0u32..).zip(buckets) {
        bucket.tensors.iter().for_each(|&tensor| unit_of[tensor as usize] = Some(number));
    }
    handed_over(worker, &unit_of, buckets.len(), None).into_iter().map(|(_, bucket)| bucket).collect()
}

/// When each bucket can be handed over, from the start of the backward pass, in order; those without gradients at once.
fn handed_over(
    worker: &WorkerTrace,
    unit_of: &[Option<u32>],
    buckets: usize,
    order: Option<&[u32]>,
) -> Vec<(Time, u32)> {
    let mut ready = vec![(Time::ZERO, 0); buckets];
    // Ties keep the trace's order of gradients.
    for (position, gradient) in worker.gradients.iter().enumerate() {
        if let Some(bucket) = unit_of[gradient.tensor as usize] {
            let slot = &mut ready[bucket as usize];
            *slot = (slot.0.max(gradient.ready), position);
        }
    }
    let mut own: Vec<u32> = (0..buckets as u32).collect();
    own.sort_by_key(|&bucket| ready[bucket as usize]);
    let mut latest = Time::ZERO;
    let handed = |&bucket: &u32| {
        latest = latest.max(ready[bucket as usize].0);
        (latest, bucket)
    };
    order.unwrap_or(&own).iter().map(handed).collect()
}

fn forward(
    worker: &WorkerTrace,
    unit_of: &[Option<u32>],
    apart: bool,
    own: impl Fn(usize) -> Vec<u32>,
) -> Vec<Segment> {
    let mut segments: Vec<Segment> = Vec::new();
    for (number, layer) in worker.forward.iter().enumerate() {
        let mut units = own(number);
        let mut known: HashSet<u32> = units.iter().copied().collect();
        let of_tensors = layer.tensors.iter().filter_map(|&tensor| unit_of[tensor as usize]);
        units.extend(of_tensors.filter(|&unit| known.insert(unit)));
        let kept = layer.activation_bytes.unwrap_or(0);
        match segments.last_mut() {
            Some(last) if !apart && (units.is_empty() || last.units == units) => {
                last.duration += layer.duration;
                last.activation_bytes = last.activation_bytes.saturating_add(kept);
            }
            _ => segments.push(Segment {
                layer: apart.then(|| layer.name.clone()),
                activation_bytes: kept,
                first_layer: number,
                ..Segment::new(units, layer.duration)
            }),
        }
    }
    segments
}

/// Time after the last gradient belongs to its unit.
fn ended(mut segments: Vec<Segment>, rest: Time) -> Vec<Segment> {
    match segments.last_mut() {
        Some(last) => last.duration += rest,
        None => segments.push(Segment::new(Vec::new(), rest)),
    }
    segments
}

/// Says in which segments of a backward pass gradients begin to exist and activations are used for the last time. A gradient
/// begins where it becomes ready, or, if several layers share the parameter, where the pass comes to the last of these layers.
fn with_memory(
    mut segments: Vec<Segment>,
    forward: &[Segment],
    trace: &Trace,
    worker: &WorkerTrace,
    unit_of: &[Option<u32>],
) -> Vec<Segment> {
    let mut uses = vec![0u32; trace.tensors.len()];
    let mut last_use = vec![0; trace.tensors.len()];
    for (number, layer) in worker.forward.iter().enumerate() {
        for &tensor in &layer.tensors {
            uses[tensor as usize] += 1;
            last_use[tensor as usize] = number;
        }
    }
    // When the first gradient of this layer or one before it is ready: until then, the pass computes this layer.
    let mut reached = vec![worker.backward; worker.forward.len()];
    for gradient in &worker.gradients {
        if let Some(slot) = reached.get_mut(last_use[gradient.tensor as usize]) {
            *slot = gradient.ready.min(*slot);
        }
    }
    for layer in 1..reached.len() {
        reached[layer] = reached[layer].min(reached[layer - 1]);
    }
    let ends: Vec<Time> = segments
        .iter()
        .scan(Time::ZERO, |end, segment| {
            *end += segment.duration;
            Some(*end)
        })
        .collect();
    let during = |moment: Time| ends.partition_point(|&end| end < moment).min(ends.len() - 1);
    for gradient in &worker.gradients {
        let tensor = gradient.tensor as usize;
        let Some(unit) = unit_of[tensor] else { continue };
        let elements = trace.tensors[tensor].bytes / trace.dtype.size();
        let is_shared = uses[tensor] > 1;
        let begins = if is_shared { reached[last_use[tensor]] } else { gradient.ready };
        let segment = &mut segments[during(begins)];
        segment.begun.push((unit, elements));
        if is_shared {
            segment.shared.push((unit, elements));
            segments[during(gradient.ready)].summed.push((unit, elements));
        } else {
            segment.largest = segment.largest.max(elements);
        }
    }
    for (number, segment) in (0..).zip(forward) {
        let end = reached.get(segment.first_layer).map_or(worker.backward, |&end| end);
        segments[during(end)].undone.push(number);
    }
    for (layer, &end) in worker.forward.iter().zip(&reached) {
        let segment = &mut segments[during(end)];
        segment.backward_bytes = segment.backward_bytes.max(layer.backward_bytes.unwrap_or(0));
    }
    for segment in &mut segments {
        add_up(&mut segment.begun);
        add_up(&mut segment.shared);
        add_up(&mut segment.summed);
    }
    segments
}

/// Leaves one entry of each unit, with all its elements.
fn add_up(elements: &mut Vec<(u32, u64)>) {
    elements.sort_unstable();
    elements.dedup_by(|(unit, more), (kept, sum)| {
        let same = unit == kept;
        *sum += if same { *more } else { 0 };
        same
    });
}

fn with_elements(mut units: Vec<(String, u64)>, unit_of: &[Option<u32>], trace: &Trace) -> Vec<(String, u64)> {
    for (tensor, unit) in trace.tensors.iter().zip(unit_of) {
        if let Some(unit) = unit {
            units[*unit as usize].1 += tensor.bytes / trace.dtype.size();
        }
    }
    units
}

/// Elements of each unit that are not trained; a parameter belongs to the unit of its first layer.
fn frozen_of(trace: &Trace, worker: &WorkerTrace, unit_of_layer: &[u32], units: usize) -> Vec<u64> {
    let mut frozen = vec![0; units];
    let mut seen = vec![false; trace.tensors.len()];
    for (layer, &unit) in worker.forward.iter().zip(unit_of_layer) {
        for &tensor in &layer.tensors {
            if !std::mem::replace(&mut seen[tensor as usize], true) {
                frozen[unit as usize] += trace.tensors[tensor as usize].frozen_bytes / trace.dtype.size();
            }
        }
    }
    frozen
}

/// The block of each layer whose name begins with the pattern, component by component.
fn matching<'a>(names: &[&'a str], pattern: &str) -> Result<Vec<Option<&'a str>>, IterationError> {
    let wanted: Vec<&str> = pattern.split('.').collect();
    let found: Vec<_> = names
        .iter()
        .map(|name| {
            let parts: Vec<&str> = name.split('.').collect();
            let fits = parts.len() >= wanted.len()
                && wanted.iter().zip(&parts).all(|(wanted, part)| matches(wanted.as_bytes(), part.as_bytes()));
            fits.then(|| prefix(name, wanted.len()))
        })
        .collect();
    if found.iter().all(Option::is_none) {
        let some: Vec<_> = names.iter().filter(|name| !name.is_empty()).take(3).copied().collect();
        return Err(IterationError::about("unit", format!("no layer's name begins with '{pattern}'")).remedy(format!(
            "{{unit={}}} (layers: {}, …)",
            common(names),
            some.join(", ")
        )));
    }
    Ok(found)
}

/// The pattern of the layers that most names begin with: `h.*` of h.0.attn, h.0.mlp, head.
fn common(names: &[&str]) -> String {
    let first = |name: &str| name.split_once('.').map(|(first, _)| first.to_owned());
    let firsts: Vec<String> = names.iter().filter_map(|name| first(name)).collect();
    let most = firsts.iter().max_by_key(|one| firsts.iter().filter(|other| other == one).count());
    most.map_or_else(|| "*".into(), |first| format!("{first}.*"))
}

/// Whether a text matches a pattern in which `*` stands for any characters.
fn matches(pattern: &[u8], text: &[u8]) -> bool {
    // What the last `*` stands for grows until the rest fits: no earlier one need be tried again.
    let (mut at, mut read, mut star) = (0, 0, None);
    while read < text.len() {
        if pattern.get(at) == Some(&b'*') {
            star = Some((at, read));
            at += 1;
        } else if pattern.get(at) == Some(&text[read]) {
            at += 1;
            read += 1;
        } else if let Some((before, taken)) = star {
            star = Some((before, taken + 1));
            (at, read) = (before + 1, taken + 1);
        } else {
            return false;
        }
    }
    pattern[at..].iter().all(|&byte| byte == b'*')
}

/// The first components of a name.
fn prefix(name: &str, components: usize) -> &str {
    name.match_indices('.').nth(components - 1).map_or(name, |(end, _)| &name[..end])
}

/// The block of each layer that is inside a numbered module, if that module's siblings are numbered, too:
/// `transformer.h.0` of `transformer.h.0.attn.c_proj`.
fn numbered<'a>(names: &[&'a str]) -> Vec<Option<&'a str>> {
    let is_number = |part: &str| !part.is_empty() && part.bytes().all(|byte| byte.is_ascii_digit());
    let candidate = |name: &'a str| {
        let parts: Vec<&str> = name.split('.').collect();
        let at = parts.iter().position(|part| is_number(part))?;
        // A numbered layer is no block of layers.
        (at > 0 && at + 1 < parts.len()).then(|| prefix(name, at + 1))
    };
    let family = |block: &'a str| block.rsplit_once('.').map_or("", |(family, _)| family);
    let mut families: BTreeMap<&str, BTreeSet<&str>> = BTreeMap::new();
    for block in names.iter().filter_map(|name| candidate(name)) {
        families.entry(family(block)).or_default().insert(block);
    }
    let has_siblings = |block: &&'a str| families[family(block)].len() > 1;
    names.iter().map(|name| candidate(name).filter(has_siblings)).collect()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn blocks_are_numbered_modules_with_siblings() {
        let names = ["wte", "h.0.attn.0", "h.0.mlp", "h.1.mlp", "head.0", "head.1", "once.0.conv", "(loss)"];
        let found = numbered(&names);
        assert_eq!(found, [None, Some("h.0"), Some("h.0"), Some("h.1"), None, None, None, None]);
    }

    #[test]
    fn patterns_name_the_beginning_of_layers() {
        let names = ["model.layers.0.mlp", "model.layers.10.mlp", "model.norm"];
        let found = matching(&names, "model.layers.*").unwrap();
        assert_eq!(found, [Some("model.layers.0"), Some("model.layers.10"), None]);
        let found = matching(&names, "model.n*").unwrap();
        assert_eq!(found, [None, None, Some("model.norm")]);
        let error = matching(&names, "transformer.h.*").unwrap_err();
        assert!(
            error.remedy.as_ref().is_some_and(|it| it.contains("model.layers.0.mlp")) && error.setting == Some("unit")
        );
    }

    /// The plain definition, which takes exponential time.
    fn by_definition(pattern: &[u8], text: &[u8]) -> bool {
        match pattern.split_first() {
            None => text.is_empty(),
            Some((b'*', rest)) => (0..=text.len()).any(|taken| by_definition(rest, &text[taken..])),
            Some((first, rest)) => {
                text.split_first().is_some_and(|(it, more)| first == it && by_definition(rest, more))
            }
        }
    }

    #[test]
    fn patterns_match_as_by_definition() {
        // All words of up to 6 letters, with all patterns of up to 5.
        let words = |letters: &[u8], most: usize| {
            let mut found = vec![Vec::new()];
            for length in 1..=most {
                let longer: Vec<Vec<u8>> = found
                    .iter()
                    .filter(|word: &&Vec<u8>| word.len() + 1 == length)
                    .flat_map(|word| letters.iter().map(|&letter| [word.as_slice(), &[letter]].concat()))
                    .collect();
                found.extend(longer);
            }
            found
        };
        for pattern in words(b"ab*", 5) {
            for text in words(b"ab", 6) {
                assert_eq!(matches(&pattern, &text), by_definition(&pattern, &text), "{pattern:?} {text:?}");
            }
        }
    }

    #[test]
    fn many_stars_take_no_time() {
        let pattern = [b"*a".repeat(500).as_slice(), b"b"].concat();
        assert!(!matches(&pattern, &b"a".repeat(5_000)));
    }
}
