"""The command `paceline plan`: which all-reduces of a graph are fused, and in which order they are issued."""

from __future__ import annotations

import json
from pathlib import Path

import click
from paceline._internal.console import put, say
from paceline._internal.files import check_writable, replaced
from paceline.cli import param_types as types
from paceline.cli.command import Command
from paceline.errors import InvalidArgumentError
from paceline.settings import kinds

_SECTIONS = {
    "Basic options": ("fetch", "bucket_size", "ids", "time", "as_json", "output"),
    "TensorFlow": ("all_reduce", "unknown_size", "signature"),
}


@click.command(cls=Command, sections=_SECTIONS)
@click.argument("graph", metavar="GRAPH", type=click.Path(path_type=Path))
@click.option("--fetch", type=types.WORDS, help="Nodes to traverse the graph back from.  [default: GRAPH's own]")
@types.option("plan", "bucket_size", filled=True)
@click.option(
    "--ids",
    type=types.of_kind(kinds.choice(("depth", "listed"))),
    default="depth",
    help="Numbering of all-reduces: depth, or listed.  [default: depth]",
)
@click.option("--all-reduce", metavar="PATTERN", help="More operations or nodes that are all-reduces.")
@click.option("--unknown-size", type=types.SIZE, help="Size of all-reduces without a shape: 4MB.")
@click.option("--signature", metavar="NAME", help="Signature of a SavedModel to fetch.  [default: the only one]")
@click.option("--time", is_flag=True, help="Also count edges, and measure one traversal.")
@click.option("-o", "--output", type=click.Path(path_type=Path), help="Also write the graph as JSON: graph.json.")
@click.option("--json", "as_json", is_flag=True, help="Print JSON, sizes in bytes.")
def plan(
    *,
    graph: Path,
    fetch: list[str] | None,
    bucket_size: str,
    ids: str,
    all_reduce: str | None,
    unknown_size: int | None,
    signature: str | None,
    time: bool,
    output: Path | None,
    as_json: bool,
) -> None:
    """Plan the fusion and the order of a graph's all-reduces, without negotiation.

    GRAPH is JSON (docs/reference/coordinator-plan.md). With TensorFlow installed, it may be a GraphDef (.pb, .pbtxt)
    or the folder of a SavedModel. An option marked * takes a list.

    \b
    paceline plan graph.json --fetch train_op --bucket-size 25MB
    """
    from paceline_lab.plan.options import TensorflowOptions
    from paceline_lab.plan.result import plan_graph, traversal_s
    from paceline_lab.plan.sources import read_graph
    from paceline_lab.plan.table import lines

    if output is not None:
        check_writable("--output", output)
        if output.exists() and graph.exists() and output.samefile(graph):
            raise InvalidArgumentError(f"--output {output}: would overwrite GRAPH", remedy="--output plan.json")
    options = TensorflowOptions(all_reduce=all_reduce, unknown_size_bytes=unknown_size, signature=signature)
    needed, fetches = read_graph(graph, fetch, options)
    planned = plan_graph(needed, fetches, bucket_size, ids=ids)
    if output is not None:
        with replaced(output) as path:
            path.write_text(needed.to_json(), encoding="utf-8")
    seconds = traversal_s(needed, fetches, bucket_size, ids=ids) if time else None
    if as_json:
        measured = {} if seconds is None else {"traversal_ms": seconds * 1e3}
        put(json.dumps({**planned.to_dict(), **measured}, indent=1))
    else:
        say(lines(planned, needed, seconds))
