//! The unexpected-message queue: fragments that arrived before their receive was ready, copied out of their channel so
//! that they do not block those behind them.
use std::collections::{BTreeMap, HashMap, VecDeque};

use paceline_transport::header::{Collective, FragmentHeader};

use super::Limits;

/// Identifies a message: group, operation, lane, slot, roles, and whether it is point-to-point. The messages of an
/// operation are neighbors in this order.
#[derive(Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Debug)]
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
    /// From this process itself.
    own: bool,
    payload: Vec<u8>,
}

/// All fragments that have been copied out.
pub(super) struct UnexpectedQueue {
    limits: Limits,
    /// Current limit on the queued bytes of streaming sums, per wire.
    streams: usize,
    messages: BTreeMap<Key, VecDeque<Fragment>>,
    /// Queued bytes by wire.
    held: HashMap<u32, usize>,
    /// Fragments queued so far.
    pub puts: u64,
}

impl UnexpectedQueue {
    pub fn new(limits: Limits) -> UnexpectedQueue {
        let (messages, held) = Default::default();
        UnexpectedQueue { limits, streams: limits.unexpected_streams, messages, held, puts: 0 }
    }

    pub fn is_empty(&self) -> bool {
        self.messages.is_empty()
    }

    /// Whether this wire has reached its limit of queued bytes.
    pub fn full(&self, wire: u32, streams: bool, force: bool) -> bool {
        let limit = match (force, streams) {
            (true, _) => usize::MAX,
            (false, true) => self.streams,
            (false, false) => self.limits.unexpected,
        };
        self.held.get(&wire).is_some_and(|&bytes| bytes > limit)
    }

    /// Raises the limit for streaming sums above what this wire has queued. It falls back when the queue is empty.
    pub fn widen(&mut self, wire: u32) {
        let held = self.held.get(&wire).copied().unwrap_or(0);
        paceline_os::reached!("executor: limit on streaming sums widened");
        self.streams = self.streams.max(held).saturating_add(self.limits.unexpected_streams);
    }

    pub fn put(&mut self, (wire, own): (u32, bool), header: &FragmentHeader, payload: Vec<u8>) {
        self.puts += 1;
        *self.held.entry(wire).or_default() += payload.len();
        self.messages.entry(Key::of(header)).or_default().push_back(Fragment { header: *header, wire, own, payload });
    }

    /// The header of the first queued fragment of a message.
    pub fn front(&self, key: &Key) -> Option<&FragmentHeader> {
        self.messages.get(key)?.front().map(|fragment| &fragment.header)
    }

    /// Takes at most `elements` elements, of `element` bytes each, from the first fragment of a message. What is left of the
    /// fragment becomes the first. Also returns whether this process had sent it to itself.
    pub fn pop(&mut self, key: &Key, elements: u64, element: usize) -> Option<(Vec<u8>, bool)> {
        let queue = self.messages.get_mut(key)?;
        let mut fragment = queue.pop_front()?;
        let bytes = usize::try_from(elements).unwrap_or(usize::MAX).saturating_mul(element);
        if bytes < fragment.payload.len() {
            paceline_os::reached!("executor: unexpected fragment taken in parts");
            let rest = fragment.payload.split_off(bytes);
            let header = FragmentHeader {
                offset: fragment.header.offset + elements,
                bytes: rest.len() as u32,
                ..fragment.header
            };
            queue.push_front(Fragment { header, payload: rest, ..fragment });
        } else if queue.is_empty() {
            self.messages.remove(key);
            self.narrow();
        }
        if let Some(held) = self.held.get_mut(&fragment.wire) {
            *held -= fragment.payload.len();
        }
        Some((fragment.payload, fragment.own))
    }

    /// First fragments of the messages of an operation that is neither a send nor a receive.
    pub fn of_operation(&self, group: u32, seq: u32) -> impl Iterator<Item = &FragmentHeader> {
        let first = Key { group, seq, lane: 0, slot: 0, from: 0, to: 0, point_to_point: false };
        let of = move |key: &Key| (key.group, key.seq) == (group, seq);
        let messages = self.messages.range(first..).take_while(move |(key, _)| of(key));
        messages.filter(|(key, _)| !key.point_to_point).filter_map(|(key, _)| self.front(key))
    }

    /// First fragments of the messages that could match a receive from any rank.
    pub fn point_to_point(&self, group: u32, to: u16, lane: u32) -> impl Iterator<Item = &FragmentHeader> {
        let wanted = move |key: &&Key| key.point_to_point && key.group == group && key.to == to && key.lane == lane;
        self.messages.keys().filter(wanted).filter_map(|key| self.front(key))
    }

    /// Drops all fragments of a group.
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
            self.streams = self.limits.unexpected_streams;
        }
    }
}
