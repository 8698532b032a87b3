//! The sockets of calls. An accepted one belongs to a stranger until a call on it has shown the job's token; until
//! then, its bytes and its time are limited.
use std::io;
use std::net::SocketAddr;
use std::os::fd::{AsRawFd, RawFd};
use std::pin::Pin;
use std::sync::atomic::{AtomicBool, Ordering};
use std::sync::{Arc, OnceLock};
use std::task::{Context, Poll, Waker, ready};

use parking_lot::Mutex;
use tokio::io::{AsyncRead, AsyncWrite, ReadBuf};
use tokio::net::TcpStream;
use tokio::time::{Instant, Sleep, sleep_until};
use tonic::transport::server::Connected;

use super::HANDSHAKE;
use super::gauge::{Gauge, Meter};
use super::queues::PeerQueues;
use paceline_rendezvous::{keep_alive, plain};

/// Bytes that a stranger may send: the TLS and HTTP/2 handshakes and the headers of two calls take a few thousand.
const STRANGERS_BYTES: usize = 64 << 10;

/// Descriptors that a forked child must close.
#[derive(Clone, Default)]
pub struct Descriptors {
    open: Arc<Mutex<Vec<RawFd>>>,
    /// Bytes that move on them.
    pub gauge: Arc<Gauge>,
}

impl Descriptors {
    fn with<T>(&self, f: impl FnOnce(&mut Vec<RawFd>) -> T) -> T {
        f(&mut self.open.lock())
    }

    /// For a child after `fork`, where another thread may have held the lock at the time of the fork, so it stays
    /// locked forever. The lock is only held while a connection is made or ends.
    pub fn after_fork(&self) -> Vec<RawFd> {
        self.open.try_lock().map(|all| all.clone()).unwrap_or_default()
    }
}

/// State of an accepted connection.
#[derive(Clone)]
pub struct Visit {
    /// Address of the other end.
    pub address: SocketAddr,
    state: Arc<State>,
}

#[derive(Default)]
struct State {
    proven: AtomicBool,
    sent_away: AtomicBool,
    /// Waker of the task that reads the stranger's bytes.
    waker: Mutex<Option<Waker>>,
    /// Of the rank at the other end, once it is known.
    queues: OnceLock<Arc<PeerQueues>>,
}

impl Visit {
    /// A call has shown the job's token.
    pub fn prove(&self) {
        self.state.proven.store(true, Ordering::Relaxed);
    }

    /// It carries the tensors of a rank.
    pub fn carry(&self, queues: &Arc<PeerQueues>) {
        let _ = self.state.queues.set(queues.clone());
    }

    fn is_proven(&self) -> bool {
        self.state.proven.load(Ordering::Relaxed)
    }

    /// Another connection needs its place.
    pub fn send_away(&self) {
        self.state.sent_away.store(true, Ordering::Relaxed);
        if let Some(waker) = self.state.waker.lock().take() {
            waker.wake();
        }
    }

    /// Whether its place is free: it has been authenticated or closed.
    pub fn is_over(&self) -> bool {
        self.is_proven() || Arc::strong_count(&self.state) == 1
    }
}

/// A connection that has proved nothing yet, with the bytes that it may still send.
struct Stranger {
    visit: Visit,
    until: Pin<Box<Sleep>>,
    bytes: usize,
}

pub struct Socket {
    stream: TcpStream,
    stranger: Option<Stranger>,
    visit: Option<Visit>,
    /// Of the rank that is called.
    queues: Option<Arc<PeerQueues>>,
    descriptors: Descriptors,
}

impl Socket {
    /// Socket of an outgoing call.
    pub fn of_caller(
        stream: TcpStream,
        queues: Option<Arc<PeerQueues>>,
        descriptors: &Descriptors,
    ) -> io::Result<Socket> {
        let mut socket = Socket::new(stream, None, descriptors)?;
        socket.queues = queues;
        Ok(socket)
    }

    /// Socket of an incoming call.
    pub fn of_visitor(
        stream: TcpStream,
        address: SocketAddr,
        descriptors: &Descriptors,
    ) -> io::Result<(Socket, Visit)> {
        let visit = Visit { address: plain(address), state: Arc::default() };
        Ok((Socket::new(stream, Some(visit.clone()), descriptors)?, visit))
    }

    fn new(stream: TcpStream, visit: Option<Visit>, descriptors: &Descriptors) -> io::Result<Socket> {
        stream.set_nodelay(true)?;
        keep_alive(&stream)?;
        let stranger = visit.clone().map(|visit| Stranger {
            visit,
            until: Box::pin(sleep_until(Instant::now() + HANDSHAKE)),
            bytes: 0,
        });
        descriptors.with(|all| all.push(stream.as_raw_fd()));
        Ok(Socket { stream, stranger, visit, queues: None, descriptors: descriptors.clone() })
    }
}

impl Socket {
    fn count(&self, bytes: usize, count: impl Fn(&Meter, usize, &Gauge)) {
        let visited = || self.visit.as_ref().and_then(|visit| visit.state.queues.get());
        if let Some(queues) = self.queues.as_ref().or_else(visited) {
            count(&queues.meter, bytes, &self.descriptors.gauge);
        }
    }
}

impl Drop for Socket {
    fn drop(&mut self) {
        let own = self.stream.as_raw_fd();
        self.descriptors.with(|all| all.retain(|&fd| fd != own));
    }
}

impl Stranger {
    fn check(&mut self, cx: &mut Context<'_>) -> io::Result<()> {
        *self.visit.state.waker.lock() = Some(cx.waker().clone());
        let refused = |why| Err(io::Error::new(io::ErrorKind::PermissionDenied, why));
        if self.visit.state.sent_away.load(Ordering::Relaxed) {
            return refused("was closed in favor of another connection before it showed the job's token");
        }
        if self.until.as_mut().poll(cx).is_ready() {
            return refused("did not show the job's token in time");
        }
        if self.bytes > STRANGERS_BYTES {
            return refused("sent too much without showing the job's token");
        }
        Ok(())
    }
}

impl AsyncRead for Socket {
    fn poll_read(mut self: Pin<&mut Self>, cx: &mut Context<'_>, buf: &mut ReadBuf<'_>) -> Poll<io::Result<()>> {
        let Socket { stream, stranger, .. } = &mut *self;
        if stranger.as_ref().is_some_and(|stranger| stranger.visit.is_proven()) {
            *stranger = None;
        }
        if let Some(stranger) = stranger {
            stranger.check(cx)?;
        }
        let before = buf.filled().len();
        ready!(Pin::new(stream).poll_read(cx, buf))?;
        let bytes = buf.filled().len() - before;
        if let Some(stranger) = stranger {
            stranger.bytes += bytes;
        }
        self.count(bytes, Meter::receive);
        Poll::Ready(Ok(()))
    }
}

impl AsyncWrite for Socket {
    fn poll_write(mut self: Pin<&mut Self>, cx: &mut Context<'_>, buf: &[u8]) -> Poll<io::Result<usize>> {
        let written = ready!(Pin::new(&mut self.stream).poll_write(cx, buf))?;
        self.count(written, Meter::send);
        Poll::Ready(Ok(written))
    }

    fn poll_write_vectored(
        mut self: Pin<&mut Self>,
        cx: &mut Context<'_>,
        bufs: &[io::IoSlice<'_>],
    ) -> Poll<io::Result<usize>> {
        let written = ready!(Pin::new(&mut self.stream).poll_write_vectored(cx, bufs))?;
        self.count(written, Meter::send);
        Poll::Ready(Ok(written))
    }

    fn is_write_vectored(&self) -> bool {
        self.stream.is_write_vectored()
    }

    fn poll_flush(mut self: Pin<&mut Self>, cx: &mut Context<'_>) -> Poll<io::Result<()>> {
        Pin::new(&mut self.stream).poll_flush(cx)
    }

    fn poll_shutdown(mut self: Pin<&mut Self>, cx: &mut Context<'_>) -> Poll<io::Result<()>> {
        Pin::new(&mut self.stream).poll_shutdown(cx)
    }
}

impl Connected for Socket {
    type ConnectInfo = Option<Visit>;

    fn connect_info(&self) -> Option<Visit> {
        self.visit.clone()
    }
}
