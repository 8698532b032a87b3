//! The parts of a job that foreign libraries run: MPI, UCX, oneCCL, and HTTP/2 for gRPC. A simulation has none of them: what
//! would use them cannot be made there.
#[cfg(feature = "foreign")]
pub use paceline_grpc as grpc;
#[cfg(feature = "foreign")]
pub use paceline_mpi as mpi;
#[cfg(feature = "foreign")]
pub use paceline_oneccl as oneccl;
#[cfg(not(feature = "foreign"))]
use paceline_transport::error::{Result, RunError};
#[cfg(feature = "foreign")]
pub use paceline_ucx as ucx;

#[cfg(not(feature = "foreign"))]
fn absent<T>(what: &str) -> Result<T> {
    Err(RunError::Usage(format!("this build has no {what}")))
}

/// gRPC, of which there is none.
#[cfg(not(feature = "foreign"))]
#[allow(missing_docs, dead_code, reason = "as in paceline-grpc")]
pub mod grpc {
    use paceline_os::net::UnixStream;
    use paceline_os::time::Instant;
    use paceline_transport::error::Result;
    use paceline_transport::tcp::TcpChannel;
    use serde::{Deserialize, Serialize};

    #[derive(Clone, Debug, Serialize, Deserialize)]
    pub enum Offer {}
    pub enum Thread {}
    pub enum GrpcListener {}

    pub struct ConnectOptions {
        pub rank: u32,
        pub workers: u32,
        pub offers: Vec<Offer>,
        pub key: [u8; 32],
        pub tensors: bool,
        pub deadline: Instant,
    }

    pub struct Connected {
        pub channels: Vec<Option<TcpChannel>>,
        pub controls: Vec<Option<UnixStream>>,
        pub thread: Thread,
    }

    impl GrpcListener {
        pub fn open(_interface: &str, _encrypted: Option<bool>) -> Result<GrpcListener> {
            super::absent("gRPC")
        }

        pub fn offer(&self) -> &Offer {
            match *self {}
        }
    }

    impl Thread {
        pub fn close(self) {}

        pub fn descriptors(&self) -> Vec<i32> {
            match *self {}
        }
    }

    pub fn connect(listener: GrpcListener, _options: ConnectOptions) -> Result<Connected> {
        match listener {}
    }
}

/// oneCCL, of which there is none.
#[cfg(not(feature = "foreign"))]
#[allow(missing_docs, reason = "as in paceline-oneccl")]
pub mod oneccl {
    use paceline_kernels::dtype::{Dtype, ReduceOp};
    use paceline_os::sync::Arc;
    use paceline_os::time::Duration;
    use paceline_transport::offload::{DeviceCall, Offload, OffloadTicket};
    use paceline_transport::space::Space;

    pub const IDENTIFIERS: usize = 0;
    pub enum Library {}
    pub enum Port {}

    impl Library {
        pub fn get(_named: Option<&str>) -> Result<Arc<Library>, String> {
            Err("this build has no oneCCL".into())
        }

        pub fn identifier(&self) -> Result<Vec<u8>, String> {
            match *self {}
        }
    }

    impl Port {
        pub fn new(library: Arc<Library>, _rank: u32, _size: u32, _identifiers: Vec<Vec<u8>>) -> Port {
            match *library {}
        }
    }

    impl Offload for Port {
        fn progress(&mut self) -> bool {
            match *self {}
        }

        fn nap(&self) -> Duration {
            match *self {}
        }

        fn join(&mut self, _group: u32, _ranks: &[u32], _duplicates: usize) -> Result<(), String> {
            match *self {}
        }

        fn inherit(&mut self, _from: u32, _to: u32) {
            match *self {}
        }

        fn part(&mut self, _group: u32) {
            match *self {}
        }

        fn all_reduce(&mut self, _: u32, _: (Dtype, ReduceOp), _: &mut Space) -> Result<OffloadTicket, String> {
            match *self {}
        }

        fn on_device(&mut self, _group: u32, _call: &DeviceCall) -> Result<OffloadTicket, String> {
            match *self {}
        }

        fn done(&mut self, _ticket: &OffloadTicket, _space: &mut Space) -> Result<bool, String> {
            match *self {}
        }

        fn abandon(&mut self, _ticket: &OffloadTicket) {
            match *self {}
        }

        fn close(self: Box<Self>) -> bool {
            match *self {}
        }
    }
}

/// MPI, of which there is none.
#[cfg(not(feature = "foreign"))]
#[allow(missing_docs, reason = "as in paceline-mpi")]
pub mod mpi {
    use std::path::PathBuf;
    use std::sync::mpsc::Receiver;

    use paceline_kernels::dtype::{Dtype, ReduceOp};
    use paceline_os::sync::Arc;
    use paceline_os::time::Duration;
    use paceline_transport::channel::Channel;
    use paceline_transport::error::Result;
    use paceline_transport::offload::{DeviceCall, DeviceSupport, Offload, OffloadTicket};
    use paceline_transport::space::Space;

    #[derive(Clone, Debug)]
    pub struct About {
        pub library: PathBuf,
        pub version: String,
        pub abi: &'static str,
        pub rank: u32,
        pub size: u32,
        pub devices: DeviceSupport,
    }

    pub struct Thread {
        pub about: About,
        never: Port,
    }
    #[derive(Clone, Copy)]
    pub enum Port {}

    impl Thread {
        pub fn get(_named: Option<&str>, _limit: Duration) -> Result<Arc<Thread>> {
            super::absent("MPI")
        }

        pub fn open_port(&self, _limit: Duration) -> Result<Port> {
            Ok(self.never)
        }

        pub fn drive(&self, _job: Box<dyn FnOnce() + Send>) -> Receiver<()> {
            match self.never {}
        }
    }

    impl Port {
        pub fn channel(&self, _rank: u32) -> Box<dyn Channel> {
            match *self {}
        }
    }

    impl Offload for Port {
        fn progress(&mut self) -> bool {
            match *self {}
        }
        fn nap(&self) -> Duration {
            match *self {}
        }
        fn join(&mut self, _group: u32, _ranks: &[u32], _duplicates: usize) -> std::result::Result<(), String> {
            match *self {}
        }
        fn inherit(&mut self, _from: u32, _to: u32) {}
        fn part(&mut self, _group: u32) {}
        fn all_reduce(
            &mut self,
            _group: u32,
            _kind: (Dtype, ReduceOp),
            _space: &mut Space,
        ) -> std::result::Result<OffloadTicket, String> {
            match *self {}
        }
        fn on_device(&mut self, _group: u32, _call: &DeviceCall) -> std::result::Result<OffloadTicket, String> {
            match *self {}
        }
        fn done(&mut self, _ticket: &OffloadTicket, _space: &mut Space) -> std::result::Result<bool, String> {
            match *self {}
        }
        fn abandon(&mut self, _ticket: &OffloadTicket) {}
        fn close(self: Box<Self>) -> bool {
            match *self {}
        }
    }

    pub fn exchange(thread: &Thread, _blob: Vec<u8>, _limit: Duration) -> Result<Vec<Vec<u8>>> {
        match thread.never {}
    }

    pub fn entered() {}
    pub fn left() {}
}

/// UCX, of which there is none.
#[cfg(not(feature = "foreign"))]
#[allow(missing_docs, dead_code, reason = "as in paceline-ucx")]
pub mod ucx {
    use std::path::PathBuf;

    use paceline_os::sync::Arc;
    use paceline_os::time::Instant;
    use paceline_transport::channel::Channel;
    use paceline_transport::error::Result;

    pub struct Library {
        pub path: PathBuf,
        pub version: String,
    }
    pub enum Port {}

    #[derive(Clone, Copy, PartialEq, Eq, Debug)]
    pub enum Demand {
        Any,
        Verbs,
        GpuDirect,
    }

    pub struct Options {
        pub demand: Demand,
        pub place: (u32, u32),
        pub together: bool,
        pub interface: Option<String>,
    }

    pub struct Peers<'a> {
        pub offers: &'a [Vec<u8>],
        pub keys: &'a [u64],
        pub name: &'a dyn Fn(u32) -> String,
        pub times: (Instant, Instant),
    }

    impl Demand {
        pub fn check(self, _library: &Library) -> Result<()> {
            super::absent("UCX")
        }
    }

    pub fn library(_named: Option<&str>, _package: Option<&str>) -> Result<Arc<Library>> {
        super::absent("UCX")
    }

    impl Port {
        pub fn open(_library: &Arc<Library>, _options: Options) -> Result<Port> {
            super::absent("UCX")
        }

        pub fn offer(&self) -> &[u8] {
            match *self {}
        }

        pub fn connect(&self, _peers: &Peers<'_>) -> Result<()> {
            match *self {}
        }

        pub fn transports(&self) -> Vec<Vec<String>> {
            match *self {}
        }

        pub fn channel(&self, _rank: u32) -> Box<dyn Channel> {
            match *self {}
        }
    }
}
