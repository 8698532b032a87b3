"""`graph` against `negotiate` without contention: steps of the models of benches/horovod on two ranks, in pairs."""

from __future__ import annotations

import argparse
import sys
from pathlib import Path

HERE = Path(__file__).resolve().parent
sys.path.insert(0, str(HERE.parent / "peers"))

import jobs  # noqa: E402
import show  # noqa: E402
import summary  # noqa: E402
import systems  # noqa: E402
from systems import System  # noqa: E402

JOB = HERE.parent / "horovod" / "job.py"
MODELS = {"mlp": "MLP, 100 MB, 4 samples a rank", "resnet18": "ResNet-18, 16 images of 64 px a rank"}


def seconds(policy: str, model: str, steps: int) -> float:
    """Of a step, on the slower rank. Raises jobs.JobError."""
    variables = {"PACELINE_RENDEZVOUS": f"127.0.0.1:{systems._port()}", "PACELINE_COORDINATOR": policy}
    job = System(f"{model}, {policy}", "hvd", str(JOB), "", variables=variables, arguments=("hvd", model))
    reports = jobs.run(job, 2, ["--steps", str(steps)], 300)
    return summary.slowest([report["seconds"] for report in reports])


def main() -> None:
    """Measure and show."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--rounds", type=int, default=6)
    parser.add_argument("--steps", type=int, default=12)
    options = parser.parse_args()
    rows = []
    with show.progress() as say:
        for model, title in MODELS.items():
            found: dict[str, list[float]] = {"negotiate": [], "graph": []}
            for number in range(options.rounds):
                for policy in sorted(found, reverse=number % 2 == 0):
                    found[policy].append(seconds(policy, model, options.steps))
                    say(f"{model}, round {number + 1}/{options.rounds}: {policy}")
            middle = [f"{1e3 * (summary.middle(found[policy]) or 0):.0f}" for policy in found]
            rows.append([title, *middle, str(summary.faster(found["negotiate"], found["graph"]))])
    show.table(summary.Table("Without contention", ["model", "negotiate, ms", "graph, ms", "times as fast"], rows))


if __name__ == "__main__":
    main()
