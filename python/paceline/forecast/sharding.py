"""Sharded training in forecasts: which options a sharding uses, what the native module is asked, what a result says.

The plan of an iteration is made and executed by the native module; docs/explanation/sharding.md describes it.
"""

from __future__ import annotations

import math
from collections.abc import Collection, Mapping, Sequence
from typing import Any

from paceline._internal import units
from paceline.catalog.recipes import Recipe
from paceline.catalog.strategies import Strategy
from paceline.errors import InvalidArgumentError
from paceline.forecast.wording import notes

NONE = "none"
OPTIONS = (
    "reshard_after_forward",
    "prefetch",
    "accumulate",
    "accumulate_sync",
    "unit",
    "param_dtype",
    "reduce_dtype",
    "optimizer",
)
"""Options of a plan, beside `sharding`, by their names in the table of settings."""
IN_STEP = "halving-doubling"
"""A strategy that takes up to 1.8 times as long if ranks are out of step (docs/results/validation.md)."""
HSDP = "hsdp"
GATHERED = ("zero3", HSDP)
"""Shardings that gather units before they compute."""
_ONLY = {
    "reshard_after_forward": GATHERED,
    "unit": GATHERED,
    "prefetch": ("zero1", "zero2", *GATHERED),
}
"""Options that only some shardings use."""
_SHARD = ("ddp", "ddp-gloo", "none")
"""Libraries beside which PyTorch shards; `none` is the bare schedule."""


def kind(sharding: str) -> str:
    """Return `hsdp` for `hsdp:8`, and `zero1` for `zero1:8`."""
    return sharding.partition(":")[0]


def ranks_of_groups(options: Mapping[str, Any]) -> int:
    """Return a number of which the ranks are a multiple, because they form groups of that size."""
    _, _, group = str(options.get("sharding") or "").partition(":")
    again = str(options.get("reshard_after_forward"))
    return math.lcm(int(group or 1), int(again) if again.isdigit() else 1)


def shard_ranks(sharding: str, workers: int, per_node: int) -> int:
    """Return over how many ranks the optimizer's states are sharded."""
    name, _, group = sharding.partition(":")
    if name == NONE:
        return 1
    if group:
        return int(group)
    return min(per_node, workers) if name == HSDP else workers


def in_every_pass(sharding: str) -> bool:
    """Whether ranks exchange in every pass of an iteration."""
    return kind(sharding) in ("zero2", *GATHERED)


def in_groups(sharding: str) -> bool:
    """Whether the state is sharded over a part of the ranks: `hsdp`, and `zero1:8`."""
    return kind(sharding) == "hsdp" or ":" in sharding


def is_plan(options: Mapping[str, Any]) -> bool:
    """Whether the iteration is a plan, and not just that of the trace."""
    return any(name in options for name in ("sharding", "accumulate", "expert_parallel"))


def used_by(sharding: str | None, options: Mapping[str, Any]) -> dict[str, Any]:
    """Return the options that a sharding uses."""
    if sharding is None:
        return dict(options)
    return {name: value for name, value in options.items() if kind(sharding) in _ONLY.get(name, (kind(sharding),))}


def _first_of(setting: str, values: Sequence[str]) -> str:
    """Return the remedy to choose one of several values: `{sharding=zero1}, zero2 or zero3`."""
    return units.listed([f"{{{setting}={values[0]}}}", *values[1:]], "or")


def check(shardings: Sequence[str] | None, given: Mapping[str, Any]) -> None:
    """Refuse options that none of the shardings uses. Raises InvalidArgumentError."""
    if not is_plan(given):
        for name in (*OPTIONS, "memory"):
            if name in given:
                able = [one for one in _ONLY.get(name, ("zero1", "zero2", *GATHERED)) if one != NONE]
                raise InvalidArgumentError(
                    "needs sharding",
                    setting=name,
                    remedy=f"{_first_of('sharding', able)}, or drop {{this}}",
                )
        return
    if "accumulate_sync" in given and given.get("accumulate", 1) == 1:
        raise InvalidArgumentError(
            "needs accumulation", setting="accumulate_sync", remedy="{accumulate=4}, or drop {this}"
        )
    kinds = {kind(sharding) for sharding in shardings or [NONE]}
    for name, using in _ONLY.items():
        if name in given and not kinds & set(using):
            raise InvalidArgumentError(
                f"has no effect with {units.listed(sorted(kinds))}",
                setting=name,
                remedy=f"{_first_of('sharding', using)}, or drop {{this}}",
            )
    for library in given.get("library", ()):
        if library not in _SHARD and kinds != {NONE}:
            raise InvalidArgumentError(
                f"{library} shards nothing",
                setting="library",
                remedy=f"{_first_of('library', [*_SHARD])}, or drop {{sharding}}",
            )
    if "barrier" in given and given["barrier"] is False and kinds != {NONE}:
        raise InvalidArgumentError(
            "sharded ranks always wait for each other", setting="barrier", remedy="drop --no-barrier"
        )


def check_recipe(recipe: Recipe, shardings: Sequence[str] | None, given: Mapping[str, Any]) -> None:
    """Refuse what contradicts a model's recipe of precision. Raises InvalidArgumentError."""
    gathers = any(kind(one) in GATHERED for one in shardings or ())
    if recipe.name == "fsdp-mixed" and not gathers:
        raise InvalidArgumentError(
            "fsdp-mixed gathers units, which only zero3 and hsdp do",
            setting="precision",
            remedy="{sharding=zero3}, or {this=mixed}",
        )
    if "precision" in given and "param_dtype" in given and not gathers:
        raise InvalidArgumentError(
            f"{recipe.name} has parameters in {recipe.parameters}", setting="param_dtype", remedy="drop {this}"
        )


def check_buckets(shardings: Sequence[str] | None) -> None:
    """Refuse sizes of buckets for a model whose blocks are exchanged one by one. Raises InvalidArgumentError."""
    kinds = {kind(sharding) for sharding in shardings or [NONE]}
    if kinds <= set(_ONLY["unit"]):
        raise InvalidArgumentError(
            f"has no effect with {units.listed(sorted(kinds))}, where the model's blocks are exchanged",
            setting="bucket_size",
            remedy="drop {this}, or name other units with {unit}",
        )


def able(strategy: Strategy) -> bool:
    """Whether a strategy has programs for the collectives of sharded training."""
    return {"all-gather", "reduce-scatter"} <= set(strategy.collectives)


def sums_in_switches(strategy: Strategy) -> bool:
    """Whether switches do its all-reduces; the other collectives of `hsdp` are then the library's."""
    return "aggregation" in strategy.knobs and "servers" not in strategy.knobs


def only_able(
    strategies: Sequence[Strategy],
    named: Collection[Strategy],
    known: Sequence[Strategy],
    shardings: Sequence[str | None] = (),
) -> list[Strategy]:
    """Leave out strategies without the collectives of these shardings.

    Raises InvalidArgumentError for one that the user named; `known` are those to choose from.
    """
    kinds = {kind(one) for one in shardings if one is not None}
    able_ones = [one for one in strategies if able(one) or (kinds == {HSDP} and sums_in_switches(one))]
    for strategy in strategies:
        if strategy in named and strategy not in able_ones:
            hybrid = f", or {{sharding={HSDP}}} (all-reduces between nodes)" if sums_in_switches(strategy) else ""
            raise InvalidArgumentError(
                f"{strategy.name} has no all-gather and reduce-scatter, which sharded ranks need",
                setting="strategy",
                remedy=_first_of("strategy", [one.name for one in known if able(one)]) + hybrid,
            )
    return able_ones


def out_of_step(strategies: Sequence[Strategy], shardings: Sequence[str] | None) -> list[str]:
    """Return the note on a strategy whose forecast is one of ranks that keep step."""
    sharded = any(kind(one) != NONE for one in shardings or ())
    if not sharded or all(one.name != IN_STEP for one in strategies):
        return []
    return [notes.out_of_step(IN_STEP)]
