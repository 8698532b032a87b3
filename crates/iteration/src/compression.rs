//! Compressed exchanges of a bucket: what is sent, by which collectives, and what compressing costs.
//!
//! | method | exchanges of a bucket | source |
//! | --- | --- | --- |
//! | cast | all-reduce of 16-bit values | torch `default_hooks.py` |
//! | PowerSGD of rank r | all-reduce of what is not compressed; of the matrices P, r values per row; of Q, r values per column | T. Vogels et al., NeurIPS 2019; torch `powerSGD_hook.py` |
//! | top-k | all-gather of k values and their 4-byte places | S. Stich et al., NeurIPS 2018 |
//! | int8 | all-to-all of each rank's quantized part, then all-gather of the sums, quantized again | H. Tang et al., ICML 2021 |
//!
//! Compressing before the first exchange takes the time of the compute stream, as the backward pass does; what follows an
//! exchange runs on a stream of its own, beside the backward pass.
use std::str::FromStr;

use paceline_model::trace::{Dtype, Tensor};
use paceline_schedule::{Collective, Refusal};

/// Values that share a scale of 4 bytes: a multiple of 4, so that what is sent is whole words.
pub const INT8_BLOCK: u64 = 256;
/// torch compresses a matrix only if that makes it smaller by this factor (`min_compression_rate` of `PowerSGDState`).
const LEAST_RATE: u64 = 2;
/// Type of the words in which packed bytes are counted.
const WORD: Dtype = Dtype::Float32;

/// How a bucket is compressed.
#[derive(Clone, Copy, Debug, PartialEq)]
pub enum Method {
    /// Not at all: for exchanges that are only rarer.
    None,
    /// Sent in 16 bits.
    Cast(Dtype),
    /// A product of two matrices of this rank.
    PowerSgd {
        /// Of both matrices.
        rank: u64,
    },
    /// The largest values.
    TopK {
        /// The share that is sent.
        density: f64,
    },
    /// One byte for each value, and a scale for each [`INT8_BLOCK`] of them.
    Int8,
}

impl Method {
    /// Whether a rank keeps what was not sent for the next iteration (error feedback).
    #[must_use]
    pub fn keeps_errors(self) -> bool {
        matches!(self, Method::PowerSgd { .. } | Method::TopK { .. } | Method::Int8)
    }
}

impl FromStr for Method {
    type Err = Refusal;

    /// The method of a name such as `powersgd:4`.
    fn from_str(name: &str) -> Result<Method, Refusal> {
        let (method, parameter) = name.split_once(':').map_or((name, None), |(method, it)| (method, it.parse().ok()));
        Ok(match (method, parameter) {
            ("fp16", None) => Method::Cast(Dtype::Float16),
            ("bf16", None) => Method::Cast(Dtype::Bfloat16),
            ("int8", None) => Method::Int8,
            ("powersgd", Some(rank)) if (1.0..=1e6).contains(&rank) => Method::PowerSgd { rank: rank as u64 },
            ("topk", Some(density)) if density > 0.0 && density <= 1.0 => Method::TopK { density },
            _ => {
                return Err(
                    Refusal::about("compression", format!("unknown compression '{name}'")).remedy("{compression=fp16}")
                );
            }
        })
    }
}

/// Cost of one part of the work on a bucket, in seconds.
#[derive(Clone, Copy, Debug, Default, PartialEq)]
pub struct Cost {
    /// For the bucket.
    pub bucket_s: f64,
    /// For each tensor that is compressed.
    pub tensor_s: f64,
    /// For each element that is compressed.
    pub element_s: f64,
    /// For each element that arrives.
    pub received_s: f64,
}

impl Cost {
    fn picoseconds(self, tensors: u64, elements: u64, received: u64) -> u64 {
        let seconds = self.bucket_s
            + self.tensor_s * tensors as f64
            + self.element_s * elements as f64
            + self.received_s * received as f64;
        (seconds * 1e12).round() as u64
    }

    fn scaled(self, factor: f64) -> Cost {
        Cost {
            bucket_s: self.bucket_s * factor,
            tensor_s: self.tensor_s * factor,
            element_s: self.element_s * factor,
            received_s: self.received_s * factor,
        }
    }
}

/// How gradients are compressed, and what that costs.
#[derive(Clone, Copy, Debug, PartialEq)]
pub struct Compression {
    /// How.
    pub method: Method,
    /// Before the first exchange.
    pub compress: Cost,
    /// Between two exchanges.
    pub between: Cost,
    /// After the last one.
    pub decompress: Cost,
}

impl Compression {
    /// Exchanges as they are, at no cost.
    pub const NONE: Compression = Compression {
        method: Method::None,
        compress: Cost { bucket_s: 0.0, tensor_s: 0.0, element_s: 0.0, received_s: 0.0 },
        between: Cost { bucket_s: 0.0, tensor_s: 0.0, element_s: 0.0, received_s: 0.0 },
        decompress: Cost { bucket_s: 0.0, tensor_s: 0.0, element_s: 0.0, received_s: 0.0 },
    };

    /// The same on a machine that computes in `factor` times the time.
    #[must_use]
    pub fn scaled(self, factor: f64) -> Compression {
        Compression {
            compress: self.compress.scaled(factor),
            between: self.between.scaled(factor),
            decompress: self.decompress.scaled(factor),
            ..self
        }
    }
}

/// An exchange of a bucket.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct Sent {
    pub collective: Collective,
    /// Of the whole.
    pub elements: u64,
    pub dtype: Dtype,
}

/// Exchanges that follow a computation.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) struct Leg {
    pub duration_ps: u64,
    pub sent: Vec<Sent>,
}

/// The exchanges of a bucket in order, and the picoseconds of the computation after the last.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) struct Legs {
    pub legs: Vec<Leg>,
    pub decompress_ps: u64,
}

impl Legs {
    /// One collective at no cost.
    pub(crate) fn uncompressed(collective: Collective, elements: u64, dtype: Dtype) -> Legs {
        let sent = vec![Sent { collective, elements, dtype }];
        Legs { legs: vec![Leg { duration_ps: 0, sent }], decompress_ps: 0 }
    }
}

impl Compression {
    /// How a bucket of these tensors is exchanged between `world` ranks. `dtype`: what is not compressed has this type.
    /// `collective`: what is done with it if nothing is compressed.
    ///
    /// # Errors
    /// A tensor whose shape decides and is not known; its name.
    pub(crate) fn legs(
        &self,
        tensors: &[&Tensor],
        of: Dtype,
        dtype: Dtype,
        collective: Collective,
        world: u32,
    ) -> Result<Legs, String> {
        let size = |tensor: &Tensor| tensor.bytes / of.size();
        let elements: u64 = tensors.iter().map(|tensor| size(tensor)).sum();
        let world = u64::from(world);
        let count = tensors.len() as u64;
        let sent = |collective: Collective, elements: u64, dtype: Dtype| Sent { collective, elements, dtype };
        let made = match self.method {
            Method::None => Legs::uncompressed(collective, elements, dtype),
            Method::Cast(to) => Legs {
                legs: vec![Leg {
                    duration_ps: self.compress.picoseconds(count, elements, 0),
                    sent: vec![sent(Collective::AllReduce, elements, to)],
                }],
                decompress_ps: self.decompress.picoseconds(count, elements, 0),
            },
            Method::PowerSgd { rank } => {
                let (mut whole, mut p, mut q, mut compressed, mut matrices) = (0, 0, 0, 0, 0);
                for tensor in tensors {
                    let shape = tensor.shape.as_ref().ok_or_else(|| tensor.name.clone())?;
                    let rows = shape.first().copied().unwrap_or(1);
                    let columns = size(tensor) / rows.max(1);
                    let rank = rank.min(rows).min(columns);
                    // As in `_should_compress` of torch's hook.
                    if shape.len() > 1 && (rows + columns) * rank * LEAST_RATE < rows * columns {
                        p += rows * rank;
                        q += columns * rank;
                        compressed += rows * columns;
                        matrices += 1;
                    } else {
                        whole += size(tensor);
                    }
                }
                let first = [whole, p].into_iter().filter(|&elements| elements > 0);
                let first = first.map(|elements| sent(Collective::AllReduce, elements, dtype)).collect();
                let mut legs =
                    vec![Leg { duration_ps: self.compress.picoseconds(matrices, compressed, 0), sent: first }];
                if q > 0 {
                    legs.push(Leg {
                        duration_ps: self.between.picoseconds(matrices, compressed, 0),
                        sent: vec![sent(Collective::AllReduce, q, dtype)],
                    });
                }
                Legs { legs, decompress_ps: self.decompress.picoseconds(matrices, compressed, 0) }
            }
            Method::TopK { density } => {
                let kept = ((elements as f64 * density).ceil() as u64).clamp(1, elements.max(1));
                // A value and its place, in two words.
                let words = (kept * (dtype.size() + 4)).div_ceil(WORD.size()) * world;
                Legs {
                    legs: vec![Leg {
                        duration_ps: self.compress.picoseconds(count, elements, 0),
                        sent: vec![sent(Collective::AllGather, words, WORD)],
                    }],
                    decompress_ps: self.decompress.picoseconds(count, elements, kept * world),
                }
            }
            Method::Int8 => {
                // Every rank's part is padded to whole blocks.
                let blocks = elements.div_ceil(world).div_ceil(INT8_BLOCK);
                let words = blocks * (INT8_BLOCK / WORD.size() + 1) * world;
                let part = elements.div_ceil(world);
                Legs {
                    legs: vec![
                        Leg {
                            duration_ps: self.compress.picoseconds(count, elements, 0),
                            // The bytes of an all-to-all.
                            sent: vec![sent(Collective::ReduceScatter, words, WORD)],
                        },
                        Leg {
                            duration_ps: self.between.picoseconds(count, part, elements),
                            sent: vec![sent(Collective::AllGather, words, WORD)],
                        },
                    ],
                    decompress_ps: self.decompress.picoseconds(count, elements, 0),
                }
            }
        };
        Ok(made)
    }
}
