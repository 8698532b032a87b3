//! Virtual processes.
use std::fmt::Arguments;
use std::io;

use rustix::io::Errno;
pub use rustix::process::Pid;

use super::fd::OwnedFd;
use super::poll::Kind;
use super::world::{Life, point, with};

/// Process ids begin here, so that they are no other numbers.
const FIRST: u32 = 1000;

/// The running process.
#[must_use]
pub fn id() -> u32 {
    with(|world| FIRST + world.my_process() as u32)
}

fn process(pid: u32) -> Option<usize> {
    let process = pid.checked_sub(FIRST)? as usize;
    with(|world| (world.processes.get(process)?.life != Life::Dead).then_some(process))
}

/// The name of the running process's host.
#[must_use]
pub fn host_name() -> String {
    with(|world| format!("host{}", world.my_host()))
}

/// Identifies the running process's host.
#[must_use]
pub fn machine() -> String {
    with(|world| format!("{:x} {}", world.machine, world.my_host()))
}

/// Opens what another process of the host has open.
///
/// # Errors
/// It has ended or is on another host, or has no such descriptor.
pub fn open_descriptor(pid: u32, fd: i32, _read: bool) -> io::Result<OwnedFd> {
    point();
    let process = process(pid).ok_or(Errno::NOENT)?;
    with(|world| {
        if world.processes[process].host != world.my_host() {
            return Err(Errno::NOENT.into());
        }
        let open = world.descriptors.get(fd as usize).and_then(Option::as_ref);
        let kind = open.filter(|open| open.process == process).map(|open| open.kind).ok_or(Errno::NOENT)?;
        if let Kind::PipeWriter(pipe) = kind {
            world.pipes[pipe].writers += 1;
        }
        Ok(world.open(kind))
    })
}

/// The number by which the kernel knows a process: all live ones of a world are this one.
#[must_use]
pub fn kernel_id(pid: i32) -> i32 {
    point();
    match u32::try_from(pid).ok().and_then(process) {
        Some(_) => std::process::id() as i32,
        None => i32::MAX,
    }
}

/// No process of a world forks.
pub fn release(_descriptors: &[i32]) {}

/// Keeps what a process says.
pub fn report(line: Arguments<'_>) {
    with(|world| {
        let line = line.to_string();
        world.say(|| line.clone());
        world.reports.push(line);
    });
}
