"""A plan as text."""

from __future__ import annotations

from paceline._core import Graph
from paceline._internal import units
from paceline._internal.console import Column, render, wrapped

from paceline_lab.plan.result import Plan


def lines(plan: Plan, graph: Graph, width: int) -> list[str]:
    """Return a summary, then a row for each all-reduce, grouped by bucket."""
    return [*wrapped(_summary(plan, graph), width), "", *_table(plan)] if plan.tensors else [_nothing(plan, graph)]


def _summary(plan: Plan, graph: Graph) -> str:
    limit = f" of at most {units.size(plan.bucket_size_bytes)}" if plan.bucket_size_bytes else ""
    total = units.size(sum(bucket.bytes for bucket in plan.buckets))
    text = (
        f"{plan.graph}: {units.count(len(plan.tensors), 'all-reduce')} of {total} in "
        f"{units.count(len(plan.buckets), 'bucket')}{limit}; the fetches need {plan.nodes} of {graph.nodes} nodes"
    )
    unneeded = graph.all_reduces - len(plan.tensors)
    return f"{text}, and not {units.count(unneeded, 'all-reduce')}" if unneeded else text


def _nothing(plan: Plan, graph: Graph) -> str:
    return (
        f"{plan.graph}: nothing to plan: the fetches need {plan.nodes} of {graph.nodes} nodes, and none of them is one "
        f"of the graph's {units.count(graph.all_reduces, 'all-reduce')}"
    )


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
    return render(columns, groups, highlight_first=False)
