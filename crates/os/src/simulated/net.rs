//! Sockets, with the part of the interfaces of std and socket2 that the runtime uses.
//!
//! Host h of the world has the addresses 10.0.h.0/24.
use std::io::{self, IoSlice, Read, Write};
use std::net::SocketAddr as Address;

use rustix::io::Errno;
pub use socket2::{Domain, Protocol, SockAddr, TcpKeepalive, Type};
pub use std::net::{IpAddr, Ipv4Addr, Shutdown, SocketAddr, SocketAddrV4, ToSocketAddrs};

use super::fd::{AsFd, BorrowedFd, OwnedFd};
use super::poll::Kind;
use super::stream::Connection;
use super::time::Duration;
pub use super::udp::{RecvMeta, Transmit, UdpSockRef, UdpSocket, UdpSocketState, sockopt};
use super::world::{World, point, with};

/// The host with this address; the running process's, for loopback.
pub(super) fn host_of(ip: IpAddr) -> usize {
    match ip {
        IpAddr::V4(ip) if ip.octets()[0] == 10 => usize::from(ip.octets()[2]),
        _ => usize::MAX,
    }
}

/// The first address of a host.
#[must_use]
pub fn address_of(host: usize) -> Ipv4Addr {
    Ipv4Addr::new(10, 0, host as u8, 1)
}

fn stream_of(fd: &impl AsFd) -> io::Result<usize> {
    match with(|world| world.kind(fd.as_fd().number())) {
        Some(Kind::Stream(stream)) => Ok(stream),
        _ => Err(Errno::NOTSOCK.into()),
    }
}

fn read(fd: &impl AsFd, into: &mut [u8]) -> io::Result<usize> {
    point();
    let stream = stream_of(fd)?;
    with(|world| {
        world.call();
        world.read_stream(stream, into)
    })
}

fn write(fd: &impl AsFd, parts: &[&[u8]]) -> io::Result<usize> {
    point();
    let stream = stream_of(fd)?;
    with(|world| {
        world.call();
        world.write_stream(stream, parts)
    })
}

fn shutdown(fd: &impl AsFd, how: Shutdown) -> io::Result<()> {
    point();
    let stream = stream_of(fd)?;
    match how {
        Shutdown::Read => Ok(()),
        Shutdown::Write | Shutdown::Both => with(|world| world.shut_write(stream)),
    }
}

/// A connection.
#[derive(Debug)]
pub struct TcpStream(OwnedFd);

impl AsFd for TcpStream {
    fn as_fd(&self) -> BorrowedFd<'_> {
        self.0.as_fd()
    }
}

impl TcpStream {
    /// Nothing is delayed anyway.
    ///
    /// # Errors
    /// None.
    pub fn set_nodelay(&self, _on: bool) -> io::Result<()> {
        Ok(())
    }

    /// All sockets of a world are non-blocking.
    ///
    /// # Errors
    /// None.
    pub fn set_nonblocking(&self, _on: bool) -> io::Result<()> {
        Ok(())
    }

    /// Where it is connected to.
    ///
    /// # Errors
    /// It is not connected.
    pub fn peer_addr(&self) -> io::Result<Address> {
        let stream = stream_of(self)?;
        with(|world| match &world.streams[stream] {
            stream if stream.connection == Connection::Connected => stream.remote.ok_or_else(|| Errno::NOTCONN.into()),
            _ => Err(Errno::NOTCONN.into()),
        })
    }

    /// Reads without taking.
    ///
    /// # Errors
    /// Nothing has arrived, or the connection is lost.
    pub fn peek(&self, into: &mut [u8]) -> io::Result<usize> {
        point();
        let stream = stream_of(self)?;
        with(|world| world.peek_stream(stream, into))
    }

    /// Its own address.
    ///
    /// # Errors
    /// It is closed.
    pub fn local_addr(&self) -> io::Result<Address> {
        let stream = stream_of(self)?;
        Ok(with(|world| world.streams[stream].local))
    }

    /// The error that is pending.
    ///
    /// # Errors
    /// It is closed.
    pub fn take_error(&self) -> io::Result<Option<io::Error>> {
        let stream = stream_of(self)?;
        Ok(with(|world| world.take_error(stream)))
    }

    /// Ends one side, or both.
    ///
    /// # Errors
    /// It is not connected.
    pub fn shutdown(&self, how: Shutdown) -> io::Result<()> {
        shutdown(self, how)
    }
}

/// Bytes written that the peer's system has not acknowledged.
///
/// # Errors
/// It is no connection.
pub fn unacknowledged(stream: &TcpStream) -> io::Result<usize> {
    let stream = stream_of(stream)?;
    Ok(with(|world| world.streams[stream].unacknowledged))
}

macro_rules! reads_and_writes {
    ($($kind:ty),*) => { $(
        impl Read for $kind {
            fn read(&mut self, into: &mut [u8]) -> io::Result<usize> {
                read(self, into)
            }
        }

        impl Write for $kind {
            fn write(&mut self, bytes: &[u8]) -> io::Result<usize> {
                write(self, &[bytes])
            }

            fn write_vectored(&mut self, parts: &[IoSlice<'_>]) -> io::Result<usize> {
                let parts: Vec<&[u8]> = parts.iter().map(|part| &**part).collect();
                write(self, &parts)
            }

            fn flush(&mut self) -> io::Result<()> {
                Ok(())
            }
        }
    )* };
}
reads_and_writes!(TcpStream, &TcpStream, Socket);

/// A listening socket.
#[derive(Debug)]
pub struct TcpListener(OwnedFd);

impl AsFd for TcpListener {
    fn as_fd(&self) -> BorrowedFd<'_> {
        self.0.as_fd()
    }
}

impl TcpListener {
    fn number(&self) -> io::Result<usize> {
        match with(|world| world.kind(self.0.number())) {
            Some(Kind::Listener(listener)) => Ok(listener),
            _ => Err(Errno::NOTSOCK.into()),
        }
    }

    /// The next connection.
    ///
    /// # Errors
    /// There is none.
    pub fn accept(&self) -> io::Result<(TcpStream, Address)> {
        point();
        let listener = self.number()?;
        with(|world| {
            world.call();
            let stream = world.accept(listener)?;
            let remote = world.streams[stream].remote.ok_or(Errno::NOTCONN)?;
            Ok((TcpStream(world.open(Kind::Stream(stream))), remote))
        })
    }

    /// Its address.
    ///
    /// # Errors
    /// It is closed.
    pub fn local_addr(&self) -> io::Result<Address> {
        let listener = self.number()?;
        Ok(with(|world| world.listener_address(listener)))
    }
}

/// A socket that may become anything.
#[derive(Debug)]
pub struct Socket {
    fd: Option<OwnedFd>,
    bound: std::cell::Cell<Option<Address>>,
}

fn as_address(address: &SockAddr) -> io::Result<Address> {
    address.as_socket().ok_or_else(|| Errno::AFNOSUPPORT.into())
}

/// Fails for an address that the running process's host does not have.
fn own(world: &World, address: Address) -> io::Result<usize> {
    let host = world.my_host();
    if address.ip().is_multicast() || host_of(address.ip()) == host {
        Ok(host)
    } else {
        Err(Errno::ADDRNOTAVAIL.into())
    }
}

impl Socket {
    /// A new socket.
    ///
    /// # Errors
    /// None.
    pub fn new(_domain: Domain, kind: Type, _protocol: Option<Protocol>) -> io::Result<Socket> {
        let fd = with(|world| {
            if kind == Type::DGRAM.cloexec().nonblocking() || kind == Type::DGRAM {
                let socket = world.new_udp();
                return world.open(Kind::Udp(socket));
            }
            let host = world.my_host();
            let stream = world.new_stream(host, Address::new(address_of(host).into(), 0));
            world.open(Kind::Stream(stream))
        });
        Ok(Socket { fd: Some(fd), bound: None.into() })
    }

    fn fd(&self) -> &OwnedFd {
        self.fd.as_ref().expect("a socket has a descriptor until it becomes something else")
    }

    fn udp(&self) -> io::Result<usize> {
        match with(|world| world.kind(self.fd().number())) {
            Some(Kind::Udp(socket)) => Ok(socket),
            _ => Err(Errno::NOTSOCK.into()),
        }
    }

    /// Begins to connect.
    ///
    /// # Errors
    /// EINPROGRESS: that takes a while.
    pub fn connect(&self, address: &SockAddr) -> io::Result<()> {
        point();
        let address = as_address(address)?;
        if let Ok(socket) = self.udp() {
            with(|world| world.udp_connect(socket, address));
            return Ok(());
        }
        let stream = stream_of(self)?;
        with(|world| {
            world.call();
            world.connect(stream, address);
        });
        Err(Errno::INPROGRESS.into())
    }

    /// Gives it an address.
    ///
    /// # Errors
    /// It is used, or belongs to another host.
    pub fn bind(&self, address: &SockAddr) -> io::Result<()> {
        let mut address = as_address(address)?;
        with(|world| {
            own(world, address)?;
            if address.port() == 0 {
                address.set_port(world.free_port());
            } else if world.bound.contains_key(&address) {
                return Err(Errno::ADDRINUSE.into());
            }
            Ok::<_, io::Error>(())
        })?;
        if let Ok(socket) = self.udp() {
            with(|world| world.udp_bind(socket, address));
        }
        self.bound.set(Some(address));
        Ok(())
    }

    /// Listens.
    ///
    /// # Errors
    /// The address is used.
    pub fn listen(&self, backlog: i32) -> io::Result<()> {
        let address = self.bound.get().ok_or(Errno::INVAL)?;
        with(|world| {
            let host = own(world, address)?;
            let listener = world.listen(host, address, backlog as usize)?;
            if let Some(open) = world.descriptors[self.fd().number()].as_mut() {
                open.kind = Kind::Listener(listener);
            }
            Ok(())
        })
    }

    /// Ends one side, or both.
    ///
    /// # Errors
    /// It is not connected.
    pub fn shutdown(&self, how: Shutdown) -> io::Result<()> {
        shutdown(self, how)
    }

    /// Bytes of the receive buffer, as the kernel reports them: twice what can be used.
    ///
    /// # Errors
    /// It is no datagram socket.
    pub fn recv_buffer_size(&self) -> io::Result<usize> {
        let socket = self.udp()?;
        Ok(with(|world| 2 * world.udp[socket].limit))
    }

    /// Joins a group.
    ///
    /// # Errors
    /// It is no datagram socket.
    pub fn join_multicast_v4(&self, group: &Ipv4Addr, _interface: &Ipv4Addr) -> io::Result<()> {
        let socket = self.udp()?;
        with(|world| world.udp_join(socket, *group));
        Ok(())
    }
}

macro_rules! without_effect {
    ($($name:ident($value:ty)),*) => { impl Socket { $(
        /// Has no effect in a world.
        ///
        /// # Errors
        /// None.
        pub fn $name(&self, _value: $value) -> io::Result<()> {
            Ok(())
        }
    )* } };
}
without_effect!(
    set_nonblocking(bool),
    set_reuse_address(bool),
    set_multicast_all_v4(bool),
    set_multicast_loop_v4(bool),
    set_multicast_ttl_v4(u32),
    set_multicast_if_v4(&Ipv4Addr),
    set_send_buffer_size(usize),
    set_recv_buffer_size(usize)
);

impl AsFd for Socket {
    fn as_fd(&self) -> BorrowedFd<'_> {
        self.fd().as_fd()
    }
}

macro_rules! becomes {
    ($($kind:ident),*) => { $(
        impl From<Socket> for $kind {
            fn from(mut socket: Socket) -> $kind {
                $kind(socket.fd.take().expect("a socket has a descriptor until it becomes something else"))
            }
        }

        impl From<$kind> for Socket {
            fn from(other: $kind) -> Socket {
                Socket { fd: Some(other.0), bound: None.into() }
            }
        }
    )* };
}
becomes!(TcpStream, TcpListener, UdpSocket);

/// A local connection; there are none in a world.
#[derive(Debug)]
pub enum UnixStream {}

impl From<UnixStream> for Socket {
    fn from(none: UnixStream) -> Socket {
        match none {}
    }
}

/// A borrowed socket, for its options.
pub struct SockRef<'a>(BorrowedFd<'a>);

impl<'a, S: AsFd> From<&'a S> for SockRef<'a> {
    fn from(socket: &'a S) -> SockRef<'a> {
        SockRef(socket.as_fd())
    }
}

impl SockRef<'_> {
    /// A host that vanished is noticed.
    ///
    /// # Errors
    /// It is no connection.
    pub fn set_tcp_keepalive(&self, _times: &TcpKeepalive) -> io::Result<()> {
        let stream = stream_of(&self.0)?;
        with(|world| world.streams[stream].keep_alive = true);
        Ok(())
    }

    /// The same while data is unacknowledged; part of keep-alive here.
    ///
    /// # Errors
    /// None.
    pub fn set_tcp_user_timeout(&self, _silence: Option<Duration>) -> io::Result<()> {
        Ok(())
    }
}
