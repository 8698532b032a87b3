//! The requests of a rank.
use serde::{Deserialize, Serialize};

/// An operation on a named tensor, as submitted by one rank.
///
/// Except for sizes, the values are not interpreted here: they are compared and shown to users.
#[derive(Clone, Debug, PartialEq, Eq, Hash, Serialize, Deserialize)]
pub struct Request {
    /// Identifies the tensor across ranks.
    pub name: String,
    /// The terms on which all ranks must agree.
    pub terms: Terms,
    /// The rank-specific part that each rank needs from all: the first dimension of an all-gather, the parts of an
    /// all-to-all. Such requests are negotiated each time.
    pub own: Vec<u64>,
    /// For requests that begin together: the smallest of their names.
    pub together: Option<String>,
    /// Nothing waits for it: it never causes a warning and never fails, however long ranks have not submitted it.
    #[serde(default)]
    pub patient: bool,
}

/// The terms on which all ranks must agree.
#[derive(Clone, Debug, PartialEq, Eq, Hash, Serialize, Deserialize)]
pub struct Terms {
    /// The operation: `allreduce`, `broadcast`, …
    pub call: String,
    /// How elements are combined; empty if they are not.
    pub op: String,
    /// Element type.
    pub dtype: String,
    /// Device: `cpu`, `cuda:0`, …
    pub device: String,
    /// Dimensions that must be equal.
    pub shape: Vec<u64>,
    /// The root, if there is one.
    pub root: Option<u32>,
    /// Factors before and after, as bits of a float64.
    pub scale: [u64; 2],
    /// Bytes of the payload, for the fusion threshold.
    pub bytes: u64,
    /// May be fused with others.
    pub fusible: bool,
    /// Zeros in place of a rank's tensor do not change the result.
    pub neutral: bool,
}

impl Terms {
    /// Those of an all-reduce that adds up in the host's memory; its shape counts four bytes an element.
    #[must_use]
    pub fn sum(dtype: &str, bytes: u64) -> Terms {
        Terms {
            call: "all_reduce".into(),
            op: "sum".into(),
            dtype: dtype.into(),
            device: "cpu".into(),
            shape: vec![bytes / 4],
            root: None,
            scale: [1f64.to_bits(); 2],
            bytes,
            fusible: true,
            neutral: true,
        }
    }

    /// Whether two requests may be fused.
    #[must_use]
    pub fn fuses_with(&self, other: &Terms) -> bool {
        self.fusible
            && other.fusible
            && (&self.call, &self.op, &self.dtype, &self.device, self.root, self.scale)
                == (&other.call, &other.op, &other.dtype, &other.device, other.root, other.scale)
    }

    /// Whether a rank that has joined can take part with zeros.
    #[must_use]
    pub fn can_do_without(&self, rank: u32) -> bool {
        self.neutral && self.root != Some(rank)
    }

    /// The operation as Horovod calls it: `Allgather`, or `Allreduce max`.
    #[must_use]
    pub fn what(&self) -> String {
        let call = self.call.replace('_', "");
        let (first, rest) = call.split_at(call.len().min(1));
        format!("{}{rest} {}", first.to_uppercase(), self.op).trim_end().to_owned()
    }

    /// The first difference: what differs, and the two values.
    #[must_use]
    pub fn difference(&self, other: &Terms) -> Option<(&'static str, String, String)> {
        fn differ(
            what: &'static str,
            a: impl ToString + PartialEq,
            b: impl ToString + PartialEq,
        ) -> Option<(&'static str, String, String)> {
            let (a, b) = (a.to_string(), b.to_string());
            (a != b).then_some((what, a, b))
        }
        let shape = |terms: &Terms| format!("{:?}", terms.shape);
        // Ranks may have different numbers of rows, which are no part of the terms.
        let dimensions = match self.call.as_str() {
            "all_gather" | "all_to_all" => "shape after the first dimension",
            _ => "shape",
        };
        let root = |terms: &Terms| terms.root.map_or("none".to_owned(), |root| root.to_string());
        let scale = |terms: &Terms, at: usize| f64::from_bits(terms.scale[at]);
        differ("operation", &self.call, &other.call)
            .or_else(|| differ("dtype", &self.dtype, &other.dtype))
            .or_else(|| differ(dimensions, shape(self), shape(other)))
            .or_else(|| differ("reduction", &self.op, &other.op))
            .or_else(|| differ("root rank", root(self), root(other)))
            .or_else(|| differ("device", &self.device, &other.device))
            .or_else(|| differ("prescale factor", scale(self, 0), scale(other, 0)))
            .or_else(|| differ("postscale factor", scale(self, 1), scale(other, 1)))
            .or_else(|| (self != other).then(|| ("layout", format!("{self:?}"), format!("{other:?}"))))
    }
}
