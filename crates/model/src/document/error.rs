//! The error type of all documents: one line that names the source and the place, and what to write instead.
use std::fmt::Display;

use thiserror::Error;

/// Longest text of each part of a message; with separators they stay below 400 characters, a few lines of a terminal.
const MAX_SOURCE: usize = 90;
const MAX_PLACE: usize = 90;
const MAX_MESSAGE: usize = 210;
const MAX_NAME: usize = 60;

/// Between a message and its remedy. Messages pass through serde's errors, which are text; no document can put this into
/// one, as control characters are replaced.
const REMEDY: char = '\u{1f}';

/// A message with what to write or type instead.
pub(crate) fn with_remedy(message: impl Display, remedy: impl Display) -> String {
    format!("{message}{REMEDY}{remedy}")
}

/// A message with the JSON to write as the value of the field that it is about.
pub(crate) fn with_value(message: impl Display, value: impl Display) -> String {
    format!("{message}{REMEDY}{REMEDY}{value}")
}

/// Why a document could not be read: one line that names the source and the place in it, and a remedy.
#[derive(Clone, Debug, Error, PartialEq, Eq)]
#[error("{text}")]
pub struct DocumentError {
    text: String,
    place: String,
    remedy: Option<String>,
}

impl DocumentError {
    /// An error at a place; an empty `place` means the whole document.
    pub(crate) fn at(source: &str, place: &str, message: &str) -> DocumentError {
        let source = if source.is_empty() { "document".into() } else { shorten(source, MAX_SOURCE) };
        let (message, remedy) = message.split_once(REMEDY).map_or((message, None), |(it, remedy)| (it, Some(remedy)));
        let message = shorten(message, MAX_MESSAGE);
        let place = shorten(place, MAX_PLACE);
        let remedy = remedy.map(|remedy| match remedy.strip_prefix(REMEDY) {
            Some(value) if field(&place).is_empty() => shorten(value, MAX_MESSAGE),
            Some(value) => shorten(&format!("\"{}\": {value}", field(&place)), MAX_MESSAGE),
            None => shorten(remedy, MAX_MESSAGE),
        });
        let text =
            if place.is_empty() { format!("{source}: {message}") } else { format!("{source}: {place}: {message}") };
        DocumentError { text, place, remedy }
    }

    /// The place in the document, such as `workers[0].batch`; empty: all of it.
    #[must_use]
    pub fn place(&self) -> &str {
        &self.place
    }

    /// What to write or type instead, in a few words.
    #[must_use]
    pub fn remedy(&self) -> Option<&str> {
        self.remedy.as_deref()
    }
}

/// The name of the field at a place: `bytes` of `workers[0].gradients[2].bytes`.
fn field(place: &str) -> &str {
    let last = place.rsplit('.').next().unwrap_or_default();
    if last.contains(['[', ' ']) { "" } else { last }
}

/// An error and its place, before the file is known.
#[derive(Debug)]
pub(crate) struct Problem {
    pub place: String,
    pub message: String,
}

impl Problem {
    pub fn new(place: impl Into<String>, message: impl Into<String>) -> Problem {
        Problem { place: place.into(), message: message.into() }
    }

    /// The same problem, with what to write instead.
    pub fn remedy(self, remedy: impl Display) -> Problem {
        Problem { message: with_remedy(self.message, remedy), ..self }
    }

    /// The same problem, with the JSON to write as the value of its field.
    pub fn value(self, value: impl Display) -> Problem {
        Problem { message: with_value(self.message, value), ..self }
    }

    pub fn of(self, source: &str) -> DocumentError {
        DocumentError::at(source, &self.place, &self.message)
    }
}

/// A name in quotes, shortened for a message.
pub(crate) fn shown(name: &str) -> String {
    format!("'{}'", shorten(name, MAX_NAME))
}

/// Cuts out the middle, because both ends of a path or of a message say more, and replaces characters that could break
/// the line or recolor the terminal with question marks.
pub(crate) fn shorten(text: &str, longest: usize) -> String {
    let harmless = |c: char| if is_unprintable(c) { '?' } else { c };
    if text.chars().nth(longest).is_none() {
        return text.chars().map(harmless).collect();
    }
    let tail = longest / 2;
    let head = longest - tail - 1;
    let tail_start = text.char_indices().rev().nth(tail.saturating_sub(1)).map_or(0, |(at, _)| at);
    text.chars().take(head).chain(['…']).chain(text[tail_start..].chars()).map(harmless).collect()
}

/// Control characters, Unicode's own line ends, and the marks that reverse the direction of text (CVE-2021-42574).
pub(crate) fn is_unprintable(c: char) -> bool {
    const OTHERS: [char; 13] = [
        '\u{2028}', '\u{2029}', '\u{200e}', '\u{200f}', '\u{202a}', '\u{202b}', '\u{202c}', '\u{202d}', '\u{202e}',
        '\u{2066}', '\u{2067}', '\u{2068}', '\u{2069}',
    ];
    c.is_control() || OTHERS.contains(&c)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn long_parts_lose_their_middle() {
        assert_eq!(shorten("abcdef", 6), "abcdef");
        assert_eq!(shorten("abcdefg", 6), "ab…efg");
        let error = DocumentError::at(&"s".repeat(999), &"p".repeat(999), &"ü".repeat(999)).to_string();
        assert!(error.chars().count() < 400, "{error}");
    }

    #[test]
    fn a_remedy_is_no_part_of_the_message() {
        let error = DocumentError::at("a.json", "workers[0].batch", &with_value("must be 1-8, not 0", 1));
        assert_eq!(error.to_string(), "a.json: workers[0].batch: must be 1-8, not 0");
        assert_eq!(error.remedy(), Some("\"batch\": 1"));
        assert_eq!(DocumentError::at("a", "b[0]", &with_value("is 0", 1)).remedy(), Some("1"));
        assert_eq!(DocumentError::at("a", "", &with_remedy("is empty", "ls")).remedy(), Some("ls"));
        assert_eq!(DocumentError::at("a", "", "is empty").remedy(), None);
    }

    #[test]
    fn nothing_reaches_the_terminal_that_could_corrupt_it() {
        assert_eq!(shown("a\u{1b}[31m\n\u{202e}b"), "'a?[31m??b'");
    }
}
