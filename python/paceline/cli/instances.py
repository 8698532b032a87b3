"""The command `paceline list instances`: what clouds rent out, with the price of a GPU-hour, its date and source."""

from __future__ import annotations

import json
from typing import TYPE_CHECKING, Any

import click

from paceline._internal import units
from paceline._internal.block import Fact, block, headline
from paceline._internal.console import Column, put, render, say, width, wrapped
from paceline.cli.command import Command
from paceline.cli.listed import chosen, words

if TYPE_CHECKING:
    from paceline._core import Cluster
    from paceline.catalog.instances import Instance


@click.command(cls=Command)
@words
@click.option("--json", "as_json", is_flag=True, help="Print JSON.")
def instances(*, name: tuple[str, ...], as_json: bool) -> None:
    """List clouds' instances for --cluster, or show NAME, with the price of a GPU-hour.

    Other words filter the list by parts of names, clouds and GPUs.

    \b
    paceline list instances p5
    paceline list instances aws h100
    """
    from paceline.catalog.builtin import load_cluster
    from paceline.catalog.instances import all_instances, named_instance

    shown, is_one = chosen(
        name,
        named_instance,
        all_instances,
        lambda one: (one.name, *one.aliases, one.cloud, one.hardware.name, one.hardware.title),
    )
    clusters = [load_cluster(one.name) for one in shown]
    if as_json:
        entries = [entry(one, cluster) for one, cluster in zip(shown, clusters, strict=True)]
        put(json.dumps(entries[0] if is_one else entries, indent=1))
        return
    if is_one:
        _show(shown[0], clusters[0])
        return
    columns = [
        Column("cloud", left=True, spare=1),
        Column("name", left=True),
        Column("GPUs", left=True),
        Column("between\nnodes"),
        Column("$ per\nGPU-hour"),
        Column("of", left=True, spare=2),
    ]
    rows = [
        [
            one.cloud,
            one.name,
            f"{one.gpus}x {one.hardware.name}",
            units.rate(cluster.bandwidth_bps) + ("" if one.states_network else "*"),
            "-" if one.price is None else f"{one.price.usd_per_gpu_hour:.2f}",
            "" if one.price is None else one.price.date,
        ]
        for one, cluster in zip(shown, clusters, strict=True)
    ]
    say(render(columns, [rows]))
    for text in (
        "Prices are on demand, on the date of their source; - where none was found. With *, the cloud states no "
        "network for training, and that of the default cluster is assumed.",
        "Sources and short names: paceline list instances NAME",
    ):
        say(["", *wrapped(text, width())])


def entry(one: Instance, cluster: Cluster) -> dict[str, Any]:
    """Return an instance as `--json` prints it."""
    return {
        "name": one.name,
        "aliases": list(one.aliases),
        "cloud": one.cloud,
        "gpu": one.hardware.name,
        "gpus": one.gpus,
        "cluster": cluster.name,
        "bandwidth_bps": cluster.bandwidth_bps if one.states_network else None,
        "nics": cluster.nics_per_node if one.states_network else None,
        "host_memory_bytes": one.host_memory_bytes,
        "nvme_bytes": one.nvme_bytes,
        "price": None if one.price is None else vars(one.price),
        "assumed": one.assumed,
        "source": one.source,
    }


def _show(one: Instance, cluster: Cluster) -> None:
    nics = f", {units.count(cluster.nics_per_node, 'NIC')}" if cluster.nics_per_node > 1 else ""
    network = f"{units.rate(cluster.bandwidth_bps)} per node over {cluster.channel.upper()}{nics}"
    facts = [
        Fact("Network", network if one.states_network else f"{network} (assumed: the cloud states none)"),
        Fact("Links", f"{units.rate(cluster.intra_bandwidth_bps)} per GPU ({cluster.intra_link or 'NVLink'})"),
    ]
    if one.gpus == 1:
        facts.pop()
    if one.host_memory_bytes is not None:
        facts.append(Fact("Host", units.memory(one.host_memory_bytes)))
    if one.nvme_bytes is not None:
        facts.append(Fact("NVMe", units.size(one.nvme_bytes)))
    if one.price is None:
        facts.append(Fact("Price", "none was found (--price gives one)"))
    else:
        region = f", {one.price.region}" if one.price.region else ""
        facts.append(
            Fact("Price", f"${one.price.usd_per_gpu_hour:.4g} per GPU-hour, on demand, {one.price.date}{region}")
        )
        facts.append(Fact("From", one.price.source))
    if one.assumed:
        facts.append(Fact("Assumed", one.assumed))
    if one.aliases:
        facts.append(Fact("Also", ", ".join(one.aliases)))
    facts.append(Fact("Source", one.source))
    say([*headline(f"{one.cloud} {one.name}: {one.gpus}x {one.hardware.title}"), "", *block(facts)])
