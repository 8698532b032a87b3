//! A job's messages over UCX: a worker is opened, then connected to those of the other ranks.
use std::sync::Arc;
use std::time::{Duration, Instant};

use super::calls::{Library, Worker};
use super::channel::UcxChannel;
use super::demand::Demand;
use super::messages::Messages;
use super::shared::Shared;
use paceline_transport::channel::Channel;
use paceline_transport::error::{Result, RunError};
use paceline_transport::waiting::{Reports, START_TIMEOUT};

/// Polling interval while ranks greet each other.
const LOOK: Duration = Duration::from_micros(200);
/// The lower bits of a tag are its sender.
const SENDER: u64 = 0xffff;

/// How a rank's worker is made.
pub struct Options {
    /// The transports that are demanded.
    pub demand: Demand,
    /// This process's rank, and the number of ranks.
    pub place: (u32, u32),
    /// All ranks share one machine.
    pub together: bool,
    /// The network interface of the job's address.
    pub interface: Option<String>,
}

/// The other ranks, for `connect`.
pub struct Peers<'a> {
    /// By rank: what its port offers.
    pub offers: &'a [Vec<u8>],
    /// By rank: a number that only ranks of this job know, in the tag of all that is sent to it.
    pub keys: &'a [u64],
    /// The rank as messages name it.
    pub name: &'a dyn Fn(u32) -> String,
    /// When the start began, and until when ranks wait for each other.
    pub times: (Instant, Instant),
}

/// This process's end of a job's messages.
pub struct Port {
    shared: Arc<Shared>,
    options: Options,
    /// The library's version, a zero, and the worker's address.
    offer: Vec<u8>,
}

fn failed(what: &str) -> impl Fn(String) -> RunError {
    move |why| RunError::Failed(format!("UCX: {what}: {why}"))
}

/// The tag of a rank's messages to the one with this key.
fn tag(key: u64, sender: u32) -> u64 {
    (key & !SENDER) | u64::from(sender)
}

/// The version and the address in an offer.
fn version(offer: &[u8]) -> (&[u8], &[u8]) {
    let end = offer.iter().position(|&byte| byte == 0).unwrap_or(offer.len());
    (&offer[..end], offer.get(end + 1..).unwrap_or(&[]))
}

impl Port {
    /// Makes a worker.
    ///
    /// # Errors
    /// UCX's error; most likely the variables of the user leave no transport.
    pub fn open(library: &Arc<Library>, options: Options) -> Result<Port> {
        let settings = options.demand.settings(options.together, options.interface.as_deref());
        let named: Vec<(&str, &str)> = settings.iter().map(|(name, value)| (*name, value.as_str())).collect();
        let mut worker = Worker::new(library, options.place.1 as usize, &named).map_err(|why| {
            let chosen: Vec<String> = ["TLS", "NET_DEVICES"]
                .iter()
                .filter_map(|name| {
                    let given = std::env::var(format!("UCX_{name}")).ok();
                    let ours = named.iter().find(|(known, _)| known == name).map(|(_, value)| (*value).to_owned());
                    given.or(ours).map(|value| format!("UCX_{name}={value}"))
                })
                .collect();
            failed(&format!("no worker with {}", chosen.join(" ")))(why)
                .with_remedy("unset UCX_TLS and UCX_NET_DEVICES, or UCX_LOG_LEVEL=info to see why")
        })?;
        let mut offer = format!("{}\0", library.version).into_bytes();
        offer.extend(worker.address().map_err(failed("the worker has no address"))?);
        let descriptor = worker.descriptor().map_err(failed("the worker has no descriptor"))?;
        let shared = Shared::new(Messages::new(worker, options.place.1 as usize), descriptor)
            .map_err(|error| RunError::Failed(format!("cannot create an eventfd: {error}")))?;
        Ok(Port { shared: Arc::new(shared), options, offer })
    }

    /// What the other ranks need to connect to this one.
    #[must_use]
    pub fn offer(&self) -> &[u8] {
        &self.offer
    }

    /// Connects to all other ranks, and waits until each has greeted this one.
    ///
    /// # Errors
    /// A rank that UCX does not reach, or that does not greet in time.
    pub fn connect(&self, peers: &Peers<'_>) -> Result<()> {
        let (me, size) = self.options.place;
        let (keys, mine) = (peers.keys, version(&self.offer).0);
        for rank in (0..size).filter(|&rank| rank != me) {
            let tags = (tag(keys[rank as usize], me), tag(keys[me as usize], rank));
            let (theirs, address) = version(&peers.offers[rank as usize]);
            if theirs != mine {
                // The format of addresses is the version's own business.
                let (theirs, mine) = (String::from_utf8_lossy(theirs), String::from_utf8_lossy(mine));
                let message = format!("{} has UCX {theirs}, {} has {mine}", (peers.name)(rank), (peers.name)(me));
                return Err(RunError::Failed(message).with_remedy("the same UCX on all hosts ({ucx_library})"));
            }
            let connected = self.shared.with(|messages| messages.connect(rank as usize, address, tags));
            connected.map_err(|why| self.unreachable(&(peers.name)(rank), &why))?;
        }
        let (begun, until) = peers.times;
        let mut reports = Reports::new(begun, until.saturating_duration_since(begun), START_TIMEOUT);
        loop {
            let greeted = self.shared.with(Messages::greeted);
            let missing = greeted.map_err(|(rank, why)| self.unreachable(&(peers.name)(rank), &why))?;
            let names = || missing.iter().take(4).map(|&rank| (peers.name)(rank)).collect::<Vec<_>>().join(", ");
            let now = Instant::now();
            if missing.is_empty() {
                break;
            }
            if now > until {
                let waited = until.saturating_duration_since(begun).as_secs_f64();
                let message = format!("rank {me} waited {waited:.0} s for UCX messages of {}", names());
                return Err(RunError::Failed(message).with_remedy("their output, or a longer {start_timeout}"));
            }
            reports.report(now, |waited| {
                format!("rank {me} has waited {:.0} s for UCX messages of {}", waited.as_secs_f64(), names())
            });
            std::thread::sleep(LOOK);
        }
        let transports = self.transports();
        let other =
            |(rank, all): (u32, &Vec<String>)| (!self.options.demand.is_met(all)).then(|| (rank, all.join(", ")));
        match (0..).zip(&transports).find_map(other) {
            None => Ok(()),
            Some((rank, all)) => Err(self.unreachable(&(peers.name)(rank), &format!("UCX chose {all}"))),
        }
    }

    /// By rank: the transports that UCX has chosen, with their devices.
    #[must_use]
    pub fn transports(&self) -> Vec<Vec<String>> {
        self.shared.with(Messages::transports)
    }

    /// The channel to a rank.
    #[must_use]
    pub fn channel(&self, rank: u32) -> Box<dyn Channel> {
        Box::new(UcxChannel { shared: self.shared.clone(), rank: rank as usize })
    }

    fn unreachable(&self, name: &str, why: &str) -> RunError {
        let message = format!("UCX reaches {name} by no transport: {why}");
        let error = RunError::Failed(message);
        match self.options.demand {
            Demand::Any if std::env::var_os("UCX_TLS").is_some() => {
                error.with_remedy("unset UCX_TLS, or {transport=grpc+tcp}")
            }
            Demand::Any => error.with_remedy(
                "{transport=grpc+tcp}, or UCX_TLS=self,sm,tcp on a network that you trust (its TCP has no secret)",
            ),
            _ => error.with_remedy("ibv_devinfo on both hosts, or {transport=grpc+tcp}"),
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use paceline_kernels::dtype::{Dtype, ReduceOp};
    use paceline_transport::channel::Sink;
    use paceline_transport::header::{Collective, FragmentHeader, Signature};

    #[test]
    fn tags_name_their_sender_and_nothing_else_of_a_key_is_lost() {
        assert_eq!(tag(0x1234_5678_9abc_def0, 7), 0x1234_5678_9abc_0007);
        assert_ne!(tag(1 << 16, 7), tag(1 << 17, 7));
    }

    #[test]
    fn an_offer_has_a_version_and_an_address() {
        assert_eq!(version(b"1.22.0\0ad\0dress"), (&b"1.22.0"[..], &b"ad\0dress"[..]));
        assert_eq!(version(b"nothing"), (&b"nothing"[..], &b""[..]));
    }

    #[test]
    fn ranks_of_different_versions_do_not_read_each_others_addresses() {
        let Ok(library) = crate::library(std::env::var("PACELINE_UCX_LIBRARY").ok().as_deref(), None) else { return };
        let options = Options { demand: Demand::Any, place: (0, 2), together: true, interface: None };
        let port = Port::open(&library, options).unwrap();
        let offers = [port.offer().to_vec(), b"1.2.3\0garbage".to_vec()];
        let (name, times) = (|rank: u32| format!("rank {rank}"), (Instant::now(), Instant::now()));
        let error = port.connect(&Peers { offers: &offers, keys: &[1, 2], name: &name, times }).unwrap_err();
        assert!(error.to_string().starts_with("rank 1 has UCX 1.2.3, rank 0 has 1."), "{error}");
    }

    fn header(seq: u32, bytes: u32) -> FragmentHeader {
        let (collective, dtype, op) = (Collective::AllReduce, Dtype::Float32, ReduceOp::Sum);
        let signature = Signature { collective, dtype, op, root: 0, count: 3, plan: 5 };
        FragmentHeader { group: 1, seq, lane: 0, slot: 0, from: 0, to: 1, bytes, offset: 0, signature }
    }

    /// The two ranks of a job, each on a thread. `None`: there is no UCX here.
    fn two(rank: impl Fn(u32, Box<dyn Channel>) + Send + Sync + Copy) -> Option<()> {
        connected([[1 << 40, 3 << 40]; 2], 20, |me, port, greeted| {
            greeted.unwrap();
            assert!(port.transports()[me as usize].is_empty());
            rank(me, port.channel(1 - me));
        })
    }

    /// The same, by the keys that each rank knows, within so many seconds.
    fn connected(
        keys: [[u64; 2]; 2],
        limit_s: u64,
        rank: impl Fn(u32, Port, Result<()>) + Send + Sync + Copy,
    ) -> Option<()> {
        let library = crate::library(std::env::var("PACELINE_UCX_LIBRARY").ok().as_deref(), None).ok()?;
        let open = |me| Options { demand: Demand::Any, place: (me, 2), together: true, interface: Some("lo".into()) };
        let ports = [0, 1].map(|me| Port::open(&library, open(me)).unwrap());
        let offers = [0, 1].map(|me: usize| ports[me].offer().to_vec());
        std::thread::scope(|scope| {
            for (me, port) in (0..).zip(ports) {
                let offers = &offers;
                scope.spawn(move || {
                    let times = (Instant::now(), Instant::now() + Duration::from_secs(limit_s));
                    let name = |rank: u32| format!("rank {rank}");
                    let greeted = port.connect(&Peers { offers, keys: &keys[me as usize], name: &name, times });
                    rank(me, port, greeted);
                });
            }
        });
        Some(())
    }

    fn payload(number: u32) -> Vec<u8> {
        let bytes = [0, 1, 7, 4096, 70_001, 128 << 10][number as usize % 6];
        (0..bytes).map(|at| (at as u32 * 31 + number) as u8).collect()
    }

    #[test]
    fn messages_without_the_key_are_not_handed_on() {
        connected([[1 << 40, 3 << 40], [1 << 40, 4 << 40]], 1, |me, _, greeted| {
            let error = greeted.unwrap_err().to_string();
            let waited = format!("rank {me} waited 1 s for UCX messages of rank {}", 1 - me);
            assert!(error == waited, "{error}");
        });
    }

    #[test]
    fn fragments_arrive_whole_and_in_order_both_ways() {
        const MANY: u32 = 300;
        two(|_, mut channel| {
            let (mut sent, mut taken, mut refused) = (0, 0, 0);
            let until = Instant::now() + Duration::from_secs(60);
            while sent < MANY || taken < MANY || !channel.flush().unwrap() {
                assert!(Instant::now() < until, "{sent} sent, {taken} taken");
                if sent < MANY {
                    let bytes = payload(sent);
                    let accepted = channel.send(&header(sent, bytes.len() as u32), &bytes).unwrap();
                    (sent, refused) = (sent + u32::from(accepted), refused + u32::from(!accepted));
                }
                let Some(front) = channel.front().unwrap() else { continue };
                assert_eq!(front, header(taken, payload(taken).len() as u32));
                let mut bytes = vec![0; front.bytes as usize];
                assert!(channel.take(Sink::Into(&mut bytes)).unwrap());
                assert_eq!(bytes, payload(taken));
                taken += 1;
            }
            assert!(refused > 0, "a channel is bounded");
        });
    }

    #[test]
    fn a_receiver_that_takes_nothing_holds_back_its_sender() {
        two(|me, mut channel| {
            let until = Instant::now() + Duration::from_millis(300);
            let mut accepted = 0;
            while Instant::now() < until {
                accepted += u32::from(me == 0 && channel.send(&header(accepted, 4), &[1; 4]).unwrap());
                channel.front().unwrap();
            }
            assert!(accepted <= 24, "{accepted} fragments in flight");
        });
    }
}
