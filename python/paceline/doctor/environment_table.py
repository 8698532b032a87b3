"""The output of `paceline doctor --env`: one line per fact, short enough to paste into an issue."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from paceline._internal import units
from paceline._internal.console import wrapped


def table(document: Mapping[str, Any], width: int) -> list[str]:
    """Return lines for people. `found` is the result of `environment.collect`."""
    sections = {
        "Versions": _versions(document),
        "System": _system(document),
        "Transports": {
            it["name"]: ("yes" if it["available"] else "no") + (f": {it['detail']}" if it["detail"] else "")
            for it in document["transports"]
        }
        | _cuda_aware_mpi(document["cuda_aware_mpi"]),
        "Network interfaces": {it["name"]: _interface(it) for it in document["interfaces"]} | _rdma(document["rdma"]),
        "Limits (ulimit, soft / hard)": {
            name: " / ".join(_limit(name, limit[end]) for end in ("soft", "hard"))
            for name, limit in document["limits"].items()
        },
        "Environment variables": dict(document["variables"]) or {"none": "of PACELINE_, HOROVOD_, OMP_ and their like"},
    }
    label = max(len(name) for rows in sections.values() for name in rows)
    lines: list[str] = []
    for title, rows in sections.items():
        lines += [*([""] if lines else []), title]
        for name, value in rows.items():
            # Names of variables may be long, and their values have no blanks to break at.
            lines += wrapped(f"  {name:<{min(label, 24)}}  {value}", width, " " * (min(label, 24) + 4)) or [f"  {name}"]
    if document["settings"]:
        lines += ["", *wrapped(f"These settings would stop a job: {document['settings']}", width, "  ")]
    return lines


def _cuda_aware_mpi(answer: Mapping[str, Any] | None) -> dict[str, str]:
    if answer is None:
        return {}
    does = {"combines": "yes", "moves": "broadcast and all-gather", "nothing": "no", None: "unknown"}[answer["takes"]]
    remedy = f"; try: {answer['try']}" if answer["try"] else ""
    return {"CUDA-aware MPI": f"{does}: {answer['said']}{remedy}"}


def _versions(document: Mapping[str, Any]) -> dict[str, str]:
    always = ("paceline", "python", "torch", "numpy", "mpi", "nccl")
    versions = document["versions"]
    return {name: version or "not found" for name, version in versions.items() if version or name in always}


def _system(document: Mapping[str, Any]) -> dict[str, str]:
    system, cpu, memory = document["system"], document["cpu"], document["memory"]
    inside = f", in a container ({system['container']})" if system["container"] else ""
    cores = [f"{cpu['logical']} logical", f"{cpu['affinity']} usable by this process"]
    if cpu["cgroup_limit"] is not None:
        cores.append(f"its control group may use the time of {units.short(cpu['cgroup_limit'])}")
    rows = {
        "os": f"{system['os'] or 'unknown'}{inside}",
        "kernel": f"{system['kernel']} ({system['machine']})",
        "libc": system["libc"] or "unknown",
        "processor": cpu["model"] or "unknown",
        "cores": ", ".join(cores),
        "memory": _of(memory["available_bytes"], "available", memory["total_bytes"]),
        "/dev/shm": _of(memory["shm_free_bytes"], "free", memory["shm_bytes"]),
        "gpus": ", ".join(document["gpus"]) or "none found",
    }
    if memory["cgroup_limit_bytes"] is not None:
        rows["memory"] += f"; its control group may use {units.size(memory['cgroup_limit_bytes'])}"
    return rows


def _of(part: int | None, word: str, whole: int | None) -> str:
    return "unknown" if part is None or whole is None else f"{units.size(part)} {word} of {units.size(whole)}"


def _interface(card: Mapping[str, Any]) -> str:
    parts = [
        card["ipv4"] or "no IPv4 address",
        *card["ipv6"],
        units.rate(card["speed_bps"]) if card["speed_bps"] else "",
        f"MTU {card['mtu']}" if card["mtu"] else "",
        "" if card["up"] else "down",
    ]
    return ", ".join(part for part in parts if part)


def _rdma(devices: list[str]) -> dict[str, str]:
    return {"RDMA": f"{', '.join(devices)} (Paceline uses them through MPI alone)"} if devices else {}


def _limit(name: str, value: int | None) -> str:
    if value is None:
        return "unlimited"
    return (
        units.size(value) if value and name in ("locked memory", "address space", "stack", "core file") else f"{value}"
    )
