//! The names of collectives, algorithms and protocols, and the error of what NCCL cannot do.

macro_rules! named {
    ($(#[$about:meta])* $type:ident { $($(#[$doc:meta])* $variant:ident = $name:literal,)+ }) => {
        $(#[$about])*
        #[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
        pub enum $type {
            $($(#[$doc])* $variant,)+
        }

        impl $type {
            /// All of them.
            pub const ALL: &[$type] = &[$($type::$variant),+];

            /// The name that users type.
            #[must_use]
            pub fn name(self) -> &'static str {
                match self {
                    $($type::$variant => $name,)+
                }
            }

            /// The one of this name.
            #[must_use]
            pub fn find(name: &str) -> Option<$type> {
                $type::ALL.iter().copied().find(|it| it.name() == name)
            }
        }
    };
}
pub(crate) use named;

named! {
    /// A collective.
    Kind {
        /// Every rank ends with the sum.
        AllReduce = "allreduce",
        /// Every rank ends with the shards of all.
        AllGather = "allgather",
        /// Every rank ends with the sum of its shard.
        ReduceScatter = "reducescatter",
        /// Every rank ends with what one had.
        Broadcast = "broadcast",
        /// One rank ends with the sum.
        Reduce = "reduce",
    }
}

impl Kind {
    /// Whether it is one half of an all-reduce, whose buffer holds a shard of every rank.
    #[must_use]
    pub fn is_half(self) -> bool {
        matches!(self, Kind::AllGather | Kind::ReduceScatter)
    }
}

named! {
    /// How ranks are connected.
    Algorithm {
        /// One ring over all ranks.
        Ring = "ring",
        /// A chain inside each node and a double binary tree between the nodes.
        Tree = "tree",
        /// The switches of a node add and multicast (NVLink SHARP).
        Nvls = "nvls",
        /// The same inside nodes, trees between them.
        NvlsTree = "nvls-tree",
        /// Parallel aggregated trees, for one rank a node.
        Pat = "pat",
    }
}

named! {
    /// How bytes are handed over, in the order of NCCL's tables.
    Protocol {
        /// 8-byte stores with a flag: low latency, half of the bandwidth or less.
        Ll = "LL",
        /// 128-byte stores with a flag.
        Ll128 = "LL128",
        /// Chunks with a flag each.
        Simple = "Simple",
    }
}

/// A combination of algorithm and protocol: `tuning.cc` has a line for each.
pub type Choice = (Algorithm, Protocol);

/// A request that NCCL cannot carry out, by the argument to change.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
#[error("{reason}")]
pub struct NcclError {
    /// What is wrong.
    pub reason: String,
    /// What to write instead, in a few words.
    pub remedy: String,
}

pub(crate) fn counted(number: u32, noun: &str) -> String {
    format!("{number} {noun}{}", if number == 1 { "" } else { "s" })
}
