"""The figures that decide the paper's claims, and the simulations that they need, in the order of claims.toml."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator, Mapping
from dataclasses import dataclass
from math import prod

from paceline.catalog.names import Distribution, Pull

from paceline_lab.studies.claims import Figures
from paceline_lab.studies.network_operator import mechanisms as m
from paceline_lab.studies.network_operator.mechanisms import configured
from paceline_lab.studies.network_operator.published import INPUTS, MODELS, TITLES
from paceline_lab.studies.network_operator.runs import Config, Simulations

Times = Mapping[str, float]
DISTRIBUTIONS: tuple[Distribution, ...] = ("block", "round-robin")
PULLS: tuple[Pull, ...] = ("layer", "step")


@dataclass(frozen=True)
class Claim:
    """The configurations that a claim needs by label, and the figures of their iteration times."""

    configs: Mapping[str, Config]
    figures_of: Callable[[Times], Figures]

    def figures(self, simulations: Simulations) -> Figures:
        """Return the figures for the simulated times."""
        return self.figures_of({label: simulations[config] for label, config in self.configs.items()})


def _grid(mechanisms: tuple[str, ...], models: tuple[str, ...] = MODELS, **settings: object) -> dict[str, Config]:
    """Return each mechanism on each model, labeled `mechanism/model`."""
    return {f"{name}/{model}": configured(model, name, **settings) for name in mechanisms for model in models}


def claims() -> list[Claim]:
    """Return the claims in the order of the paper: which mechanism wins, and what changes that; then details."""
    return [*_rankings(), *_leads(), *_modules(), *_details(), *_closed_forms(), *_sentences()]


def _rankings() -> Iterator[Claim]:
    def speed_up(times: Times, name: str) -> float:
        gains = (times[f"{m.SERVER}/{model}"] / times[f"{name}/{model}"] for model in MODELS)
        return prod(gains) ** (1 / len(MODELS))

    configs = _grid((m.SERVER, *m.RANKED))
    yield Claim(configs, lambda times: {f"mean speed-up, {name}": speed_up(times, name) for name in m.RANKED})
    first = (m.RING, m.BOTH, m.BUTTERFLY)

    def spread(times: Times, model: str) -> float:
        each = [times[f"{name}/{model}"] for name in first]
        return max(each) / min(each) - 1

    yield Claim(_grid(first), lambda times: {f"spread, {TITLES[model]}": spread(times, model) for model in MODELS})


def _leads() -> Iterator[Claim]:
    """Return where ring leads multicast + aggregation on VGG-16, and where it does not."""

    def lead(times: Times, at: object) -> float:
        return times[f"{m.BOTH}/{at}"] / times[f"{m.RING}/{at}"]

    counts, pair = (4, 8, 16, 32, 64), (m.RING, m.BOTH)
    configs = {f"{name}/{count}": configured("vgg-16", name, workers=count) for name in pair for count in counts}
    configs |= {f"{name}/slow": configured("vgg-16", name, workers=4, gbps=5) for name in pair}

    def by_workers(times: Times) -> Figures:
        figures = {f"lead at {count} workers": lead(times, count) for count in counts}
        return {**figures, "at 4 workers and 5 Gbit/s": lead(times, "slow")}

    yield Claim(configs, by_workers)
    rates = (5, 10, 25, 50, 100)
    at_rate = {
        f"{name}/{rate}": configured("vgg-16", name, **({} if rate == 25 else {"gbps": rate}))
        for name in pair
        for rate in rates
    }
    yield Claim(at_rate, lambda times: {f"lead at {rate} Gbit/s": lead(times, rate) for rate in rates})
    others = (m.RING, m.BUTTERFLY)

    def behind(times: Times, model: str) -> float:
        return min(times[f"{name}/{model}"] for name in others) / times[f"{m.BOTH}/{model}"]

    names = (m.RING, m.BOTH, m.BUTTERFLY)
    faster = _grid(names, compute_speedup=2.5)
    yield Claim(faster, lambda times: {f"lead at 2.5x, {TITLES[model]}": behind(times, model) for model in MODELS})
    inception = _grid(names, ("inception-v3",), compute_speedup=3.0)
    yield Claim(inception, lambda times: {f"{name} (s)": times[f"{name}/inception-v3"] for name in names})


def _modules() -> Iterator[Claim]:
    """Return speedups over the server alone with modules added to Inception-v3."""

    def added(kind: str, counts: tuple[int, ...], names: tuple[str, ...]) -> dict[str, Config]:
        return {
            f"{name}/{n}": configured("inception-v3", name, **({"modules": f"{kind}:{n}"} if n else {}))
            for name in (m.SERVER, *names)
            for n in counts
        }

    def gain(times: Times, name: str, count: int) -> float:
        return times[f"{m.SERVER}/{count}"] / times[f"{name}/{count}"]

    counts = (0, 25, 125)
    yield Claim(
        added("compute", counts, (m.AGGREGATION,)),
        lambda times: {f"speed-up with {count} modules": gain(times, m.AGGREGATION, count) for count in counts},
    )
    with_25 = (m.MULTICAST, m.RING, m.BOTH, m.BUTTERFLY)
    yield Claim(
        added("compute", (25,), with_25),
        lambda times: {f"speed-up with 25, {name}": gain(times, name, 25) for name in with_25},
    )
    grow = (m.BOTH, m.RING, m.BUTTERFLY)
    yield Claim(
        added("network", counts, grow),
        lambda times: {f"{name}, {n}": gain(times, name, n) for name in grow for n in counts},
    )
    alone = (m.MULTICAST, m.AGGREGATION)
    yield Claim(
        added("network", (125,), alone),
        lambda times: {f"speed-up with 125, {name}": gain(times, name, 125) for name in alone},
    )


def _cut(model: str, mechanism: str) -> Config:
    # 1 MB chunks: only large tensors are worth cutting; one chunk per worker of each would take seconds to simulate.
    strategy = configured(model, mechanism).strategy
    return Config(model, strategy, chunk="per-worker" if model == "vgg-16" else "1MB")


# Bandwidths for block distribution, in Gbit/s.
_BLOCK_RATES = (5, 10, 25, 100)


def _first_backward(model: str) -> float:
    """Return the calibrated time of the layer that runs first in the backward pass."""
    return 0.004 if model == "vgg-16" else 0.002


def _whole_backward(model: str) -> float:
    return _first_backward(model) + INPUTS[model].backward_after_first_s


def _details() -> Iterator[Claim]:
    """Return what messages, the barrier and staggering do."""
    names = (m.SERVER, m.MULTICAST, m.AGGREGATION, m.BOTH)
    cut = {f"cut {name}/{model}": _cut(model, name) for name in names for model in MODELS}

    def gains(times: Times) -> Figures:
        gains = {
            f"{name}, {TITLES[model]}": times[f"{name}/{model}"] / times[f"cut {name}/{model}"]
            for name in names
            for model in MODELS
        }
        ordered = sorted(gains.items(), key=lambda item: -item[1])
        return {f"gain, {name}": gain for name, gain in (*ordered[:3], ordered[-1])}

    yield Claim({**_grid(names), **cut}, gains)
    yield Claim(
        _grid((m.RING, m.RING_WHOLE)),
        lambda times: {
            f"gain, {TITLES[model]}": times[f"{m.RING_WHOLE}/{model}"] / times[f"{m.RING}/{model}"] for model in MODELS
        },
    )
    free = {f"free/{model}": Config(model, "ps-multicast-aggregation", barrier=False) for model in MODELS}
    yield Claim(
        {**_grid((m.RING,)), **free},
        lambda times: {
            f"multicast + aggregation / ring, {TITLES[model]}": times[f"free/{model}"] / times[f"{m.RING}/{model}"]
            for model in MODELS
        },
    )
    yield from (_block_aggregation(), _staggering())
    first, rest = _first_backward("vgg-16"), INPUTS["vgg-16"].backward_after_first_s
    yield Claim({}, lambda _: {"last layer's backward (s)": first, "rest of the backward pass (s)": rest})


def _block_aggregation() -> Claim:
    ways: tuple[tuple[str, str, Distribution | None], ...] = (
        ("block", "ps", "block"),
        ("aggregation", "ps-aggregation", None),
    )
    configs = {
        f"{name}/{model}/{rate}": Config(model, strategy, gbps=rate, distribution=distribution)
        for name, strategy, distribution in ways
        for model in MODELS
        for rate in _BLOCK_RATES
    }

    def figures(times: Times) -> Figures:
        fits: list[float] = []
        others: list[float] = []
        for model in MODELS:
            for rate in _BLOCK_RATES:
                send = INPUTS[model].gigabits / rate
                ratio = times[f"block/{model}/{rate}"] / times[f"aggregation/{model}/{rate}"]
                (fits if _first_backward(model) + send > _whole_backward(model) else others).append(ratio)
        figures = {"block / aggregation, greatest where it is met": max(fits), "smallest where it is met": min(fits)}
        return {**figures, "greatest where not": max(others), "cases met": len(fits), "cases not": len(others)}

    return Claim(configs, figures)


def _staggering() -> Claim:
    configs = {
        f"{name}/{model}/{rate}": Config(model, "ps", 2, rate, distribution=None if name == "round-robin" else name)
        for name in ("block", "round-robin")
        for model in MODELS
        for rate in _BLOCK_RATES
    }

    def figures(times: Times) -> Figures:
        hurt, against = 0, 0
        for model in MODELS:
            last = INPUTS[model].backward_after_first_s / (INPUTS[model].layers - 1)
            for rate in _BLOCK_RATES:
                worse = times[f"round-robin/{model}/{rate}"] > 1.01 * times[f"block/{model}/{rate}"]
                hurt += worse
                against += worse and INPUTS[model].gigabits / rate <= _whole_backward(model) - last
        return {"cases": len(configs) / 2, "less staggering hurts": hurt, "of them with D <= B - C": against}

    return Claim(configs, figures)


def _closed_forms() -> Iterator[Claim]:
    workers, size, rate = 32, 100e6, 25e9 / 8
    incast, phase = 2 * workers * size / rate, size * (workers - 1) / (workers * rate)
    server = {"ps": Config("allreduce:100MB", "ps")}
    yield Claim(server, lambda times: {"2WS/B (s)": incast, "simulated (s)": times["ps"]})
    rings = {name: Config("allreduce:100MB", name, chunk="per-worker") for name in ("ring", "ring-multicast")}
    yield Claim(
        rings,
        lambda times: {
            "S(W-1)/(WB) (s)": phase,
            "simulated (s)": times["ring"] - phase,
            "S/B (s)": size / rate,
            "simulated with multicast (s)": times["ring-multicast"] - phase,
        },
    )


def _sentences() -> Iterator[Claim]:
    """Return the sentences of the paper's text that no table contains."""
    in_network = (m.MULTICAST, m.AGGREGATION, m.BOTH)
    configs = _grid((m.SERVER, *in_network))

    def gain(times: Times, name: str, model: str, server: str = m.SERVER) -> float:
        return times[f"{server}/{model}"] / times[f"{name}/{model}"]

    yield Claim(
        configs,
        lambda times: {
            f"multicast / aggregation, {TITLES[model]}": gain(times, m.MULTICAST, model)
            / gain(times, m.AGGREGATION, model)
            for model in MODELS
        },
    )
    yield Claim(
        configs,
        lambda times: {
            f"both / sum of gains, {TITLES[model]}": (gain(times, m.BOTH, model) - 1)
            / (gain(times, m.MULTICAST, model) + gain(times, m.AGGREGATION, model) - 2)
            for model in MODELS
        },
    )
    yield Claim(configs, lambda times: {TITLES[model]: gain(times, m.AGGREGATION, model) for model in MODELS})
    yield Claim(configs, lambda times: {TITLES[model]: gain(times, m.MULTICAST, model) for model in MODELS})
    yield from (_ring_against_fabric(), _butterfly_against_ring(), _ring_with_multicast(), _faster_butterfly())
    yield from (_best_split(), _block_against_round_robin(), _forward_pipelining())


_RATES = (5, 10, 25, 50, 100)


def _at_rates(names: Iterable[str], models: Iterable[str] = MODELS, rates: Iterable[int] = _RATES) -> dict[str, Config]:
    return {
        f"{name}/{model}/{rate}": configured(model, name, **({} if rate == 25 else {"gbps": rate}))
        for name in names
        for model in models
        for rate in rates
    }


def _ring_against_fabric() -> Claim:
    """Ring's time over the best mechanism of the network, at its worst rate."""

    def figures(times: Times) -> Figures:
        return {
            f"{TITLES[model]}": max(
                times[f"{m.RING}/{model}/{rate}"]
                / min(times[f"{name}/{model}/{rate}"] for name in (m.BOTH, m.MULTICAST, m.AGGREGATION))
                for rate in _RATES
            )
            for model in MODELS
        }

    return Claim(_at_rates((m.RING, m.BOTH, m.MULTICAST, m.AGGREGATION)), figures)


def _butterfly_against_ring() -> Claim:
    def figures(times: Times) -> Figures:
        return {
            f"{TITLES[model]}, {rate} Gbit/s": times[f"{m.BUTTERFLY}/{model}/{rate}"]
            / times[f"{m.RING}/{model}/{rate}"]
            for rate in (25, 10)
            for model in MODELS
        }

    return Claim(_at_rates((m.RING, m.BUTTERFLY), rates=(25, 10)), figures)


def _ring_with_multicast() -> Claim:
    counts = (4, 8, 16, 32)
    configs = {
        f"{name}/{count}": configured("inception-v3", name, workers=count)
        for name in (m.RING, m.RING_MULTICAST)
        for count in counts
    }

    def figures(times: Times) -> Figures:
        return {f"{n} workers": times[f"{m.RING_MULTICAST}/{n}"] / times[f"{m.RING}/{n}"] for n in counts}

    return Claim(configs, figures)


def _faster_butterfly() -> Claim:
    """Butterfly's time over ring's with computation three times as fast, over the same as measured."""
    names = (m.RING, m.BUTTERFLY)
    configs = {f"now/{key}": config for key, config in _grid(names).items()}
    configs |= {f"faster/{key}": config for key, config in _grid(names, compute_speedup=3.0).items()}

    def figures(times: Times) -> Figures:
        ratio = {
            (when, model): times[f"{when}/{m.BUTTERFLY}/{model}"] / times[f"{when}/{m.RING}/{model}"]
            for when in ("now", "faster")
            for model in MODELS
        }
        return {TITLES[model]: ratio["faster", model] / ratio["now", model] for model in MODELS}

    return Claim(configs, figures)


def _best_split() -> Claim:
    """The time of multicast and aggregation with 8 servers and the best split over ring's."""
    split = {
        f"split/{model}": Config(model, "ps-multicast-aggregation", servers=8, slices=256 if model == "vgg-16" else 8)
        for model in MODELS
    }
    return Claim(
        {**_grid((m.RING,)), **split},
        lambda times: {TITLES[model]: times[f"split/{model}"] / times[f"{m.RING}/{model}"] for model in MODELS},
    )


def _block_against_round_robin() -> Claim:
    configs = {
        f"{name}/{model}/{rate}": Config(model, "ps", gbps=rate, distribution=name)
        for name in DISTRIBUTIONS
        for model in MODELS
        for rate in _BLOCK_RATES
    }

    def figures(times: Times) -> Figures:
        each = [
            times[f"block/{model}/{rate}"] / times[f"round-robin/{model}/{rate}"]
            for model in MODELS
            for rate in _BLOCK_RATES
        ]
        return {"block / round-robin, most": max(each), "least": min(each)}

    return Claim(configs, figures)


def _forward_pipelining() -> Claim:
    """Return the gain of the forward pass beside the distribution, under multicast with a server."""
    configs = {f"{pull}/{model}": Config(model, "ps-multicast", pull=pull) for pull in PULLS for model in MODELS}
    return Claim(
        configs, lambda times: {TITLES[model]: times[f"step/{model}"] / times[f"layer/{model}"] for model in MODELS}
    )
