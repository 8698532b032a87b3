//! Single values, each checked where it is read, so that the error names its place.
use std::ops::RangeInclusive;
use std::path::Path;

use serde::de::{Deserialize, Deserializer, Error};
use serde_json::value::RawValue;

use super::error::is_unprintable;
use super::{seconds, shown, with_remedy, with_value};
use crate::units::{Rate, Time, UnitError, parse_rate, parse_size, parse_time};

/// Most bytes of a tensor, and of all tensors together: a petabyte. Sums over thousands of workers still fit in 64
/// bits.
pub(crate) const MAX_TENSOR_BYTES: u64 = 1_000_000_000_000_000;

/// More dimensions than any framework has.
pub(crate) const MAX_DIMENSIONS: usize = 64;

/// Most by which workers' backward passes differ.
pub(crate) const MAX_SPREAD: f64 = 10.0;

/// A non-empty name that is safe to show on a terminal; the error is a message for the user.
pub(crate) fn check_name(name: String) -> Result<String, String> {
    if name.is_empty() {
        return Err(with_value("is empty", "\"a name\""));
    }
    check_text(name)
}

/// Text that is safe to show on a terminal; the error is a message for the user.
pub(crate) fn check_text(text: String) -> Result<String, String> {
    match text.chars().find(|&c| is_unprintable(c)) {
        Some(c) => {
            let message = format!("has the control character U+{:04X}, which corrupts terminals", u32::from(c));
            Err(with_remedy(message, "the text without it"))
        }
        None => Ok(text),
    }
}

/// The name of a document without one: its file's, if that is safe to show.
pub(crate) fn name_of_file(source: &str) -> Option<String> {
    let stem = Path::new(source).file_stem()?.to_string_lossy().into_owned();
    check_name(stem).ok()
}

/// For `deserialize_with`: a non-empty name.
pub(crate) fn name<'de, D: Deserializer<'de>>(deserializer: D) -> Result<String, D::Error> {
    check_name(String::deserialize(deserializer)?).map_err(D::Error::custom)
}

/// For `deserialize_with` of an optional field: a non-empty name.
pub(crate) fn optional_name<'de, D: Deserializer<'de>>(deserializer: D) -> Result<Option<String>, D::Error> {
    name(deserializer).map(Some)
}

/// For `deserialize_with`: text that may be empty.
pub(crate) fn text<'de, D: Deserializer<'de>>(deserializer: D) -> Result<String, D::Error> {
    check_text(String::deserialize(deserializer)?).map_err(D::Error::custom)
}

/// For `deserialize_with`: seconds, at most a day.
pub(crate) fn time<'de, D: Deserializer<'de>>(deserializer: D) -> Result<Time, D::Error> {
    seconds::parse(<&RawValue>::deserialize(deserializer)?.get()).map_err(D::Error::custom)
}

/// For `deserialize_with` of an optional field: seconds, at most a day.
pub(crate) fn optional_time<'de, D: Deserializer<'de>>(deserializer: D) -> Result<Option<Time>, D::Error> {
    time(deserializer).map(Some)
}

/// For `deserialize_with`: the bytes of a tensor.
pub(crate) fn tensor_bytes<'de, D: Deserializer<'de>>(deserializer: D) -> Result<u64, D::Error> {
    match u64::deserialize(deserializer)? {
        0 => Err(D::Error::custom(with_value("must be at least one element, not 0", 4))),
        bytes => plausible_bytes(bytes, "bytes"),
    }
}

/// Refuses more bytes than anything has. `what`: what they should be.
pub(crate) fn plausible_bytes<E: Error>(bytes: u64, what: &str) -> Result<u64, E> {
    if bytes > MAX_TENSOR_BYTES {
        let message = format!("must be at most 1e15 (a petabyte), not {bytes}");
        return Err(E::custom(with_remedy(message, format!("the number in {what}"))));
    }
    Ok(bytes)
}

/// An integer within a range.
pub(crate) fn whole<'de, D: Deserializer<'de>>(deserializer: D, range: RangeInclusive<u32>) -> Result<u32, D::Error> {
    let number = u64::deserialize(deserializer)?;
    u32::try_from(number).ok().filter(|number| range.contains(number)).ok_or_else(|| {
        let message = format!("must be {}-{}, not {number}", range.start(), range.end());
        D::Error::custom(with_value(
            message,
            if number < u64::from(*range.start()) { range.start() } else { range.end() },
        ))
    })
}

/// A number within a range. Read from its digits, because serde_json's floats may be off by the last bit.
pub(crate) fn number<'de, D: Deserializer<'de>>(deserializer: D, range: RangeInclusive<f64>) -> Result<f64, D::Error> {
    let text = <&RawValue>::deserialize(deserializer)?.get();
    let Ok(number) = text.parse::<f64>() else {
        return Err(D::Error::custom(with_value(format!("{} is not a number", shown(text)), range.start())));
    };
    if !range.contains(&number) {
        let message = format!("must be {}-{}, not {}", range.start(), range.end(), shown(text));
        let nearest = if number < *range.start() { range.start() } else { range.end() };
        return Err(D::Error::custom(with_value(message, nearest)));
    }
    // -0 is in the range, but would be written back with its sign.
    Ok(number + 0.0)
}

/// The result of `parse` for a string such as "25Gbps".
fn quantity<'de, D: Deserializer<'de>, T>(
    deserializer: D,
    parse: fn(&str) -> Result<T, UnitError>,
) -> Result<T, D::Error> {
    parse(&String::deserialize(deserializer)?).map_err(|error| D::Error::custom(with_remedy(&error, &error.remedy)))
}

/// For `deserialize_with`: a rate such as "25Gbps".
pub(crate) fn rate<'de, D: Deserializer<'de>>(deserializer: D) -> Result<Rate, D::Error> {
    quantity(deserializer, parse_rate)
}

/// For `deserialize_with` of an optional field: a rate such as "25Gbps".
pub(crate) fn optional_rate<'de, D: Deserializer<'de>>(deserializer: D) -> Result<Option<Rate>, D::Error> {
    rate(deserializer).map(Some)
}

/// For `deserialize_with` of an optional field: a size such as "10MB".
pub(crate) fn optional_size<'de, D: Deserializer<'de>>(deserializer: D) -> Result<Option<u64>, D::Error> {
    quantity(deserializer, parse_size).map(Some)
}

/// For `deserialize_with` of an optional field: the delay of a message, such as "10us".
pub(crate) fn optional_delay<'de, D: Deserializer<'de>>(deserializer: D) -> Result<Option<Time>, D::Error> {
    check_delay(quantity(deserializer, parse_time)?).map(Some).map_err(D::Error::custom)
}

/// The delay of a message. No network takes a minute: longer ones are mistakes in the unit.
pub(crate) fn check_delay(delay: Time) -> Result<Time, String> {
    const LONGEST: Time = Time(60 * crate::units::PS_PER_S);
    if delay > LONGEST {
        return Err(with_value(format!("must be at most a minute, not {delay}"), "\"10us\""));
    }
    Ok(delay)
}
