//! Multicast datagrams: they are lost, repeated and late as the world's configuration says.
use std::collections::VecDeque;
use std::io::{self, IoSliceMut};
use std::net::{Ipv4Addr, SocketAddr};

pub use quinn_udp::{RecvMeta, Transmit};
use rustix::event::PollFlags;
use rustix::io::Errno;

use super::fd::{AsFd, BorrowedFd, OwnedFd};
use super::poll::{Kind, Watch};
use super::world::{Event, World, point, with};

/// Longest delay of a datagram that is late, nanoseconds.
const LATE: u64 = 2_000_000;

pub(super) struct Udp {
    host: usize,
    local: Option<SocketAddr>,
    group: Option<Ipv4Addr>,
    to: Option<SocketAddr>,
    inbox: VecDeque<Vec<u8>>,
    bytes: usize,
    pub limit: usize,
    open: bool,
    pub watch: Watch,
}

impl World {
    pub(super) fn new_udp(&mut self) -> usize {
        let host = self.my_host();
        let (inbox, watch) = (VecDeque::new(), Watch::default());
        self.udp.push(Udp {
            host,
            local: None,
            group: None,
            to: None,
            inbox,
            bytes: 0,
            limit: 256 << 10,
            open: true,
            watch,
        });
        self.udp.len() - 1
    }

    pub(super) fn udp_bind(&mut self, socket: usize, to: SocketAddr) {
        self.udp[socket].local = Some(to);
    }

    pub(super) fn udp_join(&mut self, socket: usize, group: Ipv4Addr) {
        self.udp[socket].group = Some(group);
    }

    pub(super) fn udp_connect(&mut self, socket: usize, to: SocketAddr) {
        self.udp[socket].to = Some(to);
    }

    pub(super) fn udp_state(&self, socket: usize) -> PollFlags {
        if self.udp[socket].inbox.is_empty() { PollFlags::OUT } else { PollFlags::OUT | PollFlags::IN }
    }

    pub(super) fn close_udp(&mut self, socket: usize) {
        self.udp[socket].open = false;
    }

    fn send_datagram(&mut self, socket: usize, to: SocketAddr, bytes: &[u8]) {
        let here = self.udp[socket].host;
        let member = |other: &Udp| {
            other.open && other.group.map(std::net::IpAddr::V4) == Some(to.ip()) && other.local == Some(to)
        };
        let receivers: Vec<usize> = (0..self.udp.len()).filter(|&other| member(&self.udp[other])).collect();
        let [lost, repeated, late] = self.config.datagrams;
        self.say(|| format!("  socket {socket} sends a datagram of {} to {} receivers", bytes.len(), receivers.len()));
        for receiver in receivers {
            let there = self.udp[receiver].host;
            if self.cut(here, there) || self.chance.once_in(lost) {
                continue;
            }
            for _ in 0..1 + u32::from(self.chance.once_in(repeated)) {
                let (mut at, _) = self.between(here, there, bytes.len());
                if self.chance.once_in(late) {
                    at += self.chance.below(LATE);
                }
                self.at(at, Event::Datagram(receiver, bytes.to_vec()));
            }
        }
    }

    pub(super) fn datagram_arrives(&mut self, socket: usize, bytes: Vec<u8>) {
        let one = &mut self.udp[socket];
        if one.open && one.bytes + bytes.len() <= one.limit {
            one.bytes += bytes.len();
            let count = bytes.len();
            one.inbox.push_back(bytes);
            self.say(|| format!("  socket {socket} receives a datagram of {count}"));
            self.changed(Kind::Udp(socket));
        }
    }
}

/// A datagram socket.
#[derive(Debug)]
pub struct UdpSocket(pub(super) OwnedFd);

impl AsFd for UdpSocket {
    fn as_fd(&self) -> BorrowedFd<'_> {
        self.0.as_fd()
    }
}

/// A borrowed one.
#[derive(Clone, Copy)]
pub struct UdpSockRef<'a>(BorrowedFd<'a>);

impl<'a> From<&'a UdpSocket> for UdpSockRef<'a> {
    fn from(socket: &'a UdpSocket) -> UdpSockRef<'a> {
        UdpSockRef(socket.as_fd())
    }
}

fn socket(fd: BorrowedFd<'_>) -> io::Result<usize> {
    match with(|world| world.kind(fd.number())) {
        Some(Kind::Udp(socket)) => Ok(socket),
        _ => Err(Errno::BADF.into()),
    }
}

/// Sends and receives several datagrams at once.
#[derive(Debug)]
pub struct UdpSocketState(());

impl UdpSocketState {
    /// Of a socket.
    ///
    /// # Errors
    /// None.
    pub fn new(_socket: UdpSockRef<'_>) -> io::Result<UdpSocketState> {
        Ok(UdpSocketState(()))
    }

    /// Datagrams of one call.
    #[must_use]
    pub fn max_gso_segments(&self) -> usize {
        16
    }

    /// Sends.
    ///
    /// # Errors
    /// The socket is closed.
    pub fn try_send(&self, fd: UdpSockRef<'_>, transmit: &Transmit<'_>) -> io::Result<()> {
        point();
        let socket = socket(fd.0)?;
        with(|world| {
            world.call();
            let length = transmit.segment_size.unwrap_or(transmit.contents.len()).max(1);
            for datagram in transmit.contents.chunks(length) {
                world.send_datagram(socket, transmit.destination, datagram);
            }
            world.busy();
        });
        Ok(())
    }

    /// Receives; one datagram in each buffer.
    ///
    /// # Errors
    /// Nothing has arrived.
    pub fn recv(
        &self,
        fd: UdpSockRef<'_>,
        buffers: &mut [IoSliceMut<'_>],
        found: &mut [RecvMeta],
    ) -> io::Result<usize> {
        point();
        let socket = socket(fd.0)?;
        with(|world| {
            world.call();
            let mut count = 0;
            while count < buffers.len().min(found.len()) {
                let one = &mut world.udp[socket];
                let Some(datagram) = one.inbox.pop_front() else { break };
                one.bytes -= datagram.len();
                buffers[count][..datagram.len()].copy_from_slice(&datagram);
                (found[count].len, found[count].stride) = (datagram.len(), datagram.len());
                count += 1;
            }
            if count == 0 {
                return Err(Errno::AGAIN.into());
            }
            world.busy();
            Ok(count)
        })
    }
}

/// Options of sockets.
pub mod sockopt {
    use super::*;

    /// The MTU of a connected socket's interface: 1500, or that of loopback.
    ///
    /// # Errors
    /// None.
    pub fn ip_mtu(_socket: &UdpSocket) -> rustix::io::Result<u32> {
        Ok(with(|world| *world.chance.one_of(&[1_500, 9_000, 65_536])))
    }

    /// Not permitted: as for a user who is not root.
    ///
    /// # Errors
    /// Always.
    pub fn set_socket_recv_buffer_size_force<S: AsFd>(_socket: S, _bytes: usize) -> rustix::io::Result<()> {
        Err(Errno::PERM)
    }
}
