//! The settings of a job, as the caller gives them (JSON; `paceline.job.settings` makes and documents them).
use paceline_os::net::SocketAddrV4;
use paceline_os::time::Duration;
use paceline_schedule::{ChunkBytes, Distribution, Inside, Placement};
use paceline_transport::error::{Result, RunError};
use paceline_transport::multicast::Disturbance;
use serde::Deserialize;

pub use crate::choices::{CudaBy, NativeBy, Transport};
use crate::defaults;

/// All of them.
#[derive(Clone, Deserialize)]
#[serde(deny_unknown_fields, default)]
pub struct Settings {
    /// The transport.
    pub transport: Transport,
    /// Where to listen: an address, a host name or an interface.
    pub interface: String,
    /// The secret that every connection proves.
    pub secret: Option<String>,
    /// `host:port` of rank 0, where the caller has no exchange of its own.
    pub rendezvous: Option<String>,
    /// Time without progress after which an operation fails.
    pub timeout_s: f64,
    /// How long ranks wait for each other at the start; `None`: as long as for an operation, but at least a minute.
    pub start_timeout_s: Option<f64>,
    /// Strategy of all all-reduces; `None`: chosen by size.
    pub strategy: Option<String>,
    /// How they are cut; `None`: the strategy's own.
    pub chunk: Option<ChunkBytes>,
    /// For `hierarchical`.
    pub inside: Inside,
    /// Parameter servers.
    pub servers: u32,
    /// They are processes of their own, the last ranks of the job; otherwise roles of the workers.
    pub dedicated: bool,
    /// Processes of their own, after the servers, that add up in place of switches, one for each such role; otherwise
    /// these are roles of the workers.
    pub switches: u32,
    /// Hosts under one switch; `None`: all.
    pub nodes_per_rack: Option<u32>,
    /// For parameter servers.
    pub placement: Placement,
    /// For parameter servers.
    pub distribution: Distribution,
    /// Whether servers wait for all parts of a sum before they send any.
    pub barrier: bool,
    /// Connections between two ranks.
    pub streams: u32,
    /// Group and port of multicasts (`239.77.0.0:47700`); `None`: one receiver after the other.
    pub multicast: Option<SocketAddrV4>,
    /// For tests: disturbs the datagrams of multicasts.
    pub disturbance: Option<Disturbance>,
    /// The MPI library or its folder; `None`: the launcher's.
    pub mpi_library: Option<String>,
    /// UCX's library or its folder; `None`: the host's, else a Python package's.
    pub ucx_library: Option<String>,
    /// The folder of UCX's libraries in a Python package, tried where the host has none.
    pub ucx_package: Option<String>,
    /// Library of `native` between CPUs; `None`: MPI, if it carries the tensors.
    pub native: Option<NativeBy>,
    /// oneCCL's library; `None`: the system's.
    pub oneccl_library: Option<String>,
    /// The CUDA driver's library; `None`: the system's.
    pub cuda_library: Option<String>,
    /// Carrier of the memory of CUDA devices.
    pub cuda: CudaBy,
    /// Whether the driver's answers about device memory are cached, and other ranks' memory stays mapped.
    pub cuda_pointer_cache: bool,
    /// NCCL's library; `None`: torch's, or the system's.
    pub nccl_library: Option<String>,
    /// Whether gRPC is encrypted; `None`: unless the listener is reachable only from this machine.
    pub tls: Option<bool>,
    /// Ranks of a host may copy large pieces directly from each other's memory.
    pub single_copy: bool,
    /// Prints the choices to standard error.
    pub verbose: bool,
}

impl Default for Settings {
    fn default() -> Settings {
        Settings {
            transport: defaults::TRANSPORT,
            interface: "127.0.0.1".into(),
            secret: None,
            rendezvous: None,
            timeout_s: defaults::TIMEOUT_S,
            start_timeout_s: None,
            strategy: None,
            chunk: None,
            inside: defaults::INSIDE,
            servers: defaults::SERVERS,
            dedicated: false,
            switches: 0,
            nodes_per_rack: None,
            placement: defaults::PLACEMENT,
            distribution: defaults::DISTRIBUTION,
            barrier: defaults::BARRIER,
            streams: defaults::STREAMS,
            multicast: None,
            disturbance: None,
            mpi_library: None,
            ucx_library: None,
            ucx_package: None,
            native: None,
            oneccl_library: None,
            cuda_library: None,
            cuda: defaults::CUDA,
            cuda_pointer_cache: defaults::CUDA_POINTER_CACHE,
            nccl_library: None,
            tls: None,
            single_copy: defaults::SINGLE_COPY,
            verbose: defaults::VERBOSE,
        }
    }
}

impl Settings {
    /// Parses the settings.
    ///
    /// # Errors
    /// A field is unknown or has the wrong type.
    pub fn parse(json: &str) -> Result<Settings> {
        let settings: Settings = serde_json::from_str(json).map_err(|e| RunError::Usage(format!("settings: {e}")))?;
        if let Placement::Table(_) | Placement::TensorFlow = settings.placement {
            // Buckets have no numbers before tensors are fused: a coordinator places tensors by name.
            return Err(RunError::Usage(
                "settings: placement: tables and variables are placed by name; use round-robin or even".into(),
            ));
        }
        Ok(settings)
    }

    /// Whether a library has an all-reduce of its own between CPUs.
    #[must_use]
    pub fn has_library(&self) -> bool {
        self.transport.tensors_by_mpi() || self.native.is_some()
    }

    /// Parameter servers, none if the strategy is known to have none.
    #[must_use]
    pub fn servers_of_strategy(&self) -> u32 {
        let entry = self.strategy.as_deref().and_then(paceline_schedule::find);
        if entry.is_none_or(|entry| entry.uses(paceline_schedule::Knob::Servers)) { self.servers } else { 0 }
    }

    /// Parameter servers with processes of their own.
    #[must_use]
    pub fn server_processes(&self) -> u32 {
        if self.dedicated { self.servers } else { 0 }
    }

    /// Processes that do not train: servers, and those in place of switches.
    #[must_use]
    pub fn helpers(&self) -> u32 {
        self.server_processes() + self.switches
    }

    /// Silence after which an operation fails.
    #[must_use]
    pub fn timeout(&self) -> Duration {
        seconds(self.timeout_s)
    }

    /// How long ranks wait for each other at the start.
    #[must_use]
    pub fn start_timeout(&self) -> Duration {
        self.start_timeout_s.map_or_else(|| self.timeout().max(CONNECT), seconds)
    }

    /// How long ranks that have met may take to connect to each other: unlike a rank that has not come, one that does
    /// not answer then never will.
    #[must_use]
    pub fn connect_timeout(&self) -> Duration {
        self.start_timeout_s.map_or(CONNECT, seconds)
    }
}

/// For connections, unless the time of the start is given; also the least of that time.
const CONNECT: Duration = Duration::from_secs(defaults::LEAST_START_S as u64);

/// A duration; a month for longer values and for NaN.
#[must_use]
pub fn seconds(s: f64) -> Duration {
    const MONTH: f64 = 30.0 * 86_400.0;
    Duration::from_secs_f64(if s.is_nan() { MONTH } else { s.clamp(0.001, MONTH) })
}
