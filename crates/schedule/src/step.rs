//! The vocabulary of programs.

/// A range of elements of a bucket.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Piece {
    /// First element.
    pub off: u64,
    /// Number of elements; may be 0, which is a message without payload.
    pub len: u64,
}

impl Piece {
    /// Piece `index` of `count` nearly equal ones; the first `len % count` are one element longer.
    #[must_use]
    pub fn part(self, index: u32, count: u32) -> Piece {
        let (index, count) = (u64::from(index), u64::from(count));
        let (base, longer) = (self.len / count, self.len % count);
        Piece { off: self.off + index * base + index.min(longer), len: base + u64::from(index < longer) }
    }

    /// Whether they share no element.
    #[must_use]
    pub fn apart(self, other: Piece) -> bool {
        self.off + self.len <= other.off || other.off + other.len <= self.off
    }

    /// The elements that they share; if there are none, no elements at the start of the other.
    #[must_use]
    pub fn shared(self, other: Piece) -> Piece {
        let (from, to) = (self.off.max(other.off), (self.off + self.len).min(other.off + other.len));
        if from < to { Piece { off: from, len: to - from } } else { Piece { off: other.off, len: 0 } }
    }

    /// The lower or the upper half; the lower is the longer one.
    #[must_use]
    pub fn half(self, upper: bool) -> Piece {
        self.part(u32::from(upper), 2)
    }
}

/// Roles in rank order: `first`, `first + stride`, … modulo `wrap`.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Peers {
    /// The first role.
    pub first: u32,
    /// How many roles.
    pub count: u32,
    /// Distance from one to the next.
    pub stride: u32,
    /// Role numbers are taken modulo this.
    pub wrap: u32,
    /// Added to each number.
    pub base: u32,
}

impl Peers {
    /// A single role.
    #[must_use]
    pub fn one(role: u32) -> Peers {
        Peers { first: role, count: 1, stride: 1, wrap: u32::MAX, base: 0 }
    }

    /// `count` neighboring roles.
    #[must_use]
    pub fn range(first: u32, count: u32) -> Peers {
        Peers { first, count, stride: 1, wrap: u32::MAX, base: 0 }
    }

    /// All of `0..workers` except `me`, starting with the next one.
    #[must_use]
    pub fn others(me: u32, workers: u32) -> Peers {
        Peers { first: (me + 1) % workers, count: workers - 1, stride: 1, wrap: workers, base: 0 }
    }

    /// The k-th role.
    #[must_use]
    pub fn get(self, k: u32) -> u32 {
        debug_assert!(k < self.count);
        self.base + (self.first + k * self.stride) % self.wrap
    }

    /// The same roles where the numbers of all roles are larger by `base`: those of one of several jobs.
    #[must_use]
    pub fn from_base(self, base: u32) -> Peers {
        Peers { base: self.base + base, ..self }
    }

    /// The position of `role` among them.
    #[must_use]
    pub fn position(self, role: u32) -> Option<u32> {
        self.iter().position(|r| r == role).map(|k| k as u32)
    }

    /// All of them, in order.
    pub fn iter(self) -> impl Iterator<Item = u32> {
        (0..self.count).map(move |k| self.get(k))
    }
}

/// How a received piece is combined with the buffer.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Op {
    /// Overwrites it.
    Assign,
    /// Added to it.
    Reduce,
    /// The first contribution overwrites, the others are added: servers and switches have no values of their own, and
    /// adding to zero would lose the sign of -0.0.
    AssignThenReduce,
}

/// One step of a role in a lane.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Step {
    /// Asynchronous: the program continues at once. Satisfies `slot` of the same lane at each of `to`.
    Send {
        /// Receivers; unicasts are sent in this order.
        to: Peers,
        /// One message that the network copies.
        multicast: bool,
        /// The receive of the lane that it is for.
        slot: u16,
        /// The elements to send.
        piece: Piece,
    },
    /// Waits for one message from each of `from`, and combines them in that order.
    Recv {
        /// Senders, in the order of combination.
        from: Peers,
        /// Matches the slot of the sends.
        slot: u16,
        /// How to combine.
        op: Op,
        /// The elements to receive.
        piece: Piece,
    },
    /// Waits until every lane with a barrier, of every bucket and role of this operation, has reached it. The runtime
    /// implements it with control messages (like the chief's token queue of synchronous parameter servers).
    Barrier,
    /// The role has finished this lane.
    Done,
}

/// A group of gradients that is synchronized as one.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Bucket {
    /// Number of the bucket, which decides its placement.
    pub id: u32,
    /// Number of elements.
    pub len: u64,
    /// Servers distribute it, but there is no gradient to add (a moving average): the push is empty.
    pub pull_only: bool,
}

impl Bucket {
    /// The elements pushed of a piece: none without a gradient.
    #[must_use]
    pub fn pushed(&self, piece: Piece) -> Piece {
        if self.pull_only { Piece { off: piece.off, len: 0 } } else { piece }
    }

    /// All elements.
    #[must_use]
    pub fn whole(&self) -> Piece {
        Piece { off: 0, len: self.len }
    }
}

/// Returns step `pc` of a list of steps written one after the other; the expressions before it are not evaluated.
macro_rules! at {
    ($pc:ident, $step:expr) => {
        if $pc == 0 {
            return $step;
        }
        #[allow(unused_assignments, reason = "the last step of a list leaves nothing to count")]
        {
            $pc -= 1;
        }
    };
}
pub(crate) use at;

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn parts_cover_the_piece_without_overlap() {
        for len in [0, 1, 2, 7, 100, 101] {
            for count in 1..9 {
                let whole = Piece { off: 3, len };
                let mut next = 3;
                for i in 0..count {
                    let part = whole.part(i, count);
                    assert_eq!(part.off, next);
                    next += part.len;
                }
                assert_eq!(next, 3 + len);
            }
        }
    }

    #[test]
    fn others_go_round() {
        assert_eq!(Peers::others(2, 4).iter().collect::<Vec<_>>(), [3, 0, 1]);
        assert_eq!(Peers::others(2, 4).position(0), Some(1));
        assert_eq!(Peers::others(0, 1).iter().count(), 0);
    }
}
