//! Element types of all-reduces in graphs: all that frameworks' collectives support, which is more than traces have.

/// An element type.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub struct Dtype(usize);

/// Names and bytes of each type, as in numpy and ml_dtypes.
const KNOWN: [(&str, u64); 16] = [
    ("float64", 8),
    ("float32", 4),
    ("float16", 2),
    ("bfloat16", 2),
    ("float8_e4m3fn", 1),
    ("float8_e5m2", 1),
    ("complex128", 16),
    ("complex64", 8),
    ("int64", 8),
    ("int32", 4),
    ("int16", 2),
    ("int8", 1),
    ("uint64", 8),
    ("uint32", 4),
    ("uint16", 2),
    ("uint8", 1),
];

impl Dtype {
    /// The type with this name.
    #[must_use]
    pub fn parse(name: &str) -> Option<Dtype> {
        KNOWN.iter().position(|known| known.0 == name).map(Dtype)
    }

    /// The name in files.
    #[must_use]
    pub fn name(self) -> &'static str {
        KNOWN[self.0].0
    }

    /// Bytes of an element.
    #[must_use]
    pub fn size(self) -> u64 {
        KNOWN[self.0].1
    }

    /// All names.
    pub(super) fn names() -> [&'static str; KNOWN.len()] {
        KNOWN.map(|known| known.0)
    }
}
