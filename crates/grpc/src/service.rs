//! The called end of a call: which callers are admitted, and which streams they get.
use std::collections::HashMap;
use std::sync::Arc;

use parking_lot::{Mutex, MutexGuard};
use tokio::net::UnixStream;
use tokio::sync::mpsc;
use tokio_stream::wrappers::ReceiverStream;
use tonic::metadata::MetadataValue;
use tonic::transport::server::TlsConnectInfo;
use tonic::{Request, Response, Status, Streaming};

use super::generated::rank_server::Rank;
use super::generated::{Fragment, Note};
use super::meeting::{Ended, Meeting};
use super::queues::PeerQueues;
use super::socket::Visit;
use super::streams::{Answers, NOTES, Outgoing, pass, receive};
use super::token::StreamKind;
use super::{FROM, PROOF, TO};

/// Streams handed out to callers, each once.
#[derive(Default)]
pub struct Places {
    pub queues: HashMap<u32, Arc<PeerQueues>>,
    pub controls: HashMap<u32, UnixStream>,
}

/// The gRPC service of this rank.
#[derive(Clone)]
pub struct Hosted {
    pub meeting: Arc<Meeting>,
    pub places: Arc<Mutex<Places>>,
}

impl Hosted {
    /// Authenticates the caller. Nothing of the stream has been read before.
    fn admit<T>(&self, request: &Request<T>, kind: StreamKind) -> Result<u32, Status> {
        let visit = visit_of(request);
        let refused = |status: Status| {
            if let Some(visit) = visit {
                self.meeting.log_stranger(visit.address.ip(), status.message());
            }
            Err(status)
        };
        let number = |name| request.metadata().get(name).and_then(|text| text.to_str().ok()?.parse::<u32>().ok());
        let (Some(from), Some(to)) = (number(FROM), number(TO)) else {
            return refused(Status::unauthenticated("a call without paceline-rank and paceline-to: not of a job"));
        };
        let shown = request.metadata().get("authorization").map(MetadataValue::as_bytes);
        let contract = self.meeting.contract(kind, from, self.meeting.rank);
        if !contract.is_some_and(|contract| shown.is_some_and(|shown| contract.is_authorized(shown))) {
            return refused(Status::unauthenticated(
                "a call without the token of this job: all ranks need the same PACELINE_SECRET",
            ));
        }
        if to != self.meeting.rank {
            return refused(Status::failed_precondition("a call to another rank"));
        }
        if let Some(visit) = visit {
            visit.prove();
        }
        Ok(from)
    }

    /// The answer to an admitted caller, with the host's proof.
    fn answer<T>(&self, kind: StreamKind, from: u32, stream: T) -> Result<Response<T>, Status> {
        let mut response = Response::new(stream);
        let contract = self.meeting.contract(kind, from, self.meeting.rank);
        let proof = contract.and_then(|contract| contract.proof().parse().ok());
        response.metadata_mut().insert(PROOF, proof.ok_or_else(|| Status::internal("no proof"))?);
        Ok(response)
    }

    fn places(&self) -> MutexGuard<'_, Places> {
        self.places.lock()
    }
}

/// The connection on which a call came.
fn visit_of<T>(request: &Request<T>) -> Option<&Visit> {
    match request.extensions().get::<Option<Visit>>() {
        Some(visit) => visit.as_ref(),
        None => request.extensions().get::<TlsConnectInfo<Option<Visit>>>().and_then(|tls| tls.get_ref().as_ref()),
    }
}

fn taken() -> Status {
    Status::already_exists("this rank has already called, or should be called instead: is WORLD_SIZE or RANK wrong?")
}

#[tonic::async_trait]
impl Rank for Hosted {
    type TensorsStream = Answers<Outgoing>;
    type ControlStream = Answers<ReceiverStream<Note>>;

    async fn tensors(&self, request: Request<Streaming<Fragment>>) -> Result<Response<Self::TensorsStream>, Status> {
        let from = self.admit(&request, StreamKind::Tensors)?;
        let queues = self.places().queues.remove(&from).ok_or_else(taken)?;
        visit_of(&request).into_iter().for_each(|visit| visit.carry(&queues));
        let answer = self.answer(StreamKind::Tensors, from, Answers(Outgoing(queues.clone())))?;
        let ended = Ended::new(&self.meeting, from);
        tokio::spawn(async move {
            receive(request.into_inner(), queues).await;
            drop(ended);
        });
        self.meeting.met(from);
        Ok(answer)
    }

    async fn control(&self, request: Request<Streaming<Note>>) -> Result<Response<Self::ControlStream>, Status> {
        let from = self.admit(&request, StreamKind::Control)?;
        let socket = self.places().controls.remove(&from).ok_or_else(taken)?;
        let (to_send, outgoing) = mpsc::channel(NOTES);
        let answer = self.answer(StreamKind::Control, from, Answers(ReceiverStream::new(outgoing)))?;
        let (ended, gauge) = (Ended::new(&self.meeting, from), self.meeting.gauge.clone());
        tokio::spawn(async move {
            pass(socket, to_send, request.into_inner(), &gauge).await;
            drop(ended);
        });
        self.meeting.met(from);
        Ok(answer)
    }
}
