//! A program as commands for streams: queues that a device works through in order, one for each rank.
//!
//! On a device that reaches the memory of all ranks, nothing is sent: whoever would receive a message reads it where it lies,
//! and one stream waits for another where memory would otherwise be read too early or overwritten too soon. So the host
//! submits everything at once and is not needed any more.
//!
//! All ranks compile the same program to the same commands, and so know what the others will signal. The commands of all
//! ranks have one common order, in which no command waits for a later one; a stream that follows it cannot get stuck.
use std::collections::{BTreeMap, BTreeSet, VecDeque};

use paceline_schedule::{Op, Peers, Piece, Step};

use crate::program::Program;

/// Most pieces of memory that one command reads or writes.
pub const MOST_EXTENTS: usize = 8;

/// Memory that commands read and write.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub enum Place {
    /// Of a role; elements are counted as in its program.
    Role(u32),
    /// Spare memory of a rank.
    Spare(u32),
}

/// Elements from here on; how many, the command says.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Extent {
    /// Whose memory.
    pub place: Place,
    /// The first element.
    pub off: u64,
}

/// A command of a stream.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Command {
    /// Goes on once this rank has given the stream's own rank so many signals since the operation began.
    Wait {
        /// The rank.
        rank: u32,
        /// How many.
        signals: u32,
    },
    /// Gives one more signal to each of these ranks.
    Signal {
        /// The ranks that wait for it.
        to: Vec<u32>,
    },
    /// Combines the elements of `from` in that order, and writes the result to all of `to`.
    Combine {
        /// At most [`MOST_EXTENTS`].
        to: Vec<Extent>,
        /// Likewise; a single one is copied.
        from: Vec<Extent>,
        /// Elements.
        len: u64,
        /// The result is final: a factor that the caller wants is applied here.
        complete: bool,
    },
}

/// The commands of all ranks.
#[derive(Debug, Default, PartialEq, Eq)]
pub struct InStream {
    /// By rank.
    pub commands: Vec<Vec<Command>>,
    /// Signals that each rank gives to each other.
    pub signals: Vec<Vec<u32>>,
    /// Elements of spare memory that each rank needs.
    pub spare: Vec<u64>,
}

/// A point in the stream of a rank.
type At = (u32, usize);

/// An event at a point of a stream.
struct Event {
    waits: Vec<At>,
    action: Option<Command>,
    /// The ranks that wait for it.
    awaited: BTreeSet<u32>,
    /// By rank: how many events are known to have happened before this one has.
    known: Vec<usize>,
}

/// A piece of memory, and who used it when.
struct Use {
    piece: Piece,
    at: At,
}

/// A message that has been sent and not received.
struct Message {
    from: Place,
    piece: Piece,
    /// Points after which it can be read.
    after: Vec<At>,
    /// It has been written to the receiver's memory.
    pushed: bool,
}

/// Lane, slot, sender, receiver.
type Key = (u32, u16, u32, u32);

#[derive(Clone, Copy, PartialEq, Eq)]
enum State {
    Running,
    Parked,
    Done,
}

struct Compiler<'a> {
    program: &'a dyn Program,
    ranks: u32,
    /// By rank: whose stream does its work.
    by: &'a [u32],
    events: Vec<Vec<Event>>,
    /// By rank: what its stream knows of the others.
    known: Vec<Vec<usize>>,
    /// By place.
    writes: BTreeMap<Place, Vec<Use>>,
    reads: BTreeMap<Place, Vec<Use>>,
    pending: BTreeMap<Key, VecDeque<Message>>,
    /// By lane and role.
    states: Vec<Vec<(u32, State)>>,
    spare: Vec<u64>,
}

/// The program of `roles` roles, of which rank r plays r, r + `ranks`, …, as commands for the streams of the ranks. `by`: the
/// rank whose stream does a rank's work, one of those that share its device: these take turns on it, and would only wait for each
/// other. `scaled`: elements of a rank's first role that are multiplied at the end.
///
/// `None`: the program does not end; every strategy's does.
#[must_use]
pub fn in_stream(
    program: &dyn Program,
    (roles, ranks): (u32, u32),
    by: &[u32],
    scaled: impl Fn(u32) -> Option<Piece>,
) -> Option<InStream> {
    let start = |rank: u32| {
        let mut known = vec![0; ranks as usize];
        known[rank as usize] = 1;
        known
    };
    let first = |rank| vec![Event { waits: Vec::new(), action: None, awaited: BTreeSet::new(), known: start(rank) }];
    let mut compiler = Compiler {
        program,
        ranks,
        by,
        events: (0..ranks).map(first).collect(),
        known: (0..ranks).map(start).collect(),
        writes: BTreeMap::new(),
        reads: BTreeMap::new(),
        pending: BTreeMap::new(),
        states: vec![vec![(0, State::Running); roles as usize]; program.lanes() as usize],
        spare: vec![0; ranks as usize],
    };
    compiler.run()?;
    for rank in 0..ranks {
        let Some(piece) = scaled(rank).filter(|piece| piece.len > 0) else { continue };
        let place = Place::Role(rank);
        let own = vec![Extent { place, off: piece.off }];
        let action = Command::Combine { to: own.clone(), from: own, len: piece.len, complete: true };
        let at = compiler.emit(by[rank as usize], compiler.before_write(place, piece), Some(action));
        compiler.write(place, piece, at);
    }
    Some(compiler.finish())
}

fn overlaps(uses: Option<&Vec<Use>>, piece: Piece) -> impl Iterator<Item = At> {
    uses.into_iter().flatten().filter(move |at| !at.piece.apart(piece)).map(|at| at.at)
}

impl Compiler<'_> {
    fn host(&self, role: u32) -> u32 {
        role % self.ranks
    }

    /// The rank whose stream does a role's work.
    fn stream(&self, role: u32) -> u32 {
        self.by[self.host(role) as usize]
    }

    /// The rank to which a place belongs.
    fn owner(&self, place: Place) -> u32 {
        match place {
            Place::Role(role) => self.host(role),
            Place::Spare(rank) => rank,
        }
    }

    fn run(&mut self) -> Option<()> {
        loop {
            let mut any = false;
            for lane in 0..self.states.len() as u32 {
                for role in 0..self.states[lane as usize].len() as u32 {
                    any |= self.advance(lane, role);
                }
            }
            let is = |state: State| self.states.iter().flatten().any(|&(_, other)| other == state);
            if any {
                continue;
            }
            if is(State::Parked) {
                // A barrier delays messages. What the data needs, the streams wait for anyhow.
                for (pc, state) in self.states.iter_mut().flatten().filter(|(_, state)| *state == State::Parked) {
                    *pc += 1;
                    *state = State::Running;
                }
            } else if !is(State::Running) {
                return Some(());
            } else if !self.set_aside() {
                return None;
            }
        }
    }

    /// Takes a role's steps up to its next receive, and that; returns whether it took any.
    fn advance(&mut self, lane: u32, role: u32) -> bool {
        let mut any = false;
        loop {
            let (pc, state) = self.states[lane as usize][role as usize];
            if state != State::Running {
                return any;
            }
            match self.program.step(role, lane, pc) {
                Step::Done => self.states[lane as usize][role as usize].1 = State::Done,
                Step::Barrier => self.states[lane as usize][role as usize].1 = State::Parked,
                Step::Send { to, slot, piece, .. } => {
                    self.send((lane, slot, role), to, piece);
                    self.states[lane as usize][role as usize].0 += 1;
                }
                Step::Recv { from, slot, op, piece } => {
                    if !self.receive((lane, slot, role), from, op, piece, pc) {
                        return any;
                    }
                    self.states[lane as usize][role as usize].0 += 1;
                    return true;
                }
            }
            any = true;
        }
    }

    fn send(&mut self, (lane, slot, role): (u32, u16, u32), to: Peers, piece: Piece) {
        let (own, rank) = (Place::Role(role), self.stream(role));
        let after = self.before_read(own, piece);
        // What was written to a receiver's memory when it was combined is there already.
        let open: Vec<u32> =
            to.iter().filter(|&receiver| !self.pending.contains_key(&(lane, slot, role, receiver))).collect();
        let mut targets: Vec<(u32, Piece)> = Vec::new();
        for &receiver in &open {
            let free = |into: &Piece| !self.is_awaited(Place::Role(receiver), *into);
            targets.extend(self.keeps((lane, slot), (role, receiver), piece).filter(free).map(|into| (receiver, into)));
        }
        for targets in targets.chunks(MOST_EXTENTS) {
            let mut waits = after.clone();
            for &(receiver, into) in targets {
                waits.extend(self.before_write(Place::Role(receiver), into));
            }
            let to = targets.iter().map(|&(receiver, into)| Extent { place: Place::Role(receiver), off: into.off });
            let from = vec![Extent { place: own, off: piece.off }];
            let action = Command::Combine { to: to.collect(), from, len: piece.len, complete: false };
            let at = self.emit(rank, waits, (piece.len > 0).then_some(action));
            self.reads.entry(own).or_default().push(Use { piece, at });
            for &(receiver, into) in targets {
                let message = Message { from: own, piece: into, after: vec![at], pushed: true };
                self.pending.entry((lane, slot, role, receiver)).or_default().push_back(message);
            }
        }
        for receiver in open {
            if targets.iter().all(|&(other, _)| other != receiver) {
                let message = Message { from: own, piece, after: after.clone(), pushed: false };
                self.pending.entry((lane, slot, role, receiver)).or_default().push_back(message);
            }
        }
    }

    /// Events that must precede a read of a place there.
    fn before_read(&self, place: Place, piece: Piece) -> Vec<At> {
        overlaps(self.writes.get(&place), piece).chain([(self.owner(place), 0)]).collect()
    }

    /// Whether somebody has still to read a message that lies there.
    fn is_awaited(&self, place: Place, piece: Piece) -> bool {
        let mut messages = self.pending.values().flatten().filter(|message| !message.pushed);
        messages.any(|message| message.from == place && !message.piece.apart(piece))
    }

    fn receive(&mut self, (lane, slot, role): (u32, u16, u32), from: Peers, op: Op, piece: Piece, pc: u32) -> bool {
        let (own, rank) = (Place::Role(role), self.stream(role));
        let keys: Vec<Key> = from.iter().map(|sender| (lane, slot, sender, role)).collect();
        let front = |key: &Key| self.pending.get(key).and_then(VecDeque::front);
        if !keys.iter().all(|key| front(key).is_some()) {
            return false;
        }
        let pushed = keys.iter().all(|key| front(key).is_some_and(|message| message.pushed));
        // It waits for readers of what it overwrites, but not for itself.
        let mut messages: Vec<Message> = Vec::with_capacity(keys.len());
        for key in &keys {
            messages.extend(self.pending.get_mut(key).and_then(VecDeque::pop_front));
        }
        if !pushed && self.is_awaited(own, piece) {
            for (key, message) in keys.iter().zip(messages) {
                self.pending.entry(*key).or_default().push_front(message);
            }
            return false;
        }
        self.pending.retain(|_, queue| !queue.is_empty());
        if pushed {
            // Its stream need not wait before it uses that memory itself.
            messages.iter().flat_map(|message| message.after.clone()).for_each(|at| self.write(own, piece, at));
            return true;
        }
        let complete = self.program.completes(role, lane, pc);
        let sources = messages.iter().map(|message| Extent { place: message.from, off: message.piece.off });
        let mut all: Vec<Extent> = Vec::with_capacity(messages.len() + 1);
        if op == Op::Reduce {
            all.push(Extent { place: own, off: piece.off });
        }
        all.extend(sources);
        let mut waits: Vec<At> = messages.iter().flat_map(|message| message.after.clone()).collect();
        waits.extend(self.before_write(own, piece));
        let mut to = vec![Extent { place: own, off: piece.off }];
        let targets = self.targets((lane, role), piece, pc);
        for &(receiver, _, into) in &targets {
            waits.extend(self.before_write(Place::Role(receiver), into));
            to.push(Extent { place: Place::Role(receiver), off: into.off });
        }
        // More than one command reads are combined in several.
        let mut first = true;
        let mut rest = &all[..];
        let mut at = (rank, 0);
        while !rest.is_empty() || first {
            let room = if first { MOST_EXTENTS } else { MOST_EXTENTS - 1 };
            let (now, later) = rest.split_at(room.min(rest.len()));
            let mut from = if first { Vec::new() } else { vec![Extent { place: own, off: piece.off }] };
            from.extend_from_slice(now);
            let last = later.is_empty();
            let to = if last { to.clone() } else { vec![to[0]] };
            let action = Command::Combine { to, from, len: piece.len, complete: complete && last };
            at = self.emit(rank, std::mem::take(&mut waits), (piece.len > 0).then_some(action));
            (first, rest) = (false, later);
        }
        for message in &messages {
            self.reads.entry(message.from).or_default().push(Use { piece: message.piece, at });
        }
        self.write(own, piece, at);
        for (receiver, slot, into) in targets {
            let message = Message { from: own, piece: into, after: vec![at], pushed: true };
            self.pending.entry((lane, slot, role, receiver)).or_default().push_back(message);
        }
        true
    }

    /// Receivers of a piece that is about to be combined whose memory it can be written to at once: its next sends go to
    /// them, they only keep it, and have nothing else to do with that memory before.
    fn targets(&self, (lane, role): (u32, u32), piece: Piece, pc: u32) -> Vec<(u32, u16, Piece)> {
        let mut found = Vec::new();
        let mut next = pc + 1;
        while let Step::Send { to, slot, piece: sent, .. } = self.program.step(role, lane, next) {
            if sent != piece {
                break;
            }
            for receiver in to.iter() {
                if found.len() + 1 == MOST_EXTENTS {
                    return found;
                }
                if let Some(into) = self.keeps((lane, slot), (role, receiver), piece)
                    && !self.is_awaited(Place::Role(receiver), into)
                {
                    found.push((receiver, slot, into));
                }
            }
            next += 1;
        }
        found
    }

    /// Where a receiver keeps a message that has not been sent yet, if it does nothing else there before.
    fn keeps(&self, (lane, slot): (u32, u16), (sender, receiver): (u32, u32), piece: Piece) -> Option<Piece> {
        let (mut pc, state) = self.states[lane as usize][receiver as usize];
        if state != State::Running || self.pending.contains_key(&(lane, slot, sender, receiver)) {
            return None;
        }
        let mut touched: Vec<Piece> = Vec::new();
        loop {
            match self.program.step(receiver, lane, pc) {
                Step::Recv { from, slot: of, op, piece: into } if of == slot && from.position(sender).is_some() => {
                    let only = from.count == 1 && op == Op::Assign && into.len == piece.len;
                    return (only && touched.iter().all(|other| other.apart(into))).then_some(into);
                }
                Step::Recv { piece, .. } | Step::Send { piece, .. } => touched.push(piece),
                Step::Barrier | Step::Done => return None,
            }
            pc += 1;
        }
    }

    /// Events that must precede a write of a place there: all that used it.
    fn before_write(&self, place: Place, piece: Piece) -> Vec<At> {
        let start = (self.owner(place), 0);
        let uses = overlaps(self.writes.get(&place), piece).chain(overlaps(self.reads.get(&place), piece));
        uses.chain([start]).collect()
    }

    /// Records a write; what it replaces is not needed any more.
    fn write(&mut self, place: Place, piece: Piece, at: At) {
        let inside =
            |used: &Use| used.piece.off >= piece.off && used.piece.off + used.piece.len <= piece.off + piece.len;
        for uses in [&mut self.writes, &mut self.reads] {
            uses.entry(place).or_default().retain(|used| !inside(used));
        }
        self.writes.entry(place).or_default().push(Use { piece, at });
    }

    /// Breaks a circle, in which ranks exchange a piece that both combine into: one message is copied aside.
    fn set_aside(&mut self) -> bool {
        let blocked = (0..self.states.len() as u32).find_map(|lane| {
            (0..self.states[lane as usize].len() as u32).find_map(|role| {
                let (pc, state) = self.states[lane as usize][role as usize];
                match self.program.step(role, lane, pc) {
                    Step::Recv { from, slot, piece, .. } if state == State::Running => {
                        let there = from.iter().all(|sender| self.pending.contains_key(&(lane, slot, sender, role)));
                        there.then_some((Place::Role(role), piece))
                    }
                    _ => None,
                }
            })
        });
        let Some((place, into)) = blocked else { return false };
        let owner = self.owner(place);
        let found = self.pending.iter().find_map(|(key, queue)| {
            let wanted = |message: &Message| message.from == place && !message.pushed && !message.piece.apart(into);
            queue.iter().position(wanted).map(|index| (*key, index))
        });
        let Some((key, index)) = found else { return false };
        let Some(message) = self.pending.get(&key).and_then(|queue| queue.get(index)) else { return false };
        let (piece, after) = (message.piece, message.after.clone());
        let off = self.spare[owner as usize];
        self.spare[owner as usize] += piece.len;
        let copy = Extent { place: Place::Spare(owner), off };
        let action = Command::Combine {
            to: vec![copy],
            from: vec![Extent { place, off: piece.off }],
            len: piece.len,
            complete: false,
        };
        let at = self.emit(self.by[owner as usize], after, (piece.len > 0).then_some(action));
        self.reads.entry(place).or_default().push(Use { piece, at });
        let aside = Piece { off, len: piece.len };
        self.writes.entry(copy.place).or_default().push(Use { piece: aside, at });
        if let Some(message) = self.pending.get_mut(&key).and_then(|queue| queue.get_mut(index)) {
            (message.from, message.piece, message.after) = (copy.place, aside, vec![at]);
        }
        true
    }

    fn emit(&mut self, rank: u32, mut waits: Vec<At>, action: Option<Command>) -> At {
        // The latest first: it may imply the others.
        waits.sort_unstable_by_key(|&(of, index)| (std::cmp::Reverse(index), of));
        let mut needed = Vec::new();
        for (of, index) in waits {
            if of == rank || self.known[rank as usize][of as usize] > index {
                continue;
            }
            self.events[of as usize][index].awaited.insert(rank);
            let learned = self.events[of as usize][index].known.clone();
            for (known, learned) in self.known[rank as usize].iter_mut().zip(learned) {
                *known = learned.max(*known);
            }
            needed.push((of, index));
        }
        let index = self.events[rank as usize].len();
        self.known[rank as usize][rank as usize] = index + 1;
        let known = self.known[rank as usize].clone();
        self.events[rank as usize].push(Event { waits: needed, action, awaited: BTreeSet::new(), known });
        (rank, index)
    }

    /// The end: nobody reads or writes a rank's memory any more once its stream has come there.
    fn finish(mut self) -> InStream {
        let mut last: Vec<Vec<At>> = vec![Vec::new(); self.ranks as usize];
        for (&place, uses) in self.reads.iter().chain(&self.writes) {
            last[self.owner(place) as usize].extend(uses.iter().map(|used| used.at));
        }
        for (rank, waits) in (0..).zip(last) {
            self.emit(rank, waits, None);
        }
        // By rank, event and rank that waits: the signals that have been given to it by then.
        let mut signals = vec![vec![0; self.ranks as usize]; self.ranks as usize];
        let mut numbers: Vec<Vec<Vec<u32>>> = Vec::with_capacity(self.events.len());
        for (events, given) in self.events.iter().zip(&mut signals) {
            let count = |event: &Event| {
                event.awaited.iter().for_each(|&waits| given[waits as usize] += 1);
                given.clone()
            };
            numbers.push(events.iter().map(count).collect());
        }
        let mut commands = Vec::with_capacity(self.events.len());
        for (own, events) in self.events.into_iter().enumerate() {
            let mut of_rank = Vec::new();
            for Event { waits, action, awaited, .. } in events {
                let wait = |(rank, index): At| Command::Wait { rank, signals: numbers[rank as usize][index][own] };
                of_rank.extend(waits.into_iter().map(wait));
                of_rank.extend(action);
                if !awaited.is_empty() {
                    of_rank.push(Command::Signal { to: awaited.into_iter().collect() });
                }
            }
            commands.push(of_rank);
        }
        InStream { commands, signals, spare: self.spare }
    }
}
