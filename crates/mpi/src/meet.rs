//! The exchange between all ranks through MPI before they are connected: their addresses and a secret.
#![allow(unsafe_code, reason = "MPI is given memory that this function holds until MPI is done with it")]
use std::ffi::c_int;
use std::sync::Arc;
use std::time::{Duration, Instant};

use super::abi::Handle;
use super::calls::Mpi;
use super::thread::Thread;
use paceline_transport::error::Result;

/// Most bytes of all ranks together: a rank needs a few hundred.
const MOST_BYTES: i64 = 1 << 30;
/// Polling interval; ranks get here within seconds of each other.
const LOOK: Duration = Duration::from_micros(200);

/// All-gather of blobs, in rank order. Collective.
///
/// # Errors
/// A rank does not arrive in time.
pub fn exchange(thread: &Thread, blob: Vec<u8>, limit: Duration) -> Result<Vec<Vec<u8>>> {
    let until = Instant::now() + limit;
    thread.call("exchanging addresses", limit, move |mpi| all_gather(mpi, &blob, until))
}

fn all_gather(mpi: &Arc<Mpi>, blob: &[u8], until: Instant) -> std::result::Result<Vec<Vec<u8>>, String> {
    let (_, size) = mpi.place()?;
    // In boxes, which are leaked to MPI if it has not finished with them in time.
    let own: Box<i64> = Box::new(blob.len() as i64);
    let mut lengths = vec![0i64; size as usize].into_boxed_slice();
    // SAFETY: both live until the request completes, or forever.
    let request = unsafe { mpi.all_gather_numbers(&own, &mut lengths, mpi.world())? };
    if let Err(why) = finish(mpi, request, until) {
        std::mem::forget((own, lengths));
        return Err(why);
    }
    if lengths.iter().any(|&length| length < 0) || lengths.iter().sum::<i64>() > MOST_BYTES {
        return Err(format!("blobs of {lengths:?} bytes are too long to exchange"));
    }
    let counts: Box<[c_int]> = lengths.iter().map(|&length| length as c_int).collect();
    let ends = counts.iter().scan(0, |end, count| {
        *end += count;
        Some(*end)
    });
    let places: Box<[c_int]> = ends.zip(&counts).map(|(end, count)| end - count).collect();
    let own = blob.to_vec().into_boxed_slice();
    let mut all = vec![0u8; lengths.iter().sum::<i64>() as usize].into_boxed_slice();
    // SAFETY: as above; offsets and counts are those of `all`.
    let request = unsafe { mpi.all_gather_bytes(&own, &mut all, (&counts, &places), mpi.world())? };
    if let Err(why) = finish(mpi, request, until) {
        std::mem::forget((own, all, counts, places));
        return Err(why);
    }
    Ok(places.iter().zip(&counts).map(|(&at, &count)| all[at as usize..(at + count) as usize].to_vec()).collect())
}

fn finish(mpi: &Mpi, mut request: Handle, until: Instant) -> std::result::Result<(), String> {
    while !mpi.test(&mut request)? {
        if Instant::now() > until {
            return Err("the other ranks have not joined; check their output".into());
        }
        std::thread::sleep(LOOK);
    }
    Ok(())
}
