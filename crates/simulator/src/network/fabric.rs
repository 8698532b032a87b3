//! The links between switches, and the routes over them.
//!
//! A fabric is a graph. A message takes a shortest route over the links that are left; at every switch, a hash or the
//! load decides between the next links of all shortest routes, as equal-cost multipath does (C. Hopps, RFC 2992). So a
//! link that has failed is avoided by the same rule, on a longer route if there is no other.
use std::cell::{OnceCell, RefCell};
use std::collections::HashMap;

use paceline_model::cluster::{Fabric as Description, Routing, Shape};
use paceline_schedule::Stand;

use crate::path::Part;

/// Kinds of switches, for names.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum SwitchKind {
    Leaf,
    Spine,
    Edge,
    Aggregation,
    Core,
    Router,
}

/// A switch and its number among those of its kind.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct Switch {
    pub kind: SwitchKind,
    pub number: u32,
}

impl std::fmt::Display for Switch {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        let kind = match self.kind {
            SwitchKind::Leaf => "leaf",
            SwitchKind::Spine => "spine",
            SwitchKind::Edge => "edge",
            SwitchKind::Aggregation => "agg",
            SwitchKind::Core => "core",
            SwitchKind::Router => "router",
        };
        write!(f, "{kind}{}", self.number)
    }
}

/// A link in one direction, before it has a number in the network.
pub(crate) struct Edge {
    pub from: u32,
    pub to: u32,
    pub part: Part,
}

/// Links and switches of a description, as large as these NICs need.
pub(crate) struct Graph {
    pub switches: Vec<Switch>,
    pub edges: Vec<Edge>,
}

impl Graph {
    /// `nodes`: all nodes; `rails`: NICs of a node, if it has rails.
    pub fn new(fabric: &Description, nodes: u32, rails: u32) -> Graph {
        let mut graph = Graph { switches: Vec::new(), edges: Vec::new() };
        match &fabric.shape {
            &Shape::LeafSpine { nodes_per_leaf, spines, .. } => graph.clos(nodes.div_ceil(nodes_per_leaf), spines),
            &Shape::Rails { nodes_per_leaf, spines, .. } => graph.clos(nodes.div_ceil(nodes_per_leaf) * rails, spines),
            &Shape::FatTree { radix, .. } => graph.fat_tree(radix / 2, nodes.div_ceil(fabric.nodes_per_switch())),
            &Shape::Dragonfly { routers_per_group, global_links, groups, .. } => {
                graph.dragonfly(groups, routers_per_group, global_links);
            }
            Shape::Torus { dimensions } => graph.torus(dimensions),
        }
        graph
    }

    /// How many edges [`Graph::new`] makes, or a few more.
    pub fn edges(fabric: &Description, nodes: u32, rails: u32) -> u64 {
        let wide = |number: u32| u64::from(number);
        let one_way = match &fabric.shape {
            &Shape::LeafSpine { nodes_per_leaf, spines, .. } => wide(nodes.div_ceil(nodes_per_leaf)) * wide(spines),
            &Shape::Rails { nodes_per_leaf, spines, .. } => {
                (wide(nodes.div_ceil(nodes_per_leaf)) * wide(rails)).saturating_mul(wide(spines))
            }
            &Shape::FatTree { radix, .. } => {
                let half = wide(radix / 2);
                wide(nodes.div_ceil(fabric.nodes_per_switch())).div_ceil(half) * half * half * 2
            }
            &Shape::Dragonfly { routers_per_group, global_links, groups, .. } => {
                let (routers, global) = (wide(routers_per_group), wide(global_links));
                wide(groups).saturating_mul(routers.saturating_mul(routers / 2 + 1 + global))
            }
            Shape::Torus { dimensions } => {
                dimensions.iter().map(|&size| wide(size)).product::<u64>() * dimensions.len() as u64
            }
        };
        one_way.saturating_mul(2)
    }

    fn add(&mut self, kind: SwitchKind, count: u32) -> u32 {
        let first = self.switches.len() as u32;
        self.switches.extend((0..count).map(|number| Switch { kind, number }));
        first
    }

    fn connect(&mut self, a: u32, b: u32, part: Part) {
        self.edges.extend([Edge { from: a, to: b, part }, Edge { from: b, to: a, part }]);
    }

    fn clos(&mut self, leaves: u32, spines: u32) {
        let leaf = self.add(SwitchKind::Leaf, leaves);
        let spine = self.add(SwitchKind::Spine, spines);
        for (l, s) in (0..leaves).flat_map(|l| (0..spines).map(move |s| (l, s))) {
            self.connect(leaf + l, spine + s, Part::RackUplink);
        }
    }

    /// A pod has `half` edge and `half` aggregation switches, all connected; aggregation switch j of every pod leads to
    /// cores j * half to (j + 1) * half.
    fn fat_tree(&mut self, half: u32, edges: u32) {
        let pods = edges.div_ceil(half);
        let edge = self.add(SwitchKind::Edge, pods * half);
        let aggregation = self.add(SwitchKind::Aggregation, pods * half);
        let core = self.add(SwitchKind::Core, half * half);
        for pod in 0..pods {
            for (i, j) in (0..half).flat_map(|i| (0..half).map(move |j| (i, j))) {
                self.connect(edge + pod * half + i, aggregation + pod * half + j, Part::RackUplink);
                self.connect(aggregation + pod * half + j, core + j * half + i, Part::Global);
            }
        }
    }

    /// Global port p of a group, on router p / `global`, leads to the group that is p modulo (groups - 1) + 1 further:
    /// every two groups have as many links as can be had.
    fn dragonfly(&mut self, groups: u32, routers: u32, global: u32) {
        let first = self.add(SwitchKind::Router, groups * routers);
        for group in 0..groups {
            let own = first + group * routers;
            for a in 0..routers {
                (a + 1..routers).for_each(|b| self.connect(own + a, own + b, Part::RackUplink));
            }
            let others = groups - 1;
            for port in (0..routers * global).filter(|_| others > 0) {
                let (round, distance) = (port / others, port % others + 1);
                let other = (group + distance) % groups;
                // The same link from the other side.
                let opposite = round * others + others - distance;
                if group < other && opposite < routers * global {
                    self.connect(own + port / global, first + other * routers + opposite / global, Part::Global);
                }
            }
        }
    }

    fn torus(&mut self, dimensions: &[u32]) {
        let first = self.add(SwitchKind::Router, dimensions.iter().product());
        let mut stride = 1;
        for &size in dimensions {
            for router in 0..self.switches.len() as u32 {
                let place = router / stride % size;
                // A ring of two is one link.
                if size > 2 || size == 2 && place == 0 {
                    let next = router - place * stride + (place + 1) % size * stride;
                    self.connect(first + router, first + next, Part::RackUplink);
                }
            }
            stride *= size;
        }
    }
}

/// A route in the list of all routes.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Default)]
pub(crate) struct Middle {
    first: u32,
    pub len: u32,
}

/// Identifies a message for adaptive routing, or two roles.
type Key = (u32, u32, u64);

/// A switch of a fabric as routes see it.
struct Neighbor {
    link: u32,
    switch: u32,
}

/// A tree of switches over all that have nodes, one of them on each level above: by which sums are made, or copies.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct Tree {
    /// The number of each pod's switch among those of the pod.
    in_pod: u32,
    /// The number of the switch at the top among those that connect all.
    top: u32,
}

pub(crate) struct Fabric {
    /// Switches that connect all others, if they form levels: each is the top of a tree.
    tops: u32,
    /// Numbers of the trees that are used, if not all: those whose links all exist, and are not slower than others.
    whole: Option<Vec<u32>>,
    /// The first switch of a pod and how many each has, and the first of those that connect all.
    levels: (u32, u32, u32),
    pub routing: Routing,
    pub hop_latency: u64,
    /// Switches are crossed between two links and at both ends; in a torus, nodes are switches.
    torus: bool,
    dragonfly: bool,
    seed: u64,
    /// The switch of each NIC.
    switch_of: Vec<u32>,
    neighbors: Vec<Vec<Neighbor>>,
    /// For each switch as the destination, the distance from each; computed when it is needed.
    distances: Vec<OnceCell<Vec<u16>>>,
    known: RefCell<HashMap<Key, Middle>>,
    /// The links of all routes.
    links: RefCell<Vec<u32>>,
    /// Where each route begins in it.
    first_of: RefCell<HashMap<Box<[u32]>, u32>>,
}

/// No way.
const FAR: u16 = u16::MAX;

impl Fabric {
    /// `links`: the number of each edge of the graph in the network, or `None` if it is removed.
    pub fn new(
        description: &Description,
        graph: &Graph,
        links: &[Option<u32>],
        switch_of: Vec<u32>,
        seed: u64,
    ) -> Self {
        let mut neighbors: Vec<Vec<Neighbor>> = graph.switches.iter().map(|_| Vec::new()).collect();
        for (edge, link) in graph.edges.iter().zip(links) {
            if let &Some(link) = link {
                neighbors[edge.from as usize].push(Neighbor { link, switch: edge.to });
            }
        }
        let first = |kinds: [SwitchKind; 2]| {
            graph.switches.iter().position(|switch| kinds.contains(&switch.kind)).unwrap_or(0) as u32
        };
        let in_pod = description.switches_per_pod().unwrap_or(0);
        let levels = (first([SwitchKind::Aggregation; 2]), in_pod, first([SwitchKind::Spine, SwitchKind::Core]));
        let mut fabric = Fabric {
            tops: if description.shape.can_aggregate() { graph.switches.len() as u32 - levels.2 } else { 0 },
            whole: None,
            levels,
            routing: description.routing,
            hop_latency: description.hop_latency.0,
            torus: matches!(description.shape, Shape::Torus { .. }),
            dragonfly: matches!(description.shape, Shape::Dragonfly { .. }),
            seed,
            switch_of,
            distances: neighbors.iter().map(|_| OnceCell::new()).collect(),
            neighbors,
            known: RefCell::default(),
            links: RefCell::default(),
            first_of: RefCell::default(),
        };
        if links.iter().any(Option::is_none) {
            fabric.whole = Some((0..fabric.tops).filter(|&number| fabric.slowest(number, |_| 0.0).is_some()).collect());
        }
        fabric
    }

    /// Leaves out trees with a slower link than others have; `time`: per byte of a link.
    pub fn prefer_fast_trees(&mut self, time: impl Fn(u32) -> f64) {
        let slowest: Vec<_> =
            (0..self.tops).filter_map(|number| Some((number, self.slowest(number, &time)?))).collect();
        let least = slowest.iter().map(|&(_, time)| time).fold(f64::INFINITY, f64::min);
        self.whole = Some(slowest.into_iter().filter(|&(_, time)| time <= least).map(|(number, _)| number).collect());
    }

    /// With pods, the switches of a pod take turns.
    fn numbered(&self, number: u32) -> Tree {
        match self.levels.1 {
            0 => Tree { in_pod: 0, top: number },
            in_pod => Tree { in_pod: number % in_pod, top: number % in_pod * in_pod + number / in_pod },
        }
    }

    /// Switches that connect all others, each of which is the top of a tree.
    pub fn tops(&self) -> u32 {
        self.tops
    }

    /// The switch of a NIC.
    pub fn switch_of_card(&self, card: u32) -> u32 {
        self.switch_of[card as usize]
    }

    /// The pod of a switch with nodes, if there are pods.
    pub fn pod(&self, switch: u32) -> Option<u32> {
        switch.checked_div(self.levels.1)
    }

    /// The pod of a switch that connects the switches of a pod.
    pub fn pod_above(&self, switch: u32) -> Option<u32> {
        switch.checked_sub(self.levels.0)?.checked_div(self.levels.1)
    }

    /// The most time per byte of the links of a tree over all switches with nodes; `None`: it lacks one.
    pub fn slowest(&self, number: u32, time: impl Fn(u32) -> f64) -> Option<f64> {
        let (tree, (_, in_pod, _)) = (self.numbered(number), self.levels);
        let mut racks = self.switch_of.clone();
        racks.dedup();
        let mut most: f64 = 0.0;
        for rack in racks {
            let (rack, pod) = (Stand::Rack(rack), rack.checked_div(in_pod).map(Stand::Pod));
            for (low, high) in [(rack, pod.unwrap_or(Stand::Top)), (pod.unwrap_or(rack), Stand::Top)] {
                most = most.max(time(self.between(tree, low, high)?)).max(time(self.between(tree, high, low)?));
            }
        }
        Some(most)
    }

    /// Tree number `number`, counted over and over; `None`: none has all its links, or switches form no levels. Neighbors share
    /// as few links as possible.
    pub fn tree(&self, number: u32) -> Option<Tree> {
        let found = match &self.whole {
            None => number.checked_rem(self.tops)?,
            Some(whole) => *whole.get((number as usize).checked_rem(whole.len())?)?,
        };
        Some(self.numbered(found))
    }

    /// The link from a switch of a tree to another one.
    pub fn between(&self, tree: Tree, from: Stand, to: Stand) -> Option<u32> {
        let (first_of_pods, in_pod, first_top) = self.levels;
        let switch = |stand| match stand {
            Stand::Rack(rack) => rack,
            Stand::Pod(pod) => first_of_pods + pod * in_pod + tree.in_pod,
            Stand::Top => first_top + tree.top,
        };
        let to = switch(to);
        let found = self.neighbors[switch(from) as usize].iter().find(|neighbor| neighbor.switch == to);
        found.map(|neighbor| neighbor.link)
    }

    /// Latency of the switches from a node up to this one, in picoseconds.
    pub fn latency_up(&self, stand: Stand) -> u64 {
        let has_pods = self.levels.1 > 0;
        self.hop_latency
            * match stand {
                Stand::Rack(_) => 1,
                Stand::Pod(_) => 2,
                Stand::Top => 2 + u64::from(has_pods),
            }
    }

    /// The same down to a node: the switch itself has been passed.
    pub fn latency_down(&self, stand: Stand) -> u64 {
        self.latency_up(stand) - self.hop_latency
    }

    /// The first NIC that has no way to the first one.
    pub fn cut_off(&self) -> Option<(u32, u32)> {
        let to_first = self.distances(*self.switch_of.first()?);
        let cut_off = self.switch_of.iter().position(|&switch| to_first[switch as usize] == FAR)?;
        Some((cut_off as u32, 0))
    }

    /// Links are removed in both directions, so the way back is as long.
    fn distances(&self, to: u32) -> &[u16] {
        self.distances[to as usize].get_or_init(|| {
            let mut distances = vec![FAR; self.neighbors.len()];
            distances[to as usize] = 0;
            let mut reached = vec![to];
            let mut at = 0;
            while let Some(&switch) = reached.get(at) {
                at += 1;
                for neighbor in &self.neighbors[switch as usize] {
                    if distances[neighbor.switch as usize] == FAR {
                        distances[neighbor.switch as usize] = distances[switch as usize] + 1;
                        reached.push(neighbor.switch);
                    }
                }
            }
            distances
        })
    }

    /// Whether two NICs are on the same switch.
    pub fn are_neighbors(&self, from: u32, to: u32) -> bool {
        self.switch_of[from as usize] == self.switch_of[to as usize]
    }

    /// Latency of the switches on a route, in picoseconds.
    pub fn latency(&self, middle: Middle) -> u64 {
        self.hop_latency * u64::from(middle.len + u32::from(!self.torus))
    }

    /// The latency of the shortest route between two NICs.
    pub fn least_latency(&self, from: u32, to: u32) -> u64 {
        let len = self.distances(self.switch_of[to as usize])[self.switch_of[from as usize] as usize];
        self.latency(Middle { first: 0, len: u32::from(len) })
    }

    /// Link number `at` of a route.
    pub fn link(&self, middle: Middle, at: u32) -> u32 {
        self.links.borrow()[(middle.first + at) as usize]
    }

    /// The route of a message between two NICs; `load` of a link, for adaptive routing. The `numbers` of sender and receiver
    /// decide the hash; `roles` and, for adaptive routing, `message` say whose route it is.
    pub fn route(
        &self,
        cards: (u32, u32),
        roles: (u32, u32),
        numbers: (u32, u32),
        message: u64,
        load: impl Fn(u32) -> f64,
    ) -> Middle {
        let (from, to) = (self.switch_of[cards.0 as usize], self.switch_of[cards.1 as usize]);
        if from == to {
            return Middle::default();
        }
        let adaptive = self.routing == Routing::Adaptive;
        let key = (roles.0, roles.1, if adaptive { message } else { 0 });
        if let Some(&known) = self.known.borrow().get(&key) {
            return known;
        }
        let random = mixed(self.seed ^ u64::from(numbers.0) << 32 ^ u64::from(numbers.1));
        let mut route = Vec::new();
        if adaptive {
            self.follow(from, to, mixed(random ^ message), Some(&load), &mut route);
            if self.dragonfly {
                self.detour(from, to, mixed(random ^ message), &load, &mut route);
            }
        } else {
            self.follow(from, to, random, None::<&fn(u32) -> f64>, &mut route);
        }
        let mut links = self.links.borrow_mut();
        // Adaptive routes are few, though each message has one.
        let fresh = links.len() as u32;
        let first = *self.first_of.borrow_mut().entry(route.as_slice().into()).or_insert(fresh);
        if first == fresh {
            links.extend(&route);
        }
        let middle = Middle { first, len: route.len() as u32 };
        self.known.borrow_mut().insert(key, middle);
        middle
    }

    /// The route of a message is no longer needed.
    pub fn forget(&self, roles: (u32, u32), message: u64) {
        if self.routing == Routing::Adaptive {
            self.known.borrow_mut().remove(&(roles.0, roles.1, message));
        }
    }

    /// Appends a shortest route.
    fn follow(&self, from: u32, to: u32, mut random: u64, load: Option<&impl Fn(u32) -> f64>, route: &mut Vec<u32>) {
        let distances = self.distances(to);
        let mut at = from;
        while at != to {
            let next = |n: &&Neighbor| distances[n.switch as usize] < distances[at as usize];
            let closer = self.neighbors[at as usize].iter().filter(next);
            random = mixed(random);
            let count = closer.clone().count() as u64;
            let turn = (random % count.max(1)) as usize;
            // Of several that are equally loaded, the hash decides.
            let mut chosen: Option<(f64, &Neighbor)> = None;
            for neighbor in closer.clone().skip(turn).chain(closer.take(turn)) {
                let loaded = load.map_or(0.0, |load| load(neighbor.link));
                if chosen.is_none_or(|(least, _)| loaded < least) {
                    chosen = Some((loaded, neighbor));
                }
            }
            let Some((_, next)) = chosen else { return };
            route.push(next.link);
            at = next.switch;
        }
    }

    /// Replaces a route by one over a random third switch if that promises less waiting: hops times the load of the
    /// first link (UGAL-L: A. Singh, "Load-Balanced Routing in Interconnection Networks", 2005).
    fn detour(&self, from: u32, to: u32, random: u64, load: &impl Fn(u32) -> f64, route: &mut Vec<u32>) {
        let third = (random % self.neighbors.len() as u64) as u32;
        if self.distances(to)[third as usize] == FAR || third == from || third == to {
            return;
        }
        let mut longer = Vec::new();
        self.follow(from, third, random, Some(load), &mut longer);
        self.follow(third, to, random, Some(load), &mut longer);
        let cost = |route: &[u32]| route.iter().map(|&link| load(link)).fold(0.0, f64::max) * route.len() as f64;
        let mut once = longer.clone();
        once.sort_unstable();
        once.dedup();
        if once.len() == longer.len() && cost(&longer) < cost(route) {
            *route = longer;
        }
    }
}

/// Mixes the bits of a number (the finalizer of splitmix64: S. Vigna, "An experimental exploration of Marsaglia's
/// xorshift generators, scrambled", 2016).
fn mixed(number: u64) -> u64 {
    let mut z = number.wrapping_add(0x9e37_79b9_7f4a_7c15);
    z = (z ^ (z >> 30)).wrapping_mul(0xbf58_476d_1ce4_e5b9);
    z = (z ^ (z >> 27)).wrapping_mul(0x94d0_49bb_1331_11eb);
    z ^ (z >> 31)
}

#[cfg(test)]
mod tests {
    use paceline_model::Time;

    use super::*;

    fn fabric(shape: Shape, nodes: u32) -> (Graph, Fabric) {
        let description = Description { shape, routing: Routing::Ecmp, hop_latency: Time::ZERO, link_bandwidth: None };
        let graph = Graph::new(&description, nodes, 1);
        let links: Vec<_> = (0..graph.edges.len() as u32).map(Some).collect();
        let switch_of = (0..nodes).map(|node| node / description.nodes_per_switch()).collect();
        let fabric = Fabric::new(&description, &graph, &links, switch_of, 1);
        (graph, fabric)
    }

    /// The switches of a route follow each other, from the sender's to the receiver's.
    fn check(graph: &Graph, fabric: &Fabric, from: u32, to: u32) -> u32 {
        let route = fabric.route((from, to), (from, to), (from, to), 0, |_| 0.0);
        let mut at = fabric.switch_of[from as usize];
        for hop in 0..route.len {
            let edge = &graph.edges[fabric.link(route, hop) as usize];
            assert_eq!(edge.from, at);
            at = edge.to;
        }
        assert_eq!(at, fabric.switch_of[to as usize]);
        route.len
    }

    #[test]
    fn a_fat_tree_has_the_published_size_and_distances() {
        // Al-Fares et al.: k = 4 has 20 switches and 16 hosts.
        let (graph, fabric) = fabric(Shape::FatTree { radix: 4, oversubscription: 1.0 }, 16);
        assert_eq!((graph.switches.len(), graph.edges.len()), (20, 2 * 32));
        assert_eq!([1, 2, 4].map(|to| check(&graph, &fabric, 0, to)), [0, 2, 4]);
    }

    #[test]
    fn a_torus_goes_the_shorter_way_round() {
        let (graph, fabric) = fabric(Shape::Torus { dimensions: vec![4, 3, 2] }, 24);
        for (from, to) in (0..24u32).flat_map(|from| (0..24).map(move |to| (from, to))) {
            let ring = |a: u32, b: u32, size: u32| a.abs_diff(b).min(size - a.abs_diff(b));
            let distance = ring(from % 4, to % 4, 4) + ring(from / 4 % 3, to / 4 % 3, 3) + ring(from / 12, to / 12, 2);
            assert_eq!(check(&graph, &fabric, from, to), distance);
        }
    }

    #[test]
    fn every_two_groups_of_a_dragonfly_are_connected() {
        for (routers, global, groups) in [(4, 2, 9), (4, 2, 4), (3, 1, 4), (2, 3, 2)] {
            let shape =
                Shape::Dragonfly { nodes_per_router: 1, routers_per_group: routers, global_links: global, groups };
            let (graph, fabric) = fabric(shape, routers * groups);
            let global_edges = graph.edges.iter().filter(|edge| edge.part == Part::Global);
            let mut pairs: Vec<_> = global_edges.map(|edge| (edge.from / routers, edge.to / routers)).collect();
            assert!(pairs.len() as u32 <= groups * routers * global);
            pairs.sort_unstable();
            pairs.dedup();
            assert_eq!(pairs.len() as u32, groups * (groups - 1));
            let ports = |router: u32| graph.edges.iter().filter(|e| e.from == router && e.part == Part::Global).count();
            assert!((0..routers * groups).all(|router| ports(router) <= global as usize));
            for to in 0..routers * groups {
                assert!(check(&graph, &fabric, 0, to) <= 3);
            }
        }
    }
}
