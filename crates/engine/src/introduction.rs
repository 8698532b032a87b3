//! Introductions that ranks exchange before they connect: addresses, and the settings that must be equal.
use paceline_executor::timeline;
use paceline_rendezvous::Listener;
use paceline_transport::error::{Result, RunError};
use paceline_transport::multicast::Port;
use paceline_transport::offload::DeviceSupport;
use serde::de::DeserializeOwned;
use serde::{Deserialize, Serialize};
use serde_json::{Map, Value, json};

use super::foreign::grpc;
use super::peers::Peer;
use crate::settings::Settings;

/// Gives every rank the values that all of them called it with, in rank order. Called three times, and once more over
/// UCX.
pub type Exchange<'a> = &'a mut dyn FnMut(Vec<u8>) -> Result<Vec<Vec<u8>>>;

#[derive(Serialize, Deserialize)]
pub(super) struct Introduction {
    pub(super) peer: Peer,
    /// Equal for processes that can open each other's memory if they belong to one user.
    pub(super) machine: String,
    pub(super) address: paceline_os::net::SocketAddr,
    pub(super) job: [u8; 16],
    /// The time at that rank, in nanoseconds.
    pub(super) clock: u64,
    pub(super) version: String,
    /// Settings that must be equal on all ranks.
    pub(super) settings: Map<String, Value>,
    /// Its address for gRPC.
    pub(super) grpc: Option<grpc::Offer>,
    /// Limits of its multicast: payload of a datagram, bytes that the system buffers.
    pub(super) multicast: Option<(usize, usize)>,
    /// Support of its MPI for the memory of CUDA devices.
    pub(super) devices: Option<DeviceSupport>,
    /// Of the first rank: identifiers of its offload library, for the ranks to meet by, in hexadecimal digits.
    pub(super) native: Vec<String>,
}

/// Where other ranks connect to this one.
pub(super) struct Endpoints {
    pub(super) listener: Listener,
    pub(super) grpc: Option<grpc::GrpcListener>,
    pub(super) multicast: Option<Port>,
    pub(super) devices: Option<DeviceSupport>,
    pub(super) native: Vec<String>,
}

const SAME_VERSION: &str = "pip install the same version of paceline on all hosts";

/// One round of the exchange, in JSON.
pub(super) fn round<T: Serialize + DeserializeOwned>(exchange: Exchange<'_>, mine: &T) -> Result<Vec<T>> {
    let blob = serde_json::to_vec(mine).map_err(|e| RunError::Failed(e.to_string()))?;
    let blobs = exchange(blob)?;
    let parse = |(rank, blob): (usize, &Vec<u8>)| {
        serde_json::from_slice(blob).map_err(|e| {
            RunError::Failed(format!("rank {rank} sent an introduction that this version cannot read ({e})"))
                .with_remedy(SAME_VERSION)
        })
    };
    blobs.iter().enumerate().map(parse).collect()
}

pub(super) fn introduce(
    rank: u32,
    size: u32,
    settings: &Settings,
    endpoints: &Endpoints,
    exchange: Exchange<'_>,
) -> Result<Vec<Introduction>> {
    let mut job = [0; 16];
    paceline_os::random::fill(&mut job).map_err(|e| RunError::Failed(format!("cannot get random numbers: {e}")))?;
    let helper = rank.checked_sub(size - settings.helpers());
    let servers = settings.server_processes();
    let (server, switch) = (helper.filter(|&number| number < servers), helper.is_some_and(|number| number >= servers));
    let host = paceline_os::process::host_name();
    let mine = Introduction {
        peer: Peer { rank, host, pid: paceline_os::process::id(), server, switch },
        machine: paceline_os::process::machine(),
        address: endpoints.listener.address(),
        job,
        clock: timeline::now(),
        version: env!("CARGO_PKG_VERSION").into(),
        settings: told(settings),
        grpc: endpoints.grpc.as_ref().map(|listener| listener.offer().clone()),
        multicast: endpoints.multicast.as_ref().map(|port| (port.payload, port.buffer)),
        devices: endpoints.devices.clone(),
        native: endpoints.native.clone(),
    };
    let all = round(exchange, &mine)?;
    if all.len() != size as usize {
        return Err(RunError::Failed(format!("the exchange returned {} blobs for {size} ranks", all.len())));
    }
    for other in &all {
        if other.version != mine.version {
            let (who, theirs) = (other.peer.describe(), &other.version);
            let message = format!("{who} runs paceline {theirs}, rank {rank} runs {}", mine.version);
            return Err(RunError::Failed(message).with_remedy(SAME_VERSION));
        }
        if other.settings != mine.settings {
            let (who, differ) = (other.peer.describe(), differences(&other.settings, &mine.settings));
            let error = RunError::Usage(format!("{who} and rank {rank} have different settings: {differ}"));
            return Err(error.with_remedy("env | grep PACELINE_ on all hosts (the same variables everywhere)"));
        }
    }
    Ok(all)
}

/// The settings that must be equal on all ranks, as the user wrote them.
fn told(settings: &Settings) -> Map<String, Value> {
    let multicast = settings.multicast.map(|address| address.to_string());
    let Value::Object(told) = json!({
        "strategy": settings.strategy,
        "chunk": settings.chunk,
        "inside": settings.inside,
        "servers": settings.servers,
        "server processes": settings.dedicated,
        "switch processes": settings.switches,
        "nodes per rack": settings.nodes_per_rack,
        "placement": settings.placement,
        "distribution": settings.distribution,
        "barrier": settings.barrier,
        "streams": settings.streams,
        "transport": settings.transport,
        "native": settings.native,
        "multicast": multicast,
        "tls": settings.tls,
    }) else {
        unreachable!("an object was made")
    };
    told
}

/// `tls false and none, streams 1 and 2`.
fn differences(theirs: &Map<String, Value>, ours: &Map<String, Value>) -> String {
    let word = |value: Option<&Value>| match value {
        None | Some(Value::Null) => "none".to_owned(),
        Some(Value::String(text)) => text.clone(),
        Some(other) => other.to_string(),
    };
    let differing = ours.iter().filter(|(name, value)| theirs.get(*name) != Some(value));
    let named = differing.map(|(name, value)| format!("{name} {} and {}", word(theirs.get(name)), word(Some(value))));
    named.collect::<Vec<_>>().join(", ")
}
