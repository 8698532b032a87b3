//! Finds the known name that a mistyped one most likely means.

/// Longer words are not typing mistakes, and the cost of the comparison grows with their length.
const LONGEST_WORD: usize = 100;

/// The candidate most similar to `word`, ignoring case; `None` if none is similar enough to suggest.
///
/// ```
/// assert_eq!(paceline_model::nearest("byte", ["tensor", "bytes"]), Some("bytes"));
/// assert_eq!(paceline_model::nearest("color", ["tensor", "bytes"]), None);
/// ```
#[must_use]
pub fn nearest<'a>(word: &str, candidates: impl IntoIterator<Item = &'a str>) -> Option<&'a str> {
    if word.is_empty() || word.len() > LONGEST_WORD {
        return None;
    }
    let word = word.to_lowercase();
    candidates
        .into_iter()
        .map(|candidate| (strsim::normalized_damerau_levenshtein(&word, &candidate.to_lowercase()), candidate))
        // Three letters of seven: as low as is needed for "fp32" to find "float32".
        .filter(|&(likeness, _)| likeness >= 3.0 / 7.0 - 1e-9)
        .reduce(|best, next| if next.0 > best.0 { next } else { best })
        .map(|(_, candidate)| candidate)
}

#[cfg(test)]
mod tests {
    use super::nearest;

    #[test]
    fn proposes_what_is_alike_and_nothing_else() {
        let known = ["float64", "float32", "float16", "bfloat16"];
        assert_eq!(nearest("Float32", known), Some("float32"));
        assert_eq!(nearest("fp32", known), Some("float32"));
        assert_eq!(nearest("bf16", known), Some("bfloat16"));
        assert_eq!(nearest("int8", known), None);
        assert_eq!(nearest("", known), None);
        assert_eq!(nearest(&"x".repeat(1_000_000), known), None);
    }
}
