//! The sockets of a rank: one to send to the group, one to receive from it.
use std::io::{self, IoSliceMut};

use paceline_os::net::sockopt::{ip_mtu, set_socket_recv_buffer_size_force};
use paceline_os::net::{
    Domain, IpAddr, Ipv4Addr, Protocol, RecvMeta, SockAddr, Socket, SocketAddr, SocketAddrV4, Transmit, Type,
    UdpSocket, UdpSocketState,
};

use super::datagram::OVERHEAD;
use crate::error::{Result, RunError};

/// Largest payload of a datagram: it fits the 9000 bytes of jumbo frames.
const MOST: usize = 8192;
/// Headers of IP and UDP (RFC 791 without options, RFC 768).
const HEADERS: usize = 28;
/// MTU if the system does not report the interface's: Ethernet's.
const ETHERNET: usize = 1500;
/// Requested receive buffer; the system grants `net.core.rmem_max`, and more to root.
const RECEIVE_BUFFER: usize = 16 << 20;
/// Small, so that a traffic shaper on the interface paces us: the socket fills up, and the window waits in our memory.
const SEND_BUFFER: usize = 64 << 10;
/// Most bytes that UDP accepts in one call: the 16-bit length less the headers.
const AT_ONCE: usize = u16::MAX as usize - HEADERS;
/// Buffer for one receive call.
pub(super) const COMES_AT_ONCE: usize = 1 << 16;

/// A socket, and its offloads: segmentation on sending (GSO) and coalescing on receiving (GRO).
struct Side {
    socket: UdpSocket,
    state: UdpSocketState,
}

impl Side {
    fn new(socket: UdpSocket) -> io::Result<Side> {
        let state = UdpSocketState::new((&socket).into())?;
        Ok(Side { socket, state })
    }
}

/// The sockets.
pub struct Port {
    /// Connected to the group.
    sender: Side,
    /// Bound to the group; `None` where nothing is received.
    receiver: Option<Side>,
    /// Address of the group.
    pub(super) address: SocketAddrV4,
    /// Largest payload of a datagram on this interface.
    pub payload: usize,
    /// Receive buffer of the system, bytes.
    pub buffer: usize,
}

impl Port {
    /// Opens the sockets on the interface with this address; `receives`: joins the group.
    ///
    /// # Errors
    /// The address is not a multicast address, the interface has no IPv4, or the system does not permit it.
    pub fn open(address: SocketAddrV4, interface: IpAddr, receives: bool) -> Result<Port> {
        let wrong = |what: String| RunError::Setting("multicast", format!("{address}: {what}"));
        if !address.ip().is_multicast() || address.port() == 0 {
            return Err(wrong("is not a multicast address and port".into()).with_remedy("{multicast=239.77.0.0:47700}"));
        }
        let IpAddr::V4(interface) = interface.to_canonical() else {
            return Err(wrong(format!("the interface {interface} has no IPv4"))
                .with_remedy("PACELINE_INTERFACE=ADDRESS, with IPv4"));
        };
        let refused = |e: io::Error| wrong(format!("cannot be used on {interface}: {e}"));
        let sender = sender(address, interface).and_then(Side::new).map_err(refused)?;
        let receiver = receives.then(|| receiver(address, interface)).transpose().map_err(refused)?;
        let (receiver, buffer) = receiver.unzip();
        let (receiver, buffer) = (receiver.map(Side::new).transpose().map_err(refused)?, buffer.unwrap_or(usize::MAX));
        let mtu = ip_mtu(&sender.socket).map_or(ETHERNET, |bytes| bytes as usize);
        let payload = mtu.saturating_sub(HEADERS + OVERHEAD).clamp(8, MOST) / 8 * 8;
        Ok(Port { sender, receiver, address, payload, buffer })
    }

    /// Datagrams of this length that fit one send call, as far as is known today.
    pub(super) fn at_once(&self, length: usize) -> usize {
        self.sender.state.max_gso_segments().min(AT_ONCE / length).max(1)
    }

    /// Sends contiguous datagrams, all of `length` bytes except that the last may be shorter.
    pub(super) fn send(&self, contents: &[u8], length: usize) -> io::Result<()> {
        let segment_size = (contents.len() > length).then_some(length);
        let (destination, ecn, src_ip) = (self.address.into(), None, None);
        let Side { socket, state } = &self.sender;
        state.try_send(socket.into(), &Transmit { destination, ecn, contents, segment_size, src_ip })
    }

    /// Becomes writable when the system accepts datagrams again.
    pub(super) fn sender(&self) -> &UdpSocket {
        &self.sender.socket
    }

    /// Becomes readable when datagrams have arrived.
    pub(super) fn receiver(&self) -> Option<&UdpSocket> {
        self.receiver.as_ref().map(|side| &side.socket)
    }

    /// Receives into as many buffers as there is data for. Each gets one or more datagrams of one length, except that
    /// the last may be shorter. Returns the number of buffers.
    pub(super) fn receive(&self, buffers: &mut [IoSliceMut<'_>], found: &mut [RecvMeta]) -> io::Result<usize> {
        let Some(side) = &self.receiver else { return Err(io::ErrorKind::WouldBlock.into()) };
        side.state.recv((&side.socket).into(), buffers, found)
    }

    /// The socket descriptors.
    pub fn descriptors(&self) -> impl Iterator<Item = i32> {
        use paceline_os::fd::AsRawFd;
        [Some(self.sender()), self.receiver()].into_iter().flatten().map(AsRawFd::as_raw_fd)
    }
}

fn udp() -> io::Result<Socket> {
    Socket::new(Domain::IPV4, Type::DGRAM.cloexec().nonblocking(), Some(Protocol::UDP))
}

fn sender(address: SocketAddrV4, interface: Ipv4Addr) -> io::Result<UdpSocket> {
    let socket = udp()?;
    socket.set_multicast_if_v4(&interface)?;
    // Routers do not forward it; other ranks on this host also receive it.
    socket.set_multicast_ttl_v4(1)?;
    socket.set_multicast_loop_v4(true)?;
    socket.set_send_buffer_size(SEND_BUFFER)?;
    socket.bind(&SockAddr::from(SocketAddr::from((interface, 0))))?;
    socket.connect(&SockAddr::from(address))?;
    Ok(socket.into())
}

/// Opens the receiving socket; also returns the size of its buffer.
fn receiver(address: SocketAddrV4, interface: Ipv4Addr) -> io::Result<(UdpSocket, usize)> {
    let socket = udp()?;
    // Other ranks of this host receive from the same group.
    socket.set_reuse_address(true)?;
    // Only datagrams to the group that we joined, not to groups that other processes joined on this host.
    socket.set_multicast_all_v4(false)?;
    if set_socket_recv_buffer_size_force(&socket, RECEIVE_BUFFER).is_err() {
        socket.set_recv_buffer_size(RECEIVE_BUFFER)?;
    }
    socket.bind(&SockAddr::from(address))?;
    socket.join_multicast_v4(address.ip(), &interface)?;
    // The kernel reports twice the usable size: the other half is its own overhead (socket(7)).
    let buffer = socket.recv_buffer_size()? / 2;
    Ok((socket.into(), buffer))
}

#[cfg(test)]
mod tests {
    use super::*;

    fn message(address: &str, interface: &str) -> String {
        match Port::open(address.parse().unwrap(), interface.parse().unwrap(), true) {
            Err(error) => error.to_string(),
            Ok(port) => panic!("{}", port.payload),
        }
    }

    #[test]
    fn datagrams_are_as_long_as_the_interface_takes() {
        let port = Port::open("239.77.0.0:47700".parse().unwrap(), "127.0.0.1".parse().unwrap(), false).unwrap();
        // The loopback interface has an MTU of 64 KiB.
        assert_eq!(port.payload, MOST);
        assert!(port.at_once(MOST + OVERHEAD) >= 1);
    }

    #[test]
    fn what_cannot_be_is_said() {
        assert!(message("10.0.0.1:47700", "127.0.0.1").contains("is not a multicast address"));
        assert!(message("239.77.0.0:0", "127.0.0.1").contains("is not a multicast address"));
        assert!(message("239.77.0.0:47700", "::1").contains("has no IPv4"));
        // TEST-NET-1 of RFC 5737, which no machine has.
        assert!(message("239.77.0.0:47700", "192.0.2.77").contains("cannot be used on 192.0.2.77"));
    }
}
