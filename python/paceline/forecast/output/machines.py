"""Writes docs/reference/machines.md: python -m paceline.forecast.output.machines docs/reference/machines.md."""

from __future__ import annotations

import sys
from pathlib import Path

from paceline._internal import units
from paceline.catalog.builtin import load_cluster
from paceline.catalog.gpus import Hardware, all_hardware, architecture_title
from paceline.catalog.instances import Instance, all_instances
from paceline.catalog.nodes import slot_bps
from paceline.forecast.evidence import has_interval

_HEAD = """# Machines

GPUs for `--gpu`, and clouds' instances for `--cluster`, with what they cost. This page is generated from the files in
`python/paceline/catalog/gpus` and `python/paceline/catalog/instances`:

```
python -m paceline.forecast.output.machines docs/reference/machines.md
```

`paceline list gpus NAME` has the source of every figure of a GPU. `paceline list instances NAME` has that of an
instance and of its price, and `--json` prints all of them. Names are accepted in any case, with or without hyphens, and
as `nvidia-smi` prints them. Other words filter a list: `paceline list instances aws h100`. A GPU that is missing is a
file: `paceline list gpus h100 --json > mine.json`, edited.

## GPUs

Peaks are dense, in 16 bits. Memory is what programs get. A link is NVLink or Infinity Fabric, per direction, or with *
what NCCL gets of a PCI Express slot; with ** GPUs do not reach each other's memory over it.

| name | GPU | TFLOP/s | memory, GB | GB/s | link, GB/s | W | also |
| --- | --- | ---: | ---: | ---: | ---: | ---: | --- |
"""
_EVIDENCE = """## What has been measured

Forecasts of computation have been compared with published training steps. An
[interval](../explanation/accuracy.md) needs two sources that measured GPUs of the architecture
(`paceline list gpus NAME` counts them). Shares of peaks of others are from public measurements of single kernels, or
assumed, as [their constants say](../explanation/operators.md). On AMD's GPUs, RCCL takes the place of NCCL: forecasts
use NCCL's model with the rates of Infinity Fabric.

| architecture | GPUs | evidence |
| --- | --- | --- |
"""
_INSTANCES = """## Instances

Prices are on demand, in US dollars for a GPU and an hour, on the date of their source. A dash: none was found. Your own
price is better than any of these.

| name | GPUs | between nodes | $ | of | short names |
| --- | --- | ---: | ---: | --- | --- |
"""


def page() -> str:
    """Return the text of the page."""
    devices = all_hardware()
    lines = [_HEAD.rstrip("\n"), *map(_gpu, devices), "", _EVIDENCE.rstrip("\n")]
    for architecture in dict.fromkeys(device.architecture for device in devices):
        names = ", ".join(f"`{device.name}`" for device in devices if device.architecture == architecture)
        measured = "measured by two sources or more" if has_interval(architecture) else "no interval"
        lines.append(f"| {architecture_title(architecture)} | {names} | {measured} |")
    lines += ["", _INSTANCES.rstrip("\n"), *map(_instance, all_instances()), "", "Sources of prices:", ""]
    prices = [(one.cloud, one.price.source) for one in all_instances() if one.price is not None]
    lines += [f"- {cloud}: {source}" for cloud, source in dict.fromkeys(prices)]
    return "\n".join(lines) + "\n"


def _gpu(device: Hardware) -> str:
    slot = slot_bps(device)
    if device.link_bandwidth is not None:
        link = f"{device.link_bandwidth / 1e9:.4g}"
    else:
        link = "" if slot is None else f"{slot / 8e9:g}{'*' if device.peer_access else '**'}"
    figures = [
        f"{device.half_peak / 1e12:.4g}",
        f"{device.memory_bytes / 1e9:.1f}",
        f"{device.memory_bandwidth / 1e9:.4g}",
        link,
        "" if device.power_w is None else f"{device.power_w:g}",
    ]
    also = ", ".join(f"`{name}`" for name in device.aliases)
    return f"| `{device.name}` | {device.title} | {' | '.join(figures)} | {also} |"


def _instance(one: Instance) -> str:
    rate = units.rate(load_cluster(one.name).bandwidth_bps) if one.states_network else "not stated"
    price, date = ("-", "") if one.price is None else (f"{one.price.usd_per_gpu_hour:.2f}", one.price.date)
    also = ", ".join(f"`{name}`" for name in one.aliases)
    return f"| {one.cloud} `{one.name}` | {one.gpus} `{one.hardware.name}` | {rate} | {price} | {date} | {also} |"


def main() -> None:
    """Write the page to the file that is given."""
    Path(sys.argv[1]).write_text(page(), encoding="utf-8")


if __name__ == "__main__":
    main()
