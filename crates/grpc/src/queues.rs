//! Connects the executor, which never blocks, with the gRPC thread: two bounded queues for each peer.
//!
//! No wake-up is lost: the side that is about to sleep first announces it, then checks the queues once more; the other
//! side changes the queues first, then checks whether to wake it.
use std::collections::VecDeque;
use std::os::fd::OwnedFd;
use std::sync::atomic::{AtomicBool, AtomicUsize, Ordering};
use std::task::{Poll, Waker};

use bytes::Bytes;
use parking_lot::Mutex;
use rustix::event::{EventfdFlags, eventfd};

use super::gauge::Meter;
use super::generated::Fragment;
use paceline_transport::header::FragmentHeader;

/// Most fragments waiting for the gRPC thread, and most waiting for the executor.
pub const QUEUE: usize = 8;

#[derive(Default)]
struct Outbox {
    queue: VecDeque<Fragment>,
    /// The executor was refused and has not been woken since.
    refused: bool,
    /// No more fragments will be sent.
    closed: bool,
    waker: Option<Waker>,
}

#[derive(Default)]
struct Inbox {
    queue: VecDeque<(FragmentHeader, Bytes)>,
    /// Why no more fragments will arrive.
    end: Option<String>,
    /// The receiver has been dropped.
    unwanted: bool,
    waker: Option<Waker>,
}

pub struct PeerQueues {
    outbox: Mutex<Outbox>,
    inbox: Mutex<Inbox>,
    /// Whether the inbox holds something, for a cheap poll.
    arrived: AtomicUsize,
    /// The executor sleeps until the eventfd is written.
    asleep: AtomicBool,
    eventfd: OwnedFd,
    pub meter: Meter,
}

fn wake(waker: &mut Option<Waker>) {
    if let Some(waker) = waker.take() {
        waker.wake();
    }
}

impl PeerQueues {
    pub fn new() -> std::io::Result<PeerQueues> {
        let eventfd = eventfd(0, EventfdFlags::CLOEXEC | EventfdFlags::NONBLOCK)?;
        let (outbox, inbox, arrived, asleep, meter) = Default::default();
        Ok(PeerQueues { outbox, inbox, arrived, asleep, eventfd, meter })
    }

    // The executor's side.

    /// Queues the fragment that `make` creates; `false` if there is no room.
    pub fn send(&self, make: impl FnOnce() -> Fragment) -> bool {
        let mut outbox = self.outbox.lock();
        // The inbox reports why it was closed.
        outbox.refused = outbox.closed || outbox.queue.len() >= QUEUE;
        if outbox.refused {
            return false;
        }
        outbox.queue.push_back(make());
        wake(&mut outbox.waker);
        true
    }

    /// Appends all received fragments to `into`. If there are none and none will follow, returns why.
    pub fn receive(&self, into: &mut VecDeque<(FragmentHeader, Bytes)>) -> Result<(), String> {
        if self.arrived.load(Ordering::Acquire) == 0 {
            return Ok(());
        }
        let mut inbox = self.inbox.lock();
        into.append(&mut inbox.queue);
        wake(&mut inbox.waker);
        match &inbox.end {
            // The reason stays there for later calls.
            Some(why) if into.is_empty() => Err(why.clone()),
            Some(_) => Ok(()),
            None => {
                self.arrived.store(0, Ordering::Release);
                Ok(())
            }
        }
    }

    /// Becomes readable when another attempt is worthwhile; `refused`: the executor waits for room.
    pub fn about_to_sleep(&self, refused: bool) -> &OwnedFd {
        self.asleep.store(true, Ordering::SeqCst);
        let room = refused && !self.outbox.lock().refused;
        if room || self.arrived.load(Ordering::SeqCst) > 0 {
            self.wake_executor();
        }
        &self.eventfd
    }

    pub fn awake(&self) {
        self.asleep.store(false, Ordering::SeqCst);
        let mut count = [0; 8];
        let _ = rustix::io::read(&self.eventfd, &mut count);
    }

    /// Closes both directions.
    pub fn close(&self) {
        let mut outbox = self.outbox.lock();
        outbox.closed = true;
        wake(&mut outbox.waker);
        drop(outbox);
        let mut inbox = self.inbox.lock();
        (inbox.unwanted, inbox.queue) = (true, VecDeque::new());
        wake(&mut inbox.waker);
    }

    // The gRPC thread's side.

    fn wake_executor(&self) {
        if self.asleep.swap(false, Ordering::SeqCst) {
            let _ = rustix::io::write(&self.eventfd, &1u64.to_ne_bytes());
        }
    }

    /// The next fragment to send; `None` if there will be no more.
    pub fn poll_outbox(&self, waker: &Waker) -> Poll<Option<Fragment>> {
        let mut outbox = self.outbox.lock();
        let Some(fragment) = outbox.queue.pop_front() else {
            outbox.waker = Some(waker.clone());
            return if outbox.closed { Poll::Ready(None) } else { Poll::Pending };
        };
        // Only at half, so that the executor is not woken for each fragment.
        if outbox.refused && outbox.queue.len() <= QUEUE / 2 {
            outbox.refused = false;
            drop(outbox);
            self.wake_executor();
        }
        Poll::Ready(Some(fragment))
    }

    /// Ready when there is room for a received fragment.
    pub fn poll_room(&self, waker: &Waker) -> Poll<()> {
        let mut inbox = self.inbox.lock();
        if inbox.queue.len() < QUEUE || inbox.unwanted {
            return Poll::Ready(());
        }
        inbox.waker = Some(waker.clone());
        Poll::Pending
    }

    pub fn arrive(&self, header: FragmentHeader, payload: Bytes) {
        let mut inbox = self.inbox.lock();
        if inbox.unwanted {
            return;
        }
        inbox.queue.push_back((header, payload));
        drop(inbox);
        self.arrived.store(1, Ordering::SeqCst);
        self.wake_executor();
    }

    /// No more fragments will arrive, so nothing needs to be sent either.
    pub fn end(&self, why: String) {
        self.inbox.lock().end.get_or_insert(why);
        self.arrived.store(1, Ordering::SeqCst);
        let mut outbox = self.outbox.lock();
        (outbox.closed, outbox.queue) = (true, VecDeque::new());
        wake(&mut outbox.waker);
        drop(outbox);
        self.wake_executor();
    }
}
