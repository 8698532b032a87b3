"""By how much `simulate --jobs` by collective differs from every message: random mixes on four nodes.

python benches/jobs_by_collective.py [--mixes 40] [--network fluid] [--strategies ring,native] [--seed 1]
"""

import argparse
import random
from typing import Any

from paceline.forecast.jobs import model, spec


def mix(draw: random.Random, network: str, strategies: list[str]) -> dict[str, Any]:
    """Return two jobs of two nodes each, at random places, of which the second may begin later."""
    per_node = draw.choice([2, 4])
    nodes = draw.sample(range(4), 4)
    jobs: list[dict[str, Any]] = []
    for name, own in (("a", sorted(nodes[:2])), ("b", sorted(nodes[2:]))):
        sharding = draw.choice(["none", "zero1", "zero2", "zero3", "hsdp"])
        trace = draw.choice(["gpt2-small", "resnet-50", "bert-base"])
        one = {"name": name, "trace": trace, "workers": 2 * per_node, "nodes": own, "strategy": draw.choice(strategies)}
        jobs.append(one if sharding == "none" else one | {"sharding": sharding})
    jobs[1]["start"] = draw.choice(["0ms", "3ms", "70ms"])
    over = draw.choice([1.0, 2.0, 3.0])
    return {
        "nodes": 4,
        "gpus_per_node": per_node,
        "intra_bandwidth": "200Gbps",
        "iterations": 3,
        "bandwidth": draw.choice(["25Gbps", "100Gbps"]),
        "network": network,
        "racks": {"nodes_per_rack": 2, "oversubscription": over},
        "job": jobs,
    }


def worst(document: dict[str, Any]) -> float:
    """Return the largest difference of an iteration, alone or beside the other job."""
    found = []
    for most in (10**15, -1):
        model._MOST_MESSAGES = model._MOST_ON_FEW_NODES = most
        found.append(model.simulate_jobs(spec.mix(document, "mix")))
    pairs = zip(found[0].jobs, found[1].jobs, strict=True)
    return max(
        abs(getattr(two, name) / getattr(one, name) - 1) for one, two in pairs for name in ("iteration_s", "alone_s")
    )


def main() -> None:
    """Print how many mixes are how near."""
    parser = argparse.ArgumentParser()
    parser.add_argument("--mixes", type=int, default=40)
    parser.add_argument("--network", default="fluid")
    parser.add_argument("--strategies", default="ring,native")
    parser.add_argument("--seed", type=int, default=1)
    given = parser.parse_args()
    draw = random.Random(given.seed)
    errors = sorted(worst(mix(draw, given.network, given.strategies.split(","))) for _ in range(given.mixes))
    for share in (0.5, 0.75, 0.9, 1.0):
        print(f"{share:.0%} of {given.mixes} mixes within {errors[max(0, int(share * len(errors)) - 1)]:.2%}")
    print(f"within 0.1 %: {sum(error < 0.001 for error in errors)} of {given.mixes}")


if __name__ == "__main__":
    main()
