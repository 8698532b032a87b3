//! Records what strangers did, for the log and for the message about missing ranks.
use paceline_os::net::IpAddr;

/// Most distinct entries, so that a stranger with many addresses or ranks fills neither log nor memory.
const MOST: usize = 16;
/// Most entries in a message.
const SHOWN: usize = 3;

/// Strangers' deeds at one rank. Each entry is printed to standard error once.
pub struct StrangerLog {
    rank: u32,
    entries: Vec<Entry>,
}

struct Entry {
    ip: IpAddr,
    text: String,
    /// By a process that tried to join a job.
    of_paceline: bool,
    times: u64,
}

impl StrangerLog {
    /// An empty log.
    pub fn new(rank: u32) -> StrangerLog {
        StrangerLog { rank, entries: Vec::new() }
    }

    /// Records what this address did.
    pub fn add(&mut self, ip: IpAddr, text: String, of_paceline: bool) {
        if let Some(entry) = self.entries.iter_mut().find(|entry| entry.ip == ip && entry.text == text) {
            entry.times += 1;
        } else if self.entries.len() < MOST {
            paceline_os::report!("paceline: rank {}: {text}", self.rank);
            self.entries.push(Entry { ip, text, of_paceline, times: 1 });
        }
    }

    /// `; meanwhile ...`, Paceline processes first; empty if there are no entries.
    pub fn describe(&self) -> String {
        let mut entries: Vec<&Entry> = self.entries.iter().collect();
        entries.sort_by_key(|entry| !entry.of_paceline);
        let mut text = String::new();
        for (i, entry) in entries.iter().take(SHOWN).enumerate() {
            text += if i == 0 { "; meanwhile: " } else { "; " };
            text += &entry.text;
            if entry.times > 1 {
                text += &format!(" ({} times)", entry.times);
            }
        }
        text
    }
}
