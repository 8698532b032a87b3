//! Joins a job: the ranks exchange addresses, open each other's shared memory, connect, and start threads.
use std::collections::BTreeSet;

use paceline_os::io::Errno;
use paceline_os::sync::Arc;
use paceline_os::time::{Duration, Instant};
use paceline_rendezvous::{
    self as rendezvous, Listener, Mesh, Secret, check_exposure, connect_mesh, grpc_key, interface_of, multicast_key,
    ucx_key,
};
use paceline_schedule::{Knob, look_up};
use paceline_transport::error::{Result, RunError};
use paceline_transport::multicast::{Port, Sizes};
use paceline_transport::offload::{DeviceSupport, OnDevices};
use paceline_transport::shm::{Segment, Waker};

use super::assemble::{assemble, system};
use super::checks::{check_cuda, check_grpc, check_place, check_streams, check_transport};
use super::foreign::{grpc, mpi, oneccl, ucx};
use super::introduction::{Endpoints, Exchange, Introduction, introduce};
use super::memory::{agree, open_memory};
use super::peers::Peer;
use super::{Engine, EngineShared};
use crate::settings::{NativeBy, Settings, Transport};

/// Authenticates a job on one machine without a secret of its own. It protects only against stray connections.
const NO_SECRET: &str = "paceline: a job on one machine without a secret";

/// Why the ranks did not meet, naming which of the missing are servers and the switch.
fn who_serves(error: RunError, size: u32, servers: u32, switches: u32) -> RunError {
    let (error, remedy) = error.parts();
    let RunError::Failed(why) = error else { return error };
    let first = size - servers - switches;
    let mut who = match servers {
        0 => String::new(),
        1 => format!("; rank {first} is its parameter server"),
        _ => format!("; ranks {first}-{} are its {servers} parameter servers", first + servers - 1),
    };
    let (open, first) = (if who.is_empty() { ";" } else { "," }, size - switches);
    who += &match switches {
        0 => String::new(),
        1 => format!("{open} rank {first} is its switch"),
        _ => format!("{open} ranks {first}-{} are its switches", size - 1),
    };
    RunError::failed_like(why + &who, remedy.as_deref())
}

/// How long connections may take that most likely cannot be made: containers may share a network and nothing else.
const UNREACHABLE: Duration = Duration::from_secs(10);

/// Which of two ranks, on different machines, cannot be reached by the other, as it listens on loopback.
fn out_of_reach(rank: u32, introductions: &[Introduction]) -> Option<String> {
    let mine = &introductions[rank as usize];
    let other = introductions.iter().find(|other| other.machine != mine.machine)?;
    let (listens, calls) = if other.peer.rank < rank { (other, mine) } else { (mine, other) };
    listens.address.ip().to_canonical().is_loopback().then(|| {
        format!(
            "{} listens on {}, which {} cannot reach from another machine",
            listens.peer.describe(),
            listens.address.ip(),
            calls.peer.describe()
        )
    })
}

/// Adds the likely cause to an error of connecting.
fn explain(error: RunError, cause: &Option<String>) -> RunError {
    match (error.parts(), cause) {
        ((RunError::Failed(why), _), Some(cause)) => RunError::Failed(format!("{why}; {cause}"))
            .with_remedy("PACELINE_INTERFACE=10.0.0.0/24 (the network that connects the hosts) on all hosts"),
        ((error, Some(remedy)), _) => error.with_remedy(remedy),
        ((error, None), _) => error,
    }
}

pub(super) fn start(rank: u32, size: u32, settings: Settings, exchange: Option<Exchange<'_>>) -> Result<Engine> {
    check_place(rank, size, &settings)?;
    let begun = Instant::now();
    let deadline = begun + settings.start_timeout();
    let library = settings.transport.tensors_by_mpi().then(|| open_library(rank, size, &settings)).transpose()?;
    let carrier = settings.transport.tensors_by_ucx().map(|demand| open_ucx(demand, &settings)).transpose()?;
    check_exposure(&settings.interface, settings.secret.is_some())?;
    let secret = Secret::from_text(settings.secret.as_deref().unwrap_or(NO_SECRET))?;
    let mut own_exchange;
    let exchange: Exchange<'_> = match exchange {
        Some(given) => given,
        None => {
            let address = match (&settings.rendezvous, size) {
                _ if library.is_some() => String::new(),
                (Some(address), _) => address.clone(),
                (None, 1) => "127.0.0.1:1".into(),
                (None, _) => {
                    return Err(RunError::Usage(
                        "no rendezvous: start with `paceline run`, or set PACELINE_RENDEZVOUS=host:port of rank 0; under \
                         mpirun PACELINE_TRANSPORT=mpi needs none"
                            .into(),
                    ));
                }
            };
            if library.is_none() {
                check_exposure(&address, settings.secret.is_some())?;
            }
            let (secret, library) = (secret.clone(), library.clone());
            let (servers, switches) = (settings.server_processes(), settings.switches);
            own_exchange = move |blob: Vec<u8>| {
                if size == 1 {
                    return Ok(vec![blob]);
                }
                if let Some(library) = &library {
                    return mpi::exchange(library, blob, deadline.saturating_duration_since(Instant::now()));
                }
                rendezvous::exchange(rank, size, &address, &secret, &blob, deadline)
                    .map_err(|error| who_serves(error, size, servers, switches))
            };
            &mut own_exchange
        }
    };

    check_grpc(&settings)?;
    let listener = Listener::bind(&settings.interface)?;
    let multicast = open_port(rank, size, &settings, &listener)?;
    let by_grpc = settings.transport.controls_by_grpc();
    let grpc_listener = by_grpc.then(|| grpc::GrpcListener::open(&settings.interface, settings.tls)).transpose()?;
    let devices = library.as_ref().map(|thread| thread.about.devices.clone());
    let native = open_native(&settings)?;
    let identifiers = native.as_ref().filter(|_| rank == 0).map(identifiers).transpose()?.unwrap_or_default();
    let endpoints = Endpoints { listener, grpc: grpc_listener, multicast, devices, native: identifiers };
    let introductions = introduce(rank, size, &settings, &endpoints, exchange)?;
    let devices = least_support(&introductions);
    check_cuda(&settings, devices.as_ref())?;
    if let Some(DeviceSupport { takes, said }) = devices.as_ref().filter(|_| settings.verbose && rank == 0) {
        let does = match takes {
            OnDevices::Nothing => "takes no memory of CUDA devices",
            OnDevices::Moves => "moves the memory of CUDA devices",
            OnDevices::Combines => "moves and combines the memory of CUDA devices",
        };
        paceline_os::report!("paceline: MPI {does}: {said}");
    }
    let peers: Vec<Peer> = introductions.iter().map(|i| i.peer.clone()).collect();
    let hosts: Vec<u32> = introductions
        .iter()
        .map(|i| introductions.iter().position(|other| other.machine == i.machine).unwrap_or(0) as u32)
        .collect();

    let local: Vec<u32> = (0..size).filter(|&r| hosts[r as usize] == hosts[rank as usize]).collect();
    let (segment, file, address) = Segment::create(local.len() as u32).map_err(|e| {
        let remedy = match Errno::from_io_error(&e) {
            Some(Errno::FBIG) => "ulimit -f unlimited",
            Some(Errno::MFILE) => "ulimit -n 65536",
            Some(Errno::NFILE) => "sysctl -w fs.file-max=1000000",
            _ => "free (is there enough memory?)",
        };
        RunError::Failed(format!("shared memory for {} ranks cannot be reserved: {e}", local.len())).with_remedy(remedy)
    })?;
    let waker = Waker::new(segment.clone()).map_err(system("cannot create a pipe"))?;
    let opened = open_memory(rank, &settings, &local, (address, waker.address()), exchange, size)?;
    // Ranks of a host look into each other's segments even over TCP: see `CorePlacement`.
    let mut shared_with = agree(rank, &opened, exchange)?;
    if settings.transport.shares_no_memory() {
        shared_with.fill(false);
    }
    // All have opened what they could: the descriptor is no longer needed.
    drop(file);
    let offered = carrier.map(|(demand, library)| {
        let ip = introductions[rank as usize].address.ip();
        let together = local.len() == hosts.len();
        let options = ucx::Options { demand, place: (rank, size), together, interface: interface_of(ip) };
        let port = ucx::Port::open(&library, options)?;
        let offers = exchange(port.offer().to_vec())?;
        Ok((library, port, offers))
    });
    let offered: Option<(Arc<ucx::Library>, ucx::Port, Vec<Vec<u8>>)> = offered.transpose()?;
    check_transport(rank, &settings, &peers, &shared_with)?;
    check_streams(rank, &settings, &hosts, &shared_with)?;

    let Endpoints { listener, grpc: grpc_listener, multicast: port, .. } = endpoints;
    // All ranks are there: who does not answer now is not kept by something else.
    let (begun, job) = (Instant::now(), introductions[0].job);
    let apart = out_of_reach(rank, &introductions);
    let most = if apart.is_some() { settings.connect_timeout().min(UNREACHABLE) } else { settings.connect_timeout() };
    let deadline = deadline.min(begun + most);
    let mesh = if by_grpc && !settings.transport.tensors_by_sockets() {
        drop(listener);
        Mesh::of_none(size)
    } else {
        let over_mpi = library.is_some();
        let streams = |peer: u32| if over_mpi || shared_with[peer as usize] { 0 } else { settings.streams.max(1) };
        let links = u32::from(port.is_some());
        let streams: Vec<u32> = (0..size).map(|peer| if peer == rank { 0 } else { streams(peer) + links }).collect();
        let addresses: Vec<_> = introductions.iter().map(|i| i.address).collect();
        connect_mesh(rank, listener, &addresses, &streams, &secret, job, deadline)
            .map_err(|error| explain(error, &apart))?
    };
    let called = grpc_listener.map(|grpc_listener| {
        let offers = introductions.iter().map(|i| i.grpc.clone()).collect::<Option<_>>();
        let offers = offers.ok_or_else(|| RunError::Failed("a rank did not announce its gRPC address".into()))?;
        let (workers, tensors) = (size - settings.helpers(), settings.transport == Transport::Grpc);
        let options = grpc::ConnectOptions { rank, workers, offers, key: grpc_key(&secret, &job), tensors, deadline };
        grpc::connect(grpc_listener, options)
            .map_err(|error| who_serves(error, size, settings.server_processes(), settings.switches))
            .map_err(|error| explain(error, &apart))
    });
    let called = called.transpose()?;
    let over_ucx = offered.map(|(library, port, offers)| {
        let keys: Vec<u64> = (0..size).map(|rank| ucx_key(&secret, &job, rank)).collect();
        let name = |rank: u32| peers[rank as usize].describe();
        port.connect(&ucx::Peers { offers: &offers, keys: &keys, name: &name, times: (begun, deadline) })?;
        if settings.verbose && rank == 0 {
            let (path, version) = (library.path.display(), &library.version);
            let used: BTreeSet<String> = port.transports().into_iter().flatten().collect();
            let used = used.into_iter().collect::<Vec<_>>().join(", ");
            paceline_os::report!("paceline: UCX {version} ({path}) uses {used}");
        }
        Ok((library, port))
    });
    let over_ucx = over_ucx.transpose()?;
    let multicast = port.map(|port| (port, multicast_key(&secret, &job), agreed(&introductions, &settings)));
    let memory = (segment, waker, opened, shared_with);
    let native = native.map(|library| {
        let identifiers = introductions[0].native.iter().map(|text| from_digits(text)).collect::<Option<_>>();
        let unread = || RunError::Failed("rank 0 sent identifiers of oneCCL that are no hexadecimal digits".into());
        Ok::<_, RunError>(oneccl::Port::new(library, rank, size, identifiers.ok_or_else(unread)?))
    });
    let native = native.transpose()?;
    let carriers = (mesh, called, multicast, library, over_ucx, native);
    let engine = assemble(rank, settings, (peers, hosts, local), memory, carriers, devices)?;
    let EngineShared { monitor, peers, .. } = &*engine.shared;
    monitor.joining.wait(rank, peers, (begun, deadline)).inspect_err(|error| {
        // What the others are told when this rank leaves.
        engine.shared.note_cause(&error.to_string());
    })?;
    engine.shared.timeline.begin_at(introductions[0].clock);
    Ok(engine)
}

/// The values that every rank called it with, in rank order, through MPI: for what all must know before a job begins.
///
/// # Errors
/// There is no MPI, its rank differs from the launcher's environment, or ranks do not come.
pub fn exchange_over_mpi(rank: u32, size: u32, settings: &Settings, blob: Vec<u8>) -> Result<Vec<Vec<u8>>> {
    let library = open_library(rank, size, settings)?;
    mpi::exchange(&library, blob, settings.start_timeout())
}

/// The library of `native` between CPUs, if one is named.
fn open_native(settings: &Settings) -> Result<Option<Arc<oneccl::Library>>> {
    let Some(NativeBy::Oneccl) = settings.native else { return Ok(None) };
    let named = settings.oneccl_library.as_deref();
    let library = oneccl::Library::get(named).map_err(|why| {
        RunError::Setting("native", format!("oneccl: {why}"))
            .with_remedy("paceline bench --install oneccl (prints the value of PACELINE_ONECCL_LIBRARY)")
    })?;
    Ok(Some(library))
}

/// Identifiers for the groups of a job, as text.
fn identifiers(library: &Arc<oneccl::Library>) -> Result<Vec<String>> {
    let one = |_| {
        let bytes = library.identifier().map_err(|why| RunError::Setting("native", why))?;
        Ok(bytes.iter().map(|byte| format!("{byte:02x}")).collect())
    };
    (0..oneccl::IDENTIFIERS).map(one).collect()
}

/// The bytes that hexadecimal digits say; `None` for other text.
fn from_digits(text: &str) -> Option<Vec<u8>> {
    let digits: Option<Vec<u8>> = text.chars().map(|digit| digit.to_digit(16).map(|digit| digit as u8)).collect();
    let (pairs, rest) = digits.as_deref()?.as_chunks::<2>();
    rest.is_empty().then(|| pairs.iter().map(|[high, low]| (high << 4) | low).collect())
}

/// The MPI thread, whose ranks must match the launcher's environment.
fn open_library(rank: u32, size: u32, settings: &Settings) -> Result<Arc<mpi::Thread>> {
    let thread = mpi::Thread::get(settings.mpi_library.as_deref(), settings.start_timeout())?;
    let about = &thread.about;
    if (about.rank, about.size) != (rank, size) {
        let remedy = if about.size == 1 {
            "another launcher has started it: use the mpirun of this library, or set PACELINE_MPI_LIBRARY to the \
             library of the launcher"
        } else {
            "give MPI and paceline the same ranks: unset RANK and WORLD_SIZE, or start with mpirun alone"
        };
        return Err(RunError::Setting(
            "transport",
            format!(
                "mpi: this process is rank {rank} of {size}, but for {} ({}) it is rank {} of {}; {remedy}",
                about.version,
                about.library.display(),
                about.rank,
                about.size
            ),
        ));
    }
    Ok(thread)
}

/// UCX's library, with what is demanded of it.
fn open_ucx(demand: ucx::Demand, settings: &Settings) -> Result<(ucx::Demand, Arc<ucx::Library>)> {
    let library = ucx::library(settings.ucx_library.as_deref(), settings.ucx_package.as_deref())?;
    demand.check(&library)?;
    Ok((demand, library))
}

/// The sockets of multicasts, if any are configured; ranks that train receive.
fn open_port(rank: u32, size: u32, settings: &Settings, listener: &Listener) -> Result<Option<Port>> {
    let Some(address) = settings.multicast else { return Ok(None) };
    let without = |what: String| {
        RunError::Setting("multicast", format!("{address}: has no effect {what}")).with_remedy("drop {multicast}")
    };
    if !settings.transport.tensors_by_sockets() {
        return Err(without(format!("with transport {}", settings.transport.name())));
    }
    if let Some(name) = &settings.strategy
        && look_up(name).is_ok_and(|entry| !entry.uses(Knob::Multicast))
    {
        return Err(without(format!("on {name}")));
    }
    let trains = rank < size - settings.helpers();
    Port::open(address, listener.address().ip(), trains).map(Some)
}

/// The least that the MPI of any rank does with the memory of CUDA devices, and which rank's says so.
fn least_support(introductions: &[Introduction]) -> Option<DeviceSupport> {
    let all = introductions.iter().filter_map(|one| one.devices.as_ref().map(|devices| (one.peer.rank, devices)));
    let (rank, least) = all.min_by_key(|(_, devices)| devices.takes)?;
    Some(DeviceSupport { takes: least.takes, said: format!("rank {rank}: {}", least.said) })
}

/// The least that all ranks can send and receive.
fn agreed(introductions: &[Introduction], settings: &Settings) -> Sizes {
    let servers = settings.strategy.as_ref().is_some_and(|name| look_up(name).is_ok_and(|e| e.uses(Knob::Servers)));
    let senders = if servers { settings.servers as usize } else { introductions.len() };
    let all = || introductions.iter().filter_map(|one| one.multicast);
    let payload = all().map(|(payload, _)| payload).min().unwrap_or(8);
    let buffer = all().map(|(_, buffer)| buffer).min().unwrap_or(0);
    Sizes::new(payload, buffer, senders)
}
