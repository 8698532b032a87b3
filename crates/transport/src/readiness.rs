//! The set of sockets to watch: one system call a turn says which can be read or written, instead of one for each peer.
//!
//! Edge-triggered, epoll(7): each change is reported once. A stream reads until a read returns less than it asked for,
//! and is not asked again until the set reports it.
use std::io;
use std::mem::MaybeUninit;

use paceline_os::event::{Timespec, epoll};
use paceline_os::fd::{AsFd, BorrowedFd, OwnedFd};

/// Events per call; the rest follow with the next.
const EVENTS: usize = 64;

/// The changed state of a socket.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Ready {
    /// There may be something to read.
    pub read: bool,
    /// There may be room to write.
    pub write: bool,
    /// The peer has closed, or the connection is lost: a read returns the end or an error.
    pub ended: bool,
}

/// The watched sockets of a process.
pub struct ReadySet {
    epoll: OwnedFd,
}

impl ReadySet {
    /// An empty set.
    ///
    /// # Errors
    /// Too many open files.
    pub fn new() -> io::Result<ReadySet> {
        Ok(ReadySet { epoll: epoll::create(epoll::CreateFlags::CLOEXEC)? })
    }

    /// Watches this socket, number `socket` of the peer `rank`. Its current state is reported too.
    ///
    /// # Errors
    /// The limit of /proc/sys/fs/epoll/max_user_watches is reached.
    pub fn add(&self, rank: u32, socket: u32, source: impl AsFd) -> io::Result<()> {
        use epoll::EventFlags;
        let flags = EventFlags::IN | EventFlags::OUT | EventFlags::RDHUP | EventFlags::ET;
        let data = epoll::EventData::new_u64(u64::from(rank) << 32 | u64::from(socket));
        Ok(epoll::add(&self.epoll, source, data, flags)?)
    }

    /// Calls `report` with the rank, the socket number and the changes since the last call; never waits.
    pub fn look(&self, mut report: impl FnMut(u32, u32, Ready)) {
        use epoll::EventFlags;
        let now = Timespec { tv_sec: 0, tv_nsec: 0 };
        let mut events = [MaybeUninit::<epoll::Event>::uninit(); EVENTS];
        // An error is an interruption: the next call returns the events.
        let Ok((events, _)) = epoll::wait(&self.epoll, &mut events, Some(&now)) else { return };
        for event in events {
            let (data, flags) = (event.data.u64(), event.flags);
            let ended = flags.intersects(EventFlags::RDHUP | EventFlags::HUP | EventFlags::ERR);
            let ready = Ready { read: flags.contains(EventFlags::IN), write: flags.contains(EventFlags::OUT), ended };
            report((data >> 32) as u32, data as u32, ready);
        }
    }

    /// Becomes readable when there are events.
    #[must_use]
    pub fn as_fd(&self) -> BorrowedFd<'_> {
        self.epoll.as_fd()
    }
}

#[cfg(test)]
mod tests {
    use std::io::Write;

    use paceline_kernels::dtype::{Dtype, ReduceOp};
    use paceline_os::net::{Shutdown, TcpListener, TcpStream};

    use super::*;
    use crate::channel::{Channel, Sink};
    use crate::header::{Collective, FragmentHeader, Signature};
    use crate::tcp::TcpChannel;

    fn connected() -> (TcpStream, TcpStream) {
        let listener = TcpListener::bind("127.0.0.1:0").unwrap();
        let near = TcpStream::connect(listener.local_addr().unwrap()).unwrap();
        (near, listener.accept().unwrap().0)
    }

    fn reports(set: &ReadySet) -> Vec<(u32, u32, Ready)> {
        let mut all = Vec::new();
        set.look(|rank, socket, ready| all.push((rank, socket, ready)));
        all
    }

    #[test]
    fn a_change_is_reported_once_with_the_rank_and_the_number_of_its_socket() {
        let (set, (near, mut far)) = (ReadySet::new().unwrap(), connected());
        set.add(7, 3, &near).unwrap();
        assert_eq!(reports(&set), [(7, 3, Ready { read: false, write: true, ended: false })]);
        assert_eq!(reports(&set), []);
        far.write_all(b"x").unwrap();
        assert_eq!(reports(&set), [(7, 3, Ready { read: true, write: true, ended: false })]);
        assert_eq!(reports(&set), []);
        far.shutdown(Shutdown::Both).unwrap();
        assert!(reports(&set)[0].2.ended);
    }

    fn header(number: u32, bytes: usize) -> FragmentHeader {
        let signature = Signature {
            collective: Collective::SendRecv,
            dtype: Dtype::Uint8,
            op: ReduceOp::Sum,
            root: 0,
            count: bytes as u64,
            plan: 0,
        };
        FragmentHeader {
            group: 0,
            seq: number,
            lane: 0,
            slot: 0,
            from: 0,
            to: 1,
            bytes: bytes as u32,
            offset: 0,
            signature,
        }
    }

    /// Two ranks, each with a set of its own: a refused fragment is sent once there is room, and data sent before the
    /// sender left is received before the end.
    #[test]
    fn all_that_was_sent_arrives_and_then_the_end() {
        let (near, far) = connected();
        let mut ends = [near, far].map(|socket| (ReadySet::new().unwrap(), TcpChannel::new(vec![socket]).unwrap()));
        for (set, channel) in &mut ends {
            channel.join(set, 0).unwrap();
        }
        let turn =
            |(set, channel): &mut (ReadySet, TcpChannel)| set.look(|_, socket, ready| channel.report(socket, ready));
        let sizes: Vec<usize> = (0..405).map(|n| [0, 1, 48, 4096, 16 << 10, 100_000, 128 << 10][n % 7]).collect();
        let [mut sender, mut receiver] = ends;
        let (mut sent, mut got, mut turns) = (0, 0, 0);
        // The receiver reads rarely, so that the sender finds a full socket, but reads the last ones without delay.
        while sent < 400 || !sender.1.flush().unwrap() {
            turn(&mut sender);
            while sent < 400
                && sender.1.send(&header(sent as u32, sizes[sent]), &vec![sent as u8; sizes[sent]]).unwrap()
            {
                sent += 1;
            }
            turns += 1;
            turn(&mut receiver);
            while turns % 3 == 0 && take(&mut receiver.1, got, &sizes).unwrap() {
                got += 1;
            }
        }
        for (number, &bytes) in sizes.iter().enumerate().skip(400) {
            while !sender.1.send(&header(number as u32, bytes), &vec![number as u8; bytes]).unwrap() {
                turn(&mut sender);
                got += usize::from(take(&mut receiver.1, got, &sizes).unwrap());
                turn(&mut receiver);
            }
        }
        while !sender.1.flush().unwrap() {
            turn(&mut sender);
            got += usize::from(take(&mut receiver.1, got, &sizes).unwrap());
            turn(&mut receiver);
        }
        assert!(turns > 1);
        drop(sender);
        let end = loop {
            turn(&mut receiver);
            match take(&mut receiver.1, got, &sizes) {
                Ok(taken) => got += usize::from(taken),
                Err(error) => break error,
            }
        };
        assert_eq!((got, end.kind()), (sizes.len(), std::io::ErrorKind::UnexpectedEof));
    }

    fn take(channel: &mut TcpChannel, number: usize, sizes: &[usize]) -> io::Result<bool> {
        let Some(front) = channel.front()? else { return Ok(false) };
        assert_eq!(front, header(number as u32, sizes[number]));
        let mut payload = vec![0; sizes[number]];
        let taken = channel.take(Sink::Show(&mut |at, part| payload[at..at + part.len()].copy_from_slice(part)))?;
        assert!(!taken || payload.iter().all(|&byte| byte == number as u8));
        Ok(taken)
    }
}
