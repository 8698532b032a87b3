"""Factor 1 (section 8.1.1): what the order of distribution does to the staggering of backward passes, and to gains.

The traces of the authors are not public, nor is the order in which their servers sent tensors. A large tensor that is
sent last makes workers begin their backward passes one after the other. So published gains tell which order they had.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass

from paceline_lab.studies.claims import Figures
from paceline_lab.studies.network_operator.published import MODELS, TITLES
from paceline_lab.studies.network_operator.runs import Config, Simulations

LARGEST = {
    "vgg-16": "fc6/weights",
    "inception-v3": "Logits/weights",
    "resnet-101": "logits/weights",
    "resnet-200": "logits/weights",
}
"""The largest tensor of each model's fully connected layers."""
_ORDERS: Mapping[str, str | None] = {
    "as in the trace": None,
    "forward": "forward",
    "reverse": "reverse",
    "fc6 first": "first:fc6/weights",
    "fc6 last": "last:fc6/weights",
}


@dataclass(frozen=True)
class OrderClaim:
    """The configurations that a claim needs, and the figures of their simulations."""

    configs: Mapping[str, Config]
    figures_of: Callable[[Simulations], Figures]

    def figures(self, simulations: Simulations) -> Figures:
        """Return the figures."""
        return self.figures_of(simulations)


def _pair(model: str, order: str | None) -> dict[str, Config]:
    return {name: Config(model, name, order=order) for name in ("ps", "ps-aggregation")}


def _gain(simulations: Simulations, model: str, order: str | None) -> float:
    own = _pair(model, order)
    return simulations[own["ps"]] / simulations[own["ps-aggregation"]]


def _staggered(simulations: Simulations, model: str, order: str | None) -> float:
    return 1e3 * simulations.staggering(Config(model, "ps", order=order))


def order_claims() -> Iterator[OrderClaim]:
    """Return the claims about the order, in the order of claims.toml."""
    last = {model: f"last:{name}" for model, name in LARGEST.items()}
    shipped = {f"{name}/{model}": one for model in MODELS for name, one in _pair(model, None).items()}
    moved = {f"{name}/{model}/last": one for model in MODELS for name, one in _pair(model, last[model]).items()}
    yield OrderClaim(
        shipped, lambda it: {f"{TITLES[model]}, staggering (ms)": _staggered(it, model, None) for model in MODELS}
    )

    def factor(it: Simulations) -> Figures:
        times: dict[str, float] = {}
        for model in MODELS:
            times[f"{TITLES[model]}, staggering with its largest last (ms)"] = _staggered(it, model, last[model])
        for model in MODELS:
            times[f"{TITLES[model]}, gain"] = _gain(it, model, None)
            times[f"{TITLES[model]}, gain with its largest last"] = _gain(it, model, last[model])
        return times

    yield OrderClaim({**shipped, **moved}, factor)
    orders = {
        f"{name}/{label}": one for label, order in _ORDERS.items() for name, one in _pair("vgg-16", order).items()
    }
    yield OrderClaim(orders, lambda it: {f"gain, {label}": _gain(it, "vgg-16", own) for label, own in _ORDERS.items()})
