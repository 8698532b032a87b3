//! The network interfaces of this machine and their addresses.
//!
//! `getifaddrs` is a C function, and this crate has no unsafe code here. So this asks the kernel as that function does,
//! with an `RTM_GETADDR` dump over rtnetlink (rtnetlink(7), netlink(7)).
use std::collections::BTreeMap;
use std::fs;
use std::io::{self, Read, Write};
use std::net::{IpAddr, Ipv4Addr, Ipv6Addr};
use std::time::Duration;

use socket2::{Domain, Protocol, Socket, Type};

const AF_NETLINK: i32 = 16;
const NETLINK_ROUTE: i32 = 0;
const NLMSG_ERROR: u16 = 2;
const NLMSG_DONE: u16 = 3;
const RTM_NEWADDR: u16 = 20;
const RTM_GETADDR: u16 = 22;
const NLM_F_REQUEST_DUMP: u16 = 0x301;
const IFA_ADDRESS: u16 = 1;
const IFA_LOCAL: u16 = 2;
/// Sizes of `struct nlmsghdr` and of the `struct ifaddrmsg` that follows it.
const HEADER: usize = 16;
const IFADDRMSG: usize = 8;

/// Every interface with the addresses by which others can reach it: IPv4 first. Link-local IPv6 is left out, because it
/// needs a scope id that is only valid on the other machine.
pub(super) fn list() -> io::Result<BTreeMap<String, Vec<IpAddr>>> {
    let mut names = BTreeMap::new();
    for entry in fs::read_dir("/sys/class/net")? {
        let entry = entry?;
        if let Ok(index) = fs::read_to_string(entry.path().join("ifindex"))
            && let Ok(index) = index.trim().parse::<u32>()
        {
            names.insert(index, entry.file_name().to_string_lossy().into_owned());
        }
    }
    let mut interfaces: BTreeMap<String, Vec<IpAddr>> = names.values().map(|name| (name.clone(), Vec::new())).collect();
    for (index, ip) in addresses()? {
        let link_local = matches!(ip, IpAddr::V6(ip) if ip.is_unicast_link_local());
        if let Some(name) = names.get(&index)
            && !link_local
        {
            interfaces.get_mut(name).expect("made of the names").push(ip);
        }
    }
    interfaces.values_mut().for_each(|ips| ips.sort());
    Ok(interfaces)
}

/// `lo (127.0.0.1), eth0 (10.0.0.5)`, for messages.
pub(super) fn describe() -> String {
    match list() {
        Ok(interfaces) => {
            let one = |(name, ips): (&String, &Vec<IpAddr>)| {
                let ips: Vec<String> = ips.iter().map(ToString::to_string).collect();
                if ips.is_empty() { name.clone() } else { format!("{name} ({})", ips.join(", ")) }
            };
            interfaces.iter().map(one).collect::<Vec<_>>().join(", ")
        }
        Err(error) => format!("interfaces that cannot be listed: {error}"),
    }
}

fn addresses() -> io::Result<Vec<(u32, IpAddr)>> {
    let mut socket = Socket::new(Domain::from(AF_NETLINK), Type::DGRAM.cloexec(), Some(Protocol::from(NETLINK_ROUTE)))?;
    socket.set_read_timeout(Some(Duration::from_secs(1)))?;
    let mut request = Vec::with_capacity(HEADER + IFADDRMSG);
    request.extend(u32::try_from(HEADER + IFADDRMSG).expect("small").to_ne_bytes());
    request.extend(RTM_GETADDR.to_ne_bytes());
    request.extend(NLM_F_REQUEST_DUMP.to_ne_bytes());
    request.resize(HEADER + IFADDRMSG, 0);
    socket.write_all(&request)?;
    let mut found = Vec::new();
    // More than the kernel puts in one datagram of a dump.
    let mut datagram = vec![0; 1 << 16];
    loop {
        let length = socket.read(&mut datagram)?;
        if length == 0 || !collect(&datagram[..length], &mut found)? {
            return Ok(found);
        }
    }
}

/// Handles one datagram. Returns false if it was the last.
fn collect(mut rest: &[u8], found: &mut Vec<(u32, IpAddr)>) -> io::Result<bool> {
    while rest.len() >= HEADER {
        let length = u32_at(rest, 0) as usize;
        let Some(body) = rest.get(HEADER..length) else { break };
        match u16_at(rest, 4) {
            NLMSG_DONE => return Ok(false),
            NLMSG_ERROR => return Err(io::Error::other("the kernel does not list addresses")),
            RTM_NEWADDR if body.len() >= IFADDRMSG => {
                found.extend(address(&body[IFADDRMSG..]).map(|ip| (u32_at(body, 4), ip)));
            }
            _ => {}
        }
        rest = rest.get(length.next_multiple_of(4)..).unwrap_or(&[]);
    }
    Ok(true)
}

/// The address among these attributes. On a point-to-point link `IFA_ADDRESS` is the other end, and `IFA_LOCAL` ours.
fn address(mut attributes: &[u8]) -> Option<IpAddr> {
    let mut chosen = None;
    while attributes.len() >= 4 {
        let length = usize::from(u16_at(attributes, 0));
        let value = attributes.get(4..length)?;
        let ip = match value.len() {
            4 => Some(IpAddr::from(Ipv4Addr::from(<[u8; 4]>::try_from(value).ok()?))),
            16 => Some(IpAddr::from(Ipv6Addr::from(<[u8; 16]>::try_from(value).ok()?))),
            _ => None,
        };
        match u16_at(attributes, 2) {
            IFA_LOCAL => return ip,
            IFA_ADDRESS => chosen = ip,
            _ => {}
        }
        attributes = attributes.get(length.next_multiple_of(4)..).unwrap_or(&[]);
    }
    chosen
}

fn u16_at(bytes: &[u8], at: usize) -> u16 {
    u16::from_ne_bytes([bytes[at], bytes[at + 1]])
}

fn u32_at(bytes: &[u8], at: usize) -> u32 {
    u32::from_ne_bytes([bytes[at], bytes[at + 1], bytes[at + 2], bytes[at + 3]])
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn loopback_is_listed() {
        let interfaces = list().unwrap();
        assert!(interfaces["lo"].contains(&IpAddr::from(Ipv4Addr::LOCALHOST)), "{interfaces:?}");
        assert!(describe().contains("lo (127.0.0.1"), "{}", describe());
    }

    proptest::proptest! {
        #[test]
        fn any_bytes_are_read(bytes in proptest::collection::vec(proptest::num::u8::ANY, 0..200)) {
            let _ = collect(&bytes, &mut Vec::new());
            let _ = address(&bytes);
        }
    }
}
