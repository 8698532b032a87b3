//! Signatures of the handshake and of later messages: HMAC-SHA256 (RFC 2104). Codes are compared in constant time.
use hmac::{Hmac, Mac};
use sha2::Sha256;

use super::secret::Secret;
use super::wire::{CHALLENGE, HELLO, PROOF, Verdict};

type HmacSha256 = Hmac<Sha256>;

/// Labels separate the uses of the key: a proof of one side cannot be reflected to it or used as a key.
const CALLER: &[u8] = b"paceline: the caller knows the secret";
const HOST: &[u8] = b"paceline: the host knows the secret";
const SESSION: &[u8] = b"paceline: key of the frames";

const MULTICAST: &[u8] = b"paceline: key of the multicasts";
const GRPC: &[u8] = b"paceline: key of the tokens of gRPC";
const UCX: &[u8] = b"paceline: key of the tags of UCX";

/// The key of a job's multicasts, shared by all its ranks.
#[must_use]
pub fn multicast_key(secret: &Secret, job: &[u8; 16]) -> [u8; 32] {
    sign(secret.key(), &[MULTICAST, job])
}

/// The key of the tokens of a job's gRPC calls.
#[must_use]
pub fn grpc_key(secret: &Secret, job: &[u8; 16]) -> [u8; 32] {
    sign(secret.key(), &[GRPC, job])
}

/// The number in the tags of all UCX messages to this rank of a job.
#[must_use]
pub fn ucx_key(secret: &Secret, job: &[u8; 16], receiver: u32) -> u64 {
    let key = sign(secret.key(), &[UCX, job, &receiver.to_le_bytes()]);
    key.iter().take(8).fold(0, |number, &byte| number << 8 | u64::from(byte))
}

/// Both sides' first messages as sent. They contain the nonces, ranks, job, kind and index.
#[derive(Clone, Debug)]
pub struct Transcript([u8; HELLO + CHALLENGE]);

impl Transcript {
    pub fn new(hello: &[u8; HELLO], challenge: &[u8; CHALLENGE]) -> Transcript {
        let mut bytes = [0; HELLO + CHALLENGE];
        bytes[..HELLO].copy_from_slice(hello);
        bytes[HELLO..].copy_from_slice(challenge);
        Transcript(bytes)
    }

    /// The caller's proof.
    pub fn of_caller(&self, secret: &Secret) -> [u8; PROOF] {
        sign(secret.key(), &[CALLER, &self.0])
    }

    /// The host's proof, which also covers its verdict.
    pub fn of_host(&self, secret: &Secret, verdict: Verdict) -> [u8; PROOF] {
        sign(secret.key(), &[HOST, &[verdict.to_byte()], &self.0])
    }

    /// Whether this equals [`of_caller`](Self::of_caller).
    pub fn is_of_caller(&self, secret: &Secret, proof: &[u8]) -> bool {
        verify(secret.key(), &[CALLER, &self.0], proof)
    }

    /// Whether this equals [`of_host`](Self::of_host).
    pub fn is_of_host(&self, secret: &Secret, verdict: Verdict, proof: &[u8]) -> bool {
        verify(secret.key(), &[HOST, &[verdict.to_byte()], &self.0], proof)
    }

    /// The key of this connection, known to both sides.
    pub fn session(&self, secret: &Secret, end: End) -> Session {
        Session { key: sign(secret.key(), &[SESSION, &self.0]), end, sent: 0, received: 0 }
    }
}

/// An end of a connection.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum End {
    Caller = 0,
    Host = 1,
}

/// Signs the frames of one connection. Every MAC covers direction and number, so that frames cannot be repeated,
/// omitted or reflected.
pub struct Session {
    key: [u8; 32],
    end: End,
    sent: u64,
    received: u64,
}

impl Session {
    /// MAC of the next frame that we send.
    pub fn sign(&mut self, header: &[u8], payload: &[u8]) -> [u8; PROOF] {
        let number = self.sent.to_be_bytes();
        self.sent += 1;
        sign(&self.key, &[&[self.end as u8], &number, header, payload])
    }

    /// Whether this is the right MAC of the next frame that we receive.
    pub fn verify(&mut self, header: &[u8], payload: &[u8], mac: &[u8]) -> bool {
        let number = self.received.to_be_bytes();
        self.received += 1;
        let other = 1 - self.end as u8;
        verify(&self.key, &[&[other], &number, header, payload], mac)
    }
}

/// All parts but the last have fixed lengths under each key and label, so different lists of parts never give the same
/// bytes.
fn mac(key: &[u8; 32], parts: &[&[u8]]) -> HmacSha256 {
    let mut mac = HmacSha256::new_from_slice(key).expect("HMAC takes keys of any length");
    parts.iter().for_each(|part| mac.update(part));
    mac
}

fn sign(key: &[u8; 32], parts: &[&[u8]]) -> [u8; PROOF] {
    mac(key, parts).finalize().into_bytes().into()
}

fn verify(key: &[u8; 32], parts: &[&[u8]], tag: &[u8]) -> bool {
    mac(key, parts).verify_slice(tag).is_ok()
}
