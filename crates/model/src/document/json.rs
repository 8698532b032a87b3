//! Reads the fields of a JSON document, and rewords serde's errors for users.
use serde::Deserialize;
use serde_json::Value;
use serde_json::error::Category;
use serde_json::value::RawValue;

use super::strict::Object;
use super::{DocumentError, MAX_BYTES, shorten, with_remedy, with_value};

/// The differences between kinds of documents.
pub(crate) struct Format {
    /// The value of the field `format`.
    pub name: &'static str,
    /// The version of most documents, the oldest that is read.
    pub version: u64,
    /// The latest that is read.
    pub latest: u64,
    /// The expected value of a field, for errors.
    pub hint: fn(&str) -> Option<&'static str>,
}

/// All kinds, to recognize one given where another is expected.
const KINDS: &[(&str, &str)] = &[
    ("paceline-trace", "a trace"),
    ("paceline-cluster", "a cluster file"),
    ("paceline-graph", "a graph (paceline plan)"),
];

/// The fields of a document.
pub(crate) fn parse<T: for<'de> Deserialize<'de>>(
    document: &[u8],
    source: &str,
    format: &Format,
) -> Result<T, DocumentError> {
    let text = decode(document, source, format)?;
    check_header(text, source, format)?;
    let mut deserializer = serde_json::Deserializer::from_str(text);
    let object: Object<T> = serde_path_to_error::deserialize(&mut deserializer).map_err(|error| {
        let path = error.path().to_string();
        explain(error.inner(), if path == "." { "" } else { &path }, text, source, format)
    })?;
    deserializer.end().map_err(|error| explain(&error, "", text, source, format))?;
    Ok(object.0)
}

/// A JSON string literal.
pub(crate) fn quoted(text: &str) -> String {
    Value::from(text).to_string()
}

/// The text of a document, which may be anything: compressed, binary, empty.
fn decode<'a>(document: &'a [u8], source: &str, format: &Format) -> Result<&'a str, DocumentError> {
    let wrong = |message: &str, remedy: &str| Err(DocumentError::at(source, "", &with_remedy(message, remedy)));
    if document.len() as u64 > MAX_BYTES {
        return wrong(&format!("is larger than the {} MB that are read", MAX_BYTES / 1_000_000), "a smaller file");
    }
    match document {
        [0x1f, 0x8b, ..] => return wrong("is compressed with gzip", &format!("gunzip {source}")),
        [b'P', b'K', 3, 4, ..] => {
            return wrong("is a zip archive (as torch.save writes), not JSON", "paceline list traces (what there is)");
        }
        [0xff, 0xfe, ..] | [0xfe, 0xff, ..] => {
            return wrong("is UTF-16, not UTF-8", &format!("iconv -f UTF-16 -t UTF-8 {source}"));
        }
        _ => {}
    }
    let text = match std::str::from_utf8(document) {
        Ok(text) => text,
        Err(error) => {
            let message = format!("is binary or not UTF-8 (at byte {}), not JSON", error.valid_up_to());
            return wrong(&message, &format!("a file that begins with {}", beginning(format)));
        }
    };
    // Editors on Windows write a byte order mark; RFC 8259, section 8.1, allows a parser to ignore it.
    let text = text.strip_prefix('\u{feff}').unwrap_or(text);
    match text.trim_start().chars().next() {
        Some('{') => Ok(text),
        None => wrong("is empty", &format!("a file that begins with {}", beginning(format))),
        Some(_) => {
            let message = format!("is not {} (no \"format\": \"{}\")", kind_of(format.name), format.name);
            wrong(&message, &format!("a file that begins with {}", beginning(format)))
        }
    }
}

/// A format in words: `a trace`.
fn kind_of(name: &str) -> &str {
    KINDS.iter().find(|kind| kind.0 == name).map_or(name, |kind| kind.1)
}

fn beginning(format: &Format) -> String {
    format!("{{\"format\": \"{}\", \"version\": {}", format.name, format.version)
}

#[derive(Deserialize)]
struct Header<'a> {
    #[serde(borrow)]
    format: Option<&'a RawValue>,
    #[serde(borrow)]
    version: Option<&'a RawValue>,
}

/// Checks format and version first, because the fields of a later version are unknown. A document that cannot be parsed
/// that far is left to the full parser, whose error names the place.
fn check_header(text: &str, source: &str, format: &Format) -> Result<(), DocumentError> {
    let Ok(header) = serde_json::from_str::<Header>(text) else { return Ok(()) };
    let wrong =
        |place: &str, message: &str, value: &str| Err(DocumentError::at(source, place, &with_value(message, value)));
    let (name, version, latest) = (format.name, format.version, format.latest);
    let Some(found) = header.format.map(RawValue::get) else {
        return wrong("format", "is missing", &quoted(name));
    };
    let found_name: String = serde_json::from_str(found).unwrap_or_default();
    if found_name != name {
        let is = match KINDS.iter().find(|kind| kind.0 == found_name) {
            Some(kind) => format!("this is {}, not {}", kind.1, kind_of(name)),
            None => format!("must be \"{name}\", not {}", shorten(found, 60)),
        };
        return wrong("format", &is, &quoted(name));
    }
    let Some(found) = header.version.map(RawValue::get) else {
        return wrong("version", "is missing", &version.to_string());
    };
    match serde_json::from_str::<u64>(found) {
        Ok(found) if (version..=latest).contains(&found) => Ok(()),
        Ok(found) if found > latest => {
            let message = format!("is {found}, newer than this paceline, which reads {latest}");
            Err(DocumentError::at(source, "version", &with_remedy(message, "a newer paceline")))
        }
        _ => wrong("version", &format!("must be {version}, not {}", shorten(found, 60)), &version.to_string()),
    }
}

/// Describes serde's error in one line.
fn explain(error: &serde_json::Error, path: &str, text: &str, source: &str, format: &Format) -> DocumentError {
    let (line, column) = (error.line(), error.column());
    let full = error.to_string();
    let message = full.strip_suffix(&format!(" at line {line} column {column}")).unwrap_or(&full);
    match error.classify() {
        Category::Data | Category::Io => {
            let (place, message) = explain_data(message, path, format);
            DocumentError::at(source, &place, &message)
        }
        Category::Eof | Category::Syntax => {
            let place = if path.is_empty() { String::new() } else { format!(" ({path})") };
            let message = match non_finite(text, line, column) {
                Some(literal) => {
                    with_remedy(format!("{literal} is not JSON (Python's json.dumps writes it)"), "a finite number")
                }
                None if error.is_eof() => {
                    with_remedy("the document ends here, unfinished", format!("the whole file (see: tail {source})"))
                }
                None => with_remedy(message, format!("JSON (see: python -m json.tool {source})")),
            };
            DocumentError::at(source, &format!("line {line} column {column}{place}"), &message)
        }
    }
}

/// A value of the wrong type, a missing or duplicate field, or a message of our own.
fn explain_data(message: &str, path: &str, format: &Format) -> (String, String) {
    let backquoted = |start: &str| message.strip_prefix(start).and_then(|rest| rest.strip_suffix('`'));
    if let Some(field) = backquoted("missing field `") {
        let place = if path.is_empty() { field.into() } else { format!("{path}.{field}") };
        let hint = (format.hint)(field).unwrap_or("it");
        return (place, with_remedy("is missing", format!("\"{field}\": {hint}")));
    }
    if let Some(field) = backquoted("duplicate field `") {
        return (path.into(), with_remedy(format!("has '{field}' twice"), format!("one \"{field}\"")));
    }
    let mistyped = ["invalid type: ", "invalid value: "].iter().find_map(|start| message.strip_prefix(start));
    if let Some((found, expected)) = mistyped.and_then(|rest| rest.rsplit_once(", expected ")) {
        let field = path.rsplit('.').next().and_then(|last| last.split('[').next()).unwrap_or_default();
        // The hint is about the field's value; an entry of a list in it is something else.
        let hint = if path.ends_with(']') { None } else { (format.hint)(field) };
        let expected = hint.unwrap_or(expected);
        return (path.into(), with_value(format!("is {}", shorten(found, 80)), expected));
    }
    (path.into(), message.into())
}

/// The literal near a syntax error, if it is valid only in JavaScript or Python.
fn non_finite(text: &str, line: usize, column: usize) -> Option<&'static str> {
    let start: usize = text.split_inclusive('\n').take(line.saturating_sub(1)).map(str::len).sum();
    let at = (start + column).min(text.len());
    // serde_json stops at the first letter or after it, or after the minus sign.
    let near = &text.as_bytes()[at.saturating_sub(2)..(at + 8).min(text.len())];
    let holds = |literal: &str| near.windows(literal.len()).any(|window| window == literal.as_bytes());
    ["NaN", "Infinity"].into_iter().find(|literal| holds(literal))
}
