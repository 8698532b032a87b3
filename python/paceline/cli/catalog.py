"""The commands `paceline list traces`, `clusters`, `strategies` and `libraries`: what is built in, with sources."""

from __future__ import annotations

import json
from collections.abc import Callable, Sequence
from dataclasses import fields
from pathlib import Path
from typing import TYPE_CHECKING, Any

import click

from paceline._core import Cluster, written_time
from paceline._internal import units
from paceline._internal.console import Column, put, render, say, width, wrapped
from paceline._internal.files import check_writable, replaced
from paceline.catalog.builtin import (
    cluster_document,
    cluster_text,
    load_cluster,
    load_trace,
    totals,
)
from paceline.catalog.builtin_names import cluster_names, trace_names
from paceline.catalog.channels import with_channel
from paceline.catalog.models.config import find_config
from paceline.catalog.rates import rates_of
from paceline.catalog.strategies import KNOBS, all_strategies
from paceline.cli.command import Command
from paceline.cli.completion import complete

if TYPE_CHECKING:
    from paceline.catalog.constants import Constant
    from paceline.catalog.libraries import Library

_json = click.option("--json", "as_json", is_flag=True, help="Print JSON.")
_verbose = click.option("--verbose", is_flag=True, help="Print the source of each; one alone always has it.")
_export = click.option(
    "--export", type=click.Path(path_type=Path), metavar="FILE", help="Copy it to a file that you can edit."
)


@click.command(cls=Command)
@click.argument("name", required=False, shell_complete=complete)
@_json
@_verbose
@_export
def traces(name: str | None, as_json: bool, verbose: bool, export: Path | None) -> None:
    """List the built-in traces, or show one: NAME, a file or allreduce:SIZE.

    \b
    paceline list traces resnet-50
    paceline list traces resnet-50 --export mine.json
    """
    if _exported(name, export, lambda source: load_trace(source).to_json()):
        return
    entries = [totals(load_trace(source)) for source in ([name] if name else trace_names())]
    if as_json:
        put(json.dumps(entries, indent=1))
        return
    columns = [
        Column("name", left=True),
        Column("batch"),
        Column("layers"),
        Column("tensors"),
        Column("gradients"),
        Column("forward"),
        Column("backward"),
    ]
    rows = [
        [
            entry["name"],
            str(entry["batch"]),
            str(entry["layers"]),
            str(entry["tensors"]),
            units.size(entry["gradient_bytes"]),
            units.duration(entry["forward_s"]),
            units.duration(entry["backward_s"]),
        ]
        for entry in entries
    ]
    say(render(columns, [rows], highlight_first=False))
    say(_provenances(entries, "traces", shown=verbose or name is not None))
    if name:
        say(_rates(entries[0]["name"]))
    else:
        say(
            ["", "allreduce:SIZE[/COUNT] is a trace too: one all-reduce of that size in COUNT tensors, no computation."]
        )


def _rates(model: str) -> list[str]:
    lines = [f"{rate.device}: {rate.cited}" for rate in rates_of(model).values()]
    if not lines:
        return []
    both = find_config(model) is not None
    head = "--device takes (--gpu computes the model)" if both else "--gpu takes"
    return ["", head, *(line for text in lines for line in wrapped(text, width(), "    "))]


@click.command(cls=Command)
@click.argument("name", required=False, shell_complete=complete)
@_json
@_verbose
@_export
def clusters(name: str | None, as_json: bool, verbose: bool, export: Path | None) -> None:
    """List the built-in clusters, or show one: NAME or a file.

    \b
    paceline list clusters dgx-h100
    paceline list clusters dgx-h100 --export mine.json
    """
    if _exported(name, export, cluster_text):
        return
    found = [load_cluster(source) for source in ([name] if name else cluster_names())]
    entries = [cluster_document(cluster) for cluster in found]
    if as_json:
        put(json.dumps(entries, indent=1))
        return
    headers = ["bandwidth", "latency", "GPUs per\nnode", "inside the\nnode", "multicast", "aggregation"]
    columns = [Column("name", left=True), *(Column(header) for header in headers)]
    rows = [
        [
            entry["name"],
            entry["bandwidth"],
            _latency(cluster),
            str(entry["gpus_per_node"]),
            entry["intra_bandwidth"] if entry["gpus_per_node"] > 1 else "-",
            "yes" if entry["switch"].get("multicast", True) else "no",
            "yes" if entry["switch"].get("aggregation", True) else "no",
        ]
        for cluster, entry in zip(found, entries, strict=True)
    ]
    say(render(columns, [rows], highlight_first=False))
    say(_provenances(entries, "clusters", shown=verbose or name is not None))
    if name:
        say(["", *wrapped(f"links, for --degrade: {load_cluster(name).links}", width())])


def _latency(cluster: Cluster) -> str:
    """Return what forecasts take: the channel's latency where the cluster does not give one."""
    latency_s = with_channel(cluster).latency_s
    return written_time(latency_s) if latency_s else "none"


@click.command(cls=Command)
@_json
def strategies(as_json: bool) -> None:
    """List the strategies, and the options that each uses."""
    entries = [
        {
            "name": strategy.name,
            "aliases": list(strategy.aliases),
            "summary": strategy.summary,
            "options": [f"--{knob}" for knob in KNOBS if knob in strategy.knobs],
            "needs": sorted({"multicast", "aggregation"} & strategy.knobs),
            "collectives": list(strategy.collectives),
        }
        for strategy in all_strategies()
    ]
    if as_json:
        put(json.dumps(entries, indent=1))
        return
    rows = [[str(entry["name"]), ", ".join(entry["aliases"]), str(entry["summary"])] for entry in entries]
    columns = [Column("name", left=True), Column("also called", left=True), Column("how it works", left=True)]
    say(render(columns, [rows], highlight_first=False))
    say(["", "Options that only some strategies use:"])
    for knob in KNOBS:
        users = [strategy.name for strategy in all_strategies() if knob in strategy.knobs]
        who = "all" if len(users) == len(all_strategies()) else ", ".join(users)
        say(wrapped(f"--{knob}: {who}", width(), "    "))
    for need in ("multicast", "aggregation"):
        users = [strategy.name for strategy in all_strategies() if need in strategy.knobs]
        say(wrapped(f"a switch with {need}: {', '.join(users)}", width(), "    "))
    halves = [strategy.name for strategy in all_strategies() if "all-gather" in strategy.collectives]
    say(wrapped(f"reduce-scatter and all-gather: {', '.join(halves)}", width(), "    "))


@click.command(cls=Command)
@click.argument("name", required=False, shell_complete=complete)
@_json
def libraries(name: str | None, as_json: bool) -> None:
    """List the frameworks that --library models, or show the constants of one, or of channels.

    \b
    paceline list libraries horovod
    paceline list libraries channels
    """
    from paceline.catalog import channels as links
    from paceline.catalog.libraries import all_libraries, find_library

    shown = [] if name == "channels" else [find_library(name)] if name else list(all_libraries())
    constants = list(links.all_constants().values())
    if as_json:
        document: dict[str, Any] = {"libraries": [_library(library) for library in shown]}
        if name in (None, "channels"):
            document["channels"] = [vars(constant) for constant in constants]
        put(json.dumps(document, indent=1))
    elif name == "channels":
        say(constants_table(constants))
    elif name:
        entry = _library(shown[0])
        words = {key: entry[key] for key in ("strategy", "coordinator", "channel", "servers") if entry[key]}
        words |= entry["options"]
        say([*wrapped(f"{name}: {entry['summary']}", width()), ""])
        say([f"{key}: {str(value).lower() if isinstance(value, bool) else value}" for key, value in words.items()])
        if shown[0].constants:
            say(["", *constants_table(list(shown[0].constants.values()))])
    else:
        columns = [Column("name", left=True), Column("strategy", left=True), Column("what it is", left=True)]
        rows = [[library.name, library.strategy, library.summary] for library in shown]
        say(render(columns, [rows], highlight_first=False))
        say(
            ["", *wrapped("`paceline list libraries NAME` shows constants and sources; NAME may be channels.", width())]
        )


def _library(library: Library) -> dict[str, Any]:
    from paceline.catalog.nccl import RELEASE

    return {
        **{field.name: getattr(library, field.name) for field in fields(library)},
        "options": dict(library.options),
        "nccl": library.nccl or (RELEASE if library.strategy == "native" else None),
        "constants": [vars(constant) for constant in library.constants.values()],
    }


def constants_table(constants: Sequence[Constant]) -> list[str]:
    """Return constants with their sources as lines."""
    columns = [Column("constant", left=True), Column("value"), Column("unit", left=True), Column("\u00b1")]
    rows = [[it.name, f"{it.value:g}", it.unit, f"{100 * it.uncertainty:.0f} %"] for it in constants]
    notes = [f"{it.name}: {it.source}" + (f"; fitted to {it.calibrated}" if it.calibrated else "") for it in constants]
    return [
        *render(columns, [rows], highlight_first=False),
        "",
        *(line for note in notes for line in wrapped(note, width(), "    ")),
    ]


def _exported(name: str | None, export: Path | None, text: Callable[[str], str]) -> bool:
    if export is None:
        return False
    if name is None:
        raise click.UsageError("--export: name what to export")
    check_writable("--export", export)
    with replaced(export) as path:
        path.write_text(text(name) + "\n", encoding="utf-8")
    return True


def _provenances(entries: Sequence[dict[str, Any]], command: str, *, shown: bool) -> list[str]:
    if not shown:
        return ["", f"Where each comes from: paceline list {command} NAME, or --verbose for all."]
    cited = [entry for entry in entries if entry["provenance"]]
    lines = [line for entry in cited for line in wrapped(f"{entry['name']}: {entry['provenance']}", width(), "    ")]
    return ["", *lines] if lines else []
