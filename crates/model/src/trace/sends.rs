//! Parses a trace of sends, a CSV file.
use csv::StringRecord;

use crate::document::fields::{MAX_TENSOR_BYTES, check_name};
use crate::document::seconds::{Wrong, picoseconds};
use crate::document::{MAX_ENTRIES, Problem, shown, with_remedy};
use crate::nearest;
use crate::trace::Dtype;

pub(super) const HEADER: &str = "time_s,tensor,bytes,source,destination";

/// One row: a tensor that is ready to be queued.
#[derive(Debug)]
pub(super) struct Send {
    pub line: u64,
    /// Relative to any moment that is the same for all rows of the file.
    pub ps: u128,
    pub tensor: String,
    pub bytes: u64,
    pub source: String,
    pub destination: String,
}

impl Send {
    /// An error in one of its columns.
    pub fn problem(&self, column: &str, message: impl Into<String>) -> Problem {
        Problem::new(format!("line {}, column {column}", self.line), message)
    }
}

/// All rows in order of time; rows with the same time keep their order. At least one. Sizes of tensors for which `any`
/// holds are not read.
pub(super) fn rows(text: &str, dtype: Dtype, mut any: impl FnMut(&str) -> bool) -> Result<Vec<Send>, Problem> {
    let text = text.strip_prefix('\u{feff}').unwrap_or(text);
    let mut reader = csv::ReaderBuilder::new().flexible(true).trim(csv::Trim::All).from_reader(text.as_bytes());
    let unreadable = |error: csv::Error| Problem::new("", format!("is not CSV: {error}")).remedy(HEADER);
    let columns = columns(reader.headers().map_err(unreadable)?)?;
    let mut sends = Vec::new();
    for record in reader.records() {
        let record = record.map_err(unreadable)?;
        if sends.len() == MAX_ENTRIES {
            return Err(
                Problem::new("", format!("has more than {MAX_ENTRIES} rows")).remedy("the rows of fewer workers")
            );
        }
        sends.push(row(&record, columns, dtype, &mut any)?);
    }
    if sends.is_empty() {
        return Err(Problem::new("", "has no rows").remedy("a row for every send"));
    }
    sends.sort_by_key(|send| send.ps);
    Ok(sends)
}

/// The position of each column of [`HEADER`]; columns may be in any order.
fn columns(header: &StringRecord) -> Result<[usize; 5], Problem> {
    let wrong = |message: String| Problem::new("line 1", message).remedy(HEADER);
    if header.iter().all(str::is_empty) {
        return Err(wrong("is empty".into()));
    }
    if let Some(unknown) = header.iter().find(|name| !HEADER.split(',').any(|known| known == *name)) {
        let near = nearest(unknown, HEADER.split(',')).map_or(String::new(), |known| format!("{known}, of "));
        let message = format!("unknown column {}", shown(unknown));
        return Err(Problem::new("line 1", message).remedy(format!("{near}{HEADER}")));
    }
    let mut columns = [0; 5];
    for (known, column) in HEADER.split(',').zip(&mut columns) {
        let mut places = header.iter().enumerate().filter(|(_, name)| *name == known);
        *column = match (places.next(), places.next()) {
            (Some((place, _)), None) => place,
            (None, _) => return Err(wrong(format!("the column {known} is missing"))),
            (Some(_), Some(_)) => return Err(wrong(format!("the column {known} occurs twice"))),
        };
    }
    Ok(columns)
}

fn row(
    record: &StringRecord,
    columns: [usize; 5],
    dtype: Dtype,
    any: &mut impl FnMut(&str) -> bool,
) -> Result<Send, Problem> {
    let line = record.position().map_or(0, csv::Position::line);
    let [time, tensor, bytes, source, destination] = columns.map(|column| record.get(column).unwrap_or_default());
    if record.len() != columns.len() {
        let message = format!("has {} fields, the header {}", record.len(), columns.len());
        return Err(Problem::new(format!("line {line}"), message).remedy(HEADER));
    }
    let at =
        |column: &'static str| move |message: String| Problem::new(format!("line {line}, column {column}"), message);
    let name = |text: &str, column| check_name(text.into()).map_err(at(column));
    Ok(Send {
        line,
        ps: time_stamp(time).map_err(at("time_s"))?,
        tensor: name(tensor, "tensor")?,
        bytes: if any(tensor) { 0 } else { tensor_bytes(bytes, dtype).map_err(at("bytes"))? },
        source: name(source, "source")?,
        destination: name(destination, "destination")?,
    })
}

/// May be seconds since 1970: only differences matter.
fn time_stamp(text: &str) -> Result<u128, String> {
    picoseconds(text).map_err(|wrong| match wrong {
        Wrong::NotANumber => with_remedy(format!("{} is not a number", shown(text)), "seconds, such as 0.004"),
        Wrong::Negative => with_remedy(format!("{} is negative", shown(text)), "seconds from an earlier moment"),
        Wrong::TooLarge => with_remedy(format!("{} is too large", shown(text)), "seconds, such as 0.004"),
    })
}

fn tensor_bytes(text: &str, dtype: Dtype) -> Result<u64, String> {
    let bytes = text.parse::<u64>().ok().filter(|bytes| (1..=MAX_TENSOR_BYTES).contains(bytes));
    let Some(bytes) = bytes else {
        return Err(with_remedy(
            format!("{} is not whole bytes, 1-1e15", shown(text)),
            "a size in bytes, such as 4096",
        ));
    };
    dtype.whole_elements(bytes)
}
