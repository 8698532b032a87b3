//! Any bytes as a datagram of a multicast: the run ends without a panic and without a valid signature.
#![no_main]
use libfuzzer_sys::fuzz_target;

fuzz_target!(|data: &[u8]| paceline_transport::multicast::feed(data));
