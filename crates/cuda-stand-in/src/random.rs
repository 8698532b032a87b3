//! Numbers that decide in which order things happen.

/// xorshift64*.
pub struct Random(u64);

impl Random {
    /// `CUDA_STAND_IN_SEED` says which numbers; each stream and launch has others, as has each rank, which are therefore not in
    /// step.
    pub fn new(number: u64) -> Random {
        let of = |name| std::env::var(name).ok().and_then(|text| text.parse::<u64>().ok());
        let seed = of("CUDA_STAND_IN_SEED").unwrap_or(1);
        let rank = of("PACELINE_RANK").or_else(|| of("RANK")).unwrap_or(0);
        let mixed = number.wrapping_mul(0x9e37_79b9_7f4a_7c15) ^ rank.wrapping_mul(0xd1b5_4a32_d192_ed03);
        Random((seed ^ mixed) | 1)
    }

    pub fn next(&mut self) -> u64 {
        self.0 ^= self.0 >> 12;
        self.0 ^= self.0 << 25;
        self.0 ^= self.0 >> 27;
        self.0.wrapping_mul(0x2545_f491_4f6c_dd1d) >> 16
    }

    pub fn shuffle<T>(&mut self, items: &mut [T]) {
        for last in (1..items.len()).rev() {
            items.swap(last, (self.next() % (last as u64 + 1)) as usize);
        }
    }
}
