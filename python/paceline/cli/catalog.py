"""The commands `paceline list traces`, `clusters`, `strategies` and `libraries`: what is built in, with sources."""

from __future__ import annotations

import json
from collections.abc import Callable, Sequence
from dataclasses import fields
from pathlib import Path
from typing import TYPE_CHECKING, Any

import click

from paceline._core import Cluster, parse_rate
from paceline._internal import units
from paceline._internal.block import Fact, block, headline, notes, pairs
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
from paceline.catalog.characteristics import BANDWIDTH_BPS, Characteristics
from paceline.catalog.libraries import ALL_AT_ONCE, UNLIMITED
from paceline.catalog.models.config import find_config
from paceline.catalog.rates import rates_of
from paceline.catalog.strategies import KNOBS, Strategy, find_strategy, registered_strategies
from paceline.cli import param_types as types
from paceline.cli.command import Command
from paceline.cli.listed import chosen, having, words
from paceline.cli.usage import UsageError
from paceline.settings.table import SETTINGS, SIMULATE

if TYPE_CHECKING:
    from paceline.catalog.constants import Constant
    from paceline.catalog.libraries import Library

_json = click.option("--json", "as_json", is_flag=True, help="Print JSON.")
_verbose = click.option("--verbose", is_flag=True, help="Print the source of each; one alone always has it.")
_export = click.option(
    "--export", type=click.Path(path_type=Path), metavar="FILE", help="Copy it to a file that you can edit."
)


@click.command(cls=Command)
@words
@click.option(
    "--bandwidth",
    type=types.Value("RATE", SETTINGS["bandwidth"].kind_of(SIMULATE).check),
    metavar="RATE",
    help="Rate for the ratio of computation to network.  [default: 25Gbps]",
)
@_json
@_verbose
@_export
def traces(name: tuple[str, ...], bandwidth: str | None, as_json: bool, verbose: bool, export: Path | None) -> None:
    """List the built-in traces, or show one: NAME, a file or allreduce:SIZE.

    Other words filter the list by parts of names.

    \b
    paceline list traces resnet-50
    paceline list traces resnet
    paceline list traces resnet-50 --export mine.json
    """
    if export is not None and bandwidth is not None:
        raise UsageError("--bandwidth has no effect with --export", remedy="drop --bandwidth")
    if _exported(name, export, lambda source: load_trace(source).to_json()):
        return
    rate = BANDWIDTH_BPS if bandwidth is None else parse_rate(bandwidth)
    listed, is_one = chosen(name, load_trace, lambda: map(load_trace, trace_names()), lambda one: (one.name,))
    entries = [totals(trace) | Characteristics.of(trace, rate).to_dict() for trace in listed]
    if as_json:
        put(json.dumps(entries, indent=1))
        return
    if is_one:
        _show_trace(entries[0])
        return
    columns = [
        Column("name", left=True),
        Column("batch"),
        Column("layers", spare=3),
        Column("tensors", spare=4),
        Column("weights"),
        Column("GFLOPs", spare=2),
        *(Column(header) for header in ("gradients", "forward", "backward")),
        Column("comp:\nnet", spare=1),
    ]
    rows = [
        [
            entry["name"],
            f"{entry['batch']:,}",
            f"{entry['layers']:,}",
            f"{entry['tensors']:,}",
            _count(entry["parameters"]),
            _gflops(entry),
            *_times(entry),
            _ratio(entry),
        ]
        for entry in entries
    ]
    say(render(columns, [rows]))
    about = (
        f"GFLOPs: forward pass of a sample. comp:net: backward pass after its first layer over gradients at "
        f"{units.rate(rate)} (--bandwidth)."
    )
    say(_paragraph(about))
    say([*_sources(entries, "traces", shown=verbose), *_paragraph(_COLLECTIVE)])


_COLLECTIVE = "allreduce:SIZE[/COUNT] is a trace, too: one all-reduce of SIZE in COUNT tensors, without compute."


def _count(parameters: int) -> str:
    return f"{units.digits(parameters / 1e6)} M"


def _gflops(entry: dict[str, Any]) -> str:
    flops = entry["flops_per_sample"]
    return "-" if flops is None else units.digits(flops / 1e9, 3)


def _ratio(entry: dict[str, Any]) -> str:
    ratio = entry["computation_to_network"]
    return "-" if ratio is None else units.digits(ratio, 3)


def _times(entry: dict[str, Any]) -> list[str]:
    forward, backward = (units.duration(entry[f"{it}_s"]) for it in ("forward", "backward"))
    return [units.size(entry["gradient_bytes"]), forward, backward]


def _show_trace(entry: dict[str, Any]) -> None:
    size, forward, backward = _times(entry)
    flops = entry["flops_per_sample"] is not None
    after, network = units.duration(entry["backward_after_first_s"]), units.duration(entry["network_s"])
    ratio = (
        f"{_ratio(entry)}: backward after its first layer {after}, gradients at {units.rate(entry['bandwidth_bps'])} "
        f"{network}"
    )
    rates = [(rate.device, rate.cited) for rate in rates_of(entry["name"]).values()]
    both = find_config(entry["name"]) is not None  # --gpu computes the model.
    facts = [
        Fact("Gradients", f"{size} in {units.count(entry['tensors'], 'tensor')}"),
        Fact("Weights", f"{entry['parameters']:,}"),
        *([Fact("FLOPs", f"{_gflops(entry)} G, forward, per sample", entry["flops_source"])] if flops else []),
        Fact("Compute", f"forward {forward}, backward {backward}"),
        *([Fact("Comp : net", ratio)] if entry["gradient_bytes"] else []),
        *([Fact("Source", entry["provenance"])] if entry["provenance"] else []),
        *([Fact("--device" if both else "--gpu", *rates)] if rates else []),
    ]
    shape = f"batch {entry['batch']:,}, {units.count(entry['layers'], 'layer')}"
    say([*headline(f"{entry['name']}: {shape}"), "", *block(facts)])


@click.command(cls=Command)
@words
@_json
@_verbose
@_export
def clusters(name: tuple[str, ...], as_json: bool, verbose: bool, export: Path | None) -> None:
    """List the built-in clusters, or show one: NAME or a file.

    Other words filter the list by parts of names and GPUs. Instances of clouds, which --cluster takes too, are in
    paceline list instances.

    \b
    paceline list clusters dgx-h100
    paceline list clusters h100
    paceline list clusters dgx-h100 --export mine.json
    """
    if _exported(name, export, cluster_text):
        return
    listed, is_one = chosen(
        name, load_cluster, lambda: map(load_cluster, cluster_names()), lambda one: (one.name, one.gpu or "")
    )
    entries = [cluster_document(cluster) for cluster in listed]
    if as_json:
        put(json.dumps(entries, indent=1))
        return
    if is_one:
        _show_cluster(listed[0], entries[0])
        return
    columns = [
        Column("name", left=True),
        Column("bandwidth"),
        Column("latency"),
        Column("GPUs per\nnode"),
        Column("intra-\nnode", spare=1),
        Column("multi-\ncast", spare=2),
        Column("aggre-\ngation", spare=2),
    ]
    rows = [
        [
            entry["name"],
            _rate(entry["bandwidth"]),
            _latency(cluster),
            str(entry["gpus_per_node"]),
            _rate(entry["intra_bandwidth"]) if entry["gpus_per_node"] > 1 else "-",
            *("yes" if able else "no" for able in _abilities(entry)),
        ]
        for cluster, entry in zip(listed, entries, strict=True)
    ]
    say(render(columns, [rows]))
    about = (
        "Bandwidth is per node, intra-node bandwidth per GPU, both in each direction. Multicast and aggregation are "
        "those of switches between nodes. --cluster also takes the instances of clouds: paceline list instances."
    )
    say([*_paragraph(about), *_sources(entries, "clusters", shown=verbose)])


def _rate(written: str) -> str:
    return units.rate(parse_rate(written))


def _abilities(entry: dict[str, Any]) -> tuple[bool, bool]:
    """Return whether switches multicast and aggregate."""
    return entry["switch"].get("multicast", True), entry["switch"].get("aggregation", True)


def _show_cluster(cluster: Cluster, entry: dict[str, Any]) -> None:
    of = "GPU" if cluster.has_rails else "node"
    able = [word for word, is_able in zip(("multicast", "aggregation"), _abilities(entry), strict=True) if is_able]
    inside = entry["gpus_per_node"] > 1
    facts = [
        Fact("Network", f"{_rate(entry['bandwidth'])} per {of} and direction, {_latency(cluster)} latency"),
        *([Fact("Intra-node", f"{_rate(entry['intra_bandwidth'])} per GPU and direction")] if inside else []),
        Fact("Switches", " and ".join(able) if able else "no multicast, no aggregation"),
        Fact("--degrade", cluster.links),
        *([Fact("Source", entry["provenance"])] if entry["provenance"] else []),
    ]
    gpus = units.count(entry["gpus_per_node"], "GPU")
    say([*headline(f"{entry['name']}: {gpus} per node"), "", *block(facts)])


def _latency(cluster: Cluster) -> str:
    """Return what forecasts take: the channel's latency where the cluster does not give one."""
    latency_s = with_channel(cluster).latency_s
    return units.duration(latency_s) if latency_s else "none"


def _names_of_strategy(one: Strategy) -> tuple[str, ...]:
    return (one.name, *one.aliases)


@click.command(cls=Command)
@words
@_json
def strategies(name: tuple[str, ...], as_json: bool) -> None:
    """List the strategies, or those whose names have all words, and the options that each uses.

    \b
    paceline list strategies ring
    """
    shown = having(name, registered_strategies(), _names_of_strategy)
    if not shown:
        chosen(name, find_strategy, registered_strategies, _names_of_strategy)  # raises
    entries = [
        {
            "name": strategy.name,
            "aliases": list(strategy.aliases),
            "summary": strategy.summary,
            "options": [f"--{knob}" for knob in KNOBS if knob in strategy.knobs],
            "needs": sorted({"multicast", "aggregation"} & strategy.knobs),
            "collectives": list(strategy.collectives),
        }
        for strategy in shown
    ]
    if as_json:
        put(json.dumps(entries, indent=1))
        return
    rows = [[str(entry["name"]), str(entry["summary"])] for entry in entries]
    say(render([Column("name", left=True), Column("how it works", left=True)], [rows]))
    aliases = [f"{alias} = {strategy.name}" for strategy in shown for alias in strategy.aliases]
    if aliases:
        say(_paragraph(f"Aliases: {', '.join(aliases)}."))
    users = {f"--{knob}": [strategy.name for strategy in shown if knob in strategy.knobs] for knob in KNOBS}
    for need in ("multicast", "aggregation"):
        users[f"{need} switches"] = [strategy.name for strategy in shown if need in strategy.knobs]
    users["--sharding"] = [strategy.name for strategy in shown if "all-gather" in strategy.collectives]
    facts = [
        (what, "all" if len(names) == len(shown) > 1 else ", ".join(names)) for what, names in users.items() if names
    ]
    say(["", "Used by", *pairs(facts)])


@click.command(cls=Command)
@words
@_json
def libraries(name: tuple[str, ...], as_json: bool) -> None:
    """List the frameworks that --library models, or show the constants of one, or of channels.

    Other words filter the list by parts of names and strategies.

    \b
    paceline list libraries horovod
    paceline list libraries channels
    """
    from paceline.catalog import channels as links
    from paceline.catalog.libraries import all_libraries, find_library

    is_of_channels = name == ("channels",)
    shown, is_one = (
        ([], False)
        if is_of_channels
        else chosen(name, find_library, all_libraries, lambda one: (one.name, one.strategy))
    )
    constants = list(links.all_constants().values())
    if as_json:
        document: dict[str, Any] = {"libraries": [_library(library) for library in shown]}
        if is_of_channels or not name:
            document["channels"] = [vars(constant) for constant in constants]
        put(json.dumps(document, indent=1))
    elif is_of_channels:
        say(constants_table(constants))
    elif is_one:
        entry = _library(shown[0])
        words = {key: entry[key] for key in ("strategy", "coordinator", "channel", "servers") if entry[key]}
        words |= entry["options"]
        if shown[0].small is not None:
            words[f"to {units.size(shown[0].small.to)}"] = shown[0].small.strategy
        habits = [(key, str(value).lower() if isinstance(value, bool) else str(value)) for key, value in words.items()]
        say([*headline(f"{' '.join(name)}: {entry['summary']}"), *(["", *pairs(habits)] if habits else [])])
        if shown[0].constants:
            say(["", *constants_table(list(shown[0].constants.values()))])
    else:
        columns = [Column("name", left=True), Column("strategy", left=True), Column("framework", left=True)]
        rows = [[library.name, library.strategy, library.summary] for library in shown]
        say(render(columns, [rows]))
        say(
            _paragraph(
                "Constants and sources: paceline list libraries NAME. Of channels: paceline list libraries channels."
            )
        )


def _library(library: Library) -> dict[str, Any]:
    from paceline.catalog.nccl import RELEASE

    return {
        **{field.name: getattr(library, field.name) for field in fields(library)},
        "options": dict(library.options),
        "nccl": library.nccl or (RELEASE if library.strategy == "native" else None),
        "small": library.small and vars(library.small),
        "constants": [vars(constant) for constant in library.constants.values()],
    }


def constants_table(constants: Sequence[Constant]) -> list[str]:
    """Return constants with their sources as lines."""
    columns = [Column("constant", left=True), Column("value"), Column("unit", left=True), Column("\u00b1")]
    rows = [[it.name, *_value(it), units.percent(it.uncertainty, 0)] for it in constants]
    texts = [f"{it.name}: {it.source}" + (f"; fitted to {it.calibrated}" if it.calibrated else "") for it in constants]
    return [*render(columns, [rows]), *notes(texts, title="Sources")]


def _value(constant: Constant) -> tuple[str, str]:
    """Return value and unit; a bucket of any size is words."""
    if constant.name == "bucket_size" and constant.value >= UNLIMITED:
        return ALL_AT_ONCE, ""
    return f"{constant.value:g}", constant.unit


def _exported(name: Sequence[str], export: Path | None, text: Callable[[str], str]) -> bool:
    if export is None:
        return False
    if not name:
        raise UsageError("--export needs a name", remedy="paceline list clusters dgx-h100 --export mine.json")
    check_writable("--export", export)
    with replaced(export) as path:
        path.write_text(text(" ".join(name)) + "\n", encoding="utf-8")
    return True


def _sources(entries: Sequence[dict[str, Any]], command: str, *, shown: bool) -> list[str]:
    """Return the sources of all entries, or how to see them."""
    if not shown:
        return _paragraph(f"Sources: paceline list {command} NAME, or --verbose for all.")
    return notes((f"{it['name']}: {it['provenance']}" for it in entries if it["provenance"]), title="Sources")


def _paragraph(text: str) -> list[str]:
    return ["", *wrapped(text, width())]
