//! Adapts a trace to the speed of another device, another batch or another element type.
use super::file::TraceFile;
use super::{Dtype, Trace};
use crate::document::seconds::longest;
use crate::document::{DocumentError, with_remedy};
use crate::units::{PS_PER_S, Time};

impl Trace {
    /// Scales all computation so that one worker alone trains `samples_per_s` samples per second, as measured on a
    /// device. With several recorded workers, the mean iteration takes batch / `samples_per_s`.
    ///
    /// # Errors
    /// A rate that is not positive, a trace without computation, or times that become longer than a day.
    pub fn scaled_to_rate(mut self, samples_per_s: f64) -> Result<Trace, DocumentError> {
        let name = self.name.clone();
        let wrong = |message: &str, remedy: &str| DocumentError::at(&name, "", &with_remedy(message, remedy));
        if !(samples_per_s.is_finite() && samples_per_s > 0.0) {
            return Err(wrong(&format!("{samples_per_s} samples/s is not above 0"), "{samples_per_s=400}"));
        }
        let total: u128 = self.workers.iter().map(|worker| u128::from(worker.compute_time().0)).sum();
        if total == 0 {
            return Err(wrong("computes nothing, so it has no rate to scale", "drop {samples_per_s}"));
        }
        #[expect(clippy::cast_precision_loss, reason = "a factor needs no more than 53 bits")]
        let mean = total as f64 / self.workers.len() as f64 / PS_PER_S as f64;
        let factor = f64::from(self.batch) / samples_per_s / mean;
        if self.is_too_long(factor) {
            let message = format!("at {samples_per_s} samples/s an iteration takes longer than a day");
            return Err(wrong(&message, "{samples_per_s=400}"));
        }
        self.scale(factor, factor);
        self.checked()
    }

    /// Changes the number of samples per worker and iteration: both passes scale with it, but the optimizer's step does
    /// not.
    ///
    /// # Errors
    /// A batch of 0, a trace without computation, or times that become longer than a day.
    pub fn with_batch(mut self, batch: u32) -> Result<Trace, DocumentError> {
        let name = self.name.clone();
        let wrong = |message: &str, remedy: &str| DocumentError::at(&name, "", &with_remedy(message, remedy));
        if batch == 0 {
            return Err(wrong("a batch has at least 1 sample", "{batch=32}"));
        }
        if self.workers.iter().all(|worker| worker.compute_time() == Time::ZERO) {
            return Err(wrong("computes nothing, so a batch changes nothing", "drop {batch}"));
        }
        let factor = f64::from(batch) / f64::from(self.batch);
        if self.is_too_long(factor) {
            return Err(wrong(&format!("an iteration of {batch} samples takes longer than a day"), "{batch=32}"));
        }
        self.scale(factor, 1.0);
        self.batch = batch;
        self.checked()
    }

    /// Changes the element type of gradients on the wire; computation takes as long as before.
    ///
    /// # Errors
    /// More bytes than a trace may have.
    pub fn with_dtype(mut self, dtype: Dtype) -> Result<Trace, DocumentError> {
        let (from, to) = (self.dtype.size(), dtype.size());
        for tensor in &mut self.tensors {
            tensor.bytes = tensor.bytes / from * to;
            tensor.pull_bytes = tensor.pull_bytes / from * to;
            tensor.frozen_bytes = tensor.frozen_bytes / from * to;
        }
        for variable in &mut self.variables {
            variable.bytes = variable.bytes / from * to;
        }
        self.dtype = dtype;
        self.checked()
    }

    fn is_too_long(&self, factor: f64) -> bool {
        let slowest = self.workers.iter().map(|worker| worker.compute_time().0).max().unwrap_or(0);
        #[expect(clippy::cast_precision_loss, reason = "a limit needs no more than 53 bits")]
        let longer = slowest as f64 * factor > longest().0 as f64;
        longer
    }

    fn scale(&mut self, passes: f64, optimizer: f64) {
        self.operators = None;
        for worker in &mut self.workers {
            for layer in &mut worker.forward {
                layer.duration = layer.duration.scaled(passes);
            }
            for gradient in &mut worker.gradients {
                gradient.ready = gradient.ready.scaled(passes);
            }
            worker.backward = worker.backward.scaled(passes);
            worker.optimizer = worker.optimizer.scaled(optimizer);
        }
    }

    fn checked(self) -> Result<Trace, DocumentError> {
        TraceFile::from(&self).checked().map_err(|problem| problem.of(&self.name))
    }
}

#[cfg(test)]
mod tests {
    use crate::trace::testing::tiny;
    use crate::trace::{Dtype, parse_all_reduce};

    #[test]
    fn the_mean_worker_reaches_the_rate() {
        let mut trace = tiny();
        let mut slower = trace.workers[0].clone();
        slower.forward[0].duration = slower.forward[0].duration.scaled(2.0);
        trace.workers.push(slower);
        let scaled = trace.scaled_to_rate(1000.0).unwrap();
        let mean = scaled.workers.iter().map(|worker| worker.compute_time().seconds()).sum::<f64>() / 2.0;
        assert!((f64::from(scaled.batch) / mean - 1000.0).abs() < 1e-6);
    }

    #[test]
    fn a_larger_batch_takes_as_much_longer_but_for_the_optimizer() {
        let before = tiny();
        let (small, large) = (before.workers[0].clone(), before.clone().with_batch(before.batch * 3).unwrap());
        assert_eq!(large.batch, before.batch * 3);
        let worker = &large.workers[0];
        assert_eq!(worker.forward_time(), small.forward_time().scaled(3.0));
        assert_eq!((worker.backward, worker.optimizer), (small.backward.scaled(3.0), small.optimizer));
    }

    #[test]
    fn another_element_type_has_as_many_elements() {
        let before = tiny();
        let half = before.clone().with_dtype(Dtype::Float16).unwrap();
        for (a, b) in before.tensors.iter().zip(&half.tensors) {
            assert_eq!((a.bytes / 4, a.pull_bytes / 4), (b.bytes / 2, b.pull_bytes / 2));
        }
        assert_eq!((half.workers.clone(), half.with_dtype(Dtype::Float32).unwrap()), (before.workers.clone(), before));
    }

    #[test]
    fn errors_name_the_remedy() {
        assert!(tiny().with_batch(0).unwrap_err().to_string().contains("at least 1"));
        assert!(tiny().with_batch(u32::MAX).unwrap_err().to_string().contains("longer than a day"));
        for rate in [0.0, -1.0, f64::NAN, f64::INFINITY] {
            assert!(tiny().scaled_to_rate(rate).unwrap_err().to_string().contains("above 0"));
        }
        assert!(tiny().scaled_to_rate(1e-9).unwrap_err().to_string().contains("longer than a day"));
        let empty = parse_all_reduce("allreduce:1MB").unwrap();
        assert!(empty.clone().with_batch(2).unwrap_err().to_string().contains("computes nothing"));
        assert!(empty.scaled_to_rate(1.0).unwrap_err().to_string().contains("computes nothing"));
    }
}
