//! The thread that makes all MPI calls. There is one per process: MPI is initialized once and finalized once.
#![allow(unsafe_code, reason = "a function is registered for the end of the process")]
use std::path::PathBuf;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, AtomicU32, Ordering};
use std::sync::mpsc::{Receiver, RecvTimeoutError, Sender, channel};
use std::time::{Duration, Instant};

use parking_lot::Mutex;

use super::abi::Abi;
use super::calls::{Mpi, Owner, claim_thread, version};
use super::collective::abandoned;
use super::devices::support;
use super::find::{OTHERS, candidates, is_loaded};
use paceline_transport::error::{Result, RunError};
use paceline_transport::offload::DeviceSupport;
use paceline_transport::waiting::{Reports, START_TIMEOUT};

/// How long process exit waits for `MPI_Finalize`, which waits for all ranks: another may still be saving a checkpoint,
/// and launchers kill all others when a rank ends without it.
const FINALIZE: Duration = Duration::from_secs(600);
/// After this long, prints what it waits for.
const TELL: Duration = Duration::from_secs(10);

type Task = Box<dyn FnOnce(&Arc<Mpi>) + Send>;

/// The library that was loaded.
#[derive(Clone, Debug)]
pub struct About {
    /// Path or name under which it was found.
    pub library: PathBuf,
    /// Its version text.
    pub version: String,
    /// Its binary interface: `standard` or `Open MPI`.
    pub abi: &'static str,
    /// This process's rank in MPI.
    pub rank: u32,
    /// Number of ranks in MPI.
    pub size: u32,
    /// Its support for the memory of CUDA devices.
    pub devices: DeviceSupport,
}

/// A handle to the thread.
pub struct Thread {
    tasks: Mutex<Sender<Task>>,
    /// A forked child does not have the thread.
    process: u32,
    /// The path that the user gave.
    named: Option<String>,
    /// The library that was loaded.
    pub about: About,
    /// Who initialized MPI.
    owner: Owner,
}

static THREAD: Mutex<Option<Arc<Thread>>> = Mutex::new(None);
/// MPI can be initialized only once in a process, even if that failed.
static BEGUN: AtomicBool = AtomicBool::new(false);

fn usage<T>(text: String) -> Result<T> {
    Err(RunError::Usage(text))
}

/// Receives what the thread gets from the other ranks within this time, and reports the wait.
fn receive<T>(answer: &Receiver<T>, limit: Duration, what: &str) -> std::result::Result<T, RecvTimeoutError> {
    let began = Instant::now();
    let mut reports = Reports::new(began, limit, START_TIMEOUT);
    loop {
        let now = Instant::now();
        let next = reports.next().min(began + limit);
        match answer.recv_timeout(next.saturating_duration_since(now)) {
            Err(RecvTimeoutError::Timeout) if next < began + limit => reports.report(Instant::now(), |waited| {
                format!("{what} over MPI has waited {:.0} s for the other ranks", waited.as_secs_f64())
            }),
            over => return over,
        }
    }
}

impl Thread {
    /// This process's thread. The first call starts it, loads the library and initializes MPI. `named`: the user's path
    /// of a library. `limit`: how long the other ranks may take.
    ///
    /// # Errors
    /// No library, or an unusable one; ranks that do not arrive; a process that can no longer use MPI.
    pub fn get(named: Option<&str>, limit: Duration) -> Result<Arc<Thread>> {
        let mut thread = THREAD.lock();
        if let Some(thread) = &*thread {
            thread.usable(named)?;
            return Ok(thread.clone());
        }
        if is_loaded(OTHERS) {
            return Err(RunError::Setting(
                "transport",
                format!(
                    "mpi: this process has loaded {OTHERS}, an MPICH interface older than MPI 5, and cannot load another \
                 MPI beside it; do not load an mpi4py built for it, or use Open MPI"
                ),
            ));
        }
        let (library, abi) = load(named)?;
        if BEGUN.swap(true, Ordering::SeqCst) {
            return usage(
                "MPI failed to initialize in this process, and cannot be initialized again; restart the process".into(),
            );
        }
        let (tasks, queue) = channel();
        let (sender, receiver) = channel();
        let at = library.clone();
        std::thread::Builder::new()
            .name("paceline-mpi".into())
            .spawn(move || run(abi, at, &sender, &queue))
            .map_err(|e| RunError::Failed(format!("cannot start a thread: {e}")))?;
        let (about, owner) = match receive(&receiver, limit, "MPI_Init") {
            Ok(begun) => begun.map_err(|why| RunError::Usage(format!("MPI ({}): {why}", library.display())))?,
            Err(_) => {
                return Err(RunError::Failed(format!(
                    "MPI ({}): MPI_Init has waited {} s for the other ranks; check their output, or raise \
                     PACELINE_START_TIMEOUT",
                    library.display(),
                    limit.as_secs()
                )));
            }
        };
        let (tasks, process, named) = (Mutex::new(tasks), std::process::id(), named.map(String::from));
        let made = Arc::new(Thread { tasks, process, named, about, owner });
        if owner == Owner::Us {
            // SAFETY: the function lives as long as the process, because this library stays loaded.
            unsafe { libc::atexit(finish) };
        }
        *thread = Some(made.clone());
        Ok(made)
    }

    fn usable(&self, named: Option<&str>) -> Result<()> {
        let loaded = self.about.library.display();
        if self.process != std::process::id() {
            return usage(
                "this process was forked from one that uses MPI, and cannot use MPI itself; start a new process".into(),
            );
        }
        if abandoned() {
            return usage(
                "MPI cannot be used in this process any more: it failed during a collective of the library, \
                 which MPI cannot cancel; restart the processes"
                    .into(),
            );
        }
        if named.is_some() && named != self.named.as_deref() {
            return usage(format!("PACELINE_MPI_LIBRARY: this process has already loaded {loaded}"));
        }
        Ok(())
    }

    /// Runs something on the thread and waits for it, at most this long; `what` is for messages.
    ///
    /// # Errors
    /// It took longer.
    pub(super) fn call<T: Send + 'static>(
        &self,
        what: &str,
        limit: Duration,
        task: impl FnOnce(&Arc<Mpi>) -> std::result::Result<T, String> + Send + 'static,
    ) -> Result<T> {
        let answer = self.post(task);
        match receive(&answer, limit, what) {
            Ok(result) => result.map_err(|why| RunError::Failed(format!("MPI: {why}"))),
            Err(RecvTimeoutError::Timeout) => Err(RunError::Failed(format!(
                "{what} over MPI has waited {:.0} s for the other ranks",
                limit.as_secs_f64()
            ))),
            Err(RecvTimeoutError::Disconnected) => Err(RunError::Failed("the MPI thread has ended".into())),
        }
    }

    /// Runs something on the thread; the receiver gets the result.
    pub(super) fn post<T: Send + 'static>(&self, task: impl FnOnce(&Arc<Mpi>) -> T + Send + 'static) -> Receiver<T> {
        let (sender, receiver) = channel();
        let task = move |mpi: &Arc<Mpi>| drop(sender.send(task(mpi)));
        let _ = self.tasks.lock().send(Box::new(task));
        receiver
    }

    /// Opens a job's messages. Collective.
    ///
    /// # Errors
    /// A rank does not arrive.
    pub fn open_port(&self, limit: Duration) -> Result<super::Port> {
        self.call("MPI_Comm_dup", limit, super::Port::open)
    }

    /// Makes the thread drive a job until it is closed.
    #[must_use]
    pub fn drive(&self, job: Box<dyn FnOnce() + Send>) -> Receiver<()> {
        self.post(move |_| job())
    }
}

/// Loads the first library that can be loaded.
fn load(named: Option<&str>) -> Result<(PathBuf, Abi)> {
    let mut tried = Vec::new();
    for path in candidates(named) {
        match Abi::load(&path) {
            Ok(abi) => return Ok((path, abi)),
            Err(why) if why.contains(&*path.to_string_lossy()) => tried.push(why),
            Err(why) => tried.push(format!("{}: {why}", path.display())),
        }
    }
    let tried = tried.join("; ");
    if named.is_some() {
        return usage(format!(
            "PACELINE_MPI_LIBRARY: name libmpi_abi.so.1 of MPICH 5 or newer, libmpi.so.40 of Open MPI 5, or the folder \
         that contains it (libmpi.so is a linker script in many installations). Tried: {tried}"
        ));
    }
    Err(RunError::Setting(
        "transport",
        format!(
            "mpi: no MPI library found; start with the mpirun of MPICH 5 or Open MPI 5, or set PACELINE_MPI_LIBRARY to \
             libmpi_abi.so.1 or libmpi.so.40. Tried: {tried}"
        ),
    ))
}

/// The library that a job over MPI would use, with name and version. It is loaded, but MPI is not initialized.
///
/// # Errors
/// There is none; the message lists what was tried.
pub fn library(named: Option<&str>) -> Result<(PathBuf, String)> {
    let (path, abi) = load(named)?;
    Ok((path, version(&abi.functions)))
}

/// The thread's report after it started.
type Begun = std::result::Result<(About, Owner), String>;

/// The thread's main function.
fn run(abi: Abi, library: PathBuf, sender: &Sender<Begun>, queue: &Receiver<Task>) {
    claim_thread();
    let mpi = Arc::new(Mpi::new(abi));
    let begin = || {
        launched_by_its_own(mpi.abi())?;
        let owner = mpi.init()?;
        let (rank, size) = mpi.place()?;
        Ok((About { library, version: mpi.version(), abi: mpi.abi(), rank, size, devices: support(&mpi) }, owner))
    };
    let begun = begin();
    let failed = begun.is_err();
    let _ = sender.send(begun);
    if failed {
        return;
    }
    while let Ok(task) = queue.recv() {
        task(&mpi);
    }
}

/// MPICH ends the process in MPI_Init if Open MPI's mpirun started it. The other way round, every process becomes rank
/// 0 of 1, which the comparison with the launcher's variables detects.
fn launched_by_its_own(abi: &str) -> std::result::Result<(), String> {
    if abi == "standard" && std::env::var_os("OMPI_COMM_WORLD_SIZE").is_some() {
        return Err("Open MPI's mpirun has started this process, but this is another library: use the mpirun of this \
                    library, or set PACELINE_MPI_LIBRARY to Open MPI's libmpi.so.40"
            .into());
    }
    Ok(())
}

/// Jobs that were not closed, or that lost a rank: MPI_Finalize would wait forever, here or on the others.
static UNFINISHED: AtomicU32 = AtomicU32::new(0);

/// A job begins; MPI is not finalized until `left`.
pub fn entered() {
    UNFINISHED.fetch_add(1, Ordering::SeqCst);
}

/// A job was closed in good order.
pub fn left() {
    UNFINISHED.fetch_sub(1, Ordering::SeqCst);
}

/// At process exit.
extern "C" fn finish() {
    let Some(thread) = THREAD.try_lock() else { return };
    let Some(thread) = &*thread else { return };
    let unfinished = UNFINISHED.load(Ordering::SeqCst) > 0;
    if thread.process != std::process::id() || thread.owner != Owner::Us {
        return;
    }
    if unfinished || abandoned() {
        unlink_memory();
        return;
    }
    let ended = thread.post(|mpi| mpi.finalize());
    if ended.recv_timeout(TELL).is_err() {
        eprintln!(
            "paceline: rank {}: waiting in MPI_Finalize for other ranks, at most {} s",
            thread.about.rank,
            FINALIZE.as_secs()
        );
        let _ = ended.recv_timeout(FINALIZE);
    }
}

/// MPICH unlinks the shared memory of a host's ranks only in `MPI_Finalize`, so 2 MiB and more would stay in /dev/shm
/// for every failed job. All ranks have mapped it since `MPI_Init`, so the name is no longer needed.
fn unlink_memory() {
    let maps = std::fs::read_to_string("/proc/self/maps").unwrap_or_default();
    for path in maps.lines().filter_map(|line| line.find("/dev/shm/mpich_shm_").map(|at| &line[at..])) {
        let _ = std::fs::remove_file(path);
    }
}
