//! Random numbers for simulations, the same on every machine and in every release.
//!
//! SplitMix64 (G. L. Steele, D. Lea, C. H. Flood, "Fast splittable pseudorandom number generators", OOPSLA 2014). A
//! library's generator may change its stream with a release; a forecast must not change.

/// A seeded random stream.
pub(crate) struct Random(u64);

impl Random {
    pub fn new(seed: u64) -> Random {
        Random(seed)
    }

    pub fn next(&mut self) -> u64 {
        self.0 = self.0.wrapping_add(0x9e37_79b9_7f4a_7c15);
        let mut z = self.0;
        z = (z ^ (z >> 30)).wrapping_mul(0xbf58_476d_1ce4_e5b9);
        z = (z ^ (z >> 27)).wrapping_mul(0x94d0_49bb_1331_11eb);
        z ^ (z >> 31)
    }

    /// In (0, 1].
    pub fn unit(&mut self) -> f64 {
        ((self.next() >> 11) + 1) as f64 / (1u64 << 53) as f64
    }

    /// The factor of a log-normal distribution with median 1 (Box and Muller 1958).
    pub fn log_normal(&mut self, sigma: f64) -> f64 {
        let radius = (-2.0 * self.unit().ln()).sqrt();
        (sigma * radius * (std::f64::consts::TAU * self.unit()).cos()).exp()
    }

    /// A permutation of `0..n` (Fisher and Yates).
    pub fn permutation(&mut self, n: u32) -> Vec<u32> {
        let mut items: Vec<u32> = (0..n).collect();
        for i in (1..items.len()).rev() {
            items.swap(i, (self.next() % (i as u64 + 1)) as usize);
        }
        items
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn factors_have_median_one_and_the_given_spread() {
        let mut random = Random::new(1);
        let logs: Vec<f64> = (0..20_000).map(|_| random.log_normal(0.1).ln()).collect();
        let mean = logs.iter().sum::<f64>() / logs.len() as f64;
        let variance = logs.iter().map(|x| (x - mean).powi(2)).sum::<f64>() / logs.len() as f64;
        assert!(mean.abs() < 0.003 && (variance.sqrt() - 0.1).abs() < 0.003, "{mean} {variance}");
    }

    #[test]
    fn a_permutation_has_every_item() {
        let mut items = Random::new(3).permutation(100);
        assert_ne!(items, (0..100).collect::<Vec<_>>());
        items.sort_unstable();
        assert_eq!(items, (0..100).collect::<Vec<_>>());
    }
}
