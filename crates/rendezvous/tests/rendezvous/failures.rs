//! The errors of ranks that cannot connect.
use std::io::{Read, Write};
use std::net::{SocketAddr, TcpListener};
use std::thread;
use std::time::{Duration, Instant};

use paceline_rendezvous::{Listener, MAX_BLOB, Mesh, Secret, connect_mesh, exchange};
use paceline_transport::error::Result;

use crate::common::{all, failure, free_address, misuse, secret, within};
use crate::proxy::proxy;

type Job<'a, T> = Box<dyn FnOnce() -> T + Send + 'a>;

/// The errors of ranks that were started with these ranks and world sizes.
fn messages(address: &str, ranks: &[(u32, u32)], milliseconds: u64) -> Vec<String> {
    let job = |&(rank, size): &(u32, u32)| -> Job<String> {
        Box::new(move || failure(exchange(rank, size, address, &secret(), b"blob", within(milliseconds))))
    };
    all(ranks.iter().map(job).collect())
}

#[test]
fn ranks_are_missing() {
    let address = &free_address();
    let began = Instant::now();
    let heard = messages(address, &[(0, 8), (1, 8), (3, 8), (4, 8)], 700);
    let expected = format!("ranks 2, 5-7 of 8 have not come within 0.7 s to {address}");
    assert!(heard.iter().all(|message| *message == expected), "{heard:#?}");
    assert!(began.elapsed() < Duration::from_secs(3));
}

#[test]
fn rank_0_is_missing() {
    let address = &free_address();
    let heard = messages(address, &[(1, 2)], 400);
    let expected = format!(
        "rank 1 of 2 could not reach rank 0 at {address} within 0.4 s; last: rank 0 ({address}): connection refused"
    );
    assert_eq!(heard, [expected]);
    let heard = messages("no-such-host.invalid:29400", &[(1, 2)], 400).remove(0);
    assert!(heard.contains("cannot resolve host \"no-such-host.invalid\""), "{heard}");
}

#[test]
fn rank_0_is_somebody_else() {
    let listener = TcpListener::bind("127.0.0.1:0").unwrap();
    let address = &listener.local_addr().unwrap().to_string();
    thread::spawn(move || {
        for stream in listener.incoming() {
            let mut stream = stream.unwrap();
            let _ = stream.read(&mut [0; 200]);
            let _ = stream.write_all(b"HTTP/1.1 400 Bad Request\r\n\r\n");
        }
    });
    let heard = messages(address, &[(1, 2)], 400).remove(0);
    assert!(heard.ends_with(&format!("last: {address} speaks HTTP, not paceline")), "{heard}");
}

#[test]
fn a_secret_is_wrong() {
    let address = &free_address();
    let other = Secret::from_text("the secret of another job").unwrap();
    let job = |rank: u32, secret: Secret| -> Job<(String, Duration)> {
        Box::new(move || {
            let began = Instant::now();
            (failure(exchange(rank, 3, address, &secret, b"", within(4200))), began.elapsed())
        })
    };
    let heard = all(vec![job(0, secret()), job(1, secret()), job(2, other)]);
    let advice = "does not know the job's secret; give all ranks the same PACELINE_SECRET";
    let expected =
        format!("rank 2 of 3 has not come within 4.2 s to {address}; meanwhile: rank 2 (127.0.0.1) {advice}");
    assert!(heard[0].0.starts_with(&expected), "{heard:#?}");
    assert_eq!(heard[1].0, heard[0].0);
    assert_eq!(heard[2].0, format!("rank 2: rank 0 ({address}) {advice}"));
    assert!(heard[2].1 < Duration::from_millis(4100), "it does not wait for the deadline");
}

#[test]
fn a_rank_comes_twice_or_from_another_world() {
    let cases: [(&[(u32, u32)], &str); 3] = [
        (&[(0, 4), (1, 4), (3, 4), (3, 4)], "rank 3 came twice: from 127.0.0.1 and from 127.0.0.1"),
        (&[(0, 3), (1, 3), (2, 4)], "rank 2 (127.0.0.1) was given a world of 4 ranks and rank 0 one of 3"),
        (&[(0, 3), (1, 3), (4, 5)], "rank 4 (127.0.0.1) was given a world of 5 ranks and rank 0 one of 3"),
    ];
    for (ranks, expected) in cases {
        let began = Instant::now();
        let heard = messages(&free_address(), ranks, 10_000);
        assert!(heard[0].starts_with(expected) && heard[0].contains("WORLD_SIZE"), "{heard:#?}");
        assert!(heard.iter().all(|message| *message == heard[0]), "{heard:#?}");
        assert!(began.elapsed() < Duration::from_secs(3), "nobody waits for the deadline");
    }
}

#[test]
fn the_arguments_are_wrong() {
    let call = |rank, size, address: &str, length| {
        misuse(exchange(rank, size, address, &secret(), &vec![0; length], within(300)))
    };
    assert!(call(2, 2, "127.0.0.1:1", 0).contains("no rank 2 in a world of 2"));
    assert!(call(0, u32::MAX, "127.0.0.1:1", 0).contains("too large"));
    assert!(call(0, 2, "127.0.0.1:1", MAX_BLOB + 1).contains("65537 bytes"));
    for rank in [0, 1] {
        assert!(call(rank, 2, "127.0.0.1", 0).contains("write host:port"));
    }
    assert!(call(0, 2, "no-such-host.invalid:29400", 0).contains("cannot resolve host"));
    assert!(call(0, 2, "192.0.2.1:29400", 0).contains("this machine does not have that address"));
    let taken = TcpListener::bind("127.0.0.1:0").unwrap();
    let address = taken.local_addr().unwrap();
    assert_eq!(
        call(0, 2, &address.to_string(), 0),
        format!("cannot listen on {address}: address in use; choose another port with PACELINE_RENDEZVOUS / --port")
    );
}

#[test]
fn a_line_is_cut_between_handshake_and_blob() {
    // Hello and proof get through, but not the blob; the second time, everything does.
    let address = free_address();
    let (through, heard) = proxy(address.clone(), |number| (number == 0).then_some(132));
    let job = |rank, address: String| -> Job<Vec<Vec<u8>>> {
        Box::new(move || exchange(rank, 2, &address, &secret(), b"blob", within(8000)).unwrap())
    };
    for blobs in all(vec![job(0, address), job(1, through)]) {
        assert_eq!(blobs, [b"blob", b"blob"]);
    }
    assert!(heard.lock().unwrap().iter().any(|sent| sent.len() == 132));

    // It never gets through.
    let address = free_address();
    let (through, _) = proxy(address.clone(), |_| Some(132));
    let job = |rank, address: String| -> Job<String> {
        Box::new(move || failure(exchange(rank, 2, &address, &secret(), b"blob", within(1000))))
    };
    let heard = all(vec![job(0, address.clone()), job(1, through.clone())]);
    let expected = format!("rank 1 of 2 has not come within 1 s to {address}");
    assert!(heard[0].starts_with(&expected), "{heard:#?}");
    // Rank 1 says what it waited for, or reports what rank 0 told it if its last connection was open at that moment.
    let own = format!("rank 0 at {through}");
    assert!(heard[1].contains(&own) || heard[1].starts_with(&expected), "{heard:#?}");
}

/// Results of a mesh of two that disagree: by rank, its streams to the other and its job.
fn meshes(each: [(u32, [u8; 16], u64); 2]) -> Vec<Result<Mesh>> {
    let listeners: Vec<Listener> = each.iter().map(|_| Listener::bind("127.0.0.1").unwrap()).collect();
    let peers: &Vec<SocketAddr> = &listeners.iter().map(Listener::address).collect();
    let job = |((rank, listener), (count, job, milliseconds)): ((u32, Listener), (u32, [u8; 16], u64))| {
        let mut streams = [count; 2];
        streams[rank as usize] = 0;
        let join = move || connect_mesh(rank, listener, peers, &streams, &secret(), job, within(milliseconds));
        Box::new(join) as Job<Result<Mesh>>
    };
    all((0..).zip(listeners).zip(each).map(job).collect())
}

#[test]
fn the_mesh_disagrees() {
    let mut ends = meshes([(1, [1; 16], 5000), (2, [1; 16], 5000)]).into_iter().map(failure);
    assert_eq!(ends.next().unwrap(), "rank 1 (127.0.0.1) was told of 2 data streams to rank 0, which was told of 1");
    let caller = ends.next().unwrap();
    assert!(caller.contains("was told of another number of data streams"), "{caller}");
    // Rank 0 waits longer, so that it does not cut off the last attempt of rank 1.
    let ends: Vec<String> = meshes([(1, [1; 16], 1500), (1, [2; 16], 500)]).into_iter().map(failure).collect();
    assert!(ends[0].starts_with("rank 0 of 2 was not called by rank 1 at 127.0.0.1:"), "{ends:#?}");
    assert!(ends[0].contains("rank 1 (127.0.0.1) of another run of the job connected"), "{ends:#?}");
    assert!(ends[1].starts_with("rank 1 of 2 could not connect to rank 0 (rank 0 (127.0.0.1:"), "{ends:#?}");
    assert!(ends[1].contains("another run of the job) within 0.5 s"), "{ends:#?}");
}

#[test]
fn a_rank_dies_while_the_mesh_is_made() {
    // Rank 2 never connects; rank 1 gives up early, and rank 0 is told.
    let listeners: Vec<Listener> = (0..3).map(|_| Listener::bind("127.0.0.1").unwrap()).collect();
    let peers: &Vec<SocketAddr> = &listeners.iter().map(Listener::address).collect();
    let began = Instant::now();
    let job = |(rank, listener): (u32, Listener)| -> Job<String> {
        let deadline = within([20_000, 300, 0][rank as usize]);
        Box::new(move || failure(connect_mesh(rank, listener, peers, &[0; 3], &secret(), [1; 16], deadline)))
    };
    let heard = all((0..).zip(listeners).take(2).map(job).collect());
    assert!(heard[0].starts_with("rank 1 (127.0.0.1) left while the ranks connected"), "{heard:#?}");
    assert!(heard[1].starts_with("rank 1 of 3 was not called by rank 2 at 127.0.0.1:"), "{heard:#?}");
    assert!(began.elapsed() < Duration::from_secs(5));
}

#[test]
fn a_rank_that_said_goodbye_while_others_still_connect_has_not_failed() {
    let listeners: Vec<Listener> = (0..3).map(|_| Listener::bind("127.0.0.1").unwrap()).collect();
    let peers: &Vec<SocketAddr> = &listeners.iter().map(Listener::address).collect();
    // Rank 2 reaches rank 0 only after a while: until then, nothing listens at the address that it has.
    let gate = TcpListener::bind("127.0.0.1:0").unwrap().local_addr().unwrap();
    let job = |(rank, listener): (u32, Listener)| -> Job<Result<Mesh>> {
        Box::new(move || {
            let mut known = peers.clone();
            if rank == 2 {
                known[0] = gate;
            }
            let mut mesh = connect_mesh(rank, listener, &known, &[0; 3], &secret(), [1; 16], within(20_000))?;
            if rank == 1 {
                // It has done its part, and leaves.
                for control in mesh.control.iter_mut().flatten() {
                    control.write_all(b"goodbye").unwrap();
                }
            }
            // The connections end here, not when all have returned: else the one in between would wait for that.
            Ok(Mesh::of_none(3))
        })
    };
    let opens: Job<Result<Mesh>> = Box::new(move || {
        thread::sleep(Duration::from_millis(3500));
        let gate = TcpListener::bind(gate).unwrap();
        let (caller, _) = gate.accept().unwrap();
        let rank = std::net::TcpStream::connect(peers[0]).unwrap();
        forward(caller, rank);
        Ok(Mesh::of_none(3))
    });
    let jobs = (0..).zip(listeners).map(job).chain([opens]).collect();
    for (rank, mesh) in all(jobs).into_iter().enumerate() {
        assert!(mesh.is_ok(), "rank {rank}: {}", failure(mesh));
    }
}

/// Passes bytes in both directions until both ends have closed.
fn forward(one: std::net::TcpStream, other: std::net::TcpStream) {
    let copy = |mut from: std::net::TcpStream, mut to: std::net::TcpStream| {
        let _ = std::io::copy(&mut from, &mut to);
        let _ = to.shutdown(std::net::Shutdown::Write);
    };
    thread::scope(|scope| {
        let (from, to) = (one.try_clone().unwrap(), other.try_clone().unwrap());
        scope.spawn(move || copy(from, to));
        copy(other, one);
    });
}
