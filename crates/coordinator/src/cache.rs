//! The response cache: a slot for each tensor that was agreed on before, the same on all ranks, so that a bit can stand
//! for a request.
//!
//! All ranks insert, use and drop the same names in the same order, because they act only on decisions for all ranks,
//! never on anything that one rank alone knows.
use std::collections::BTreeMap;

use crate::request::Request;

#[derive(Clone, Debug, PartialEq, Eq, Hash)]
struct Entry {
    request: Request,
    used: u64,
}

/// The slots and their contents.
#[derive(Clone, Debug, PartialEq, Eq, Hash)]
pub struct Cache {
    capacity: usize,
    places: Vec<Option<Entry>>,
    by_name: BTreeMap<String, usize>,
    uses: u64,
}

impl Cache {
    /// A cache for this many tensors; 0: none is remembered.
    #[must_use]
    pub fn new(capacity: usize) -> Cache {
        Cache { capacity, places: Vec::new(), by_name: BTreeMap::new(), uses: 0 }
    }

    /// Number of slots, used or not.
    #[must_use]
    pub fn places(&self) -> usize {
        self.places.len()
    }

    /// The slot of a name.
    #[must_use]
    pub fn place(&self, name: &str) -> Option<usize> {
        self.by_name.get(name).copied()
    }

    /// The contents of a slot.
    #[must_use]
    pub fn at(&self, place: usize) -> Option<&Request> {
        self.places.get(place)?.as_ref().map(|entry| &entry.request)
    }

    /// Inserts a tensor. Returns the name of the least recently used one if that had to make room.
    pub fn insert(&mut self, request: &Request) -> Option<String> {
        if self.capacity == 0 || !request.own.is_empty() {
            return None;
        }
        self.uses += 1;
        let entry = Entry { request: request.clone(), used: self.uses };
        let known = self.place(&request.name).or_else(|| self.places.iter().position(Option::is_none));
        let place = match known {
            Some(place) => place,
            None if self.places.len() < self.capacity => {
                self.places.push(None);
                self.places.len() - 1
            }
            None => {
                let age = |&place: &usize| self.places[place].as_ref().map(|entry| entry.used);
                (0..self.places.len()).min_by_key(age).unwrap_or(0)
            }
        };
        let old = self.places[place].replace(entry).map(|old| old.request.name);
        if let Some(old) = &old {
            self.by_name.remove(old);
        }
        self.by_name.insert(request.name.clone(), place);
        old.filter(|old| *old != request.name)
    }

    /// Marks a tensor as used, after it was agreed on again.
    pub fn used(&mut self, place: usize) {
        self.uses += 1;
        if let Some(Some(entry)) = self.places.get_mut(place) {
            entry.used = self.uses;
        }
    }

    /// Drops a tensor.
    pub fn drop(&mut self, place: usize) {
        if let Some(entry) = self.places.get_mut(place).and_then(Option::take) {
            self.by_name.remove(&entry.request.name);
        }
    }
}
