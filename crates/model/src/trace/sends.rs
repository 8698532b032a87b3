//! Parses a trace of sends, a CSV file.
use csv::StringRecord;

use crate::document::fields::{MAX_TENSOR_BYTES, check_name};
use crate::document::seconds::{Wrong, picoseconds};
use crate::document::{MAX_ENTRIES, Problem, shown};
use crate::nearest;
use crate::trace::Dtype;

const HEADER: &str = "time_s,tensor,bytes,source,destination";

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

/// All rows in order of time; rows with the same time keep their order. At least one.
pub(super) fn rows(text: &str, dtype: Dtype) -> Result<Vec<Send>, Problem> {
    let text = text.strip_prefix('\u{feff}').unwrap_or(text);
    let mut reader = csv::ReaderBuilder::new().flexible(true).trim(csv::Trim::All).from_reader(text.as_bytes());
    let unreadable = |error: csv::Error| Problem::new("", format!("is not CSV: {error}"));
    let columns = columns(reader.headers().map_err(unreadable)?)?;
    let mut sends = Vec::new();
    for record in reader.records() {
        let record = record.map_err(unreadable)?;
        if sends.len() == MAX_ENTRIES {
            return Err(Problem::new("", format!("has more than {MAX_ENTRIES} rows; leave out some workers")));
        }
        sends.push(row(&record, columns, dtype)?);
    }
    if sends.is_empty() {
        return Err(Problem::new("", "has no rows; give one for every send"));
    }
    sends.sort_by_key(|send| send.ps);
    Ok(sends)
}

/// The position of each column of [`HEADER`]; columns may be in any order.
fn columns(header: &StringRecord) -> Result<[usize; 5], Problem> {
    let wrong = |message: String| Problem::new("line 1", format!("{message}; the header is {HEADER}"));
    if header.iter().all(str::is_empty) {
        return Err(wrong("is empty".into()));
    }
    if let Some(unknown) = header.iter().find(|name| !HEADER.split(',').any(|known| known == *name)) {
        let hint =
            nearest(unknown, HEADER.split(',')).map_or(String::new(), |known| format!(", did you mean '{known}'?"));
        return Err(wrong(format!("unknown column {}{hint}", shown(unknown))));
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

fn row(record: &StringRecord, columns: [usize; 5], dtype: Dtype) -> Result<Send, Problem> {
    let line = record.position().map_or(0, csv::Position::line);
    let [time, tensor, bytes, source, destination] = columns.map(|column| record.get(column).unwrap_or_default());
    if record.len() != columns.len() {
        let message = format!("has {} fields; the header has {}", record.len(), columns.len());
        return Err(Problem::new(format!("line {line}"), message));
    }
    let at =
        |column: &'static str| move |message: String| Problem::new(format!("line {line}, column {column}"), message);
    let name = |text: &str, column| check_name(text.into()).map_err(at(column));
    Ok(Send {
        line,
        ps: time_stamp(time).map_err(at("time_s"))?,
        tensor: name(tensor, "tensor")?,
        bytes: tensor_bytes(bytes, dtype).map_err(at("bytes"))?,
        source: name(source, "source")?,
        destination: name(destination, "destination")?,
    })
}

/// May be seconds since 1970: only differences matter.
fn time_stamp(text: &str) -> Result<u128, String> {
    picoseconds(text).map_err(|wrong| match wrong {
        Wrong::NotANumber => format!("{} is not a number; give seconds, such as 0.004", shown(text)),
        Wrong::Negative => format!("{} is negative; count from an earlier moment", shown(text)),
        Wrong::TooLarge => format!("{} is too large; give seconds", shown(text)),
    })
}

fn tensor_bytes(text: &str, dtype: Dtype) -> Result<u64, String> {
    let bytes = text.parse::<u64>().ok().filter(|bytes| (1..=MAX_TENSOR_BYTES).contains(bytes));
    let Some(bytes) = bytes else {
        return Err(format!("{} is not a size; give whole bytes, from 1 to 1e15", shown(text)));
    };
    dtype.whole_elements(bytes)
}
