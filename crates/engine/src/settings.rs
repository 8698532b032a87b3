//! The settings of a job, as the caller gives them (JSON; `paceline.job.settings` makes and documents them).
use std::net::SocketAddrV4;
use std::time::Duration;

use serde::{Deserialize, Serialize};

use paceline_schedule::{ChunkBytes, Distribution, Inside, Placement};
use paceline_transport::error::{Result, RunError};
use paceline_transport::multicast::Disturbance;

/// Over what ranks talk.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "lowercase")]
pub enum Transport {
    /// Shared memory inside a host, TCP between hosts.
    #[default]
    Auto,
    /// Shared memory only.
    Shm,
    /// TCP only.
    Tcp,
    /// The messages of an MPI library.
    Mpi,
    /// gRPC.
    Grpc,
    /// Tensors over TCP, control over gRPC.
    #[serde(rename = "grpc+tcp")]
    GrpcTcp,
    /// Tensors over MPI, control over gRPC.
    #[serde(rename = "grpc+mpi")]
    GrpcMpi,
}

impl Transport {
    /// What ranks tell each other about the job goes over gRPC.
    #[must_use]
    pub fn controls_by_grpc(self) -> bool {
        matches!(self, Transport::Grpc | Transport::GrpcTcp | Transport::GrpcMpi)
    }

    /// Tensors are messages of an MPI library.
    #[must_use]
    pub fn tensors_by_mpi(self) -> bool {
        matches!(self, Transport::Mpi | Transport::GrpcMpi)
    }

    /// Tensors go through sockets of ours, if not through memory.
    #[must_use]
    pub fn tensors_by_sockets(self) -> bool {
        matches!(self, Transport::Auto | Transport::Tcp | Transport::GrpcTcp)
    }

    /// Ranks that could share memory do not.
    #[must_use]
    pub fn shares_no_memory(self) -> bool {
        !matches!(self, Transport::Auto | Transport::Shm)
    }

    /// As users write it.
    #[must_use]
    pub fn name(self) -> &'static str {
        match self {
            Transport::Auto => "auto",
            Transport::Shm => "shm",
            Transport::Tcp => "tcp",
            Transport::Mpi => "mpi",
            Transport::Grpc => "grpc",
            Transport::GrpcTcp => "grpc+tcp",
            Transport::GrpcMpi => "grpc+mpi",
        }
    }
}

/// All of them.
#[derive(Clone, Deserialize)]
#[serde(deny_unknown_fields, default)]
pub struct Settings {
    /// Over what.
    pub transport: Transport,
    /// Where to listen: an address, a host's name or an interface.
    pub interface: String,
    /// What every connection proves.
    pub secret: Option<String>,
    /// `host:port` of rank 0, where the caller has no exchange of its own.
    pub rendezvous: Option<String>,
    /// Without progress for so long, an operation fails.
    pub timeout_s: f64,
    /// Of starting: how long ranks wait for each other.
    pub start_timeout_s: f64,
    /// Strategy of all all-reduces; none: by size.
    pub strategy: Option<String>,
    /// How they are cut; none: the strategy's own.
    pub chunk: Option<ChunkBytes>,
    /// For `hierarchical`.
    pub inside: Inside,
    /// Parameter servers.
    pub servers: u32,
    /// They are processes of their own, the last ranks of the job; else roles of the workers.
    pub dedicated: bool,
    /// A process of its own, behind the servers, adds up in the switch's place; else a role of the first worker.
    pub switch: bool,
    /// For parameter servers.
    pub placement: Placement,
    /// For parameter servers.
    pub distribution: Distribution,
    /// Connections between two ranks.
    pub streams: u32,
    /// Group and port of multicasts (`239.77.0.0:47700`); none: they go to one receiver after the other.
    pub multicast: Option<SocketAddrV4>,
    /// For tests: what befalls the datagrams of multicasts.
    pub disturbance: Option<Disturbance>,
    /// The MPI library, or the folder that holds it; none: the launcher's.
    pub mpi_library: Option<String>,
    /// Whether gRPC is encrypted; none: unless only this machine can be listened to.
    pub tls: Option<bool>,
    /// Ranks of a host may copy large pieces straight from each other's memory.
    pub single_copy: bool,
    /// Says on standard error what was chosen.
    pub verbose: bool,
}

impl Default for Settings {
    fn default() -> Settings {
        Settings {
            transport: Transport::Auto,
            interface: "127.0.0.1".into(),
            secret: None,
            rendezvous: None,
            timeout_s: 30.0,
            start_timeout_s: 60.0,
            strategy: None,
            chunk: None,
            inside: Inside::Ring,
            servers: 1,
            dedicated: false,
            switch: false,
            placement: Placement::RoundRobin,
            distribution: Distribution::RoundRobin,
            streams: 1,
            multicast: None,
            disturbance: None,
            mpi_library: None,
            tls: None,
            single_copy: true,
            verbose: false,
        }
    }
}

impl Settings {
    /// Reads them.
    ///
    /// # Errors
    /// A field that is unknown or has another type.
    pub fn parse(json: &str) -> Result<Settings> {
        let settings: Settings = serde_json::from_str(json).map_err(|e| RunError::Usage(format!("settings: {e}")))?;
        if let Placement::Table(_) = settings.placement {
            // Buckets have no numbers before tensors have been fused: a coordinator places tensors by name.
            return Err(RunError::Usage(
                "settings: placement: a table works only in simulations; use round-robin or even".into(),
            ));
        }
        Ok(settings)
    }

    /// Processes that do not train: servers, and the one in the switch's place.
    #[must_use]
    pub fn helpers(&self) -> u32 {
        if self.dedicated { self.servers + u32::from(self.switch) } else { 0 }
    }

    /// Silence after which an operation fails.
    #[must_use]
    pub fn timeout(&self) -> Duration {
        seconds(self.timeout_s)
    }

    /// How long ranks wait for each other at the start.
    #[must_use]
    pub fn start_timeout(&self) -> Duration {
        seconds(self.start_timeout_s)
    }
}

/// A duration; a month for what is longer or no number.
#[must_use]
pub fn seconds(s: f64) -> Duration {
    const MONTH: f64 = 30.0 * 86_400.0;
    Duration::from_secs_f64(if s.is_nan() { MONTH } else { s.clamp(0.001, MONTH) })
}
