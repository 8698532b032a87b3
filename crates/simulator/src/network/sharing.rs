//! Max-min fair rates that follow changes: only what a change reaches is solved again.
//!
//! Flows over the same links are alike and form one *path*. A path keeps its rate as long as it has a *bottleneck*: a
//! link that is full and on which no other path is faster. Rates are max-min fair exactly when every path has one (D.
//! Bertsekas, R. Gallager, "Data Networks", 1992, section 6.5.2), so a change is solved for the paths that lost theirs,
//! all others keep their rates, and whoever loses its bottleneck by the result joins and is solved again. Where the fair
//! share of a link stays the same, the change ends there. SimGrid's lazy updates solve the whole connected component
//! instead (H. Casanova et al., "Versatile, scalable, and accurate simulation of distributed applications and
//! platforms", JPDC 74, 2014, section 4).
use std::cmp::Reverse;
use std::collections::{BinaryHeap, HashMap};

/// Rates that differ by less, relatively, are the same.
const SAME: f64 = 1e-10;

/// Relative rounding error of equal shares: far less than [`SAME`].
const ROUNDING: f64 = 1e-13;

/// After so many rounds, all neighbors join in each.
const PATIENCE: u32 = 4;

/// A link that a path crosses, and the path's place among the link's users.
#[derive(Clone, Copy)]
struct Hop {
    link: u32,
    place: u32,
}

struct Path {
    /// Range of `hops`.
    first: u32,
    end: u32,
    flows: u32,
    /// Flows when rates were last solved; 0: not among the users of its links.
    solved: u32,
    /// Of each flow.
    rate: f64,
    bottleneck: u32,
    /// The solution in which it took part last.
    joined: u64,
    touched: bool,
    fixed: bool,
}

impl Path {
    fn range(&self) -> std::ops::Range<usize> {
        self.first as usize..self.end as usize
    }
}

#[derive(Default)]
struct Shared {
    capacity: f64,
    /// Paths with flows; and which of the path's hops this is.
    users: Vec<(u32, u32)>,
    /// The solution in which it was looked at last.
    seen: u64,
    /// Capacity and flows that are not yet fixed in this solution.
    left: f64,
    open: u32,
}

impl Shared {
    fn share(&self) -> f64 {
        self.left / f64::from(self.open)
    }
}

/// A share and its link, ordered for a heap.
#[derive(PartialEq)]
struct Share(f64, u32);

impl Eq for Share {}

impl PartialOrd for Share {
    fn partial_cmp(&self, other: &Self) -> Option<std::cmp::Ordering> {
        Some(self.cmp(other))
    }
}

impl Ord for Share {
    fn cmp(&self, other: &Self) -> std::cmp::Ordering {
        self.0.total_cmp(&other.0).then(self.1.cmp(&other.1))
    }
}

/// Flows share links; it knows neither time nor bytes.
pub(crate) struct Sharing {
    links: Vec<Shared>,
    paths: Vec<Path>,
    hops: Vec<Hop>,
    known: HashMap<Box<[u32]>, u32>,
    /// Paths whose number of flows may have changed since the last solution.
    touched: Vec<u32>,
    /// Number of solutions so far.
    solution: u64,
    /// Paths of this solution, and their links.
    joined: Vec<u32>,
    region: Vec<u32>,
    heap: BinaryHeap<Reverse<Share>>,
}

impl Sharing {
    /// Links of these capacities, without flows.
    pub fn new(capacities: impl Iterator<Item = f64>) -> Sharing {
        Sharing {
            links: capacities.map(|capacity| Shared { capacity, ..Shared::default() }).collect(),
            paths: Vec::new(),
            hops: Vec::new(),
            known: HashMap::new(),
            touched: Vec::new(),
            solution: 0,
            joined: Vec::new(),
            region: Vec::new(),
            heap: BinaryHeap::new(),
        }
    }

    /// The path over these links, which differ from each other; at least one.
    pub fn path(&mut self, links: &[u32]) -> u32 {
        if let Some(&path) = self.known.get(links) {
            return path;
        }
        let path = self.paths.len() as u32;
        let first = self.hops.len() as u32;
        self.hops.extend(links.iter().map(|&link| Hop { link, place: 0 }));
        self.paths.push(Path {
            first,
            end: self.hops.len() as u32,
            flows: 0,
            solved: 0,
            rate: 0.0,
            bottleneck: links[0],
            joined: 0,
            touched: false,
            fixed: false,
        });
        self.known.insert(links.into(), path);
        path
    }

    /// Links of a path.
    pub fn links(&self, path: u32) -> impl Iterator<Item = u32> + use<'_> {
        self.hops[self.paths[path as usize].range()].iter().map(|hop| hop.link)
    }

    /// One more flow on a path; rates follow with [`Self::resolve`].
    pub fn add(&mut self, path: u32) {
        self.paths[path as usize].flows += 1;
        self.touch(path);
    }

    /// One flow fewer.
    pub fn remove(&mut self, path: u32) {
        self.paths[path as usize].flows -= 1;
        self.touch(path);
    }

    fn touch(&mut self, path: u32) {
        if !std::mem::replace(&mut self.paths[path as usize].touched, true) {
            self.touched.push(path);
        }
    }

    /// Rate of each flow on a path, as of the last solution.
    pub fn rate(&self, path: u32) -> f64 {
        self.paths[path as usize].rate
    }

    /// The link that limits a path; of several, the last one on it.
    pub fn bottleneck(&self, path: u32) -> u32 {
        self.paths[path as usize].bottleneck
    }

    /// Solves again what has changed. Returns the paths whose rates may be different.
    pub fn resolve(&mut self) -> &[u32] {
        self.solution += 1;
        self.joined.clear();
        self.region.clear();
        let touched = std::mem::take(&mut self.touched);
        for &path in &touched {
            let p = &mut self.paths[path as usize];
            p.touched = false;
            let (before, now) = (p.solved, p.flows);
            p.solved = now;
            if before == now {
                continue;
            }
            if before == 0 {
                self.attach(path);
            }
            if now == 0 {
                self.detach(path);
            } else {
                self.join(path);
            }
            for at in self.paths[path as usize].range() {
                self.look_at(self.hops[at].link);
            }
        }
        self.touched = touched;
        self.touched.clear();
        // A link that has gained or lost flows has another share, so whoever it limits has another rate.
        for at in 0..self.region.len() {
            let link = self.region[at];
            self.join_users(link, |path| path.bottleneck == link);
        }
        let mut rounds = 0;
        while !self.joined.is_empty() {
            self.solve();
            let before = self.joined.len();
            for at in 0..self.region.len() {
                let link = self.region[at];
                if rounds < PATIENCE {
                    self.join_those_without_bottleneck(link);
                } else if self.has_lost(link) {
                    self.join_users(link, |_| true);
                }
            }
            if self.joined.len() == before {
                break;
            }
            rounds += 1;
        }
        &self.joined
    }

    fn attach(&mut self, path: u32) {
        let range = self.paths[path as usize].range();
        for (number, at) in (0..).zip(range) {
            let users = &mut self.links[self.hops[at].link as usize].users;
            self.hops[at].place = users.len() as u32;
            users.push((path, number));
        }
    }

    fn detach(&mut self, path: u32) {
        for at in self.paths[path as usize].range() {
            let Hop { link, place } = self.hops[at];
            let users = &mut self.links[link as usize].users;
            users.swap_remove(place as usize);
            if let Some(&(moved, number)) = users.get(place as usize) {
                let first = self.paths[moved as usize].first;
                self.hops[(first + number) as usize].place = place;
            }
        }
    }

    /// The path's rate is solved again.
    fn join(&mut self, path: u32) {
        let p = &mut self.paths[path as usize];
        if std::mem::replace(&mut p.joined, self.solution) != self.solution {
            self.joined.push(path);
            for at in self.paths[path as usize].range() {
                self.look_at(self.hops[at].link);
            }
        }
    }

    fn look_at(&mut self, link: u32) {
        if std::mem::replace(&mut self.links[link as usize].seen, self.solution) != self.solution {
            self.region.push(link);
        }
    }

    fn join_users(&mut self, link: u32, which: impl Fn(&Path) -> bool) {
        for user in 0..self.links[link as usize].users.len() {
            let (path, _) = self.links[link as usize].users[user];
            if which(&self.paths[path as usize]) {
                self.join(path);
            }
        }
    }

    /// The smallest rate that the link claims to limit, if that claim is wrong: the link is not full, or others on it
    /// are faster.
    fn wrong_level(&self, link: u32) -> Option<f64> {
        let shared = &self.links[link as usize];
        let (mut total, mut fastest, mut level) = (0.0, 0.0f64, f64::INFINITY);
        for &(path, _) in &shared.users {
            let p = &self.paths[path as usize];
            total += p.rate * f64::from(p.solved);
            fastest = fastest.max(p.rate);
            if p.bottleneck == link {
                level = level.min(p.rate);
            }
        }
        let wrong = total < shared.capacity * (1.0 - SAME) || fastest > level * (1.0 + SAME);
        (level < f64::INFINITY && wrong).then_some(level)
    }

    fn has_lost(&self, link: u32) -> bool {
        self.wrong_level(link).is_some()
    }

    /// Those whose bottleneck this link no longer is, and those who are faster than they may be.
    fn join_those_without_bottleneck(&mut self, link: u32) {
        if let Some(level) = self.wrong_level(link) {
            self.join_users(link, |path| path.bottleneck == link || path.rate > level * (1.0 + SAME));
        }
    }

    /// Progressive filling of the joined paths; the others keep their rates.
    fn solve(&mut self) {
        let Sharing { links, paths, hops, joined, region, heap, solution, .. } = self;
        for &path in &*joined {
            paths[path as usize].fixed = false;
        }
        for &link in &*region {
            let shared = &mut links[link as usize];
            (shared.left, shared.open) = (shared.capacity, 0);
            for &(path, _) in &shared.users {
                let p = &paths[path as usize];
                if p.joined == *solution {
                    shared.open += p.solved;
                } else {
                    shared.left -= p.rate * f64::from(p.solved);
                }
            }
            shared.left = shared.left.max(0.0);
            if shared.open > 0 {
                heap.push(Reverse(Share(shared.share(), link)));
            }
        }
        while let Some(Reverse(Share(earlier, link))) = heap.pop() {
            if links[link as usize].open == 0 {
                continue;
            }
            // Shares only grow while flows with smaller ones are fixed.
            let share = links[link as usize].share();
            if share > earlier * (1.0 + ROUNDING) {
                heap.push(Reverse(Share(share, link)));
                continue;
            }
            for user in 0..links[link as usize].users.len() {
                let (path, _) = links[link as usize].users[user];
                let p = &mut paths[path as usize];
                if p.joined != *solution || std::mem::replace(&mut p.fixed, true) {
                    continue;
                }
                p.rate = share;
                p.bottleneck = link;
                for hop in &hops[p.range()] {
                    let shared = &mut links[hop.link as usize];
                    if shared.share() <= share * (1.0 + ROUNDING) {
                        p.bottleneck = hop.link;
                    }
                    shared.left = (shared.left - share * f64::from(p.solved)).max(0.0);
                    shared.open -= p.solved;
                }
            }
        }
    }
}

#[cfg(test)]
mod tests {
    use proptest::prelude::*;

    use super::*;
    use crate::network::maxmin::Solver;

    /// Rates of all paths with flows, solved anew.
    fn anew(sharing: &Sharing) -> Vec<(u32, f64)> {
        let flows: Vec<u32> = (0..).zip(&sharing.paths).flat_map(|(i, p)| (0..p.flows).map(move |_| i)).collect();
        let links: Vec<Vec<u32>> = flows.iter().map(|&path| sharing.links(path).collect()).collect();
        let mut rates = Vec::new();
        let capacity = |link: u32| sharing.links[link as usize].capacity;
        Solver::default().solve(capacity, links.iter().map(Vec::as_slice), sharing.links.len(), &mut rates);
        flows.into_iter().zip(rates).collect()
    }

    #[test]
    fn a_change_ends_where_the_share_stays_the_same() {
        // Two flows into link 2; one of them also crosses link 0, where a third flow is limited by link 1.
        let mut sharing = Sharing::new([10.0, 1.0, 4.0].into_iter());
        let (a, b, c) = (sharing.path(&[0, 2]), sharing.path(&[2]), sharing.path(&[0, 1]));
        sharing.add(a);
        sharing.add(b);
        sharing.resolve();
        sharing.add(c);
        assert_eq!(sharing.resolve(), [c]);
        assert_eq!([a, b, c].map(|path| sharing.rate(path)), [2.0, 2.0, 1.0]);
        assert_eq!([a, b, c].map(|path| sharing.bottleneck(path)), [2, 2, 1]);
    }

    #[test]
    fn a_flow_that_follows_another_changes_nothing() {
        let mut sharing = Sharing::new([8.0].into_iter());
        let path = sharing.path(&[0]);
        sharing.add(path);
        sharing.resolve();
        sharing.remove(path);
        sharing.add(path);
        assert!(sharing.resolve().is_empty());
        assert_eq!(sharing.rate(path), 8.0);
    }

    proptest! {
        #![proptest_config(ProptestConfig { cases: 300, failure_persistence: None, ..ProptestConfig::default() })]

        /// After any changes, rates are those of a solution from scratch, and the bottleneck is one.
        #[test]
        fn follows_changes_as_if_solved_anew(
            capacities in prop::collection::vec(prop::sample::select(vec![1.0, 1.5, 2.0, 4.0, 10.0, 0.3]), 2..24),
            paths in prop::collection::vec(prop::collection::btree_set(0usize..24, 1..6), 1..24),
            changes in prop::collection::vec((0usize..24, any::<bool>(), 0u8..3), 1..120),
        ) {
            let mut sharing = Sharing::new(capacities.iter().copied());
            let paths: Vec<u32> = paths.iter().map(|links| {
                let links: std::collections::BTreeSet<u32> = links.iter().map(|l| (l % capacities.len()) as u32).collect();
                sharing.path(&links.into_iter().collect::<Vec<_>>())
            }).collect();
            for (which, remove, more) in changes {
                let path = paths[which % paths.len()];
                if remove && sharing.paths[path as usize].flows > 0 {
                    sharing.remove(path);
                } else {
                    sharing.add(path);
                }
                if more > 0 {
                    continue;
                }
                sharing.resolve();
                for (path, rate) in anew(&sharing) {
                    let ours = sharing.rate(path);
                    prop_assert!((ours / rate - 1.0).abs() < 1e-6, "{ours} {rate}");
                    let bottleneck = sharing.bottleneck(path);
                    let users = &sharing.links[bottleneck as usize].users;
                    let total: f64 = users.iter().map(|&(p, _)| sharing.rate(p) * f64::from(sharing.paths[p as usize].flows)).sum();
                    prop_assert!(total > sharing.links[bottleneck as usize].capacity * (1.0 - 1e-6));
                    prop_assert!(users.iter().all(|&(p, _)| sharing.rate(p) <= ours * (1.0 + 1e-6)));
                }
            }
        }
    }
}
