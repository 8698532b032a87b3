//! Fragments that came before anybody wants them, copied out of their channel so that they block none behind them.
use std::collections::{HashMap, VecDeque};

use super::Limits;
use paceline_transport::header::{Collective, FragmentHeader};

/// Where a message belongs: group, operation, lane, slot, roles, and whether it is a send or receive.
#[derive(Clone, Copy, PartialEq, Eq, Hash, Debug)]
pub(super) struct Key {
    pub group: u32,
    pub seq: u32,
    pub lane: u32,
    pub slot: u16,
    pub from: u16,
    pub to: u16,
    pub point_to_point: bool,
}

impl Key {
    pub fn of(header: &FragmentHeader) -> Key {
        let FragmentHeader { group, seq, lane, slot, from, to, .. } = *header;
        Key { group, seq, lane, slot, from, to, point_to_point: header.signature.collective == Collective::SendRecv }
    }
}

struct Fragment {
    header: FragmentHeader,
    wire: u32,
    payload: Vec<u8>,
}

/// All of them.
pub(super) struct Aside {
    limits: Limits,
    /// Bytes of a wire's streams above which it is left alone, at the moment.
    streams: usize,
    messages: HashMap<Key, VecDeque<Fragment>>,
    /// Bytes by wire.
    held: HashMap<u32, usize>,
    /// Fragments so far.
    pub puts: u64,
}

impl Aside {
    pub fn new(limits: Limits) -> Aside {
        let (messages, held) = Default::default();
        Aside { limits, streams: limits.aside_streams, messages, held, puts: 0 }
    }

    pub fn is_empty(&self) -> bool {
        self.messages.is_empty()
    }

    /// Whether so much of this wire is held that it should wait.
    pub fn full(&self, wire: u32, streams: bool, force: bool) -> bool {
        let limit = match (force, streams) {
            (true, _) => usize::MAX,
            (false, true) => self.streams,
            (false, false) => self.limits.aside,
        };
        self.held.get(&wire).is_some_and(|&bytes| bytes > limit)
    }

    /// More of what streams is put aside from now on than is held of this wire, until nothing is held.
    pub fn widen(&mut self, wire: u32) {
        let held = self.held.get(&wire).copied().unwrap_or(0);
        self.streams = self.streams.max(held).saturating_add(self.limits.aside_streams);
    }

    pub fn put(&mut self, wire: u32, header: &FragmentHeader, payload: Vec<u8>) {
        self.puts += 1;
        *self.held.entry(wire).or_default() += payload.len();
        self.messages.entry(Key::of(header)).or_default().push_back(Fragment { header: *header, wire, payload });
    }

    /// The first fragment of a message.
    pub fn front(&self, key: &Key) -> Option<&FragmentHeader> {
        self.messages.get(key)?.front().map(|fragment| &fragment.header)
    }

    /// The payload of a message's first fragment, or as much of it as these elements, of so many bytes each; the rest of
    /// it is then the first.
    pub fn pop(&mut self, key: &Key, elements: u64, element: usize) -> Option<Vec<u8>> {
        let queue = self.messages.get_mut(key)?;
        let mut fragment = queue.pop_front()?;
        let bytes = usize::try_from(elements).unwrap_or(usize::MAX).saturating_mul(element);
        if bytes < fragment.payload.len() {
            let rest = fragment.payload.split_off(bytes);
            let header = FragmentHeader {
                offset: fragment.header.offset + elements,
                bytes: rest.len() as u32,
                ..fragment.header
            };
            queue.push_front(Fragment { header, wire: fragment.wire, payload: rest });
        } else if queue.is_empty() {
            self.messages.remove(key);
            self.narrow();
        }
        if let Some(held) = self.held.get_mut(&fragment.wire) {
            *held -= fragment.payload.len();
        }
        Some(fragment.payload)
    }

    /// Sends and receives of a group that begin: who could satisfy a receive from anybody.
    pub fn point_to_point(&self, group: u32, to: u16, lane: u32) -> impl Iterator<Item = &FragmentHeader> {
        let wanted = move |key: &&Key| key.point_to_point && key.group == group && key.to == to && key.lane == lane;
        self.messages.keys().filter(wanted).filter_map(|key| self.front(key))
    }

    /// Forgets a group.
    pub fn forget(&mut self, group: u32) {
        let held = &mut self.held;
        self.messages.retain(|key, fragments| {
            if key.group == group {
                for fragment in fragments.iter() {
                    if let Some(held) = held.get_mut(&fragment.wire) {
                        *held -= fragment.payload.len();
                    }
                }
            }
            key.group != group
        });
        self.narrow();
    }

    fn narrow(&mut self) {
        if self.is_empty() {
            self.streams = self.limits.aside_streams;
        }
    }
}
