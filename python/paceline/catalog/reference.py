"""Writes docs/reference/libraries.md: python -m paceline.catalog.reference docs/reference/libraries.md."""

from __future__ import annotations

import json
import sys
from collections.abc import Iterable
from pathlib import Path

from paceline.catalog import channels, nccl
from paceline.catalog.constants import Constant
from paceline.catalog.libraries import ALL_AT_ONCE, MEANING, UNLIMITED, Library, all_libraries

_HEAD = """# Libraries and channels

Constants of communication libraries and of links between and inside machines, as forecasts use them. This page is
generated from the data files in `python/paceline/catalog` and `crates/nccl/data`:

```
python -m paceline.catalog.reference docs/reference/libraries.md
```

`--library NAME,…` selects the framework to model, in `simulate`, `report` and Python's `simulate` and `sweep`. It
defaults to the library that the trace was recorded with, else to `ddp`, and to `none` for a trace without compute.
`none` is the bare schedule: every tensor is its own bucket, and messages cost nothing but what the cluster sets. Under
`native`, NCCL chooses as its newest known release does. `ddp@2.8` is the library with NCCL 2.8 (to 2.12, 2020 to 2022).
Explicit options win over a library's: `--bucket-size`, `--message-overhead`, and those of its strategy.
`paceline list libraries` prints the same, as JSON with `--json`.

The **channel** carries messages between nodes. It is `tcp`, `rdma`, or `none`, where messages get the whole bandwidth.
A cluster sets its own (`channel` of the [cluster format](cluster-format.md)). The default cluster has TCP up to
25 Gbps and RDMA above. `--channel` overrides both. With a channel, `bandwidth` is the wire's rate. Messages get a
share of it, or the rate of the library's few TCP connections if that is less: under `ring` and `native` a node sends
to one other node only. Latency and cost per message are the channel's unless the cluster or an option sets them.
`"0s"` counts as set. A cluster's figures were measured over its own channel. With another one, only options count.

Each constant has a unit, a source, and an uncertainty: how much more or less it may plausibly be. Constants that
were fitted to measurements name them.

## Libraries

| name | its own strategy | what it is |
| --- | --- | --- |
"""


_NCCL = """Of the [times of its collectives](../explanation/nccl.md). The tables with which NCCL itself chooses are in
`crates/nccl/data/tuning.json`, its constants in `calibration.json` beside it."""


def page() -> str:
    """Return the text of the page."""
    libraries = all_libraries()
    lines = [_HEAD.rstrip("\n")]
    lines += [f"| `{it.name}` | `{it.strategy}` | {it.summary} |" for it in libraries]
    lines += ["", "Constants:", "", "| constant | meaning |", "| --- | --- |"]
    lines += [f"| `{name}` | {meaning} |" for name, meaning in MEANING.items()]
    for library in libraries:
        if library.constants or library.options:
            lines += ["", f"### {library.name}", "", *_habits(library)]
            lines += _table(library.constants.values()) if library.constants else []
    lines += ["", "## Channels and machines", "", *_table(channels.all_constants().values())]
    lines += ["", "## NCCL", "", _NCCL, "", *_table(nccl.all_constants().values())]
    return "\n".join(lines) + "\n"


def _habits(library: Library) -> list[str]:
    said = {"coordinator": library.coordinator, "channel": library.channel, "servers": library.servers}
    words = [f"{name} `{value}`" for name, value in said.items() if value]
    words += [f"`{name} = {json.dumps(value)}`" for name, value in library.options.items()]
    lines = [f"Options: {', '.join(words)}.", ""] if words else []
    if library.small is not None:
        size = f"{library.small.to:,} bytes"
        lines += [f"A message of up to {size}, by itself: `{library.small.strategy}` ({library.small.source}).", ""]
    return lines


def _table(constants: Iterable[Constant]) -> list[str]:
    head = ["| constant | value | \u00b1 | source | fitted to |", "| --- | --- | --- | --- | --- |"]
    return head + [
        f"| `{it.name}` | {_value(it)} | {100 * it.uncertainty:.0f}% | {it.source} | {it.calibrated} |"
        for it in constants
    ]


def _value(constant: Constant) -> str:
    """Return the value with its unit, in a unit that people read."""
    value, unit = constant.value, constant.unit
    if unit == "bit/s":
        return f"{value / 1e9:g} Gbps"
    if unit == "bytes" and value >= UNLIMITED:
        return ALL_AT_ONCE
    if unit == "bytes":
        return f"{value / 1e6:g} MB"
    if unit == "s" or unit.startswith("s per"):
        return f"{value * 1e6:g} \u00b5{unit}"
    return f"{value:g} {unit}"


def main() -> None:
    """Write the page to the file that is given."""
    Path(sys.argv[1]).write_text(page(), encoding="utf-8")


if __name__ == "__main__":
    main()
