"""Options beyond all measurements, and why the evidence does not reach there.

Published jobs ran with their library's own options on machines of one data center, whose links had full bisection
bandwidth; `paceline validate` runs the bare schedule likewise. `evidence` limits workers, nodes and links itself.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

from paceline._core import Lowered
from paceline.catalog import channels
from paceline.catalog.offload import STATES
from paceline.forecast import compression
from paceline.forecast.kinds import FURTHER, Evidence, Ground
from paceline.forecast.lowering import lowered
from paceline.settings.table import SETTINGS, SIMULATE

if TYPE_CHECKING:
    from paceline.forecast.scenario import Scenario

_HABITS = ("barrier", "overlap", "network", "bucket_size", "chunk", "placement", "distribution", "pull", "inside")
"""Options that published jobs had as their library has them."""
_BOTH = ("barrier", "overlap")
"""Those that the bare schedule was not run with either; for it, the others were."""


def beyond(scenario: Scenario, low: Lowered) -> Evidence | None:
    """Return the first option that is outside the evidence, with the reason; None if nothing is."""
    model = scenario.workload
    if model is not None and model.context > 1:
        return _about(Ground.TOO_FEW, "context_parallel", model.context)
    if model is not None and model.loss != "lm":
        return _about(Ground.TOO_FEW, "loss", model.loss)
    if model is not None and model.offload is not None and STATES in model.offload.parts(gathers=True):
        return _about(Ground.TOO_FEW, "offload", model.offload.target)
    cluster = low.cluster
    waits = {"latency": cluster.latency_s, "message_overhead": cluster.message_overhead_s}
    longest = channels.constant("tcp.latency") * FURTHER
    for name, seconds in waits.items():
        if seconds > longest:
            return Evidence(Ground.WAIT, setting=name, most=longest / FURTHER)
    if any(one.factor != 1 and one.rank < scenario.workers for one in cluster.stragglers):
        return _about(Ground.SLOW_RANK, "stragglers")
    if cluster.degraded:
        return _about(Ground.SLOW_LINK, "degraded")
    for shared in (scenario.cluster.racks, scenario.cluster.fabric):  # A flow's rate changes what remains of it.
        over = (shared and shared.oversubscription) or 1.0
        if over > FURTHER:
            return Evidence(Ground.OVERSUBSCRIBED, setting="cluster", most=over)
    if (changed := compression.changes(scenario.options)) is not None:
        return _about(Ground.NONE_OF_IT, changed, scenario.options[changed])
    for name in _BOTH if scenario.library.is_bare else _HABITS:
        if name in scenario.options and _is_changed(scenario, name):
            library = "" if scenario.library.is_bare else scenario.library.name
            return Evidence(Ground.HABIT, setting=name, value=scenario.options[name], library=library)
    return None


def _about(ground: Ground, setting: str, value: object = None) -> Evidence:
    return Evidence(ground, setting=setting, value=value)


def _is_changed(scenario: Scenario, name: str) -> bool:
    value = scenario.options[name]
    if name == "bucket_size":
        own = lowered(scenario.changed(bucket_size=None)).bucket_size
        sizes = [size for size in (None if value == "none" else value, own) if size is not None]
        return len(sizes) == 1 or (len(sizes) == 2 and max(sizes) > FURTHER * min(sizes))
    return bool(value != scenario.library.options.get(name, SETTINGS[name].default_of(SIMULATE)))
