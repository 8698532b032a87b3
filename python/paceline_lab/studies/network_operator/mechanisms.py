"""The paper's mechanisms as strategies."""

from __future__ import annotations

from typing import Any

from paceline_lab.studies.network_operator.runs import Config

SERVER, MULTICAST, AGGREGATION = "parameter server", "multicast", "aggregation"
BOTH = "multicast + aggregation"
RING, RING_WHOLE, RING_MULTICAST = "ring", "ring, whole tensors", "ring + multicast"
BUTTERFLY = "butterfly"

_STRATEGIES = {
    SERVER: "ps",
    MULTICAST: "ps-multicast",
    AGGREGATION: "ps-aggregation",
    BOTH: "ps-multicast-aggregation",
    RING: "ring",
    RING_WHOLE: "ring",
    RING_MULTICAST: "ring-multicast",
    BUTTERFLY: "recursive-doubling",
}
MECHANISMS = tuple(_STRATEGIES)
# Mechanisms of the paper's overall ranking, in its order.
RANKED = (RING, BOTH, BUTTERFLY, MULTICAST, AGGREGATION)


def strategy_of(mechanism: str) -> str:
    """Return the strategy of a mechanism."""
    return _STRATEGIES[mechanism]


def configured(model: str, mechanism: str, **settings: Any) -> Config:  # noqa: ANN401
    """Return the mechanism's configuration on a model.

    A ring's messages are tensors cut into as many pieces as workers. Outside the tables, pieces of 64 kB (256 kB with
    added modules) approximate them, except for VGG-16: iteration times differ by at most 0.5 %, and simulating takes a
    tenth of the time.
    """
    chunk = None
    if mechanism == RING_WHOLE:
        chunk = "whole"
    elif mechanism in (RING, RING_MULTICAST):
        as_published = mechanism == RING and not settings
        chunk = "per-worker" if as_published or model == "vgg-16" else "256KB" if "modules" in settings else "64KB"
    return Config(model, _STRATEGIES[mechanism], chunk=chunk, **settings)
