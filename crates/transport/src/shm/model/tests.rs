//! The models. Each runs in every order that loom finds to differ.
use loom::sync::atomic::Ordering;
use loom::thread;
use paceline_kernels::dtype::{Dtype, ReduceOp};
use paceline_os::sync::Arc;

use super::peer::PeerMemory;
use crate::channel::{Channel, Sink};
use crate::header::{Collective, FragmentHeader, Signature};
use crate::shm::{PeerWaker, Segment, ShmChannel, Waker};

fn header(number: u32) -> FragmentHeader {
    let signature = Signature {
        collective: Collective::SendRecv,
        dtype: Dtype::Uint8,
        op: ReduceOp::Sum,
        root: 0,
        count: 4,
        plan: 0,
    };
    FragmentHeader { group: 0, seq: number, lane: 0, slot: 0, from: 0, to: 1, bytes: 4, offset: 0, signature }
}

/// A rank: its end of the channel, and its waker.
struct Rank {
    channel: ShmChannel,
    waker: Waker,
}

impl Rank {
    /// Sleeps until there is something to do, as a driving thread does: flag, one more look, sleep.
    fn until<T>(&mut self, mut look: impl FnMut(&mut ShmChannel) -> Option<T>) -> T {
        loop {
            if let Some(found) = look(&mut self.channel) {
                return found;
            }
            self.waker.about_to_sleep();
            if let Some(found) = look(&mut self.channel) {
                self.waker.awake();
                return found;
            }
            self.waker.pipe().wait();
            self.waker.awake();
        }
    }

    fn send(&mut self, number: u32) {
        self.until(|channel| channel.send(&header(number), &number.to_le_bytes()).unwrap().then_some(()));
    }

    fn receive(&mut self) -> (u32, u32) {
        self.until(|channel| {
            let header = channel.front().unwrap()?;
            let mut payload = [0; 4];
            channel.take(Sink::Into(&mut payload)).unwrap().then(|| (header.seq, u32::from_le_bytes(payload)))
        })
    }
}

/// Two ranks of a host; the second reads the memory of the first if `zero_copy`.
fn ranks(zero_copy: bool) -> [Rank; 2] {
    let segments = [true, false].map(|first| Arc::new(Segment::modeled(2, zero_copy && first)));
    let wakers = segments.clone().map(|segment| Waker::new(segment).unwrap());
    let peers = [PeerWaker::of(&wakers[0]), PeerWaker::of(&wakers[1])];
    let [first, second] = wakers;
    let [to_first, to_second] = peers;
    let channel = |me: usize, peer: PeerWaker| {
        ShmChannel::new(segments[me].clone(), me as u32, segments[1 - me].clone(), 1 - me as u32, peer)
    };
    [Rank { channel: channel(0, to_second), waker: first }, Rank { channel: channel(1, to_first), waker: second }]
}

/// More fragments than the ring has slots, so that the sender sleeps for room and the receiver for data: all arrive, in
/// order and whole, and nobody sleeps for ever.
#[test]
fn fragments_arrive_in_order_and_every_sleeper_is_woken() {
    let mut model = loom::model::Builder::new();
    model.preemption_bound = Some(3);
    model.check(|| {
        let [mut sender, mut receiver] = ranks(false);
        let sends = thread::spawn(move || {
            (0..4).for_each(|number| sender.send(number));
            sender
        });
        for number in 0..4 {
            assert_eq!(receiver.receive(), (number, number));
        }
        drop(sends.join().unwrap());
    });
}

/// A zero-copy send is complete only after the receiver has copied it, and its sender, asleep, learns of that.
#[test]
fn memory_that_was_sent_is_free_only_when_it_was_read() {
    loom::model(|| {
        let [mut sender, mut receiver] = ranks(true);
        let sends = thread::spawn(move || {
            let payload = Box::new([0; 4]);
            let word = PeerMemory::word(&*payload, 1);
            let ticket = sender.until(|channel| {
                (channel.zero_copy_limit() > 0).then(|| channel.send_zero_copy(&header(0), &*payload).unwrap().unwrap())
            });
            sender.until(|channel| channel.is_complete(ticket).then_some(()));
            word.store(2, Ordering::Relaxed);
            PeerMemory::forget(&*payload);
            sender
        });
        assert_eq!(receiver.receive(), (0, 1));
        drop(sends.join().unwrap());
    });
}

/// The sender cancels at any moment and reuses its memory: the receiver gets what was sent, or nothing.
#[test]
fn what_is_canceled_is_never_delivered_with_other_contents() {
    loom::model(|| {
        let [mut sender, mut receiver] = ranks(true);
        let payload = Box::new([0; 4]);
        let word = PeerMemory::word(&*payload, 1);
        let ticket = sender.channel.send_zero_copy(&header(0), &*payload).unwrap().unwrap();
        let cancels = thread::spawn(move || {
            sender.channel.cancel(ticket);
            word.store(2, Ordering::Relaxed);
            sender
        });
        if receiver.channel.front().unwrap().is_some() {
            let mut bytes = [0; 4];
            if receiver.channel.take(Sink::Into(&mut bytes)).unwrap() {
                assert_eq!(u32::from_le_bytes(bytes), 1);
            }
        }
        drop(cancels.join().unwrap());
        PeerMemory::forget(&*payload);
    });
}

/// The sender leaves at any moment: what it sent by copy still arrives; what it only lent does not arrive changed.
#[test]
fn a_sender_that_leaves_takes_back_what_it_lent_and_nothing_else() {
    loom::model(|| {
        let [mut sender, mut receiver] = ranks(true);
        let payload = Box::new([0; 4]);
        let word = PeerMemory::word(&*payload, 7);
        assert!(sender.channel.send_zero_copy(&header(0), &*payload).unwrap().is_some());
        assert!(sender.channel.send(&header(1), &8u32.to_le_bytes()).unwrap());
        let leaves = thread::spawn(move || {
            drop(sender.channel);
            word.store(9, Ordering::Relaxed);
        });
        let mut received = Vec::new();
        for _ in 0..3 {
            if let Some(header) = receiver.channel.front().unwrap() {
                let mut bytes = [0; 4];
                if receiver.channel.take(Sink::Into(&mut bytes)).unwrap() {
                    received.push((header.seq, u32::from_le_bytes(bytes)));
                }
            }
        }
        leaves.join().unwrap();
        PeerMemory::forget(&*payload);
        assert!(received == [(0, 7), (1, 8)] || received == [(1, 8)], "{received:?}");
    });
}
