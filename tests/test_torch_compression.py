"""Compression hooks and DiLoCo in real processes, and the bytes that they send against the forecast's."""

import json

import paceline
import paceline.torch
import pytest
import torch
from torch_workers import compression
from torch_workers.launch import run


def trace(layers):
    """A trace of linear layers: name to the shapes of weight and bias."""
    tensors = {f"{name}.{kind}": shape for name, shapes in layers.items() for kind, shape in shapes.items()}
    document = {
        "format": "paceline-trace",
        "version": 1,
        "name": "linear",
        "batch": 4,
        "dtype": "float32",
        "device": "A100",
        "workers": [
            {
                "forward": [
                    {"layer": name, "duration_s": 0.001, "tensors": [f"{name}.{kind}" for kind in shapes]}
                    for name, shapes in layers.items()
                ],
                "gradients": [
                    {"tensor": name, "ready_s": 0.002, "bytes": 4 * torch.Size(shape).numel(), "shape": shape}
                    for name, shape in reversed(tensors.items())
                ],
                "backward_s": 0.002,
            }
        ],
    }
    return paceline.Trace.from_json(json.dumps(document).encode(), "linear")


LINEAR = {
    "0": {"weight": [300, 200], "bias": [300]},
    "1": {"weight": [128, 300], "bias": [128]},
    "2": {"weight": [10, 128], "bias": [10]},
}


@pytest.mark.process
@pytest.mark.parametrize("size", [2, 3])
def test_hooks_and_optimizers(size):
    run(size, compression.everything)


@pytest.mark.process
def test_as_many_bytes_are_sent_as_forecast(tmp_path):
    path, names = (
        tmp_path / "run.json",
        ["none", "fp16", "bf16", "int8", "powersgd:4", "powersgd:1", "topk:0.01", "topk:1"],
    )
    run(2, compression.one_step_of_each, names, env={"PACELINE_TIMELINE": str(path), "PACELINE_STRATEGY": "ring"})
    events = json.loads(path.read_text(encoding="utf-8"))["traceEvents"]
    sent = [
        one["args"]["bytes"]
        for one in sorted((one for one in events if one["ph"] == "b"), key=lambda one: one["ts"])
        if one["cat"] == "message" and one["pid"] == 1 and one["args"]["from"] == "worker 0"
    ]
    marks = [place for place, size in enumerate(sent) if size == compression.MARK]
    assert len(marks) == 2 * len(names)
    for name, begin, end in zip(names, marks[::2], marks[1::2], strict=True):
        forecast = paceline.simulate(
            trace(LINEAR), strategy="ring", workers=2, library="none", compression=name, bucket_size="25MB"
        )
        assert sum(sent[begin + 1 : end]) == forecast.bytes_sent_per_worker > 0, name


def test_mistakes_are_refused():
    wrong = paceline.InvalidArgumentError
    model = torch.nn.Linear(2, 1)
    with pytest.raises(wrong, match="try: powersgd"):
        paceline.torch.compression.hook_of("powersdg")
    for name in ("powersgd:0", "powersgd:1.5", "topk:2", "topk:x", "fp16:3"):
        with pytest.raises(wrong, match=name):
            paceline.torch.compression.hook_of(name)
    with pytest.raises(wrong, match=r"try: DistributedDataParallel\(model\)"):
        paceline.torch.compression.register(model, "fp16")
    with pytest.raises(wrong, match="density: must be above 0 and at most 1, not 0"):
        paceline.torch.compression.TopKState(density=0)
    optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
    for wrong_every in (0, -1, 1.5, True):
        with pytest.raises(wrong, match="sync_every: "):
            paceline.torch.DiLoCo(optimizer, sync_every=wrong_every)
    with pytest.raises(wrong, match="momentum 1 at least 0 and below 1"):
        paceline.torch.DiLoCo(optimizer, sync_every=2, momentum=1)
    with pytest.raises(TypeError, match="optimizer is a Linear"):
        paceline.torch.DiLoCo(model, sync_every=2)
