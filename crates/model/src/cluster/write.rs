//! Writes a cluster, with units as people write them.
use super::{Channel, Cluster, CompressionCosts, Fabric, PartCosts, Shape, Sockets};
use crate::document::quoted;
use crate::units::{Rate, Time, parse_rate, parse_size, parse_time};

impl Cluster {
    /// The JSON of docs/reference/cluster-format.md, with every field. Reading it gives this cluster again.
    #[must_use]
    pub fn to_json(&self) -> String {
        let mut fields = vec![
            ("format", quoted("paceline-cluster")),
            ("version", "1".into()),
            ("name", quoted(&self.name)),
            ("provenance", quoted(&self.provenance)),
            ("bandwidth", rate(self.bandwidth)),
        ];
        if !self.bandwidth_measured {
            fields.push(("bandwidth_measured", "false".into()));
        }
        if self.channel != Channel::Unknown {
            fields.push(("channel", quoted(self.channel.name())));
        }
        fields.extend(self.efficiency.map(|share| ("efficiency", format!("{share:?}"))));
        fields.extend(self.stream_bandwidth.map(|stream| ("stream_bandwidth", rate(stream))));
        fields.extend([
            ("latency", time(self.latency)),
            ("message_overhead", time(self.message_overhead)),
            ("gpus_per_node", self.gpus_per_node.to_string()),
        ]);
        if self.gpus_per_rank != 1 {
            fields.push(("gpus_per_rank", self.gpus_per_rank.to_string()));
        }
        if !self.gpu.is_empty() {
            fields.push(("gpu", quoted(&self.gpu)));
        }
        if self.nics_per_node != 1 {
            fields.push(("nics_per_node", self.nics_per_node.to_string()));
        }
        if !self.gpudirect {
            fields.push(("gpudirect", "false".into()));
        }
        if !self.nccl_plugin.is_empty() {
            fields.push(("nccl_plugin", quoted(&self.nccl_plugin)));
        }
        if self.nccl_sockets != Cluster::default().nccl_sockets {
            let Sockets { threads, per_thread } = self.nccl_sockets;
            fields.push(("nccl_sockets", format!("{{\"threads\": {threads}, \"per_thread\": {per_thread}}}")));
        }
        fields.push(("intra_bandwidth", rate(self.intra_bandwidth)));
        fields.extend(self.intra_link.map(|link| ("intra_link", quoted(link.name()))));
        if !self.peer_access {
            fields.push(("peer_access", "false".into()));
        }
        if self.sockets != 1 {
            fields.push(("sockets", self.sockets.to_string()));
        }
        if let Some(mesh) = self.mesh {
            fields.push(("mesh", format!("{{\"peers\": {}, \"bridge\": {}}}", mesh.peers, rate(mesh.bridge))));
        }
        fields.push(("intra_latency", time(self.intra_latency)));
        let own = [("host_bandwidth", self.host_bandwidth), ("reduction_bandwidth", self.reduction_bandwidth)];
        fields.extend(own.into_iter().filter_map(|(field, value)| Some((field, rate(value?)))));
        if self.node_contention > 0.0 {
            fields.push(("node_contention", format!("{:?}", self.node_contention)));
        }
        fields.push(("servers", quoted(self.servers.name())));
        if let Some(racks) = self.racks {
            let (nodes, oversubscription) = (racks.nodes_per_rack, racks.oversubscription);
            let object = format!("{{\"nodes_per_rack\": {nodes}, \"oversubscription\": {oversubscription:?}}}");
            fields.push(("racks", object));
        }
        if let Some(shape) = &self.fabric {
            fields.push(("fabric", fabric(shape)));
        }
        if !self.degraded.is_empty() {
            let links = self
                .degraded
                .iter()
                .map(|one| format!("    {{\"link\": {}, \"factor\": {:?}}}", quoted(&one.link), one.factor));
            fields.push(("degraded", format!("[\n{}\n  ]", links.collect::<Vec<_>>().join(",\n"))));
        }
        let mut switch =
            format!("{{\"multicast\": {}, \"aggregation\": {}", self.switch.multicast, self.switch.aggregation);
        if self.switch.cut_through {
            switch += ", \"cut_through\": true";
        }
        if let Some(bytes) = self.switch.memory {
            switch += &format!(", \"memory\": {}", size(bytes));
        }
        if let Some(radix) = self.switch.radix {
            switch += &format!(", \"radix\": {radix}");
        }
        fields.push(("switch", switch + "}"));
        if !self.stragglers.is_empty() {
            let straggler = |&(rank, factor): &(u32, f64)| format!("    {{\"rank\": {rank}, \"factor\": {factor:?}}}");
            let stragglers: Vec<String> = self.stragglers.iter().map(straggler).collect();
            fields.push(("stragglers", format!("[\n{}\n  ]", stragglers.join(",\n"))));
        }
        if let Some(jitter) = self.jitter {
            fields.push(("jitter", format!("{{\"sigma\": {:?}}}", jitter.sigma)));
        }
        if !self.compression_costs.is_empty() {
            let methods: Vec<String> = self.compression_costs.iter().map(compression).collect();
            fields.push(("compression_costs", format!("[\n{}\n  ]", methods.join(",\n"))));
        }
        let lines: Vec<String> = fields.into_iter().map(|(field, value)| format!("  \"{field}\": {value}")).collect();
        format!("{{\n{}\n}}\n", lines.join(",\n"))
    }
}

fn compression(costs: &CompressionCosts) -> String {
    let part = |name: &str, part: PartCosts| {
        let values = [
            ("bucket_s", part.bucket_s),
            ("tensor_s", part.tensor_s),
            ("element_s", part.element_s),
            ("received_s", part.received_s),
        ];
        let values = values.iter().filter(|(_, seconds)| *seconds > 0.0);
        let values: Vec<String> = values.map(|(field, seconds)| format!("\"{field}\": {seconds:e}")).collect();
        if values.is_empty() { String::new() } else { format!(", \"{name}\": {{{}}}", values.join(", ")) }
    };
    format!(
        "    {{\"method\": {}{}{}{}}}",
        quoted(&costs.method),
        part("compress", costs.compress),
        part("between", costs.between),
        part("decompress", costs.decompress)
    )
}

fn fabric(fabric: &Fabric) -> String {
    let mut fields = vec![("kind", quoted(fabric.shape.name()))];
    match &fabric.shape {
        Shape::LeafSpine { nodes_per_leaf, spines, oversubscription }
        | Shape::Rails { nodes_per_leaf, spines, oversubscription } => {
            fields.push(("nodes_per_leaf", nodes_per_leaf.to_string()));
            fields.push(("spines", spines.to_string()));
            if fabric.link_bandwidth.is_none() {
                fields.push(("oversubscription", format!("{oversubscription:?}")));
            }
        }
        Shape::FatTree { radix, oversubscription } => {
            fields.push(("radix", radix.to_string()));
            fields.push(("oversubscription", format!("{oversubscription:?}")));
        }
        Shape::Dragonfly { nodes_per_router, routers_per_group, global_links, groups } => {
            fields.push(("nodes_per_router", nodes_per_router.to_string()));
            fields.push(("routers_per_group", routers_per_group.to_string()));
            fields.push(("global_links", global_links.to_string()));
            fields.push(("groups", groups.to_string()));
        }
        Shape::Torus { dimensions } => {
            let sizes: Vec<String> = dimensions.iter().map(u32::to_string).collect();
            fields.push(("dimensions", format!("[{}]", sizes.join(", "))));
        }
    }
    fields.extend(fabric.link_bandwidth.map(|value| ("link_bandwidth", rate(value))));
    fields.push(("hop_latency", time(fabric.hop_latency)));
    fields.push(("routing", quoted(fabric.routing.name())));
    let fields: Vec<String> = fields.into_iter().map(|(field, value)| format!("\"{field}\": {value}")).collect();
    format!("{{{}}}", fields.join(", "))
}

/// The number in the first unit in which it is at least 1 and is read back unchanged; floats may lose their last bit in
/// the conversion, and then a smaller unit is tried. The last unit always works.
fn exactly(value: f64, units: &[(&str, f64)], is_exact: impl Fn(&str) -> bool) -> String {
    let texts = units.iter().filter(|&&(_, factor)| value >= factor || factor == 1.0);
    let mut texts = texts.map(|(unit, factor)| format!("{}{unit}", value / factor)).filter(|text| is_exact(text));
    quoted(&texts.next().unwrap_or_else(|| format!("{value}{}", units.last().map_or("", |unit| unit.0))))
}

/// A rate as people write it, `25Gbps`; [`parse_rate`] reads it back unchanged.
#[must_use]
pub fn written_rate(rate: Rate) -> String {
    unquoted(&self::rate(rate))
}

/// A time as people write it, `10us`; [`parse_time`] reads it back unchanged.
#[must_use]
pub fn written_time(time: Time) -> String {
    unquoted(&self::time(time))
}

fn unquoted(literal: &str) -> String {
    literal.trim_matches('"').to_owned()
}

fn rate(rate: Rate) -> String {
    let units = [("Tbps", 1e12), ("Gbps", 1e9), ("Mbps", 1e6), ("kbps", 1e3), ("bps", 1.0)];
    exactly(rate.0, &units, |text| parse_rate(text) == Ok(rate))
}

fn size(bytes: u64) -> String {
    let units = [("TB", 1e12), ("GB", 1e9), ("MB", 1e6), ("kB", 1e3), ("B", 1.0)];
    // At most 1e15, which a float holds.
    exactly(bytes as f64, &units, |text| parse_size(text) == Ok(bytes))
}

fn time(time: Time) -> String {
    let units = [("s", 1e12), ("ms", 1e9), ("us", 1e6), ("ns", 1e3), ("ps", 1.0)];
    exactly(time.0 as f64, &units, |text| parse_time(text) == Ok(time))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn machines_are_written_and_read_back() {
        let said = Cluster {
            gpu: "H100".into(),
            nics_per_node: 8,
            gpus_per_node: 8,
            intra_link: Some(crate::cluster::IntraLink::Nvswitch),
            ..Cluster::default()
        };
        assert_eq!(Cluster::from_json(said.to_json().as_bytes(), "it").ok(), Some(said.clone()));
        let cards = crate::cluster::IntraLink::Pcie;
        let said = Cluster { intra_link: Some(cards), peer_access: false, sockets: 2, ..said };
        assert_eq!(Cluster::from_json(said.to_json().as_bytes(), "it").ok(), Some(said));
    }

    #[test]
    fn units_are_those_people_write() {
        assert_eq!(rate(Rate(25e9)), "\"25Gbps\"");
        assert_eq!(rate(Rate(2.5e9)), "\"2.5Gbps\"");
        assert_eq!(rate(Rate(1.0)), "\"1bps\"");
        assert_eq!(time(Time::ZERO), "\"0ps\"");
        assert_eq!(time(Time::from_seconds(10e-6)), "\"10us\"");
        assert_eq!(size(10_000_000), "\"10MB\"");
        assert_eq!(size(1024), "\"1.024kB\"");
    }
}
