//! The header of every fragment: its operation, lane and slot, and the sender's description of the operation, so that
//! the receiver of the first message detects a mismatch.
use std::str::FromStr;

use paceline_kernels::dtype::{Dtype, ReduceOp};
use paceline_kernels::names::{UnknownName, find};

/// The operations of a communicator.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
#[repr(u8)]
pub enum Collective {
    /// Every rank gets the combination of all inputs.
    AllReduce,
    /// Every rank gets the root's elements.
    Broadcast,
    /// The root gets the combination of all inputs.
    Reduce,
    /// Every rank gets the elements of all.
    AllGather,
    /// The root gets the elements of all.
    Gather,
    /// Every rank gets its part of the root's elements.
    Scatter,
    /// Every rank gets its part of the combination.
    ReduceScatter,
    /// Every rank gets its part of every other rank's elements.
    AllToAll,
    /// No rank continues before all ranks have called it.
    Barrier,
    /// From one rank to another. Send and receive are one collective, so that they match each other.
    SendRecv,
}

impl Collective {
    /// All collectives, in the order of their numbers.
    pub const ALL: [Collective; 10] = [
        Collective::AllReduce,
        Collective::Broadcast,
        Collective::Reduce,
        Collective::AllGather,
        Collective::Gather,
        Collective::Scatter,
        Collective::ReduceScatter,
        Collective::AllToAll,
        Collective::Barrier,
        Collective::SendRecv,
    ];

    /// The name that users write.
    #[must_use]
    pub fn name(self) -> &'static str {
        match self {
            Collective::AllReduce => "all_reduce",
            Collective::Broadcast => "broadcast",
            Collective::Reduce => "reduce",
            Collective::AllGather => "all_gather",
            Collective::Gather => "gather",
            Collective::Scatter => "scatter",
            Collective::ReduceScatter => "reduce_scatter",
            Collective::AllToAll => "all_to_all",
            Collective::Barrier => "barrier",
            Collective::SendRecv => "send/recv",
        }
    }

    /// Whether elements are combined, so that the reduction matters.
    #[must_use]
    pub fn reduces(self) -> bool {
        matches!(self, Collective::AllReduce | Collective::Reduce | Collective::ReduceScatter)
    }

    /// Whether a rank only knows the numbers of elements that it exchanges itself. Headers say how many the message has from
    /// its sender to its receiver.
    #[must_use]
    pub fn has_parts(self) -> bool {
        matches!(self, Collective::Gather | Collective::Scatter | Collective::AllToAll)
    }

    /// Whether there is a root.
    #[must_use]
    pub fn rooted(self) -> bool {
        matches!(self, Collective::Broadcast | Collective::Reduce | Collective::Gather | Collective::Scatter)
    }
}

impl FromStr for Collective {
    type Err = UnknownName;
    /// `send/recv` has no single name to parse.
    fn from_str(name: &str) -> Result<Collective, UnknownName> {
        find(name, &Collective::ALL[..9], Collective::name)
    }
}

/// Properties of an operation on which all ranks must agree.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Signature {
    /// The collective.
    pub collective: Collective,
    /// Type of the elements.
    pub dtype: Dtype,
    /// How the elements are combined.
    pub op: ReduceOp,
    /// The root, or 0.
    pub root: u16,
    /// Number of elements if it must be equal on all ranks, else 0. In headers, if the collective [has
    /// parts](Collective::has_parts): the number that the sender has for the receiver.
    pub count: u64,
    /// A digest of strategy and piece size, or of the counts by rank if these are not equal.
    pub plan: u32,
}

impl Signature {
    /// For messages: `all_reduce (float32[1000], sum)`.
    #[must_use]
    pub fn describe(&self) -> String {
        called(self.collective.name(), &self.details())
    }

    /// The same for the elements between two ranks: `scatter (float32[3] from rank 0, root 0)`.
    #[must_use]
    pub fn describe_part(&self, which: &str) -> String {
        called(self.collective.name(), &self.details_with(Some(format!("[{}] {which}", self.count))))
    }

    /// `float32[1000], sum`; empty for a barrier.
    #[must_use]
    pub fn details(&self) -> String {
        self.details_with((self.count > 0).then(|| format!("[{}]", self.count)))
    }

    /// The description of the whole operation, without a number that only holds between two ranks.
    #[must_use]
    pub fn whole(&self) -> Signature {
        Signature { count: if self.collective.has_parts() { 0 } else { self.count }, ..*self }
    }

    /// The difference between ranks whose descriptions are equal, and the remedy.
    #[must_use]
    pub fn plan_differs(&self) -> (&'static str, &'static str) {
        match self.collective {
            Collective::AllGather | Collective::ReduceScatter => ("counts", "the same counts on all ranks"),
            _ => ("strategies or chunk sizes", "the same PACELINE_STRATEGY, PACELINE_CHUNK and arguments on all ranks"),
        }
    }

    fn details_with(&self, elements: Option<String>) -> String {
        let mut parts = Vec::new();
        if self.collective != Collective::Barrier {
            parts.push(self.dtype.name().to_owned() + &elements.unwrap_or_default());
        }
        if self.collective.reduces() {
            parts.push(self.op.name().to_owned());
        }
        if self.collective.rooted() {
            parts.push(format!("root {}", self.root));
        }
        parts.join(", ")
    }
}

/// `all_reduce (float32[1000], sum)`; the call alone without details.
#[must_use]
pub fn called(call: &str, details: &str) -> String {
    if details.is_empty() { call.to_owned() } else { format!("{call} ({details})") }
}

/// The receiver of a multicast: every rank that gets it.
pub const EVERYBODY: u16 = u16::MAX;

/// Identifies the message that a fragment belongs to.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct FragmentHeader {
    /// The communicator.
    pub group: u32,
    /// Number of the operation in the communicator; of a send or receive, its number between the two ranks under its
    /// tag.
    pub seq: u32,
    /// Lane of the program; for a send or receive, the user's tag.
    pub lane: u32,
    /// Slot of the lane.
    pub slot: u16,
    /// Role of the sender.
    pub from: u16,
    /// Role of the receiver.
    pub to: u16,
    /// Bytes of the payload.
    pub bytes: u32,
    /// First element of the fragment in its message.
    pub offset: u64,
    /// The sender's description of the operation.
    pub signature: Signature,
}

/// Bytes of a header on the wire.
pub const HEADER_BYTES: usize = 48;

impl FragmentHeader {
    /// The wire format: little-endian, fields in the order below.
    #[must_use]
    pub fn encode(&self) -> [u8; HEADER_BYTES] {
        let mut out = [0; HEADER_BYTES];
        let s = &self.signature;
        out[0..4].copy_from_slice(&self.group.to_le_bytes());
        out[4..8].copy_from_slice(&self.seq.to_le_bytes());
        out[8..12].copy_from_slice(&self.lane.to_le_bytes());
        out[12..16].copy_from_slice(&self.bytes.to_le_bytes());
        out[16..24].copy_from_slice(&self.offset.to_le_bytes());
        out[24..32].copy_from_slice(&s.count.to_le_bytes());
        out[32..36].copy_from_slice(&s.plan.to_le_bytes());
        out[36..38].copy_from_slice(&self.slot.to_le_bytes());
        out[38..40].copy_from_slice(&self.from.to_le_bytes());
        out[40..42].copy_from_slice(&self.to.to_le_bytes());
        out[42..44].copy_from_slice(&s.root.to_le_bytes());
        out[44] = s.collective as u8;
        out[45] = s.dtype as u8;
        out[46] = s.op as u8;
        out
    }

    /// Decodes a header; `None` if malformed.
    #[must_use]
    pub fn decode(bytes: &[u8; HEADER_BYTES]) -> Option<FragmentHeader> {
        let u16_at = |at: usize| u16::from_le_bytes([bytes[at], bytes[at + 1]]);
        let u32_at = |at: usize| u32::from_le_bytes(bytes[at..at + 4].try_into().unwrap_or_default());
        let u64_at = |at: usize| u64::from_le_bytes(bytes[at..at + 8].try_into().unwrap_or_default());
        Some(FragmentHeader {
            group: u32_at(0),
            seq: u32_at(4),
            lane: u32_at(8),
            bytes: u32_at(12),
            offset: u64_at(16),
            slot: u16_at(36),
            from: u16_at(38),
            to: u16_at(40),
            signature: Signature {
                count: u64_at(24),
                plan: u32_at(32),
                root: u16_at(42),
                collective: *Collective::ALL.get(usize::from(bytes[44]))?,
                dtype: Dtype::from_code(bytes[45])?,
                op: ReduceOp::from_code(bytes[46])?,
            },
        })
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use proptest::prelude::*;

    proptest! {
        #[test]
        fn any_bytes_are_refused_or_come_back(bytes in proptest::array::uniform32(any::<u8>()), tail in proptest::array::uniform16(any::<u8>())) {
            let mut all = [0; HEADER_BYTES];
            all[..32].copy_from_slice(&bytes);
            all[32..].copy_from_slice(&tail);
            all[44..48].iter_mut().for_each(|b| *b %= 11);
            all[47] = 0;
            if let Some(header) = FragmentHeader::decode(&all) {
                prop_assert_eq!(header.encode(), all);
            }
        }
    }
}
