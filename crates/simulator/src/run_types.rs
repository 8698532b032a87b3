//! Types that the parts of a run hand to each other.
use std::sync::Arc;

use paceline_schedule::{Bucket, Entry, Roles, Schedule};

use crate::plan_run::PlanRun;

/// The constants of a simulation.
pub(crate) struct Prepared {
    pub entry: &'static Entry,
    pub schedule: Arc<dyn Schedule>,
    pub buckets: Vec<Bucket>,
    /// Buckets of a kind differ in nothing but their size.
    pub kinds: Vec<u32>,
    pub names: Vec<String>,
    /// Position of each bucket in the distribution order.
    pub priority: Vec<u32>,
    pub element_bytes: u64,
    /// Work of workers, by the speed of their GPU and then by the recorded one that they copy.
    pub workers: Vec<PlanRun>,
    /// There is no computation: an iteration is one exchange, from gradients ready everywhere to sums everywhere.
    pub exchange_only: bool,
}

/// The start or end of a measured iteration, and the chain of causes behind it.
#[derive(Clone, Copy, Default)]
pub(crate) struct Mark<C> {
    pub time: u64,
    pub chain: C,
}

/// The numbers of a job's roles and buckets among those of all jobs: workers of all jobs come first, then servers, then
/// switches.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct JobPlace {
    pub roles: Roles,
    pub first_worker: u32,
    pub first_server: u32,
    pub first_switch: u32,
    pub first_bucket: u32,
}

impl JobPlace {
    /// Of a job that is alone.
    pub fn alone(roles: Roles) -> JobPlace {
        JobPlace {
            roles,
            first_worker: 0,
            first_server: roles.workers,
            first_switch: roles.workers + roles.servers,
            first_bucket: 0,
        }
    }

    /// Offset of a number among the job's roles.
    #[inline]
    pub fn shift(&self, role: u32) -> u32 {
        let Roles { workers, servers, .. } = self.roles;
        if role < workers {
            self.first_worker
        } else if role < workers + servers {
            self.first_server - workers
        } else {
            self.first_switch - workers - servers
        }
    }

    /// The number of a role among those of all jobs.
    #[inline]
    pub fn global(&self, role: u32) -> u32 {
        role + self.shift(role)
    }

    /// The number among the job's roles.
    #[inline]
    pub fn local(&self, role: u32) -> u32 {
        let Roles { workers, servers, .. } = self.roles;
        if role >= self.first_switch && role < self.first_switch + self.roles.switches {
            role - self.first_switch + workers + servers
        } else if role >= self.first_server && role < self.first_server + servers {
            role - self.first_server + workers
        } else {
            role - self.first_worker
        }
    }
}

/// A measurement on a network; between two such results lies a third.
pub(crate) trait Measured: Clone {
    /// Seconds of an iteration.
    fn seconds(&self) -> f64;
    /// This result with a `share` of the difference to a slower one.
    fn towards(&self, slower: &Self, share: f64) -> Self;
}
