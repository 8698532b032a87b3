//! The datagram format: sender, number in the stream, a fragment with its header, and a code that only ranks of the job
//! can compute: HMAC-SHA256 (RFC 2104), truncated to 16 bytes.
//!
//! Any machine on the network can send a datagram. Everything is checked before it is used, and nothing is allocated
//! for it.
use hmac::{Hmac, Mac};
use sha2::Sha256;

use crate::header::{FragmentHeader, HEADER_BYTES};

const MAGIC: [u8; 4] = *b"PLM\x01";
/// Magic (4), session (8), sender (2), flags (2), number (8).
const HEAD: usize = 24;
const CODE: usize = 16;
/// Offset of the payload.
pub(super) const BODY: usize = HEAD + HEADER_BYTES;
/// Bytes of a datagram besides its payload.
pub const OVERHEAD: usize = BODY + CODE;
/// Flag: the datagram ends the message.
const LAST: u16 = 1;

/// The key with which the ranks of a job sign and recognize their datagrams.
pub struct Key {
    session: [u8; 8],
    mac: Hmac<Sha256>,
}

/// The fields before the payload.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Head {
    /// Rank of the sender.
    pub sender: u32,
    /// Number of the datagram in the sender's stream for the header's group.
    pub number: u64,
    /// The datagram ends the message.
    pub last: bool,
    /// Header of the fragment.
    pub header: FragmentHeader,
}

impl Key {
    /// The key of this job.
    #[must_use]
    pub fn new(key: &[u8; 32]) -> Key {
        let mac: Hmac<Sha256> = Mac::new_from_slice(key).expect("HMAC takes keys of any length");
        let name = mac.clone().chain_update(b"session").finalize().into_bytes();
        let mut session = [0; 8];
        session.copy_from_slice(&name[..8]);
        Key { session, mac }
    }

    /// Writes a datagram into `out`, which has room for the payload and [`OVERHEAD`]. Returns its length.
    pub fn write(&self, head: &Head, payload: &[u8], out: &mut [u8]) -> usize {
        out[..4].copy_from_slice(&MAGIC);
        out[4..12].copy_from_slice(&self.session);
        out[12..14].copy_from_slice(&(head.sender as u16).to_le_bytes());
        out[14..16].copy_from_slice(&if head.last { LAST } else { 0 }.to_le_bytes());
        out[16..24].copy_from_slice(&head.number.to_le_bytes());
        out[HEAD..BODY].copy_from_slice(&head.header.encode());
        let end = BODY + payload.len();
        out[BODY..end].copy_from_slice(payload);
        let code = self.mac.clone().chain_update(&out[..end]).finalize().into_bytes();
        out[end..end + CODE].copy_from_slice(&code[..CODE]);
        end + CODE
    }

    /// Parses the head of a datagram of this job; `None` if malformed. Check [`Key::signed`] before using it.
    #[must_use]
    pub fn read(&self, bytes: &[u8]) -> Option<Head> {
        let fixed = bytes.first_chunk::<BODY>()?;
        if fixed[..4] != MAGIC || fixed[4..12] != self.session {
            return None;
        }
        let header = FragmentHeader::decode(fixed[HEAD..].first_chunk()?)?;
        let flags = u16::from_le_bytes([fixed[14], fixed[15]]);
        if flags > LAST || bytes.len() - BODY != (header.bytes as usize).checked_add(CODE)? {
            return None;
        }
        let sender = u16::from_le_bytes([fixed[12], fixed[13]]).into();
        let number = u64::from_le_bytes(*fixed[16..24].first_chunk()?);
        Some(Head { sender, number, last: flags == LAST, header })
    }

    /// Whether a rank of the job wrote it.
    #[must_use]
    pub fn signed(&self, bytes: &[u8]) -> bool {
        let Some((signed, code)) = bytes.split_last_chunk::<CODE>() else { return false };
        self.mac.clone().chain_update(signed).verify_truncated_left(code).is_ok()
    }
}

/// The payload of a datagram that [`Key::read`] has read.
pub(super) fn payload(datagram: &[u8]) -> &[u8] {
    &datagram[BODY..datagram.len() - CODE]
}

/// Whether this datagram, written by us, ends a message.
pub(super) fn is_last(datagram: &[u8]) -> bool {
    datagram[14] & LAST as u8 != 0
}

/// Entry point of the fuzzer: its bytes must not count as signed.
///
/// # Panics
/// If they do.
#[doc(hidden)]
pub fn feed(bytes: &[u8]) {
    let key = Key::new(&[7; 32]);
    let mut framed = bytes.to_vec();
    if framed.len() >= BODY + CODE {
        // The farthest that an eavesdropper gets.
        framed[..4].copy_from_slice(&MAGIC);
        framed[4..12].copy_from_slice(&key.session);
        let length = (framed.len() - OVERHEAD) as u32;
        framed[HEAD + 12..HEAD + 16].copy_from_slice(&length.to_le_bytes());
    }
    for datagram in [bytes, &framed] {
        if let Some(head) = key.read(datagram) {
            assert_eq!(head.header.bytes as usize + OVERHEAD, datagram.len());
        }
        assert!(!key.signed(datagram), "a datagram signed without the key");
    }
}

#[cfg(test)]
mod tests {
    use proptest::collection::vec;
    use proptest::prelude::*;

    use super::*;
    use crate::header::{Collective, Signature};
    use paceline_kernels::dtype::{Dtype, ReduceOp};

    fn head(number: u64, bytes: usize) -> Head {
        let signature = Signature {
            collective: Collective::AllReduce,
            dtype: Dtype::Float32,
            op: ReduceOp::Sum,
            root: 0,
            count: 9,
            plan: 1,
        };
        let (seq, lane, slot, from, to, offset) = (2, 3, 4, 5, u16::MAX, 6);
        let header = FragmentHeader { group: 1, seq, lane, slot, from, to, bytes: bytes as u32, offset, signature };
        Head { sender: 300, number, last: number % 2 == 1, header }
    }

    proptest! {
        #[test]
        fn what_is_written_is_read_and_nothing_else(payload in vec(any::<u8>(), 0..300), number: u64, at: prop::sample::Index) {
            let (key, other) = (Key::new(&[1; 32]), Key::new(&[2; 32]));
            let head = head(number, payload.len());
            let mut out = vec![0; payload.len() + OVERHEAD];
            prop_assert_eq!(key.write(&head, &payload, &mut out), out.len());
            prop_assert_eq!(key.read(&out), Some(head));
            prop_assert!(key.signed(&out) && !other.signed(&out) && other.read(&out).is_none());
            prop_assert!(key.read(&out[..at.index(out.len())]).is_none(), "truncated");
            let mut longer = out.clone();
            longer.push(0);
            prop_assert!(key.read(&longer).is_none() && !key.signed(&longer));
            let at = at.index(out.len());
            out[at] ^= 1;
            prop_assert!(!key.signed(&out), "byte {}", at);
        }

        #[test]
        fn any_bytes_are_survived(bytes in vec(any::<u8>(), 0..300)) {
            feed(&bytes);
        }
    }
}
