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

/// The expected value of the `place`-th smallest (from 0) of `n` draws of a standard normal distribution, by Blom's
/// formula (G. Blom, "Statistical estimates and transformed beta-variables", 1958).
pub(crate) fn normal_order_statistic(place: u32, n: u32) -> f64 {
    normal_quantile((f64::from(place) + 1.0 - 0.375) / (f64::from(n) + 0.25))
}

/// The quantile function of the standard normal distribution, to 1.2e-9 (P. J. Acklam's rational approximation).
fn normal_quantile(p: f64) -> f64 {
    const A: [f64; 6] = [
        -3.969_683_028_665_376e1,
        2.209_460_984_245_205e2,
        -2.759_285_104_469_687e2,
        1.383_577_518_672_69e2,
        -3.066_479_806_614_716e1,
        2.506_628_277_459_239,
    ];
    const B: [f64; 5] = [
        -5.447_609_879_822_406e1,
        1.615_858_368_580_409e2,
        -1.556_989_798_598_866e2,
        6.680_131_188_771_972e1,
        -1.328_068_155_288_572e1,
    ];
    const C: [f64; 6] = [
        -7.784_894_002_430_293e-3,
        -3.223_964_580_411_365e-1,
        -2.400_758_277_161_838,
        -2.549_732_539_343_734,
        4.374_664_141_464_968,
        2.938_163_982_698_783,
    ];
    const D: [f64; 4] =
        [7.784_695_709_041_462e-3, 3.224_671_290_700_398e-1, 2.445_134_137_142_996, 3.754_408_661_907_416];
    const TAIL: f64 = 0.02425;
    let polynomial = |coefficients: &[f64], x: f64| coefficients.iter().fold(0.0, |sum, c| sum * x + c);
    if p > 0.5 {
        return -normal_quantile(1.0 - p);
    }
    if p < TAIL {
        let q = (-2.0 * p.ln()).sqrt();
        return polynomial(&C, q) / (polynomial(&D, q) * q + 1.0);
    }
    let q = p - 0.5;
    polynomial(&A, q * q) * q / (polynomial(&B, q * q) * q * q + 1.0)
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
    fn order_statistics_are_those_of_the_normal_distribution() {
        // H. L. Harter, "Expected values of normal order statistics", 1961: largest of 2, 10 and 100.
        for (n, largest) in [(2, 0.56419), (10, 1.53875), (100, 2.50759)] {
            let found = normal_order_statistic(n - 1, n);
            assert!((found - largest).abs() < 0.03, "{n}: {found}");
            assert!((found + normal_order_statistic(0, n)).abs() < 1e-9);
        }
        for (p, x) in [(0.001, -3.090_232_306), (0.2, -0.841_621_234), (0.975, 1.959_963_985)] {
            assert!((normal_quantile(p) - x).abs() < 1e-8, "{p}");
        }
    }

    #[test]
    fn a_permutation_has_every_item() {
        let mut items = Random::new(3).permutation(100);
        assert_ne!(items, (0..100).collect::<Vec<_>>());
        items.sort_unstable();
        assert_eq!(items, (0..100).collect::<Vec<_>>());
    }
}
