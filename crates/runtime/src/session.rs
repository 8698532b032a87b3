//! A process's membership in a job: its engine, and the communicators built on it.
use paceline_engine::settings::Settings;
use paceline_engine::{Engine, Exchange};
#[cfg(feature = "foreign")]
use paceline_os::sync::Arc;
use paceline_transport::error::{Result, RunError};

use crate::clock_sync;
use crate::communicator::Communicator;
#[cfg(feature = "foreign")]
use crate::communicator::Stages;
use crate::tuning::{Tuned, tune};

/// A process's membership in a job; closed when dropped.
pub struct Session {
    pub(crate) engine: Engine,
    tuned: Tuned,
    #[cfg(feature = "foreign")]
    stages: Arc<Stages>,
}

impl Session {
    /// Finds the other ranks, connects to all of them and starts the threads.
    ///
    /// # Errors
    /// An invalid setting, or ranks that do not show up; the message names them.
    pub fn start(rank: u32, size: u32, settings: Settings, exchange: Option<Exchange<'_>>) -> Result<Session> {
        Ok(Session {
            engine: Engine::start(rank, size, settings, exchange)?,
            tuned: Tuned::default(),
            #[cfg(feature = "foreign")]
            stages: Arc::default(),
        })
    }

    /// The engine, which owns the threads and handles failures and closing.
    #[must_use]
    pub fn engine(&self) -> &Engine {
        &self.engine
    }

    /// The CUDA devices that it uses.
    #[cfg(feature = "foreign")]
    #[must_use]
    pub fn stages(&self) -> &Arc<Stages> {
        &self.stages
    }

    /// The communicator of all training ranks. Collective: it tunes the algorithms. `shown`: what messages call it here,
    /// if it is not the default group.
    ///
    /// # Errors
    /// The engine is closed.
    pub fn world(&self, shown: Option<&str>) -> Result<Communicator> {
        let world =
            Communicator::new(&self.engine.shared, (0..self.engine.shared.workers()).collect(), Communicator::WORLD)?;
        if let Some(shown) = shown {
            world.show_as(shown);
        }
        tune(&world, &self.tuned)?;
        clock_sync::align(&world)?;
        world.begin_naming(false);
        Ok(world)
    }

    /// A communicator of these ranks, in this order. Collective: each of them calls this with the same name, and waits
    /// for the others.
    ///
    /// # Errors
    /// Ranks that do not exist, appear twice or do not include this one; a name that is taken.
    pub fn group(&self, ranks: Vec<u32>, name: &str) -> Result<Communicator> {
        let communicator = Communicator::new(&self.engine.shared, ranks, name)?;
        tune(&communicator, &self.tuned)?;
        communicator.begin_naming(false);
        Ok(communicator)
    }

    /// A communicator of all training ranks and the servers behind them, for messages between the two. Nobody waits for
    /// anybody: each of them makes it when it needs it.
    ///
    /// # Errors
    /// The job has no processes that are only servers; the engine is closed.
    pub fn with_servers(&self, name: &str) -> Result<Communicator> {
        let shared = &self.engine.shared;
        if shared.settings.server_processes() == 0 {
            return Err(RunError::Usage("this job has no processes that are only servers".into())
                .with_remedy("paceline run --servers 1"));
        }
        let workers: Vec<u32> = (0..shared.workers()).collect();
        let communicator = Communicator::served(shared, &workers, name)?;
        communicator.begin_naming(false);
        Ok(communicator)
    }
}
