//! Bytes that move on HTTP/2 connections. A fragment is there only once all of it has come, which takes long on a slow link;
//! control messages share the connection, and are no progress.
use std::sync::Arc;
use std::sync::OnceLock;
use std::sync::atomic::{AtomicU64, Ordering};
use std::time::{Duration, Instant};

use paceline_transport::traffic::Traffic;
use parking_lot::Mutex;

/// Bytes in this time that cannot be control messages or HTTP/2's own frames alone.
const WINDOW: Duration = Duration::from_secs(1);
const MUCH: u64 = 4 << 10;

/// Of all connections of the gRPC thread.
#[derive(Default)]
pub struct Gauge {
    moved: AtomicU64,
    control: AtomicU64,
}

impl Gauge {
    /// A control message of this many bytes has been sent or received.
    pub fn control(&self, bytes: usize) {
        self.control.fetch_add(bytes as u64, Ordering::Relaxed);
    }

    /// Bytes moved so far.
    pub fn moved(&self) -> u64 {
        self.moved.load(Ordering::Relaxed)
    }
}

#[derive(Default)]
struct Window {
    since: Option<Instant>,
    bytes: u64,
    control: u64,
}

/// Of one peer.
#[derive(Default)]
pub struct Meter {
    traffic: OnceLock<Arc<Traffic>>,
    received: Mutex<Window>,
    sent: Mutex<Window>,
}

impl Meter {
    /// Where to count.
    pub fn count_in(&self, traffic: &Arc<Traffic>) {
        let _ = self.traffic.set(traffic.clone());
    }

    /// Bytes have been received.
    pub fn receive(&self, bytes: usize, gauge: &Gauge) {
        if let Some(traffic) = self.traffic.get() {
            traffic.receive(self.received.lock().add(bytes, gauge));
        }
    }

    /// Bytes have been sent.
    pub fn send(&self, bytes: usize, gauge: &Gauge) {
        if let Some(traffic) = self.traffic.get() {
            traffic.send(self.sent.lock().add(bytes, gauge));
        }
    }
}

impl Window {
    /// The bytes of the window, if there are so many of them; else 0.
    fn add(&mut self, bytes: usize, gauge: &Gauge) -> usize {
        gauge.moved.fetch_add(bytes as u64, Ordering::Relaxed);
        let control = gauge.control.load(Ordering::Relaxed);
        if self.since.is_none_or(|since| since.elapsed() > WINDOW) {
            *self = Window { since: Some(Instant::now()), bytes: 0, control };
        }
        self.bytes += bytes as u64;
        // Twice, for the frames around them.
        let many = self.bytes > MUCH + 2 * (control - self.control);
        if many { std::mem::take(self).bytes as usize } else { 0 }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn parts_of_fragments_are_counted_and_control_messages_are_not() {
        let (gauge, meter, traffic) = (Gauge::default(), Meter::default(), Arc::new(Traffic::default()));
        meter.receive(1 << 20, &gauge);
        meter.count_in(&traffic);
        for _ in 0..1000 {
            gauge.control(200);
            meter.receive(250, &gauge);
            meter.send(250, &gauge);
        }
        assert_eq!(traffic.read(), [0, 0]);
        meter.receive(1 << 20, &gauge);
        assert_eq!(traffic.read()[1], 0);
        assert!(traffic.read()[0] > 0);
    }
}
