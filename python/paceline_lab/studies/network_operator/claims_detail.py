"""Claims on messages, the barrier, staggering and closed forms."""

from __future__ import annotations

from paceline.catalog.names import Distribution

from paceline_lab.studies.network_operator import mechanisms as m
from paceline_lab.studies.network_operator.claim import Claim, Times, Verdict, grid
from paceline_lab.studies.network_operator.mechanisms import configured
from paceline_lab.studies.network_operator.published import INPUTS, MODELS, TITLES
from paceline_lab.studies.network_operator.runs import Config


def _cut(model: str, mechanism: str) -> Config:
    # 1 MB chunks: only large tensors are worth cutting; one chunk per worker of each would take seconds to simulate.
    strategy = configured(model, mechanism).strategy
    return Config(model, strategy, chunk="per-worker" if model == "vgg-16" else "1MB")


def _server_messages() -> Claim:
    names = (m.SERVER, m.MULTICAST, m.AGGREGATION, m.BOTH)
    cut = {f"cut {name}/{model}": _cut(model, name) for name in names for model in MODELS}

    def judge(times: Times) -> Verdict:
        gains = {
            f"{name}, {TITLES[model]}": times[f"{name}/{model}"] / times[f"cut {name}/{model}"]
            for name in names
            for model in MODELS
        }
        ordered = sorted(gains.items(), key=lambda item: -item[1])
        return ordered[0][1] <= 1.02, {f"gain, {name}": gain for name, gain in (*ordered[:3], ordered[-1])}

    text = "Parameter servers gain nothing from cutting tensors into messages, on any model."
    return Claim(text, {**grid(names), **cut}, judge)


def _ring_messages() -> Claim:
    def judge(times: Times) -> Verdict:
        gains = {model: times[f"{m.RING_WHOLE}/{model}"] / times[f"{m.RING}/{model}"] for model in MODELS}
        return min(gains.values()) >= 1.1, {f"gain, {TITLES[model]}": gain for model, gain in gains.items()}

    text = "Ring gains much from cutting tensors into messages."
    return Claim(text, grid((m.RING, m.RING_WHOLE)), judge)


def _no_barrier() -> Claim:
    free = {f"free/{model}": Config(model, "ps-multicast-aggregation", barrier=False) for model in MODELS}

    def judge(times: Times) -> Verdict:
        ratios = {model: times[f"free/{model}"] / times[f"{m.RING}/{model}"] for model in MODELS}
        level = all(ratio <= 1.05 for ratio in ratios.values())
        return level, {f"multicast + aggregation / ring, {TITLES[model]}": x for model, x in ratios.items()}

    text = "Without the barrier, multicast + aggregation draws level with ring."
    return Claim(text, {**grid((m.RING,)), **free}, judge)


# Bandwidths for block distribution, in Gbit/s.
_BLOCK_RATES = (5, 10, 25, 100)


def _first_backward(model: str) -> float:
    """Return the calibrated time of the layer that runs first in the backward pass."""
    return 0.004 if model == "vgg-16" else 0.002


def _whole_backward(model: str) -> float:
    return _first_backward(model) + INPUTS[model].backward_after_first_s


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

    def judge(times: Times) -> Verdict:
        fits: list[float] = []
        others: list[float] = []
        for model in MODELS:
            first = _first_backward(model)
            for rate in _BLOCK_RATES:
                send = INPUTS[model].gigabits / rate
                ratio = times[f"block/{model}/{rate}"] / times[f"aggregation/{model}/{rate}"]
                (fits if first + send > _whole_backward(model) else others).append(ratio)
        figures = {"block / aggregation, greatest where it is met": max(fits), "smallest where it is met": min(fits)}
        figures |= {"greatest where not": max(others), "cases met": len(fits), "cases not": len(others)}
        return all(0.9 <= ratio <= 1.1 for ratio in fits), figures

    text = "Block distribution comes close to in-network aggregation where B1 + N > BN (5 to 100 Gbit/s)."
    return Claim(text, configs, judge)


def _staggering() -> Claim:
    configs = {
        f"{name}/{model}/{rate}": Config(model, "ps", 2, rate, distribution=None if name == "round-robin" else name)
        for name in ("block", "round-robin")
        for model in MODELS
        for rate in _BLOCK_RATES
    }

    def judge(times: Times) -> Verdict:
        hurt, against = 0, 0
        for model in MODELS:
            compute = _whole_backward(model)
            last = INPUTS[model].backward_after_first_s / (INPUTS[model].layers - 1)
            for rate in _BLOCK_RATES:
                worse = times[f"round-robin/{model}/{rate}"] > 1.01 * times[f"block/{model}/{rate}"]
                hurt += worse
                against += worse and INPUTS[model].gigabits / rate <= compute - last
        return against == 0, {
            "cases": len(configs) / 2,
            "less staggering hurts": hurt,
            "of them with D <= B - C": against,
        }

    text = "Less staggering (2 workers, round-robin instead of block) can only hurt where the delay D > B - C."
    return Claim(text, configs, judge)


def _last_layer() -> Claim:
    def judge(_: Times) -> Verdict:
        first, rest = _first_backward("vgg-16"), INPUTS["vgg-16"].backward_after_first_s
        return first > rest, {"last layer's backward (s)": first, "rest of the backward pass (s)": rest}

    return Claim("The last layer's backward pass dominates VGG-16's.", {}, judge)


def _closed_incast() -> Claim:
    workers, size, rate = 32, 100e6, 25e9 / 8
    formula = 2 * workers * size / rate

    def judge(times: Times) -> Verdict:
        return abs(times["ps"] / formula - 1) < 0.001, {"2WS/B (s)": formula, "simulated (s)": times["ps"]}

    text = "Closed form: a parameter server's incast takes 2WS/B (100 MB, 32 workers, 25 Gbit/s)."
    return Claim(text, {"ps": Config("allreduce:100MB", "ps")}, judge)


def _closed_ring() -> Claim:
    workers, size, rate = 32, 100e6, 25e9 / 8
    phase = size * (workers - 1) / (workers * rate)
    configs = {name: Config("allreduce:100MB", name, chunk="per-worker") for name in ("ring", "ring-multicast")}

    def judge(times: Times) -> Verdict:
        ring, multicast = times["ring"] - phase, times["ring-multicast"] - phase
        holds = abs(ring / phase - 1) < 0.01 and abs(multicast / (size / rate) - 1) < 0.05
        figures = {"S(W-1)/(WB) (s)": phase, "simulated (s)": ring, "S/B (s)": size / rate}
        return holds, {**figures, "simulated with multicast (s)": multicast}

    text = "Closed form: a ring's second phase takes S(W-1)/(WB), with multicast S/B (same case)."
    return Claim(text, configs, judge)


def detail_claims() -> list[Claim]:
    """Return the claims in the order of the paper."""
    makers = (
        _server_messages,
        _ring_messages,
        _no_barrier,
        _block_aggregation,
        _staggering,
        _last_layer,
        _closed_incast,
        _closed_ring,
    )
    return [make() for make in makers]
