"""Claims on which mechanism wins, and what changes that."""

from __future__ import annotations

from itertools import pairwise
from math import prod

from paceline_lab.studies.network_operator import mechanisms as m
from paceline_lab.studies.network_operator.claim import Claim, Times, Verdict, grid
from paceline_lab.studies.network_operator.mechanisms import configured
from paceline_lab.studies.network_operator.published import MODELS, TITLES
from paceline_lab.studies.network_operator.runs import Config


def _ranking() -> Claim:
    def judge(times: Times) -> Verdict:
        means = {
            name: prod(times[f"{m.SERVER}/{model}"] / times[f"{name}/{model}"] for model in MODELS) ** (1 / len(MODELS))
            for name in m.RANKED
        }
        ordered = [means[name] for name in m.RANKED]
        return ordered == sorted(ordered, reverse=True), {f"mean speed-up, {name}": x for name, x in means.items()}

    text = "Overall ranking: ring, multicast + aggregation, butterfly, multicast, aggregation (mean speed-up)."
    return Claim(text, grid((m.SERVER, *m.RANKED)), judge)


def _close() -> Claim:
    first = (m.RING, m.BOTH, m.BUTTERFLY)

    def judge(times: Times) -> Verdict:
        spread = {}
        for model in MODELS:
            each = [times[f"{name}/{model}"] for name in first]
            spread[model] = max(each) / min(each) - 1
        holds = all((spread[model] <= 0.12) != (model == "vgg-16") for model in MODELS)
        return holds, {f"spread, {TITLES[model]}": value for model, value in spread.items()}

    text = "Ring, multicast + aggregation and butterfly are within about 10 % of each other, except on VGG-16."
    return Claim(text, grid(first), judge)


def _vgg_workers() -> Claim:
    counts = (4, 8, 16, 32, 64)
    names = (m.RING, m.BOTH)
    configs = {f"{name}/{count}": configured("vgg-16", name, workers=count) for name in names for count in counts}
    configs |= {f"{name}/slow": configured("vgg-16", name, workers=4, gbps=5) for name in names}

    def judge(times: Times) -> Verdict:
        leads = [times[f"{m.BOTH}/{count}"] / times[f"{m.RING}/{count}"] for count in counts]
        falls = all(later <= earlier * 1.001 for earlier, later in pairwise(leads))
        figures = {f"lead at {count} workers": lead for count, lead in zip(counts, leads, strict=True)}
        figures["at 4 workers and 5 Gbit/s"] = times[f"{m.BOTH}/slow"] / times[f"{m.RING}/slow"]
        return falls and leads[0] >= 1.5, figures

    text = "On VGG-16 ring leads multicast + aggregation by nearly 2x at 4 workers, and less with more workers."
    return Claim(text, configs, judge)


def _vgg_bandwidth() -> Claim:
    rates = (5, 10, 25, 50, 100)
    configs = {f"{name}/{rate}": _at_rate("vgg-16", name, rate) for name in (m.RING, m.BOTH) for rate in rates}

    def judge(times: Times) -> Verdict:
        leads = [times[f"{m.BOTH}/{rate}"] / times[f"{m.RING}/{rate}"] for rate in rates]
        # There is no lead from 50 Gbit/s upwards.
        falls = all(later < earlier for earlier, later in pairwise(leads[:3]))
        return falls and leads[2] > 1, {f"lead at {rate} Gbit/s": lead for rate, lead in zip(rates, leads, strict=True)}

    return Claim("On VGG-16 ring's lead over multicast + aggregation grows at low bandwidth.", configs, judge)


def _at_rate(model: str, mechanism: str, gbps: float) -> Config:
    return configured(model, mechanism) if gbps == 25 else configured(model, mechanism, gbps=gbps)


def _faster_compute() -> Claim:
    configs = grid((m.RING, m.BOTH, m.BUTTERFLY), compute_speedup=2.5)

    def judge(times: Times) -> Verdict:
        leads = {
            model: min(times[f"{name}/{model}"] for name in (m.RING, m.BUTTERFLY)) / times[f"{m.BOTH}/{model}"]
            for model in MODELS
        }
        ahead = sum(lead > 1 for lead in leads.values())
        return ahead > len(MODELS) / 2, {f"lead at 2.5x, {TITLES[model]}": lead for model, lead in leads.items()}

    text = "With computation 2.5 times as fast, multicast + aggregation overtakes ring and butterfly on most models."
    return Claim(text, configs, judge)


def _inception_level() -> Claim:
    configs = grid((m.RING, m.BOTH, m.BUTTERFLY), ("inception-v3",), compute_speedup=3.0)

    def judge(times: Times) -> Verdict:
        each = {name: times[f"{name}/inception-v3"] for name in (m.RING, m.BOTH, m.BUTTERFLY)}
        level = abs(min(each[m.RING], each[m.BUTTERFLY]) / each[m.BOTH] - 1) <= 0.05
        return level, {f"{name} (s)": seconds for name, seconds in each.items()}

    return Claim(
        "On Inception-v3 multicast + aggregation stays level with the best of them, with computation 3 times as fast.",
        configs,
        judge,
    )


def _modules(kind: str, counts: tuple[int, ...], names: tuple[str, ...]) -> dict[str, Config]:
    return {
        f"{name}/{n}": configured("inception-v3", name, modules=f"{kind}:{n}")
        if n
        else configured("inception-v3", name)
        for name in (m.SERVER, *names)
        for n in counts
    }


def _gain(times: Times, name: str, count: int) -> float:
    return times[f"{m.SERVER}/{count}"] / times[f"{name}/{count}"]


def _compute_aggregation() -> Claim:
    def judge(times: Times) -> Verdict:
        gains = {count: _gain(times, m.AGGREGATION, count) for count in (0, 25, 125)}
        falls = gains[0] > gains[25] >= gains[125] and gains[125] <= 1.05
        return falls, {f"speed-up with {count} modules": gain for count, gain in gains.items()}

    text = "With compute-heavy modules added to Inception-v3, aggregation's gain falls to nothing (125 modules)."
    return Claim(text, _modules("compute", (0, 25, 125), (m.AGGREGATION,)), judge)


def _compute_multicast() -> Claim:
    names = (m.MULTICAST, m.RING, m.BOTH, m.BUTTERFLY)

    def judge(times: Times) -> Verdict:
        gains = {name: _gain(times, name, 25) for name in names}
        equal = gains[m.MULTICAST] >= 0.95 * max(gains.values())
        return equal, {f"speed-up with 25, {name}": gain for name, gain in gains.items()}

    text = "With 25 compute-heavy modules multicast alone equals the best."
    return Claim(text, _modules("compute", (25,), names), judge)


def _network_gains() -> Claim:
    names = (m.BOTH, m.RING, m.BUTTERFLY)

    def judge(times: Times) -> Verdict:
        gains = {name: [_gain(times, name, count) for count in (0, 25, 125)] for name in names}
        grows = all(each[0] < each[1] <= each[2] * 1.001 for each in gains.values())
        figures = {f"{name}, {n}": g for name in names for n, g in zip((0, 25, 125), gains[name], strict=True)}
        return grows, figures

    text = "With network-heavy modules the gains of multicast + aggregation, ring and butterfly grow with their number."
    return Claim(text, _modules("network", (0, 25, 125), names), judge)


def _network_alone() -> Claim:
    names = (m.MULTICAST, m.AGGREGATION)

    def judge(times: Times) -> Verdict:
        gains = {name: _gain(times, name, 125) for name in names}
        return max(gains.values()) < 2, {f"speed-up with 125, {name}": gain for name, gain in gains.items()}

    text = "With 125 network-heavy modules neither multicast nor aggregation alone reaches 2x."
    return Claim(text, _modules("network", (125,), names), judge)


def ranking_claims() -> list[Claim]:
    """Return the claims in the order of the paper."""
    makers = (
        _ranking,
        _close,
        _vgg_workers,
        _vgg_bandwidth,
        _faster_compute,
        _inception_level,
        _compute_aggregation,
        _compute_multicast,
        _network_gains,
        _network_alone,
    )
    return [make() for make in makers]
