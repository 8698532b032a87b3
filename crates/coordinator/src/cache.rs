//! Tensors that were agreed on before: a place for each, the same on all ranks, so that a bit says what a request said.
//!
//! All ranks insert, use and drop the same names in the same order, because they do so only by what was decided for all;
//! nothing that one rank alone knows changes it.
use std::collections::BTreeMap;

use crate::request::Request;

#[derive(Clone, Debug, PartialEq, Eq, Hash)]
struct Entry {
    request: Request,
    used: u64,
}

/// Places and what stands in them.
#[derive(Clone, Debug, PartialEq, Eq, Hash)]
pub struct Cache {
    capacity: usize,
    places: Vec<Option<Entry>>,
    by_name: BTreeMap<String, usize>,
    uses: u64,
}

impl Cache {
    /// For so many tensors; 0: none is remembered.
    #[must_use]
    pub fn new(capacity: usize) -> Cache {
        Cache { capacity, places: Vec::new(), by_name: BTreeMap::new(), uses: 0 }
    }

    /// Places, used or not.
    #[must_use]
    pub fn places(&self) -> usize {
        self.places.len()
    }

    /// Where a name stands.
    #[must_use]
    pub fn place(&self, name: &str) -> Option<usize> {
        self.by_name.get(name).copied()
    }

    /// What stands there.
    #[must_use]
    pub fn at(&self, place: usize) -> Option<&Request> {
        self.places.get(place)?.as_ref().map(|entry| &entry.request)
    }

    /// Remembers a tensor. The least recently used makes room: its name.
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

    /// A tensor was agreed on again.
    pub fn used(&mut self, place: usize) {
        self.uses += 1;
        if let Some(Some(entry)) = self.places.get_mut(place) {
            entry.used = self.uses;
        }
    }

    /// Forgets a tensor.
    pub fn drop(&mut self, place: usize) {
        if let Some(entry) = self.places.get_mut(place).and_then(Option::take) {
            self.by_name.remove(&entry.request.name);
        }
    }
}
