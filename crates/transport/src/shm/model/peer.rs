//! Modeled memory of another process: words that it may change while they are copied.
use std::collections::BTreeMap;
use std::io;
use std::sync::{Arc, Mutex};

use loom::sync::atomic::{AtomicU32, Ordering};

static WORDS: Mutex<BTreeMap<u64, Arc<AtomicU32>>> = Mutex::new(BTreeMap::new());

/// A process whose memory can be read.
#[derive(Clone, Copy, Debug)]
pub(in crate::shm) struct PeerMemory;

impl PeerMemory {
    /// Makes the memory at this address a word; returns it.
    #[cfg(test)]
    pub fn word(at: &[u8], value: u32) -> Arc<AtomicU32> {
        let word = Arc::new(AtomicU32::new(value));
        WORDS.lock().unwrap().insert(at.as_ptr() as u64, word.clone());
        word
    }

    /// Forgets the word at this address.
    #[cfg(test)]
    pub fn forget(at: &[u8]) {
        WORDS.lock().unwrap().remove(&(at.as_ptr() as u64));
    }

    /// Copies one word.
    ///
    /// # Errors
    /// There is none at the address.
    pub fn read(self, address: u64, to: &mut [u8]) -> io::Result<()> {
        let word = WORDS.lock().map_err(|_| io::ErrorKind::Other)?.get(&address).cloned();
        let word = word.ok_or(io::ErrorKind::NotFound)?;
        to.copy_from_slice(&word.load(Ordering::Relaxed).to_le_bytes());
        Ok(())
    }
}
