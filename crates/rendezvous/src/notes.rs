//! What strangers did, for the log and for the message when ranks are missing.
use std::io::Write;
use std::net::IpAddr;

/// Distinct notes that are kept: who connects from many addresses, or under many ranks, must not fill log and memory.
const MOST: usize = 16;
/// Notes in a message.
const SHOWN: usize = 3;

/// Notes of one rank, each printed to standard error when it is first made.
pub struct Notes {
    rank: u32,
    notes: Vec<Note>,
}

struct Note {
    ip: IpAddr,
    text: String,
    /// Of somebody who meant to be part of a job.
    of_paceline: bool,
    times: u64,
}

impl Notes {
    /// Without any.
    pub fn of(rank: u32) -> Notes {
        Notes { rank, notes: Vec::new() }
    }

    /// Notes what was seen of this address.
    pub fn add(&mut self, ip: IpAddr, text: String, of_paceline: bool) {
        if let Some(note) = self.notes.iter_mut().find(|note| note.ip == ip && note.text == text) {
            note.times += 1;
        } else if self.notes.len() < MOST {
            // Not `eprintln!`, which panics where standard error is closed.
            let _ = writeln!(std::io::stderr(), "paceline: rank {}: {text}", self.rank);
            self.notes.push(Note { ip, text, of_paceline, times: 1 });
        }
    }

    /// `; meanwhile ...`, those of paceline first; nothing if there are none.
    pub fn describe(&self) -> String {
        let mut notes: Vec<&Note> = self.notes.iter().collect();
        notes.sort_by_key(|note| !note.of_paceline);
        let mut text = String::new();
        for (i, note) in notes.iter().take(SHOWN).enumerate() {
            text += if i == 0 { "; meanwhile: " } else { "; " };
            text += &note.text;
            if note.times > 1 {
                text += &format!(" ({} times)", note.times);
            }
        }
        text
    }
}
