//! Any bytes from a stranger, at every place where one can send some: the run ends without a panic and without a proof.
//! A good start in corpus/handshake is `PACELINE\x00\x01` and 90 zeros.
#![no_main]
use libfuzzer_sys::fuzz_target;

fuzz_target!(|data: &[u8]| paceline_rendezvous::fuzz::feed(data));
