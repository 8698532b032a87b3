//! The other ranks, as messages name them.
use serde::{Deserialize, Serialize};

/// A rank of the job.
#[derive(Clone, Debug, Serialize, Deserialize)]
pub struct Peer {
    /// Its number.
    pub rank: u32,
    /// The host's name.
    pub host: String,
    /// Its process there.
    pub pid: u32,
    /// Its number among the parameter servers, if it is one.
    pub server: Option<u32>,
    /// It adds up in place of the switch.
    pub switch: bool,
}

impl Peer {
    /// `rank 3`, `server 1 (rank 5)`.
    #[must_use]
    pub fn name(&self) -> String {
        match self.server {
            _ if self.switch => format!("the switch (rank {})", self.rank),
            None => format!("rank {}", self.rank),
            Some(server) => format!("server {server} (rank {})", self.rank),
        }
    }

    /// `rank 3 (host node2, pid 4711)`.
    #[must_use]
    pub fn describe(&self) -> String {
        let Peer { rank, host, pid, server, switch } = self;
        match server {
            _ if *switch => format!("the switch (rank {rank}, host {host}, pid {pid})"),
            None => format!("rank {rank} (host {host}, pid {pid})"),
            Some(server) => format!("server {server} (rank {rank}, host {host}, pid {pid})"),
        }
    }
}

/// `rank 3 (host a, pid 7)`, or `ranks 2, 5-7`.
#[must_use]
pub fn describe(peers: &[Peer], ranks: &[u32]) -> String {
    match ranks {
        [] => "nobody".into(),
        [one] => peers[*one as usize].describe(),
        few if few.len() <= 4 => few.iter().map(|&r| peers[r as usize].describe()).collect::<Vec<_>>().join(", "),
        many => format!("ranks {}", runs(many)),
    }
}

/// `2, 5-7`.
fn runs(ranks: &[u32]) -> String {
    let mut parts: Vec<(u32, u32)> = Vec::new();
    for &rank in ranks {
        match parts.last_mut() {
            Some((_, last)) if *last + 1 == rank => *last = rank,
            _ => parts.push((rank, rank)),
        }
    }
    let text = |&(a, b): &(u32, u32)| if a == b { a.to_string() } else { format!("{a}-{b}") };
    parts.iter().map(text).collect::<Vec<_>>().join(", ")
}

#[cfg(test)]
mod tests {
    #[test]
    fn neighbors_are_a_run() {
        assert_eq!(super::runs(&[2, 5, 6, 7, 9]), "2, 5-7, 9");
    }
}
