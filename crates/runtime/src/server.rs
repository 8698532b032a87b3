//! A process that is only a parameter server: it takes part in the all-reduces that the workers begin.
//!
//! The first worker of a group announces to the servers each all-reduce that they sum. Fragments that arrive before the
//! announcement wait in the unexpected-message queue.
use std::collections::HashMap;

use paceline_os::sync::Arc;
use paceline_os::time::Duration;
use paceline_transport::error::{Result, RunError};

use crate::communicator::Communicator;
use crate::session::Session;

/// The groups a server has heard of, by the workers' name for them and their ranks.
#[derive(Default)]
pub struct Groups(HashMap<(String, Vec<u32>), Arc<Communicator>>);

impl Session {
    /// Serves for a while. Returns whether all workers have left.
    ///
    /// # Errors
    /// This process is not a server, or it received an invalid order. Failures caused by a worker are reported by the
    /// workers.
    pub fn serve(&self, groups: &mut Groups, timeout: Duration) -> Result<bool> {
        let shared = &self.engine.shared;
        if shared.rank < shared.workers() {
            return Err(RunError::Usage(format!("rank {} is a worker, not a parameter server", shared.rank)));
        }
        let Some(orders) = shared.next_orders(timeout) else { return Ok(true) };
        for order in orders {
            let key = (order.group.clone(), order.workers.clone());
            if !groups.0.contains_key(&key) {
                if order.workers.iter().any(|&rank| rank >= shared.workers()) {
                    return Err(RunError::Failed(format!("invalid order from the workers: {order:?}")));
                }
                let group = Communicator::served(shared, &order.workers, &order.group)?;
                groups.0.insert(key.clone(), Arc::new(group));
            }
            // A group that has failed has notified all its ranks.
            let _ = groups.0[&key].serve(&order);
        }
        Ok(false)
    }
}
