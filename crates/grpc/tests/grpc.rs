//! The gRPC channel, callers that are not ranks, and ranks that send invalid fragments.
mod calling;
#[path = "grpc/channels.rs"]
mod channels;
#[path = "grpc/hostile.rs"]
mod hostile;
#[path = "grpc/strangers.rs"]
mod strangers;
