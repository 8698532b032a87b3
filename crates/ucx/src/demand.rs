//! Which of UCX's transports a job wants, and what this machine lacks for them.
use std::fs;
use std::path::Path;

use paceline_transport::error::{Result, RunError};

use super::calls::Library;
use super::find::modules;

/// Where Linux lists RDMA devices, and modules that give them the memory of GPUs.
const DEVICES: &str = "/sys/class/infiniband";
const PEER_MEMORY: [&str; 2] = ["/sys/module/nvidia_peermem", "/sys/module/nv_peer_mem"];
/// The driver of NVIDIA's devices.
const DRIVER: &str = "/proc/driver/nvidia/version";

/// The transports that a job demands.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum Demand {
    /// Whatever UCX has, but its TCP only where a user names it.
    Any,
    /// InfiniBand verbs (also over Ethernet: RoCE) between all ranks.
    Verbs,
    /// Verbs that read and write the memory of GPUs.
    GpuDirect,
}

/// What a machine has.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub(super) struct Machine {
    /// Active ports as UCX names them: `mlx5_0:1`.
    pub ports: Vec<String>,
    /// Ports that are not active.
    pub inactive: Vec<String>,
    /// The library's module for verbs is installed beside it.
    pub module: bool,
    /// The library's module for CUDA is.
    pub cuda_module: bool,
    /// A driver of NVIDIA's devices runs.
    pub driver: bool,
    /// The kernel's module that gives RDMA devices the memory of GPUs is loaded.
    pub peer_memory: bool,
}

impl Machine {
    pub fn here() -> Machine {
        let (ports, inactive) = ports(Path::new(DEVICES));
        let modules = modules();
        let has = |name: &str| modules.iter().any(|module| module.starts_with(name));
        Machine {
            ports,
            inactive,
            module: has("libuct_ib."),
            cuda_module: has("libuct_cuda."),
            driver: Path::new(DRIVER).exists(),
            peer_memory: PEER_MEMORY.iter().any(|module| Path::new(module).exists()),
        }
    }
}

/// Ports of RDMA devices, active and not, by the files of this folder.
fn ports(folder: &Path) -> (Vec<String>, Vec<String>) {
    let names = |folder: &Path| {
        let entries = fs::read_dir(folder).into_iter().flatten().flatten();
        let mut names: Vec<String> = entries.map(|entry| entry.file_name().to_string_lossy().into_owned()).collect();
        names.sort();
        names
    };
    let (mut active, mut others) = (Vec::new(), Vec::new());
    for device in names(folder) {
        let all = folder.join(&device).join("ports");
        for port in names(&all) {
            // `4: ACTIVE`.
            let state = fs::read_to_string(all.join(&port).join("state")).unwrap_or_default();
            let list = if state.contains("ACTIVE") { &mut active } else { &mut others };
            list.push(format!("{device}:{port}"));
        }
    }
    (active, others)
}

impl Demand {
    /// As users write it.
    #[must_use]
    pub fn name(self) -> &'static str {
        match self {
            Demand::Any => "grpc+ucx",
            Demand::Verbs => "grpc+verbs",
            Demand::GpuDirect => "grpc+gdr",
        }
    }

    /// Refuses what this machine or the user's variables do not allow, before the ranks meet.
    ///
    /// # Errors
    /// What is missing, and how to get it.
    pub fn check(self, library: &Library) -> Result<()> {
        if self == Demand::Any {
            return Ok(());
        }
        let given = std::env::var("UCX_TLS").ok();
        let library = format!("{}, {}", library.path.display(), library.version);
        self.check_on(&Machine::here(), &library, given.as_deref())
    }

    /// `library`: its path and version, for messages; `given`: the user's choice of transports.
    fn check_on(self, machine: &Machine, library: &str, given: Option<&str>) -> Result<()> {
        let refused = |why: &str, remedy: &str| {
            let message = format!("{}: {why}", self.name().trim_start_matches("grpc+"));
            Err(RunError::Setting("transport", message).with_remedy(remedy))
        };
        if let Some(given) = given {
            return refused(
                &format!("UCX_TLS={given} also chooses UCX's transports"),
                "unset UCX_TLS, or {transport=grpc+ucx}",
            );
        }
        let mut missing = Vec::new();
        if machine.ports.is_empty() {
            let inactive = machine.inactive.join(", ");
            missing.push(match machine.inactive.is_empty() {
                true => format!("an RDMA device (none in {DEVICES})"),
                false => format!("an active port of an RDMA device ({inactive} is down)"),
            });
        }
        if !machine.module {
            missing.push(format!("a UCX with verbs ({library}, is built without: no libuct_ib.so.0)"));
        }
        if self == Demand::GpuDirect {
            if !machine.driver {
                missing.push(format!("an NVIDIA driver (no {DRIVER})"));
            }
            if !machine.cuda_module {
                missing.push(format!("a UCX with CUDA ({library}, has no libuct_cuda.so.0)"));
            }
            if !machine.peer_memory {
                missing.push("the kernel module nvidia_peermem (or nv_peer_mem)".into());
            }
        }
        let remedy = match () {
            () if machine.ports.is_empty() => "{transport=grpc+ucx} (shared memory) or {transport=grpc+tcp}",
            () if !machine.module => {
                "the host's UCX (apt install libucx0, or MLNX_OFED's), or {ucx_library=/path/libucp.so.0}"
            }
            () if !machine.peer_memory => "modprobe nvidia_peermem, or {transport=grpc+verbs}",
            () => "{transport=grpc+verbs}",
        };
        match (missing.is_empty(), self) {
            (false, _) => refused(&format!("this machine lacks {}", missing.join(", ")), remedy),
            // What would be sent from the host's memory under this name is no GPUDirect.
            (true, Demand::GpuDirect) => refused(
                "this machine has all it takes, but Paceline hands UCX only the host's memory",
                "{transport=grpc+verbs}",
            ),
            (true, _) => Ok(()),
        }
    }

    /// UCX's settings, by their names without `UCX_`; the user's own `TLS` and `NET_DEVICES` stay. `together`: all ranks share one machine.
    /// `interface`: the network interface of the job's address.
    ///
    /// UCX's TCP is left out unless a user names it. It authenticates nobody, and whoever reaches its port can write to any
    /// address of the process (`put_req` in `src/uct/tcp/tcp_ep.c`).
    pub(super) fn settings(self, together: bool, interface: Option<&str>) -> Vec<(&'static str, String)> {
        // Without it, shared memory does not report a peer's death, and UCX does not take it where that is wanted.
        let mut settings = vec![("MM_ERROR_HANDLING", "y".into())];
        if std::env::var_os("UCX_TLS").is_none() {
            let transports = match self {
                Demand::Any if together => "self,sm",
                Demand::Any => "^tcp,cuda",
                Demand::Verbs => "self,ib",
                Demand::GpuDirect => "self,ib,cuda",
            };
            settings.push(("TLS", transports.into()));
        }
        if std::env::var_os("UCX_NET_DEVICES").is_none() {
            let (ports, _) = ports(Path::new(DEVICES));
            let networks = interface.filter(|_| self == Demand::Any).map(String::from);
            let devices: Vec<String> = ports.into_iter().chain(networks).collect();
            if !devices.is_empty() {
                settings.push(("NET_DEVICES", devices.join(",")));
            }
        }
        settings
    }

    /// Whether these transports of an endpoint are what was demanded.
    pub(super) fn is_met(self, transports: &[String]) -> bool {
        let verbs = |one: &String| ["rc", "ud", "dc"].iter().any(|prefix| one.starts_with(prefix));
        self == Demand::Any || transports.is_empty() || transports.iter().any(verbs)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn missing(demand: Demand, machine: &Machine, given: Option<&str>) -> (String, String) {
        let (error, remedy) = demand.check_on(machine, "libucp.so.0, 1.22.0", given).unwrap_err().parts();
        (error.to_string(), remedy.unwrap())
    }

    fn complete() -> Machine {
        let ports = vec!["mlx5_0:1".into()];
        Machine { ports, inactive: vec![], module: true, cuda_module: true, driver: true, peer_memory: true }
    }

    #[test]
    fn a_complete_machine_lacks_nothing() {
        assert_eq!(Demand::Verbs.check_on(&complete(), "", None), Ok(()));
        // Not yet of use.
        let (why, remedy) = missing(Demand::GpuDirect, &complete(), None);
        assert!(why.contains("only the host's memory") && remedy == "{transport=grpc+verbs}", "{why}");
    }

    #[test]
    fn each_missing_part_is_named_with_its_remedy() {
        let (why, remedy) = missing(Demand::Verbs, &Machine::default(), None);
        assert!(why.starts_with("transport: verbs: this machine lacks an RDMA device (none in"), "{why}");
        assert!(
            why.contains("libucp.so.0, 1.22.0, is built without") && remedy.contains("{transport=grpc+ucx}"),
            "{why}"
        );
        let down = Machine { ports: vec![], inactive: vec!["mlx5_0:1".into()], ..complete() };
        assert!(missing(Demand::Verbs, &down, None).0.contains("(mlx5_0:1 is down)"));
        let without = Machine { module: false, ..complete() };
        assert!(missing(Demand::Verbs, &without, None).1.contains("{ucx_library="));
        let without = Machine { peer_memory: false, driver: false, cuda_module: false, ..complete() };
        assert_eq!(Demand::Verbs.check_on(&without, "", None), Ok(()));
        let (why, remedy) = missing(Demand::GpuDirect, &without, None);
        for part in ["an NVIDIA driver", "has no libuct_cuda.so.0", "nvidia_peermem"] {
            assert!(why.contains(part), "{why}");
        }
        assert!(remedy.starts_with("modprobe nvidia_peermem"), "{remedy}");
    }

    #[test]
    fn a_choice_of_transports_contradicts_a_demand() {
        let (why, remedy) = missing(Demand::Verbs, &complete(), Some("tcp,self"));
        assert!(why.contains("UCX_TLS=tcp,self") && remedy.contains("unset UCX_TLS"), "{why} {remedy}");
    }

    #[test]
    fn ports_are_named_as_ucx_names_them() {
        let folder = std::env::temp_dir().join(format!("paceline-ucx-ports-{}", std::process::id()));
        for (device, port, state) in
            [("mlx5_1", "1", "1: DOWN"), ("mlx5_0", "1", "4: ACTIVE"), ("mlx5_0", "2", "2: INIT")]
        {
            let at = folder.join(device).join("ports").join(port);
            fs::create_dir_all(&at).unwrap();
            fs::write(at.join("state"), state).unwrap();
        }
        assert_eq!(ports(&folder), (vec!["mlx5_0:1".into()], vec!["mlx5_0:2".into(), "mlx5_1:1".into()]));
        fs::remove_dir_all(&folder).unwrap();
        assert_eq!(ports(&folder), (vec![], vec![]));
    }

    #[test]
    fn only_what_a_job_needs_is_opened() {
        let chosen = |demand: Demand, together| demand.settings(together, Some("lo"));
        if std::env::var_os("UCX_TLS").is_none() {
            assert_eq!(chosen(Demand::Any, true)[1], ("TLS", "self,sm".into()));
            assert_eq!(chosen(Demand::Any, false)[1], ("TLS", "^tcp,cuda".into()));
            assert_eq!(chosen(Demand::Verbs, true)[1], ("TLS", "self,ib".into()));
        }
        assert!(Demand::Verbs.is_met(&["rc_mlx5/mlx5_0:1".into()]) && !Demand::Verbs.is_met(&["tcp/eth0".into()]));
    }
}
