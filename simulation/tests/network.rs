//! The virtual network behaves as TCP does.
use std::io::{ErrorKind, Read, Write};
use std::net::SocketAddr;

use paceline_os::net::{Domain, SockAddr, Socket, TcpListener, TcpStream, Type, address_of};
use paceline_os::thread::sleep;
use paceline_os::time::Duration;
use paceline_os::world::{Config, Ending, World, run};

const PORT: u16 = 7000;

fn address() -> SockAddr {
    SocketAddr::new(address_of(0).into(), PORT).into()
}

fn socket() -> Socket {
    Socket::new(Domain::IPV4, Type::STREAM, None).unwrap()
}

fn accept() -> TcpStream {
    let socket = socket();
    socket.bind(&address()).unwrap();
    socket.listen(8).unwrap();
    let listener = TcpListener::from(socket);
    loop {
        match listener.accept() {
            Ok((stream, _)) => return stream,
            Err(error) => assert_eq!(error.kind(), ErrorKind::WouldBlock),
        }
        sleep(Duration::from_millis(1));
    }
}

fn call() -> TcpStream {
    sleep(Duration::from_millis(5));
    let socket = socket();
    assert!(socket.connect(&address()).is_err());
    let stream = TcpStream::from(socket);
    while stream.peer_addr().is_err() {
        assert!(stream.take_error().unwrap().is_none());
        sleep(Duration::from_millis(1));
    }
    stream
}

/// Two processes on two hosts; faults by `prepare`.
fn both(near: impl FnOnce() + 'static, far: impl FnOnce() + 'static, prepare: impl FnOnce(&mut World)) {
    let outcome = run(Config { limit: 400_000_000_000, ..Config::default() }, None, |world| {
        let hosts = [world.add_host(), world.add_host()];
        world.add_process(hosts[0], near);
        world.add_process(hosts[1], far);
        prepare(world);
    });
    assert_eq!((outcome.ending, outcome.panics), (Ending::Finished, Vec::new()));
}

fn read_all(stream: &mut TcpStream) -> (usize, Option<ErrorKind>) {
    let (mut all, mut buffer) = (0, [0; 1000]);
    loop {
        match stream.read(&mut buffer) {
            Ok(0) => return (all, None),
            Ok(count) => all += count,
            Err(error) if error.kind() == ErrorKind::WouldBlock => sleep(Duration::from_millis(1)),
            Err(error) => return (all, Some(error.kind())),
        }
    }
}

#[test]
fn what_was_sent_arrives_after_its_sender_has_been_killed() {
    let far = || {
        assert_eq!(call().write(&[7; 5000]).unwrap(), 5000);
        sleep(Duration::from_secs(1000));
    };
    both(
        || assert_eq!(read_all(&mut accept()), (5000, None)),
        far,
        |world| world.act_at(20_000_000, |world| world.kill(1)),
    );
}

#[test]
fn a_socket_closed_with_unread_bytes_resets_its_connection() {
    let near = || {
        let mut stream = accept();
        assert_eq!(stream.write(b"never read").unwrap(), 10);
        sleep(Duration::from_secs(1));
        assert_eq!(read_all(&mut stream).1, Some(ErrorKind::ConnectionReset));
    };
    let far = || {
        let stream = call();
        sleep(Duration::from_millis(500));
        drop(stream);
    };
    both(near, far, |_| {});
}

#[test]
fn a_full_buffer_refuses_and_a_half_closed_connection_still_delivers() {
    let near = || {
        let mut stream = accept();
        sleep(Duration::from_millis(100));
        let (received, end) = read_all(&mut stream);
        assert!(received >= 100_000 && end.is_none());
        assert_eq!(stream.write(b"thanks").unwrap(), 6);
    };
    let far = || {
        let mut stream = call();
        let (mut sent, mut refused) = (0, false);
        while sent < 200_000 {
            match stream.write(&[1; 10_000]) {
                Ok(count) => sent += count,
                Err(error) => {
                    assert_eq!(error.kind(), ErrorKind::WouldBlock);
                    refused = true;
                    sleep(Duration::from_millis(1));
                }
            }
        }
        assert!(refused);
        stream.shutdown(std::net::Shutdown::Write).unwrap();
        assert_eq!(read_all(&mut stream), (6, None));
    };
    both(near, far, |_| {});
}

#[test]
fn a_partition_delays_and_nobody_listens_refuses() {
    let near = || assert_eq!(read_all(&mut accept()), (3, None));
    let far = || {
        let mut stream = call();
        sleep(Duration::from_secs(1));
        assert_eq!(stream.write(b"abc").unwrap(), 3);
        drop(stream);
        let nobody = socket();
        assert!(nobody.connect(&SocketAddr::new(address_of(0).into(), 9).into()).is_err());
        sleep(Duration::from_secs(20));
        let error = TcpStream::from(nobody).take_error().unwrap().unwrap();
        assert_eq!(error.kind(), ErrorKind::ConnectionRefused);
    };
    let cut = |world: &mut World| {
        world.act_at(500_000_000, |world| world.partition(0, 1, true));
        world.act_at(9_000_000_000, |world| world.partition(0, 1, false));
    };
    both(near, far, cut);
}

#[test]
fn threads_that_wait_for_each_other_are_a_deadlock() {
    use paceline_os::sync::{Arc, Mutex};
    use paceline_os::thread::{Builder, yield_now};
    let outcome = run(Config::default(), None, |world| {
        let host = world.add_host();
        world.add_process(host, || {
            let locks = [(); 2].map(|()| Arc::new(Mutex::new(())));
            let [a, b] = locks.clone();
            let other = Builder::new().spawn(move || {
                let _first = b.lock();
                sleep(Duration::from_millis(1));
                drop(a.lock());
            });
            let _first = locks[0].lock();
            sleep(Duration::from_millis(1));
            yield_now();
            drop(locks[1].lock());
            drop(other.unwrap().join());
        });
    });
    assert!(matches!(outcome.ending, Ending::Deadlock(_)), "{:?}", outcome.ending);
}
