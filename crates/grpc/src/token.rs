//! How the two ends of a call prove that they know the job's secret without sending it: each shows a code (HMAC-SHA256,
//! RFC 2104) over what both know about the call.
//!
//! The code covers random numbers of both ends, so a code from another run or another call is useless. It also covers
//! the certificate, so a man in the middle with another certificate cannot forward codes.
use hmac::{Hmac, Mac};
use sha2::{Digest, Sha256};

use super::listener::Offer;

/// Length of a code in bytes.
const CODE: usize = 32;
const SCHEME: &str = "Bearer ";

/// Purpose of a stream.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub enum StreamKind {
    /// Messages of the failure detector.
    Control = 0,
    /// Fragments.
    Tensors = 1,
}

/// Which end shows a code: a code cannot be reflected to its sender.
#[derive(Clone, Copy)]
enum End {
    Caller = 0,
    Host = 1,
}

/// The shared knowledge of both ends of a call.
pub struct Contract {
    mac: Hmac<Sha256>,
}

impl Contract {
    /// `key` is the job's. For each end: its rank and what it offers.
    pub fn new(key: &[u8; 32], kind: StreamKind, caller: (u32, &Offer), host: (u32, &Offer)) -> Contract {
        let mut mac: Hmac<Sha256> = Mac::new_from_slice(key).expect("HMAC takes keys of any length");
        mac.update(&[kind as u8]);
        for (rank, offer) in [caller, host] {
            mac.update(&rank.to_be_bytes());
            mac.update(&offer.nonce);
        }
        mac.update(&Sha256::digest(host.1.certificate.as_deref().unwrap_or_default()));
        Contract { mac }
    }

    fn code(&self, end: End) -> Hmac<Sha256> {
        self.mac.clone().chain_update([end as u8])
    }

    /// The value of `authorization`, which authenticates the caller.
    pub fn authorization(&self) -> String {
        SCHEME.to_owned() + &hex(&self.code(End::Caller).finalize().into_bytes())
    }

    /// Whether this is [`authorization`](Contract::authorization); compared in constant time.
    pub fn is_authorized(&self, value: &[u8]) -> bool {
        value.strip_prefix(SCHEME.as_bytes()).is_some_and(|code| self.shows(End::Caller, code))
    }

    /// Authenticates the host.
    pub fn proof(&self) -> String {
        hex(&self.code(End::Host).finalize().into_bytes())
    }

    /// Whether this is [`proof`](Contract::proof); compared in constant time.
    pub fn is_proof(&self, value: &[u8]) -> bool {
        self.shows(End::Host, value)
    }

    fn shows(&self, end: End, code: &[u8]) -> bool {
        unhex(code).is_some_and(|code| self.code(end).verify_slice(&code).is_ok())
    }
}

fn hex(bytes: &[u8]) -> String {
    bytes.iter().map(|byte| format!("{byte:02x}")).collect()
}

fn unhex(text: &[u8]) -> Option<[u8; CODE]> {
    let mut bytes = [0; CODE];
    if text.len() != 2 * CODE {
        return None;
    }
    let digit = |c: u8| (c as char).to_digit(16);
    for (byte, pair) in bytes.iter_mut().zip(text.chunks_exact(2)) {
        *byte = (digit(pair[0])? * 16 + digit(pair[1])?) as u8;
    }
    Some(bytes)
}

#[cfg(test)]
mod tests {
    use super::*;

    fn offer(nonce: u8, certificate: Option<&str>) -> Offer {
        Offer { address: ([127, 0, 0, 1], 1).into(), nonce: [nonce; 16], certificate: certificate.map(str::to_owned) }
    }

    #[test]
    fn a_code_is_of_one_call_and_one_end() {
        let (a, b) = (offer(1, None), offer(2, Some("certificate")));
        let contract = Contract::new(&[7; 32], StreamKind::Tensors, (1, &a), (0, &b));
        let (token, proof) = (contract.authorization(), contract.proof());
        assert!(contract.is_authorized(token.as_bytes()) && contract.is_proof(proof.as_bytes()));
        assert!(!contract.is_proof(token.strip_prefix(SCHEME).unwrap().as_bytes()));
        assert!(!contract.is_authorized(format!("{SCHEME}{proof}").as_bytes()));
        let other_certificate = offer(2, Some("another"));
        let others = [
            Contract::new(&[8; 32], StreamKind::Tensors, (1, &a), (0, &b)),
            Contract::new(&[7; 32], StreamKind::Control, (1, &a), (0, &b)),
            Contract::new(&[7; 32], StreamKind::Tensors, (2, &a), (0, &b)),
            Contract::new(&[7; 32], StreamKind::Tensors, (1, &a), (3, &b)),
            Contract::new(&[7; 32], StreamKind::Tensors, (0, &b), (1, &a)),
            Contract::new(&[7; 32], StreamKind::Tensors, (1, &offer(9, None)), (0, &b)),
            Contract::new(&[7; 32], StreamKind::Tensors, (1, &a), (0, &offer(2, None))),
            Contract::new(&[7; 32], StreamKind::Tensors, (1, &a), (0, &other_certificate)),
        ];
        assert!(others.iter().all(|other| !other.is_authorized(token.as_bytes()) && !other.is_proof(proof.as_bytes())));
    }

    proptest::proptest! {
        #[test]
        fn any_text_is_refused(text in "(Bearer )?[0-9a-f]{0,70}", noise: Vec<u8>) {
            let contract = Contract::new(&[7; 32], StreamKind::Control, (1, &offer(1, None)), (0, &offer(2, None)));
            for value in [text.as_bytes(), &noise] {
                proptest::prop_assert!(!contract.is_authorized(value) && !contract.is_proof(value));
            }
        }
    }
}
