//! Waiting for sockets.
use paceline_os::event::{PollFd, Timespec, poll};
use paceline_os::fd::AsFd;
use paceline_os::io::Errno;
use paceline_os::net::{SockRef, TcpKeepalive, TcpStream};
use paceline_os::time::{Duration, Instant};
use paceline_transport::error::{Result, RunError};

/// A rank that left may come back within this time, for example after a broken connection.
pub const MAY_RETURN: Duration = Duration::from_secs(5);

/// Sleeps until one of these is ready, the time has come, or a signal arrives.
pub fn wait(fds: &mut [PollFd<'_>], until: Instant) -> Result<()> {
    let left = until.saturating_duration_since(Instant::now());
    // At most a day at a time: callers loop.
    let left = left.min(Duration::from_secs(86_400));
    let seconds = i64::try_from(left.as_secs()).unwrap_or(i64::MAX);
    let timeout = Timespec { tv_sec: seconds, tv_nsec: left.subsec_nanos().into() };
    match poll(fds, Some(&timeout)) {
        Ok(_) | Err(Errno::INTR) => Ok(()),
        Err(error) => Err(RunError::Failed(format!("cannot wait for connections: {error}"))),
    }
}

/// Options of all connections: small messages are sent at once, and nothing blocks.
pub fn prepare(stream: &TcpStream) -> std::io::Result<()> {
    stream.set_nodelay(true)?;
    stream.set_nonblocking(true)
}

/// Silence of the other host after which a connection ends. The kernel of a process that is stopped or busy goes on
/// answering.
const GONE: Duration = Duration::from_secs(60);

/// For connections that may be silent for long: a host that vanished is noticed within a minute. Without traffic, after
/// 30 s of silence and three unanswered probes; probes are not sent while data is unacknowledged, which is otherwise
/// retransmitted for a quarter of an hour.
pub fn keep_alive(stream: &impl AsFd) -> std::io::Result<()> {
    let times = TcpKeepalive::new().with_time(Duration::from_secs(30)).with_interval(Duration::from_secs(10));
    let socket = SockRef::from(stream);
    socket.set_tcp_user_timeout(Some(GONE))?;
    socket.set_tcp_keepalive(&times.with_retries(3))
}
