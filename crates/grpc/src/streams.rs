//! Moves data through a call in both directions: fragments between its stream and a [`PeerQueues`], control messages
//! between its stream and the failure detector's socket.
use std::future::poll_fn;
use std::io;
use std::pin::Pin;
use std::sync::Arc;
use std::task::{Context, Poll};

use tokio::io::{AsyncReadExt, AsyncWriteExt};
use tokio::net::UnixStream;
use tokio::net::unix::OwnedReadHalf;
use tokio::sync::mpsc::Sender;
use tokio_stream::Stream;
use tonic::{Status, Streaming};

use super::fragment::fragment;
use super::gauge::Gauge;
use super::generated::{Fragment, Note};
use super::queues::PeerQueues;
use paceline_transport::channel::LONGEST_CONTROL_MESSAGE;

/// Control messages that may wait for HTTP/2.
pub const NOTES: usize = 4;

/// The end of a connection, in the same words as the other transports.
const CLOSED: &str = "the connection was closed";

/// Outgoing fragments of the calling end.
pub struct Outgoing(pub Arc<PeerQueues>);

impl Stream for Outgoing {
    type Item = Fragment;

    fn poll_next(self: Pin<&mut Self>, cx: &mut Context<'_>) -> Poll<Option<Fragment>> {
        self.0.poll_outbox(cx.waker())
    }
}

/// Outgoing fragments of the called end; never an error.
pub struct Answers<T>(pub T);

impl<T: Stream + Unpin> Stream for Answers<T> {
    type Item = Result<T::Item, Status>;

    fn poll_next(mut self: Pin<&mut Self>, cx: &mut Context<'_>) -> Poll<Option<Self::Item>> {
        Pin::new(&mut self.0).poll_next(cx).map(|item| item.map(Ok))
    }
}

/// Receives fragments until the other end stops or sends an invalid one. While the executor takes none, nothing is
/// read, HTTP/2 grants no window, and the sender waits.
pub async fn receive(mut incoming: Streaming<Fragment>, queues: Arc<PeerQueues>) {
    let why = loop {
        poll_fn(|cx| queues.poll_room(cx.waker())).await;
        match incoming.message().await {
            Ok(Some(message)) => match fragment(message) {
                Ok((header, payload)) => queues.arrive(header, payload),
                Err(what) => break format!("the peer sent {what}"),
            },
            Ok(None) => break CLOSED.to_owned(),
            Err(status) => break reason(&status),
        }
    };
    queues.end(why);
}

/// Why a stream ended, as a message.
pub fn reason(status: &Status) -> String {
    let mut cause: Option<&dyn std::error::Error> = std::error::Error::source(status);
    while let Some(error) = cause {
        if let Some(error) = error.downcast_ref::<io::Error>() {
            return match error.kind() {
                io::ErrorKind::UnexpectedEof | io::ErrorKind::BrokenPipe => CLOSED.to_owned(),
                _ => error.to_string(),
            };
        }
        cause = error.source();
    }
    match status.message() {
        "" => status.code().to_string(),
        message => message.to_owned(),
    }
}

/// Forwards messages in both directions until the peer ends its stream: between it and the other end of `socket`.
pub async fn pass(socket: UnixStream, to_send: Sender<Note>, mut incoming: Streaming<Note>, gauge: &Gauge) {
    let (mut reader, mut writer) = socket.into_split();
    let outgoing = async move {
        while let Some(note) = next_note(&mut reader).await {
            gauge.control(note.json.len());
            if to_send.send(note).await.is_err() {
                break;
            }
        }
        // The peer sees the end of the stream and ends its own.
        drop(to_send);
        std::future::pending::<()>().await;
    };
    let arriving = async move {
        let mut open = true;
        while let Ok(Some(note)) = incoming.message().await {
            gauge.control(note.json.len());
            // A peer that no longer listens may still be sending, so the stream is read to its end.
            let length = (note.json.len() as u32).to_le_bytes();
            open &= note.json.len() <= LONGEST_CONTROL_MESSAGE;
            open = open && writer.write_all(&length).await.is_ok() && writer.write_all(&note.json).await.is_ok();
        }
        // The failure detector sees the end and closes its side.
        let _ = writer.shutdown().await;
    };
    tokio::select! {
        () = outgoing => {}
        () = arriving => {}
    }
}

/// The failure detector's next message; `None` if it has closed its side.
async fn next_note(reader: &mut OwnedReadHalf) -> Option<Note> {
    let length = reader.read_u32_le().await.ok()? as usize;
    if length > LONGEST_CONTROL_MESSAGE {
        return None;
    }
    let mut json = vec![0; length];
    reader.read_exact(&mut json).await.ok()?;
    Some(Note { json })
}
