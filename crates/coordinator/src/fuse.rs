//! Fuses tensors into buckets, in their order.
use std::collections::BTreeMap;

use crate::event::{Agreed, AgreedBucket};

/// Puts compatible neighbors into one bucket, up to `threshold` bytes. Requests that were submitted together stay
/// together, at the position of the first, whatever their size.
#[must_use]
pub fn fuse(agreed: Vec<Agreed>, threshold: u64) -> Vec<AgreedBucket> {
    let mut buckets: Vec<AgreedBucket> = Vec::new();
    for tensor in in_order(agreed) {
        let bytes = tensor.request.terms.bytes;
        let fits = |bucket: &&mut AgreedBucket| {
            let Some(last) = bucket.tensors.last() else { return false };
            let together = tensor.request.together.is_some() && tensor.request.together == last.request.together;
            last.request.terms.fuses_with(&tensor.request.terms) && (together || bucket.bytes + bytes <= threshold)
        };
        match buckets.last_mut().filter(fits) {
            Some(bucket) => {
                bucket.bytes += bytes;
                bucket.tensors.push(tensor);
            }
            None => buckets.push(AgreedBucket { bytes, tensors: vec![tensor] }),
        }
    }
    buckets
}

/// Places each group at the position of its first member.
fn in_order(agreed: Vec<Agreed>) -> Vec<Agreed> {
    let mut first = BTreeMap::new();
    for (index, tensor) in agreed.iter().enumerate() {
        if let Some(group) = &tensor.request.together {
            first.entry(group.clone()).or_insert(index);
        }
    }
    let place = |(index, tensor): &(usize, Agreed)| {
        tensor.request.together.as_ref().and_then(|group| first.get(group)).copied().unwrap_or(*index)
    };
    let mut numbered: Vec<_> = agreed.into_iter().enumerate().collect();
    numbered.sort_by_key(place);
    numbered.into_iter().map(|(_, tensor)| tensor).collect()
}
