//! Joining a job: the ranks tell each other where they are, open each other's shared memory, connect, and start threads.
use std::os::fd::AsRawFd;
use std::os::unix::net::UnixStream;
use std::sync::atomic::{AtomicBool, AtomicU64, AtomicUsize};
use std::sync::{Arc, Condvar, Mutex};
use std::time::Instant;

use paceline_schedule::{Knob, look_up};
use serde::{Deserialize, Serialize, de::DeserializeOwned};
use socket2::Socket;

use super::book::Book;
use super::control::Control;
use super::monitor::{Monitor, Watch};
use super::peers::Peer;
use super::placement::Placement;
use super::serve::Service;
use super::{End, Engine, Shared};
use crate::channel::Channel;
use crate::error::{Result, RunError};
use crate::executor::{Executor, Wires};
use crate::grpc;
use crate::mpi;
use crate::multicast::{Key, Multicast, Port, Sizes};
use crate::rendezvous::{self, Listener, Mesh, Secret, check_exposure, connect_mesh, grpc_key, multicast_key};
use crate::settings::{Settings, Transport};
use crate::shm::{Bell, Ringer, Segment, SegmentAddress, ShmChannel};
use crate::tcp::TcpChannel;
use crate::timeline::{self, Timeline};

/// What gives every rank what all of them called it with, in rank order. Called three times.
pub type Exchange<'a> = &'a mut dyn FnMut(Vec<u8>) -> Result<Vec<Vec<u8>>>;

/// What authenticates a job on one machine for which nobody made a secret: nothing, but a stray connection.
const NO_SECRET: &str = "paceline: a job on one machine without a secret";

#[derive(Serialize, Deserialize)]
struct Introduction {
    peer: Peer,
    /// Equal for processes that can open each other's memory, if they belong to one user.
    machine: String,
    address: std::net::SocketAddr,
    job: [u8; 16],
    /// The time there, in nanoseconds.
    clock: u64,
    version: String,
    /// What all ranks must have been told alike.
    settings: String,
    /// How it is called over gRPC.
    grpc: Option<grpc::Offer>,
    /// What it can send and receive at once as a multicast: payload of a datagram, bytes until they are received.
    multicast: Option<(usize, usize)>,
}

#[derive(Serialize, Deserialize)]
struct Memory {
    segment: SegmentAddress,
    bell: i32,
}

/// The sockets of multicasts, their key and their sizes.
type Multicasting = (Port, [u8; 32], Sizes);

/// The doors of a rank: where others connect to it, and what else is told of it.
struct Doors {
    listener: Listener,
    grpc: Option<grpc::Door>,
    multicast: Option<Port>,
}

/// The memory of a peer, opened.
type Opened = Option<(Arc<Segment>, Ringer)>;

fn system(what: &str) -> impl Fn(std::io::Error) -> RunError {
    move |e| RunError::Failed(format!("{what}: {e}"))
}

/// Why the ranks did not meet, and which of the numbers in it are servers and the switch.
fn who_serves(error: RunError, size: u32, servers: u32, switch: bool) -> RunError {
    let RunError::Failed(why) = error else { return error };
    let first = size - servers - u32::from(switch);
    let mut who = match servers {
        0 => String::new(),
        1 => format!("; rank {first} is its parameter server"),
        _ => format!("; ranks {first}-{} are its {servers} parameter servers", first + servers - 1),
    };
    if switch {
        who += &format!(", rank {} its switch", size - 1);
    }
    RunError::Failed(why + &who)
}

/// One round of the exchange, in JSON.
fn round<T: Serialize + DeserializeOwned>(exchange: Exchange<'_>, mine: &T) -> Result<Vec<T>> {
    let blob = serde_json::to_vec(mine).map_err(|e| RunError::Failed(e.to_string()))?;
    let blobs = exchange(blob)?;
    let parse = |(rank, blob): (usize, &Vec<u8>)| {
        serde_json::from_slice(blob).map_err(|e| {
            RunError::Failed(format!(
                "rank {rank} introduced itself in a way this version does not know ({e}); use the \
                same version of paceline on all ranks"
            ))
        })
    };
    blobs.iter().enumerate().map(parse).collect()
}

pub(super) fn start(rank: u32, size: u32, settings: Settings, exchange: Option<Exchange<'_>>) -> Result<Engine> {
    if size == 0 || rank >= size || size > u32::from(u16::MAX) / 2 {
        return Err(RunError::Usage(format!(
            "rank {rank} of {size} ranks: ranks are numbered from 0, and up to 32,767"
        )));
    }
    if settings.switch && !settings.dedicated {
        return Err(RunError::Usage("switch: a process in the switch's place needs servers that are processes".into()));
    }
    if settings.helpers() >= size {
        return Err(RunError::Usage(format!("{} servers among {size} ranks leave nobody to train", settings.servers)));
    }
    let deadline = Instant::now() + settings.start_timeout();
    let library = settings.transport.tensors_by_mpi().then(|| open_library(rank, size, &settings)).transpose()?;
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
                        "no rendezvous: start with `paceline run`, or set PACELINE_RENDEZVOUS=host:port of rank 0"
                            .into(),
                    ));
                }
            };
            if library.is_none() {
                check_exposure(&address, settings.secret.is_some())?;
            }
            let (secret, library) = (secret.clone(), library.clone());
            let (servers, switch) = (settings.helpers() - u32::from(settings.switch), settings.switch);
            own_exchange = move |blob: Vec<u8>| {
                if size == 1 {
                    return Ok(vec![blob]);
                }
                if let Some(library) = &library {
                    return mpi::exchange(library, blob, deadline.saturating_duration_since(Instant::now()));
                }
                rendezvous::exchange(rank, size, &address, &secret, &blob, deadline)
                    .map_err(|error| who_serves(error, size, servers, switch))
            };
            &mut own_exchange
        }
    };

    check_grpc(&settings)?;
    let listener = Listener::bind(&settings.interface)?;
    let multicast = open_port(rank, size, &settings, &listener)?;
    let by_grpc = settings.transport.controls_by_grpc();
    let door = by_grpc.then(|| grpc::Door::open(&settings.interface, settings.tls)).transpose()?;
    let doors = Doors { listener, grpc: door, multicast };
    let introductions = introduce(rank, size, &settings, &doors, exchange)?;
    let peers: Vec<Peer> = introductions.iter().map(|i| i.peer.clone()).collect();
    let hosts: Vec<u32> = introductions
        .iter()
        .map(|i| introductions.iter().position(|other| other.machine == i.machine).unwrap_or(0) as u32)
        .collect();

    let local: Vec<u32> = (0..size).filter(|&r| hosts[r as usize] == hosts[rank as usize]).collect();
    let (segment, file, address) = Segment::create(local.len() as u32).map_err(|e| {
        RunError::Failed(format!(
            "shared memory of {} ranks cannot be reserved: {e}; is there enough memory?",
            local.len()
        ))
    })?;
    let bell = Bell::new(segment.clone()).map_err(system("a pipe cannot be made"))?;
    let opened = open_memory(rank, &settings, &local, (address, bell.address()), exchange, size)?;
    // Over TCP, too, ranks of a host look into each other's segments: see `Placement`.
    let mut shared_with = agree(rank, &opened, exchange)?;
    if settings.transport.shares_no_memory() {
        shared_with.fill(false);
    }
    // Everybody has opened what they could: the descriptor is not needed any more.
    drop(file);
    check_transport(rank, &settings, &peers, &shared_with)?;
    check_streams(rank, &settings, &hosts, &shared_with)?;

    let Doors { listener, grpc: door, multicast: port } = doors;
    let job = introductions[0].job;
    let mesh = if by_grpc && !settings.transport.tensors_by_sockets() {
        drop(listener);
        Mesh::of_none(size)
    } else {
        let over_mpi = library.is_some();
        let streams = |peer: u32| if over_mpi || shared_with[peer as usize] { 0 } else { settings.streams.max(1) };
        let links = u32::from(port.is_some());
        let streams: Vec<u32> = (0..size).map(|peer| if peer == rank { 0 } else { streams(peer) + links }).collect();
        let addresses: Vec<_> = introductions.iter().map(|i| i.address).collect();
        connect_mesh(rank, listener, &addresses, &streams, &secret, job, deadline)?
    };
    let called = door.map(|door| {
        let offers = introductions.iter().map(|i| i.grpc.clone()).collect::<Option<_>>();
        let offers =
            offers.ok_or_else(|| RunError::Failed("a rank does not say where it is called over gRPC".into()))?;
        let (workers, tensors) = (size - settings.helpers(), settings.transport == Transport::Grpc);
        let plan = grpc::Plan { rank, workers, offers, key: grpc_key(&secret, &job), tensors, deadline };
        grpc::connect(door, plan)
            .map_err(|error| who_serves(error, size, settings.helpers() - u32::from(settings.switch), settings.switch))
    });
    let called = called.transpose()?;
    let multicast = port.map(|port| (port, multicast_key(&secret, &job), agreed(&introductions, &settings)));
    let memory = (segment, bell, opened, shared_with);
    let engine = assemble(rank, settings, (peers, hosts, local), memory, (mesh, called, multicast, library))?;
    engine.shared.timeline.begin_at(introductions[0].clock);
    Ok(engine)
}

/// What every rank called it with, in rank order, through MPI: before a job, for what all must know to begin one.
///
/// # Errors
/// No MPI, another place in it than the launcher's environment tells, or ranks that do not come.
pub fn exchange_over_mpi(rank: u32, size: u32, settings: &Settings, blob: Vec<u8>) -> Result<Vec<Vec<u8>>> {
    let library = open_library(rank, size, settings)?;
    mpi::exchange(&library, blob, settings.start_timeout())
}

/// The thread of MPI, whose ranks must be those that the launcher's environment tells.
fn open_library(rank: u32, size: u32, settings: &Settings) -> Result<Arc<mpi::Thread>> {
    let thread = mpi::Thread::get(settings.mpi_library.as_deref(), settings.start_timeout())?;
    let about = &thread.about;
    if (about.rank, about.size) != (rank, size) {
        let remedy = if about.size == 1 {
            "another launcher has started it: start it with the mpirun that belongs to this library, or set \
             PACELINE_MPI_LIBRARY to the library that belongs to the launcher"
        } else {
            "give MPI and paceline the same ranks: unset RANK and WORLD_SIZE, or start with mpirun alone"
        };
        return Err(RunError::Usage(format!(
            "transport mpi: this process is rank {rank} of {size}, but for {} ({}) it is rank {} of {}; {remedy}",
            about.version,
            about.library.display(),
            about.rank,
            about.size
        )));
    }
    Ok(thread)
}

/// The sockets of multicasts, if there are to be any; those that train receive.
fn open_port(rank: u32, size: u32, settings: &Settings, listener: &Listener) -> Result<Option<Port>> {
    let Some(address) = settings.multicast else { return Ok(None) };
    let without =
        |what: String| RunError::Usage(format!("multicast {address}: has no effect {what}; leave one of them out"));
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

/// What all ranks can send and receive.
fn agreed(introductions: &[Introduction], settings: &Settings) -> Sizes {
    let servers = settings.strategy.as_ref().is_some_and(|name| look_up(name).is_ok_and(|e| e.uses(Knob::Servers)));
    let senders = if servers { settings.servers as usize } else { introductions.len() };
    let all = || introductions.iter().filter_map(|one| one.multicast);
    let payload = all().map(|(payload, _)| payload).min().unwrap_or(8);
    let buffer = all().map(|(_, buffer)| buffer).min().unwrap_or(0);
    Sizes::new(payload, buffer, senders)
}

fn introduce(
    rank: u32,
    size: u32,
    settings: &Settings,
    doors: &Doors,
    exchange: Exchange<'_>,
) -> Result<Vec<Introduction>> {
    let mut job = [0; 16];
    getrandom::fill(&mut job).map_err(|e| RunError::Failed(format!("no random numbers: {e}")))?;
    let Settings { strategy, chunk, inside, servers, dedicated, placement, distribution, .. } = settings;
    let Settings { streams, transport, tls, .. } = settings;
    let helper = rank.checked_sub(size - settings.helpers());
    let (server, switch) = (helper.filter(|number| number < servers), helper == Some(*servers));
    let multicast = settings.multicast.map_or("none".into(), |address| address.to_string());
    let host = rustix::system::uname().nodename().to_string_lossy().into_owned();
    let mine = Introduction {
        peer: Peer { rank, host, pid: std::process::id(), server, switch },
        machine: machine(),
        address: doors.listener.address(),
        job,
        clock: timeline::now(),
        version: env!("CARGO_PKG_VERSION").into(),
        settings: format!(
            "{strategy:?} {chunk:?} {inside:?} servers {servers} (processes: {dedicated}, switch: {}) {placement:?} \
             {distribution:?} streams {streams} {transport:?} multicast {multicast} tls {tls:?}",
            settings.switch
        ),
        grpc: doors.grpc.as_ref().map(|door| door.offer().clone()),
        multicast: doors.multicast.as_ref().map(|port| (port.payload, port.buffer)),
    };
    let all = round(exchange, &mine)?;
    if all.len() != size as usize {
        return Err(RunError::Failed(format!("the exchange gave {} blobs for {size} ranks", all.len())));
    }
    for other in &all {
        if other.version != mine.version {
            return Err(RunError::Failed(format!(
                "{} runs paceline {}, rank {rank} runs {}; use the same version everywhere",
                other.peer.describe(),
                other.version,
                mine.version
            )));
        }
        if other.settings != mine.settings {
            return Err(RunError::Usage(format!(
                "{} and rank {rank} were told different things: {} and {}; give all ranks the same PACELINE_ variables",
                other.peer.describe(),
                other.settings,
                mine.settings
            )));
        }
    }
    Ok(all)
}

/// This boot of this machine, the namespace in which a process number means something, and that of its network: where
/// ranks of one machine have networks of their own, they are meant to use them (`paceline emulate`).
fn machine() -> String {
    let boot = std::fs::read_to_string("/proc/sys/kernel/random/boot_id").unwrap_or_default();
    let namespace = |kind| std::fs::read_link(format!("/proc/self/ns/{kind}")).unwrap_or_default();
    format!("{} {} {}", boot.trim(), namespace("pid").display(), namespace("net").display())
}

/// Whether this thread is scheduled by SCHED_FIFO or SCHED_RR: the 41st field of its line in /proc (proc(5)). The name,
/// which may hold blanks, is the second, in brackets.
fn real_time() -> bool {
    let line = std::fs::read_to_string("/proc/thread-self/stat").unwrap_or_default();
    let policy = line.rsplit_once(')').and_then(|(_, rest)| rest.split_whitespace().nth(38));
    matches!(policy, Some("1" | "2"))
}

fn open_memory(
    rank: u32,
    settings: &Settings,
    local: &[u32],
    (segment, bell): (SegmentAddress, i32),
    exchange: Exchange<'_>,
    size: u32,
) -> Result<Vec<Opened>> {
    let token_at = if settings.single_copy { segment.token_at } else { 0 };
    let memories = round(exchange, &Memory { segment: SegmentAddress { token_at, ..segment }, bell })?;
    let open = |peer: u32| -> Opened {
        let Memory { segment: address, bell } = memories.get(peer as usize)?;
        if peer == rank || !local.contains(&peer) {
            return None;
        }
        let opened = Segment::open(address).ok()?;
        let ringer = Ringer::open(opened.clone(), address.pid, *bell).ok()?;
        Some((opened, ringer))
    };
    Ok((0..size).map(open).collect())
}

/// Two ranks use shared memory if each could open the other's.
fn agree(rank: u32, opened: &[Opened], exchange: Exchange<'_>) -> Result<Vec<bool>> {
    let mine: Vec<bool> = opened.iter().map(Option::is_some).collect();
    let all: Vec<Vec<bool>> = round(exchange, &mine)?;
    Ok(mine.iter().zip(&all).map(|(&could, they)| could && they.get(rank as usize) == Some(&true)).collect())
}

fn check_transport(rank: u32, settings: &Settings, peers: &[Peer], shared_with: &[bool]) -> Result<()> {
    let without = (0..peers.len()).find(|&peer| peer != rank as usize && !shared_with[peer]);
    match (settings.transport, without) {
        (Transport::Shm, Some(peer)) => Err(RunError::Usage(format!(
            "transport shm: rank {rank} and {} cannot share memory; they must run on one host, in one container, as one \
             user. Use transport auto or tcp",
            peers[peer].describe()
        ))),
        _ => Ok(()),
    }
}

/// What gRPC does without, and what only gRPC does.
fn check_grpc(settings: &Settings) -> Result<()> {
    let transport = settings.transport;
    let without = |knob: &str| {
        let name = transport.name();
        Err(RunError::Usage(format!("{knob}: has no effect with transport {name}; leave one of them out")))
    };
    if settings.tls.is_some() && !transport.controls_by_grpc() {
        return without("tls");
    }
    if settings.streams > 1 && transport == Transport::Grpc {
        return without("streams");
    }
    Ok(())
}

/// Streams are those of sockets, and there are none.
fn check_streams(rank: u32, settings: &Settings, hosts: &[u32], shared_with: &[bool]) -> Result<()> {
    let together = hosts.iter().all(|host| *host == hosts[0]);
    let all_shared = (0..hosts.len()).all(|peer| peer == rank as usize || shared_with[peer]);
    if settings.streams > 1 && hosts.len() > 1 && together && all_shared {
        return Err(RunError::Usage(format!(
            "streams: {} have no effect, because all ranks share the memory of one host; leave PACELINE_STREAMS out, or \
             set PACELINE_TRANSPORT=tcp",
            settings.streams
        )));
    }
    Ok(())
}

fn assemble(
    rank: u32,
    settings: Settings,
    (peers, hosts, local): (Vec<Peer>, Vec<u32>, Vec<u32>),
    (segment, bell, opened, shared_with): (Arc<Segment>, Bell, Vec<Opened>, Vec<bool>),
    (mesh, called, multicast, library): (Mesh, Option<grpc::Connected>, Option<Multicasting>, Option<Arc<mpi::Thread>>),
) -> Result<Engine> {
    let place = |r: u32| local.iter().position(|&l| l == r).unwrap_or(0) as u32;
    let neighbours = |lower: bool| {
        let peers = (0u32..).zip(&opened).filter(move |&(peer, _)| (peer < rank) == lower);
        peers.filter_map(|(_, opened)| opened.as_ref().map(|(segment, _)| segment.clone())).collect()
    };
    let placement = Placement::new(segment.clone(), neighbours(true), neighbours(false));
    let lends = opened.iter().zip(&shared_with);
    let lends = lends.map(|(opened, shared)| *shared && opened.as_ref().is_some_and(|(segment, _)| segment.lends()));
    let lends = lends.collect();
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
            (Some(channel), _) => Some(Box::new(channel)),
            (None, Some((memory, ringer))) if shared_with[peer as usize] => {
                let channel = ShmChannel::new(segment.clone(), place(rank), memory, place(peer), ringer);
                Some(Box::new(channel))
            }
            _ => Some(Box::new(TcpChannel::new(streams).map_err(system("a connection"))?)),
        });
    }
    let mut controls = Vec::new();
    let over_tcp = || mesh.control.into_iter().map(|socket| socket.map(Socket::from)).collect();
    let over_grpc = |sockets: Vec<Option<UnixStream>>| sockets.into_iter().map(|one| one.map(Socket::from)).collect();
    let control: Vec<Option<Socket>> = called_by_grpc.map_or_else(over_tcp, over_grpc);
    for socket in control {
        sockets.extend(socket.as_ref().map(AsRawFd::as_raw_fd));
        controls.push(socket.map(Control::new).transpose().map_err(system("a connection"))?);
    }
    let cores = std::thread::available_parallelism().map_or(1, std::num::NonZero::get);
    let timeline = Arc::new(Timeline::new(
        rank,
        settings.servers,
        settings.dedicated.then(|| peers.len() as u32 - settings.helpers()),
    ));
    let mut wires = Wires::new(rank, channels);
    wires.timeline = timeline.clone();
    if let Some((port, key, sizes)) = multicast {
        sockets.extend(port.descriptors());
        let all = Multicast::new(rank, port, Key::new(&key), sizes, links, settings.disturbance);
        wires.set_multicast(all.map_err(system("a multicast"))?);
    }
    if let Some(port) = port {
        wires.set_mpi(port);
        mpi::entered();
    }
    let shared = Arc::new(Shared {
        rank,
        peers,
        hosts,
        core: Mutex::new(Executor::new(wires)),
        book: Mutex::new(Book::default()),
        news: AtomicBool::new(false),
        bell,
        parked: AtomicUsize::new(0),
        turn: Mutex::new(()),
        changed: Condvar::new(),
        wanted: Mutex::new(false),
        kick: Condvar::new(),
        unflushed: AtomicBool::new(false),
        looks: AtomicU64::new(0),
        closing: AtomicBool::new(false),
        forked: AtomicBool::new(false),
        notices: Mutex::new(Vec::new()),
        noticed: Condvar::new(),
        graveyard: Mutex::new(Vec::new()),
        monitor: Monitor::new().map_err(system("a pipe cannot be made"))?,
        placement,
        timeline: timeline.clone(),
        listeners: Mutex::default(),
        service: Service::default(),
        progress_thread: std::sync::atomic::AtomicI32::new(0),
        tuned: Mutex::default(),
        lends,
        crowded: local.len() > cores,
        real_time: real_time(),
        funneled: library.is_some(),
        left: Mutex::default(),
        gone: Condvar::new(),
        library: library.as_ref().map(|thread| thread.about.clone()),
        sockets,
        settings,
    });
    let (driver, watcher, watch) = (shared.clone(), shared.clone(), Watch::new(controls));
    let spawn = |name: &str, body: Box<dyn FnOnce() + Send>| {
        let thread = std::thread::Builder::new().name(name.into()).spawn(body);
        thread.map(End::Thread).map_err(system("a thread cannot be started"))
    };
    let drive = Box::new(move || driver.run_progress_thread());
    let drives = match library {
        Some(library) => End::Work(library.drive(drive)),
        None => spawn("paceline-driver", drive)?,
    };
    let threads = vec![drives, spawn("paceline-monitor", Box::new(move || watch.run(&watcher)))?];
    Ok(Engine { shared, threads: Mutex::new(threads), grpc: Mutex::new(thread) })
}
