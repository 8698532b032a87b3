//! Texts for messages: ranks, times and errors.
use std::io;

use paceline_os::time::Duration;

/// `rank 2`, `ranks 2, 5-7`.
pub fn ranks(ranks: &[u32]) -> String {
    let mut runs: Vec<(u32, u32)> = Vec::new();
    for &rank in ranks {
        match runs.last_mut() {
            Some((_, last)) if *last + 1 == rank => *last = rank,
            _ => runs.push((rank, rank)),
        }
    }
    let run = |&(first, last): &(u32, u32)| match last - first {
        0 => first.to_string(),
        1 => format!("{first}, {last}"),
        _ => format!("{first}-{last}"),
    };
    let runs: Vec<String> = runs.iter().map(run).collect();
    format!("{} {}", if ranks.len() == 1 { "rank" } else { "ranks" }, runs.join(", "))
}

/// `60 s`, `0.5 s`.
pub fn seconds(duration: Duration) -> String {
    let text = format!("{:.1}", duration.as_secs_f64());
    format!("{} s", text.strip_suffix(".0").unwrap_or(&text))
}

/// Without the error's number, which adds nothing to the text.
pub fn plain(error: &io::Error) -> String {
    let text = error.to_string();
    text.split(" (os error").next().unwrap_or_default().to_lowercase()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn words() {
        assert_eq!(ranks(&[2]), "rank 2");
        assert_eq!(ranks(&[2, 5, 6, 7]), "ranks 2, 5-7");
        assert_eq!(ranks(&[0, 1, 3, 4, 5, 9]), "ranks 0, 1, 3-5, 9");
        assert_eq!(seconds(Duration::from_millis(59_999)), "60 s");
        assert_eq!(seconds(Duration::from_millis(500)), "0.5 s");
        assert_eq!(plain(&io::Error::from_raw_os_error(111)), "connection refused");
    }
}
