//! Any bytes as a message of a peer over gRPC: no fragment, or one that is the same when it is sent on.
#![no_main]
use libfuzzer_sys::fuzz_target;

fuzz_target!(|data: &[u8]| paceline_grpc::feed(data));
