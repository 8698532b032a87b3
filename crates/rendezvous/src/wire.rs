//! Handshake messages as bytes. Strangers can send anything here, so sizes are fixed, nothing is allocated, and every
//! sequence of bytes has a defined result.
//!
//! | from | bytes | message |
//! | --- | --- | --- |
//! | caller | 100 | [`Hello`]: magic, version, who calls whom and for what, nonce |
//! | host | 42 | [`Challenge`]: magic, version, nonce |
//! | caller | 32 | proof: a MAC over both |
//! | host | 33 | verdict, and a MAC over all three |
//!
//! The caller proves itself first, so a stranger that connects gets nothing against which to try secrets. Magic and
//! version stay in place in all future versions, so that each version can recognize the other. Numbers are big-endian.

const MAGIC: [u8; 8] = *b"PACELINE";
/// Version of the handshake, the frames and the use of the streams: ranks of different versions must not work together.
pub const VERSION: u16 = 1;
/// Fewest bytes for judging a caller; HTTP needs this many to be recognized.
const JUDGED_FROM: usize = 4;
/// Bytes of magic and version.
const PREFIX: usize = 10;
/// Bytes of a [`Hello`].
pub const HELLO: usize = 100;
/// Bytes of a [`Challenge`].
pub const CHALLENGE: usize = PREFIX + 32;
/// Bytes of a MAC.
pub const PROOF: usize = 32;
/// Bytes of a [`Verdict`] with its MAC.
pub const VERDICT: usize = 1 + PROOF;

/// Purpose of a connection.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum ConnectionKind {
    /// The exchange of blobs.
    Exchange,
    /// Control stream of a mesh.
    Control,
    /// Data stream of a mesh.
    Data,
}

/// The caller's first message. Nothing in it is trusted before the proof.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Hello {
    pub kind: ConnectionKind,
    /// Rank of the caller.
    pub from: u32,
    /// Rank of the host.
    pub to: u32,
    /// Index among several streams of this kind.
    pub index: u32,
    /// World size on the caller.
    pub world: u32,
    /// Data streams between the two, according to the caller.
    pub streams: u32,
    /// Increases with every call for the same stream: the host keeps the latest.
    pub attempt: u32,
    /// Id of the job; zero in an exchange, where it is not known yet.
    pub job: [u8; 16],
    /// Random per process: distinguishes a rank that calls again from a second process with the same rank.
    pub instance: [u8; 16],
    pub nonce: [u8; 32],
}

/// The host's answer to a hello.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Challenge {
    pub nonce: [u8; 32],
}

/// The host's verdict on a caller.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Verdict {
    /// Accepted.
    Welcome,
    /// The proof is wrong; not signed, because the caller is a stranger.
    Unproven,
    /// It knows the secret, but belongs to another run of the job.
    OtherJob,
    /// It has another world size.
    OtherWorld,
    /// It expects another number of data streams.
    OtherStreams,
    /// It called for another rank, or for a purpose that is not served here.
    WrongTarget,
}

/// A peer that is not a rank of this job, and how it was recognized.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Stranger {
    /// A web browser, a health check, a scanner, or a web server.
    Http,
    /// The start of TLS.
    Tls,
    /// Anything else.
    NotPaceline,
    /// Paceline with another version of the handshake.
    OtherVersion(u16),
    /// It sends Paceline's magic, but not a valid message.
    Malformed,
    /// It claims this rank, but does not have the job's secret.
    WrongSecret(u32),
}

impl Stranger {
    /// Whether it tries to be part of a job, so that the user should know.
    pub fn is_paceline(self) -> bool {
        matches!(self, Stranger::OtherVersion(_) | Stranger::Malformed | Stranger::WrongSecret(_))
    }

    /// An error message. `address` is the peer's address.
    pub fn describe(self, address: &str) -> String {
        match self {
            Stranger::Http => format!("{address} speaks HTTP, not paceline"),
            Stranger::Tls => format!("{address} speaks TLS, not paceline"),
            Stranger::NotPaceline => format!("{address} does not speak paceline"),
            Stranger::OtherVersion(version) => format!(
                "{address} runs a paceline of handshake version {version} and this rank one of version {VERSION}; \
                 install the same paceline for all ranks"
            ),
            Stranger::Malformed => format!("{address} sent a malformed handshake"),
            Stranger::WrongSecret(rank) => format!(
                "rank {rank} ({address}) does not know the job's secret; give all ranks the same PACELINE_SECRET"
            ),
        }
    }
}

/// Classifies a peer by its first bytes, as soon as there are enough. The result does not depend on how they are cut.
pub fn judge(bytes: &[u8]) -> Result<(), Stranger> {
    let Some(first) = bytes.first_chunk::<JUDGED_FROM>() else { return Ok(()) };
    match first {
        b"GET " | b"POST" | b"HEAD" | b"PUT " | b"DELE" | b"OPTI" | b"CONN" | b"PATC" | b"TRAC" | b"PRI " | b"HTTP" => {
            return Err(Stranger::Http);
        }
        [0x16, 0x03, ..] => return Err(Stranger::Tls),
        _ => {}
    }
    let common = bytes.len().min(MAGIC.len());
    if bytes[..common] != MAGIC[..common] {
        return Err(Stranger::NotPaceline);
    }
    match bytes.get(MAGIC.len()..PREFIX) {
        Some(version) if version != VERSION.to_be_bytes() => {
            Err(Stranger::OtherVersion(u16::from_be_bytes([version[0], version[1]])))
        }
        _ => Ok(()),
    }
}

impl Hello {
    /// Encodes it.
    pub fn to_bytes(&self) -> [u8; HELLO] {
        let mut writer = Writer { bytes: [0; HELLO], at: 0 };
        writer.put(&MAGIC);
        writer.put(&VERSION.to_be_bytes());
        writer.put(&[self.kind as u8, 0]);
        for number in [self.from, self.to, self.index, self.world, self.streams, self.attempt] {
            writer.put(&number.to_be_bytes());
        }
        writer.put(&self.job);
        writer.put(&self.instance);
        writer.put(&self.nonce);
        writer.bytes
    }

    /// Decodes it.
    pub fn from_bytes(bytes: &[u8; HELLO]) -> Result<Hello, Stranger> {
        judge(bytes)?;
        let kind = match (bytes[10], bytes[11]) {
            (0, 0) => ConnectionKind::Exchange,
            (1, 0) => ConnectionKind::Control,
            (2, 0) => ConnectionKind::Data,
            _ => return Err(Stranger::Malformed),
        };
        let number = |i: usize| u32::from_be_bytes(part(bytes, 12 + 4 * i));
        Ok(Hello {
            kind,
            from: number(0),
            to: number(1),
            index: number(2),
            world: number(3),
            streams: number(4),
            attempt: number(5),
            job: part(bytes, 36),
            instance: part(bytes, 52),
            nonce: part(bytes, 68),
        })
    }
}

impl Challenge {
    /// Encodes it.
    pub fn to_bytes(&self) -> [u8; CHALLENGE] {
        let mut writer = Writer { bytes: [0; CHALLENGE], at: 0 };
        writer.put(&MAGIC);
        writer.put(&VERSION.to_be_bytes());
        writer.put(&self.nonce);
        writer.bytes
    }

    /// Decodes it.
    pub fn from_bytes(bytes: &[u8; CHALLENGE]) -> Result<Challenge, Stranger> {
        judge(bytes)?;
        Ok(Challenge { nonce: part(bytes, PREFIX) })
    }
}

impl Verdict {
    /// Encodes it, without its MAC.
    pub fn to_byte(self) -> u8 {
        self as u8
    }

    /// Decodes it.
    pub fn from_byte(byte: u8) -> Result<Verdict, Stranger> {
        use Verdict::{OtherJob, OtherStreams, OtherWorld, Unproven, Welcome, WrongTarget};
        [Welcome, Unproven, OtherJob, OtherWorld, OtherStreams, WrongTarget]
            .into_iter()
            .find(|verdict| verdict.to_byte() == byte)
            .ok_or(Stranger::Malformed)
    }
}

struct Writer<const N: usize> {
    bytes: [u8; N],
    at: usize,
}

impl<const N: usize> Writer<N> {
    fn put(&mut self, part: &[u8]) {
        self.bytes[self.at..self.at + part.len()].copy_from_slice(part);
        self.at += part.len();
    }
}

/// `N` bytes at an offset that is within any message of this length by definition.
fn part<const N: usize>(bytes: &[u8], at: usize) -> [u8; N] {
    let mut out = [0; N];
    out.copy_from_slice(&bytes[at..at + N]);
    out
}

#[cfg(test)]
mod tests {
    use proptest::collection::vec;
    use proptest::prelude::*;

    use super::*;

    #[test]
    fn strangers_are_told_apart() {
        assert_eq!(judge(b"GET / HTTP/1.1\r\n"), Err(Stranger::Http));
        assert_eq!(judge(b"HTTP/1.1 400 Bad Request"), Err(Stranger::Http));
        assert_eq!(judge(&[0x16, 0x03, 0x01, 0x02]), Err(Stranger::Tls));
        assert_eq!(judge(b"SSH-2.0-OpenSSH"), Err(Stranger::NotPaceline));
        assert_eq!(judge(b"PACELINE\x00\x02"), Err(Stranger::OtherVersion(2)));
        assert_eq!(judge(b"PACELINE\x00\x01"), Ok(()));
    }

    proptest! {
        #[test]
        fn any_bytes_are_a_message_or_none(bytes in vec(any::<u8>(), HELLO), prefix in 0..=PREFIX) {
            let mut bytes: [u8; HELLO] = bytes.try_into().unwrap();
            bytes[..prefix].copy_from_slice(&b"PACELINE\x00\x01"[..prefix]);
            if let Ok(hello) = Hello::from_bytes(&bytes) {
                prop_assert_eq!(hello.to_bytes(), bytes);
            }
            let challenge: &[u8; CHALLENGE] = bytes.first_chunk().unwrap();
            if let Ok(read) = Challenge::from_bytes(challenge) {
                prop_assert_eq!(&read.to_bytes(), challenge);
            }
            if let Ok(verdict) = Verdict::from_byte(bytes[20]) {
                prop_assert_eq!(verdict.to_byte(), bytes[20]);
            }
        }

        #[test]
        fn once_judged_always_judged(mut bytes in vec(any::<u8>(), 0..40), prefix in 0..=PREFIX) {
            let prefix = prefix.min(bytes.len());
            bytes[..prefix].copy_from_slice(&b"PACELINE\x00\x01"[..prefix]);
            if let Some(first) = (0..bytes.len()).find_map(|n| judge(&bytes[..n]).err()) {
                prop_assert_eq!(judge(&bytes), Err(first));
            }
        }
    }
}
