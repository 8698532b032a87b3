//! What a process does in a job: its engine, and the communicators made over it.
use paceline_engine::settings::Settings;
use paceline_engine::{Engine, Exchange};
use paceline_transport::error::Result;

use crate::clock_sync;
use crate::communicator::Communicator;
use crate::tuning::{Tuned, tune};

/// A process's part of a job; closed when dropped.
pub struct Job {
    pub(crate) engine: Engine,
    tuned: Tuned,
}

impl Job {
    /// Meets the other ranks, connects to all of them and starts the threads.
    ///
    /// # Errors
    /// A setting that cannot be, or ranks that do not come; the message names them.
    pub fn start(rank: u32, size: u32, settings: Settings, exchange: Option<Exchange<'_>>) -> Result<Job> {
        Ok(Job { engine: Engine::start(rank, size, settings, exchange)?, tuned: Tuned::default() })
    }

    /// The engine: threads, failures, closing.
    #[must_use]
    pub fn engine(&self) -> &Engine {
        &self.engine
    }

    /// The communicator of all ranks that train. All of them call this together: what is fastest is measured.
    ///
    /// # Errors
    /// The engine is closed.
    pub fn world(&self) -> Result<Communicator> {
        let world = self.group((0..self.engine.shared.workers()).collect(), "world")?;
        clock_sync::align(&world)?;
        Ok(world)
    }

    /// A communicator of these ranks, in this order. Each of them calls this with the same name, and waits for the
    /// others.
    ///
    /// # Errors
    /// Ranks that do not exist or come twice, or without this one; a name that is taken.
    pub fn group(&self, ranks: Vec<u32>, name: &str) -> Result<Communicator> {
        let communicator = Communicator::new(&self.engine.shared, ranks, name)?;
        tune(&communicator, &self.tuned)?;
        Ok(communicator)
    }
}
