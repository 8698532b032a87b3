"""Sharded training in forecasts: options, errors, memory, and output."""

from __future__ import annotations

import json
from functools import partial
from pathlib import Path
from typing import Any

import cli
import paceline
import pytest
from paceline._internal import units
from paceline.errors import InvalidArgumentError

run = partial(cli.output, "simulate")

BLOCKS, ELEMENTS = 4, 1 << 20


def trace(path: Path, activation_bytes: int | None = None, blocks: int = BLOCKS) -> str:
    """Write a model of blocks, with an embedding and a head; return its file."""
    names = ["wte", *(f"h.{block}.{part}" for block in range(blocks) for part in ("attn", "mlp")), "head"]
    kept = {} if activation_bytes is None else {"activation_bytes": activation_bytes}
    forward = [{"layer": name, "duration_s": 0.001, "tensors": [f"{name}.weight"]} | kept for name in names]
    gradients = [
        {"tensor": f"{name}.weight", "ready_s": 0.002 * (place + 1), "bytes": 4 * ELEMENTS}
        for place, name in enumerate(reversed(names))
    ]
    document = {"format": "paceline-trace", "version": 1, "name": "blocks", "batch": 2, "dtype": "float32"}
    document["workers"] = [{"forward": forward, "gradients": gradients, "optimizer_s": 0.008}]
    path.write_text(json.dumps(document), encoding="utf-8")
    return str(path)


@pytest.fixture
def model(tmp_path: Path) -> str:
    """A model whose memory is known."""
    return trace(tmp_path / "blocks.json", activation_bytes=1000)


def test_none_is_the_forecast_without_it(model: str) -> None:
    plain = json.loads(run(model, "--gpus", "8", "--strategy", "ring", "--json"))[0]
    answer = json.loads(run(model, "--gpus", "8", "--strategy", "ring", "--sharding", "none", "--json"))[0]
    own = answer.pop("sharded")
    assert answer | {"interval": None, "evidence": ""} == plain | {"interval": None, "evidence": ""}
    parameters = (2 * BLOCKS + 2) * ELEMENTS
    assert own["memory"]["parameters_bytes"] == 4 * parameters
    assert own["memory"]["optimizer_bytes"] == 8 * parameters
    # DDP's buckets hold a copy of the gradients.
    assert own["memory"]["gradients_bytes"] == 2 * 4 * parameters


def test_each_stage_takes_less_memory_and_sends_what_is_published(model: str) -> None:
    results = paceline.sweep(model, workers=8, strategy="ring", sharding=["none", "zero1", "zero2", "zero3"])
    memory = [result.sharded.memory.peak_bytes for result in results if result.sharded]
    assert memory == sorted(memory, reverse=True)
    all_bytes = 4 * (2 * BLOCKS + 2) * ELEMENTS
    root = 4 * 2 * ELEMENTS
    part = 7 / 8
    sent = [2 * part * all_bytes] * 3 + [part * (3 * all_bytes - root)]
    assert [result.bytes_sent_per_worker for result in results] == pytest.approx(sent)


def test_aliases_and_groups(model: str) -> None:
    words = [model, "--gpus", "8", "--gpus-per-node", "4", "--bandwidth", "10Gbps", "--json"]
    answer = json.loads(run(*words, "--sharding", "fsdp,hsdp,hsdp:2"))
    assert [one["sharded"]["sharding"] for one in answer] == ["zero3", "hsdp:4", "hsdp:2"]
    assert [one["sharded"]["shard_ranks"] for one in answer] == [8, 4, 2]
    assert {one["strategy"] for one in answer} == {"native"}


def test_who_names_halving_doubling_is_told_that_ranks_do_not_keep_step(model: str) -> None:
    words = [model, "--gpus", "8", "--bandwidth", "10Gbps", "--sharding", "zero1"]
    notes = [cli.notes(run(*words, "--strategy", one)) for one in ("halving-doubling", "ring")]
    assert [any("is forecast for ranks in step" in note for note in of) for of in notes] == [True, False]


def test_optimizer_states_in_groups_of_ranks(model: str) -> None:
    words = [model, "--gpus", "8", "--gpus-per-node", "4", "--bandwidth", "10Gbps", "--json"]
    answer = [one["sharded"] for one in json.loads(run(*words, "--sharding", "zero1,zero1:4,zero2:4,zero1:8"))]
    assert [one["sharding"] for one in answer] == ["zero1", "zero1:4", "zero2:4", "zero1"]
    assert [one["shard_ranks"] for one in answer] == [8, 4, 4, 8]
    states = [one["memory"]["optimizer_bytes"] for one in answer]
    assert states[1] == states[2] == 2 * states[0]
    results = paceline.sweep(model, workers=8, gpus_per_node=4, strategy="ring", sharding=["zero1:4", "hsdp:4"])
    all_bytes = 4 * (2 * BLOCKS + 2) * ELEMENTS
    # A reduce-scatter and an all-gather in the group, and an all-reduce of the shard between two groups.
    assert results[0].bytes_sent_per_worker == pytest.approx((2 * 3 / 4 + 1 / 4) * all_bytes)


def test_accumulation_counts_all_samples(model: str) -> None:
    once = paceline.simulate(model, workers=1, sharding="zero3", strategy="ring")
    thrice = paceline.simulate(model, workers=1, sharding="zero3", accumulate=3, strategy="ring")
    assert thrice.iteration_s == pytest.approx(3 * once.iteration_s - 2 * 0.008)
    assert thrice.samples_per_s == pytest.approx(6 / thrice.iteration_s)


def test_a_job_that_does_not_fit_names_the_remedy(model: str) -> None:
    text = run(model, "--gpus", "8", "--sharding", "none", "--memory", "580MB")
    said = "blocks, DDP (NCCL), 8 GPUs: does not fit, 210 MB to allocate per GPU, and 124 MB of 580 MB can be"
    assert " ".join(text.split()).startswith(said)
    assert "--sharding zero3" in cli.facts(text)["Fits with"] and "\nIf it fit: " in text
    parts = "83.9 MB gradients 83.9 MB optimizer states 41.9 MB parameters 4 kB activations"
    assert cli.facts(text)["Memory"] == f"{parts} 0.45 GB besides: CUDA context"
    answer = json.loads(run(model, "--gpus", "8", "--sharding", "none,zero3", "--memory", "580MB", "--json"))
    assert [one["sharded"]["fits"] for one in answer] == [False, True]
    # The fastest that fits leads, and the table has what does not fit last.
    text = run(model, "--gpus", "8", "--sharding", "none,zero3", "--memory", "580MB", "--bandwidth", "1Gbps")
    assert text.startswith("blocks, zero3 (FSDP), 8 GPUs: ") and " that fits" in cli.facts(text)["Strategy"]
    assert text.index("\nzero3 ") < text.index("\nnone (DDP) ")
    text = " ".join(run(model, "--gpus", "8", "--sharding", "zero1,zero3", "--memory", "1GB").split())
    assert "does not fit" not in text
    assert "zero3" in text


def test_memory_without_activations_says_so(tmp_path: Path) -> None:
    text = run(trace(tmp_path / "t.json"), "--gpus", "8", "--sharding", "zero3")
    assert cli.facts(text)["Memory"].endswith(" allocated), without activations")
    assert "Memory leaves out activations: blocks does not have them" in cli.notes(text)


def test_the_plan_and_the_timeline_are_written(model: str, tmp_path: Path) -> None:
    plan, timeline = tmp_path / "plan.json", tmp_path / "run.json"
    run(model, "--gpus", "8", "--sharding", "zero3", "--plan-json", str(plan), "--timeline", str(timeline))
    document = json.loads(plan.read_text(encoding="utf-8"))
    assert (document["format"], document["world"]) == ("paceline-iteration-plan", 8)
    assert [unit["name"] for unit in document["units"]] == ["root", "h.0", "h.1", "h.2", "h.3"]
    events = json.loads(timeline.read_text(encoding="utf-8"))["traceEvents"]
    names = {event["name"] for event in events}
    assert {"all-gather h.3", "reduce-scatter root", "forward h.0"} <= names
    threads = {event["args"]["name"] for event in events if event["name"] == "thread_name"}
    assert threads == {"compute", "all-gather", "reduce-scatter"}


def plan_of(path: Path, *words: str) -> dict[str, Any]:
    """Return the plan that `paceline simulate` writes."""
    run(*words, "--plan-json", str(path))
    document: dict[str, Any] = json.loads(path.read_text(encoding="utf-8"))
    return document


@pytest.mark.parametrize("strategy", ["ps", "sharded-ps"])
def test_the_plan_of_servers_is_the_one_that_is_executed(model: str, tmp_path: Path, strategy: str) -> None:
    words = (model, "--gpus", "4", "--library", "none", "--strategy", strategy)
    plan = plan_of(tmp_path / "layer.json", *words)
    assert plan["ends_with_compute"]
    assert sorted(unit["priority"] for unit in plan["units"]) == list(range(2 * BLOCKS + 2))
    forward = [step for step in plan["steps"] if step["work"]["op"] == "forward"]
    # Each layer waits for its own parameters, and its time has a tenth of the optimizer's.
    awaited = [[plan["steps"][number]["unit"] for number in step["after_previous"]] for step in forward]
    assert awaited == [[step["unit"]] for step in forward]
    assert {step["work"]["duration_ps"] for step in forward} == {1_800_000_000}
    assert {step["stream"] for step in plan["steps"]} == {"compute", "background"}
    plan = plan_of(tmp_path / "step.json", *words, "--pull", "step")
    last = plan["steps"][-1]
    assert (last["work"]["op"], len(last["after"])) == ("optimizer", 2 * BLOCKS + 2)
    assert "ends_with_compute" not in plan


def test_a_model_pulls_as_asked_and_otherwise_as_its_library_does() -> None:
    words = ("gpt2-small", "--gpu", "a100", "--gpus", "8", "--strategy", "ps", "--json")
    pulls = (), ("--pull", "layer"), ("--pull", "step")
    answer = [json.loads(cli.call("simulate", *words, *more).stdout)[0] for more in pulls]
    default, layer, step = (one["iteration_s"] for one in answer)
    assert layer < default == step


def test_the_plan_of_an_exchange_alone(tmp_path: Path) -> None:
    plan = plan_of(tmp_path / "plan.json", "allreduce:1GB/2", "--gpus", "4", "--strategy", "ring")
    exchanges = [step["work"] for step in plan["steps"] if step["work"]["op"] == "exchange"]
    assert [it["collective"] for it in exchanges] == ["all-reduce"] * 2
    assert sum(4 * it["elements"] for it in exchanges) == 10**9
    assert sum(step["work"].get("duration_ps", 0) for step in plan["steps"]) == 0


def test_where_there_is_no_plan() -> None:
    words = ["--plan-json", "x.json"]
    text = run("resnet-18", "--gpus", "4", "--strategy", "ring", "--coordinator", "nbcs", *words, code=2)
    assert (
        "needs a fixed order of exchanges, which a coordinator decides in every iteration try: drop --coordinator"
        in " ".join(text.split())
    )
    text = run("allgather:1MB", "--gpus", "4", "--cluster", "dgx-a100", *words, code=2)
    assert "--strategy ring, or drop --plan-json" in " ".join(text.split())


def test_a_thousand_gpus_are_the_same_every_time(tmp_path: Path) -> None:
    large = trace(tmp_path / "large.json", blocks=79)
    words = [large, "--gpus", "1024", "--gpus-per-node", "8", "--bandwidth", "400Gbps", "--sharding", "zero3", "--json"]
    first = run(*words)
    assert json.loads(first)[0]["sharded"]["resolution"] == "collectives"
    assert run(*words) == first


@pytest.mark.parametrize(
    ("words", "message"),
    [
        (
            ["--sharding", "zero4"],
            "unknown sharding 'zero4' try: zero1 (one of none, zero1, zero2, zero3, hsdp, or hsdp:RANKS",
        ),
        (["--sharding", "zero3:4"], "'zero3:4': zero3 over a part of the ranks is hsdp try: --sharding hsdp:4"),
        (["--sharding", "none:4"], "none takes no number of ranks"),
        (["--sharding", "zero1:3"], "groups of 3 do not divide 8 data-parallel workers try: --sharding zero1:2"),
        (["--sharding", "hsdp:3"], "groups of 3 do not divide 8 data-parallel workers try: --sharding hsdp:2"),
        (["--sharding", "hsdp"], "one data-parallel rank per node"),
        (["--prefetch", "2"], "--prefetch"),
        (["--sharding", "none", "--prefetch", "2"], "has no effect with none"),
        (["--sharding", "zero1", "--unit", "h.*"], "has no effect with zero1"),
        (["--sharding", "zero3", "--unit", "x.*"], "no layer's name begins with 'x.*'"),
        (
            ["--sharding", "zero3", "--accumulate-sync"],
            "needs accumulation try: --accumulate 4, or drop --accumulate-sync",
        ),
        (["--sharding", "zero3", "--strategy", "ps"], "has no all-gather and reduce-scatter"),
        (["--sharding", "zero3", "--no-barrier"], "always wait for each other"),
        (["--sharding", "zero3", "--reshard-after-forward", "3"], "3 must divide the 8 ranks"),
        (["--sharding", "zero1,zero3", "--plan-json", "x.json"], "writes one plan"),
        (["--memory", "80GB"], "needs sharding try: --sharding zero1, zero2, zero3 or hsdp, or drop --memory"),
    ],
)
def test_errors_name_the_remedy(model: str, words: list[str], message: str) -> None:
    assert message in " ".join(run(model, "--gpus", "8", *words, code=2).split())


def test_python_checks_as_the_command_line_does(model: str) -> None:
    with pytest.raises(InvalidArgumentError, match="sharding"):
        paceline.simulate(model, workers=8, sharding="zero4")


def said(*words: str) -> str:
    """Return what is printed on standard output, in one line."""
    return " ".join(cli.printed("simulate", *words).split())


def test_all_sentences_of_a_verdict_are_about_the_row_that_it_names() -> None:
    words = ("llama-3-8b", "--gpu", "h100", "--gpus", "64", "--sharding", "zero3", "--strategy", "native,ring")
    native, ring = cli.answer("simulate", *words)
    text = cli.printed("simulate", *words)
    answer = cli.facts(text)
    assert native["iteration_s"] < ring["iteration_s"]
    assert text.startswith("llama-3-8b, zero3 (FSDP), 64x H100: ")
    assert answer["Iteration"].startswith(units.duration(native["iteration_s"]))
    exposed = units.duration(native["exposed_communication_s"])
    assert answer["Exposed"].startswith(f"{exposed} of communication ")
    own = native["sharded"]["memory"]
    peak, total = units.memory(own["peak_bytes"]), units.gigabytes(own["total_bytes"])
    assert answer["Memory"] == f"{total} of 84.9 GB per GPU ({peak} allocated): fits"


def test_no_sharding_is_called_ddp(model: str) -> None:
    text = cli.printed("simulate", model, "--gpus", "8", "--sharding", "none")
    assert text.startswith("blocks, DDP (NCCL), 8 GPUs: ") and "none" not in text
    text = cli.printed("simulate", model, "--gpus", "8", "--sharding", "none,zero1", "--memory", "100MB")
    assert "\nnone (DDP)  native (NCCL) " in text
    # Its mark in the table is explained, and it is said once that nothing is faster.
    assert "! does not fit: of a GPU's 0.10 GB, 95.5% can be allocated" in text
    assert text.count("is faster") <= 1
    assert "ring," in run(model, "--gpus", "8", "--sharding", "zero3", "--strategy", "ps", code=2)


def test_efficiency_over_100_per_cent_is_explained(model: str) -> None:
    words = (model, "--gpus", "8", "--bandwidth", "400Gbps", "--strategy", "ring", "--sharding")
    fast, plain = (cli.printed("simulate", *words, sharding) for sharding in ("zero3", "none"))
    assert json.loads(run(*words, "zero3", "--json"))[0]["scaling_efficiency"] > 1
    note = "[1] Each GPU updates only its shard; the 1-GPU baseline updates everything"
    assert "% of linear [1]" in cli.facts(fast)["Scaling"] and note in cli.notes(fast)
    assert "[1]" not in plain


def test_explain_names_the_sharding_and_keeps_its_sentences(model: str) -> None:
    words = (model, "--gpus", "8", "--sharding", "zero2,zero3", "--memory", "1GB", "--explain")
    answer = [one["explanation"] for one in json.loads(run(*words, "--json")) if "explanation" in one]
    assert [it["sharding"] for it in answer] in (["zero2"], ["zero3"])
    text = said(*words)
    name = answer[0]["sharding"]
    assert name in text.partition(":")[0]
    assert "Exposed" in text and "Memory" in text and "optimizer states" in text
    assert not {"multicast in the switch", "aggregation in the switch"} & {one["what"] for one in answer[0]["changes"]}


def test_parallel_ranks_are_counted_in_gpus() -> None:
    words = ("llama-3-70b", "--gpu", "h100", "--gpus", "256", "--tensor-parallel", "8", "--pipeline-parallel", "8")
    words = (*words, "--microbatches", "24", "--strategy", "native,hierarchical", "--sharding", "zero1")
    text = cli.printed("simulate", *words)
    answer = cli.facts(text)
    assert text.startswith("llama-3-70b, zero1, 256x H100 (TP 8 x PP 8 x DP 4): ")
    assert "24 microbatches of 1 per DP rank" in answer["Setup"]
    assert "of gradients of the slowest stage" in answer["Setup"]
    assert answer["Pipeline"].startswith("bubble is ")
    assert answer["Pipeline"].endswith("% of compute (8 stages, 24 microbatches)")
    assert answer["Memory"].endswith("(stage that needs most)")
    plain = words[: words.index("--sharding")]
    notes = cli.answer("simulate", *plain)[1]["notes"]
    assert any("A data-parallel rank is 64 GPUs (TP 8 x PP 8)" in note for note in notes)
    assert any("Assumed dgx-h100 nodes" in note for note in notes)
    plain = (*plain, "--cluster", "flat", "--gpus-per-node", "8")
    notes = cli.answer("simulate", *plain)[1]["notes"]
    assert "hierarchical is ring here (1 data-parallel rank per node)" in notes


def test_without_sharding_every_strategy_can_be_named(model: str) -> None:
    words = [model, "--gpus", "8", "--bandwidth", "10Gbps", "--json"]
    for strategy in ("tree", "recursive-doubling", "sharded-ps"):
        [plain] = json.loads(run(*words, "--strategy", strategy))
        [unsharded] = json.loads(run(*words, "--strategy", strategy, "--sharding", "none"))
        assert unsharded["iteration_s"] == plain["iteration_s"]
    assert "tree has no all-gather" in run(*words, "--strategy", "tree", "--sharding", "none,zero1", code=2)
    # Accumulation is a plan of collectives between ranks.
    names = {one["strategy"] for one in json.loads(run(*words, "--accumulate", "2", "--strategy", "all"))}
    assert "tree" in names and not {"ps", "sharded-ps"} & names
    assert "ps needs servers" in run(*words, "--accumulate", "2", "--strategy", "ps", code=2)


def test_libraries_that_shard_nothing_are_refused(model: str) -> None:
    words = [model, "--gpus", "8", "--bandwidth", "10Gbps"]
    result = run(*words, "--library", "horovod", "--sharding", "none,zero3", code=2)
    assert "--library: horovod shards nothing" in result
    assert run(*words, "--library", "horovod", "--sharding", "none").startswith("blocks, Horovod (NCCL), 8 GPUs: ")


def test_gradients_have_the_type_of_their_parameters(model: str) -> None:
    words = [model, "--gpus", "8", "--bandwidth", "10Gbps", "--strategy", "ring", "--sharding"]

    def seconds(*more: str) -> float:
        return json.loads(run(*words, *more, "--json"))[0]["iteration_s"]

    assert seconds("none", "--param-dtype", "bf16") == seconds("none", "--reduce-dtype", "bf16")
    for sharding in ("none", "zero1", "zero2"):
        both = ("--param-dtype", "bf16", "--reduce-dtype", "bf16")
        assert seconds(sharding, "--param-dtype", "bf16") == seconds(sharding, *both)
        assert seconds(sharding, "--param-dtype", "bf16") < seconds(sharding)
        assert seconds(sharding, "--param-dtype", "fp32") == seconds(sharding)
    assert seconds("zero3", "--param-dtype", "bf16") > seconds("zero3", *both)


def test_what_takes_equally_long_is_said(model: str) -> None:
    _, table = cli.table(run(model, "--gpus", "1", "--bandwidth", "10Gbps", "--sharding", "zero3,none"))
    assert len(table) == 2 and all("1.00x" in line.split() for line in table)
    text = run("netop-vgg-16", "--workers", "32", "--bandwidth", "25Gbps", "--strategy", "all")
    assert cli.facts(text)["Strategy"] == "ring is fastest without SHARP, with 2 others"
