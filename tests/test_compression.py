"""Compressed gradients and rarer synchronization in forecasts: bytes, times, costs, errors and output."""

from __future__ import annotations

import csv
import io
import json
import re
from functools import partial
from itertools import product
from pathlib import Path

import cli
import paceline
import pytest
from paceline.catalog.builtin import load_trace
from paceline.catalog.compression import METHODS, parse
from paceline.catalog.gpus import find_hardware
from paceline.errors import InvalidArgumentError
from paceline.forecast.compression import on_gpu

COSTS = ("bucket_s", "tensor_s", "element_s", "received_s")
run = partial(cli.output, "simulate")

GPT2 = ("gpt2-small", "--workers", "8", "--bandwidth", "1Gbps")
VALUES = 497_759_232 // 4


def costs(path: Path, **parts: dict[str, float]) -> str:
    """Write a cluster that says what int8 takes; return its file."""
    document = {"format": "paceline-cluster", "version": 1, "name": "mine", "bandwidth": "10Gbps"}
    document |= {"compression_costs": [{"method": "int8", **parts}]}
    path.write_text(json.dumps(document), encoding="utf-8")
    return str(path)


@pytest.mark.parametrize("strategy", ["native", "ring", "hierarchical"])
def test_none_in_every_iteration_is_the_forecast_without_options(strategy: str) -> None:
    plain = json.loads(run(*GPT2, "--strategy", strategy, "--json"))[0]
    answer = json.loads(run(*GPT2, "--strategy", strategy, "--compression", "none", "--sync-every", "1", "--json"))[0]
    assert (answer.pop("compression"), answer.pop("sync_every")) == ("none", 1)
    assert answer == plain


def test_bytes_are_those_of_the_methods() -> None:
    methods = ["none", "fp16", "bf16", "int8", "topk:0.01", "powersgd:4"]
    job = {"workers": 8, "strategy": "ring", "library": "none", "bucket_size": "25MB", "bandwidth": "1Gbps"}
    values = {it.compression: it for it in paceline.sweep("gpt2-small", compression=methods, **job)}
    sent = {name: it.bytes_sent_per_worker for name, it in values.items()}
    ring = 2 * 7 / 8
    assert sent["none"] == pytest.approx(ring * 4 * VALUES)
    assert sent["fp16"] == sent["bf16"] == pytest.approx(sent["none"] / 2)
    assert sent["int8"] == pytest.approx(ring * VALUES * (1 + 4 / 256), rel=1e-3)
    assert sent["topk:0.01"] == pytest.approx(7 * 8 * 0.01 * VALUES, rel=1e-3)
    # Of GPT-2: embeddings of 50257 words and 1024 places, 12 blocks of 4 matrices; the rest is not compressed.
    matrices = [(50257, 768), (1024, 768)] + 12 * [(768, 2304), (768, 768), (768, 3072), (3072, 768)]
    factors = sum(4 * (rows + columns) for rows, columns in matrices)
    others = VALUES - sum(rows * columns for rows, columns in matrices)
    assert sent["powersgd:4"] == pytest.approx(ring * 4 * (factors + others))
    assert all(it.iteration_s < values["none"].iteration_s for name, it in values.items() if name != "none")


def test_a_round_takes_what_its_iterations_and_one_exchange_take() -> None:
    job = {"workers": 8, "strategy": "ring", "library": "none", "bandwidth": "1Gbps", "bucket_size": "25MB"}
    one, *rounds = paceline.sweep("gpt2-small", sync_every=[1, 2, 16, 128], **job)
    for result, every in zip(rounds, (2, 16, 128), strict=True):
        assert result.compute_s == pytest.approx(one.compute_s)
        assert result.bytes_sent_per_worker == pytest.approx(one.bytes_sent_per_worker / every)
        assert result.samples_per_s == pytest.approx(8 * one.batch / result.iteration_s)
        # One exchange that nothing hides, and the outer step.
        exchange_s = 2 * 7 / 8 * 4 * VALUES * 8 / 1e9
        alone_s = result.iteration_s - result.compute_s
        assert alone_s * every == pytest.approx(exchange_s + one.optimizer_s, rel=0.02)
        assert result.exposed_communication_s == pytest.approx(alone_s)
        assert sum(part.seconds for part in result.critical_path) == pytest.approx(result.iteration_s)


def test_measured_costs_delay_the_backward_pass_and_the_end(tmp_path: Path) -> None:
    job = {"workers": 4, "compression": "int8", "library": "none", "strategy": "ring", "bucket_size": "none"}
    free = paceline.simulate("vgg-16", costs(tmp_path / "free.json"), **job)
    assert free.notes == ("Time to compress with int8: measured on mine",)
    values = 553_430_560 / 4
    slow = paceline.simulate("vgg-16", costs(tmp_path / "slow.json", compress={"element_s": 1e-9}), **job)
    # Nothing else is on the critical path but the last gradients' exchange.
    assert slow.iteration_s - free.iteration_s == pytest.approx(1e-9 * values, rel=0.5)
    late = paceline.simulate("vgg-16", costs(tmp_path / "late.json", decompress={"bucket_s": 0.5}), **job)
    assert late.iteration_s > free.iteration_s + 0.5
    assert {part.part for part in late.critical_path} >= {"compression"}
    half = paceline.simulate("vgg-16", str(tmp_path / "late.json"), compute_speedup=2, **job)
    assert half.iteration_s < late.iteration_s


def test_costs_on_a_gpu_grow_with_its_memory_and_launches() -> None:
    slow, fast = find_hardware("t4"), find_hardware("h100")
    for name in METHODS[1:]:
        old, new = (on_gpu(parse(name), it, 4, 8) for it in (slow, fast))
        for part, cost in product(("compress", "between", "decompress"), COSTS):
            assert getattr(getattr(new, part), cost) <= getattr(getattr(old, part), cost), name
        assert old.compress.element_s > new.compress.element_s > 0
    ranks = [on_gpu(parse(f"powersgd:{rank}"), fast, 4, 8).compress for rank in (1, 32, 1024)]
    assert ranks[0].tensor_s < ranks[1].tensor_s < ranks[2].tensor_s
    assert ranks[0].element_s == ranks[1].element_s < ranks[2].element_s


def test_many_ranks_and_every_library() -> None:
    for workers in (1, 2, 4096):
        result = paceline.simulate("gpt2-small", workers=workers, compression="powersgd:4", sync_every=3)
        assert result.iteration_s > result.compute_s * (1 if workers > 1 else 0.999)
    for library in ("none", "ddp", "ddp-gloo", "horovod"):
        result = paceline.simulate("gpt2-small", workers=4, library=library, compression="fp16", bandwidth="1Gbps")
        assert result.bytes_sent_per_worker == pytest.approx(2 * 3 / 4 * 2 * VALUES)


def test_models_of_a_configuration_have_shapes() -> None:
    job = {"workers": 64, "bandwidth": "10Gbps", "strategy": "native"}
    result = paceline.sweep("llama-3-8b@h100", compression=["none", "powersgd:8"], **job)
    assert result[1].bytes_sent_per_worker < result[0].bytes_sent_per_worker / 50
    assert result[1].iteration_s < result[0].iteration_s
    one = paceline.simulate("llama-3-8b@h100", workers=64, compression="powersgd:8", bandwidth="400Gbps")
    assert one.interval is None
    assert "--compression: no published run has it" in one.evidence


def test_output(tmp_path: Path) -> None:
    words = (*GPT2, "--compression", "powersgd:4,none", "--sync-every", "1,16")
    text = run(*words)
    assert re.search(r"^compression +every  strategy ", text, re.MULTILINE)
    assert "Time to compress with powersgd:4: roofline of A100 SXM4 80 GB" in cli.notes(text)
    assert "powersgd:4, sync every 16 iterations" in " ".join(text.split("\n\n")[0].split())
    rows = json.loads(run(*words, "--json"))
    values = [(row["compression"], row["sync_every"]) for row in rows]
    assert values == [("powersgd:4", 1), ("powersgd:4", 16), ("none", 1), ("none", 16)]
    table = list(csv.DictReader(io.StringIO(run(*words, "--csv"))))
    assert [row["compression"] for row in table] == ["powersgd:4", "powersgd:4", "none", "none"]
    assert "compression" not in run(*GPT2, "--csv").splitlines()[0]
    plan, timeline = tmp_path / "plan.json", tmp_path / "timeline.json"
    run(*GPT2, "--compression", "powersgd:4", "--plan-json", str(plan), "--timeline", str(timeline))
    steps = json.loads(plan.read_text(encoding="utf-8"))["steps"]
    assert {step["work"]["op"] for step in steps} >= {"compress", "decompress", "exchange"}
    assert "compression" in timeline.read_text(encoding="utf-8")
    sharded = json.loads(run(*GPT2, "--sharding", "none", "--compression", "int8", "--json"))[0]["sharded"]
    # DDP's buckets, what was not sent, gradients, and at the end both parts of what embedding and head share.
    shared = 50257 * 768
    assert sharded["memory"]["gradients_bytes"] == 3 * 4 * VALUES + 2 * 4 * shared
    assert sharded["exposed"]["compression_s"] > 0


@pytest.mark.parametrize(
    ("words", "message"),
    [
        (["--compression", "powersdg"], "try: powersgd"),
        (["--compression", "powersgd:0"], "try: --compression powersgd:4"),
        (["--compression", "topk:2"], "'topk:2': the share of values that is sent must be above 0, and at most 1"),
        (["--compression", "fp16:2"], "'fp16:2': fp16 has no parameter"),
        (["--sync-every", "0"], "--sync-every: must be 1-100000, not 0"),
        (
            ["--compression", "int8", "--sharding", "none,zero3"],
            "--compression: needs all-reduces, and zero3 reduce-scatters its gradients in every iteration",
        ),
        (
            ["--sync-every", "4", "--sharding", "zero1"],
            "--sync-every: needs all-reduces, and zero1 reduce-scatters its gradients in every iteration",
        ),
        (
            ["--compression", "int8", "--coordinator", "negotiate"],
            "gradients are compressed by hooks and optimizers, which no coordinator orders",
        ),
        (["--compression", "int8", "--strategy", "ps"], "--strategy: ps exchanges by servers or the switch"),
        (["--sync-every", "4", "--strategy", "sharp"], "--strategy: sharp exchanges by servers or the switch"),
        (["--compression", "topk", "--strategy", "tree"], "--strategy: tree has no all-gather, which topk needs"),
        (["--compression", "int8", "--no-barrier"], "--no-barrier: where gradients are compressed, ranks wait"),
        (
            ["--compression", "int8", "--sharding", "none", "--reduce-dtype", "float16"],
            "--reduce-dtype: needs plain gradients, and compression says what is sent",
        ),
        (
            ["--sync-every", "2", "--accumulate", "2", "--accumulate-sync"],
            "--accumulate-sync: needs gradients to exchange, and sync-every exchanges parameters",
        ),
    ],
)
def test_mistakes(words: list[str], message: str) -> None:
    out = run("gpt2-small", "--workers", "8", *words, code=2)
    assert message in out
    assert out.startswith("paceline: error: ")


def test_what_is_not_known_is_refused(tmp_path: Path) -> None:
    assert "--sync-every: needs computation, and allreduce:100MB computes nothing" in run(
        "allreduce:100MB", "--workers", "4", "--sync-every", "4", code=2
    )
    document, path = json.loads(load_trace("resnet-18").to_json()), tmp_path / "mine.json"
    document["device"] = "some CPU, 2 threads"
    path.write_text(json.dumps(document), encoding="utf-8")
    with pytest.raises(InvalidArgumentError, match="nobody measured what fp16 takes to compute on some CPU, 2 threads"):
        paceline.simulate(path, workers=2, compression="fp16")
    for gradient in document["workers"][0]["gradients"]:
        del gradient["shape"]
    document["device"] = "a100"
    path.write_text(json.dumps(document), encoding="utf-8")
    with pytest.raises(
        InvalidArgumentError, match=r"PowerSGD needs the shape of fc\.bias, which trace 'resnet-18' does not say"
    ):
        paceline.simulate(path, workers=2, compression="powersgd")
    assert paceline.simulate(path, workers=2, compression="int8").iteration_s > 0
    document["workers"][0]["gradients"][0]["shape"] = [3, 3]
    path.write_text(json.dumps(document), encoding="utf-8")
    with pytest.raises(InvalidArgumentError, match=r"gradients\[0\].shape: \[3, 3\] has 9 elements"):
        paceline.simulate(path, workers=2)
