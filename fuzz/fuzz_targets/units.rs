//! Any text as a rate, a size and a time: an error of one line, or a quantity within its limits that is read back
//! as it was written.
#![no_main]
use libfuzzer_sys::fuzz_target;
use paceline_model::units::{MAX_SECONDS, UnitError, parse_rate, parse_size, parse_time};

fn one_line(error: &UnitError) {
    let error = error.to_string();
    assert!(error.chars().count() < 350 && !error.chars().any(char::is_control), "{error:?}");
}

fuzz_target!(|text: &str| {
    match parse_rate(text) {
        Ok(rate) => {
            assert!((1.0..=1e18).contains(&rate.0));
            assert_eq!(parse_rate(&format!("{}bps", rate.0)), Ok(rate));
            assert!(parse_size(text).is_err(), "both a rate and a size: {text:?}");
        }
        Err(error) => one_line(&error),
    }
    match parse_size(text) {
        Ok(bytes) => {
            assert!((1..=1_000_000_000_000_000).contains(&bytes));
            assert_eq!(parse_size(&format!("{bytes}B")), Ok(bytes));
        }
        Err(error) => one_line(&error),
    }
    match parse_time(text) {
        Ok(time) => assert!(time.seconds() <= MAX_SECONDS),
        Err(error) => one_line(&error),
    }
});
