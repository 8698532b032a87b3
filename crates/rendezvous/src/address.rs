//! Addresses as users write them, and whether it is safe to listen on them.
use std::io;

use paceline_os::net::{IpAddr, SocketAddr, ToSocketAddrs};
use paceline_os::sync::mpsc;
use paceline_os::thread;
use paceline_os::time::{Duration, Instant};
use paceline_transport::error::{Result, RunError};

/// Splits `host:port` or `[v6]:port`. The host may be a name. Port 0 is refused, because the other ranks could not
/// learn the actual port.
pub(super) fn split(address: &str) -> Result<(&str, u16)> {
    let wrong = |what: &str| {
        RunError::Usage(format!(
            "{address:?} is not a rendezvous address: {what}; write host:port, for instance 10.0.0.5:29400 or \
             [fd00::5]:29400"
        ))
    };
    let (host, port) = address.rsplit_once(':').ok_or_else(|| wrong("it has no port"))?;
    let host = match host.strip_prefix('[').and_then(|host| host.strip_suffix(']')) {
        Some(host) => host,
        None if host.contains(':') => return Err(wrong("put an IPv6 address in brackets")),
        None => host,
    };
    if host.is_empty() {
        return Err(wrong("it has no host"));
    }
    match port.parse() {
        Ok(0) | Err(_) => Err(wrong("the port must be from 1 to 65535")),
        Ok(port) => Ok((host, port)),
    }
}

/// Deadline for a name lookup that nothing else waits for.
pub(super) fn longest_look_up() -> Instant {
    Instant::now() + Duration::from_secs(10)
}

/// The addresses of a host. The system's resolver has no time limit, so it runs in a thread, which is abandoned if it
/// takes longer than `deadline`.
pub(super) fn resolve(host: &str, port: u16, deadline: Instant) -> io::Result<Vec<SocketAddr>> {
    if let Ok(ip) = host.parse::<IpAddr>() {
        return Ok(vec![SocketAddr::new(ip, port)]);
    }
    let (sender, receiver) = mpsc::channel();
    let name = host.to_owned();
    thread::Builder::new().name("paceline-resolver".into()).spawn(move || {
        let found = (name.as_str(), port).to_socket_addrs().map(Iterator::collect::<Vec<_>>);
        // The receiver is gone after the deadline.
        let _ = sender.send(found);
    })?;
    let nothing = |why: String| io::Error::other(format!("cannot resolve host {host:?}: {why}"));
    match receiver.recv_timeout(deadline.saturating_duration_since(Instant::now())) {
        Ok(Ok(found)) if found.is_empty() => Err(nothing("it has no address".into())),
        Ok(Ok(found)) => Ok(found),
        Ok(Err(error)) => Err(nothing(error.to_string())),
        Err(_) => Err(nothing("no answer in time".into())),
    }
}

/// Why `address` cannot be listened on, and what to do.
pub(super) fn cannot_listen(address: &str, error: &io::Error) -> String {
    match error.kind() {
        io::ErrorKind::AddrInUse => {
            format!("cannot listen on {address}: address in use; choose another port with PACELINE_RENDEZVOUS / --port")
        }
        io::ErrorKind::AddrNotAvailable => {
            format!("cannot listen on {address}: this machine does not have that address")
        }
        io::ErrorKind::PermissionDenied => {
            format!("cannot listen on {address}: not permitted; ports below 1024 need root; choose a higher one")
        }
        _ => format!("cannot listen on {address}: {error}"),
    }
}

/// An address for messages: an IPv4 address that came through an IPv6 socket is shown as IPv4.
#[must_use]
pub fn plain(address: SocketAddr) -> SocketAddr {
    SocketAddr::new(address.ip().to_canonical(), address.port())
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn hosts_and_ports() {
        assert_eq!(split("node-1:29400").unwrap(), ("node-1", 29400));
        assert_eq!(split("[fd00::5]:1").unwrap(), ("fd00::5", 1));
        for wrong in ["", "host", "host:", ":80", "host:0", "host:65536", "host:-1", "::1:80", "[::1]", "[]:80"] {
            let message = split(wrong).unwrap_err().to_string();
            assert!(message.contains("write host:port"), "{wrong}: {message}");
        }
    }

    #[test]
    fn names_that_nobody_has() {
        let error = resolve("no-such-host.invalid", 1, longest_look_up()).unwrap_err().to_string();
        assert!(error.contains("\"no-such-host.invalid\""), "{error}");
    }

    proptest::proptest! {
        #[test]
        fn any_text_is_read(text in "\\PC{0,40}") {
            let _ = split(&text);
        }
    }
}
