//! The gRPC thread, from the first call to a rank until the last stream has ended.
use std::net::TcpListener;
use std::os::unix::net::UnixStream;
use std::sync::{Arc, mpsc};
use std::thread::JoinHandle;
use std::time::{Duration, Instant};

use parking_lot::Mutex;
use tokio::sync::mpsc::{UnboundedReceiver, unbounded_channel};
use tokio::sync::{Semaphore, oneshot};
use tokio::time::sleep;
use tokio_stream::wrappers::ReceiverStream;
use tonic::transport::{Server, ServerTlsConfig};

use super::call::{Wanted, call};
use super::channel::GrpcChannel;
use super::generated::rank_server::RankServer;
use super::listener::{GrpcListener, Offer};
use super::meeting::{Event, Meeting, until};
use super::queues::PeerQueues;
use super::service::{Hosted, Places};
use super::socket::{Descriptors, Socket, Visit};
use super::{CONNECTION_WINDOW, FRAME, LONGEST_HEADERS, LONGEST_MESSAGE, STREAM_WINDOW};
use paceline_transport::error::{Result, RunError};
use paceline_transport::waiting::{Reports, START_TIMEOUT};

/// Most concurrent calls of a rank while connecting.
const CALLS: usize = 16;
/// Connections that have not shown a token yet. Beyond this, the oldest is closed.
const STRANGERS: usize = 64;
/// Even so, a connection is kept at least this long: a few round trips.
const KEPT: Duration = Duration::from_millis(150);
/// After the job, grace period for data in flight that does not move.
const LINGER: Duration = Duration::from_secs(5);
/// Calls per connection: two, and one more so that it can be refused with a message.
const STREAMS: u32 = 3;

/// How to connect to the other ranks.
pub struct ConnectOptions {
    /// This process's rank.
    pub rank: u32,
    /// Ranks that train; the servers and the switch that they call come after them.
    pub workers: u32,
    /// The address of each rank. For this rank, the listener's own is used.
    pub offers: Vec<Offer>,
    /// Key of the job's tokens ([`grpc_key`](paceline_rendezvous::grpc_key)).
    pub key: [u8; 32],
    /// Tensors also go over gRPC, not only control messages.
    pub tensors: bool,
    /// Deadline after which ranks that have not connected count as missing.
    pub deadline: Instant,
}

/// Connections to all ranks.
pub struct Connected {
    /// By rank; `None` for itself, or if tensors use another transport.
    pub channels: Vec<Option<GrpcChannel>>,
    /// By rank: the failure detector's socket to it. Messages are prefixed with their length, 32 bits, little-endian.
    pub controls: Vec<Option<UnixStream>>,
    /// The gRPC thread.
    pub thread: Thread,
}

/// The gRPC thread. It stops when all streams have ended, after channels and controls were dropped at either end.
pub struct Thread {
    closing: Option<oneshot::Sender<()>>,
    handle: Option<JoinHandle<()>>,
    descriptors: Descriptors,
}

impl Thread {
    /// Waits until everything sent has been received, for 5 s
    /// after something last moved. Drop channels and controls first.
    pub fn close(mut self) {
        if let Some(closing) = self.closing.take() {
            let _ = closing.send(());
        }
        if let Some(handle) = self.handle.take() {
            let _ = handle.join();
        }
    }

    /// Descriptors of connections, for a child after `fork`.
    #[must_use]
    pub fn descriptors(&self) -> Vec<i32> {
        self.descriptors.after_fork()
    }
}

fn system(what: &str) -> impl Fn(std::io::Error) -> RunError {
    move |e| RunError::Failed(format!("{what}: {e}"))
}

/// Connects this rank to all others, each of which does the same.
///
/// # Errors
/// Ranks that were not reached or did not call by the deadline, or that know another secret; the message names them.
pub fn connect(listener: GrpcListener, options: ConnectOptions) -> Result<Connected> {
    let (events, received) = unbounded_channel();
    let ConnectOptions { rank, workers, mut offers, key, tensors, deadline } = options;
    // This rank's own address, not the one that came back from the exchange: tokens must prove what this rank offers
    // even if the exchange was altered.
    offers[rank as usize] = listener.offer().clone();
    let descriptors = Descriptors::default();
    let meeting = Meeting::new(rank, workers, offers, key, events, descriptors.gauge.clone());
    let (mut places, mut wanted) = (Places::default(), Vec::new());
    let (mut channels, mut controls) = (Vec::new(), Vec::new());
    let runtime =
        tokio::runtime::Builder::new_current_thread().enable_all().build().map_err(system("cannot start gRPC"))?;
    for peer in 0..meeting.offers.len() as u32 {
        if peer == rank {
            channels.push(None);
            controls.push(None);
            continue;
        }
        let (ours, theirs) = UnixStream::pair().map_err(system("cannot create a socket"))?;
        theirs.set_nonblocking(true).map_err(system("cannot create a socket"))?;
        let control = {
            let _inside = runtime.enter();
            tokio::net::UnixStream::from_std(theirs).map_err(system("cannot create a socket"))?
        };
        let queues =
            if tensors { Some(Arc::new(PeerQueues::new().map_err(system("cannot create an eventfd"))?)) } else { None };
        channels.push(queues.clone().map(GrpcChannel::new));
        controls.push(Some(ours));
        if meeting.is_host(peer) {
            places.controls.insert(peer, control);
            places.queues.extend(queues.map(|queues| (peer, queues)));
        } else {
            wanted.push(Wanted { peer, control, queues });
        }
    }
    let (closing, asked_to_close) = oneshot::channel();
    let (tell, told) = mpsc::channel();
    let work = Work { meeting, received, descriptors: descriptors.clone(), deadline, streams: 1 + u32::from(tensors) };
    let body = move || runtime.block_on(work.run(listener, places, wanted, tell, asked_to_close));
    let handle = std::thread::Builder::new().name("paceline-grpc".into()).spawn(body);
    let handle = handle.map_err(system("cannot start a thread"))?;
    let thread = Thread { closing: Some(closing), handle: Some(handle), descriptors };
    match told.recv() {
        Ok(Ok(())) => Ok(Connected { channels, controls, thread }),
        Ok(Err(error)) => Err(error),
        Err(_) => Err(RunError::Failed("the gRPC thread ended before all ranks were connected".into())),
    }
}

struct Work {
    meeting: Arc<Meeting>,
    received: UnboundedReceiver<Event>,
    descriptors: Descriptors,
    deadline: Instant,
    /// The queues of each peer.
    streams: u32,
}

impl Work {
    async fn run(
        mut self,
        listener: GrpcListener,
        places: Places,
        wanted: Vec<Wanted>,
        tell: mpsc::Sender<Result<()>>,
        asked_to_close: oneshot::Receiver<()>,
    ) {
        let met = self.meet(listener, places, wanted).await;
        let failed = met.is_err();
        let _ = tell.send(met);
        if failed {
            return;
        }
        let open = (self.meeting.offers.len() as u32 - 1) * self.streams;
        let (received, gauge) = (&mut self.received, &self.descriptors.gauge);
        let over = async move {
            let mut open = open;
            while open > 0 {
                open -= u32::from(matches!(received.recv().await, Some(Event::Ended(_))));
            }
        };
        let asked_to_close = async {
            if asked_to_close.await.is_err() {
                std::future::pending::<()>().await;
            }
            // As long as something moves, it is waited for.
            let mut moved = None;
            while moved != Some(gauge.moved()) {
                moved = Some(gauge.moved());
                sleep(LINGER).await;
            }
        };
        tokio::select! {
            () = over => {}
            () = asked_to_close => {}
        }
    }

    /// Connects until all ranks have been met; then the listener is closed.
    async fn meet(&mut self, listener: GrpcListener, places: Places, wanted: Vec<Wanted>) -> Result<()> {
        let began = Instant::now();
        let hosts = !places.controls.is_empty();
        let hosted = Hosted { meeting: self.meeting.clone(), places: Arc::new(Mutex::new(places)) };
        let calls = Arc::new(Semaphore::new(CALLS));
        for wanted in wanted {
            let (meeting, descriptors, deadline) = (self.meeting.clone(), self.descriptors.clone(), self.deadline);
            let calls = calls.clone();
            tokio::spawn(async move {
                let _call = calls.acquire().await;
                call(meeting, wanted, descriptors, deadline).await;
            });
        }
        let GrpcListener { listener, tls, .. } = listener;
        let serving = async {
            if hosts {
                return serve(listener, tls, hosted, &self.descriptors).await;
            }
            drop(listener);
            std::future::pending().await
        };
        let mut missing = vec![self.streams; self.meeting.offers.len()];
        missing[self.meeting.rank as usize] = 0;
        let mut serving = std::pin::pin!(serving);
        let mut reports = Reports::new(began, self.deadline.saturating_duration_since(began), START_TIMEOUT);
        while missing.iter().any(|&streams| streams > 0) {
            let next = self.deadline.min(reports.next());
            tokio::select! {
                event = self.received.recv() => match event {
                    Some(Event::Met(peer)) => missing[peer as usize] -= 1,
                    Some(Event::Failed(error)) => return Err(error),
                    Some(Event::Ended(peer)) => {
                        let who = self.meeting.describe(peer);
                        let why = "left while the ranks connected to each other; its own message says why";
                        return Err(RunError::Failed(format!("{who} {why}")));
                    }
                    None => break,
                },
                failed = &mut serving => return failed,
                () = tokio::time::sleep_until(until(next)) => {
                    let (now, open) = (Instant::now(), (0..).zip(&missing).filter(|&(_, &streams)| streams > 0));
                    let open: Vec<u32> = open.map(|(peer, _)| peer).collect();
                    if now >= self.deadline {
                        return Err(RunError::Failed(self.meeting.late(&open, began.elapsed())));
                    }
                    reports.report(now, |waited| self.meeting.late(&open, waited));
                }
            }
        }
        Ok(())
    }
}

/// Serves callers; returns only on an error.
async fn serve(
    listener: TcpListener,
    tls: Option<ServerTlsConfig>,
    hosted: Hosted,
    descriptors: &Descriptors,
) -> Result<()> {
    let failed = |error: &dyn std::fmt::Display| RunError::Failed(format!("cannot serve gRPC: {error}"));
    let listener = tokio::net::TcpListener::from_std(listener).map_err(|error| failed(&error))?;
    let mut server = Server::builder()
        .initial_stream_window_size(STREAM_WINDOW)
        .initial_connection_window_size(CONNECTION_WINDOW)
        .max_frame_size(FRAME)
        .max_concurrent_streams(STREAMS)
        .http2_max_header_list_size(LONGEST_HEADERS);
    if let Some(tls) = tls {
        server = server.tls_config(tls).map_err(|error| failed(&error))?;
    }
    let service = RankServer::new(hosted).max_decoding_message_size(LONGEST_MESSAGE);
    let (visitors, incoming) = tokio::sync::mpsc::channel(1);
    let welcome = async {
        let mut strangers: Vec<(tokio::time::Instant, Visit)> = Vec::new();
        loop {
            let (stream, address) = match listener.accept().await {
                Ok(accepted) => accepted,
                Err(_) => {
                    // Possibly too many open files; connections still waiting are closed at their time limit.
                    sleep(Duration::from_millis(10)).await;
                    continue;
                }
            };
            strangers.retain(|(_, visit)| !visit.is_over());
            if strangers.len() >= STRANGERS {
                let (since, oldest) = strangers.remove(0);
                tokio::time::sleep_until(since + KEPT).await;
                oldest.send_away();
            }
            // A connection that was already reset cannot be set up; ignore it.
            let Ok((socket, visit)) = Socket::of_visitor(stream, address, descriptors) else { continue };
            strangers.push((tokio::time::Instant::now(), visit));
            if visitors.send(Ok::<_, std::io::Error>(socket)).await.is_err() {
                return;
            }
        }
    };
    tokio::select! {
        served = server.serve_with_incoming(service, ReceiverStream::new(incoming)) => {
            served.map_err(|error| failed(&error))
        }
        () = welcome => Err(failed(&"connections are no longer accepted")),
    }
}
