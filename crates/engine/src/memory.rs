//! The shared memory of a host's ranks. Each rank opens the segments of the others, and two ranks use theirs if both
//! could.
use paceline_os::sync::Arc;
use paceline_transport::error::Result;
use paceline_transport::shm::{PeerWaker, Segment, SegmentAddress};
use serde::{Deserialize, Serialize};

use super::introduction::{Exchange, round};
use crate::settings::Settings;

#[derive(Serialize, Deserialize)]
struct Memory {
    segment: SegmentAddress,
    waker: i32,
}

/// The opened memory of a peer.
pub(super) type Opened = Option<(Arc<Segment>, PeerWaker)>;

pub(super) fn open_memory(
    rank: u32,
    settings: &Settings,
    local: &[u32],
    (segment, waker): (SegmentAddress, i32),
    exchange: Exchange<'_>,
    size: u32,
) -> Result<Vec<Opened>> {
    let token_at = if settings.single_copy { segment.token_at } else { 0 };
    let memories = round(exchange, &Memory { segment: SegmentAddress { token_at, ..segment }, waker })?;
    let open = |peer: u32| -> Opened {
        let Memory { segment: address, waker } = memories.get(peer as usize)?;
        if peer == rank || !local.contains(&peer) {
            return None;
        }
        let opened = Segment::open(address).ok()?;
        let peer_waker = PeerWaker::open(opened.clone(), address.pid, *waker).ok()?;
        Some((opened, peer_waker))
    };
    Ok((0..size).map(open).collect())
}

/// Two ranks use shared memory if each could open the other's.
pub(super) fn agree(rank: u32, opened: &[Opened], exchange: Exchange<'_>) -> Result<Vec<bool>> {
    let mine: Vec<bool> = opened.iter().map(Option::is_some).collect();
    let all: Vec<Vec<bool>> = round(exchange, &mine)?;
    Ok(mine.iter().zip(&all).map(|(&could, they)| could && they.get(rank as usize) == Some(&true)).collect())
}
