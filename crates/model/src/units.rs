//! Time, sizes and rates, each with its unit in the type, and the parser of the forms that users type.
//!
//! Time is an integer number of picoseconds: at 25 Gbit/s a byte takes exactly 320 ps, so sums of transmission times
//! are exact and a simulation gives the same bytes on every machine. 64 bits hold 213 days.
use std::fmt;
use std::ops::{Add, AddAssign, Sub};

use thiserror::Error;

use crate::document::shown;

/// A point in time or a duration, in picoseconds.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub struct Time(pub u64);

/// Picoseconds in a second.
pub const PS_PER_S: u64 = 1_000_000_000_000;

impl Time {
    /// Time zero, or an empty duration.
    pub const ZERO: Time = Time(0);
    /// Later than any event.
    pub const MAX: Time = Time(u64::MAX);

    /// Rounds to the nearest picosecond. `seconds` must be finite, not negative and below 213 days.
    ///
    /// # Panics
    /// If it is not; callers check user input.
    #[must_use]
    pub fn from_seconds(seconds: f64) -> Time {
        assert!(
            seconds.is_finite() && (0.0..=MAX_SECONDS).contains(&seconds),
            "a time must be in 0..={MAX_SECONDS} s, not {seconds}"
        );
        #[expect(clippy::cast_possible_truncation, clippy::cast_sign_loss, reason = "checked above")]
        Time((seconds * PS_PER_S as f64).round() as u64)
    }

    /// In seconds, for JSON and for display.
    #[must_use]
    pub fn seconds(self) -> f64 {
        self.0 as f64 / PS_PER_S as f64
    }

    /// The duration times a factor (a slower worker, a faster device), rounded to the nearest picosecond.
    #[must_use]
    pub fn scaled(self, factor: f64) -> Time {
        debug_assert!(factor.is_finite() && factor >= 0.0);
        #[expect(clippy::cast_possible_truncation, clippy::cast_sign_loss, reason = "saturates")]
        Time((self.0 as f64 * factor).round() as u64)
    }
}

/// The longest time that a user may give: one day. Longer ones are mistakes in the unit, and sums must stay below 213
/// days.
pub const MAX_SECONDS: f64 = 86_400.0;

impl Add for Time {
    type Output = Time;
    fn add(self, other: Time) -> Time {
        Time(self.0 + other.0)
    }
}
impl AddAssign for Time {
    fn add_assign(&mut self, other: Time) {
        self.0 += other.0;
    }
}
impl Sub for Time {
    type Output = Time;
    fn sub(self, other: Time) -> Time {
        Time(self.0 - other.0)
    }
}
impl fmt::Display for Time {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let s = self.seconds();
        match s {
            0.0 => write!(f, "0 s"),
            s if s < 1e-6 => write!(f, "{:.3} ns", s * 1e9),
            s if s < 1e-3 => write!(f, "{:.3} us", s * 1e6),
            s if s < 1.0 => write!(f, "{:.3} ms", s * 1e3),
            s => write!(f, "{s:.3} s"),
        }
    }
}

/// A link's rate in bits per second, each way.
#[derive(Clone, Copy, Debug, PartialEq, PartialOrd)]
pub struct Rate(pub f64);

impl Rate {
    /// Picoseconds that one byte takes. Exact for 25 Gbit/s (320) and every rate that divides 8e12.
    #[must_use]
    pub fn ps_per_byte(self) -> f64 {
        8.0 * PS_PER_S as f64 / self.0
    }
}

/// Why a quantity could not be parsed, and what to write instead; for the user.
#[derive(Debug, Error, PartialEq, Eq)]
#[error("{reason}")]
pub struct UnitError {
    /// What is wrong.
    pub reason: String,
    /// Quantities to write instead, the likeliest first.
    pub remedy: String,
}

impl UnitError {
    fn new(reason: impl Into<String>, remedy: impl Into<String>) -> UnitError {
        UnitError { reason: reason.into(), remedy: remedy.into() }
    }
}

/// Powers of 1000 and of 1024 for a prefix: `k` and `ki`.
const PREFIXES: [(&str, i32); 5] = [("", 0), ("k", 1), ("m", 2), ("g", 3), ("t", 4)];

/// How amounts and rates of data are spelled, ignoring case, and what each spelling means.
///
/// Case matters for one letter: `B` is bytes and `b` is bits (IEEE 1541). If any letter is a capital, the case is taken
/// literally: `Gbps`, `Gb/s` and `Mb` are bits, `GBps`, `GB/s` and `MB` bytes. Text entirely in lower case has its
/// common meaning, and is refused if there is more than one. The case of a prefix never matters.
const SPELLINGS: [(&str, bool, Letters); 8] = [
    ("bps", true, Letters::Abbreviated { lower: Amount::Bits }),
    ("b/s", true, Letters::Abbreviated { lower: Amount::Unclear }),
    ("b", false, Letters::Abbreviated { lower: Amount::Bytes }),
    ("bit/s", true, Letters::SpelledOut(Amount::Bits)),
    ("bits/s", true, Letters::SpelledOut(Amount::Bits)),
    ("bit", false, Letters::SpelledOut(Amount::Bits)),
    ("bits", false, Letters::SpelledOut(Amount::Bits)),
    ("bytes/s", true, Letters::SpelledOut(Amount::Bytes)),
];

#[derive(Clone, Copy)]
enum Letters {
    /// `b` or `B`, by its case; `lower` is the meaning if all letters are lower case.
    Abbreviated {
        lower: Amount,
    },
    SpelledOut(Amount),
}

#[derive(Clone, Copy, PartialEq, Eq)]
enum Amount {
    Bits,
    Bytes,
    /// Commonly used for both.
    Unclear,
}

/// The meaning of a unit of data, according to [`SPELLINGS`].
#[derive(Clone, Copy)]
struct DataUnit {
    amount: Amount,
    per_second: bool,
    /// `Ki`, `Mi`, …: powers of 1024.
    is_binary: bool,
    power: i32,
}

impl DataUnit {
    fn read(unit: &str) -> Option<DataUnit> {
        let lower = unit.to_ascii_lowercase();
        PREFIXES.iter().find_map(|&(prefix, power)| {
            let rest = lower.strip_prefix(prefix)?;
            let binary = rest.strip_prefix('i').filter(|_| power > 0);
            let (_, per_second, letters) = SPELLINGS.iter().find(|spelling| spelling.0 == binary.unwrap_or(rest))?;
            let amount = match letters {
                Letters::SpelledOut(amount) => *amount,
                Letters::Abbreviated { lower: usual } if unit == lower => *usual,
                Letters::Abbreviated { .. } if unit.contains('B') => Amount::Bytes,
                Letters::Abbreviated { .. } => Amount::Bits,
            };
            Some(DataUnit { amount, per_second: *per_second, is_binary: binary.is_some(), power })
        })
    }

    fn factor(self) -> f64 {
        if self.is_binary { 1024_f64.powi(self.power) } else { 1000_f64.powi(self.power) }
    }

    /// The suggested rate for `value` units of `bits` bits: "200Gbps".
    fn as_rate(self, value: f64, bits: f64) -> String {
        let value = value * bits * self.factor() / 1000_f64.powi(self.power);
        format!("{}{}bps", plain(value), ["", "k", "M", "G", "T"][self.power.unsigned_abs() as usize])
    }

    /// The suggested size for `value` units of `bytes` bytes: "3.125MB".
    fn as_size(self, value: f64, bytes: f64) -> String {
        let prefix = match (self.is_binary, self.power) {
            (false, power) => ["", "k", "M", "G", "T"][power.unsigned_abs() as usize],
            (true, power) => ["", "Ki", "Mi", "Gi", "Ti"][power.unsigned_abs() as usize],
        };
        format!("{}{prefix}B", plain(value * bytes))
    }
}

/// A number in its usual form: with an exponent only if it would be long.
fn plain(value: f64) -> String {
    if value == 0.0 || (1e-4..1e9).contains(&value) { format!("{value}") } else { format!("{value:e}") }
}

const TIME_UNITS: &[(&str, f64)] =
    &[("ps", 1e-12), ("ns", 1e-9), ("us", 1e-6), ("µs", 1e-6), ("ms", 1e-3), ("s", 1.0), ("min", 60.0)];

/// Splits "25Gbps" into 25.0 and "Gbps".
fn split<'a>(text: &'a str, what: &str, example: &str) -> Result<(f64, &'a str), UnitError> {
    let text = text.trim();
    let digits = text.find(|c: char| !(c.is_ascii_digit() || c == '.' || c == '_')).unwrap_or(text.len());
    // An exponent ("1e-3ms") belongs to the number if digits follow it; the unit "1eb" does not exist.
    let end = exponent_end(text, digits);
    let (number, unit) = text.split_at(end);
    let value: f64 = number
        .replace('_', "")
        .parse()
        .ok()
        .filter(|v: &f64| v.is_finite())
        .ok_or_else(|| UnitError::new(format!("{} is not a {what}", shown(text)), example))?;
    Ok((value, unit.trim()))
}

fn exponent_end(text: &str, digits: usize) -> usize {
    let rest = &text[digits..];
    let Some(after_e) = rest.strip_prefix(['e', 'E']) else { return digits };
    let sign = usize::from(after_e.starts_with(['+', '-']));
    let count = after_e[sign..].chars().take_while(char::is_ascii_digit).count();
    if digits > 0 && count > 0 { digits + 1 + sign + count } else { digits }
}

/// Parses a rate in bits per second: `25Gbps`, `25Gb/s`, `500Mbit/s`. Units are SI: 25Gbps is 25e9 bit/s.
///
/// # Errors
/// A number without a unit, bytes (`25GBps`, `3GB/s`), a size instead of a rate (`25GB`), zero, or anything else.
pub fn parse_rate(text: &str) -> Result<Rate, UnitError> {
    let example = "25Gbps or 500Mbps";
    let (value, unit) = split(text, "rate", example)?;
    let read = shown(text.trim());
    let refused = |why: &str, remedy: String| Err(UnitError::new(format!("{read} {why}"), remedy));
    if unit.is_empty() {
        let value = plain(value);
        return refused("has no unit", format!("{value}Gbps or {value}Mbps"));
    }
    let Some(data) = DataUnit::read(unit) else {
        return refused(&format!("has the unknown unit {}", shown(unit)), example.into());
    };
    let (bits, bytes) = (data.as_rate(value, 1.0), data.as_rate(value, 8.0));
    match (data.amount, data.per_second) {
        (Amount::Bits, true) if !data.is_binary => {}
        (Amount::Bits, true) => {
            return refused("counts in powers of 1024, rates in powers of 1000", bits);
        }
        (Amount::Bits, false) => return refused("is a number of bits, not a rate", bits),
        (Amount::Bytes, false) => {
            return refused("is a size in bytes, not a rate", format!("{bytes} for bytes, {bits} for bits"));
        }
        (Amount::Bytes, true) => {
            let remedy = format!("{bytes} for bytes, {bits} for bits");
            return refused("is ambiguous: B is bytes, rates use bits", remedy);
        }
        (Amount::Unclear, _) => {
            let remedy = format!("{bits} for bits, {bytes} for bytes");
            return refused("is ambiguous: b is written for bits and for bytes", remedy);
        }
    }
    let rate = value * data.factor();
    if !(1.0..=1e18).contains(&rate) {
        return refused("must be 1bps-1e6Tbps", example.into());
    }
    Ok(Rate(rate))
}

/// Parses a size in bytes: `100MB` (SI), `64KiB` (IEC).
///
/// # Errors
/// A number without a unit, bits (`25Mb`), a rate instead of a size, a fraction of a byte, or anything else.
pub fn parse_size(text: &str) -> Result<u64, UnitError> {
    let example = "100MB or 64KiB";
    let (value, unit) = split(text, "size", example)?;
    let read = shown(text.trim());
    let refused = |why: &str, remedy: String| Err(UnitError::new(format!("{read} {why}"), remedy));
    if unit.is_empty() {
        let value = plain(value);
        return refused("has no unit", format!("{value}MB or {value}B"));
    }
    let Some(data) = DataUnit::read(unit) else {
        return refused(&format!("has the unknown unit {}", shown(unit)), example.into());
    };
    match (data.amount, data.per_second) {
        (Amount::Bytes, false) => {}
        (_, true) => return refused("is a rate, not a size", example.into()),
        (_, false) => {
            let (bytes, bits) = (data.as_size(value, 1.0), data.as_size(value, 0.125));
            return refused("is ambiguous: b is bits, sizes use bytes", format!("{bytes} for bytes, {bits} for bits"));
        }
    }
    let bytes = value * data.factor();
    if !(1.0..=1e15).contains(&bytes) || (bytes - bytes.round()).abs() > 1e-6 * bytes.max(1.0) {
        return refused("must be whole bytes, 1B-1000TB", example.into());
    }
    #[expect(clippy::cast_possible_truncation, clippy::cast_sign_loss, reason = "checked above")]
    Ok(bytes.round() as u64)
}

/// Parses a time: `10us`, `1.5ms`, `0s`.
///
/// # Errors
/// A number without a unit (`0` alone is accepted), more than a day, or anything else.
pub fn parse_time(text: &str) -> Result<Time, UnitError> {
    let example = "10us or 1.5ms";
    let (value, unit) = split(text, "time", example)?;
    let lower = unit.to_lowercase();
    let read = shown(text.trim());
    let refused = |why: &str, remedy: String| Err(UnitError::new(format!("{read} {why}"), remedy));
    let factor = match TIME_UNITS.iter().find(|(name, _)| *name == lower).map(|&(_, factor)| factor) {
        Some(factor) => factor,
        None if unit.is_empty() && value == 0.0 => 1.0,
        None if unit.is_empty() => {
            let value = plain(value);
            return refused("has no unit", format!("{value}us or {value}ms"));
        }
        None => return refused(&format!("has the unknown unit {}", shown(unit)), example.into()),
    };
    let seconds = value * factor;
    if seconds > MAX_SECONDS {
        return refused("must be at most a day", example.into());
    }
    Ok(Time::from_seconds(seconds))
}

#[cfg(test)]
mod tests {
    use proptest::prelude::*;

    use super::*;

    #[test]
    fn reads_what_people_type() {
        assert_eq!(parse_rate("25Gbps").unwrap(), Rate(25e9));
        assert_eq!(parse_rate("500 Mbit/s").unwrap(), Rate(500e6));
        assert_eq!(parse_size("100MB").unwrap(), 100_000_000);
        assert_eq!(parse_size("1.5KiB").unwrap(), 1536);
        assert_eq!(parse_time("10us").unwrap(), Time(10_000_000));
        assert_eq!(parse_time("1e-3ms").unwrap(), Time(1_000_000));
        assert_eq!(parse_time("0").unwrap(), Time::ZERO);
    }

    #[test]
    fn a_number_without_a_unit_names_the_remedy() {
        assert!(parse_rate("25").unwrap_err().remedy.contains("25Gbps"));
        assert!(parse_size("25").unwrap_err().remedy.contains("25MB"));
        assert!(parse_time("25").unwrap_err().remedy.contains("25us"));
    }

    #[test]
    fn a_size_is_not_a_rate() {
        let error = parse_rate("25GB").unwrap_err().remedy;
        assert!(error.contains("200Gbps"), "{error}");
        assert!(parse_rate("3GB/s").unwrap_err().remedy.contains("24Gbps"));
        assert!(parse_size("25Gbps").unwrap_err().reason.contains("size"));
    }

    /// The meaning of each spelling, in one table: bits per second, or the suggestion of the error.
    #[test]
    fn rates_as_people_spell_them() {
        for (text, rate) in [
            ("25Gbps", 25e9),
            ("25gbps", 25e9),
            ("25 gbps", 25e9),
            ("25Gb/s", 25e9),
            ("100 Mb/s", 100e6),
            ("25Gbit/s", 25e9),
            ("25gbit/s", 25e9),
            ("25GBIT/S", 25e9),
            ("25Gbits/s", 25e9),
            ("3.2Tbps", 3.2e12),
            ("9600bps", 9600.0),
        ] {
            assert_eq!(parse_rate(text), Ok(Rate(rate)), "{text}");
        }
        for (text, why, remedies) in [
            ("25GBps", "ambiguous: B is bytes", ["200Gbps", "25Gbps"]),
            ("3.2TBps", "ambiguous: B is bytes", ["25.6Tbps", "3.2Tbps"]),
            ("25GBPS", "ambiguous: B is bytes", ["200Gbps", "25Gbps"]),
            ("25gBps", "ambiguous: B is bytes", ["200Gbps", "25Gbps"]),
            ("25GB/s", "ambiguous: B is bytes", ["200Gbps", "25Gbps"]),
            ("25gb/s", "b is written for bits and for bytes", ["25Gbps", "200Gbps"]),
            ("25GB", "a size in bytes", ["200Gbps", "25Gbps"]),
            ("25Gb", "a number of bits", ["25Gbps", "25Gbps"]),
            ("25Gbit", "a number of bits", ["25Gbps", "25Gbps"]),
            ("1Gibit/s", "powers of 1024", ["1.073741824Gbps", "1.073741824Gbps"]),
            ("25G", "unknown unit 'G'", ["25Gbps", "500Mbps"]),
            ("25ibps", "unknown unit 'ibps'", ["25Gbps", "500Mbps"]),
        ] {
            let UnitError { reason, remedy } = parse_rate(text).unwrap_err();
            assert!(reason.starts_with(&format!("'{text}' ")) && reason.contains(why), "{reason}");
            assert!(remedies.iter().all(|it| remedy.contains(it)), "{reason}: {remedy}");
        }
    }

    #[test]
    fn sizes_as_people_spell_them() {
        for (text, bytes) in [
            ("25MB", 25_000_000),
            ("25 MB", 25_000_000),
            ("25mb", 25_000_000),
            ("25mB", 25_000_000),
            ("4kB", 4000),
            ("4KB", 4000),
            ("4kb", 4000),
            ("100 MiB", 104_857_600),
            ("100mib", 104_857_600),
            ("100MIB", 104_857_600),
            ("8B", 8),
            ("8b", 8),
        ] {
            assert_eq!(parse_size(text), Ok(bytes), "{text}");
        }
        for (text, why, remedies) in [
            ("25Mb", "ambiguous: b is bits", ["25MB", "3.125MB"]),
            ("4Kb", "ambiguous: b is bits", ["4kB", "0.5kB"]),
            ("8Mib", "ambiguous: b is bits", ["8MiB", "1MiB"]),
            ("25Mbit", "ambiguous: b is bits", ["25MB", "3.125MB"]),
            ("25MB/s", "a rate", ["100MB", "64KiB"]),
            ("25M", "unknown unit 'M'", ["100MB", "64KiB"]),
        ] {
            let UnitError { reason, remedy } = parse_size(text).unwrap_err();
            assert!(reason.starts_with(&format!("'{text}' ")) && reason.contains(why), "{reason}");
            assert!(remedies.iter().all(|it| remedy.contains(it)), "{reason}: {remedy}");
        }
    }

    /// The suggestions of an error can themselves be parsed, and mean what the error says.
    fn remedies(remedy: &str) -> Vec<String> {
        let words = remedy.split([' ', ',', ':']);
        words.filter(|word| word.starts_with(|c: char| c.is_ascii_digit())).map(str::to_owned).collect()
    }

    proptest! {
        #[test]
        fn a_refused_rate_is_told_a_rate_to_write(
            value in 1..100_000_u32, prefix in "[kKmMgGtT]i?", unit in "([bB]ps|[bB]/s|[bB]|[bB][iI][tT](/s)?)",
        ) {
            let text = format!("{value}{prefix}{unit}");
            match parse_rate(&text) {
                Ok(rate) => {
                    prop_assert!(!unit.starts_with('B') || unit.to_lowercase().starts_with("bit"), "{}", text);
                    prop_assert!(rate.0 >= f64::from(value) * 1e3);
                }
                Err(error) => {
                    let factor = DataUnit::read(&format!("{prefix}{unit}")).unwrap().factor();
                    let remedies = remedies(&error.remedy);
                    prop_assert!(!remedies.is_empty(), "{}", error);
                    for remedy in remedies {
                        let times = parse_rate(&remedy).unwrap().0 / (f64::from(value) * factor);
                        prop_assert!((times - 1.0).abs() < 1e-9 || (times - 8.0).abs() < 1e-9, "{}", error);
                    }
                }
            }
        }

        #[test]
        fn a_refused_size_is_told_a_size_to_write(value in 1..1000_u64, prefix in "[kKmMgG]i?", unit in "([bB]|[bB]it)") {
            let text = format!("{}{prefix}{unit}", value * 8);
            let factor = DataUnit::read(&format!("{prefix}{unit}")).unwrap().factor() as u64;
            match parse_size(&text) {
                Ok(bytes) => prop_assert_eq!(bytes, value * 8 * factor),
                Err(error) => {
                    let read: Vec<u64> = remedies(&error.remedy).iter().map(|remedy| parse_size(remedy).unwrap()).collect();
                    prop_assert_eq!(read, vec![value * 8 * factor, value * factor], "{}", error);
                }
            }
        }

        #[test]
        fn no_text_is_both_a_rate_and_a_size(text in "[0-9]{1,4} ?[kKmMgGtT]?i?[bB](ps|/s|it|it/s|its/s|ytes/s)?") {
            prop_assert!(parse_rate(&text).is_err() || parse_size(&text).is_err(), "{}", text);
        }

        #[test]
        fn any_text_is_read_or_refused_in_one_short_line(text in "\\PC{0,100}|[0-9.e+-]{0,30}[kKmMgGtTiIbBpPsS/\n ]{0,8}") {
            let errors = [parse_rate(&text).err(), parse_size(&text).err(), parse_time(&text).err()];
            for error in errors.into_iter().flatten() {
                prop_assert!(error.reason.chars().count() < 350 && !error.reason.chars().any(char::is_control), "{}", error);
            }
        }
    }

    #[test]
    fn nonsense_is_refused() {
        for text in ["", "Gbps", "-5Gbps", "nanGbps", "infGbps", "1e999Gbps", "0Gbps", "1..2Gbps", "５Gbps"] {
            assert!(parse_rate(text).is_err(), "{text}");
        }
        for text in ["0MB", "0.5B", "-1MB", "1e30TB"] {
            assert!(parse_size(text).is_err(), "{text}");
        }
        assert!(parse_time("2000min").is_err());
    }

    #[test]
    fn one_byte_at_25_gbit_is_320_ps() {
        assert_eq!(Rate(25e9).ps_per_byte(), 320.0);
    }
}
