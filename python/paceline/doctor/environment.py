"""Facts about this machine and installation, for `paceline doctor --env`.

Nothing heavy is imported: versions come from the packages' metadata. Unknown values are None.
"""

from __future__ import annotations

import contextlib
import ctypes
import importlib.metadata
import os
import platform
import re
import resource
import shutil
import socket
import struct
import sys
from collections.abc import Callable, Iterator, Mapping
from pathlib import Path
from typing import Any

from paceline import _core
from paceline._internal.netif import LOOPBACK, address_of, addresses, ipv6, loopback
from paceline._internal.system import cores
from paceline.doctor import cuda_aware_mpi
from paceline.errors import InvalidArgumentError

PACKAGES = ("torch", "torchvision", "numpy", "ray", "mpi4py", "horovod", "tensorflow", "matplotlib", "pandas")
# NVIDIA's wheels, which torch installs; their names contain the CUDA version.
_NCCL_PACKAGES = ("nvidia-nccl-cu13", "nvidia-nccl-cu12", "nvidia-nccl-cu11")
_RELEVANT = re.compile(
    r"_?(PACELINE|HOROVOD|OMP|MKL|KMP|OPENBLAS|GLOO|NCCL|TORCH|TORCHELASTIC|OMPI_MCA|MPICH|MPIR|UCX|FI|CUDA)_.*"
    r"|(LOCAL_)?(RANK|WORLD_SIZE)|MASTER_(ADDR|PORT)|OMPI_COMM_WORLD_SIZE|PMI_SIZE"
    r"|SLURM_(JOB_ID|NTASKS|PROCID|LOCALID|NNODES|CPUS_PER_TASK)|LD_(PRELOAD|LIBRARY_PATH)|COLUMNS|NO_COLOR"
)
# PWD and OLDPWD are the shell's working directories.
_SECRET = re.compile(r"SECRET|TOKEN|PASS|(?<!^)(?<!^OLD)PWD|KEY|CREDENTIAL|AUTH|COOKIE|CERT", re.IGNORECASE)
# Up to the last @, because a password may contain @ and /.
_IN_AN_ADDRESS = re.compile(r"(?<=://)\S+@")
_CONTAINERS = (("/.dockerenv", "docker"), ("/run/.containerenv", "podman"))
_CGROUPS, _OWN_CGROUP = Path("/sys/fs/cgroup"), Path("/proc/self/cgroup")
HIDDEN = "(set, not shown)"
_LIMITS = {
    "open files": "RLIMIT_NOFILE",
    "processes": "RLIMIT_NPROC",
    "locked memory": "RLIMIT_MEMLOCK",
    "address space": "RLIMIT_AS",
    "stack": "RLIMIT_STACK",
    "core file": "RLIMIT_CORE",
    "real-time priority": "RLIMIT_RTPRIO",
}
# linux/sockios.h and net/if.h
_SIOCGIFFLAGS = 0x8913
_IFF_UP, _IFF_MULTICAST = 0x1, 0x1000
_TEST_GROUP = "239.77.0.0"  # In the administratively scoped block (RFC 2365); it is joined, and nothing is sent.


def collect(environ: Mapping[str, str] | None = None) -> dict[str, Any]:
    """Everything, ready for JSON; sizes in bytes, rates in bits per second.

    Secrets are left out: a variable whose name suggests a secret is only reported as set.

    Args:
        environ: the environment variables to report; those of this process if none are given.

    Returns:
        A dictionary with the keys `format`, `version`, `versions`, `system`, `cpu`, `memory`, `gpus`, `transports`,
        `cuda_aware_mpi`, `interfaces`, `rdma`, `limits`, `settings` and `variables`.
    """
    environ = os.environ if environ is None else environ
    mpi, no_mpi = _mpi(environ)
    interfaces = _interfaces()
    document = {
        "format": "paceline-environment",
        "version": 1,
        "versions": {
            "paceline": _core.__version__,
            "python": platform.python_version(),
            **{name: _package(name) for name in PACKAGES},
            "mpi": mpi,
            "nccl": _nccl(),
        },
        "system": _system(),
        "cpu": {
            "model": _field(Path("/proc/cpuinfo"), "model name") or platform.processor() or None,
            "logical": os.cpu_count(),
            "affinity": cores(),
            "cgroup_limit": _cgroup_cpus(),
        },
        "memory": _memory(),
        "gpus": _gpus(),
        "transports": _transports(environ, interfaces, no_mpi),
        "cuda_aware_mpi": None if no_mpi else cuda_aware_mpi.ask(environ),
        "interfaces": interfaces,
        "rdma": _names_in(Path("/sys/class/infiniband")),
        "limits": _limits(),
        "settings": _settings(environ),
        "variables": variables(environ),
    }
    hidden = [value for name, value in environ.items() if _SECRET.search(name) and len(value) >= 4]
    return {key: _without(value, hidden) for key, value in document.items()}


def variables(environ: Mapping[str, str]) -> dict[str, str]:
    """Return the variables that affect jobs, sorted; secrets are hidden."""
    relevant = {name: value for name, value in environ.items() if _RELEVANT.fullmatch(name)}
    return {
        name: HIDDEN if value and _may_be_secret(name) else _IN_AN_ADDRESS.sub("…@", value)
        for name, value in sorted(relevant.items())
    }


def _may_be_secret(name: str) -> bool:
    """Return whether a variable's name suggests a secret, or is Paceline's and unknown: perhaps a misspelled secret."""
    from paceline.job.settings import is_known

    return bool(_SECRET.search(name)) or (name.lstrip("_").startswith("PACELINE_") and not is_known(name))


def _without(cleared: Any, hidden: list[str]) -> Any:  # noqa: ANN401
    """Remove secrets and users of addresses wherever they occur: in messages, in other variables."""
    if isinstance(cleared, str):
        for secret in hidden:
            cleared = cleared.replace(secret, HIDDEN)
        return _IN_AN_ADDRESS.sub("…@", cleared)
    if isinstance(cleared, dict):
        return {key: _without(value, hidden) for key, value in cleared.items()}
    if isinstance(cleared, list):
        return [_without(value, hidden) for value in cleared]
    return cleared


def _package(name: str) -> str | None:
    try:
        return importlib.metadata.version(name)
    except importlib.metadata.PackageNotFoundError:
        return None


def _mpi(environ: Mapping[str, str]) -> tuple[str | None, str]:
    """Return the library that a job over MPI would use, or why there is none."""
    try:
        path, version = _core.mpi_library(environ.get("PACELINE_MPI_LIBRARY") or None)
    except InvalidArgumentError as error:
        return None, error.reason.removeprefix("mpi: ")
    name = os.path.basename(os.fspath(path))  # noqa: PTH119
    with contextlib.suppress(OSError):  # where the loader found it
        for line in Path("/proc/self/maps").read_text(encoding="utf-8", errors="replace").splitlines():
            mapped = line.split(maxsplit=5)[-1]
            if mapped.rpartition("/")[2].startswith(name):
                return f"{version} ({mapped})", ""
    return f"{version} ({os.fspath(path)})", ""


def _nccl() -> str | None:
    for package in _NCCL_PACKAGES:
        if version := _package(package):
            return version
    try:
        library, number = ctypes.CDLL("libnccl.so.2"), ctypes.c_int()
        library.ncclGetVersion(ctypes.byref(number))
    except (OSError, AttributeError):
        return None
    return f"{number.value // 10000}.{number.value // 100 % 100}.{number.value % 100}"


def _system() -> dict[str, str | None]:
    try:
        name = platform.freedesktop_os_release().get("PRETTY_NAME")
    except OSError:
        name = f"{platform.system()} {platform.mac_ver()[0]}".strip()
    libc, version = platform.libc_ver()
    return {
        "os": name,
        "kernel": platform.release(),
        "machine": platform.machine(),
        "libc": f"{libc} {version}" if libc else None,
        "container": next((name for mark, name in _CONTAINERS if Path(mark).exists()), None),
    }


def _text(path: Path) -> str | None:
    try:
        return path.read_text(encoding="utf-8", errors="replace").strip()
    except OSError:
        return None


def _field(path: Path, name: str) -> str | None:
    """Return the value of the first line `name : value`."""
    for line in (_text(path) or "").splitlines():
        key, _, value = line.partition(":")
        if key.strip() == name:
            return value.strip()
    return None


def _names_in(folder: Path) -> list[str]:
    with contextlib.suppress(OSError):
        return sorted(entry.name for entry in folder.iterdir())
    return []


def _cgroups(controller: str) -> Iterator[Path]:
    """Return the folders of this process's control group and its ancestors, which also limit it (cgroups(7))."""
    for line in (_text(_OWN_CGROUP) or "").splitlines():
        _, controllers, group = line.split(":", 2)
        if controllers and controller not in controllers.split(","):
            continue
        root = _CGROUPS / controllers
        path = root / group.lstrip("/")
        while path.is_relative_to(root):
            yield path
            path = path.parent


def _cgroup_cpus() -> float | None:
    """Return how many cores' worth of time it may use; None without a limit."""
    limits = []
    for group in _cgroups("cpu"):
        quota, period = _text(group / "cpu.cfs_quota_us"), _text(group / "cpu.cfs_period_us")
        if second := _text(group / "cpu.max"):
            quota, _, period = second.partition(" ")
        if quota and period and quota != "max" and int(quota) > 0:
            limits.append(int(quota) / int(period))
    return min(limits, default=None)


def _cgroup_memory() -> int | None:
    texts = [_text(group / name) for group in _cgroups("memory") for name in ("memory.max", "memory.limit_in_bytes")]
    limits = [int(text) for text in texts if text and text != "max"]
    # The first version writes a number close to 2^63 where there is no limit.
    return min((limit for limit in limits if limit < 1 << 60), default=None)


def _memory() -> dict[str, int | None]:
    def meminfo(name: str) -> int | None:
        value = _field(Path("/proc/meminfo"), name)
        return int(value.split()[0]) * 1024 if value else None

    try:
        shm = shutil.disk_usage("/dev/shm")
    except OSError:
        shm = None
    return {
        "total_bytes": meminfo("MemTotal"),
        "available_bytes": meminfo("MemAvailable"),
        "cgroup_limit_bytes": _cgroup_memory(),
        "shm_bytes": shm and shm.total,
        "shm_free_bytes": shm and shm.free,
    }


def _gpus() -> list[str]:
    """Return the names of GPUs from NVIDIA's driver."""
    cards = Path("/proc/driver/nvidia/gpus")
    return [_field(cards / card / "information", "Model") or card for card in _names_in(cards)]


def _flags(name: str) -> int:
    if not sys.platform.startswith("linux"):
        return 0
    import fcntl

    with socket.socket(socket.AF_INET, socket.SOCK_DGRAM) as probe:
        try:
            answer = fcntl.ioctl(probe.fileno(), _SIOCGIFFLAGS, struct.pack("256s", name.encode()[:15]))
        except OSError:
            return 0
    return int(struct.unpack_from("H", answer, 16)[0])


def _interfaces() -> list[dict[str, Any]]:
    known = addresses()
    found6: dict[str, list[str]] = {}
    for name, address, _, _ in ipv6():
        found6.setdefault(name, []).append(address)
    interfaces = []
    for _, name in socket.if_nameindex():
        flags, folder = _flags(name), Path("/sys/class/net") / name
        speed, mtu = _text(folder / "speed"), _text(folder / "mtu")
        interfaces.append(
            {
                "name": name,
                "up": bool(flags & _IFF_UP),
                "ipv4": next((one for one in known.get(name, ()) if ":" not in one), None),
                "ipv6": found6.get(name, []),
                "mtu": int(mtu) if mtu else None,
                # In Mbit/s; virtual interfaces have none, or report -1.
                "speed_bps": int(speed) * 1_000_000 if speed and int(speed) > 0 else None,
                "multicast": bool(flags & _IFF_MULTICAST),
            }
        )
    return interfaces


def _transports(environ: Mapping[str, str], interfaces: list[dict[str, Any]], no_mpi: str) -> list[dict[str, Any]]:
    """Try each transport; return the results, with the reason if it fails."""
    tcp = _tried(lambda: _listen(environ.get("PACELINE_INTERFACE") or loopback()))
    checks = {
        "shm": _tried(_share_memory),
        "tcp": tcp,
        "grpc": tcp,
        "mpi": (not no_mpi, no_mpi),
        "multicast": _tried(lambda: _join_group(interfaces)),
    }
    return [{"name": name, "available": works, "detail": detail} for name, (works, detail) in checks.items()]


def _tried(attempt: Callable[[], str]) -> tuple[bool, str]:
    try:
        return True, attempt()
    except (OSError, InvalidArgumentError) as error:
        return False, str(error)


def _share_memory() -> str:
    """Create and open a segment as ranks of one host do."""
    if not hasattr(os, "memfd_create"):
        raise InvalidArgumentError(f"needs memfd_create, which {platform.system()} does not have")
    made = os.memfd_create("paceline")
    try:
        os.posix_fallocate(made, 0, resource.getpagesize())
        os.close(os.open(f"/proc/{os.getpid()}/fd/{made}", os.O_RDWR))
    finally:
        os.close(made)
    scope = _text(Path("/proc/sys/kernel/yama/ptrace_scope"))
    if scope in (None, "0"):
        return ""
    return f"large pieces may be copied twice: kernel.yama.ptrace_scope is {scope}"


def _listen(interface: str) -> str:
    address = address_of(interface, "PACELINE_INTERFACE")
    with socket.socket(socket.AF_INET6 if ":" in address else socket.AF_INET) as server:
        server.bind((address, 0))
        server.listen(1)
    if address not in LOOPBACK:
        return f"on {address}"
    given = "" if interface in LOOPBACK else f" to another than {interface}"
    return f"on {address}, this machine alone; set PACELINE_INTERFACE{given} for several"


def _join_group(interfaces: list[dict[str, Any]]) -> str:
    usable = [card for card in interfaces if card["up"] and card["multicast"] and card["ipv4"]]
    if not usable:
        raise InvalidArgumentError("no interface that is up has the flag MULTICAST and an IPv4 address")
    with socket.socket(socket.AF_INET, socket.SOCK_DGRAM) as probe:
        group = socket.inet_aton(_TEST_GROUP) + socket.inet_aton(usable[0]["ipv4"])
        probe.setsockopt(socket.IPPROTO_IP, socket.IP_ADD_MEMBERSHIP, group)
    names = ", ".join(card["name"] for card in usable)
    return f"groups can be joined on {names}; whether the network forwards them is not tested"


def _limits() -> dict[str, dict[str, int | None]]:
    def number(limit: int) -> int | None:
        return None if limit == resource.RLIM_INFINITY else limit

    limits = {}
    for name, constant in _LIMITS.items():
        if hasattr(resource, constant):
            soft, hard = resource.getrlimit(getattr(resource, constant))
            limits[name] = {"soft": number(soft), "hard": number(hard)}
    return limits


def _settings(environ: Mapping[str, str]) -> str | None:
    """Return what is wrong with the PACELINE_ variables; None if a job would accept them."""
    from paceline.job.settings import Settings

    try:
        Settings.from_environment(environ)
    except InvalidArgumentError as error:
        return str(error)
    return None
