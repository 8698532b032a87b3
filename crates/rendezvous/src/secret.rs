//! The job's secret.
use std::fmt;

use paceline_transport::error::{Result, RunError};
use sha2::{Digest, Sha256};

/// Shorter words can be found by trying. An attacker who connects gets one try per handshake, but one who takes a
/// rank's place gets a proof against which to try words offline.
const SHORTEST: usize = 16;

/// The secret of a job, known to its ranks alone. `Debug` does not reveal it.
#[derive(Clone)]
pub struct Secret([u8; 32]);

impl Secret {
    /// The secret for this text: its SHA-256, or the secret itself if the text is 64 hexadecimal digits from
    /// [`to_text`](Secret::to_text). Surrounding white space, as at the end of a file, is ignored.
    ///
    /// # Errors
    /// The text has fewer than 16 characters.
    pub fn from_text(text: &str) -> Result<Secret> {
        let text = text.trim();
        let length = text.chars().count();
        if length < SHORTEST {
            let what = if length == 0 { "is empty".into() } else { format!("has only {length} characters") };
            return Err(RunError::Usage(format!(
                "the job's secret {what}: give at least {SHORTEST}, for instance those of `openssl rand -hex 32`, the \
                 same on all ranks, with PACELINE_SECRET or PACELINE_SECRET_FILE"
            )));
        }
        Ok(Secret(from_hex(text).unwrap_or_else(|| Sha256::digest(text.as_bytes()).into())))
    }

    /// A new secret, from the system's random numbers.
    ///
    /// # Errors
    /// The system has no random numbers.
    pub fn random() -> Result<Secret> {
        random_bytes().map(Secret)
    }

    /// 64 hexadecimal digits, which [`from_text`](Secret::from_text) turns into the same secret.
    #[must_use]
    pub fn to_text(&self) -> String {
        self.0.iter().map(|byte| format!("{byte:02x}")).collect()
    }

    pub(super) fn key(&self) -> &[u8; 32] {
        &self.0
    }
}

impl fmt::Debug for Secret {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str("Secret(..)")
    }
}

/// Unpredictable random bytes: for secrets, nonces and instance ids.
pub(super) fn random_bytes<const N: usize>() -> Result<[u8; N]> {
    let mut bytes = [0; N];
    paceline_os::random::fill(&mut bytes)
        .map_err(|error| RunError::Failed(format!("cannot get random numbers: {error}")))?;
    Ok(bytes)
}

fn from_hex(text: &str) -> Option<[u8; 32]> {
    let digits = text.as_bytes();
    if digits.len() != 64 {
        return None;
    }
    let mut key = [0; 32];
    for (byte, pair) in key.iter_mut().zip(digits.chunks_exact(2)) {
        let digit = |c: u8| (c as char).to_digit(16);
        *byte = u8::try_from(digit(pair[0])? * 16 + digit(pair[1])?).ok()?;
    }
    Some(key)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_text_gives_the_same_secret_everywhere() {
        let secret = Secret::from_text("correct horse battery staple\n").unwrap();
        assert_eq!(secret.0, Secret::from_text("correct horse battery staple").unwrap().0);
        assert_eq!(secret.to_text(), "c4bbcb1fbec99d65bf59d85c8cb62ee2db963f0fe106f483d9afa73bd4e39a8a");
        assert_eq!(Secret::from_text(&secret.to_text()).unwrap().0, secret.0);
        let random = Secret::random().unwrap();
        assert_eq!(Secret::from_text(&random.to_text()).unwrap().0, random.0);
        assert_ne!(random.0, Secret::random().unwrap().0);
    }

    #[test]
    fn short_ones_are_refused_and_none_is_shown() {
        for (text, what) in [("", "is empty"), ("  \n", "is empty"), ("fifteen chars..", "has only 15 characters")] {
            let message = Secret::from_text(text).unwrap_err().to_string();
            assert!(message.contains(what) && message.contains("PACELINE_SECRET"), "{message}");
        }
        assert_eq!(format!("{:?}", Secret::from_text("correct horse battery staple")), "Ok(Secret(..))");
    }
}
