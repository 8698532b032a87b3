"""Plot the all-reduces of a run: time and bus bandwidth by size."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import allreduce
import summary
import systems

SHOWN = ("gloo", "torch-paceline", "openmpi", "mpich", "openmpi-tcp", "paceline-tcp", "paceline")
COLOURS = {"gloo": "#8c564b", "openmpi": "#1f77b4", "mpich": "#2ca02c", "openmpi-tcp": "#17becf"}


def draw(content: dict[str, Any], path: Path) -> None:
    """One row per number of ranks, to a PNG."""
    import matplotlib as mpl

    mpl.use("Agg")
    import matplotlib.pyplot as plt

    measured = content["all_reduce"]
    figure, axes = plt.subplots(len(measured), 2, figsize=(11, 4.2 * len(measured)), squeeze=False, sharex=True)
    for (ranks, of_ranks), (time, bandwidth) in zip(measured.items(), axes, strict=True):
        times = allreduce.times(of_ranks) | {"limit": allreduce.by_size(of_ranks["limit"])}
        for name in [*SHOWN, "limit"]:
            points = {size: summary.middle(rounds) for size, rounds in times.get(name, {}).items()}
            known = {size: seconds for size, seconds in points.items() if seconds}
            if not known:
                continue
            sizes = list(known)
            style: dict[str, Any] = {"label": _label(name), "marker": "o", "markersize": 3}
            style["color"] = COLOURS.get(name, "black" if name == "limit" else "#d62728")
            style["linestyle"] = ":" if name == "limit" else "--" if name.endswith("tcp") else "-"
            if name.startswith("torch"):
                style |= {"color": "#ff7f0e"}
            time.plot(sizes, [seconds * 1e6 for seconds in known.values()], **style)
            speeds = [summary.bus_bandwidth(size, int(ranks), seconds) for size, seconds in known.items()]
            if name != "limit":
                bandwidth.plot(sizes, speeds, **style)
        time.set(ylabel="microseconds", yscale="log", title=f"all-reduce, {ranks} ranks")
        bandwidth.set(ylabel="GB/s", title=f"bus bandwidth, {ranks} ranks")
        for axis in (time, bandwidth):
            axis.set_xscale("log", base=2)
            axis.set_xticks(allreduce.SIZES, [summary.size_text(size) for size in allreduce.SIZES], rotation=45)
            axis.grid(alpha=0.3)
        time.legend(fontsize=8)
    figure.tight_layout()
    path.parent.mkdir(parents=True, exist_ok=True)
    figure.savefig(path, dpi=110, metadata={"Software": None})
    plt.close(figure)


def _label(name: str) -> str:
    if name == "limit":
        return "limit: bytes over the copy rate"
    system = systems.SYSTEMS[name]
    return f"{system.title}{', through torch' if system.job == 'job_torch.py' else ''}"
