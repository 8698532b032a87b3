//! Settings that contradict each other or what the ranks found out about each other.
use super::peers::Peer;
use crate::settings::{CudaBy, Settings, Transport};
use paceline_schedule::{Knob, find};

use paceline_transport::error::{Result, RunError};
use paceline_transport::offload::{DeviceSupport, OnDevices};

/// A rank among ranks, of which at least one trains.
pub(super) fn check_place(rank: u32, size: u32, settings: &Settings) -> Result<()> {
    if size == 0 || rank >= size || size > u32::from(u16::MAX) / 2 {
        return Err(RunError::Usage(format!(
            "rank {rank} of {size} ranks: a rank is at least 0 and less than the number of ranks, which is at most 32,767"
        )));
    }
    if settings.switches > 0 {
        let entry = settings.strategy.as_deref().and_then(find).filter(|entry| entry.uses(Knob::Aggregation));
        let Some(entry) = entry else {
            return Err(RunError::Usage("switch: a switch process needs a strategy that aggregates".into()));
        };
        if entry.uses(Knob::Servers) && !settings.dedicated {
            return Err(RunError::Usage("switch: a switch process needs server processes".into()));
        }
    }
    if settings.helpers() >= size {
        return Err(RunError::Usage(format!(
            "{} servers and {} switches among {size} ranks leave no rank to train",
            settings.server_processes(),
            settings.switches
        )));
    }
    Ok(())
}

pub(super) fn check_transport(rank: u32, settings: &Settings, peers: &[Peer], shared_with: &[bool]) -> Result<()> {
    let without = (0..peers.len()).find(|&peer| peer != rank as usize && !shared_with[peer]);
    match (settings.transport, without) {
        (Transport::Shm, Some(peer)) => Err(RunError::Setting(
            "transport",
            format!(
                "shm: rank {rank} and {} cannot share memory; they must run on the same host, in the same \
             container and as the same user. Use transport auto or tcp",
                peers[peer].describe()
            ),
        )),
        _ => Ok(()),
    }
}

/// Rejects `cuda mpi` where MPI is not used, or takes no memory of devices. `devices`: what it takes on all ranks.
pub(super) fn check_cuda(settings: &Settings, devices: Option<&DeviceSupport>) -> Result<()> {
    let refused = |why: &str| {
        let remedy = "use --cuda host, or leave it out";
        Err(RunError::Setting("cuda", format!("mpi: {why}; {remedy}")))
    };
    let native = settings.strategy.as_deref().and_then(find).is_some_and(|entry| entry.uses(Knob::Rates));
    match devices {
        _ if settings.cuda != CudaBy::Mpi => Ok(()),
        Some(devices) if native && devices.takes == OnDevices::Nothing => {
            refused(&format!("the MPI library does not take the memory of CUDA devices: {}", devices.said))
        }
        Some(_) if native => Ok(()),
        _ => refused("needs transport mpi and strategy native"),
    }
}

/// Rejects settings that have no effect with or without gRPC.
pub(super) fn check_grpc(settings: &Settings) -> Result<()> {
    let transport = settings.transport;
    let without = |knob| {
        let name = transport.name();
        Err(RunError::Setting(knob, format!("has no effect with transport {name}; leave one of them out")))
    };
    if settings.tls.is_some() && !transport.controls_by_grpc() {
        return without("tls");
    }
    if settings.streams > 1 && transport.controls_by_grpc() && !transport.tensors_by_sockets() {
        return without("streams");
    }
    Ok(())
}

/// Rejects several streams where no rank uses TCP.
pub(super) fn check_streams(rank: u32, settings: &Settings, hosts: &[u32], shared_with: &[bool]) -> Result<()> {
    let together = hosts.iter().all(|host| *host == hosts[0]);
    let all_shared = (0..hosts.len()).all(|peer| peer == rank as usize || shared_with[peer]);
    if settings.streams > 1 && hosts.len() > 1 && together && all_shared {
        return Err(RunError::Setting(
            "streams",
            format!(
                "{} have no effect, because all ranks share the memory of one host; unset PACELINE_STREAMS, or set \
             PACELINE_TRANSPORT=tcp",
                settings.streams
            ),
        ));
    }
    Ok(())
}
