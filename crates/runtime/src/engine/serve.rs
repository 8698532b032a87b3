//! A process that is a parameter server and nothing else: it takes part in what the workers begin.
//!
//! The first worker of a group tells the servers of each all-reduce that they add up, over the control connection and
//! therefore in order. What arrives before the order waits, as fragments do that come before their operation.
use std::collections::{HashMap, VecDeque};
use std::sync::atomic::{AtomicU32, Ordering};
use std::sync::{Arc, Condvar, Mutex, PoisonError};
use std::time::Duration;

use serde::{Deserialize, Serialize};

use super::{Engine, Shared, lock};
use crate::communicator::Communicator;
use crate::error::{Result, RunError};
use crate::executor::InStep;

/// What the workers have begun.
#[derive(Clone, Debug, Serialize, Deserialize)]
pub(crate) struct Order {
    /// The name of the workers' group.
    pub group: String,
    /// Its ranks.
    pub workers: Vec<u32>,
    pub strategy: String,
    pub dtype: String,
    pub op: String,
    /// Elements.
    pub count: u64,
    /// What sums are multiplied by.
    pub postscale: f64,
    pub step: Option<InStep>,
    pub pull_only: bool,
    /// Number of the bucket, for its placement.
    pub bucket: u32,
    pub label: String,
    /// Silence after which it fails; none: the job's.
    pub timeout_s: Option<f64>,
}

/// What a server has been told and not begun.
#[derive(Default)]
pub(super) struct Service {
    orders: Mutex<VecDeque<Order>>,
    came: Condvar,
    /// Workers that have left or died.
    gone: AtomicU32,
}

impl Shared {
    /// Tells servers what the workers have begun.
    pub(crate) fn order(&self, servers: &[u32], order: &Order) {
        self.monitor.order(servers, order);
    }

    pub(super) fn take_order(&self, order: Order) {
        lock(&self.service.orders).push_back(order);
        self.service.came.notify_all();
    }

    /// A rank has left or died.
    pub(super) fn gone(&self, rank: u32) {
        if rank < self.workers() {
            self.service.gone.fetch_add(1, Ordering::SeqCst);
            self.service.came.notify_all();
        }
    }
}

impl Engine {
    /// Serves for a while; whether the workers have all left.
    ///
    /// # Errors
    /// This process is no server, or was told what makes no sense. What fails because of a worker is told by the workers.
    pub fn serve(&self, groups: &mut Groups, for_so_long: Duration) -> Result<bool> {
        let shared = &self.shared;
        if shared.rank < shared.workers() {
            return Err(RunError::Usage(format!("rank {} is a worker, not a parameter server", shared.rank)));
        }
        let mut orders = lock(&shared.service.orders);
        if orders.is_empty() {
            if shared.service.gone.load(Ordering::SeqCst) == shared.workers() {
                return Ok(true);
            }
            let waited = shared.service.came.wait_timeout(orders, for_so_long);
            orders = waited.unwrap_or_else(PoisonError::into_inner).0;
        }
        let todo = std::mem::take(&mut *orders);
        drop(orders);
        for order in todo {
            let key = (order.group.clone(), order.workers.clone());
            if !groups.0.contains_key(&key) {
                if order.workers.iter().any(|&rank| rank >= shared.workers()) {
                    return Err(RunError::Failed(format!("the workers' order makes no sense: {order:?}")));
                }
                let group = Communicator::served(shared, &order.workers, &order.group)?;
                groups.0.insert(key.clone(), Arc::new(group));
            }
            // A group that has failed has told all its ranks so.
            let _ = groups.0[&key].serve(&order);
        }
        Ok(false)
    }
}

/// The groups a server has heard of, by the workers' name for them and their ranks.
#[derive(Default)]
pub struct Groups(HashMap<(String, Vec<u32>), Arc<Communicator>>);
