//! The two sides of a handshake, without sockets: bytes in, bytes out.
use super::proof::{End, Session, Transcript};
use super::secret::Secret;
use super::wire::{CHALLENGE, Challenge, HELLO, Hello, PROOF, Stranger, VERDICT, Verdict, judge};

/// A message of known length that arrives in pieces.
struct Inbox {
    bytes: [u8; HELLO],
    filled: usize,
    length: usize,
}

impl Inbox {
    fn of(length: usize) -> Inbox {
        Inbox { bytes: [0; HELLO], filled: 0, length }
    }

    /// The buffer for the next bytes: no longer than the rest of the message, so that what follows it stays in the
    /// socket.
    fn space(&mut self) -> &mut [u8] {
        &mut self.bytes[self.filled..self.length]
    }

    fn message<const N: usize>(&self) -> Option<&[u8; N]> {
        self.bytes[..self.filled].first_chunk()
    }

    fn filled(&self) -> &[u8] {
        &self.bytes[..self.filled]
    }
}

/// The called side.
pub struct Host {
    secret: Secret,
    challenge: [u8; CHALLENGE],
    inbox: Inbox,
    greeted: Option<(Hello, Transcript)>,
}

/// Result of receiving bytes.
pub enum Received {
    /// Part of a message.
    More,
    /// A hello: send this challenge.
    Hello([u8; CHALLENGE]),
    /// The proof is right. The caller's request must now be judged.
    Proven(Box<Caller>),
}

/// A caller that knows the secret.
pub struct Caller {
    pub hello: Hello,
    transcript: Transcript,
    secret: Secret,
}

impl Caller {
    /// Creates the last message of the handshake.
    pub fn verdict(&self, verdict: Verdict) -> [u8; VERDICT] {
        let mut bytes = [verdict.to_byte(); VERDICT];
        bytes[1..].copy_from_slice(&self.transcript.of_host(&self.secret, verdict));
        bytes
    }

    /// The session for the frames that follow.
    pub fn session(&self) -> Session {
        self.transcript.session(&self.secret, End::Host)
    }
}

impl Host {
    /// The nonce must be new for each handshake.
    pub fn new(secret: Secret, nonce: [u8; 32]) -> Host {
        Host { secret, challenge: Challenge { nonce }.to_bytes(), inbox: Inbox::of(HELLO), greeted: None }
    }

    /// The buffer for the next bytes; never empty.
    pub fn space(&mut self) -> &mut [u8] {
        self.inbox.space()
    }

    /// Whether the caller has sent a hello.
    pub fn is_greeted(&self) -> bool {
        self.greeted.is_some()
    }

    /// Whether the caller has sent anything.
    pub fn is_spoken_to(&self) -> bool {
        self.is_greeted() || self.inbox.filled > 0
    }

    /// Handles this many bytes written to [`space`](Host::space).
    pub fn receive(&mut self, count: usize) -> Result<Received, Stranger> {
        self.inbox.filled += count;
        let Some((hello, transcript)) = &self.greeted else {
            judge(self.inbox.filled())?;
            let Some(bytes) = self.inbox.message::<HELLO>() else { return Ok(Received::More) };
            let hello = Hello::from_bytes(bytes)?;
            self.greeted = Some((hello, Transcript::new(bytes, &self.challenge)));
            self.inbox = Inbox::of(PROOF);
            return Ok(Received::Hello(self.challenge));
        };
        let Some(proof) = self.inbox.message::<PROOF>() else { return Ok(Received::More) };
        if !transcript.is_of_caller(&self.secret, proof) {
            return Err(Stranger::WrongSecret(hello.from));
        }
        let (hello, transcript) = (hello.clone(), transcript.clone());
        Ok(Received::Proven(Box::new(Caller { hello, transcript, secret: self.secret.clone() })))
    }

    /// The message to a stranger before the connection is closed: the version, or that its proof is wrong. It is not
    /// signed.
    pub fn farewell(&self, stranger: Stranger) -> Vec<u8> {
        match stranger {
            Stranger::OtherVersion(_) | Stranger::Malformed => self.challenge.to_vec(),
            Stranger::WrongSecret(_) => [&[Verdict::Unproven.to_byte()], [0; PROOF].as_slice()].concat(),
            Stranger::Http | Stranger::Tls | Stranger::NotPaceline => Vec::new(),
        }
    }
}

/// The calling side. Its creator sends the hello.
pub struct Calling {
    secret: Secret,
    hello: [u8; HELLO],
    host: u32,
    inbox: Inbox,
    transcript: Option<Transcript>,
}

/// Result of receiving bytes.
pub enum Answer {
    /// Part of a message.
    More,
    /// A challenge: send this proof.
    Challenge([u8; PROOF]),
    /// The host knows the secret too, and this is its verdict.
    Verdict(Verdict, Session),
}

impl Calling {
    /// The nonce of the hello must be new for each handshake.
    pub fn new(secret: Secret, hello: &Hello) -> Calling {
        Calling { secret, hello: hello.to_bytes(), host: hello.to, inbox: Inbox::of(CHALLENGE), transcript: None }
    }

    /// The hello, to send first.
    pub fn hello(&self) -> [u8; HELLO] {
        self.hello
    }

    /// The buffer for the next bytes; never empty.
    pub fn space(&mut self) -> &mut [u8] {
        self.inbox.space()
    }

    /// Handles this many bytes written to [`space`](Calling::space).
    pub fn receive(&mut self, count: usize) -> Result<Answer, Stranger> {
        self.inbox.filled += count;
        let Some(transcript) = &self.transcript else {
            judge(self.inbox.filled())?;
            let Some(bytes) = self.inbox.message::<CHALLENGE>() else { return Ok(Answer::More) };
            Challenge::from_bytes(bytes)?;
            let transcript = Transcript::new(&self.hello, bytes);
            let proof = transcript.of_caller(&self.secret);
            self.transcript = Some(transcript);
            self.inbox = Inbox::of(VERDICT);
            return Ok(Answer::Challenge(proof));
        };
        let Some([verdict, proof @ ..]) = self.inbox.message::<VERDICT>() else { return Ok(Answer::More) };
        let verdict = Verdict::from_byte(*verdict)?;
        // `Unproven` is never signed: its sender has another secret, or is a stranger.
        if verdict == Verdict::Unproven || !transcript.is_of_host(&self.secret, verdict, proof) {
            return Err(Stranger::WrongSecret(self.host));
        }
        Ok(Answer::Verdict(verdict, transcript.session(&self.secret, End::Caller)))
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::wire::ConnectionKind;

    fn secret(text: &str) -> Secret {
        Secret::from_text(text).unwrap()
    }

    fn hello() -> Hello {
        let (job, instance, nonce) = ([7; 16], [8; 16], [9; 32]);
        Hello {
            kind: ConnectionKind::Data,
            from: 3,
            to: 1,
            index: 2,
            world: 4,
            streams: 5,
            attempt: 6,
            job,
            instance,
            nonce,
        }
    }

    /// Runs a handshake in pieces of one byte. Returns the caller's result and the two messages that it sent.
    fn run(caller: &str, host: &str, verdict: Verdict) -> (Result<Verdict, Stranger>, [u8; HELLO], Vec<u8>) {
        let mut host = Host::new(secret(host), [1; 32]);
        let mut calling = Calling::new(secret(caller), &hello());
        let challenge = to_host(&mut host, &calling.hello()).unwrap();
        let proof = to_caller(&mut calling, &challenge).unwrap().0;
        let last = match give_proof(&mut host, &proof) {
            Ok(known) => {
                assert_eq!(known.hello, hello());
                known.verdict(verdict).to_vec()
            }
            Err(stranger) => host.farewell(stranger),
        };
        let end = to_caller(&mut calling, &last).map(|(_, verdict)| verdict.unwrap());
        (end, calling.hello(), proof)
    }

    fn to_host(host: &mut Host, bytes: &[u8]) -> Result<Vec<u8>, Stranger> {
        for byte in bytes {
            host.space()[0] = *byte;
            match host.receive(1)? {
                Received::More => {}
                Received::Hello(challenge) => return Ok(challenge.to_vec()),
                Received::Proven(_) => panic!("proven by a hello"),
            }
        }
        panic!("no hello")
    }

    fn give_proof(host: &mut Host, bytes: &[u8]) -> Result<Box<Caller>, Stranger> {
        for byte in bytes {
            host.space()[0] = *byte;
            if let Received::Proven(caller) = host.receive(1)? {
                return Ok(caller);
            }
        }
        panic!("no proof")
    }

    fn to_caller(calling: &mut Calling, bytes: &[u8]) -> Result<(Vec<u8>, Option<Verdict>), Stranger> {
        for byte in bytes {
            calling.space()[0] = *byte;
            match calling.receive(1)? {
                Answer::More => {}
                Answer::Challenge(proof) => return Ok((proof.to_vec(), None)),
                Answer::Verdict(verdict, _) => return Ok((Vec::new(), Some(verdict))),
            }
        }
        panic!("no answer")
    }

    #[test]
    fn both_know_or_both_say_that_the_other_does_not() {
        let (one, other) = ("the secret of the job", "another secret of a job");
        for verdict in [Verdict::Welcome, Verdict::OtherJob, Verdict::OtherStreams] {
            assert_eq!(run(one, one, verdict).0, Ok(verdict));
        }
        assert_eq!(run(one, other, Verdict::Welcome).0, Err(Stranger::WrongSecret(1)));
    }

    #[test]
    fn a_replay_proves_nothing() {
        let one = "the secret of the job";
        let (_, hello, proof) = run(one, one, Verdict::Welcome);
        let mut host = Host::new(secret(one), [2; 32]);
        to_host(&mut host, &hello).unwrap();
        assert_eq!(give_proof(&mut host, &proof).err(), Some(Stranger::WrongSecret(3)));
    }

    #[test]
    fn a_changed_hello_or_verdict_is_noticed() {
        let one = "the secret of the job";
        for at in 12..HELLO {
            let mut host = Host::new(secret(one), [1; 32]);
            let mut calling = Calling::new(secret(one), &hello());
            let mut changed = calling.hello();
            changed[at] ^= 1;
            let challenge = to_host(&mut host, &changed).unwrap();
            let proof = to_caller(&mut calling, &challenge).unwrap().0;
            assert!(matches!(give_proof(&mut host, &proof), Err(Stranger::WrongSecret(_))), "byte {at}");
        }
        for at in 0..VERDICT {
            let mut host = Host::new(secret(one), [1; 32]);
            let mut calling = Calling::new(secret(one), &hello());
            let challenge = to_host(&mut host, &calling.hello()).unwrap();
            let proof = to_caller(&mut calling, &challenge).unwrap().0;
            let mut last = give_proof(&mut host, &proof).unwrap().verdict(Verdict::OtherJob);
            last[at] ^= 1;
            assert!(to_caller(&mut calling, &last).is_err(), "byte {at}");
        }
    }
}
