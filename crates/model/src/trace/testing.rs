//! The example of docs/reference/trace-format.md, for tests.
use super::Trace;

/// Its text, taken from the documentation, so that the documentation is tested too.
pub(crate) fn tiny_json() -> String {
    let page = include_str!("../../../../docs/reference/trace-format.md");
    let start = page.find("```json\n").expect("the page has an example") + "```json\n".len();
    let length = page[start..].find("```").expect("the example ends");
    page[start..start + length].to_owned()
}

/// The trace that it describes.
pub(crate) fn tiny() -> Trace {
    Trace::from_json(tiny_json().as_bytes(), "docs/reference/trace-format.md").expect("the example is valid")
}
