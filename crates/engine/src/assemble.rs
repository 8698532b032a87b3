//! The engine of a rank that has met the others: its channels, and the threads that drive and watch them.
use paceline_executor::timeline::{Place, Timeline};
use paceline_executor::{Executor, Wires};
use paceline_os::fd::AsRawFd;
use paceline_os::net::{Socket, UnixStream};
use paceline_os::sync::atomic::AtomicBool;
use paceline_os::sync::{Arc, Mutex};
use paceline_rendezvous::Mesh;
use paceline_transport::channel::Channel;
use paceline_transport::error::{Result, RunError};
use paceline_transport::multicast::{Key, Multicast, Port, Sizes};
use paceline_transport::offload::DeviceSupport;
use paceline_transport::shm::{Segment, ShmChannel, Waker};
use paceline_transport::tcp::TcpChannel;

use super::control::Control;
use super::core_placement::{CorePlacement, cores_of};
use super::driver::{Driver, Host};
use super::failure_detector::{FailureDetector, Monitor};
use super::foreign::{grpc, mpi, oneccl, ucx};
use super::ledger::Ledger;
use super::memory::Opened;
use super::orders::Orders;
use super::peers::Peer;
use super::{End, Engine, EngineShared, UcxUse};
use crate::settings::Settings;

/// The sockets of multicasts, their key and their sizes.
pub(super) type Multicasting = (Port, [u8; 32], Sizes);

/// The connections of a job: TCP's, gRPC's, multicasts', MPI's and UCX's; and the library of `native` between CPUs.
pub(super) type Connections = (
    Mesh,
    Option<grpc::Connected>,
    Option<Multicasting>,
    Option<Arc<mpi::Thread>>,
    Option<(Arc<ucx::Library>, ucx::Port)>,
    Option<oneccl::Port>,
);

pub(super) fn system(what: &str) -> impl Fn(std::io::Error) -> RunError {
    move |e| RunError::Failed(format!("{what}: {e}"))
}

pub(super) fn assemble(
    rank: u32,
    settings: Settings,
    (peers, hosts, local): (Vec<Peer>, Vec<u32>, Vec<u32>),
    (segment, waker, opened, shared_with): (Arc<Segment>, Waker, Vec<Opened>, Vec<bool>),
    (mesh, called, multicast, library, over_ucx, native): Connections,
    devices: Option<DeviceSupport>,
) -> Result<Engine> {
    let place = |r: u32| local.iter().position(|&l| l == r).unwrap_or(0) as u32;
    let neighbors = |lower: bool| {
        let peers = (0u32..).zip(&opened).filter(move |&(peer, _)| (peer < rank) == lower);
        peers.filter_map(|(_, opened)| opened.as_ref().map(|(segment, _)| segment.clone())).collect()
    };
    let placement = CorePlacement::new(segment.clone(), neighbors(true), neighbors(false));
    let zero_copy = opened.iter().zip(&shared_with);
    let zero_copy =
        zero_copy.map(|(opened, shared)| *shared && opened.as_ref().is_some_and(|(segment, _)| segment.readable()));
    let zero_copy = zero_copy.collect();
    let port = library.as_ref().map(|thread| thread.open_port(settings.start_timeout())).transpose()?;
    let mut sockets = Vec::new();
    let mut channels: Vec<Option<Box<dyn Channel>>> = Vec::new();
    let mut links = Vec::new();
    let (mut by_grpc, called_by_grpc, thread) =
        called.map_or((Vec::new(), None, None), |called| (called.channels, Some(called.controls), Some(called.thread)));
    for ((peer, mut streams), opened) in (0u32..).zip(mesh.data).zip(opened) {
        sockets.extend(streams.iter().map(AsRawFd::as_raw_fd));
        links.push(if multicast.is_some() { streams.pop() } else { None });
        let by_grpc = by_grpc.get_mut(peer as usize).and_then(Option::take);
        channels.push(match (by_grpc, opened) {
            _ if peer == rank => None,
            _ if port.is_some() => port.as_ref().map(|port| port.channel(peer)),
            _ if over_ucx.is_some() => over_ucx.as_ref().map(|(_, port)| port.channel(peer)),
            (Some(channel), _) => Some(Box::new(channel)),
            (None, Some((memory, peer_waker))) if shared_with[peer as usize] => {
                let channel = ShmChannel::new(segment.clone(), place(rank), memory, place(peer), peer_waker);
                Some(Box::new(channel))
            }
            _ => Some(Box::new(TcpChannel::new(streams).map_err(system("cannot set up a connection"))?)),
        });
    }
    let mut controls = Vec::new();
    let over_tcp = || mesh.control.into_iter().map(|socket| socket.map(Socket::from)).collect();
    let over_grpc = |sockets: Vec<Option<UnixStream>>| sockets.into_iter().map(|one| one.map(Socket::from)).collect();
    let control: Vec<Option<Socket>> = called_by_grpc.map_or_else(over_tcp, over_grpc);
    for socket in control {
        sockets.extend(socket.as_ref().map(AsRawFd::as_raw_fd));
        controls.push(socket.map(Control::new).transpose().map_err(system("cannot set up a connection"))?);
    }
    let cores = cores_of(local.iter().map(|&peer| peers[peer as usize].pid));
    let timeline = Arc::new(Timeline::new(
        rank,
        settings.servers_of_strategy(),
        (settings.helpers() > 0).then(|| peers.len() as u32 - settings.helpers()),
    ));
    timeline.set_place(Place { host: peers[rank as usize].host.clone(), processes: local.len(), cores });
    let mut wires = Wires::new(rank, channels);
    wires.timeline = timeline.clone();
    if let Some((port, key, sizes)) = multicast {
        sockets.extend(port.descriptors());
        let all = Multicast::new(rank, port, Key::new(&key), sizes, links, settings.disturbance);
        wires.set_multicast(all.map_err(system("cannot set up multicasts"))?);
    }
    if let Some(port) = port {
        wires.set_offload(Box::new(port));
        mpi::entered();
    } else if let Some(native) = native {
        wires.set_offload(Box::new(native));
    }
    let traffic = wires.traffic();
    let host = Host {
        rank,
        crowded: local.len() > cores,
        real_time: paceline_os::thread::is_real_time(),
        funneled: library.is_some(),
    };
    let peers: Arc<[Peer]> = peers.into();
    let (ledger, orders) = (Arc::<Ledger>::default(), Arc::<Orders>::default());
    let others: Vec<u32> = (0..).zip(&controls).filter_map(|(rank, control)| control.as_ref().map(|_| rank)).collect();
    let monitor = Arc::new(Monitor::new(others.into_iter()).map_err(system("cannot create a pipe"))?);
    let tells = (ledger.clone(), monitor.clone(), timeline.clone());
    let driver = Arc::new(Driver::new(Executor::new(wires), tells, (placement, waker, host)));
    let detector = FailureDetector::new(
        (rank, peers.clone(), &settings),
        (controls, traffic),
        (ledger.clone(), driver.clone(), monitor.clone(), orders.clone()),
    );
    let shared = Arc::new(EngineShared {
        rank,
        settings,
        peers,
        hosts,
        zero_copy,
        timeline,
        ledger,
        monitor,
        driver: driver.clone(),
        orders,
        forked: AtomicBool::new(false),
        library: library.as_ref().map(|thread| thread.about.clone()),
        ucx: over_ucx.map(|(library, port)| UcxUse { library, transports: port.transports() }),
        devices,
        sockets,
    });
    let spawn = |name: &str, body: Box<dyn FnOnce() + Send>| {
        let thread = paceline_os::thread::Builder::new().name(name.into()).spawn(body);
        thread.map(End::Thread).map_err(system("cannot start a thread"))
    };
    let drive = Box::new(move || driver.run_progress_thread());
    let drives = match library {
        Some(library) => End::Work(library.drive(drive)),
        None => spawn("paceline-driver", drive)?,
    };
    let threads = vec![drives, spawn("paceline-monitor", Box::new(move || detector.run()))?];
    Ok(Engine { shared, threads: Mutex::new(threads), grpc: Mutex::new(thread) })
}
