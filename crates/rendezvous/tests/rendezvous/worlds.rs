//! Worlds without failures.
use std::io::{Read, Write};
use std::net::{SocketAddr, TcpListener, TcpStream};
use std::thread;
use std::time::Duration;

use paceline_rendezvous::{MAX_BLOB, Mesh, exchange};

use crate::common::{all, free_address, secret, start, streams_between, within};

/// Every stream carries its sender's rank, at both ends.
fn talk(rank: u32, mesh: &mut Mesh) {
    let size = u32::try_from(mesh.control.len()).unwrap();
    assert_eq!(mesh.data.len(), mesh.control.len());
    for turn in [true, false] {
        for peer in 0..size {
            assert_eq!(mesh.control[peer as usize].is_none(), peer == rank);
            assert_eq!(mesh.data[peer as usize].len(), streams_between(rank, peer) as usize);
            let control = mesh.control[peer as usize].iter_mut().map(|stream| (stream, 255));
            for (stream, index) in control.chain(mesh.data[peer as usize].iter_mut().zip(0..)) {
                assert!(stream.nodelay().unwrap());
                stream.set_read_timeout(Some(Duration::from_secs(5))).unwrap();
                if turn {
                    stream.write_all(&[u8::try_from(rank).unwrap(), index]).unwrap();
                } else {
                    let mut heard = [0; 2];
                    stream.read_exact(&mut heard).unwrap();
                    assert_eq!(heard, [u8::try_from(peer).unwrap(), index]);
                }
            }
        }
    }
}

fn world(size: u32) {
    let address = &free_address();
    let deadline = within(10_000);
    let job = |rank: u32| {
        move || {
            // The last ranks start first, when nothing listens yet.
            thread::sleep(Duration::from_millis(u64::from(5 * (size - rank))));
            let (mut mesh, peers) = start(rank, size, address, deadline).unwrap();
            talk(rank, &mut mesh);
            (mesh, peers)
        }
    };
    let ends: Vec<(Mesh, Vec<SocketAddr>)> =
        all((0..size).map(|rank| Box::new(job(rank)) as Box<dyn FnOnce() -> _ + Send>).collect());
    for peer in &ends[0].1 {
        assert!(TcpStream::connect(peer).is_err(), "nothing listens afterwards");
    }
    assert!(TcpStream::connect(address.as_str()).is_err());
}

#[test]
fn of_one() {
    let (mesh, _) = start(0, 1, "nowhere, as nobody is to come", within(0)).unwrap();
    assert!(mesh.control.len() == 1 && mesh.control[0].is_none() && mesh.data.len() == 1 && mesh.data[0].is_empty());
}

#[test]
fn of_two() {
    world(2);
}

#[test]
fn of_three() {
    world(3);
}

#[test]
fn of_eight() {
    world(8);
}

#[test]
fn of_many() {
    world(40);
}

#[test]
fn blobs_of_all_lengths() {
    let address = &free_address();
    let lengths = [MAX_BLOB, 0, 1, MAX_BLOB];
    let blob = |rank: u32| vec![u8::try_from(rank).unwrap() + 1; lengths[rank as usize]];
    let job = |rank: u32| move || exchange(rank, 4, address, &secret(), &blob(rank), within(10_000)).unwrap();
    let expected: Vec<Vec<u8>> = (0..4).map(blob).collect();
    for got in all((0..4).map(|rank| Box::new(job(rank)) as Box<dyn FnOnce() -> _ + Send>).collect()) {
        assert_eq!(got, expected);
    }
}

#[test]
fn over_ipv6_and_by_name() {
    let Ok(probe) = TcpListener::bind("[::1]:0") else { return };
    let port = probe.local_addr().unwrap().port();
    drop(probe);
    for address in [format!("[::1]:{port}"), format!("localhost:{port}")] {
        let job = |rank: u32| {
            let address = address.clone();
            move || start(rank, 2, &address, within(10_000)).map(drop).unwrap()
        };
        all(vec![Box::new(job(0)) as Box<dyn FnOnce() + Send>, Box::new(job(1))]);
    }
}
