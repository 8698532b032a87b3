//! Links, and the route of a message over them.
use std::ops::Range;

use paceline_model::cluster::ServerPlace;
use paceline_model::{Cluster, Time, cluster};
use paceline_schedule::{Roles, Schedule, Stand, SwitchPlace};

use crate::event::Event;
use crate::network::fabric::{Fabric, Graph, Middle, Switch};
use crate::path::{COUNT, Chain, PARTS, Part};
use crate::sharing::SimulationError;

/// A link in one direction.
pub(crate) struct Link {
    pub ps_per_byte: f64,
    /// When the last message reserved so far has passed.
    pub free: u64,
    /// Picoseconds during which it was occupied.
    pub busy: u64,
    pub part: Part,
    pub name: LinkName,
}

impl Link {
    fn new(name: LinkName, part: Part, ps_per_byte: f64) -> Link {
        Link { ps_per_byte, free: 0, busy: 0, part, name }
    }
}

/// Identifies the link in output.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum LinkName {
    NodeOut(u32),
    NodeIn(u32),
    RoleOut(u32),
    RoleIn(u32),
    HostOut(u32),
    HostIn(u32),
    Adder(u32),
    RackUp(u32),
    RackDown(u32),
    /// From one switch to another; `id` numbers the first.
    Between {
        from: Switch,
        to: Switch,
        id: u32,
    },
    /// From an aggregating switch to the one above it, if that is no rack's uplink.
    SwitchUp(u32),
    SwitchDown(u32),
}

/// In place of a link's name: all links between switches.
pub(crate) const ALL_BETWEEN: &str = "all links between switches";

/// Process numbers of nodes on which several jobs run, in timelines.
const NODES: u32 = 3_000_000;

/// No link: the message starts or ends at the switch.
pub(crate) const NONE: u32 = u32::MAX;

/// Stages of a route: the sender's own copies, its node's NIC (or its link inside the node), a rack's uplink, another's
/// downlink, the receiver's NIC, the receiver's own copies.
pub(crate) const STAGES: usize = 6;

/// The stage at the sender's NIC, after which the path to other nodes begins.
pub(crate) const OUT: u8 = 1;

/// The stage at a rack's uplink.
pub(crate) const UP: u8 = 2;

/// The stage at the downlink of a rack.
pub(crate) const DOWN: u8 = 3;

/// The stage at the receiver's NIC.
pub(crate) const IN: u8 = 4;

/// The stage at the first link of a fabric; the others follow. They come between the stages `OUT` and `IN`.
const MIDDLE: u8 = 16;

/// The route from one role to another: a link for each stage; stages without one are [`NONE`].
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct Route {
    pub links: [u32; STAGES],
    /// Latency between the sender's NIC and the next link.
    pub latency: u64,
}

impl Route {
    /// The first stage from this one on that has a link; `None`: the message has arrived.
    #[inline]
    pub fn next(&self, stage: u8) -> Option<u8> {
        (stage..STAGES as u8).find(|&stage| self.links[stage as usize] != NONE)
    }
}

/// A link on the route of a message.
pub(crate) struct Hop {
    pub link: u32,
    /// Time per byte on the slowest earlier link.
    pub slowest: f64,
    /// Latency between this link and the next.
    pub latency: u64,
    /// The next stage.
    pub next: Option<u8>,
}

/// Where the roles of several jobs run.
pub(crate) struct Placed {
    /// Nodes of the cluster.
    pub nodes: u32,
    /// The node of each worker, and of each server.
    pub node_of: Vec<u32>,
    /// The job of each role.
    pub job_of: Vec<u16>,
    /// Its number there.
    pub own_numbers: Vec<u32>,
    pub jobs: Vec<PlacedJob>,
}

/// One of several jobs.
pub(crate) struct PlacedJob {
    /// In rank order; the ranks of a node are neighbors.
    pub workers: Range<u32>,
    /// Latency between nodes and inside one, in picoseconds.
    pub latency: (u64, u64),
}

impl Placed {
    fn job(&self, role: u32) -> &PlacedJob {
        &self.jobs[usize::from(self.job_of[role as usize])]
    }

    /// The first worker on each node of the job of `role`.
    fn first_workers(&self, role: u32) -> impl Iterator<Item = u32> {
        let Range { start, end } = self.job(role).workers;
        (start..end).filter(move |&worker| {
            worker == start || self.node_of[worker as usize] != self.node_of[worker as usize - 1]
        })
    }
}

pub(crate) struct NetworkLinks {
    pub links: Vec<Link>,
    /// `None`: a single job, whose ranks fill one node after the other.
    placed: Option<Placed>,
    roles: Roles,
    gpus_per_node: u32,
    worker_nodes: u32,
    nodes: u32,
    /// NICs: one per node, or with rails one per rank.
    cards: u32,
    rails: bool,
    colocated: bool,
    /// Or on a leaf of a fabric, for multicasts.
    nodes_per_rack: Option<u32>,
    /// Parallel uplinks of a rack.
    uplinks: u32,
    /// By role: where switches that aggregate stand.
    switches: Vec<SwitchPlace>,
    /// The first link between such switches.
    between_switches: u32,
    latency: u64,
    intra_latency: u64,
    pub overhead: u64,
    /// Roles' own copies take time.
    pub copies: bool,
    /// Roles' additions take time.
    pub adds: bool,
    cut_through: bool,
    pub fabric: Option<Fabric>,
    /// The first link of the fabric; each is this many parallel ones.
    first_between: u32,
    channels: u32,
    part_names: [&'static str; COUNT],
    /// All links that messages use have the same rate.
    pub uniform: bool,
}

impl NetworkLinks {
    /// A rack's uplink consists of parallel links of the nodes' rate, as many as oversubscription leaves (the leaf of a
    /// leaf-spine network with ideally balanced load); for fluid sharing it is one wide link. `seed` decides routes.
    ///
    /// # Errors
    /// Nodes that do not fit or are cut off, or a degraded link that does not exist.
    #[cfg(test)]
    pub fn new(cluster: &Cluster, roles: Roles, fluid: bool, seed: u64) -> Result<NetworkLinks, SimulationError> {
        NetworkLinks::of(cluster, roles, Vec::new(), None, fluid, seed)
    }

    /// The same with the switches of a schedule.
    ///
    /// # Errors
    /// Nodes that do not fit or are cut off, or a degraded link that does not exist.
    pub fn for_schedule(
        cluster: &Cluster,
        schedule: &dyn Schedule,
        fluid: bool,
        seed: u64,
    ) -> Result<NetworkLinks, SimulationError> {
        let roles = schedule.roles();
        let switches = (0..roles.switches).map(|number| schedule.switch_place(number)).collect();
        NetworkLinks::of(cluster, roles, switches, None, fluid, seed)
    }

    /// The same for the roles of several jobs, together, at given places.
    ///
    /// # Errors
    /// Nodes that do not fit or are cut off, or a degraded link that does not exist.
    pub fn of(
        cluster: &Cluster,
        roles: Roles,
        switches: Vec<SwitchPlace>,
        placed: Option<Placed>,
        fluid: bool,
        seed: u64,
    ) -> Result<NetworkLinks, SimulationError> {
        let colocated = cluster.servers == ServerPlace::Colocated;
        let (worker_nodes, nodes) = match &placed {
            // A server's node is like any other.
            Some(placed) => (placed.nodes, placed.nodes),
            None => {
                let worker_nodes = roles.workers.div_ceil(cluster.gpus_per_node);
                (worker_nodes, worker_nodes + if colocated { 0 } else { roles.servers })
            }
        };
        let rails = cluster.has_rails();
        if rails && placed.is_some() {
            return Err(SimulationError::new("fabric: rails are simulated for one job at a time")
                .remedy("\"kind\": \"leaf-spine\""));
        }
        let (worker_cards, cards) = match (rails, colocated) {
            (false, _) => (worker_nodes, nodes),
            (true, true) => (roles.workers, roles.workers),
            (true, false) => (roles.workers, roles.workers + roles.servers),
        };
        let mut links = Vec::new();
        let mut add = |name, part, ps_per_byte: f64| links.push(Link::new(name, part, ps_per_byte));
        let rate = cluster.bandwidth.ps_per_byte();
        for card in 0..cards {
            let server = card >= worker_cards;
            add(LinkName::NodeOut(card), if server { Part::ServerEgress } else { Part::WorkerEgress }, rate);
            add(LinkName::NodeIn(card), if server { Part::ServerIngress } else { Part::WorkerIngress }, rate);
        }
        let intra = cluster.intra_bandwidth.ps_per_byte();
        for role in 0..roles.workers + roles.servers {
            add(LinkName::RoleOut(role), Part::IntraNode, intra);
            add(LinkName::RoleIn(role), Part::IntraNode, intra);
        }
        if let Some(own) = cluster.host_bandwidth {
            for role in 0..roles.workers + roles.servers {
                add(LinkName::HostOut(role), Part::Host, own.ps_per_byte());
                add(LinkName::HostIn(role), Part::Host, own.ps_per_byte());
            }
        }
        if let Some(adding) = cluster.reduction_bandwidth {
            for role in 0..roles.workers + roles.servers {
                add(LinkName::Adder(role), Part::Reduction, adding.ps_per_byte());
            }
        }
        let mut uplinks = 1;
        if let Some(r) = cluster.racks {
            let width = f64::from(r.nodes_per_rack) / r.oversubscription;
            let whole = if fluid { 1.0 } else { width.round().max(1.0) };
            uplinks = parallel(whole, nodes);
            let each = rate / width * whole;
            for rack in 0..nodes.div_ceil(r.nodes_per_rack) {
                (0..uplinks).for_each(|_| add(LinkName::RackUp(rack), Part::RackUplink, each));
                (0..uplinks).for_each(|_| add(LinkName::RackDown(rack), Part::RackUplink, each));
            }
        }
        let first_between = links.len() as u32;
        let mut channels = 1;
        let graph = match &cluster.fabric {
            Some(fabric) => {
                if fabric.capacity().is_some_and(|most| u64::from(nodes) > most) {
                    return Err(SimulationError::about(
                        "workers",
                        format!(
                            "{nodes} nodes do not fit into the {} of cluster '{}', which has {} (fabric)",
                            fabric.shape.name(),
                            cluster.name,
                            fabric.capacity().unwrap_or_default()
                        ),
                    )
                    .remedy(format!(
                        "{{workers={}}}",
                        fabric.capacity().unwrap_or_default() * u64::from(cluster.gpus_per_node)
                    )));
                }
                let link = fabric.link_rate(cluster.bandwidth);
                // As with racks: many messages at a NIC's rate pass a faster link at the same time.
                let whole = if fluid { 1.0 } else { (link.0 / cluster.bandwidth.0).round().max(1.0) };
                channels = parallel(whole, cards);
                let each = link.ps_per_byte() * whole;
                let edges = Graph::edges(fabric, nodes, cluster.gpus_per_node);
                if edges.saturating_mul(u64::from(channels)) > MOST_LINKS {
                    return Err(SimulationError::new(format!(
                        "fabric: the {} of cluster '{}' has {edges} links between switches, {channels} of a NIC's rate \
                         each, and at most {MOST_LINKS} are simulated",
                        fabric.shape.name(),
                        cluster.name
                    ))
                    .remedy("a fabric with fewer switches"));
                }
                let graph = Graph::new(fabric, nodes, cluster.gpus_per_node);
                for edge in &graph.edges {
                    let [from, to] = [edge.from, edge.to].map(|switch| graph.switches[switch as usize]);
                    let name = LinkName::Between { from, to, id: edge.from };
                    links.extend((0..channels).map(|_| Link::new(name, edge.part, each)));
                }
                Some(graph)
            }
            None => None,
        };
        let between_switches = links.len() as u32;
        let tree = switches.iter().any(|place| place.parent.is_some());
        if tree {
            for id in 0..switches.iter().map(|place| place.id + 1).max().unwrap_or(0) {
                links.push(Link::new(LinkName::SwitchUp(id), Part::RackUplink, rate));
                links.push(Link::new(LinkName::SwitchDown(id), Part::RackUplink, rate));
            }
        }
        let leaves = cluster.fabric.as_ref().filter(|fabric| fabric.shape.can_multicast());
        let mut network = NetworkLinks {
            links,
            uniform: placed.is_none()
                && cluster.gpus_per_node == 1
                && !colocated
                && !tree
                && cluster.racks.is_none()
                && cluster.fabric.is_none()
                && cluster.degraded.is_empty()
                && cluster.host_bandwidth.is_none(),
            placed,
            roles,
            gpus_per_node: cluster.gpus_per_node,
            worker_nodes,
            nodes,
            cards,
            rails,
            colocated,
            nodes_per_rack: cluster.racks.map(|r| r.nodes_per_rack).or(leaves.map(cluster::Fabric::nodes_per_switch)),
            uplinks,
            switches,
            between_switches,
            latency: cluster.latency.0,
            intra_latency: cluster.intra_latency.0,
            overhead: cluster.message_overhead.0,
            copies: cluster.host_bandwidth.is_some(),
            adds: cluster.reduction_bandwidth.is_some(),
            cut_through: cluster.switch.cut_through,
            fabric: None,
            first_between,
            channels,
            part_names: part_names(cluster.fabric.as_ref()),
        };
        let removed = network.degrade(cluster)?;
        if let (Some(description), Some(graph)) = (&cluster.fabric, &graph) {
            let number = |edge| Some(first_between + edge as u32 * channels).filter(|link| !removed.contains(link));
            let numbers: Vec<_> = (0..graph.edges.len()).map(number).collect();
            let switch_of = (0..cards).map(|card| network.switch_of(description, card)).collect();
            let mut fabric = Fabric::new(description, graph, &numbers, switch_of, seed);
            if let Some((card, other)) = fabric.cut_off() {
                return Err(SimulationError::about(
                    "degraded",
                    format!(
                        "{} is cut off from {}: all links between them are removed",
                        network.card_name(card),
                        network.card_name(other)
                    ),
                )
                .remedy("a factor above 0, such as 0.1, or drop {degraded}"));
            }
            let uses_trees = cluster.switch.aggregation || cluster.switch.multicast;
            if uses_trees && !cluster.degraded.is_empty() {
                fabric.prefer_fast_trees(|link| network.links[link as usize].ps_per_byte);
            }
            if uses_trees && fabric.tree(0).is_none() {
                let message = "no switch is left that reaches all others, for multicasts and aggregation";
                let remedy =
                    "fewer removed links, or \"multicast\": false and \"aggregation\": false in the cluster's switch";
                return Err(SimulationError::about("degraded", message).remedy(remedy));
            }
            network.fabric = Some(fabric);
        }
        Ok(network)
    }

    /// Slows links down. Returns those that are removed.
    fn degrade(&mut self, cluster: &Cluster) -> Result<Vec<u32>, SimulationError> {
        let mut removed = Vec::new();
        for one in &cluster.degraded {
            let wanted: String = one.link.chars().filter(|c| !c.is_whitespace()).collect();
            let mut found = false;
            for link in 0..self.links.len() {
                let name = self.links[link].name;
                let is_meant = match name {
                    LinkName::NodeOut(card) | LinkName::NodeIn(card) => {
                        wanted == format!("node{}", self.node_of_card(card))
                            || self.rails && wanted == self.card_name(card).replace(' ', "")
                    }
                    LinkName::RackUp(rack) | LinkName::RackDown(rack) => wanted == format!("rack{rack}"),
                    LinkName::Between { from, to, .. } => {
                        one.link == ALL_BETWEEN || names_between(from, to).contains(&wanted)
                    }
                    _ => false,
                };
                if !is_meant {
                    continue;
                }
                found = true;
                if one.factor == 0.0 && !matches!(name, LinkName::Between { .. }) {
                    return Err(SimulationError::about(
                        "degraded",
                        format!("{wanted} is cut off without its only link"),
                    )
                    .remedy(format!("{{degraded={wanted}:0.5}} (a factor above 0)")));
                }
                if one.factor == 0.0 {
                    removed.push(link as u32);
                }
                self.links[link].ps_per_byte /= one.factor;
            }
            if !found {
                let nodes = match self.nodes {
                    1 => "node0".into(),
                    nodes => format!("node0 to node{}", nodes - 1),
                };
                let racks = cluster.racks.map(|_| format!(", rack0 to rack{}", self.rack(self.nodes - 1)));
                let between = cluster.fabric.as_ref().map(|fabric| format!(", {}, and switches", fabric.link_names()));
                return Err(SimulationError::about(
                    "degraded",
                    format!(
                        "cluster '{}' has no link '{}' with {} workers",
                        cluster.name, one.link, self.roles.workers
                    ),
                )
                .remedy(format!(
                    "{{degraded=node0:0.5}} (it has {nodes}{}{})",
                    racks.unwrap_or_default(),
                    between.unwrap_or_default()
                )));
            }
        }
        Ok(removed)
    }

    fn node_of_card(&self, card: u32) -> u32 {
        match card.checked_sub(self.roles.workers) {
            _ if !self.rails => card,
            None => card / self.gpus_per_node,
            Some(server) => self.worker_nodes + server,
        }
    }

    /// The switch to which a NIC is connected.
    fn switch_of(&self, fabric: &cluster::Fabric, card: u32) -> u32 {
        let switch = self.node_of_card(card) / fabric.nodes_per_switch();
        if !self.rails {
            return switch;
        }
        let rail = match card.checked_sub(self.roles.workers) {
            None => card % self.gpus_per_node,
            Some(server) => server % self.gpus_per_node,
        };
        switch * self.gpus_per_node + rail
    }

    /// NICs of the network.
    pub fn cards(&self) -> u32 {
        self.cards
    }

    /// All parallel links of a kind together, in bytes per picosecond; 0: it is removed.
    pub fn rate(&self, link: u32) -> f64 {
        let parallel = if self.links_between().contains(&link) { self.channels } else { 1 };
        f64::from(parallel) / self.links[link as usize].ps_per_byte
    }

    /// The links of the fabric, of which each is [`Self::channels`] parallel ones.
    pub fn links_between(&self) -> Range<u32> {
        self.first_between..self.between_switches
    }

    /// Parallel links of which a link of the fabric consists.
    pub fn channels(&self) -> u32 {
        self.channels
    }

    /// The NIC of a worker or server.
    #[inline]
    pub fn card(&self, role: u32) -> u32 {
        let Some(server) = role.checked_sub(self.roles.workers).filter(|_| self.rails) else {
            return if self.rails { role } else { self.node(role) };
        };
        if !self.colocated {
            return role;
        }
        let ranks = self.ranks_of(server % self.worker_nodes * self.gpus_per_node);
        ranks.start + server / self.worker_nodes % (ranks.end - ranks.start)
    }

    /// Whether a message crosses the fabric: between nodes. Aggregating switches have a tree of their own.
    #[inline]
    pub fn uses_fabric(&self, from: u32, to: u32) -> bool {
        self.fabric.is_some() && !self.is_switch(from) && !self.is_switch(to) && self.node(from) != self.node(to)
    }

    /// The route between two nodes over a fabric; `None`: there is no fabric, or it is not used.
    pub fn middle(&self, from: u32, to: u32, message: u64, load: impl Fn(u32) -> f64) -> Option<(&Fabric, Middle)> {
        let fabric = self.fabric.as_ref().filter(|_| self.uses_fabric(from, to))?;
        let cards = (self.card(from), self.card(to));
        let numbers = (self.own_number(from), self.own_number(to));
        Some((fabric, fabric.route(cards, (from, to), numbers, message, load)))
    }

    /// The link at which a message between nodes starts.
    pub fn first_hop<C: Chain>(&self, event: &Event<C>) -> Hop {
        self.hop_over_fabric(event, if self.copies { 0 } else { OUT })
    }

    /// The link of a unicast at its stage.
    #[inline]
    pub fn hop<C: Chain>(&self, event: &Event<C>) -> Hop {
        if !self.uses_fabric(event.from(), event.to()) {
            return self.at_stage(event.from(), event.to(), event.stage);
        }
        self.hop_over_fabric(event, event.stage)
    }

    fn hop_over_fabric<C: Chain>(&self, event: &Event<C>, stage: u8) -> Hop {
        let (from, to, message) = (event.from(), event.to(), event.message());
        let route = self.route(from, to);
        let Some(fabric) = &self.fabric else { return self.at_stage(from, to, stage) };
        let link = |stage: u8| route.links[stage as usize];
        if stage == 0 {
            return Hop { link: link(0), slowest: 0.0, latency: 0, next: Some(OUT) };
        }
        let rate = |link: u32| if link == NONE { 0.0 } else { self.links[link as usize].ps_per_byte };
        let mut slowest = rate(link(0));
        let neighbors = fabric.are_neighbors(self.card(from), self.card(to));
        if stage == OUT {
            let (next, more) = if neighbors { (IN, fabric.latency(Middle::default())) } else { (MIDDLE, 0) };
            return Hop { link: link(OUT), slowest, latency: route.latency + more, next: Some(next) };
        }
        // An adaptive route is decided at the first switch, where the message takes its link at once.
        slowest = slowest.max(rate(link(OUT)));
        let waiting = |link: u32| self.links[self.earliest(link) as usize].free.saturating_sub(event.time) as f64;
        let middle = self.middle(from, to, message, waiting).map_or(Middle::default(), |(_, middle)| middle);
        let before = if stage >= MIDDLE { u32::from(stage - MIDDLE) } else { middle.len };
        slowest = (0..before).map(|at| rate(fabric.link(middle, at))).fold(slowest, f64::max);
        if stage >= MIDDLE {
            let latency = if before == 0 { fabric.latency(middle) } else { 0 };
            let next = if before + 1 < middle.len { stage + 1 } else { IN };
            return Hop { link: self.earliest(fabric.link(middle, before)), slowest, latency, next: Some(next) };
        }
        if stage > IN {
            slowest = slowest.max(rate(link(IN)));
        }
        let next = Some(IN + 1).filter(|&next| stage == IN && link(next) != NONE);
        if next.is_none() {
            fabric.forget((from, to), message);
        }
        Hop { link: link(stage), slowest, latency: 0, next }
    }

    /// Names of the parts of a critical path, and of kinds of links.
    pub fn part_names(&self) -> [&'static str; COUNT] {
        self.part_names
    }

    /// Whether this role is a cut-through switch, where the head of a sum leaves with the heads of its inputs.
    #[inline]
    pub fn cuts_through(&self, role: u32) -> bool {
        self.cut_through && self.is_switch(role)
    }

    /// The node of a worker or server.
    #[inline]
    pub fn node(&self, role: u32) -> u32 {
        if let Some(placed) = &self.placed {
            placed.node_of[role as usize]
        } else if role < self.roles.workers {
            if self.gpus_per_node == 1 { role } else { role / self.gpus_per_node }
        } else if self.colocated {
            (role - self.roles.workers) % self.worker_nodes
        } else {
            self.worker_nodes + role - self.roles.workers
        }
    }

    #[inline]
    pub fn is_switch(&self, role: u32) -> bool {
        role >= self.roles.workers + self.roles.servers
    }

    fn role_out(&self, role: u32) -> u32 {
        2 * self.cards + 2 * role
    }

    /// The link for outgoing copies of a role; the next one is for incoming copies.
    fn host_out(&self, role: u32) -> u32 {
        if !self.copies {
            return NONE;
        }
        self.role_out(self.roles.workers + self.roles.servers) + 2 * role
    }

    /// The link for incoming copies of a role.
    fn host_in(&self, role: u32) -> u32 {
        if self.copies { self.host_out(role) + 1 } else { NONE }
    }

    /// The adder of a role, modeled as a link that every byte passes. Only if `adds`.
    pub fn adder(&self, role: u32) -> u32 {
        let roles = self.roles.workers + self.roles.servers;
        self.role_out(roles) + if self.copies { 2 * roles } else { 0 } + role
    }

    /// The first uplink.
    fn first_uplink(&self) -> u32 {
        let roles = self.roles.workers + self.roles.servers;
        self.adder(if self.adds { roles } else { 0 })
    }

    /// The rack of a node; without racks, all are in one.
    pub fn rack(&self, node: u32) -> u32 {
        self.nodes_per_rack.map_or(0, |per_rack| node / per_rack)
    }

    /// Racks that a multicast of this role reaches.
    pub fn racks_reached(&self, from: u32) -> Vec<u32> {
        let Some(placed) = &self.placed else {
            return (0..self.nodes_per_rack.map_or(1, |per_rack| self.worker_nodes.div_ceil(per_rack))).collect();
        };
        let mut racks: Vec<u32> = placed.first_workers(from).map(|worker| self.rack(self.node(worker))).collect();
        racks.dedup();
        racks
    }

    /// A rank on each node of a rack that a multicast of this role reaches.
    pub fn ranks_reached(&self, from: u32, rack: u32) -> Vec<u32> {
        if let Some(placed) = &self.placed {
            return placed.first_workers(from).filter(|&worker| self.rack(self.node(worker)) == rack).collect();
        }
        let per_rack = self.nodes_per_rack.unwrap_or(self.nodes);
        let nodes = (rack * per_rack).min(self.worker_nodes)..((rack + 1) * per_rack).min(self.worker_nodes);
        nodes.map(|node| node * self.gpus_per_node).collect()
    }

    /// All ranks of its job on the node of a worker.
    pub fn ranks_of(&self, worker: u32) -> Range<u32> {
        if let Some(placed) = &self.placed {
            let job = &placed.job(worker).workers;
            let same = |other: &u32| placed.node_of[*other as usize] == placed.node_of[worker as usize];
            return worker..worker + (worker..job.end).take_while(same).count() as u32;
        }
        let first = worker / self.gpus_per_node * self.gpus_per_node;
        first..(first + self.gpus_per_node).min(self.roles.workers)
    }

    /// Latency between nodes and inside one, for a role's messages.
    fn latency_of(&self, role: u32) -> (u64, u64) {
        self.placed.as_ref().map_or((self.latency, self.intra_latency), |placed| placed.job(role).latency)
    }

    /// The route of a multicast's copy to another node: as `route`, or over one tree of a fabric. Its latency is that of all
    /// switches on it.
    pub fn route_of_copy(&self, from: u32, to: u32) -> Route {
        let mut route = self.route(from, to);
        let (a, b) = (self.node(from), self.node(to));
        let Some(fabric) = self.fabric.as_ref().filter(|_| a != b) else { return route };
        let (home, away) = (Stand::Rack(self.rack(a)), Stand::Rack(self.rack(b)));
        route.latency += fabric.latency_up(home);
        if home != away
            && let Some(tree) = fabric.tree(from)
        {
            let link = |from, to| fabric.between(tree, from, to).unwrap_or(NONE);
            route.links[UP as usize] = link(home, Stand::Top);
            route.links[DOWN as usize] = link(Stand::Top, away);
            route.latency += 2 * fabric.hop_latency;
        }
        route
    }

    /// Latency that a switch of a fabric adds to a multicast.
    pub fn switch_latency(&self) -> u64 {
        self.fabric.as_ref().map_or(0, |fabric| fabric.hop_latency)
    }

    /// The link of a multicast's copy at a stage of its route.
    pub fn copy_at_stage(&self, from: u32, to: u32, stage: u8) -> Hop {
        if self.uniform { self.at_stage(from, to, stage) } else { self.hop_at(&self.route_of_copy(from, to), stage) }
    }

    /// The link on which a role receives its own copy of a message from `from`.
    fn last_link(&self, from: u32, to: u32) -> u32 {
        if self.copies && self.node(from) != self.node(to) { self.host_in(to) } else { self.role_out(to) + 1 }
    }

    /// The same, and the time per byte on the slowest link before it.
    pub fn last(&self, from: u32, to: u32) -> (u32, f64) {
        let before = self.copy_at_stage(from, to, IN).slowest;
        (self.last_link(from, to), before.max(self.card_into(from, to)))
    }

    /// The link of a message at a stage of its route.
    #[inline]
    pub fn at_stage(&self, from: u32, to: u32, stage: u8) -> Hop {
        if self.uniform {
            return Hop { link: 2 * self.node(to) + 1, slowest: 0.0, latency: 0, next: None };
        }
        self.hop_at(&self.route(from, to), stage)
    }

    #[inline]
    fn hop_at(&self, route: &Route, stage: u8) -> Hop {
        let rate = |&link: &u32| if link == NONE { 0.0 } else { self.links[link as usize].ps_per_byte };
        let slowest = route.links[..stage as usize].iter().map(rate).fold(0.0, f64::max);
        let latency = if stage == OUT { route.latency } else { 0 };
        Hop { link: self.earliest(route.links[stage as usize]), slowest, latency, next: route.next(stage + 1) }
    }

    /// The place of an aggregating switch.
    pub fn switch(&self, role: u32) -> SwitchPlace {
        self.switches[(role - self.roles.workers - self.roles.servers) as usize]
    }

    /// Latency from a node to a switch of this level (or back): the root is half-way between any two nodes.
    fn latency_to(&self, half: u64, level: u32, place: SwitchPlace) -> u64 {
        half * u64::from(level) / u64::from(place.levels)
    }

    /// The way between two switches: over the uplink of the lower one; if they are parts of one, over a link of their own.
    #[cold]
    fn between_switches(&self, from: u32, to: u32) -> Route {
        let (a, b) = (self.switch(from), self.switch(to));
        let up = a.level < b.level;
        let (low, high) = if up { (a, b) } else { (b, a) };
        let own = self.between_switches + 2 * low.id + u32::from(!up);
        let link = match (low.stand, &self.fabric) {
            _ if low.stand == high.stand => own,
            (_, Some(fabric)) => {
                let tree = fabric.tree(self.job_of(from));
                tree.and_then(|tree| fabric.between(tree, a.stand, b.stand)).unwrap_or(own)
            }
            (Stand::Rack(rack), None) if self.nodes_per_rack.is_some() => {
                self.first_uplink() + (2 * rack + u32::from(!up)) * self.uplinks
            }
            _ => own,
        };
        let mut links = [NONE; STAGES];
        links[if up { UP } else { DOWN } as usize] = link;
        let (latency, _) = self.latency_of(from);
        let half = if up { latency - latency / 2 } else { latency / 2 };
        let latency = self.latency_to(half, high.level, high) - self.latency_to(half, low.level, low);
        let switches = self.fabric.as_ref().map_or(0, |it| it.latency_up(high.stand) - it.latency_up(low.stand));
        Route { links, latency: latency + switches }
    }

    /// The number of a role in its job: what other jobs there are changes no route.
    #[inline]
    fn own_number(&self, role: u32) -> u32 {
        self.placed.as_ref().map_or(role, |placed| placed.own_numbers[role as usize])
    }

    /// The number of a role's job.
    fn job_of(&self, role: u32) -> u32 {
        self.placed.as_ref().map_or(0, |placed| u32::from(placed.job_of[role as usize]))
    }

    /// Links to and from the root of the aggregating switches are half of the path between two nodes.
    #[inline(always)]
    #[expect(clippy::inline_always, reason = "returned through memory it costs a stall per message")]
    pub fn route(&self, from: u32, to: u32) -> Route {
        let (latency, intra_latency) = self.latency_of(from);
        if self.is_switch(from) {
            if self.is_switch(to) {
                return self.between_switches(from, to);
            }
            let links = [NONE, NONE, NONE, NONE, 2 * self.card(to) + 1, self.host_in(to)];
            let place = self.switch(from);
            let switches = self.fabric.as_ref().map_or(0, |fabric| fabric.latency_down(place.stand));
            return Route { links, latency: self.latency_to(latency / 2, place.level, place) + switches };
        }
        let a = self.node(from);
        if self.is_switch(to) {
            let links = [self.host_out(from), 2 * self.card(from), NONE, NONE, NONE, NONE];
            let place = self.switch(to);
            let switches = self.fabric.as_ref().map_or(0, |fabric| fabric.latency_up(place.stand));
            return Route { links, latency: self.latency_to(latency - latency / 2, place.level, place) + switches };
        }
        let b = self.node(to);
        if a == b {
            let links = [NONE, self.role_out(from), NONE, NONE, self.role_out(to) + 1, NONE];
            return Route { links, latency: intra_latency };
        }
        let (out, into) = if self.rails { (self.card(from), self.card(to)) } else { (a, b) };
        let mut links = [self.host_out(from), 2 * out, NONE, NONE, 2 * into + 1, self.host_in(to)];
        if let Some(per_rack) = self.nodes_per_rack
            && self.fabric.is_none()
            && a / per_rack != b / per_rack
        {
            let first = self.first_uplink();
            links[UP as usize] = first + 2 * (a / per_rack) * self.uplinks;
            links[DOWN as usize] = first + (2 * (b / per_rack) + 1) * self.uplinks;
        }
        Route { links, latency }
    }

    /// Time per byte on the NIC through which a multicast reached a rank's node; zero from its own node.
    fn card_into(&self, from: u32, to: u32) -> f64 {
        let node = self.node(to);
        if self.node(from) == node { 0.0 } else { self.links[2 * node as usize + 1].ps_per_byte }
    }

    /// The parallel link after `link` that is free first. Only rack uplinks and fabrics have several.
    #[inline]
    pub fn earliest(&self, link: u32) -> u32 {
        if (self.first_between..self.between_switches).contains(&link) {
            return (link..link + self.channels).min_by_key(|&l| self.links[l as usize].free).unwrap_or(link);
        }
        if self.uplinks == 1 || self.links[link as usize].part != Part::RackUplink {
            return link;
        }
        (link..link + self.uplinks).min_by_key(|&l| self.links[l as usize].free).unwrap_or(link)
    }

    /// Control messages of a barrier between several servers: one to the first of them and one back.
    pub fn barrier_time(&self, first_server: u32, servers: u32) -> Time {
        if servers < 2 {
            return Time::ZERO;
        }
        let cards = |server| (self.card(first_server), self.card(first_server + server));
        let far = self
            .fabric
            .as_ref()
            .map_or(0, |fabric| (1..servers).map(cards).map(|(a, b)| fabric.least_latency(a, b)).max().unwrap_or(0));
        Time(2 * (self.latency + far + self.overhead))
    }

    /// Where a node's link appears in a timeline: with its worker or server, or with its first rank. Returns process,
    /// thread and the process's name.
    pub fn process_of_node(&self, card: u32, thread: u32) -> (u32, u32, String) {
        if self.placed.is_some() {
            return (NODES + card, thread, format!("node {card}"));
        }
        let node = self.node_of_card(card);
        if self.rails && card < self.roles.workers {
            return (card + 1, thread, self.card_name(card));
        }
        match node.checked_sub(self.worker_nodes) {
            Some(server) => (self.roles.workers + server + 1, thread, format!("server {server}")),
            None => {
                let rank = node * self.gpus_per_node;
                (rank + 1, thread, format!("worker {rank}"))
            }
        }
    }

    /// The name of a NIC's owner.
    fn card_name(&self, card: u32) -> String {
        let node = self.node_of_card(card);
        if node >= self.worker_nodes {
            format!("server {}", node - self.worker_nodes)
        } else if self.gpus_per_node == 1 || self.rails {
            format!("worker {card}")
        } else {
            format!("node {node}")
        }
    }

    /// A link's name for timelines and tables.
    pub fn name(&self, name: LinkName) -> String {
        let node = |card: u32| {
            if self.placed.is_some() { format!("node {card}") } else { self.card_name(card) }
        };
        let role = |role: u32| match role.checked_sub(self.roles.workers) {
            None => format!("worker {role}"),
            Some(server) => format!("server {server}"),
        };
        match name {
            LinkName::NodeOut(n) => format!("{} egress", node(n)),
            LinkName::NodeIn(n) => format!("{} ingress", node(n)),
            LinkName::RoleOut(r) => format!("{} egress inside the node", role(r)),
            LinkName::RoleIn(r) => format!("{} ingress inside the node", role(r)),
            LinkName::HostOut(r) => format!("{} copies out", role(r)),
            LinkName::HostIn(r) => format!("{} copies in", role(r)),
            LinkName::Adder(r) => format!("{} additions", role(r)),
            LinkName::RackUp(r) => format!("rack {r} up"),
            LinkName::RackDown(r) => format!("rack {r} down"),
            LinkName::Between { from, to, .. } => format!("{from}-{to}"),
            LinkName::SwitchUp(s) => format!("switch {s} up"),
            LinkName::SwitchDown(s) => format!("switch {s} down"),
        }
    }
}

/// Whether a link of this name, if there is one, is between two switches.
pub(crate) fn is_between(name: &str) -> bool {
    !["node", "worker", "server", "rack"].iter().any(|start| name.trim_start().starts_with(start))
}

/// Users' names of a link between two switches: by one end, which is all its links, or by both.
pub(crate) fn names_between(from: Switch, to: Switch) -> [String; 4] {
    [from.to_string(), to.to_string(), format!("{from}-{to}"), format!("{to}-{from}")]
}

/// Of a network: more need more memory than a simulation should.
const MOST_LINKS: u64 = 4_000_000;

/// Into how many links of a NIC's rate a wider one is divided, so that many messages pass at once: no more than so many
/// NICs can fill, even if each of the parts is as much slower than a NIC as rounding leaves it.
#[expect(clippy::cast_possible_truncation, clippy::cast_sign_loss, reason = "positive, and at most 2 * u32::MAX")]
fn parallel(whole: f64, nics: u32) -> u32 {
    whole.min(2.0 * f64::from(nics).max(1.0)).min(f64::from(u32::MAX)) as u32
}

/// Names of the parts, with those of a fabric's links.
fn part_names(fabric: Option<&cluster::Fabric>) -> [&'static str; COUNT] {
    let mut names = PARTS;
    if let Some(fabric) = fabric {
        let (lower, upper) = match fabric.shape {
            cluster::Shape::LeafSpine { .. } | cluster::Shape::Rails { .. } => ("leaf-spine link", ""),
            cluster::Shape::FatTree { .. } => ("edge-aggregation link", "aggregation-core link"),
            cluster::Shape::Dragonfly { .. } => ("local link", "global link"),
            cluster::Shape::Torus { .. } => ("torus link", ""),
        };
        (names[Part::RackUplink as usize], names[Part::Global as usize]) = (lower, upper);
    }
    names
}
