"""A linear model trained by gradient descent; every rank has its own samples, and all end with the same weights."""

import hashlib
import json
import socket
import sys

import numpy as np
import paceline

STEPS, FEATURES = 30, 20_000


def train(job):
    truth = np.linspace(-1, 1, FEATURES, dtype="float32")
    weights = np.zeros(FEATURES, "float32")
    samples = np.random.default_rng(job.rank).standard_normal((8, FEATURES), dtype="float32")
    losses = []
    for _ in range(STEPS):
        wrong = samples @ (weights - truth)
        gradient = samples.T @ wrong / len(samples)
        job.all_reduce(gradient, "average", name="gradient")
        weights -= gradient * np.float32(len(samples) / FEATURES / 2)
        losses.append(float(np.mean(wrong**2)))
    return weights, losses


if __name__ == "__main__":
    if sys.argv[1:] == ["fail"]:
        import os

        os._exit(3 if os.environ["RANK"] == "1" else 0)
    with paceline.job.join() as job:
        weights, losses = train(job)
        status = job.status()
        said = {
            "rank": job.rank,
            "host": socket.gethostname(),
            "peers": {peer["rank"]: peer["host"] for peer in status["peers"]},
            "transports": status["transports"],
            "digest": hashlib.sha256(weights.tobytes()).hexdigest(),
            "losses": [losses[0], losses[-1]],
        }
        print(json.dumps(said), flush=True)
