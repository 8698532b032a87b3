//! What the network between nodes carries for NCCL: RDMA from the memory of GPUs or through the host's, and sockets.
use crate::calibration::Calibration;
use crate::machine::{Group, Machine};

/// TCP sockets between two ranks on different nodes (`src/transport/net_socket.cc`).
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Sockets {
    /// Helper threads of a connection; 0: the proxy's thread sends and receives itself.
    pub threads: u32,
    /// Sockets of a thread.
    pub per_thread: u32,
}

/// The transport of messages between nodes.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Transport {
    /// NICs read and write the memory of GPUs.
    Rdma,
    /// NICs read and write memory of the host, and GPUs likewise: every byte crosses PCI Express twice at either end.
    RdmaThroughHost,
    /// The host's TCP.
    Sockets(Sockets),
}

/// Connections of a ring to the next node over one NIC: NCCL doubles its channels there.
const CONNECTIONS: f64 = 2.0;

impl Machine {
    /// The machine with the network that its transport carries for a group; with RDMA, it is as it was.
    #[must_use]
    pub fn carrying(&self, group: Group, calibration: &Calibration) -> Machine {
        let most = match self.transport {
            Transport::Rdma => return self.clone(),
            Transport::RdmaThroughHost => self.through_host(),
            Transport::Sockets(sockets) => self.through_host().min(sockets.most(group.per_node_used(), calibration)),
        };
        let usual = if matches!(self.transport, Transport::Sockets(_)) { "socket.share" } else { "network.share" };
        let share = self.nic_share.unwrap_or_else(|| calibration.value(usual));
        let network = self.network.min(f64::from(self.nics) * most / share);
        Machine { network, nic_share: Some(share), ..self.clone() }
    }

    /// Bytes per second of a NIC whose messages cross the PCI Express of its GPU's switch twice.
    fn through_host(&self) -> f64 {
        self.generation.slot / 2.0
    }
}

impl Sockets {
    /// Bytes per second each way that threads of the host carry over one network interface.
    ///
    /// Of several ranks on a node, one sends to the next node and another receives, each in a thread of its own; a rank
    /// that is alone does both.
    fn most(self, ranks_of_node: u32, calibration: &Calibration) -> f64 {
        let thread = calibration.value("socket.thread");
        let own = if ranks_of_node > 1 { thread } else { thread * calibration.value("socket.both-ways") };
        let helped = f64::from(self.threads) * CONNECTIONS * thread;
        own.max(helped).min(calibration.value("socket.interface").max(own))
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn machine(transport: Transport, network: f64, nics: u32) -> Machine {
        Machine { transport, nics, network, nominal: network, ..Machine::of_rates(8, 300e9, network) }
    }

    fn carried(transport: Transport, network: f64, per_node: u32) -> f64 {
        let group = Group::new(2 * per_node, per_node);
        machine(transport, network, 1).carrying(group, &Calibration::default()).network
    }

    #[test]
    fn rdma_is_as_it_was() {
        let one = machine(Transport::Rdma, 50e9, 4);
        assert_eq!(one.carrying(Group::new(16, 8), &Calibration::default()), one);
    }

    #[test]
    fn slow_wires_limit_sockets_and_threads_fast_ones() {
        let sockets = |threads| Transport::Sockets(Sockets { threads, per_thread: 1 });
        let value = |name| Calibration::default().value(name);
        // `of_rates` says that messages get all of the wire.
        assert_eq!(carried(sockets(0), 1.25e9, 8), 1.25e9);
        assert_eq!(carried(sockets(0), 1e12, 8), value("socket.thread"));
        assert_eq!(carried(sockets(0), 1e12, 1), value("socket.thread") * value("socket.both-ways"));
        assert_eq!(carried(sockets(4), 1e12, 8), value("socket.interface"));
        for threads in 0..16 {
            for per_node in [1, 8] {
                assert!(carried(sockets(threads), 1e12, per_node) <= carried(sockets(threads + 1), 1e12, per_node));
            }
        }
    }

    #[test]
    fn bytes_through_the_host_cross_the_bus_twice() {
        // PCI Express 5.0, by the links inside the node.
        assert_eq!(carried(Transport::RdmaThroughHost, 1e12, 8), 24e9);
        assert_eq!(carried(Transport::RdmaThroughHost, 10e9, 8), 10e9);
    }
}
