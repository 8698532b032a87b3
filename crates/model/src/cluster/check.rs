//! Checks of clusters that a program has changed, and those that involve several fields.
use std::collections::{BTreeMap, HashMap};
use std::ops::RangeInclusive;

use serde_json::value::RawValue;

use super::{Cluster, Fabric, IntraLink, PartCosts, Shape, Switch};
use crate::document::fields::{check_delay, check_name, check_text};
use crate::document::{DocumentError, Problem, with_value};
use crate::units::Rate;

/// Allowed values of fields.
pub(super) mod range {
    use std::ops::RangeInclusive;

    pub const GPUS_PER_NODE: RangeInclusive<u32> = 1..=1024;
    pub const NICS_PER_NODE: RangeInclusive<u32> = 1..=128;
    pub const SOCKETS: RangeInclusive<u32> = 1..=8;
    /// MAX_THREADS and MAX_SOCKETS of NCCL's `net_socket.cc`.
    pub const SOCKET_THREADS: RangeInclusive<u32> = 0..=16;
    pub const SOCKETS_PER_THREAD: RangeInclusive<u32> = 1..=64;
    pub const NODES_PER_RACK: RangeInclusive<u32> = 1..=u32::MAX;
    /// Workers in one aggregation.
    pub const AGGREGATED: RangeInclusive<u32> = 2..=u32::MAX;
    pub const OVERSUBSCRIPTION: RangeInclusive<f64> = 1.0..=1000.0;
    pub const LEFT: RangeInclusive<f64> = 0.0..=1.0;
    /// Least share of a link's rate that counts as slow, not removed.
    pub const LEAST_LEFT: f64 = 1e-9;
    pub const SLOWER: RangeInclusive<f64> = 0.01..=1000.0;
    pub const SIGMA: RangeInclusive<f64> = 0.0..=2.0;
    pub const EFFICIENCY: RangeInclusive<f64> = 0.01..=1.0;
    pub const CONTENTION: RangeInclusive<f64> = 0.0..=10.0;
    pub const SECONDS: RangeInclusive<f64> = 0.0..=60.0;
    /// Bits per second: those that [`crate::units::parse_rate`] reads.
    pub const RATE: RangeInclusive<f64> = 1.0..=1e18;
}

impl Cluster {
    /// This cluster if every field has a value that a file may have. `source` is its name in errors.
    ///
    /// # Errors
    /// One line that names the field.
    pub fn checked(self, source: &str) -> Result<Cluster, DocumentError> {
        self.check_each().and_then(|()| self.check_together()).map_err(|problem| problem.of(source))?;
        Ok(self)
    }

    /// This cluster with other values of some fields: a JSON object in the spelling of docs/reference/cluster-format.md,
    /// as users write them. `source` is its name in errors.
    ///
    /// A fabric that replaces one switch has none of its features unless the fields give some.
    ///
    /// # Errors
    /// Whatever a file may not have, in one line that names the place.
    pub fn with_fields(&self, fields: &str, source: &str) -> Result<Cluster, DocumentError> {
        type Fields = BTreeMap<String, Box<RawValue>>;
        let read = |text: &str| {
            serde_json::from_str::<Fields>(text).map_err(|error| DocumentError::at(source, "", &error.to_string()))
        };
        let changes = read(fields)?;
        let mut base = self.clone();
        if changes.contains_key("fabric") && !changes.contains_key("switch") && self.fabric.is_none() {
            base.switch = Switch { multicast: false, aggregation: false, ..base.switch };
        }
        let mut all = read(&base.to_json())?;
        all.extend(changes);
        let text = serde_json::to_string(&all).map_err(|error| DocumentError::at(source, "", &error.to_string()))?;
        Cluster::from_json(text.as_bytes(), source)
    }

    fn check_each(&self) -> Result<(), Problem> {
        let at = |place: &'static str| move |message: String| Problem::new(place, message);
        check_name(self.name.clone()).map_err(at("name"))?;
        check_text(self.provenance.clone()).map_err(at("provenance"))?;
        check_text(self.gpu.clone()).map_err(at("gpu"))?;
        let rate = |place, rate: Option<Rate>| rate.map_or(Ok(()), |rate| within(place, rate.0, &range::RATE));
        rate("bandwidth", Some(self.bandwidth))?;
        rate("stream_bandwidth", self.stream_bandwidth)?;
        rate("intra_bandwidth", Some(self.intra_bandwidth))?;
        rate("host_bandwidth", self.host_bandwidth)?;
        rate("reduction_bandwidth", self.reduction_bandwidth)?;
        rate("mesh.bridge", self.mesh.map(|mesh| mesh.bridge))?;
        rate("fabric.link_bandwidth", self.fabric.as_ref().and_then(|fabric| fabric.link_bandwidth))?;
        check_delay(self.latency).map_err(at("latency"))?;
        check_delay(self.message_overhead).map_err(at("message_overhead"))?;
        check_delay(self.intra_latency).map_err(at("intra_latency"))?;
        within("gpus_per_node", self.gpus_per_node, &range::GPUS_PER_NODE)?;
        within("gpus_per_rank", self.gpus_per_rank, &range::GPUS_PER_NODE)?;
        within("nics_per_node", self.nics_per_node, &range::NICS_PER_NODE)?;
        within("sockets", self.sockets, &range::SOCKETS)?;
        check_text(self.nccl_plugin.clone()).map_err(at("nccl_plugin"))?;
        within("nccl_sockets.threads", self.nccl_sockets.threads, &range::SOCKET_THREADS)?;
        within("nccl_sockets.per_thread", self.nccl_sockets.per_thread, &range::SOCKETS_PER_THREAD)?;
        within("node_contention", self.node_contention, &range::CONTENTION)?;
        self.efficiency.map_or(Ok(()), |share| within("efficiency", share, &range::EFFICIENCY))?;
        self.jitter.map_or(Ok(()), |jitter| within("jitter.sigma", jitter.sigma, &range::SIGMA))?;
        self.switch.radix.map_or(Ok(()), |radix| within("switch.radix", radix, &range::AGGREGATED))?;
        if let Some(mesh) = self.mesh {
            within("mesh.peers", mesh.peers, &range::GPUS_PER_NODE)?;
        }
        if let Some(racks) = self.racks {
            within("racks.nodes_per_rack", racks.nodes_per_rack, &range::NODES_PER_RACK)?;
            within("racks.oversubscription", racks.oversubscription, &range::OVERSUBSCRIPTION)?;
        }
        if let Some(Shape::LeafSpine { oversubscription, .. } | Shape::Rails { oversubscription, .. }) =
            self.fabric.as_ref().map(|fabric| &fabric.shape)
        {
            within("fabric.oversubscription", *oversubscription, &range::OVERSUBSCRIPTION)?;
        }
        for (number, one) in self.degraded.iter().enumerate() {
            check_name(one.link.clone())
                .map_err(|message| Problem::new(format!("degraded[{number}].link"), message))?;
            let place = format!("degraded[{number}].factor");
            within(&place, one.factor, &range::LEFT)?;
            if let Some(message) = too_little_left(one.factor) {
                return Err(Problem::new(place, message));
            }
        }
        for (number, &(_, factor)) in self.stragglers.iter().enumerate() {
            within(&format!("stragglers[{number}].factor"), factor, &range::SLOWER)?;
        }
        for costs in &self.compression_costs {
            check_name(costs.method.clone()).map_err(at("compression_costs"))?;
            for PartCosts { bucket_s, tensor_s, element_s, received_s } in
                [costs.compress, costs.between, costs.decompress]
            {
                for seconds in [bucket_s, tensor_s, element_s, received_s] {
                    within("compression_costs", seconds, &range::SECONDS)?;
                }
            }
        }
        Ok(())
    }

    /// Checks that involve several fields.
    pub(super) fn check_together(&self) -> Result<(), Problem> {
        if self.fabric.is_some() && self.racks.is_some() {
            return Err(Problem::new("fabric", "describes the racks, too").remedy("drop \"racks\", or \"fabric\""));
        }
        if let Some(Fabric { shape, .. }) = &self.fabric {
            let wrong = |feature: &str, places: &str| {
                let name = shape.name();
                let message = format!("{feature} is modeled in {places}, not in {name}");
                Err(Problem::new("switch", message).remedy(format!("\"{feature}\": false")))
            };
            if self.switch.multicast && !shape.can_multicast() {
                return wrong("multicast", "one switch, racks and leaf-spine fabrics");
            }
            if self.switch.aggregation && !shape.can_aggregate() {
                return wrong("aggregation", "one switch, racks, leaf-spine fabrics and fat trees");
            }
            if self.nics_per_node != 1 && matches!(shape, Shape::Rails { .. }) {
                return Err(Problem::new("nics_per_node", RAILS).remedy("drop \"nics_per_node\""));
            }
        }
        if self.intra_link == Some(IntraLink::Pcie) && self.mesh.is_some() {
            return Err(Problem::new("mesh", "needs NVLinks between GPUs").remedy("\"intra_link\": \"nvlink\""));
        }
        let is_pcie = self.intra_link.is_none_or(|link| link == IntraLink::Pcie);
        if !is_pcie && !self.peer_access {
            return Err(Problem::new("peer_access", "is of PCI Express").remedy("\"intra_link\": \"pcie\""));
        }
        if !is_pcie && self.sockets != 1 {
            return Err(Problem::new("sockets", "is of PCI Express").remedy("\"intra_link\": \"pcie\""));
        }
        let mut places: HashMap<u32, usize> = HashMap::new();
        for (at, &(rank, _)) in self.stragglers.iter().enumerate() {
            if let Some(before) = places.insert(rank, at) {
                let message = format!("rank {rank} has a factor already, stragglers[{before}]");
                return Err(Problem::new(format!("stragglers[{at}].rank"), message).remedy("one of the two"));
            }
        }
        Ok(())
    }
}

/// Why the number of a node's NICs is refused.
pub(super) const RAILS: &str = "has no effect with rails, where each GPU has a NIC";

/// Why less than [`range::LEAST_LEFT`] of a link is refused.
pub(super) fn too_little_left(factor: f64) -> Option<String> {
    let least = range::LEAST_LEFT;
    let is_little = factor > 0.0 && factor < least;
    is_little.then(|| {
        with_value(
            format!("must be at least {least:e}, or 0, not {factor:e}"),
            format!("{least:e} (0 removes the link)"),
        )
    })
}

fn within<T: PartialOrd + std::fmt::Display>(place: &str, value: T, range: &RangeInclusive<T>) -> Result<(), Problem> {
    if range.contains(&value) {
        return Ok(());
    }
    let message = format!("must be {}-{}, not {value}", range.start(), range.end());
    Err(Problem::new(place, message).value(if value > *range.end() { range.end() } else { range.start() }))
}
