//! Settings that contradict each other or what the ranks found out about each other.
use super::peers::Peer;
use crate::settings::{CudaBy, Settings, Transport};
use paceline_schedule::{Knob, find};

use paceline_transport::error::{Result, RunError};
use paceline_transport::offload::{DeviceSupport, OnDevices};

/// A rank among ranks, of which at least one trains.
pub(super) fn check_place(rank: u32, size: u32, settings: &Settings) -> Result<()> {
    if size == 0 || rank >= size || size > u32::from(u16::MAX) / 2 {
        let message = format!("rank {rank} of {size} ranks must be 0 to {}, of at most 32,767", size.saturating_sub(1));
        return Err(
            RunError::Usage(message).with_remedy("paceline run -np 2 -- python train.py (sets RANK and WORLD_SIZE)")
        );
    }
    if settings.switches > 0 {
        let entry = settings.strategy.as_deref().and_then(find).filter(|entry| entry.uses(Knob::Aggregation));
        let Some(entry) = entry else {
            let error = RunError::Usage("a switch process needs a strategy that aggregates".into());
            return Err(error.with_remedy("{strategy=sharp}"));
        };
        if entry.uses(Knob::Servers) && !settings.dedicated {
            let error = RunError::Usage("a switch process needs server processes".into());
            return Err(error.with_remedy("{servers=1}"));
        }
    }
    if settings.helpers() >= size {
        let (servers, switches) = (settings.server_processes(), settings.switches);
        let message = format!("{servers} servers and {switches} switches among {size} ranks leave no rank to train");
        return Err(RunError::Usage(message).with_remedy("{servers=1}"));
    }
    Ok(())
}

pub(super) fn check_transport(rank: u32, settings: &Settings, peers: &[Peer], shared_with: &[bool]) -> Result<()> {
    let without = (0..peers.len()).find(|&peer| peer != rank as usize && !shared_with[peer]);
    match (settings.transport, without) {
        (Transport::Shm, Some(peer)) => Err(RunError::Setting(
            "transport",
            format!(
                "shm: rank {rank} and {} share no memory: not the same host, container or user",
                peers[peer].describe()
            ),
        )
        .with_remedy("{transport=tcp}")),
        _ => Ok(()),
    }
}

/// Rejects `cuda mpi` where MPI is not used, or takes no memory of devices. `devices`: what it takes on all ranks.
pub(super) fn check_cuda(settings: &Settings, devices: Option<&DeviceSupport>) -> Result<()> {
    let refused =
        |why: &str| Err(RunError::Setting("cuda", format!("mpi: {why}")).with_remedy("{cuda=host}, or drop {cuda}"));
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
        let remedy = format!("drop {{{knob}}}, or {{transport=tcp}}");
        Err(RunError::Setting(knob, format!("has no effect with transport {name}")).with_remedy(remedy))
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
            format!("{} have no effect: all ranks share the memory of one host", settings.streams),
        )
        .with_remedy("drop {streams}, or {transport=tcp}"));
    }
    Ok(())
}
