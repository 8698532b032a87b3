//! Parses trace files: the only parser of docs/reference/trace-format.md.
use std::path::Path;

use super::Trace;
use super::file::{TraceFile, hint};
use crate::document::{DocumentError, Format, parse, read};

const FORMAT: Format = Format { name: "paceline-trace", version: 1, latest: 2, hint };

impl Trace {
    /// Reads the JSON of a trace; `source` is its name in errors.
    ///
    /// # Errors
    /// Anything that docs/reference/trace-format.md does not allow, in one line that names the place and says what to
    /// do.
    pub fn from_json(text: &[u8], source: &str) -> Result<Trace, DocumentError> {
        let file: TraceFile = parse(text, source, &FORMAT)?;
        file.checked().map_err(|problem| problem.of(source))
    }

    /// Reads a trace file, a regular file of at most [`crate::document::MAX_BYTES`].
    ///
    /// # Errors
    /// A file that cannot be read, or that [`Trace::from_json`] refuses.
    pub fn read(path: &Path) -> Result<Trace, DocumentError> {
        Trace::from_json(&read(path)?, &path.to_string_lossy())
    }
}
