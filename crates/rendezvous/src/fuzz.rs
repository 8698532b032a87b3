//! Entry points of the fuzzer: arbitrary bytes in every place where a stranger can send some.
use super::frame::{Frame, Reader};
use super::handshake::{Answer, Calling, Host, Received};
use super::proof::{End, Transcript};
use super::secret::Secret;
use super::wire::{CHALLENGE, ConnectionKind, HELLO, Hello};

const SECRET: &str = "the secret of the fuzzer";

/// Feeds bytes to either side of a handshake, in pieces whose lengths they choose themselves, and as frames.
///
/// # Panics
/// If the bytes pass as a proof of a secret that they do not contain.
pub fn feed(data: &[u8]) {
    let secret = Secret::from_text(SECRET).expect("long enough");
    let mut host = Host::new(secret.clone(), [2; 32]);
    pieces(data, |piece| {
        let count = copy(piece, host.space());
        match host.receive(count) {
            Ok(Received::Proven(_)) => panic!("a caller proved what it does not know"),
            Ok(_) => Some(count),
            Err(stranger) => {
                let _ = (host.farewell(stranger), stranger.describe("here"));
                None
            }
        }
    });
    let (job, instance, nonce) = ([7; 16], [8; 16], [9; 32]);
    let kind = ConnectionKind::Control;
    let hello = Hello { kind, from: 1, to: 0, index: 0, world: 2, streams: 0, attempt: 0, job, instance, nonce };
    let mut calling = Calling::new(secret.clone(), &hello);
    pieces(data, |piece| {
        let count = copy(piece, calling.space());
        match calling.receive(count) {
            Ok(Answer::Verdict(..)) => panic!("a host proved what it does not know"),
            Ok(_) => Some(count),
            Err(_) => None,
        }
    });
    let mut session = Transcript::new(&[0; HELLO], &[0; CHALLENGE]).session(&secret, End::Host);
    let frame = Reader::new(Frame::GATHERED, 1 << 20).read(&mut &data[..], &mut session);
    assert!(!matches!(frame, Ok(Some(_))), "a frame signed without the key");
    let _ = super::blobs::blobs_of(data, 3);
}

fn copy(piece: &[u8], space: &mut [u8]) -> usize {
    let count = piece.len().min(space.len());
    space[..count].copy_from_slice(&piece[..count]);
    count
}

fn pieces(mut data: &[u8], mut take: impl FnMut(&[u8]) -> Option<usize>) {
    while let Some(&first) = data.first() {
        let length = usize::from(first).clamp(1, data.len());
        match take(&data[..length]) {
            Some(taken) => data = &data[taken..],
            None => return,
        }
    }
}

#[cfg(test)]
mod tests {
    use proptest::collection::vec;
    use proptest::prelude::*;

    proptest! {
        #[test]
        fn any_bytes_are_survived(mut bytes in vec(any::<u8>(), 0..400), prefix in 0..=10_usize) {
            let prefix = prefix.min(bytes.len());
            bytes[..prefix].copy_from_slice(&b"PACELINE\x00\x01"[..prefix]);
            super::feed(&bytes);
        }
    }
}
