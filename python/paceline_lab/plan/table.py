"""A plan as text."""

from __future__ import annotations

from paceline._core import Graph
from paceline._internal import block, units
from paceline._internal.block import Fact
from paceline._internal.console import Column, render

from paceline_lab.plan.result import Plan


def lines(plan: Plan, graph: Graph, traversal_s: float | None = None) -> list[str]:
    """Return the number of buckets and what was traversed, then a row for each all-reduce, grouped by bucket."""
    traversed = Fact("Fetches", f"need {plan.nodes:,} of {units.count(graph.nodes, 'node')}")
    timed = []
    if traversal_s is not None:
        timed = [Fact("Edges", f"{plan.edges:,}"), Fact("Traversal", units.duration(traversal_s))]
    every = units.count(graph.all_reduces, "all-reduce")
    if not plan.tensors:
        none = Fact("All-reduces", f"none of {every} is among them")
        return [*block.headline(f"{plan.graph}: nothing to plan"), "", *block.block([traversed, *timed, none])]
    facts = [traversed, *timed]
    if plan.bucket_size_bytes:
        facts.append(Fact("Buckets", f"of at most {units.size(plan.bucket_size_bytes)}"))
    if unneeded := graph.all_reduces - len(plan.tensors):
        facts.append(Fact("Not needed", units.count(unneeded, "all-reduce")))
    total = units.size(sum(bucket.bytes for bucket in plan.buckets))
    shape = f"{units.count(len(plan.tensors), 'all-reduce')} in {units.count(len(plan.buckets), 'bucket')}"
    return [*block.headline(f"{plan.graph}: {shape}, {total}"), "", *block.block(facts), "", *_table(plan)]


def _table(plan: Plan) -> list[str]:
    columns = [
        Column("bucket"),
        Column("id"),
        Column("all-reduce", left=True),
        Column("dtype", left=True),
        Column("size"),
        Column("depth"),
    ]
    groups = []
    for number, bucket in enumerate(plan.buckets):
        members = [plan.tensors[tensor] for tensor in bucket.tensors]
        groups.append(
            [
                [str(number), str(tensor.id), tensor.name, tensor.dtype, units.size(tensor.bytes), str(tensor.depth)]
                for tensor in members
            ]
        )
    return render(columns, groups)
