//! Where a rank listens for other ranks.
use paceline_os::net::{Domain, IpAddr, SockAddr, Socket, SocketAddr, TcpListener, Type};
use paceline_transport::error::{Result, RunError};

use super::{address, interfaces};

/// Backlog of the listening socket. All ranks may call at once, and so may strangers; the kernel limits it to
/// `net.core.somaxconn`.
const BACKLOG: i32 = 4096;

/// A socket that the ranks connect to, on a port that the system chooses. [`connect_mesh`](super::connect_mesh) takes
/// it and closes it once all have connected.
#[derive(Debug)]
pub struct Listener {
    pub(super) socket: TcpListener,
    address: SocketAddr,
}

impl Listener {
    /// Listens on an IP address, on the address of an interface (`eth0`), or on that of a host name of this machine.
    ///
    /// # Errors
    /// The interface or host does not exist, it does not belong to this machine, or others cannot connect to the
    /// address (`0.0.0.0`).
    pub fn bind(interface: &str) -> Result<Listener> {
        let ips = ips_of(interface)?;
        let mut refused = String::new();
        for ip in ips {
            if ip.is_unspecified() {
                return Err(RunError::Usage(format!(
                    "{ip} is no address at which other ranks could reach this one; give one of this machine's: {}",
                    interfaces::describe()
                )));
            }
            match listen(SocketAddr::new(ip, 0)) {
                Ok((socket, address)) => return Ok(Listener { socket, address }),
                Err(error) => refused = address::cannot_listen(interface, &error),
            }
        }
        Err(RunError::Usage(format!("{refused}; this machine has {}", interfaces::describe())))
    }

    /// The address for other ranks.
    #[must_use]
    pub fn address(&self) -> SocketAddr {
        self.address
    }

    /// The non-blocking socket and its address.
    pub fn into_socket(self) -> (TcpListener, SocketAddr) {
        (self.socket, self.address)
    }
}

/// Refuses to listen where other machines can connect if the user gave no secret: the ranks would have none in common,
/// or one that is easy to guess. `address` is an IP address, an interface or a host, possibly with a port.
///
/// # Errors
/// It is not a loopback address and `has_secret` is false, or the interface or host does not exist.
pub fn check_exposure(address: &str, has_secret: bool) -> Result<()> {
    if has_secret {
        return Ok(());
    }
    // `::1` has colons and no port, so try the whole text as an address first.
    let host = if address.parse::<IpAddr>().is_ok() {
        address
    } else {
        address::split(address).map_or(address, |(host, _)| host)
    };
    if ips_of(host)?.iter().all(|ip| ip.to_canonical().is_loopback()) {
        return Ok(());
    }
    Err(RunError::Usage(format!(
        "{address} can be reached from other machines, but the job has no secret that keeps strangers out: set \
         PACELINE_SECRET or PACELINE_SECRET_FILE to the same value on all ranks (`paceline run` makes one)"
    )))
}

/// The interface of this machine that has this address.
#[must_use]
pub fn interface_of(ip: IpAddr) -> Option<String> {
    let all = interfaces::list().ok()?;
    let has =
        |ips: &[IpAddr]| ips.contains(&ip.to_canonical()) || (ip.is_loopback() && ips.iter().any(IpAddr::is_loopback));
    all.into_iter().find(|(_, ips)| has(ips)).map(|(name, _)| name)
}

/// A name is tried as an interface before it is tried as a host: interfaces are few, and no host is called `eth0`.
pub(super) fn ips_of(interface: &str) -> Result<Vec<IpAddr>> {
    if let Ok(ip) = interface.parse() {
        return Ok(vec![ip]);
    }
    if let Some(ips) = interfaces::list().ok().and_then(|mut all| all.remove(interface)) {
        if ips.is_empty() {
            return Err(RunError::Usage(format!(
                "interface {interface} has no address; this machine has {}",
                interfaces::describe()
            )));
        }
        return Ok(ips);
    }
    match address::resolve(interface, 0, address::longest_look_up()) {
        Ok(addresses) => Ok(addresses.iter().map(SocketAddr::ip).collect()),
        Err(error) => Err(RunError::Usage(format!(
            "no interface, address or host is called {interface:?} ({error}); this machine has {}",
            interfaces::describe()
        ))),
    }
}

/// A non-blocking listening socket and its actual address.
pub(super) fn listen(address: SocketAddr) -> std::io::Result<(TcpListener, SocketAddr)> {
    let socket = Socket::new(Domain::for_address(address), Type::STREAM.cloexec().nonblocking(), None)?;
    // A restarted job may find connections of its predecessor in TIME_WAIT. A live listener still makes this fail.
    socket.set_reuse_address(true)?;
    socket.bind(&SockAddr::from(address))?;
    socket.listen(BACKLOG)?;
    let socket = TcpListener::from(socket);
    let address = socket.local_addr()?;
    Ok((socket, address))
}

#[cfg(test)]
mod tests {
    use super::*;

    fn message(interface: &str) -> String {
        match Listener::bind(interface) {
            Err(RunError::Usage(message)) => message,
            other => panic!("{other:?}"),
        }
    }

    #[test]
    fn by_address_interface_and_name() {
        for interface in ["127.0.0.1", "lo", "localhost"] {
            let listener = Listener::bind(interface).unwrap();
            assert!(listener.address().ip().is_loopback() && listener.address().port() != 0);
        }
    }

    #[test]
    fn an_address_belongs_to_an_interface() {
        for ip in ["127.0.0.1", "127.9.9.9", "::ffff:127.0.0.1"] {
            assert_eq!(interface_of(ip.parse().unwrap()).as_deref(), Some("lo"));
        }
        assert_eq!(interface_of("192.0.2.1".parse().unwrap()), None);
    }

    #[test]
    fn what_cannot_be_is_said() {
        let unknown = message("no-such-interface0");
        assert!(unknown.contains("\"no-such-interface0\"") && unknown.contains("lo (127.0.0.1"), "{unknown}");
        // TEST-NET-1 of RFC 5737, which no machine has.
        let foreign = message("192.0.2.1");
        assert!(foreign.contains("this machine does not have that address"), "{foreign}");
        assert!(message("0.0.0.0").contains("no address at which other ranks"));
        assert!(message("::").contains("no address at which other ranks"));
    }

    #[test]
    fn exposed_without_a_secret() {
        for closed in ["127.0.0.1", "127.9.9.9:80", "::1", "[::1]:80", "lo", "localhost:80", "::ffff:127.0.0.1"] {
            check_exposure(closed, false).unwrap();
        }
        for open in ["0.0.0.0:80", "::", "10.0.0.5:29400", "[fd00::5]:29400", "fd00::5"] {
            let message = check_exposure(open, false).unwrap_err().to_string();
            assert!(message.contains("PACELINE_SECRET") && message.contains(open), "{message}");
            check_exposure(open, true).unwrap();
        }
        assert!(check_exposure("no-such-host.invalid", false).is_err());
    }
}
