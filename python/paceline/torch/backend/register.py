"""Registers the backend "paceline" with torch.distributed, and creates its process groups.

torch 2.15 finds the backend by an entry point when it is requested, without `import paceline.torch`; older versions
need the import. `torch.backends`, the other group of entry points, which torch loads whenever it is imported, is only
used for `paceline.as_gloo`.
"""

from __future__ import annotations

import json
import multiprocessing
import os
import sys
import weakref
from collections.abc import Callable, Mapping
from urllib.parse import parse_qsl, urlsplit

import torch
import torch.distributed as dist
from torch._C._distributed_c10d import Backend as C10dBackend
from torch._C._distributed_c10d import _DistributedBackendOptions
from torch.distributed import distributed_c10d
from torch.torch_version import TorchVersion

from paceline import store_address
from paceline._internal.ports import free_ports
from paceline.errors import InvalidArgumentError
from paceline.job.bootstrap import MpiExchange
from paceline.job.elastic_member import ADDRESS
from paceline.job.failure import tell_launcher
from paceline.job.rank_environment import RankEnvironment, rank_environment
from paceline.job.settings import BAIDU_RING, OVER_MPI, Settings
from paceline.torch.backend.disable_dynamo import keep_out
from paceline.torch.backend.group import explicit
from paceline.torch.backend.job import INSTEAD_OF_ELASTIC, NOT_ELASTIC, ProcessGroupJob
from paceline.torch.backend.process_group import BACKENDS_CAN_BE_SUBCLASSED, NAME, PacelineBackend, PacelineProcessGroup

_default: weakref.ref[ProcessGroupJob] | None = None
"""The job of the default group, if it uses Paceline. The group owns it, with its connections and memory.

A group that was made directly, with a store of its own (as trainers do to send weights to processes outside their
job), is a job of its own, whatever its size: its members are those who use that store.
"""


_MPIRUN = ("openmpi", "pmi")
_LAUNCHERS = {"openmpi": "mpirun", "pmi": "mpiexec (PMI)", "slurm": "Slurm"}
_NO_STEP_NODES = (
    "SLURM_STEP_NODELIST is missing, from which ranks learn where rank 0 is",
    "all SLURM_* variables, or MASTER_ADDR=node1 MASTER_PORT=29500 (of rank 0's host)",
)
"""The error, and the remedy."""
_NO_ADDRESS = (
    "mpirun does not set a rendezvous address",
    "PACELINE_TRANSPORT=mpi, or MASTER_ADDR=node1 MASTER_PORT=29500 (of rank 0's host)",
)


OLDEST_TORCH = "2.7"


def check_torch(version: TorchVersion) -> None:
    """Refuse a torch version with which DDP would hang.

    Before 2.7, C++ code that gets a `Work` from a process group in Python does not keep its Python object alive. The
    object is gone when C++ waits, so the base class's `c10d::Work::wait` runs, which never completes
    (https://github.com/pytorch/pytorch/pull/146376). DDP does so first in `_verify_param_shape_across_processes`.

    Raises:
        InvalidArgumentError: The version is older than 2.7.
    """
    if version < OLDEST_TORCH:
        raise InvalidArgumentError(
            f"torch {version}: the backend paceline needs torch {OLDEST_TORCH} or newer, as DDP hangs over older ones",
            remedy=f"pip install 'torch>={OLDEST_TORCH}'",
        )


def register() -> None:
    """Make the backend known to torch.distributed. Idempotent."""
    if NAME.upper() not in dist.Backend._plugins:
        keep_out()
        store_address.restrict()  # torch may have been imported without its extensions
        dist.Backend.register_backend(NAME, _create, extended_api=True, devices=["cpu", "cuda"])
        if os.environ.get(ADDRESS):
            _explain_missing_address((NOT_ELASTIC, INSTEAD_OF_ELASTIC))
        launcher = "none"
        try:
            place = rank_environment()
            _tell_torch(place)
            launcher = place.launcher
        except InvalidArgumentError as error:
            # Reported when the variables are needed: this may be an import in a process that is no rank.
            _refuse_variables(error)
        if os.environ.get("PACELINE_TRANSPORT") in OVER_MPI or os.environ.get("PACELINE_STRATEGY") == BAIDU_RING:
            _meet_over_mpi()
        elif launcher in _MPIRUN:
            _explain_missing_address(_NO_ADDRESS)
        elif launcher == "slurm":
            _explain_missing_address(_NO_STEP_NODES)


def _explain_missing_address(why: tuple[str, str]) -> None:
    """Explain how to start ranks where torch would ask for variables, which is not the best remedy."""

    def refuse() -> None:
        if not os.environ.get("MASTER_ADDR"):
            tell_launcher()
            raise InvalidArgumentError(why[0], remedy=why[1])

    _before_environment(refuse)


def _refuse_variables(why: InvalidArgumentError) -> None:
    """Say what is wrong with the launcher's variables where torch would name others, unless they have changed."""

    def refuse() -> None:
        complete = {"RANK", "WORLD_SIZE", "MASTER_ADDR", "MASTER_PORT"} <= os.environ.keys()
        if not complete:
            tell_launcher()
            raise why

    _before_environment(refuse)


def _before_environment(refuse: Callable[[], None]) -> None:
    """Call a check before torch reads the variables of `init_method="env://"`.

    This changes torch's own table: `register_rendezvous_handler` does not accept a scheme twice.
    """
    handlers = getattr(sys.modules.get("torch.distributed.rendezvous"), "_rendezvous_handlers", {})
    if "env" not in handlers:
        return
    torchs = handlers["env"]

    def meet(url: str, **options: object) -> object:
        # A rank and a size in the call or the URL need no variables.
        if not {"rank", "world_size"} <= {name for name, _ in parse_qsl(urlsplit(url).query)}:
            refuse()
        return torchs(url, **options)

    handlers["env"] = meet


def _tell_torch(place: RankEnvironment) -> None:
    """Set the variables that `init_process_group` reads, which mpirun and srun do not set.

    Those that are there stay, and may be some of them: job scripts export WORLD_SIZE, for example.

    Raises InvalidArgumentError if RANK or WORLD_SIZE is there alone, and differs from what the launcher says. If both
    are there they count: what the launcher started may have started the ranks. Where it cannot be seen that it did, a
    warning names the difference, before ranks wait for others that there may not be.
    """
    given = {name: os.environ[name] for name in ("RANK", "WORLD_SIZE") if os.environ.get(name)}
    if place.launcher not in _LAUNCHERS:
        return
    launched = {"RANK": str(place.rank), "WORLD_SIZE": str(place.size)}
    if len(given) == 2:
        if {name: text.strip() for name, text in given.items()} != launched and not multiprocessing.parent_process():
            _before_environment(lambda: _warn_of_difference(given, place))
        return
    for name, text in given.items():
        if text.strip() != launched[name]:
            raise InvalidArgumentError(
                f"{name}={text[:80]} is set, and {_LAUNCHERS[place.launcher]} says {launched[name]}",
                remedy=f"unset {name}, or as many processes as ranks",
            )
    known = {"MASTER_ADDR": place.master_address, "MASTER_PORT": place.master_port}
    for variable, value in {"RANK": place.rank, "WORLD_SIZE": place.size, **known}.items():
        if value is not None and not os.environ.get(variable):
            os.environ[variable] = str(value)


def _warn_of_difference(given: Mapping[str, str], place: RankEnvironment) -> None:
    if given.items() <= os.environ.items():
        sys.stderr.write(
            f"paceline: warning: RANK={given['RANK'][:20]} and WORLD_SIZE={given['WORLD_SIZE'][:20]} are set, and "
            f"{_LAUNCHERS[place.launcher]} says rank {place.rank} of {place.size}; RANK and WORLD_SIZE count here. "
            "Unset them, unless this process was started by one of its ranks\n"
        )


def _meet_over_mpi() -> None:
    """Let the ranks agree through MPI on the address of torch's store, unless it is set: mpirun does not set it.

    Raises InvalidArgumentError without MPI or for contradictory variables, JobError for missing ranks.
    """
    place, settings = rank_environment(), Settings.from_environment()
    if place.launcher not in _MPIRUN or {"MASTER_ADDR", "MASTER_PORT"} & os.environ.keys():
        return
    address = settings.address()
    [port] = free_ports(address, 1)
    blobs = MpiExchange(place.rank, place.size, settings)(json.dumps([address, port]).encode())
    master, port = json.loads(blobs[0])
    os.environ["MASTER_ADDR"], os.environ["MASTER_PORT"] = master, str(port)


def _create(options: _DistributedBackendOptions, backend_options: object) -> PacelineBackend | PacelineProcessGroup:
    """Create a process group; called by torch for the default group, and on every member of a new group."""
    tell_launcher()
    check_torch(torch.__version__)
    global _default  # noqa: PLW0603 - torch has one default group in a process
    if getattr(options, "enable_reconfigure", False):
        raise ValueError("paceline cannot change the ranks of a group; leave enable_reconfigure out")
    name, rank, size = str(options.group_id), options.group_rank, options.group_size
    ranks = list(options.global_ranks_in_group)
    timeout_s = explicit(options.timeout)
    current = _default() if _default is not None else None
    if not dist.is_initialized():
        if current is not None and not _in_use(current):
            current.close()
        # Only now does torch know a group that its caller has made; it may also be the default group.
        job, owns_job = ProcessGroupJob.start(options.store, rank, size, timeout_s, group=None), True
        _default = weakref.ref(job)
        comm = job.world
    elif current is not None and ranks and current.takes(options.store):
        job, owns_job = current, False
        comm = job.group(ranks, name, options.store)
    else:
        job, owns_job = ProcessGroupJob.start(options.store, rank, size, timeout_s, group=name), True
        comm = job.world
    if comm.rank != rank:
        raise AssertionError(f"rank {rank} of group {name} is rank {comm.rank} of {comm.ranks}")
    if alone(getattr(options, "process_group", None)):
        return PacelineProcessGroup(options.store, job, comm, name, timeout_s, owns_job=owns_job)
    return PacelineBackend(options.store, job, comm, name, timeout_s, owns_job=owns_job)


def _in_use(job: ProcessGroupJob) -> bool:
    """Return whether torch has a group of this job: one that was made directly, before the default group."""
    return any(getattr(group, "_job", None) is job for group in distributed_c10d._world.pg_map)


def create_as_gloo(options: _DistributedBackendOptions, backend_options: object) -> C10dBackend | dist.ProcessGroup:
    """Like `_create`, for a group that requested gloo (see `paceline.as_gloo`) and still reports gloo."""
    if options.group_rank == 0 and not dist.is_initialized():
        print("paceline: PACELINE_AS_GLOO is set: process groups of 'gloo' are Paceline's", file=sys.stderr)
    register()
    # Gloo has no options that matter here; torch passes those of gloo's own class.
    group = _create(options, None)
    group.backend_name = str(dist.Backend.GLOO)
    return group


def world_choices() -> list[tuple[int, str]]:
    """Return message sizes and the strategies used up to them in the default group; nothing if not ours."""
    job = _default() if _default is not None else None
    return job.world.choices() if job is not None else []


def alone(group: dist.ProcessGroup | None) -> bool:
    """Return whether the group that torch is creating has Paceline as its only backend.

    torch shows this only by the type of the group's default backend: that of its accelerator, if there is one. With a
    third-party accelerator that type is also Paceline's, and only `Backend` can be right.
    """
    if not BACKENDS_CAN_BE_SUBCLASSED:
        return True
    if group is None or group._get_backend_name() not in ("custom", "gloo"):
        return False
    accelerator = torch.accelerator.current_accelerator() if hasattr(torch, "accelerator") else None
    return not group._device_types and (accelerator is None or accelerator.type in ("cuda", "xpu", "mps"))
