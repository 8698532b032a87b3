//! An operation as the caller requests it.
use paceline_executor::InStep;
use paceline_executor::handle::Handle;
use paceline_kernels::dtype::{Dtype, ReduceOp};
use paceline_os::sync::Arc;
use paceline_transport::header::Collective;
use paceline_transport::offload::EnterDevice;

/// Memory of the caller: an address and elements.
pub type Memory = (usize, u64);

/// An operation as the caller requests it. Several buffers are treated as one, in order.
pub struct CollectiveRequest<'a> {
    /// The collective.
    pub collective: Collective,
    /// Type of the elements.
    pub dtype: Dtype,
    /// How the elements are combined.
    pub op: ReduceOp,
    /// Input; for all-reduce, broadcast and reduce also the output.
    pub inputs: &'a [Memory],
    /// Output.
    pub outputs: &'a [Memory],
    /// The root; for a send or receive, the other rank.
    pub root: u32,
    /// For a send or receive.
    pub tag: u32,
    /// For a send or receive: this rank sends.
    pub sends: bool,
    /// For a send or receive: receives from any rank.
    pub from_anybody: bool,
    /// Elements of each rank; `None`: equal shares.
    pub counts: Option<&'a [u64]>,
    /// For an all-to-all: elements from each rank.
    pub out_counts: Option<&'a [u64]>,
    /// Multiplies every contribution.
    pub prescale: f64,
    /// Multiplies the result.
    pub postscale: f64,
    /// Strategy of an all-reduce; `None`: the job's, or the one tuned for the size.
    pub strategy: Option<&'a str>,
    /// For an all-reduce by parameter servers: the bucket's number, which decides its server; `None`: buckets are
    /// counted.
    pub bucket: Option<u32>,
    /// For an all-reduce by parameter servers: its position in a training step; `None`: it is a step of its own.
    pub step: Option<InStep>,
    /// For an all-reduce by parameter servers: there is no gradient, so nothing is sent and the servers return zeros.
    pub pull_only: bool,
    /// The user's name of the tensors, for messages.
    pub label: &'a str,
    /// The caller wants to be notified through [`Engine::next_notice`](paceline_engine::Engine::next_notice).
    pub notify: Option<u64>,
    /// The operation's handle, if the caller has one already; then it says whether a notice is wanted.
    pub handle: Option<&'a Arc<Handle>>,
    /// The memory is that of a device, and the offload library is given its addresses. Contributions have been multiplied,
    /// and results are not.
    pub device: Option<&'a EnterDevice>,
}

impl<'a> CollectiveRequest<'a> {
    /// The same request, whose sum stays in the range of float16 if the result does: of a factor that makes the result
    /// smaller, as an average's, the power of two is applied to the contributions, which is exact but for values below
    /// 6e-5. NCCL's average and torch's DDP divide before the sum, too. The other floating-point types have range enough.
    pub(super) fn in_range(&self) -> CollectiveRequest<'a> {
        let reduces = self.collective.reduces() && self.op == ReduceOp::Sum;
        #[expect(clippy::float_cmp, reason = "exactly one means that nothing was asked")]
        let plain = self.prescale == 1.0 && self.device.is_none();
        let shrinks = self.postscale > 0.0 && self.postscale < 1.0;
        if self.dtype != Dtype::Float16 || !reduces || !plain || !shrinks {
            return CollectiveRequest { ..*self };
        }
        let power = self.postscale.log2().floor().exp2();
        CollectiveRequest { prescale: power, postscale: self.postscale / power, ..*self }
    }

    /// Whether ranks have shares of different lengths.
    pub(super) fn is_uneven(&self) -> bool {
        self.counts.is_some_and(|counts| counts.windows(2).any(|pair| pair[0] != pair[1]))
    }
}

impl Default for CollectiveRequest<'_> {
    fn default() -> Self {
        CollectiveRequest {
            collective: Collective::Barrier,
            dtype: Dtype::Uint8,
            op: ReduceOp::Sum,
            inputs: &[],
            outputs: &[],
            root: 0,
            tag: 0,
            sends: false,
            from_anybody: false,
            counts: None,
            out_counts: None,
            prescale: 1.0,
            postscale: 1.0,
            strategy: None,
            bucket: None,
            step: None,
            pull_only: false,
            label: "",
            notify: None,
            handle: None,
            device: None,
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn an_average_of_float16_is_divided_before_the_sum() {
        let of = |dtype, postscale| {
            let collective = Collective::AllReduce;
            let request = CollectiveRequest { collective, dtype, postscale, ..CollectiveRequest::default() }.in_range();
            (request.prescale, request.postscale)
        };
        assert_eq!(of(Dtype::Float16, 0.25), (0.25, 1.0));
        assert_eq!(of(Dtype::Float16, 1.0 / 3.0), (0.25, 4.0 / 3.0));
        assert_eq!([1.0, 2.0, 0.0].map(|factor| of(Dtype::Float16, factor)), [(1.0, 1.0), (1.0, 2.0), (1.0, 0.0)]);
        assert_eq!(of(Dtype::Float32, 0.25), (1.0, 0.25));
    }
}
