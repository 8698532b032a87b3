//! Descriptors, and waiting for what they refer to: poll(2) and epoll(7).
use std::collections::VecDeque;
use std::marker::PhantomData;
use std::mem::MaybeUninit;

use rustix::event::{PollFlags, Timespec};
use rustix::io::{Errno, Result};

use super::fd::{AsFd, BorrowedFd, OwnedFd};
use super::world::{Nanoseconds, Token, World, block, point, try_with, with};

/// The object that a descriptor refers to.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub(super) enum Kind {
    PipeReader(usize),
    PipeWriter(usize),
    Stream(usize),
    Listener(usize),
    Epoll(usize),
    Anonymous(usize),
    Udp(usize),
}

/// An open descriptor of a process.
pub(super) struct Descriptor {
    pub process: usize,
    pub kind: Kind,
}

/// Who is told that an object has changed.
#[derive(Default)]
pub(super) struct Watch {
    pub waiters: Vec<Token>,
    /// Sets, and the place in each.
    pub sets: Vec<(usize, usize)>,
}

struct Member {
    kind: Kind,
    descriptor: usize,
    data: u64,
    interest: epoll::EventFlags,
    /// It is in the list of what may be ready.
    listed: bool,
}

/// An epoll instance.
#[derive(Default)]
pub(super) struct EpollSet {
    members: Vec<Member>,
    listed: VecDeque<usize>,
    pub watch: Watch,
}

impl World {
    /// A new descriptor of the running process.
    pub(super) fn open(&mut self, kind: Kind) -> OwnedFd {
        let process = self.my_process();
        self.descriptors.push(Some(Descriptor { process, kind }));
        OwnedFd::new(self.descriptors.len() - 1)
    }

    pub(super) fn kind(&self, descriptor: usize) -> Option<Kind> {
        self.descriptors.get(descriptor)?.as_ref().map(|open| open.kind)
    }

    /// Closes a descriptor, and what it refers to if it was the last.
    pub(super) fn close(&mut self, descriptor: usize) {
        let Some(Descriptor { kind, .. }) = self.descriptors[descriptor].take() else { return };
        match kind {
            Kind::PipeReader(pipe) => self.pipes[pipe].readers -= 1,
            Kind::PipeWriter(pipe) => {
                self.pipes[pipe].writers -= 1;
                self.changed(Kind::PipeReader(pipe));
            }
            Kind::Stream(stream) => self.close_stream(stream),
            Kind::Listener(listener) => self.close_listener(listener),
            Kind::Udp(socket) => self.close_udp(socket),
            Kind::Epoll(_) | Kind::Anonymous(_) => {}
        }
    }

    fn watch(&mut self, kind: Kind) -> Option<&mut Watch> {
        Some(match kind {
            Kind::PipeReader(pipe) | Kind::PipeWriter(pipe) => &mut self.pipes[pipe].watch,
            Kind::Stream(stream) => &mut self.streams[stream].watch,
            Kind::Listener(listener) => &mut self.listeners[listener].watch,
            Kind::Epoll(set) => &mut self.epolls[set].watch,
            Kind::Udp(socket) => &mut self.udp[socket].watch,
            Kind::Anonymous(_) => return None,
        })
    }

    /// Tells who waits for this object, and the sets that it is in.
    pub(super) fn changed(&mut self, kind: Kind) {
        let Some(watch) = self.watch(kind) else { return };
        let waiters = std::mem::take(&mut watch.waiters);
        for token in waiters {
            self.wake(token);
        }
        let places = self.watch(kind).map_or(0, |watch| watch.sets.len());
        for place in 0..places {
            let Some((set, member)) = self.watch(kind).map(|watch| watch.sets[place]) else { return };
            let EpollSet { members, listed, .. } = &mut self.epolls[set];
            if !std::mem::replace(&mut members[member].listed, true) {
                listed.push_back(member);
            }
            self.changed(Kind::Epoll(set));
        }
    }

    /// Its state, as poll(2) reports it.
    fn state_of(&mut self, kind: Kind) -> PollFlags {
        match kind {
            Kind::PipeReader(pipe) => self.pipes[pipe].readable(),
            Kind::PipeWriter(_) => PollFlags::OUT,
            Kind::Stream(stream) => self.stream_state(stream),
            Kind::Listener(listener) => self.listener_state(listener),
            Kind::Udp(socket) => self.udp_state(socket),
            Kind::Anonymous(_) => PollFlags::empty(),
            Kind::Epoll(set) => {
                let any = (0..self.epolls[set].listed.len()).any(|at| {
                    let member = self.epolls[set].listed[at];
                    !self.event_of(set, member).is_empty()
                });
                if any { PollFlags::IN } else { PollFlags::empty() }
            }
        }
    }

    fn event_of(&mut self, set: usize, member: usize) -> epoll::EventFlags {
        use epoll::EventFlags;
        let Member { kind, descriptor, interest, .. } = self.epolls[set].members[member];
        if self.kind(descriptor) != Some(kind) {
            return EventFlags::empty();
        }
        let state = EventFlags::from_bits_retain(u32::from(self.state_of(kind).bits()));
        state & (interest | EventFlags::ERR | EventFlags::HUP)
    }
}

/// A descriptor to wait for, and for what.
#[derive(Clone, Debug)]
pub struct PollFd<'a> {
    descriptor: usize,
    events: PollFlags,
    found: PollFlags,
    borrow: PhantomData<&'a ()>,
}

impl<'a> PollFd<'a> {
    /// Waits for this descriptor.
    pub fn new<Fd: AsFd>(fd: &'a Fd, events: PollFlags) -> PollFd<'a> {
        PollFd::from_borrowed_fd(fd.as_fd(), events)
    }

    /// As `new`.
    #[must_use]
    pub fn from_borrowed_fd(fd: BorrowedFd<'a>, events: PollFlags) -> PollFd<'a> {
        PollFd { descriptor: fd.number(), events, found: PollFlags::empty(), borrow: PhantomData }
    }

    /// The events that have occurred.
    #[must_use]
    pub fn revents(&self) -> PollFlags {
        self.found
    }
}

fn nanoseconds(time: &Timespec) -> Nanoseconds {
    time.tv_sec.cast_unsigned().saturating_mul(1_000_000_000).saturating_add(time.tv_nsec.cast_unsigned())
}

/// Waits until one of these is ready, or the time is up.
///
/// # Errors
/// None.
pub fn poll(fds: &mut [PollFd<'_>], timeout: Option<&Timespec>) -> Result<usize> {
    point();
    let until = with(|world| {
        let now = world.call();
        timeout.map(|time| now.saturating_add(nanoseconds(time)))
    });
    let mut in_time = true;
    loop {
        let ready = with(|world| {
            for fd in fds.iter_mut() {
                let state = world.kind(fd.descriptor).map_or(PollFlags::NVAL, |kind| world.state_of(kind));
                fd.found = state & (fd.events | PollFlags::ERR | PollFlags::HUP | PollFlags::NVAL);
            }
            fds.iter().filter(|fd| !fd.found.is_empty()).count()
        });
        if ready > 0 || !in_time || until.is_some_and(|until| with(|world| world.now >= until)) {
            return Ok(ready);
        }
        in_time = block("poll", until, |world, token| {
            for fd in fds.iter() {
                if let Some(watch) = world.kind(fd.descriptor).and_then(|kind| world.watch(kind)) {
                    watch.waiters.push(token);
                }
            }
        });
    }
}

/// Sets of descriptors.
pub mod epoll {
    use super::*;
    pub use rustix::event::epoll::{CreateFlags, Event, EventData, EventFlags};

    /// Where events go: initialized or not.
    pub trait Buffer {
        /// The result.
        type Output;
        /// Puts at most as many as there is room for.
        fn fill(self, next: impl FnMut() -> Option<Event>) -> Self::Output;
    }

    impl<const N: usize> Buffer for &mut [Event; N] {
        type Output = usize;
        fn fill(self, mut next: impl FnMut() -> Option<Event>) -> usize {
            let mut count = 0;
            while count < N
                && let Some(event) = next()
            {
                self[count] = event;
                count += 1;
            }
            count
        }
    }

    impl<'a, const N: usize> Buffer for &'a mut [MaybeUninit<Event>; N] {
        type Output = (Vec<Event>, &'a [MaybeUninit<Event>]);
        fn fill(self, mut next: impl FnMut() -> Option<Event>) -> Self::Output {
            let mut events = Vec::new();
            while events.len() < N
                && let Some(event) = next()
            {
                events.push(event);
            }
            (events, &self[..0])
        }
    }

    /// An empty set.
    ///
    /// # Errors
    /// None.
    pub fn create(_flags: CreateFlags) -> Result<OwnedFd> {
        Ok(with(|world| {
            world.epolls.push(EpollSet::default());
            let set = world.epolls.len() - 1;
            world.open(Kind::Epoll(set))
        }))
    }

    fn set_of(world: &World, set: &impl AsFd) -> Result<usize> {
        match world.kind(set.as_fd().number()) {
            Some(Kind::Epoll(set)) => Ok(set),
            _ => Err(Errno::BADF),
        }
    }

    /// Adds a descriptor.
    ///
    /// # Errors
    /// It is not open.
    pub fn add(set: impl AsFd, source: impl AsFd, data: EventData, interest: EventFlags) -> Result<()> {
        let descriptor = source.as_fd().number();
        with(|world| {
            let set = set_of(world, &set)?;
            let kind = world.kind(descriptor).ok_or(Errno::BADF)?;
            let EpollSet { members, listed, .. } = &mut world.epolls[set];
            members.push(Member { kind, descriptor, data: data.u64(), interest, listed: true });
            let member = members.len() - 1;
            listed.push_back(member);
            if let Some(watch) = world.watch(kind) {
                watch.sets.push((set, member));
            }
            world.changed(Kind::Epoll(set));
            Ok(())
        })
    }

    /// The events of a set; never waits.
    ///
    /// # Errors
    /// It is not open.
    pub fn wait<B: Buffer>(set: impl AsFd, buffer: B, _timeout: Option<&Timespec>) -> Result<B::Output> {
        point();
        with(|world| {
            world.call();
            let set = set_of(world, &set)?;
            let mut left = world.epolls[set].listed.len();
            Ok(buffer.fill(|| {
                while left > 0 {
                    left -= 1;
                    let member = world.epolls[set].listed.pop_front()?;
                    let flags = world.event_of(set, member);
                    let EpollSet { members, listed, .. } = &mut world.epolls[set];
                    let one = &mut members[member];
                    if flags.is_empty() {
                        one.listed = false;
                        continue;
                    }
                    // Level-triggered ones are reported as long as they last.
                    one.listed = !one.interest.contains(EventFlags::ET);
                    if one.listed {
                        listed.push_back(member);
                    }
                    return Some(Event { flags, data: EventData::new_u64(one.data) });
                }
                None
            }))
        })
    }
}

/// Closes a descriptor whose owner is dropped.
pub(super) fn drop_descriptor(descriptor: usize) {
    try_with(|world| world.close(descriptor));
}
