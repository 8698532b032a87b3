//! A reference executor: runs a schedule on real vectors in memory, in a random legal interleaving, and counts
//! messages.
//!
//! It does what a runtime must do: asynchronous sends over first-in-first-out channels between each two roles, messages
//! matched by (bucket, lane, slot), buckets issued at random times. With bounded channels, a send waits for room, and
//! the receiver sets aside a message that it cannot use yet, so that it blocks none behind it.
use std::collections::{self, VecDeque};
use std::hash::{BuildHasherDefault, Hasher};

use paceline_schedule::{Bucket, Op, Peers, Piece, Schedule, Step, Volume};

/// A small seeded generator (SplitMix64, Steele et al. 2014), sufficient for the tests.
pub struct Random(pub u64);

impl Random {
    pub fn below(&mut self, n: u64) -> u64 {
        self.0 = self.0.wrapping_add(0x9e37_79b9_7f4a_7c15);
        let mut z = self.0;
        z = (z ^ (z >> 30)).wrapping_mul(0xbf58_476d_1ce4_e5b9);
        z = (z ^ (z >> 27)).wrapping_mul(0x94d0_49bb_1331_11eb);
        (z ^ (z >> 31)) % n
    }

    pub fn shuffle<T>(&mut self, items: &mut [T]) {
        for i in (1..items.len()).rev() {
            items.swap(i, self.below(i as u64 + 1) as usize);
        }
    }
}

/// For keys of small integers. The standard library's hash, which withstands attackers, took half the time of all tests.
#[derive(Default)]
struct Mixing(u64);

impl Hasher for Mixing {
    fn write(&mut self, bytes: &[u8]) {
        bytes.iter().for_each(|&byte| self.write_u32(u32::from(byte)));
    }

    fn write_u16(&mut self, word: u16) {
        self.write_u32(u32::from(word));
    }

    fn write_u32(&mut self, word: u32) {
        self.0 = (self.0.rotate_left(5) ^ u64::from(word)).wrapping_mul(0x9e37_79b9_7f4a_7c15);
    }

    fn finish(&self) -> u64 {
        self.0.rotate_left(26)
    }
}

type HashMap<K, V> = collections::HashMap<K, V, BuildHasherDefault<Mixing>>;

struct Message {
    bucket: u32,
    lane: u32,
    slot: u16,
    depth: u64,
    data: Vec<i64>,
}

/// Receiver, bucket, lane, slot.
type Key = (u32, u32, u32, u16);

#[derive(Default)]
struct Task {
    role: u32,
    bucket: u32,
    lane: u32,
    pc: u32,
    /// Receivers already served by the current send.
    sent: u32,
    /// Longest chain of messages behind its current data.
    depth: u64,
    at_barrier: bool,
    done: bool,
}

pub struct Outcome {
    /// By role, then bucket.
    pub buffers: Vec<Vec<Vec<i64>>>,
    pub volume: Volume,
}

pub struct Executor<'a> {
    schedule: &'a dyn Schedule,
    buckets: &'a [Bucket],
    capacity: usize,
    random: Random,
    buffers: Vec<Vec<Vec<i64>>>,
    channels: HashMap<(u32, u32), VecDeque<Message>>,
    /// Taken from a channel but not yet used: by receiver, bucket, lane, slot; with the sender.
    aside: HashMap<Key, Vec<(u32, Message)>>,
    volume: Volume,
    barriers_left: u64,
}

impl<'a> Executor<'a> {
    pub fn new(
        schedule: &'a dyn Schedule,
        buckets: &'a [Bucket],
        buffers: Vec<Vec<Vec<i64>>>,
        capacity: usize,
        seed: u64,
    ) -> Self {
        let roles = schedule.roles().total();
        let barriers_left = buckets.iter().flat_map(|b| (0..roles).map(|r| u64::from(schedule.barriers(b, r)))).sum();
        Executor {
            schedule,
            buckets,
            capacity,
            random: Random(seed),
            buffers,
            channels: HashMap::default(),
            aside: HashMap::default(),
            volume: Volume::default(),
            barriers_left,
        }
    }

    /// Runs to completion. Panics on a deadlock, a message without a receive, or a malformed step.
    pub fn run(mut self) -> Outcome {
        let roles = self.schedule.roles().total();
        // Every role issues its buckets in its own order and at its own times.
        let mut waiting: Vec<(u32, u32)> =
            (0..roles).flat_map(|role| self.buckets.iter().map(move |b| (role, b.id))).collect();
        self.random.shuffle(&mut waiting);
        let mut tasks: Vec<Task> = Vec::new();
        loop {
            let mut progress = false;
            for _ in 0..=self.random.below(1 + waiting.len() as u64 / 2) {
                let Some((role, bucket)) = waiting.pop() else { break };
                let lanes = self.schedule.lanes(&self.buckets[bucket as usize]);
                tasks.extend((0..lanes).map(|lane| Task { role, bucket, lane, ..Task::default() }));
                progress = true;
            }
            self.random.shuffle(&mut tasks);
            for task in &mut tasks {
                while !task.done && self.advance(task) {
                    progress = true;
                    if self.random.below(4) == 0 {
                        break;
                    }
                }
            }
            progress |= self.deliver();
            // No barrier opens before every role has issued every bucket, because `barriers_left` counts them all.
            if self.barriers_left == 0 {
                for task in tasks.iter_mut().filter(|task| task.at_barrier) {
                    (task.at_barrier, task.pc) = (false, task.pc + 1);
                    progress = true;
                }
            }
            tasks.retain(|task| !task.done);
            if tasks.is_empty() && waiting.is_empty() {
                break;
            }
            assert!(progress, "deadlock: {} lanes wait, {} barriers are missing", tasks.len(), self.barriers_left);
        }
        self.deliver();
        assert_eq!(self.channels.values().map(VecDeque::len).sum::<usize>(), 0, "a message was left in a channel");
        assert!(self.aside.values().all(Vec::is_empty), "a message was never received");
        Outcome { buffers: self.buffers, volume: self.volume }
    }

    /// Executes at most one step; returns whether anything happened.
    fn advance(&mut self, task: &mut Task) -> bool {
        if task.at_barrier {
            return false;
        }
        let bucket = &self.buckets[task.bucket as usize];
        match self.schedule.step(bucket, task.role, task.lane, task.pc) {
            Step::Done => {
                task.done = true;
                return true;
            }
            Step::Barrier => {
                assert!(self.barriers_left > 0, "more barriers than `barriers` promised");
                self.barriers_left -= 1;
                task.at_barrier = true;
                return true;
            }
            Step::Send { to, multicast, slot, piece } => {
                if !self.send(task, to, multicast, slot, piece) {
                    return false;
                }
            }
            Step::Recv { from, slot, op, piece } => {
                if !self.receive(task, from, slot, op, piece) {
                    return false;
                }
            }
        }
        task.pc += 1;
        true
    }

    fn slice(&mut self, role: u32, bucket: u32, piece: Piece) -> &mut [i64] {
        let (from, to) = (piece.off as usize, (piece.off + piece.len) as usize);
        &mut self.buffers[role as usize][bucket as usize][from..to]
    }

    fn send(&mut self, task: &mut Task, to: Peers, multicast: bool, slot: u16, piece: Piece) -> bool {
        assert!(slot < self.schedule.slots(), "slot {slot}");
        assert!(to.count > 0, "a send to nobody");
        while task.sent < to.count {
            let receiver = to.get(task.sent);
            assert!(receiver < self.schedule.roles().total() && receiver != task.role, "peer {receiver}");
            if self.channels.get(&(task.role, receiver)).is_some_and(|c| c.len() >= self.capacity) {
                return false;
            }
            let data = self.slice(task.role, task.bucket, piece).to_vec();
            if !multicast || task.sent == 0 {
                let roles = self.schedule.roles();
                self.volume.messages += 1;
                match task.role {
                    r if r < roles.workers => self.volume.worker_elements += piece.len,
                    r if r < roles.workers + roles.servers => self.volume.server_elements += piece.len,
                    _ => self.volume.switch_elements += piece.len,
                }
            }
            let depth = task.depth + 1;
            let message = Message { bucket: task.bucket, lane: task.lane, slot, depth, data };
            self.channels.entry((task.role, receiver)).or_default().push_back(message);
            task.sent += 1;
        }
        task.sent = 0;
        true
    }

    fn receive(&mut self, task: &mut Task, from: Peers, slot: u16, op: Op, piece: Piece) -> bool {
        assert!(from.count <= self.schedule.senders(), "{} senders", from.count);
        assert!(task.pc < 0x7f, "programs are shorter than 127 steps");
        assert!(slot < self.schedule.slots(), "slot {slot}");
        let key = (task.role, task.bucket, task.lane, slot);
        if self.aside.get(&key).is_none_or(|messages| messages.len() < from.count as usize) {
            return false;
        }
        let mut messages = self.aside.remove(&key).unwrap();
        assert_eq!(messages.len(), from.count as usize, "more messages than expected");
        for (k, sender) in from.iter().enumerate() {
            let at = messages.iter().position(|(s, _)| *s == sender).expect("a message from each of `from`");
            let (_, message) = messages.swap_remove(at);
            assert_eq!(message.data.len() as u64, piece.len, "a piece of another size");
            task.depth = task.depth.max(message.depth);
            self.volume.hops = self.volume.hops.max(message.depth);
            for (mine, theirs) in self.slice(task.role, task.bucket, piece).iter_mut().zip(message.data) {
                match op {
                    Op::Assign => *mine = theirs,
                    Op::AssignThenReduce if k == 0 => *mine = theirs,
                    Op::Reduce | Op::AssignThenReduce => *mine += theirs,
                }
            }
        }
        true
    }

    /// Moves some messages from the channels to their receivers; returns whether any moved.
    fn deliver(&mut self) -> bool {
        let mut keys: Vec<_> = self.channels.iter().filter(|(_, c)| !c.is_empty()).map(|(&key, _)| key).collect();
        keys.sort_unstable();
        self.random.shuffle(&mut keys);
        for &(from, to) in &keys {
            let channel = self.channels.get_mut(&(from, to)).unwrap();
            for _ in 0..=self.random.below(channel.len() as u64) {
                let Some(message) = channel.pop_front() else { break };
                let key = (to, message.bucket, message.lane, message.slot);
                self.aside.entry(key).or_default().push((from, message));
            }
        }
        !keys.is_empty()
    }
}
