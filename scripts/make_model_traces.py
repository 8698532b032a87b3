#!/usr/bin/env python3
"""Makes built-in traces of recordings (record_models.py) and of published rates (python/paceline/catalog/rates.json).

Tensors, their sizes and their order come from the real model, the proportions of layer times from the recording on a
CPU, and the total is scaled to the rate of one device. At a CPU's own speed every network would look free.

    python scripts/record_models.py recorded
    python scripts/make_model_traces.py recorded
"""

from __future__ import annotations

import argparse
from pathlib import Path

import paceline
from paceline.catalog.devices import Rate, rates_of

TRACES = Path(__file__).parent.parent / "python/paceline/catalog/traces"
DEVICES = ("V100", "A100", "P100")
# No rate is published for these; the speedup of a device over the CPU is assumed to be that of a similar model.
LIKE = {"resnet-200": "resnet-152", "googlenet": "inception-v3"}


def rate_of(name: str) -> Rate:
    known = rates_of(name)
    return next(known[device] for device in DEVICES if device in known)


def seconds(trace: paceline.Trace) -> float:
    """Of a sample."""
    return (trace.forward_s + trace.backward_s + trace.optimizer_s) / trace.batch


def scaled(name: str, recorded: Path) -> tuple[paceline.Trace, Rate, str]:
    """The trace at its rate, that rate, and a description of its source."""
    trace = paceline.Trace.read(recorded / f"{name}.json")
    if name not in LIKE:
        rate = rate_of(name)
        return trace.with_batch(rate.batch).scaled_to_rate(rate.samples_per_s), rate, f"to {rate.cited}"
    like, rate = LIKE[name], rate_of(LIKE[name])
    faster = rate.samples_per_s * seconds(paceline.Trace.read(recorded / f"{like}.json"))
    own = faster / seconds(trace)
    words = f"to {own:.4g} samples/s: by the factor by which {like} is faster there than here, {rate.cited}"
    return trace.with_batch(rate.batch).scaled_to_rate(own), rate, words


def make(name: str, recorded: Path) -> paceline.Trace:
    trace, rate, words = scaled(name, recorded)
    provenance = (
        f"{name}: tensors and their order from the model of torchvision or transformers, layer times recorded on a CPU "
        f"({trace.provenance}) and all scaled alike {words}; so the total is a {rate.device}'s, the proportions "
        "of layers are a CPU's. Made by scripts/record_models.py and scripts/make_model_traces.py"
    )
    return trace.replace(name=name, device=f"{rate.device} (by its rate)", provenance=provenance)


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("recorded", type=Path, metavar="FOLDER")
    parser.add_argument("models", nargs="*", metavar="MODEL", help="default: all recordings in the folder")
    options = parser.parse_args()
    for name in options.models or sorted(path.stem for path in options.recorded.glob("*.json")):
        trace = make(name, options.recorded)
        (TRACES / f"{name}.json").write_text(trace.to_json() + "\n")
        print(f"{name}: {trace.tensor_count} tensors, {1 / seconds(trace):g} samples/s")


if __name__ == "__main__":
    main()
