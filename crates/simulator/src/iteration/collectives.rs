//! How long a collective takes if nothing else is on the network, and which share of that time each kind of link is busy.
//!
//! By the event simulation of its messages, once for each size; where they are too many, by the closed form of the
//! strategy's own file.
use std::collections::HashMap;

use paceline_iteration::Group;
use paceline_model::{Cluster, Rate, Time};
use paceline_schedule::{Bucket, Link, Links, Schedule};

use super::by_message::exchange_alone;
use super::executed::Alone;
use super::groups::{ELEMENT_BYTES, Grouped, Programs};
use crate::network::left::slowest_port;
use crate::options::{Network, Options, SimulationError};
use crate::outcome::LinkUse;
use crate::path::{COUNT, PARTS, Part};
use crate::prepare::MAX_ROLES;

/// A collective of more messages than this (a tenth of a second) takes its closed form, if it has one.
const FEW_MESSAGES: u64 = 200_000;
/// Without one, a collective of more messages than this is refused.
const MOST_MESSAGES: u64 = 20_000_000;

pub(super) struct Collectives<'a> {
    programs: &'a Programs,
    cluster: &'a Cluster,
    options: &'a Options,
    world: u32,
    known: HashMap<(usize, u64), Alone>,
}

impl<'a> Collectives<'a> {
    pub fn new(programs: &'a Programs, cluster: &'a Cluster, options: &'a Options, world: u32) -> Collectives<'a> {
        Collectives { programs, cluster, options, world, known: HashMap::new() }
    }

    pub fn alone(&mut self, exchange: u32) -> Result<Alone, SimulationError> {
        let (part, bucket) = self.programs.exchanges[exchange as usize];
        if let Some(known) = self.known.get(&(part, bucket.len)) {
            return Ok(known.clone());
        }
        let found = match self.forecast(exchange, bucket.len)? {
            Some(found) => found,
            None => self.find(exchange, Bucket { id: 0, ..bucket })?,
        };
        self.known.insert((part, bucket.len), found.clone());
        Ok(found)
    }

    /// By the model of the library, if there is one.
    fn forecast(&self, exchange: u32, bytes: u64) -> Result<Option<Alone>, SimulationError> {
        let Some(nccl) = &self.options.collectives else { return Ok(None) };
        let part = self.programs.part(exchange);
        // The library's model does not know switches that add up.
        if part.has_switches {
            return Ok(None);
        }
        let found = nccl.time(part.collective, part.group, bytes, self.world)?;
        let time = Time::from_seconds(found.seconds);
        let slowest = if part.leaves_node { Part::WorkerEgress } else { Part::IntraNode };
        let mut busy = [0.0; COUNT];
        busy[slowest as usize] = found.busy;
        let busiest_s = time.seconds() * found.busy;
        let links = self.world.div_ceil(if part.leaves_node { self.cluster.gpus_per_node } else { 1 });
        let link = LinkUse { kind: PARTS[slowest as usize], links, busiest_s, mean_s: busiest_s };
        Ok(Some(Alone { time: time.0, busy, links: vec![link] }))
    }

    fn find(&self, exchange: u32, bucket: Bucket) -> Result<Alone, SimulationError> {
        let part = self.programs.part(exchange);
        let ranks = if self.world > MAX_ROLES { self.repeating(part.group) } else { self.world };
        let grouped = Grouped::alone(part, ranks);
        let messages = grouped.volume(&bucket).messages;
        let by_form = if self.needs_events() { None } else { self.closed_form(exchange, &bucket) };
        match by_form {
            Some(found) if messages > FEW_MESSAGES => Ok(found),
            _ if messages <= MOST_MESSAGES && ranks <= MAX_ROLES => {
                let options = Options { workers: ranks, ..self.options.clone() };
                let mut found = exchange_alone(grouped, bucket, self.cluster, &options)?;
                found.links.iter_mut().for_each(|link| link.links *= self.world / ranks);
                Ok(found)
            }
            _ => Err(SimulationError::about(
                "strategy",
                format!(
                    "{} has no closed form {}, and {messages} messages of one collective between {} workers are \
                 more than the {MOST_MESSAGES} between {MAX_ROLES} that are simulated",
                    self.programs.entry.name,
                    if self.needs_events() { "on such a network" } else { "here" },
                    self.world
                ),
            )
            .remedy("{strategy=ring}, or fewer {workers}")),
        }
    }

    /// The fewest ranks whose groups are those of all others again, on the same places of other nodes: what they do is the
    /// same, and is simulated once.
    fn repeating(&self, group: Group) -> u32 {
        let (block, per_node) = (group.size * group.stride, self.cluster.gpus_per_node);
        let ranks = (1..=per_node).map(|blocks| blocks.saturating_mul(block)).find(|it| it.is_multiple_of(per_node));
        let of_all = |&ranks: &u32| self.world.is_multiple_of(ranks);
        let apart = self.cluster.racks.is_none() && self.cluster.fabric.is_none() && self.cluster.degraded.is_empty();
        ranks.filter(of_all).filter(|_| apart).unwrap_or(self.world)
    }

    /// Whether a closed form would leave something out.
    fn needs_events(&self) -> bool {
        let it = self.cluster;
        it.racks.is_some()
            || it.fabric.is_some()
            || slowest_port(it).is_none()
            || it.host_bandwidth.is_some()
            || it.reduction_bandwidth.is_some()
            || self.options.network == Network::Fluid
    }

    fn closed_form(&self, exchange: u32, bucket: &Bucket) -> Option<Alone> {
        let part = self.programs.part(exchange);
        let cluster = self.cluster;
        let least = part.schedule.least_latency(bucket);
        // Ranks of one node that are in different groups share its NIC.
        let sharing = f64::from(part.group.stride.min(cluster.gpus_per_node));
        let link = |rate: Rate, latency: Time, least: f64, sharing: f64| Link {
            latency_s: latency.seconds().max(least) + cluster.message_overhead.seconds(),
            s_per_element: ELEMENT_BYTES as f64 * 8.0 / rate.0 * sharing,
        };
        let port = Rate(cluster.bandwidth.0 * slowest_port(cluster).unwrap_or(1.0));
        let between = link(port, cluster.latency, least.map_or(0.0, |it| it.between_s), sharing);
        let inside = link(cluster.intra_bandwidth, cluster.intra_latency, least.map_or(0.0, |it| it.inside_s), 1.0);
        let seconds = part.schedule.closed_form_on_nodes(bucket, Links { between, inside })?;
        let at_once = |link: Link| Link { latency_s: 0.0, ..link };
        let transmission =
            part.schedule.closed_form_on_nodes(bucket, Links { between: at_once(between), inside: at_once(inside) })?;
        let mut busy = [0.0; COUNT];
        let slowest = if part.leaves_node { Part::WorkerEgress } else { Part::IntraNode };
        if seconds > 0.0 {
            busy[slowest as usize] = (transmission / seconds).min(1.0);
        }
        let links = self.world.div_ceil(if part.leaves_node { cluster.gpus_per_node } else { 1 });
        Some(Alone {
            time: Time::from_seconds(seconds).0,
            busy,
            links: vec![LinkUse {
                kind: PARTS[slowest as usize],
                links,
                busiest_s: transmission,
                mean_s: transmission,
            }],
        })
    }
}
