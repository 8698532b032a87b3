//! Time, sizes and rates, each with its unit in the type, and the parser of what users type.
//!
//! Time is an integer number of picoseconds: at 25 Gbit/s a byte takes exactly 320 ps, so that sums of transmission
//! times are exact and a simulation gives the same bytes on every machine. 64 bits hold 213 days.
use std::fmt;
use std::ops::{Add, AddAssign, Sub};

use thiserror::Error;

/// A point in time or a duration, in picoseconds.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub struct Time(pub u64);

/// Picoseconds in a second.
pub const PS_PER_S: u64 = 1_000_000_000_000;

impl Time {
    /// The start of everything, and no duration.
    pub const ZERO: Time = Time(0);
    /// Later than anything that happens.
    pub const MAX: Time = Time(u64::MAX);

    /// Rounds to the nearest picosecond. `seconds` must be finite, not negative and below 213 days.
    ///
    /// # Panics
    /// If it is not; callers check what users gave.
    #[must_use]
    pub fn from_seconds(seconds: f64) -> Time {
        assert!(
            seconds.is_finite() && (0.0..=MAX_SECONDS).contains(&seconds),
            "a time must be in 0..={MAX_SECONDS} s, not {seconds}"
        );
        #[expect(clippy::cast_possible_truncation, clippy::cast_sign_loss, reason = "checked above")]
        Time((seconds * PS_PER_S as f64).round() as u64)
    }

    /// In seconds, as JSON and people want it.
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

/// The longest time a user may give: one day. Longer ones are mistakes of unit, and sums must stay below 213 days.
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

/// Why a quantity could not be read; the message is for the user and names the remedy.
#[derive(Debug, Error, PartialEq, Eq)]
#[error("{0}")]
pub struct UnitError(pub String);

const RATE_UNITS: &[(&str, f64)] = &[
    ("bps", 1.0),
    ("kbps", 1e3),
    ("mbps", 1e6),
    ("gbps", 1e9),
    ("tbps", 1e12),
    ("bit/s", 1.0),
    ("kbit/s", 1e3),
    ("mbit/s", 1e6),
    ("gbit/s", 1e9),
    ("tbit/s", 1e12),
];
const SIZE_UNITS: &[(&str, f64)] = &[
    ("b", 1.0),
    ("kb", 1e3),
    ("mb", 1e6),
    ("gb", 1e9),
    ("tb", 1e12),
    ("kib", 1024.0),
    ("mib", 1_048_576.0),
    ("gib", 1_073_741_824.0),
    ("tib", 1_099_511_627_776.0),
];
const TIME_UNITS: &[(&str, f64)] =
    &[("ps", 1e-12), ("ns", 1e-9), ("us", 1e-6), ("µs", 1e-6), ("ms", 1e-3), ("s", 1.0), ("min", 60.0)];

/// Splits "25Gbps" into 25.0 and "gbps"; sizes and rates are told apart by their last letters, case aside.
fn split(text: &str, what: &str, example: &str) -> Result<(f64, String), UnitError> {
    let text = text.trim();
    let digits = text.find(|c: char| !(c.is_ascii_digit() || c == '.' || c == '_')).unwrap_or(text.len());
    // An exponent ("1e-3ms") belongs to the number when digits follow it; "1eb" does not exist as a unit.
    let end = exponent_end(text, digits);
    let (number, unit) = text.split_at(end);
    let value: f64 = number
        .replace('_', "")
        .parse()
        .ok()
        .filter(|v: &f64| v.is_finite())
        .ok_or_else(|| UnitError(format!("'{text}' is not a {what}; write for example {example}")))?;
    Ok((value, unit.trim().to_lowercase()))
}

fn exponent_end(text: &str, digits: usize) -> usize {
    let rest = &text[digits..];
    let Some(after_e) = rest.strip_prefix(['e', 'E']) else { return digits };
    let sign = usize::from(after_e.starts_with(['+', '-']));
    let count = after_e[sign..].chars().take_while(char::is_ascii_digit).count();
    if digits > 0 && count > 0 { digits + 1 + sign + count } else { digits }
}

fn look_up(units: &[(&str, f64)], unit: &str) -> Option<f64> {
    units.iter().find(|(name, _)| *name == unit).map(|&(_, factor)| factor)
}

/// Reads a rate in bits per second: `25Gbps`, `500Mbit/s`. Units are SI: 25Gbps is 25e9 bit/s.
///
/// # Errors
/// A number without a unit, a size where a rate is meant (`25GB`), zero, or anything else.
pub fn parse_rate(text: &str) -> Result<Rate, UnitError> {
    let example = "25Gbps or 500Mbps";
    let (value, unit) = split(text, "rate", example)?;
    let Some(factor) = look_up(RATE_UNITS, &unit) else {
        let hint = if unit.is_empty() {
            format!("'{text}' has no unit; rates are bits per second: write {text}Gbps if that is meant")
        } else if unit.ends_with("b/s") || look_up(SIZE_UNITS, &unit).is_some() {
            let bits = value * 8.0;
            let prefix = unit
                .chars()
                .next()
                .filter(|c| "kmgt".contains(*c))
                .map_or(String::new(), |c| c.to_uppercase().to_string());
            format!(
                "'{text}' is a size in bytes, and a rate is meant; rates are bits per second: {text} each second is {bits}{prefix}bps"
            )
        } else {
            format!("'{text}' has the unknown unit '{unit}'; write a rate as {example}")
        };
        return Err(UnitError(hint));
    };
    let rate = value * factor;
    if !(1.0..=1e18).contains(&rate) {
        return Err(UnitError(format!("'{text}' is no usable rate; it must lie between 1bps and 1e6Tbps")));
    }
    Ok(Rate(rate))
}

/// Reads a size in bytes: `100MB` (SI), `64KiB` (IEC).
///
/// # Errors
/// A number without a unit, a rate where a size is meant, a fraction of a byte, or anything else.
pub fn parse_size(text: &str) -> Result<u64, UnitError> {
    let example = "100MB or 64KiB";
    let (value, unit) = split(text, "size", example)?;
    let Some(factor) = look_up(SIZE_UNITS, &unit) else {
        let hint = if unit.is_empty() {
            format!("'{text}' has no unit; sizes are bytes: write {text}B or {text}MB, as is meant")
        } else if look_up(RATE_UNITS, &unit).is_some() {
            format!("'{text}' is a rate, and a size in bytes is meant; write for example {example}")
        } else {
            format!("'{text}' has the unknown unit '{unit}'; write a size as {example}")
        };
        return Err(UnitError(hint));
    };
    let bytes = value * factor;
    if !(1.0..=1e15).contains(&bytes) || (bytes - bytes.round()).abs() > 1e-6 * bytes.max(1.0) {
        return Err(UnitError(format!("'{text}' is not a whole number of bytes between 1B and 1000TB")));
    }
    #[expect(clippy::cast_possible_truncation, clippy::cast_sign_loss, reason = "checked above")]
    Ok(bytes.round() as u64)
}

/// Reads a time: `10us`, `1.5ms`, `0s`.
///
/// # Errors
/// A number without a unit (`0` alone is accepted), more than a day, or anything else.
pub fn parse_time(text: &str) -> Result<Time, UnitError> {
    let example = "10us or 1.5ms";
    let (value, unit) = split(text, "time", example)?;
    let factor = match look_up(TIME_UNITS, &unit) {
        Some(factor) => factor,
        None if unit.is_empty() && value == 0.0 => 1.0,
        None if unit.is_empty() => {
            return Err(UnitError(format!("'{text}' has no unit; write {text}us or {text}ms, as is meant")));
        }
        None => return Err(UnitError(format!("'{text}' has the unknown unit '{unit}'; write a time as {example}"))),
    };
    let seconds = value * factor;
    if seconds > MAX_SECONDS {
        return Err(UnitError(format!("'{text}' is longer than a day; is the unit right?")));
    }
    Ok(Time::from_seconds(seconds))
}

#[cfg(test)]
mod tests {
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
        assert!(parse_rate("25").unwrap_err().0.contains("25Gbps"));
        assert!(parse_size("25").unwrap_err().0.contains("25MB"));
        assert!(parse_time("25").unwrap_err().0.contains("25us"));
    }

    #[test]
    fn a_size_is_not_a_rate() {
        let error = parse_rate("25GB").unwrap_err().0;
        assert!(error.contains("200Gbps"), "{error}");
        assert!(parse_rate("3GB/s").unwrap_err().0.contains("24Gbps"));
        assert!(parse_size("25Gbps").unwrap_err().0.contains("size"));
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
