//! Seconds, parsed from their digits. A 64-bit float holds every picosecond only up to a quarter of an hour; digits
//! hold them all, so that a written value is read back unchanged.
use super::{shown, with_remedy, with_value};
use crate::units::{MAX_SECONDS, PS_PER_S, Time};

/// Why digits are not a valid time.
#[derive(Debug, PartialEq, Eq)]
pub(crate) enum Wrong {
    NotANumber,
    Negative,
    TooLarge,
}

/// The picoseconds of a decimal number of seconds, rounded to the nearest. Anything below 1e18 s fits, so timestamps
/// since any epoch do.
pub(crate) fn picoseconds(text: &str) -> Result<u128, Wrong> {
    let (negative, number) = text.strip_prefix('-').map_or((false, text), |rest| (true, rest));
    let (mantissa, exponent) = match number.split_once(['e', 'E']) {
        Some((mantissa, exponent)) => (mantissa, parse_exponent(exponent)?),
        None => (number, 0),
    };
    let (whole, fraction) = mantissa.split_once('.').unwrap_or((mantissa, ""));
    let digits = [whole, fraction].concat();
    if digits.is_empty() || !digits.bytes().all(|digit| digit.is_ascii_digit()) {
        return Err(Wrong::NotANumber);
    }
    let digits = digits.trim_start_matches('0');
    if digits.is_empty() {
        return Ok(0);
    }
    if negative {
        return Err(Wrong::Negative);
    }
    // The value is `digits` * 10^shift picoseconds.
    let shift = exponent.saturating_add(12).saturating_sub_unsigned(fraction.len() as u64);
    let length = shift.saturating_add_unsigned(digits.len() as u64);
    if length > 30 {
        return Err(Wrong::TooLarge);
    }
    let Ok(length) = usize::try_from(length) else { return Ok(0) };
    let padded = format!("{digits:0<length$}");
    let (kept, cut) = padded.split_at(length);
    let value = if kept.is_empty() { 0 } else { kept.parse::<u128>().map_err(|_| Wrong::TooLarge)? };
    Ok(value + u128::from(cut.as_bytes().first().is_some_and(|&digit| digit >= b'5')))
}

/// Exponents beyond 64 bits are treated as the largest.
fn parse_exponent(text: &str) -> Result<i64, Wrong> {
    let (sign, digits) = match text.as_bytes().first() {
        Some(b'-') => (-1, &text[1..]),
        Some(b'+') => (1, &text[1..]),
        _ => (1, text),
    };
    if digits.is_empty() || !digits.bytes().all(|digit| digit.is_ascii_digit()) {
        return Err(Wrong::NotANumber);
    }
    Ok(sign * digits.parse::<i64>().unwrap_or(i64::MAX))
}

/// Seconds, at most a day; the error is a message for the user.
pub(crate) fn parse(text: &str) -> Result<Time, String> {
    match picoseconds(text) {
        Ok(ps) => match within_a_day(ps) {
            Some(time) => Ok(time),
            None => Err(too_long(text)),
        },
        Err(Wrong::TooLarge) => Err(too_long(text)),
        Err(Wrong::Negative) => Err(with_value(format!("{} is negative", shown(text)), "0.004")),
        Err(Wrong::NotANumber) => Err(with_value(format!("{} is not a number", shown(text)), "0.004")),
    }
}

fn too_long(text: &str) -> String {
    with_remedy(format!("must be at most a day, not {}", shown(text)), "times in seconds")
}

/// `None` if it is longer than a day.
pub(crate) fn within_a_day(ps: u128) -> Option<Time> {
    u64::try_from(ps).ok().map(Time).filter(|&time| time <= longest())
}

/// The longest time of a trace, and the longest forward pass.
pub(crate) fn longest() -> Time {
    Time::from_seconds(MAX_SECONDS)
}

/// The shortest decimal number of seconds that is exactly this time.
pub(crate) fn write(time: Time) -> String {
    let text = format!("{}.{:012}", time.0 / PS_PER_S, time.0 % PS_PER_S);
    let text = text.trim_end_matches('0');
    if text.ends_with('.') { format!("{text}0") } else { text.to_owned() }
}

#[cfg(test)]
mod tests {
    use proptest::prelude::*;

    use super::*;

    #[test]
    fn reads_every_way_to_write_a_number() {
        for (text, ps) in [
            ("0", 0),
            ("-0.0", 0),
            ("0.010", 10_000_000_000),
            ("1e-2", 10_000_000_000),
            ("25E-1", 2_500_000_000_000),
            ("0.0000000000014", 1),
            ("0.0000000000015", 2),
            ("4e-13", 0),
            ("5e-13", 1),
            ("1e-99999999999999999999", 0),
            ("0e99999999999999999999", 0),
            ("86400.000000000001", 86_400_000_000_000_001),
        ] {
            assert_eq!(picoseconds(text), Ok(ps), "{text}");
        }
    }

    #[test]
    fn says_why_it_is_no_time() {
        for text in ["", "-", ".", "e3", "1e", "1e+", "NaN", "inf", "0x10", "1_000", "1.2.3", "1 ", "１", "\"1\""] {
            assert_eq!(picoseconds(text), Err(Wrong::NotANumber), "{text}");
        }
        assert_eq!(picoseconds("-1e-30"), Err(Wrong::Negative));
        assert_eq!(picoseconds("1e999999999999999999999"), Err(Wrong::TooLarge));
        assert!(parse("86400").is_ok());
        assert!(parse("86400.000000000001").unwrap_err().contains("must be at most a day"));
        assert!(parse("1e30").unwrap_err().contains("must be at most a day"));
    }

    proptest! {
        #[test]
        fn what_is_written_is_what_is_read(ps in 0..=86_400 * PS_PER_S) {
            prop_assert_eq!(parse(&write(Time(ps))), Ok(Time(ps)));
        }

        #[test]
        fn agrees_with_floats(seconds in 0.0..1000.0_f64) {
            let exact = parse(&seconds.to_string()).unwrap();
            prop_assert!(exact.0.abs_diff(Time::from_seconds(seconds).0) <= 1);
        }
    }
}
