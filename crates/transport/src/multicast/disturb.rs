//! For tests: loses, duplicates and reorders datagrams at a receiver, with a seeded random generator.
use std::collections::VecDeque;

use serde::Deserialize;

/// The probability of each disturbance, and the seed.
#[derive(Clone, Copy, Debug, Default, Deserialize)]
#[serde(deny_unknown_fields, default)]
pub struct Disturbance {
    /// A datagram is lost.
    pub lose: f64,
    /// It is delivered twice.
    pub repeat: f64,
    /// It is delivered after up to four later ones.
    pub reorder: f64,
    /// Seed of the random numbers.
    pub seed: u64,
}

/// The state of the disturbance.
pub(super) struct Disturber {
    how: Disturbance,
    state: u64,
    /// Delayed datagrams, and how many others must arrive before each.
    held: VecDeque<(u32, Vec<u8>)>,
}

impl Disturber {
    pub fn new(how: Disturbance, rank: u32) -> Disturber {
        Disturber { how, state: how.seed ^ u64::from(rank).wrapping_mul(0x9e37_79b9_7f4a_7c15), held: VecDeque::new() }
    }

    /// SplitMix64 (G. L. Steele, D. Lea, C. H. Flood, OOPSLA 2014).
    fn next(&mut self) -> u64 {
        self.state = self.state.wrapping_add(0x9e37_79b9_7f4a_7c15);
        let z = (self.state ^ self.state >> 30).wrapping_mul(0xbf58_476d_1ce4_e5b9);
        let z = (z ^ z >> 27).wrapping_mul(0x94d0_49bb_1331_11eb);
        z ^ z >> 31
    }

    fn happens(&mut self, rate: f64) -> bool {
        ((self.next() >> 11) as f64) < rate * (1u64 << 53) as f64
    }

    /// How often to deliver a datagram that has just arrived.
    pub fn times(&mut self, datagram: &[u8]) -> u32 {
        if self.happens(self.how.lose) {
            return 0;
        }
        if self.happens(self.how.reorder) {
            let after = 1 + (self.next() % 4) as u32;
            self.held.push_back((after, datagram.to_vec()));
            return 0;
        }
        1 + u32::from(self.happens(self.how.repeat))
    }

    /// Counts the arrival of another datagram.
    pub fn pass(&mut self) {
        self.held.iter_mut().for_each(|(after, _)| *after = after.saturating_sub(1));
    }

    /// A delayed datagram whose time has come. `quiet`: no other is arriving.
    pub fn release(&mut self, quiet: bool) -> Option<Vec<u8>> {
        let due = self.held.iter().position(|(after, _)| quiet || *after == 0)?;
        self.held.remove(due).map(|(_, datagram)| datagram)
    }
}
