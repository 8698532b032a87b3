//! A trace at the speed of another device.
use super::Trace;
use super::file::TraceFile;
use crate::document::DocumentError;
use crate::document::seconds::longest;
use crate::units::{PS_PER_S, Time};

impl Trace {
    /// Scales all computation so that one worker alone trains `samples_per_s` samples in a second, as measured on a
    /// device. Of several recorded workers it is the mean iteration that takes batch / `samples_per_s`.
    ///
    /// # Errors
    /// A rate that is not positive, a trace without computation, and times that become longer than a day.
    pub fn scaled_to_rate(mut self, samples_per_s: f64) -> Result<Trace, DocumentError> {
        let name = self.name.clone();
        let wrong = |message: &str| DocumentError::at(&name, "", message);
        if !(samples_per_s.is_finite() && samples_per_s > 0.0) {
            return Err(wrong(&format!("{samples_per_s} samples/s is no rate; give a number above 0")));
        }
        let total: u128 = self.workers.iter().map(|worker| u128::from(worker.compute_time().0)).sum();
        if total == 0 {
            return Err(wrong("computes nothing, so it has no rate to be scaled; leave the samples/s out"));
        }
        #[expect(clippy::cast_precision_loss, reason = "a factor needs no more than 53 bits")]
        let mean = total as f64 / self.workers.len() as f64 / PS_PER_S as f64;
        let factor = f64::from(self.batch) / samples_per_s / mean;
        let longest_of = |time: Time| u128::from(time.0);
        let slowest = self.workers.iter().map(|worker| longest_of(worker.compute_time())).max().unwrap_or(0);
        #[expect(clippy::cast_precision_loss, reason = "a limit needs no more than 53 bits")]
        if slowest as f64 * factor > longest().0 as f64 {
            return Err(wrong(&format!(
                "at {samples_per_s} samples/s an iteration takes longer than a day; is it right?"
            )));
        }
        for worker in &mut self.workers {
            for layer in &mut worker.forward {
                layer.duration = layer.duration.scaled(factor);
            }
            for gradient in &mut worker.gradients {
                gradient.ready = gradient.ready.scaled(factor);
            }
            worker.backward = worker.backward.scaled(factor);
            worker.optimizer = worker.optimizer.scaled(factor);
        }
        TraceFile::from(&self).checked().map_err(|problem| problem.of(&name))
    }
}

#[cfg(test)]
mod tests {
    use crate::trace::parse_all_reduce;
    use crate::trace::testing::tiny;

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
    fn errors_name_the_remedy() {
        for rate in [0.0, -1.0, f64::NAN, f64::INFINITY] {
            assert!(tiny().scaled_to_rate(rate).unwrap_err().to_string().contains("above 0"));
        }
        assert!(tiny().scaled_to_rate(1e-9).unwrap_err().to_string().contains("longer than a day"));
        let empty = parse_all_reduce("allreduce:1MB").unwrap();
        assert!(empty.scaled_to_rate(1.0).unwrap_err().to_string().contains("computes nothing"));
    }
}
