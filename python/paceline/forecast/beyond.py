"""What a question asks that no measurement had: the option, and why the evidence does not reach there.

Published jobs ran with their library's own options on machines of one data centre, whose links had full bisection
bandwidth; `paceline validate` runs the bare schedule likewise. `evidence` limits workers, nodes and links itself.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

from paceline._internal import units
from paceline.catalog import channels
from paceline.catalog.efficiency import TRANSFORMER_ENGINE
from paceline.forecast import compression
from paceline.forecast.lowering import Lowered, lowered
from paceline.settings.table import SETTINGS, SIMULATE

if TYPE_CHECKING:
    from paceline.forecast.scenario import Scenario

FURTHER = 2.0
"""Evidence reaches up to this factor beyond what was measured."""
_HABITS = ("barrier", "overlap", "network", "bucket_size", "chunk", "placement", "distribution", "pull", "inside")
"""Options that published jobs had as their library has them."""
_BOTH = ("barrier", "overlap")
"""Those that the bare schedule was not run with either; for it, the others were."""


def beyond(scenario: Scenario, low: Lowered) -> str:
    """Return the model or the first option that is outside the evidence, with the reason; empty if nothing is."""
    if scenario.workload is not None and scenario.workload.model.has_experts:
        return f"{scenario.workload.model.name}: no measurement is of a mixture of experts"
    if scenario.workload is not None and scenario.workload.kernels == TRANSFORMER_ENGINE:
        return f"{_named('kernels', TRANSFORMER_ENGINE)}: too few measurements are of it"
    if scenario.workload is not None and scenario.workload.context > 1:
        return f"{_named('context_parallel', scenario.workload.context)}: too few measurements are of it"
    if scenario.workload is not None and scenario.workload.pipeline > 1:
        return f"{_named('pipeline_parallel', scenario.workload.pipeline)}: no measurement is of a pipeline"
    cluster = low.cluster
    waits = {"latency": cluster.latency_s, "message_overhead": cluster.message_overhead_s}
    longest = channels.constant("tcp.latency") * FURTHER
    for name, seconds in waits.items():
        if seconds > longest:
            return f"{_named(name)}: measurements have at most {units.duration(longest / FURTHER)}"
    if any(one.factor != 1 and one.rank < scenario.workers for one in cluster.stragglers):
        return f"{_named('stragglers')}: no measurement has a slow rank"
    if cluster.degraded:
        return f"{_named('degraded')}: no measurement has a slow link"
    for shared in (scenario.cluster.racks, scenario.cluster.fabric):  # A flow's rate changes what remains of it.
        over = (shared and shared.oversubscription) or 1.0
        if over > FURTHER:
            return f"{_named('cluster')}: no measurement is of links oversubscribed {over:g}:1"
    if (changed := compression.changes(scenario.options)) is not None:
        return f"{_named(changed, scenario.options[changed])}: no measurement is of it"
    for name in _BOTH if scenario.library.is_bare else _HABITS:
        if name in scenario.options and _is_changed(scenario, name):
            return f"{_named(name, scenario.options[name])}: measurements are of what {_whose(scenario)} does by itself"
    return ""


def _whose(scenario: Scenario) -> str:
    return "the schedule" if scenario.library.is_bare else scenario.library.name


def _is_changed(scenario: Scenario, name: str) -> bool:
    asked = scenario.options[name]
    if name == "bucket_size":
        own = lowered(scenario.changed(bucket_size=None)).bucket_size
        sizes = [size for size in (None if asked == "none" else asked, own) if size is not None]
        return len(sizes) == 1 or (len(sizes) == 2 and max(sizes) > FURTHER * min(sizes))
    return bool(asked != scenario.library.options.get(name, SETTINGS[name].default_of(SIMULATE)))


def _named(name: str, value: object = None) -> str:
    setting = SETTINGS[name]
    return setting.spelling(value) or setting.name
