//! Fragments that came before anybody wants them, copied out of their channel so that they block none behind them.
use std::collections::{HashMap, VecDeque};

use paceline_transport::tag::{Call, Tag};

/// Bytes of a rank above which it is left alone unless nothing else helps.
const LIMIT: usize = 64 << 20;
/// The same of what streams through this process: it need not come faster than it goes on.
const LIMIT_OF_STREAMS: usize = 4 << 20;

/// Where a message belongs: group, operation, lane, slot, roles, and whether it is a transfer.
#[derive(Clone, Copy, PartialEq, Eq, Hash, Debug)]
pub(super) struct Key {
    pub group: u32,
    pub seq: u32,
    pub lane: u32,
    pub slot: u16,
    pub from: u16,
    pub to: u16,
    pub transfer: bool,
}

impl Key {
    pub fn of(tag: &Tag) -> Key {
        let Tag { group, seq, lane, slot, from, to, .. } = *tag;
        Key { group, seq, lane, slot, from, to, transfer: tag.signature.call == Call::Transfer }
    }
}

struct Fragment {
    tag: Tag,
    rank: u32,
    payload: Vec<u8>,
}

/// All of them.
#[derive(Default)]
pub(super) struct Aside {
    messages: HashMap<Key, VecDeque<Fragment>>,
    held: HashMap<u32, usize>,
    /// Fragments so far.
    pub puts: u64,
}

impl Aside {
    pub fn is_empty(&self) -> bool {
        self.messages.is_empty()
    }

    /// Whether so much of this rank is held that it should wait.
    pub fn full(&self, rank: u32, streams: bool, force: bool) -> bool {
        let limit = match (force, streams) {
            (true, _) => usize::MAX,
            (false, true) => LIMIT_OF_STREAMS,
            (false, false) => LIMIT,
        };
        self.held.get(&rank).is_some_and(|&bytes| bytes > limit)
    }

    pub fn put(&mut self, rank: u32, tag: &Tag, payload: Vec<u8>) {
        self.puts += 1;
        *self.held.entry(rank).or_default() += payload.len();
        self.messages.entry(Key::of(tag)).or_default().push_back(Fragment { tag: *tag, rank, payload });
    }

    /// The first fragment of a message.
    pub fn front(&self, key: &Key) -> Option<&Tag> {
        self.messages.get(key)?.front().map(|fragment| &fragment.tag)
    }

    pub fn pop(&mut self, key: &Key) -> Option<Vec<u8>> {
        let queue = self.messages.get_mut(key)?;
        let fragment = queue.pop_front()?;
        if queue.is_empty() {
            self.messages.remove(key);
        }
        if let Some(held) = self.held.get_mut(&fragment.rank) {
            *held -= fragment.payload.len();
        }
        Some(fragment.payload)
    }

    /// Transfers of a group that begin: who could satisfy a receive from anybody.
    pub fn transfers(&self, group: u32, to: u16, lane: u32) -> impl Iterator<Item = &Tag> {
        let wanted = move |key: &&Key| key.transfer && key.group == group && key.to == to && key.lane == lane;
        self.messages.keys().filter(wanted).filter_map(|key| self.front(key))
    }

    /// Forgets a group.
    pub fn forget(&mut self, group: u32) {
        let held = &mut self.held;
        self.messages.retain(|key, fragments| {
            if key.group == group {
                for fragment in fragments.iter() {
                    if let Some(held) = held.get_mut(&fragment.rank) {
                        *held -= fragment.payload.len();
                    }
                }
            }
            key.group != group
        });
    }
}
