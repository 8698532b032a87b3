"""The trace format's rules as this suite checks them, and their own test; the parser proper is in Rust."""

import json
from pathlib import Path

import pytest

ITEMSIZE = {"float64": 8, "float32": 4, "float16": 2, "bfloat16": 2}


def check_trace(trace):
    """Assert what docs/reference/trace-format.md demands of a recorded trace; return its only worker."""
    required = {"format", "version", "name", "provenance", "batch", "dtype", "device", "workers"}
    assert required <= set(trace) <= required | {"frozen", "library", "optimizer_bytes"}
    assert (trace["format"], trace["version"]) == ("paceline-trace", 1)
    assert trace["batch"] >= 1
    json.dumps(trace, allow_nan=False)
    (worker,) = trace["workers"]
    assert set(worker) == {"forward", "gradients", "backward_s", "optimizer_s"}
    needed = set()
    for layer in worker["forward"]:
        assert set(layer) <= {"layer", "duration_s", "tensors"}
        assert layer["duration_s"] >= 0
        tensors = layer.get("tensors", [])
        assert len(tensors) == len(set(tensors))
        needed |= set(tensors)
    assert len({layer["layer"] for layer in worker["forward"]}) == len(worker["forward"])
    tensors = [gradient["tensor"] for gradient in worker["gradients"]]
    assert len(tensors) == len(set(tensors))
    frozen = [one["tensor"] for one in trace.get("frozen", [])]
    assert set(tensors) | set(frozen) == needed and not set(tensors) & set(frozen)
    for gradient in worker["gradients"]:
        assert 0 <= gradient["ready_s"] <= worker["backward_s"]
        assert gradient["bytes"] >= 1
        assert gradient["bytes"] % ITEMSIZE[trace["dtype"]] == 0
    return worker


def layers(worker):
    """Give the layers without those that stand for no module."""
    return {x["layer"]: x.get("tensors", []) for x in worker["forward"] if not x["layer"].startswith("(")}


def example():
    text = (Path(__file__).parent.parent / "docs" / "reference" / "trace-format.md").read_text(encoding="utf-8")
    trace = json.loads(text.split("```json")[1].split("```")[0])
    del trace["distribution"], trace["variation"]
    return trace


def test_the_documented_example_passes():
    assert layers(check_trace(example())) == {"conv": ["conv.weight", "conv.bias"], "pool": [], "fc": ["fc.weight"]}


@pytest.mark.parametrize(
    "spoil",
    [
        lambda w: w["gradients"][0].update(ready_s=9.0),
        lambda w: w["gradients"][0].update(bytes=3),
        lambda w: w["forward"].pop(),
    ],
)
def test_a_spoiled_example_fails(spoil):
    trace = example()
    spoil(trace["workers"][0])
    with pytest.raises(AssertionError):
        check_trace(trace)
