//! Orders of a group's workers to a parameter server in a process of its own. They go over the control connection, so they
//! arrive in order.
use std::collections::VecDeque;

use paceline_executor::InStep;
use paceline_kernels::dtype::{Dtype, ReduceOp};
use paceline_os::sync::{Condvar, Mutex};
use paceline_os::time::Duration;
use serde::{Deserialize, Serialize};

/// An all-reduce that the workers have begun.
#[derive(Clone, Debug, Serialize, Deserialize)]
pub struct Order {
    /// The name of the workers' group.
    pub group: String,
    /// Its ranks.
    pub workers: Vec<u32>,
    /// As users type it.
    pub strategy: String,
    /// Of the elements.
    pub dtype: Dtype,
    /// How they are combined.
    pub op: ReduceOp,
    /// Elements.
    pub count: u64,
    /// Factor by which sums are multiplied.
    pub postscale: f64,
    /// Its place in a training step.
    pub step: Option<InStep>,
    /// The servers send their values without adding anything.
    pub pull_only: bool,
    /// Number of the bucket, for its placement.
    pub bucket: u32,
    /// Its name in messages.
    pub label: String,
    /// Silence after which it fails; `None`: the job's.
    pub timeout_s: Option<f64>,
}

/// Orders that a server has received and not begun, under one lock with the number of workers that are gone: either
/// change wakes the waiting thread.
#[derive(Default)]
pub(crate) struct Orders {
    state: Mutex<State>,
    changed: Condvar,
}

#[derive(Default)]
struct State {
    queue: VecDeque<Order>,
    /// Workers that have left or died.
    gone: u32,
}

impl Orders {
    fn change(&self, change: impl FnOnce(&mut State)) {
        change(&mut self.state.lock());
        self.changed.notify_all();
    }

    pub fn push(&self, order: Order) {
        self.change(|state| state.queue.push_back(order));
    }

    /// A worker has left or died.
    pub fn worker_gone(&self) {
        self.change(|state| state.gone += 1);
    }

    /// All orders, as soon as there are any or the time is up; `None` when all `workers` are gone and nothing is left.
    pub fn next(&self, workers: u32, timeout: Duration) -> Option<VecDeque<Order>> {
        let mut state = self.state.lock();
        if state.queue.is_empty() && state.gone < workers {
            self.changed.wait_for(&mut state, timeout);
        }
        (!state.queue.is_empty() || state.gone < workers).then(|| std::mem::take(&mut state.queue))
    }
}

#[cfg(test)]
mod tests {
    use paceline_os::sync::Arc;
    use paceline_os::time::Instant;

    use super::*;

    #[test]
    fn the_last_worker_that_leaves_wakes_who_waits() {
        for _ in 0..200 {
            let orders = Arc::new(Orders::default());
            let leaves = orders.clone();
            let leaver = paceline_os::thread::spawn(move || leaves.worker_gone());
            let begin = Instant::now();
            assert!(orders.next(1, Duration::from_secs(60)).is_none());
            assert!(begin.elapsed() < Duration::from_secs(30));
            leaver.join().unwrap();
        }
    }
}
