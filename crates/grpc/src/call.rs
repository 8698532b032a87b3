//! The calling end of a call.
use std::error::Error;
use std::io;
use std::net::SocketAddr;

use std::sync::Arc;
use std::task::{Context, Poll};
use std::time::{Duration, Instant};

use hyper_util::rt::TokioIo;
use tokio::net::{TcpStream, UnixStream};
use tokio::sync::mpsc;
use tokio::time::{sleep, timeout, timeout_at};
use tokio_stream::wrappers::ReceiverStream;
use tonic::codegen::http::Uri;
use tonic::codegen::{BoxFuture, Service};
use tonic::metadata::MetadataMap;
use tonic::transport::{Channel, Endpoint};
use tonic::{Code, Request, Status, Streaming};

use super::generated::rank_client::RankClient;
use super::meeting::{Ended, Meeting, until};
use super::queues::PeerQueues;
use super::socket::{Descriptors, Socket};
use super::streams::{NOTES, Outgoing, pass, reason, receive};
use super::token::StreamKind;
use super::{CONNECTION_WINDOW, FRAME, FROM, HANDSHAKE, LONGEST_HEADERS, LONGEST_MESSAGE, PROOF, STREAM_WINDOW, TO};
use paceline_transport::error::RunError;

/// Delay between attempts.
const PAUSE: Duration = Duration::from_millis(200);

/// Connects to a fixed address, whatever the URI says.
#[derive(Clone)]
struct Dial {
    address: SocketAddr,
    queues: Option<Arc<PeerQueues>>,
    descriptors: Descriptors,
}

impl Service<Uri> for Dial {
    type Response = TokioIo<Socket>;
    type Error = io::Error;
    type Future = BoxFuture<Self::Response, io::Error>;

    fn poll_ready(&mut self, _: &mut Context<'_>) -> Poll<io::Result<()>> {
        Poll::Ready(Ok(()))
    }

    fn call(&mut self, _: Uri) -> Self::Future {
        let Dial { address, queues, descriptors } = self.clone();
        Box::pin(async move {
            let connected = timeout(HANDSHAKE, TcpStream::connect(address)).await;
            let stream = connected.map_err(|_| io::Error::from(io::ErrorKind::TimedOut))??;
            Socket::of_caller(stream, queues, &descriptors).map(TokioIo::new)
        })
    }
}

/// A connection to establish to a rank.
pub struct Wanted {
    pub peer: u32,
    pub control: UnixStream,
    pub queues: Option<Arc<PeerQueues>>,
}

enum Missed {
    /// A retry may succeed.
    Now(String),
    /// A retry cannot succeed.
    Ever(String),
}

/// Calls a rank until it answers or the deadline passes.
pub async fn call(meeting: Arc<Meeting>, wanted: Wanted, descriptors: Descriptors, deadline: Instant) {
    let Wanted { peer, control, queues } = wanted;
    loop {
        let reached = match timeout_at(until(deadline), reach(&meeting, peer, queues.as_ref(), &descriptors)).await {
            Ok(reached) => reached,
            // The thread that recorded the failure reports it.
            Err(_) => return,
        };
        match reached {
            Ok(reached) => return keep(&meeting, peer, control, queues, reached),
            Err(Missed::Ever(why)) => {
                let who = meeting.describe(peer);
                return meeting.failed(RunError::Failed(format!("rank {}: {who} {why}", meeting.rank)));
            }
            Err(Missed::Now(why)) => meeting.missed(peer, why),
        }
        sleep(PAUSE).await;
    }
}

/// The authenticated streams to a rank.
struct Reached {
    /// Keeps the connection open.
    client: RankClient<Channel>,
    to_send: mpsc::Sender<super::generated::Note>,
    notes: Streaming<super::generated::Note>,
    tensors: Option<Streaming<super::generated::Fragment>>,
}

async fn reach(
    meeting: &Meeting,
    peer: u32,
    queues: Option<&Arc<PeerQueues>>,
    descriptors: &Descriptors,
) -> Result<Reached, Missed> {
    let offer = &meeting.offers[peer as usize];
    let tls = offer.tls();
    let scheme = if tls.is_some() { "https" } else { "http" };
    let failed = |error: tonic::transport::Error| Missed::Now(deepest(&error));
    let mut endpoint = Endpoint::from_shared(format!("{scheme}://{}", offer.address)).map_err(failed)?;
    if let Some(tls) = tls {
        endpoint = endpoint.tls_config(tls).map_err(failed)?;
    }
    let endpoint = endpoint
        .initial_stream_window_size(STREAM_WINDOW)
        .initial_connection_window_size(CONNECTION_WINDOW)
        .max_frame_size(FRAME)
        .http2_max_header_list_size(LONGEST_HEADERS);
    let dial = Dial { address: offer.address, queues: queues.cloned(), descriptors: descriptors.clone() };
    let channel = endpoint.connect_with_connector(dial).await.map_err(failed)?;
    let mut client = RankClient::new(channel).max_decoding_message_size(LONGEST_MESSAGE);

    let (to_send, outgoing) = mpsc::channel(NOTES);
    let request = introduced(meeting, StreamKind::Control, peer, ReceiverStream::new(outgoing));
    let answer = client.control(request).await.map_err(refused)?;
    check(meeting, StreamKind::Control, peer, answer.metadata())?;
    let notes = answer.into_inner();
    let mut tensors = None;
    if let Some(queues) = queues {
        let request = introduced(meeting, StreamKind::Tensors, peer, Outgoing(queues.clone()));
        let answer = client.tensors(request).await.map_err(refused)?;
        check(meeting, StreamKind::Tensors, peer, answer.metadata())?;
        tensors = Some(answer.into_inner());
    }
    Ok(Reached { client, to_send, notes, tensors })
}

/// A call with the metadata that its host checks first.
fn introduced<T>(meeting: &Meeting, kind: StreamKind, peer: u32, stream: T) -> Request<T> {
    let mut request = Request::new(stream);
    let metadata = request.metadata_mut();
    metadata.insert(FROM, meeting.rank.into());
    metadata.insert(TO, peer.into());
    let contract = meeting.contract(kind, meeting.rank, peer);
    if let Some(token) = contract.and_then(|contract| contract.authorization().parse().ok()) {
        metadata.insert("authorization", token);
    }
    request
}

fn refused(status: Status) -> Missed {
    let why = reason(&status);
    match status.code() {
        Code::Unauthenticated => Missed::Ever(format!("refused the call: it was {why}")),
        Code::FailedPrecondition | Code::AlreadyExists | Code::Unimplemented => {
            Missed::Ever(format!("refused the call: {why}"))
        }
        _ => Missed::Now(why),
    }
}

fn check(meeting: &Meeting, kind: StreamKind, peer: u32, metadata: &MetadataMap) -> Result<(), Missed> {
    let contract = meeting.contract(kind, meeting.rank, peer);
    let proof = metadata.get(PROOF).map(tonic::metadata::MetadataValue::as_bytes);
    if contract.is_some_and(|contract| proof.is_some_and(|proof| contract.is_proof(proof))) {
        return Ok(());
    }
    Err(Missed::Now("the process that answers does not know the job's secret".into()))
}

fn keep(meeting: &Arc<Meeting>, peer: u32, control: UnixStream, queues: Option<Arc<PeerQueues>>, reached: Reached) {
    let Reached { client, to_send, notes, tensors } = reached;
    if let (Some(queues), Some(tensors)) = (queues, tensors) {
        let (ended, client) = (Ended::new(meeting, peer), client.clone());
        tokio::spawn(async move {
            receive(tensors, queues).await;
            drop((ended, client));
        });
        meeting.met(peer);
    }
    let (ended, gauge) = (Ended::new(meeting, peer), meeting.gauge.clone());
    tokio::spawn(async move {
        pass(control, to_send, notes, &gauge).await;
        drop((ended, client));
    });
    meeting.met(peer);
}

/// The root cause of an error: the outer ones only say that there was one.
fn deepest(error: &dyn Error) -> String {
    let mut error = error;
    while let Some(source) = error.source() {
        error = source;
    }
    error.to_string()
}
