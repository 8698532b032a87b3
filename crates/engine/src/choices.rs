//! The names among which settings of a job choose.
use serde::{Deserialize, Serialize};

use crate::foreign::ucx::Demand;

/// Carrier of messages between ranks.
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
    /// Tensors over TCP, control messages over gRPC.
    #[serde(rename = "grpc+tcp")]
    GrpcTcp,
    /// Tensors over MPI, control messages over gRPC.
    #[serde(rename = "grpc+mpi")]
    GrpcMpi,
    /// Tensors over UCX, control messages over gRPC.
    #[serde(rename = "grpc+ucx")]
    GrpcUcx,
    /// The same, only over InfiniBand verbs.
    #[serde(rename = "grpc+verbs")]
    GrpcVerbs,
    /// The same, of devices that read and write the memory of GPUs.
    #[serde(rename = "grpc+gdr")]
    GrpcGdr,
}

impl Transport {
    /// Whether control messages go over gRPC.
    #[must_use]
    pub fn controls_by_grpc(self) -> bool {
        matches!(self, Transport::Grpc | Transport::GrpcTcp | Transport::GrpcMpi) || self.tensors_by_ucx().is_some()
    }

    /// Whether tensors are messages of an MPI library.
    #[must_use]
    pub fn tensors_by_mpi(self) -> bool {
        matches!(self, Transport::Mpi | Transport::GrpcMpi)
    }

    /// The transports that UCX must have, if it carries tensors.
    #[must_use]
    pub fn tensors_by_ucx(self) -> Option<Demand> {
        match self {
            Transport::GrpcUcx => Some(Demand::Any),
            Transport::GrpcVerbs => Some(Demand::Verbs),
            Transport::GrpcGdr => Some(Demand::GpuDirect),
            _ => None,
        }
    }

    /// Whether tensors between ranks without shared memory go over TCP.
    #[must_use]
    pub fn tensors_by_sockets(self) -> bool {
        matches!(self, Transport::Auto | Transport::Tcp | Transport::GrpcTcp)
    }

    /// Whether ranks that could share memory do not.
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
            Transport::GrpcUcx => "grpc+ucx",
            Transport::GrpcVerbs => "grpc+verbs",
            Transport::GrpcGdr => "grpc+gdr",
        }
    }
}

/// Library whose all-reduce between CPUs `native` is, where MPI carries no tensors.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "lowercase")]
pub enum NativeBy {
    /// oneCCL.
    Oneccl,
}

/// Carrier of the memory of CUDA devices.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "lowercase")]
pub enum CudaBy {
    /// The strategies, in each other's memory where the ranks of a group can, otherwise through the host's.
    #[default]
    Auto,
    /// The strategies, through the host's memory.
    Host,
    /// The strategies, in each other's memory.
    Ipc,
    /// NCCL, for the collectives that it has.
    Nccl,
    /// MPI, for the collectives that it has; it is given addresses of devices.
    Mpi,
}
