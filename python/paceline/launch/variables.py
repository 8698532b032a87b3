"""The environment variables of ranks."""

from __future__ import annotations

import os
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

from paceline._internal.system import cores
from paceline.errors import InvalidArgumentError

# Forwarded to other hosts in addition to PACELINE_*: variables that determine a rank's Python and modules.
_INHERITED = ("PYTHONPATH", "VIRTUAL_ENV", "PATH", "OMP_NUM_THREADS")
# Other launchers' variables. If one of them started this process, a rank would take its place for its own; if a rank
# has them, another launcher started it after us.
_STALE_PREFIXES = ("TORCHELASTIC_", "OMPI_COMM_WORLD_", "PMI_", "PMIX_", "MPI_LOCAL", "SLURM_STEP", "ROLE_")
_STALE = ("SLURM_PROCID", "SLURM_LOCALID", "SLURM_NODEID", "SLURM_GTIDS", "SLURM_TASK_PID", "NODE_RANK")
# Set for every rank by the launcher.
_OWN = (
    *("RANK", "WORLD_SIZE", "LOCAL_RANK", "LOCAL_WORLD_SIZE", "GROUP_RANK", "GROUP_WORLD_SIZE"),
    *("MASTER_ADDR", "MASTER_PORT", "PACELINE_RENDEZVOUS", "PACELINE_INTERFACE", "PACELINE_RUN_ID"),
    *("PACELINE_RUN_SERVERS", "PACELINE_RUN_SERVER", "PACELINE_RUN_SWITCHES", "PACELINE_RUN_FAILURE"),
)
SECRET = ("PACELINE_SECRET", "PACELINE_SECRET_FILE")


def stale(name: str) -> bool:
    """Return whether the variable belongs to another launcher or an outer job, and would mislead a rank."""
    return name.startswith(_STALE_PREFIXES) or name in (*_STALE, *_OWN, *SECRET)


def named(words: Sequence[str], environ: Mapping[str, str]) -> dict[str, str]:
    """Return the variables of `-x NAME` and `-x NAME=VALUE`. Raises InvalidArgumentError."""
    chosen: dict[str, str] = {}
    for word in words:
        name, given, value = word.partition("=")
        if not name or not name.replace("_", "a").isalnum() or name[0].isdigit():
            raise InvalidArgumentError(
                f"-x {word[:80]}: '{name[:80]}' is not a variable's name", remedy="-x NAME or -x NAME=VALUE"
            )
        if name in SECRET:
            raise InvalidArgumentError(
                f"-x {name}: other users can read command lines", remedy=f"export {name}=…, and drop -x {name}"
            )
        if name in _OWN:
            raise InvalidArgumentError(f"-x {name}: paceline run sets it itself", remedy=f"drop -x {name}")
        if not given and name not in environ:
            raise InvalidArgumentError(f"-x {name}: is not set here", remedy=f"-x {name}=VALUE")
        chosen[name] = value if given else environ[name]
    return chosen


def inherited(environ: Mapping[str, str]) -> dict[str, str]:
    """Return the variables that are forwarded to other hosts without -x."""
    return {name: value for name, value in environ.items() if name in _INHERITED} | inherited_settings(environ)


def inherited_settings(environ: Mapping[str, str]) -> dict[str, str]:
    """Return the settings among the inherited variables; a secret is passed in other ways."""
    return {
        name: value for name, value in environ.items() if name.startswith("PACELINE_") and name not in (*SECRET, *_OWN)
    }


def base(environ: Mapping[str, str], job: Mapping[str, Any]) -> dict[str, str]:
    """Return the common variables of all ranks on this host: the host's own, inherited and named ones.

    Folders of an inherited PATH that exist here come before the host's own; an inherited VIRTUAL_ENV is used if it
    exists here.
    """
    result = {name: value for name, value in environ.items() if not stale(name)}
    given = dict(job["inherited"])
    if "PATH" in given:
        folders = [folder for folder in given.pop("PATH").split(os.pathsep) if folder and Path(folder).is_dir()]
        own = result.get("PATH", os.defpath).split(os.pathsep)
        result["PATH"] = os.pathsep.join(dict.fromkeys(folders + own))
    if not Path(given.get("VIRTUAL_ENV", "/")).is_dir():
        del given["VIRTUAL_ENV"]
    result.update(given)
    result.setdefault("OMP_NUM_THREADS", str(max(1, cores() // max(1, job["count"]))))
    result.update(PYTHONUNBUFFERED="1", **job["settings"])
    result.update(job["named"])
    result["PACELINE_SECRET"] = job["secret"]
    return result


def of_rank(
    common: Mapping[str, str], job: Mapping[str, Any], go: Mapping[str, Any], local_rank: int
) -> dict[str, str]:
    """Return the environment of a rank: torchrun's names, and Paceline's."""
    return {
        **common,
        "RANK": str(job["first"] + local_rank),
        "WORLD_SIZE": str(job["size"]),
        "LOCAL_RANK": str(local_rank),
        "LOCAL_WORLD_SIZE": str(job["count"]),
        "GROUP_RANK": str(job["node"]),
        "GROUP_WORLD_SIZE": str(job["nodes"]),
        "MASTER_ADDR": go["address"],
        "MASTER_PORT": str(go["master_port"]),
        "PACELINE_RENDEZVOUS": go["rendezvous"],
        "PACELINE_INTERFACE": go["interface"],
        "PACELINE_RUN_ID": job["id"],
        **({"PACELINE_RUN_SERVERS": str(job["all_servers"])} if job["all_servers"] else {}),
        **({"PACELINE_RUN_SWITCHES": str(job["switches"])} if job["switches"] else {}),
        **({"PACELINE_RUN_NODES_PER_RACK": str(job["nodes_per_rack"])} if job["nodes_per_rack"] else {}),
    }


def of_server(common: Mapping[str, str], job: Mapping[str, Any], go: Mapping[str, Any], server: int) -> dict[str, str]:
    """Return the environment of a parameter server, which is not one of the user's ranks."""
    environment = of_rank(common, job, go, 0)
    for name in ("RANK", "LOCAL_RANK", "LOCAL_WORLD_SIZE"):
        del environment[name]
    return {**environment, "PACELINE_RUN_SERVER": str(server), "OMP_NUM_THREADS": "1"}
