//! Threads of virtual processes.
use std::io;
use std::num::NonZeroUsize;
use std::panic::{AssertUnwindSafe, catch_unwind, resume_unwind};
use std::sync::{Arc, Mutex};

use rustix::process::Pid;
pub use rustix::thread::CpuSet;

use super::time::Duration;
use super::world::{ThreadId, World, block, idle, point, with};

/// Makes a thread.
#[derive(Default)]
pub struct Builder {
    name: String,
}

/// Waits for a thread.
pub struct JoinHandle<T> {
    thread: ThreadId,
    result: Arc<Mutex<Option<std::thread::Result<T>>>>,
}

impl Builder {
    /// One without a name.
    #[must_use]
    pub fn new() -> Builder {
        Builder::default()
    }

    /// Gives it a name.
    #[must_use]
    pub fn name(self, name: String) -> Builder {
        Builder { name }
    }

    /// Starts it in the running process.
    ///
    /// # Errors
    /// None.
    pub fn spawn<T: Send + 'static>(self, body: impl FnOnce() -> T + Send + 'static) -> io::Result<JoinHandle<T>> {
        point();
        let result = Arc::new(Mutex::new(None));
        let place = result.clone();
        let run = move || {
            let result = catch_unwind(AssertUnwindSafe(body));
            let failed = match result {
                Ok(value) => {
                    *place.lock().expect("one thread of the system") = Some(Ok(value));
                    None
                }
                Err(panic) => Some(panic),
            };
            // The world records it; a joiner learns that there is no result.
            if let Some(panic) = failed {
                resume_unwind(panic);
            }
        };
        let thread = with(|world| {
            let process = world.my_process();
            world.add_thread(process, self.name, Box::new(run))
        });
        Ok(JoinHandle { thread, result })
    }
}

impl<T> JoinHandle<T> {
    /// Waits for its end.
    ///
    /// # Errors
    /// It panicked.
    pub fn join(self) -> std::thread::Result<T> {
        point();
        while !with(|world| world.ended(self.thread)) {
            block("the end of a thread", None, |world, token| world.join_later(self.thread, token));
        }
        let result = self.result.lock().expect("one thread of the system").take();
        result.unwrap_or_else(|| Err(Box::new("the thread panicked")))
    }
}

/// Starts a thread.
pub fn spawn<T: Send + 'static>(body: impl FnOnce() -> T + Send + 'static) -> JoinHandle<T> {
    Builder::new().spawn(body).expect("a virtual thread")
}

/// Sleeps, and a little longer.
pub fn sleep(time: Duration) {
    point();
    let until = with(|world| {
        let late = world.chance.below(60_000);
        world.now + time.as_nanos() as u64 + late
    });
    block("sleep", Some(until), |_, _| {});
}

/// Lets others run.
pub fn yield_now() {
    idle();
}

/// A turn that found nothing to do.
pub fn spin_loop() {
    idle();
}

/// Cores of the host.
///
/// # Errors
/// None.
pub fn available_parallelism() -> io::Result<NonZeroUsize> {
    Ok(with(|world| NonZeroUsize::new(world.config.cores)).unwrap_or(NonZeroUsize::MIN))
}

/// No process of a world runs under a real-time policy.
#[must_use]
pub fn is_real_time() -> bool {
    with(|world| world.config.real_time)
}

/// Number of the running thread.
#[must_use]
pub fn gettid() -> Pid {
    let number = with(|world| world.running.unwrap_or(0));
    Pid::from_raw(number as i32 + 1).expect("not 0")
}

/// A core, at random.
#[must_use]
pub fn sched_getcpu() -> usize {
    with(|world: &mut World| {
        let cores = world.config.cores as u64;
        world.chance.below(cores) as usize
    })
}

/// All cores.
///
/// # Errors
/// None.
pub fn sched_getaffinity(_thread: Option<Pid>) -> rustix::io::Result<CpuSet> {
    let mut all = CpuSet::new();
    (0..with(|world| world.config.cores)).for_each(|core| all.set(core));
    Ok(all)
}

/// Has no effect in a world.
///
/// # Errors
/// None.
pub fn sched_setaffinity(_thread: Option<Pid>, _cores: &CpuSet) -> rustix::io::Result<()> {
    Ok(())
}

/// Cores have no effect in a world, so nobody needs to be moved between them.
#[must_use]
pub fn family() -> Vec<Pid> {
    Vec::new()
}
