//! Max-min fair rates by progressive filling (D. Bertsekas, R. Gallager, "Data Networks", 1992, section 6.5.2).
//!
//! All flows grow equally until a link is full; its flows are then fixed, and the others continue to grow. The solver
//! does not depend on time or messages.

/// Flows and the links that each of them crosses; scratch space is kept between calls.
#[derive(Default)]
pub(crate) struct Solver {
    left: Vec<f64>,
    users: Vec<u32>,
    touched: Vec<u32>,
    fixed: Vec<bool>,
}

impl Solver {
    /// Writes to `rates` the max-min fair rate of each flow, in the unit of `capacity` (by link).
    ///
    /// A flow without links gets an infinite rate.
    pub fn solve<'a>(
        &mut self,
        capacity: impl Fn(u32) -> f64,
        flows: impl Iterator<Item = &'a [u32]> + Clone,
        links: usize,
        rates: &mut Vec<f64>,
    ) {
        rates.clear();
        self.fixed.clear();
        self.left.resize(links, 0.0);
        self.users.resize(links, 0);
        for flow in flows.clone() {
            rates.push(f64::INFINITY);
            self.fixed.push(flow.is_empty());
            for &link in flow {
                let users = &mut self.users[link as usize];
                if *users == 0 {
                    self.touched.push(link);
                    self.left[link as usize] = capacity(link);
                }
                *users += 1;
            }
        }
        while let Some(bottleneck) = self.bottleneck() {
            let share = self.left[bottleneck as usize] / f64::from(self.users[bottleneck as usize]);
            for (i, flow) in flows.clone().enumerate() {
                if self.fixed[i] || !flow.contains(&bottleneck) {
                    continue;
                }
                self.fixed[i] = true;
                rates[i] = share;
                for &link in flow {
                    self.users[link as usize] -= 1;
                    self.left[link as usize] = (self.left[link as usize] - share).max(0.0);
                }
            }
        }
        self.touched.clear();
    }

    /// The link with the smallest share per flow; the first of several.
    fn bottleneck(&mut self) -> Option<u32> {
        self.touched.retain(|&link| self.users[link as usize] > 0);
        let share = |link: u32| self.left[link as usize] / f64::from(self.users[link as usize]);
        self.touched.iter().copied().min_by(|&a, &b| share(a).total_cmp(&share(b)))
    }
}

#[cfg(test)]
mod tests {
    use proptest::prelude::*;

    use super::*;

    fn solve(capacity: &[f64], flows: &[Vec<u32>]) -> Vec<f64> {
        let mut rates = Vec::new();
        let list = flows.iter().map(Vec::as_slice);
        Solver::default().solve(|link| capacity[link as usize], list, capacity.len(), &mut rates);
        rates
    }

    #[test]
    fn the_textbook_example() {
        // One long flow over both links, one short flow on each: the narrow link limits the long one.
        assert_eq!(solve(&[1.0, 4.0], &[vec![0, 1], vec![0], vec![1]]), [0.5, 0.5, 3.5]);
    }

    #[test]
    fn an_incast_shares_the_receiver() {
        assert_eq!(solve(&[8.0, 8.0, 8.0, 8.0], &[vec![0, 3], vec![1, 3], vec![2, 3]]), [8.0 / 3.0; 3]);
    }

    proptest! {
        /// Max-min fair: no link is overloaded, and every flow crosses a full link on which no other flow is faster.
        #[test]
        fn is_max_min_fair(
            capacity in prop::collection::vec(0.1f64..10.0, 1..8),
            flows in prop::collection::vec(prop::collection::btree_set(0u32..8, 1..4), 0..20),
        ) {
            let links = capacity.len() as u32;
            let flows: Vec<Vec<u32>> = flows
                .into_iter()
                .map(|f| f.into_iter().map(|l| l % links).collect::<std::collections::BTreeSet<_>>())
                .map(|f| f.into_iter().collect())
                .collect();
            let rates = solve(&capacity, &flows);
            let on = |link: u32| flows.iter().zip(&rates).filter(move |(f, _)| f.contains(&link)).map(|(_, r)| *r);
            for link in 0..links {
                prop_assert!(on(link).sum::<f64>() <= capacity[link as usize] * (1.0 + 1e-9));
            }
            for (flow, &rate) in flows.iter().zip(&rates) {
                let bottleneck = flow.iter().any(|&link| {
                    let full = on(link).sum::<f64>() >= capacity[link as usize] * (1.0 - 1e-9);
                    full && on(link).all(|other| other <= rate * (1.0 + 1e-9))
                });
                prop_assert!(bottleneck, "{flow:?} {rate} {rates:?}");
            }
        }
    }
}
