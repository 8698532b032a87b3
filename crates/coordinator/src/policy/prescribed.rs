//! A plan that was made from the graph before the run, for the policy `graph`.
//!
//! It prescribes which tensors are fused, and in which order buckets begin. A step may have fewer tensors than the plan,
//! which may also have those of another optimizer, but no others, and none of another dtype or size.
use std::collections::BTreeMap;
use std::ops::Range;

use super::proposal::{Proposal, Seen};

/// A tensor as the plan has it.
#[derive(Clone, Debug, PartialEq, Eq, Hash)]
pub struct Planned {
    /// Its name, without the call that begins those of requests (`all_reduce`).
    pub name: String,
    /// Its element type.
    pub dtype: String,
    /// Its size.
    pub bytes: u64,
}

/// Buckets in the order in which they begin.
#[derive(Clone, Debug, PartialEq, Eq, Hash)]
pub struct Prescribed {
    /// Where the plan comes from, for messages.
    pub source: String,
    /// Tensors in their order in memory. Each name occurs once.
    pub buckets: Vec<Vec<Planned>>,
}

/// Begins the names of requests for all-reduces.
const CALL: &str = "allreduce.";
/// Names that a message lists.
const SHOWN: usize = 3;

fn own(name: &str) -> &str {
    name.strip_prefix(CALL).unwrap_or(name)
}

fn listed(names: &[String]) -> String {
    let more = names.len().saturating_sub(SHOWN);
    let rest = if more > 0 { format!(" and {more} more") } else { String::new() };
    format!("{}{rest}", names[..names.len().min(SHOWN)].join(", "))
}

impl Prescribed {
    /// Checks that the plan has all tensors of a step, as they are.
    ///
    /// # Errors
    /// How it differs.
    pub fn check(&self, step: &Proposal) -> Result<(), String> {
        let mut planned: BTreeMap<&str, &Planned> =
            self.buckets.iter().flatten().map(|tensor| (tensor.name.as_str(), tensor)).collect();
        let (mut unknown, mut other) = (Vec::new(), Vec::new());
        for seen in &step.tensors {
            match planned.remove(own(&seen.name)) {
                None => unknown.push(format!("'{}'", own(&seen.name))),
                Some(tensor) if tensor.dtype != seen.terms.dtype || tensor.bytes != seen.terms.bytes => {
                    other.push(format!(
                        "'{}' has {} bytes of {} (planned: {} bytes of {})",
                        tensor.name, seen.terms.bytes, seen.terms.dtype, tensor.bytes, tensor.dtype
                    ))
                }
                Some(_) => {}
            }
        }
        let differences = [("it lacks", unknown), ("sizes differ:", other)];
        let told: Vec<String> = differences
            .iter()
            .filter(|(_, names)| !names.is_empty())
            .map(|(how, names)| format!("{how} {}", listed(names)))
            .collect();
        if told.is_empty() {
            Ok(())
        } else {
            Err(format!("{}: is no plan of this step: {}", self.source, told.join("; ")))
        }
    }

    /// These tensors in the plan's order, and its buckets of them. `None` if the plan lacks one, or a bucket has tensors
    /// that cannot be fused.
    pub(super) fn arranged(&self, slots: Vec<Seen>) -> Option<(Vec<Seen>, Vec<Range<usize>>)> {
        let mut by_name: BTreeMap<String, Seen> =
            slots.into_iter().map(|seen| (own(&seen.name).to_owned(), seen)).collect();
        let (mut ordered, mut buckets) = (Vec::new(), Vec::new());
        for bucket in &self.buckets {
            let begin = ordered.len();
            ordered.extend(bucket.iter().filter_map(|tensor| by_name.remove(&tensor.name)));
            let [first, rest @ ..] = &ordered[begin..] else { continue };
            if rest.iter().any(|seen| !first.terms.fuses_with(&seen.terms)) {
                return None;
            }
            buckets.push(begin..ordered.len());
        }
        by_name.is_empty().then_some((ordered, buckets))
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::request::Terms;

    fn seen(name: &str, dtype: &str, bytes: u64) -> Seen {
        let terms = Terms::sum(dtype, bytes);
        Seen { name: format!("{CALL}{name}"), terms, late: false }
    }

    fn prescribed(buckets: &[&[(&str, u64)]]) -> Prescribed {
        let planned = |&(name, bytes): &(&str, u64)| Planned { name: name.into(), dtype: "float32".into(), bytes };
        let buckets = buckets.iter().map(|bucket| bucket.iter().map(planned).collect()).collect();
        Prescribed { source: "plan.json".into(), buckets }
    }

    fn names(slots: &[Seen]) -> Vec<&str> {
        slots.iter().map(|seen| own(&seen.name)).collect()
    }

    #[test]
    fn tensors_follow_the_plan_and_not_the_order_in_which_they_were_seen() {
        let plan = prescribed(&[&[("c", 8), ("a", 4)], &[("of another optimizer", 4)], &[("b", 12)]]);
        let step = ["a", "b", "c"].map(|name| seen(name, "float32", [4, 12, 8][(name.as_bytes()[0] - b'a') as usize]));
        assert_eq!(plan.check(&Proposal { tensors: step.to_vec() }), Ok(()));
        let (slots, buckets) = plan.arranged(step.to_vec()).unwrap();
        assert_eq!((names(&slots), buckets), (vec!["c", "a", "b"], vec![0..2, 2..3]));
        let some = plan.arranged(step[..2].to_vec()).unwrap();
        assert_eq!((names(&some.0), some.1), (vec!["a", "b"], vec![0..1, 1..2]));
    }

    #[test]
    fn tensors_that_the_plan_has_not_or_otherwise_are_named() {
        let plan = prescribed(&[&[("a", 4), ("b", 4)]]);
        let told = |tensors| plan.check(&Proposal { tensors }).unwrap_err();
        let text = told(vec![seen("a", "float32", 4), seen("x", "float32", 4)]);
        assert_eq!(text, "plan.json: is no plan of this step: it lacks 'x'");
        let text = told((0..9).map(|n| seen(&format!("t{n}"), "float32", 4)).collect());
        assert!(text.ends_with("it lacks 't0', 't1', 't2' and 6 more"), "{text}");
        let text = told(vec![seen("a", "float32", 8), seen("b", "float16", 4)]);
        assert!(text.contains("'a' has 8 bytes of float32 (planned: 4 bytes of float32)"), "{text}");
        assert!(text.contains("'b' has 4 bytes of float16"), "{text}");
        assert_eq!(plan.arranged(vec![seen("x", "float32", 4)]), None);
    }

    #[test]
    fn what_cannot_be_fused_has_no_plan() {
        let plan = prescribed(&[&[("a", 4), ("b", 4)]]);
        let mut other = seen("b", "float32", 4);
        other.terms.scale[0] = 2f64.to_bits();
        assert_eq!(plan.arranged(vec![seen("a", "float32", 4), other]), None);
    }
}
