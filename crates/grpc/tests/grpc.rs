//! The channel over gRPC, and those who call without being a rank, or are one and send invalid fragments.
mod calling;
#[path = "grpc/channels.rs"]
mod channels;
#[path = "grpc/hostile.rs"]
mod hostile;
#[path = "grpc/strangers.rs"]
mod strangers;
