"""`paceline advise`: the best configurations that fit, against brute force, and costs against closed forms."""

import json
import math
import re
import shlex
from functools import partial

import cli
import pytest
import tiers
from paceline import InvalidArgumentError
from paceline._internal import units
from paceline.catalog.gpus import find_hardware
from paceline.catalog.instances import price_of
from paceline.forecast import footprint
from paceline.forecast.advisor import search
from paceline.forecast.advisor.candidates import Space
from paceline.forecast.advisor.goodput import Failures
from paceline.forecast.advisor.job import Job
from paceline.forecast.request import Sweep

call = partial(cli.output, "advise")

SMALL = ("gpt2-small", "--gpu", "a100", "--bandwidth", "25Gbps", "--seq", "256")

PIPELINES = (*SMALL, "--global-batch", 32, "--pipeline-parallel", 2)


def advice(*words):
    return json.loads(call(*words, "--json"))


def job(gpus, global_batch=None, model="gpt2-small", **options):
    given = {"gpu": "a100", "bandwidth": "25Gbps", "seq": 256, "workers": gpus, **options}
    return Job.of(Sweep.of(model, given, "advise"), global_batch)


def everything(asked_job, actual):
    """Forecast all configurations, whatever their bounds say."""
    for setup in search.setups(asked_job, actual.gpus):
        for rate, least, one in search.candidates(asked_job, setup, actual.gpus):
            yield setup, rate, least, one, asked_job.result(one)


def keep(best, setup, result):
    """Keep the highest rates of a sharding, of what leaves room and of what fits tightly."""
    own = result.sharded
    if own.fits:
        best[own.is_tight, setup] = max(best.get((own.is_tight, setup), 0), result.samples_per_s)


def check(actual, best):
    """The best of each sharding is what leaves room; what is tight follows if it is noticeably faster."""
    wanted = {
        (tight, setup): rate
        for (tight, setup), rate in best.items()
        if not tight or rate >= 1.02 * best.get((False, setup), 0)
    }
    shown = [(it.result.sharded.is_tight, it.candidate.setup, it.result.samples_per_s) for it in actual.options]
    assert {(tight, setup): rate for tight, setup, rate in shown} == wanted
    assert [(tight, -rate) for tight, _, rate in shown] == sorted((tight, -rate) for tight, _, rate in shown)


@pytest.fixture
def bare(monkeypatch):
    """Leave out the CUDA context and NCCL's buffers, beside which small models need nothing."""
    monkeypatch.setattr(footprint, "_LAZY", 0)
    monkeypatch.setattr(footprint, "_CONNECTION", 0)


@pytest.mark.parametrize(
    ("gpus", "global_batch", "options"),
    [
        (16, 64, {"memory": "1.9GB"}),
        (8, None, {"memory": "4GB", "gpus_per_node": 4}),
        (4, 24, {"memory": "2.2GB", "gpus_per_node": 1, "checkpointing": "none,full"}),
        (8, 16, {"memory": "1.5GB", "gpus_per_node": 4, "tensor_parallel": "1,2", "checkpointing": "none"}),
        (
            *(16, 32),
            {
                **{"memory": "900MB", "gpus_per_node": 2, "tensor_parallel": "1,2", "pipeline_parallel": "1,2,4"},
                **{"virtual_stages": "1,3", "sharding": "none,zero1,zero3", "checkpointing": "none"},
            },
        ),
    ],
)
@pytest.mark.usefixtures("bare")
def test_the_best_of_each_sharding_is_that_of_brute_force(gpus, global_batch, options):
    asked_job = job(gpus, global_batch, **options)
    [actual] = search.start(asked_job)
    search.search(asked_job, actual)
    simulated = actual.simulated
    best = {}
    pruned = 0
    for setup, rate, least, _, result in everything(asked_job, actual):
        # The bounds hold, so what they prune does not fit, or is not faster.
        assert least <= result.sharded.memory.peak_bytes
        assert result.samples_per_s <= rate * (1 + 1e-9)
        pruned += least > asked_job.allocatable_bytes
        keep(best, setup, result)
    assert best and pruned
    check(actual, best)
    assert simulated < actual.candidates


@pytest.fixture
def mixture(tmp_path):
    """Return the file of a small mixture of experts."""
    file = tmp_path / "mixture.json"
    sizes = {"hidden_size": 256, "intermediate_size": 512, "num_hidden_layers": 4, "vocab_size": 1024}
    heads = {"num_attention_heads": 8, "num_key_value_heads": 8, "max_position_embeddings": 256}
    file.write_text(json.dumps({"model_type": "mixtral", "num_local_experts": 8, **sizes, **heads}))
    return str(file)


@pytest.mark.slow
@pytest.mark.usefixtures("bare")
def test_the_best_of_each_sharding_is_that_of_brute_force_with_experts_apart(mixture):
    options = {"memory": "120MB", "gpus_per_node": 4, "expert_parallel": "1,2,8", "tensor_parallel": "1,2"}
    asked_job = job(16, 64, mixture, **options)
    [actual] = search.start(asked_job)
    search.search(asked_job, actual)
    best = {}
    for setup, rate, least, one, result in everything(asked_job, actual):
        assert least <= result.sharded.memory.peak_bytes and result.samples_per_s <= rate * (1 + 1e-9)
        assert one.parallel.experts == 1 or one.setup.sharding != "hsdp"
        keep(best, setup, result)
    check(actual, best)
    assert {option.candidate.parallel.experts for option in actual.options} > {1}


@pytest.mark.usefixtures("bare")
def test_the_command_of_a_row_with_experts_apart_forecasts_that_row(mixture):
    words = (mixture, "--gpu", "a100", "--bandwidth", "25Gbps", "--gpus", 16, "--gpus-per-node", 4)
    words += ("--global-batch", 64)
    assert "A100-80GB (EP 8): " in " ".join(call(*words, "--expert-parallel", 8, "--memory", "150MB").split())
    [group] = advice(*words, "--expert-parallel", "1,8", "--memory", "150MB", "--top", 20)["gpus"]
    assert {row["expert_parallel"] for row in group["rows"]} == {1, 8}
    for row in group["rows"]:
        again = cli.call(*row["command"].split()[1:], "--json")
        [result] = json.loads(again.stdout)
        assert result["iteration_s"] == row["iteration_s"] and result["sharded"]["memory"] == row["memory"]
        assert result.get("expert_parallel_s", 0) > 0 or row["expert_parallel"] == 1
    refused = call(*words[:5], "--gpus", 12, "--expert-parallel", 8, code=2)
    assert "12 GPUs in nodes of 8 cannot be divided into groups of 8" in refused


@pytest.mark.slow
def test_the_best_of_each_sharding_is_that_of_brute_force_with_shared_samples():
    asked_job = job(16, 32, memory="900MB", gpus_per_node=4, context_parallel="1,2,8", tensor_parallel="1,2")
    [actual] = search.start(asked_job)
    search.search(asked_job, actual)
    best, seen = {}, set()
    for setup, rate, least, one, result in everything(asked_job, actual):
        seen.add((one.parallel.tensor, one.parallel.context))
        assert one.global_batch == 32
        assert least <= result.sharded.memory.peak_bytes and result.samples_per_s <= rate * (1 + 1e-9)
        keep(best, setup, result)
    assert seen == {(tensor, context) for tensor in (1, 2) for context in (1, 2, 8)}
    check(actual, best)


def test_the_command_of_a_row_with_shared_samples_forecasts_that_row():
    words = (*SMALL, "--gpus", 16, "--gpus-per-node", 4, "--global-batch", 2, "--checkpointing", "none", "--top", 20)
    [group] = advice(*words, "--context-parallel", "8,16")["gpus"]
    assert {row["context_parallel"] for row in group["rows"]} <= {8, 16} and len(group["rows"]) > 3
    for row in group["rows"]:
        again = cli.call(*row["command"].split()[1:], "--json")
        [result] = json.loads(again.stdout)
        for name in ("iteration_s", "samples_per_s", "context_parallel"):
            assert result[name] == row[name]
        assert row["batch"] * row["accumulate"] * 16 // row["context_parallel"] == 2
    assert "(CP 8 x DP 2)" in call(*words, "--context-parallel", 8)
    assert (
        "--global-batch: 2 samples are not a multiple of 16 data-parallel ranks try: --global-batch 16, or other --gpus"
        in " ".join(call(*words, code=2).split())
    )


def test_ranks_that_share_samples_are_whole_nodes_or_a_part_of_one():
    words = (*SMALL, "--gpus", "4,12", "--gpus-per-node", 6, "--batch", 1)
    actual = advice(*words, "--context-parallel", 4)["gpus"]
    assert actual[0]["rows"] and "12 GPUs in nodes of 6 cannot be divided into groups of 4" in actual[1]["refused"]
    both = advice(*words, "--context-parallel", "1,4")["gpus"][1]
    assert {row["context_parallel"] for row in both["rows"]} == {1}


def test_the_bounds_hold_with_tensor_parallel_ranks_and_other_element_types():
    for options in ({"tensor_parallel": 2}, {"param_dtype": "float32"}, {"dtype": "fp32"}, {"optimizer": "sgd"}):
        asked_job = job(8, 16, gpus_per_node=4, **options)
        [actual] = search.start(asked_job)
        for _, rate, least, _, result in everything(asked_job, actual):
            assert least <= result.sharded.memory.peak_bytes
            assert result.samples_per_s <= rate * (1 + 1e-9)


def test_the_command_of_a_row_forecasts_that_row():
    words = (*SMALL, "--gpus", 8, "--gpus-per-node", 4, "--global-batch", 64, "--memory", "3GB", "--top", 20)
    [group] = advice(*words)["gpus"]
    assert len(group["rows"]) > 4
    assert any("--no-accumulate-sync" in row["command"] for row in group["rows"])
    for row in group["rows"]:
        assert row["batch"] * row["accumulate"] * 8 == row["global_batch"] == 64
        again = cli.call(*row["command"].split()[1:], "--json")
        [result] = json.loads(again.stdout)
        assert result["iteration_s"] == row["iteration_s"]
        assert result["sharded"]["memory"] == row["memory"]
        assert result["sharded"]["straggling_s"] == row["straggling_s"]
        assert result["sharded"]["fits"]


def test_the_command_of_a_row_with_a_pipeline_forecasts_that_row():
    words = (*SMALL, "--gpus", 16, "--gpus-per-node", 4, "--global-batch", 32, "--memory", "4GB", "--checkpointing")
    parallel = ("--tensor-parallel", "2,4", "--pipeline-parallel", "2,4", "--virtual-stages", "1,3", "--top", 20)
    [group] = advice(*words, "none", *parallel)["gpus"]
    assert {row["sharding"] for row in group["rows"]} == {"none", "zero1", "zero2", "zero3", "hsdp:2"}
    for row in group["rows"]:
        ranks = 16 // row["tensor_parallel"] // row["pipeline_parallel"]
        assert row["batch"] * row["microbatches"] * ranks == row["global_batch"] == 32
        again = cli.call(*row["command"].split()[1:], "--json")
        [result] = json.loads(again.stdout)
        assert result["iteration_s"] == row["iteration_s"] and result["sharded"]["memory"] == row["memory"]
        assert result["gpus_per_worker"] == 16 // ranks
    text = call(*words, "none", *parallel)
    assert "microbatches" in text and "virtual" in text and " stages, " in text


def test_a_model_divided_in_one_way_is_not_said_to_vary():
    words = (*SMALL, "--gpus", 8, "--gpus-per-node", 4, "--batch", 2, "--sharding", "zero1")
    single, several = call(*words, "--tensor-parallel", 2), call(*words, "--tensor-parallel", "1,2")
    assert "A data-parallel rank is 2 GPUs (TP 2)" in single
    assert "A DP rank is TP x PP GPUs; memory is per GPU" in several


def test_a_number_of_gpus_that_does_not_suit_leaves_the_others():
    words = (*SMALL, "--gpus", "8,64", "--global-batch", 16, "--sharding", "zero1", "--checkpointing", "none")
    actual = advice(*words)
    assert [bool(group["rows"]) for group in actual["gpus"]] == [True, False]
    reason = "--global-batch: 16 samples are not a multiple of 64 data-parallel ranks"
    remedy = "--tensor-parallel 4 (GPUs share a rank), or --global-batch 64, or other --gpus"
    assert actual["gpus"][0]["refused"] is None and actual["gpus"][1]["refused"] == f"{reason} (try: {remedy})"
    assert f"{reason} (try: {remedy})" in " ".join(call(*words).split())
    [row] = advice(*words, "--tensor-parallel", "1,4")["gpus"][1]["rows"]
    assert (row["tensor_parallel"], row["global_batch"]) == (4, 16)


def test_cost_is_price_over_tokens_and_goodput_that_of_daly():
    words = (*SMALL, "--gpus", "8,16", "--batch", 4, "--price", 2.5, "--mtbf", "8h", "--checkpoint-seconds", 60)
    actual = advice(*words, "--restart-seconds", 120)
    mean, cost, again = 8 * 3600.0, 60.0, 120.0
    interval = math.sqrt(2 * cost * mean) - cost
    goodput = interval / (mean * math.exp(again / mean) * (math.exp((interval + cost) / mean) - 1))
    assert actual["failures"]["interval_s"] == pytest.approx(interval)
    assert actual["failures"]["goodput"] == pytest.approx(goodput)
    assert 0.9 < goodput < 1
    for group in actual["gpus"]:
        for row in group["rows"]:
            hours = 1e9 / (row["tokens_per_s_per_gpu"] * goodput) / 3600
            assert row["cost_per_billion_tokens"] == pytest.approx(2.5 * hours)


def test_the_interval_of_young_and_daly_loses_least():
    failures = Failures(8 * 3600.0, 60.0, 0.0)

    def kept(interval):
        return interval / (failures.mtbf_s * math.expm1((interval + failures.checkpoint_s) / failures.mtbf_s))

    best = max(range(60, 20_000, 10), key=kept)
    assert failures.goodput == pytest.approx(kept(best), rel=1e-4)
    assert Failures(1e9, 1e-6, 0.0).goodput == pytest.approx(1, abs=1e-6)
    assert Failures(100.0, 10.0, 1e6).goodput == 0
    with pytest.raises(InvalidArgumentError, match="must be less than twice --mtbf"):
        Failures(10.0, 20.0, 0.0)


def test_the_objective_decides_between_numbers_of_gpus():
    words = ("gpt2-small", "--gpu", "a100", "--gpus", "8,64", "--batch", 8, "--sharding", "zero3", "--price", 1)
    assert advice(*words)["best"]["gpus"] == 64
    assert advice(*words, "--objective", "cost")["best"]["gpus"] == 8


@pytest.mark.slow
def test_what_does_not_fit_is_counted_and_named():
    actual = advice("llama-3-70b", "--gpu", "h100", "--gpus", 8, "--sharding", "none,zero3", "--tensor-parallel", 1)
    [group] = actual["gpus"]
    assert actual["best"] is None and not group["rows"]
    assert group["do_not_fit"] == group["configurations"] > 0
    least = group["never_fit"][0]
    assert (least["sharding"], least["checkpointing"], least["batch"]) == ("zero3", "offload", 1)
    words = ("llama-3-70b", "--gpu", "h100", "--gpus", 8, "--tensor-parallel", 1, "--checkpointing", "none,full")
    lines = call(*words).splitlines()
    assert lines[0].startswith("llama-3-70b does not fit on 8x H100: at least 156.2 GB to allocate per GPU, and 80.")
    lines = [lines[0], *lines[lines.index("") :]]
    assert lines[2].startswith("  Smallest     zero3 (FSDP), batch 1, full checkpointing (")
    assert lines[3] == "  Model state  alone fills 14 GPUs" and lines[4].startswith("  Fits with    ")
    text = call("llama-3-8b", "--gpu", "h100", "--gpus", 8, "--seq", 2048)
    assert re.search(r"\n  Too large    .*DDP \(1\d\d\.\d\b", text)


FIXED = [
    ("llama-3-8b", 1),
    ("llama-3-8b", 1, "--sharding", "none"),
    ("llama-3-8b", 8, "--sharding", "none"),
    ("llama-3-8b", 8, "--sharding", "zero1", "--checkpointing", "none", "--seq", 16384),
    ("llama-3-8b", 8, "--batch", 64, "--checkpointing", "none"),
    ("llama-3-8b", 8, "--seq", 131072),
]
LARGE = [("llama-3-70b", 4), ("llama-3-70b", 14), ("llama-3-70b", 16), ("mixtral-8x7b", 8), ("deepseek-v3", 64)]


@pytest.mark.parametrize(
    ("model", "gpus", "more"),
    [
        *((model, gpus, more) for model, gpus, *more in FIXED),
        *(pytest.param(model, gpus, (), marks=pytest.mark.slow) for model, gpus in LARGE),
    ],
)
def test_each_remedy_makes_something_fit(model, gpus, more):
    words = (model, "--gpu", "h100", "--gpus", gpus, "--tensor-parallel", 1, *more)
    answer = advice(*words)
    assert answer["best"] is None and "does not fit" in answer["verdict"][0]
    [remedy] = [line.removeprefix("try: ") for line in answer["verdict"] if line.startswith("try: ")]
    [ways] = [line for line in answer["verdict"] if line.startswith("Fits with: ")]
    assert advice(*shlex.split(remedy)[2:])["best"] is not None
    for size, way in re.findall(r"([\d.]+ GB) allocated ((?:--[a-z-]+ [^ ,:]+ ?)+)", ways):
        best = advice(*words, *way.split())["best"]
        assert best is not None and units.memory(best["memory"]["peak_bytes"]) == size, way


def test_text_says_what_is_best_and_why():
    text = call(*SMALL, "--gpus", "1,16", "--memory", "4GB", "--price", 2, "--top", 9)
    words = " ".join(text.split())
    assert words.startswith("Fastest fit for gpt2-small: 16x A100-80GB, ")
    assert " per billion tokens (currency of --price) " in words and "cost per" in text
    assert "Searched 1 GPU " in words and " 16 GPUs " in words
    assert "\n  try: paceline simulate gpt2-small --gpu a100" in text
    assert "\n   1  none" in text


def test_a_configuration_file_is_a_model(tmp_path):
    fields = {"model_type": "gpt2", "n_layer": 4, "n_embd": 256, "n_head": 4, "n_positions": 512, "vocab_size": 1000}
    path = tmp_path / "mine.json"
    path.write_text(json.dumps(fields))
    options = ("--gpu", "a100", "--gpus", 4, "--batch", 2, "--sharding", "zero1")
    first, second = advice("--config", path, *options), advice(path, *options)
    assert first["best"]["iteration_s"] == second["best"]["iteration_s"]
    assert f"--config {path}" in first["best"]["command"]


def test_images_have_no_tokens():
    actual = advice("vit-large", "--gpu", "a100", "--gpus", 8, "--batch", 8, "--price", 1)
    best = actual["best"]
    assert best["tokens_per_s_per_gpu"] is None
    assert best["cost_per_million_images"] == pytest.approx(8 * 1e6 / best["samples_per_s"] / 3600)


def test_ctrl_c_keeps_what_is_done(monkeypatch):
    best = search._best

    def interrupted(asked_job, setup, actual):
        if actual.gpus == 16 and setup.sharding == "zero2":
            raise KeyboardInterrupt
        return best(asked_job, setup, actual)

    monkeypatch.setattr(search, "_best", interrupted)
    # Threads of finished simulations may still be alive; leaving them would end the tests.
    monkeypatch.setattr("paceline.cli.main.leave_threads", lambda code: None)
    result = cli.call("advise", *SMALL, "--gpus", "8,16", "--batch", "2", "--json")
    assert result.exit_code == 130
    actual = json.loads(result.stdout)
    assert actual["incomplete"]
    assert [{row["sharding"] for row in group["rows"]} for group in actual["gpus"]][1] == {"none", "zero1"}
    assert "interrupted" in result.stderr
    text = cli.call("advise", *SMALL, "--gpus", "8,16", "--batch", "2").stdout
    assert text.startswith("Best so far for gpt2-small on 8x A100-80GB (interrupted): ") and text.count("  -\n") == 2


def test_long_simulations_are_left_out_and_said():
    words = (*SMALL, "--gpus", 1024, "--batch", 4, "--sharding", "none,zero1", "--checkpointing", "none")
    by_message = (*words, "--cluster", "25g-ethernet")
    [group] = advice(*by_message)["gpus"]
    assert group["left_out"] == ["none"]
    assert [row["sharding"] for row in group["rows"]] == ["zero1"]
    assert "Skipped DDP on 1,024 GPUs: slow to simulate here" in " ".join(call(*by_message).split())
    alone = call(*by_message, "--sharding", "none").splitlines()
    assert alone[0].startswith("No answer for gpt2-small on 1,024x A100-80GB: DDP takes long to simulate")
    assert alone[2].startswith("  try: paceline simulate gpt2-small")
    [group] = advice(*words)["gpus"]
    assert group["left_out"] == [] and {row["sharding"] for row in group["rows"]} == {"none", "zero1"}


@pytest.mark.parametrize(
    ("words", "message"),
    [
        (("resnet-50", "--gpus", 4), "'resnet-50' is no configuration of a model"),
        (("allreduce:1GB", "--gpus", 4), "is no configuration of a model"),
        (("gpt2-smal", "--gpu", "a100", "--gpus", 4), "try: gpt2-small"),
        (("gpt2-small", "--gpus", 4), "--gpu: needs a GPU type"),
        (("gpt2-xl", "--gpus", 4), "try: --gpu h100 (list: paceline list gpus)"),
        (("gpt2-small", "--gpu", "a100"), "advise needs the number of GPUs"),
        (("--gpu", "a100", "--gpus", 4), "advise needs one model"),
        ((*SMALL, "--gpus", 8, "--network", "1Gbps"), "means the same as --bandwidth"),
        (("gpt2-small", "--gpus", 8, "--bandwidth", "400"), "--bandwidth: '400' has no unit"),
        (
            ("gpt2-small", "--gpus", 8, "--bandwidth", "1Gbps,2Gbps"),
            "try: --bandwidth 1Gbps (lists: paceline simulate, paceline report, paceline.sweep, paceline validate)",
        ),
        ((*SMALL, "--gpus", 8, "--batch", "1,2"), "'1,2' is a list, and one value is expected"),
        ((*SMALL, "--gpus", 8, "--global-batch", 100), "--global-batch: 100 samples are not a multiple of 8"),
        ((*SMALL, "--gpus", 8, "--global-batch", 64, "--batch", 3), "cannot be made with --batch 3"),
        (("gpt2-small", "--gpu", "rtx-4060", "--gpus", 8, "--objective", "cost"), "--objective cost needs a price"),
        ((*SMALL, "--gpus", 8, "--mtbf", "8h"), "--mtbf needs the time of a checkpoint"),
        ((*SMALL, "--gpus", 8, "--checkpoint-seconds", 6), "--checkpoint-seconds needs failures"),
        ((*SMALL, "--gpus", 8, "--mtbf", "8x", "--checkpoint-seconds", 6), "--mtbf"),
        (
            (*SMALL, "--gpus", 8, "--mtbf", "10s", "--checkpoint-seconds", 60),
            "must be less than twice --mtbf, 10 s, not 60 s",
        ),
        ((*SMALL, "--gpus", 8, "--sharding", "hsdp:8"), "hsdp:8 shards nothing, or is zero3, on 8 ranks in nodes of 8"),
        ((*SMALL, "--gpus", 8, "--sharding", "hsdp:3,zero3"), "hsdp:3: groups of 3 do not divide 8 ranks"),
        ((*SMALL, "--gpus", 8, "--sharding", "zero9"), "--sharding"),
        ((*SMALL, "--gpus", 8, "--sharding", "none", "--prefetch", 2), "--prefetch: has no effect with none"),
        (
            (*SMALL, "--gpus", 8, "--pipeline-parallel", "1,2"),
            "--pipeline-parallel: needs a global batch, of which the microbatches are made",
        ),
        ((*SMALL, "--gpus", 8, "--virtual-stages", 2), "--virtual-stages: needs a pipeline"),
        ((*PIPELINES, "--gpus", 8, "--accumulate", 2), "--accumulate: has no effect on pipelines"),
        ((*PIPELINES, "--gpus", 8, "--pipeline-parallel", 24), "24 stages are more than the 12 blocks"),
        ((*PIPELINES, "--gpus", 8, "--virtual-stages", 8), "2 stages of 8 parts are more than the 12 blocks"),
        ((*PIPELINES, "--gpus", 8, "--tensor-parallel", "1,5"), "--tensor-parallel: 5 does not divide"),
        ((*SMALL, "--gpus", 8, "--expert-parallel", "1,2"), "needs experts, and gpt2-small has none"),
        (("mixtral-8x7b", "--gpu", "h100", "--gpus", 8, "--expert-parallel", 3), "3 does not divide the 8 experts"),
        (
            ("mixtral-8x7b", "--gpu", "h100", "--gpus", 8, "--expert-parallel", 2, "--tensor-parallel", 4),
            "must be a multiple of the 4 tensor-parallel GPUs, not 2",
        ),
        (
            ("mixtral-8x7b", "--gpu", "h100", "--gpus", 16, "--expert-parallel", 8, "--sharding", "hsdp:8"),
            "hsdp:8 is not modeled with experts on several GPUs",
        ),
        (
            (*PIPELINES, "--gpus", 9),
            "9 GPUs are not a multiple of 2, those of a data-parallel rank (tensor x pipeline)",
        ),
        ((*PIPELINES, "--gpus", 64, "--virtual-stages", 2), "virtual stages need a multiple of 2 microbatches of 1"),
    ],
)
def test_mistakes_are_named(words, message):
    assert message in call(*words, code=2)


def test_the_least_that_does_not_fit_is_that_of_brute_force():
    for gpus, memory in ((14, None), (16, None), (8, "40GB")):
        own = {} if memory is None else {"memory": memory}
        model = "llama-3-70b" if memory is None else "llama-3-8b"
        asked_job = job(gpus, None, model, gpu="h100", bandwidth="3200Gbps", seq=8192, gpus_per_node=8, **own)
        [actual] = search.start(asked_job)
        search.search(asked_job, actual)
        peaks = {}
        for setup, _, least, _, result in everything(asked_job, actual):
            assert least <= result.sharded.memory.peak_bytes
            peaks[setup] = min(peaks.get(setup, math.inf), result.sharded.memory.peak_bytes)
        reply = {one.candidate.setup: one.least_bytes for one in actual.never_fit}
        assert reply and reply == {setup: peaks[setup] for setup in reply}


@pytest.mark.slow
def test_on_how_many_gpus_it_would_fit_is_said():
    words = ("llama-3-70b", "--gpu", "h100", "--tensor-parallel", 1)
    # Where something leaves room on more GPUs, what fits tightly on fewer is not proposed.
    assert " --gpus 24" in cli.facts(call(*words, "--gpus", 14))["Fits with"]
    none = call("llama-3.1-405b", "--gpu", "t4", "--gpus", 1, "--sharding", "none", "--memory", "500MB")
    assert "\n  try: larger GPUs (list: paceline list gpus), or a smaller model\n" in none


@pytest.mark.slow
def test_on_fewer_gpus_it_does_not_fit():
    words = ("llama-3-70b", "--gpu", "h100", "--tensor-parallel", 1)
    assert advice(*words, "--gpus", 24)["best"]["tight"] and advice(*words, "--gpus", 16)["best"] is None
    # With a global batch, what a rank has of it gets less.
    divided = ("--tensor-parallel", 8, "--pipeline-parallel", 2, "--context-parallel", 2)
    words = ("llama-3.1-405b", "--gpu", "h100", "--global-batch", 64, *divided, "--sharding", "zero3")
    words = (*words, "--checkpointing", "full")
    assert " --gpus 256" in cli.facts(call(*words, "--gpus", 64))["Fits with"]
    assert advice(*words, "--gpus", 512)["best"] is not None and advice(*words, "--gpus", 256)["best"] is None


def test_what_never_fits_is_measured_beside_what_does():
    words = ("llama-3-8b", "--gpu", "h100", "--gpus", 64, "--batch", 1, "--checkpointing", "none", "--accumulate", 1)
    actual = advice(*words)
    [never] = [one for one in actual["gpus"][0]["never_fit"] if one["sharding"] == "none"]
    simulate = ["llama-3-8b", "--gpu", "h100", "--gpus", "64", "--batch", "1", "--sharding", "none", "--json"]
    [alone] = json.loads(cli.call("simulate", *simulate, "--strategy", "native").stdout)
    assert never["least_bytes"] == alone["sharded"]["memory"]["peak_bytes"]
    assert f"DDP ({units.gigabytes(never['least_bytes'])}" in call(*words)


def test_what_leaves_room_comes_before_what_is_faster_and_tight():
    words = ("llama-3-70b", "--gpu", "h100", "--gpus", 512)
    answer = advice(*words)
    first, second = answer["gpus"][0]["rows"]
    assert answer["best"] == {"gpus": 512, **first}
    assert not first["tight"] and second["tight"] and first["sharding"] == second["sharding"] == "zero3"
    assert first["batch"] < second["batch"] and first["samples_per_s"] < second["samples_per_s"]
    text = " ".join(call(*words).split())
    assert f"Faster zero3, batch {second['batch']}, full checkpointing: 1.03x, but tight (" in text
    alone = call(*words, "--top", 1)
    assert "but tight (" in " ".join(alone.split()) and "tok/s/GPU" not in alone


def test_larger_buckets_are_searched_unless_their_size_is_given():
    words = ("llama-3-8b", "--gpu", "h100", "--gpus", 512, "--batch", 1, "--checkpointing", "none")
    rows = {row["sharding"]: row for row in advice(*words, "--sharding", "zero1,zero3")["gpus"][0]["rows"]}
    assert rows["zero1"]["bucket_size"] == 1 << 30 and rows["zero3"]["bucket_size"] is None
    text = call(*words, "--sharding", "zero1,zero3")
    assert "\nzero1, 1 GiB " in text
    given = advice(*words, "--sharding", "zero1,zero3", "--bucket-size", "1GiB")["gpus"][0]["rows"]
    larger = {row["sharding"]: row for row in given}
    assert larger["zero1"]["iteration_s"] == rows["zero1"]["iteration_s"]
    assert larger["zero3"]["iteration_s"] == rows["zero3"]["iteration_s"]
    assert "--bucket-size" in larger["zero1"]["command"] and "--bucket-size" not in larger["zero3"]["command"]
    assert "--bucket-size 1024MiB" in rows["zero1"]["command"]
    usual = advice(*words, "--sharding", "zero1", "--bucket-size", "25MiB")["gpus"][0]["rows"]
    assert usual[0]["iteration_s"] > 1.2 * rows["zero1"]["iteration_s"]


def test_sizes_without_a_global_batch_double():
    sizes = Space().sizes(4)
    assert [next(sizes) for _ in range(3)] == [(1, 1), (2, 1), (4, 1)]
    assert list(Space(global_batch=48).sizes(4)) == [(1, 12), (2, 6), (3, 4), (4, 3), (6, 2), (12, 1)]
    assert list(Space(global_batch=48, accumulate=3).sizes(4)) == [(4, 3)]
    assert list(Space(batch=3, accumulate=2).sizes(4)) == [(3, 2)]


def test_a_tight_fit_is_said_and_marked():
    words = ("gpt2-small", "--gpu", "a100", "--gpus", 8, "--batch", 4, "--sharding", "none", "--checkpointing", "none")
    own = advice(*words)["best"]["memory"]
    room = own["reserved_bytes"] // 20
    tight = (*words, "--memory", f"{own['total_bytes'] + room}B")
    text = " ".join(call(*tight).split())
    assert ": may not fit, as 20% of such jobs allocate more than " in text and " GB Roomier DDP, " in text
    assert advice(*tight)["best"]["tight"] and not advice(*words)["best"]["tight"]
    assert "tight" not in call(*words)
    both = call(*tight, "--gpus", "8,16")
    assert f" {units.gigabytes(own['total_bytes'])} ~" in both and "\n~ tight: PyTorch's allocator may reserve" in both
    simulate = [*tight, "--strategy", "native"]
    said = cli.call("simulate", *simulate).stdout
    assert ": may not fit, as 20% of such jobs allocate more than " in " ".join(said.split())


@pytest.mark.slow
def test_where_all_fit_tightly_a_safer_way_is_shown():
    words = ("llama-3-8b", "--gpu", "a100-40gb", "--gpus", 4)
    answer = advice(*words)
    text, safer = call(*words), answer["safer"]
    assert answer["best"]["tight"] and not safer["tight"]
    _, second = text.split("  try: ")[1:]
    assert second.replace("\\\n", " ").split("\n")[0].split() == safer["command"].split()
    forecast = cli.call(*shlex.split(safer["command"])[1:], "--json", "--strategy", "native")
    [result] = json.loads(forecast.stdout)
    assert result["sharded"]["fits"] and not result["sharded"]["tight"]
    # Without NVLink there is no tensor parallelism: more GPUs, on which something leaves room.
    words = ("llama-3-8b", "--gpu", "rtx-4090", "--seq", 6144, "--gpus")
    assert advice(*words, 8)["best"]["tight"] and "safer" not in advice(*words, 8)
    assert "Roomier --gpus 16, or shorter sequences (--seq)" in " ".join(call(*words, 8).split())
    rows = advice(*words, 16)["gpus"][0]["rows"]
    assert any(row["sharding"] == "zero3" and not row["tight"] for row in rows)
    assert "safer" not in advice("gpt2-small", "--gpu", "h100", "--gpus", 8)


def test_one_exposed_communication_in_sentence_and_column():
    words = ("gpt2-xl", "--gpu", "a100", "--gpus", 16, "--batch", 2, "--sharding", "zero3", "--bandwidth", "400Gbps")
    best, text = advice(*words)["best"], " ".join(call(*words).split())
    causes = sum(best["exposed"].values()) + best["straggling_s"] + best["slowed_s"] + best["calls_s"]
    assert causes == pytest.approx(best["exposed_communication_s"])
    assert f"Exposed {units.duration(best['exposed_communication_s'])} of communication " in text
    assert f"{units.duration(best['slowed_s'])} compute slowed by NCCL kernels" in text
    assert f" {units.digits(best['exposed_communication_s'], 3)} " in text


def test_the_network_is_said_to_be_that_of_a_node():
    words = ("gpt2-small", "--gpu", "a100", "--gpus", 16, "--batch", 2, "--sharding", "zero1", "--bandwidth", "400Gbps")
    per_node = "8 GPUs and 400 Gbps per node, RDMA"
    assert f"Adam, A100 SXM4 80 GB\n               {per_node}, " in call(*words)
    assert (advice(*words)["bandwidth_bps"], advice(*words)["gpus_per_node"]) == (400e9, 8)
    options = ["gpt2-small", "--gpu", "a100", "--gpus", "16", "--bandwidth", "400Gbps", "--sharding", "zero1"]
    for more in ([], ["--tensor-parallel", "2"], ["--tensor-parallel", "4"]):
        assert per_node in cli.call("simulate", *options, *more).stdout
    assert "bps per node" not in cli.call("simulate", "resnet-50", "--gpus", "8").stdout
    assert "Network bandwidth per node (with rails: per GPU)" in " ".join(call("--help").split())


def test_where_nothing_fits_or_sequences_are_long_models_are_divided():
    words = ("llama-3.2-1b", "--gpu", "h100", "--gpus", 4, "--seq", 8192, "--memory", "9GB")
    best = advice(*words)["best"]
    assert best["tensor_parallel"] * best["context_parallel"] > 1
    assert advice(*words, "--tensor-parallel", 1)["best"] is None
    [result] = json.loads(cli.call(*shlex.split(best["command"])[1:], "--json").stdout)
    assert result["iteration_s"] == best["iteration_s"] and result["sharded"]["memory"] == best["memory"]
    # Something fits without, and sharing samples is faster.
    words = ("llama-3.2-1b", "--gpu", "h100", "--gpus", 4, "--checkpointing", "none", "--seq")
    undivided = advice(*words, "32k", "--context-parallel", 1)["best"]
    assert advice(*words, "32k")["best"]["samples_per_s"] >= undivided["samples_per_s"]
    assert {row["context_parallel"] for row in advice(*words, "4k")["gpus"][0]["rows"]} == {1}


def test_machines_are_compared_by_rate_and_by_cost():
    words = ("gpt2-small", "--seq", 256, "--sharding", "none", "--batch", 8, "--gpus", 8, "--tokens", "2B")
    words = (*words, "--gpu", "h100,a100,rtx-4060", "--price", "h100:3,a100-80gb:1")
    compared = advice(*words)
    machines = {one["gpu"]: one for one in compared["machines"]}
    assert list(machines) == ["h100", "a100-80gb", "rtx-4060"]
    for name, price in (("h100", 3), ("a100-80gb", 1)):
        [row] = machines[name]["answer"]["gpus"][0]["rows"]
        seconds = 2e9 / 256 / row["samples_per_s"]
        assert row["time_s"] == pytest.approx(seconds)
        assert row["cost_of_tokens"] == pytest.approx(seconds / 3600 * 8 * price)
        alone = advice(*words[:-4], "--gpu", name, "--price", price)
        assert alone["best"]["cost_of_tokens"] == row["cost_of_tokens"]
    assert machines["rtx-4060"]["price_per_gpu_hour"] is None
    assert compared["best"]["gpu"] == "h100" and advice(*words, "--objective", "cost")["best"]["gpu"] == "a100-80gb"
    text = call(*words)
    assert text.startswith("Fastest for gpt2-small: 8x H100, ") and "\nrtx-4060" in text
    assert "No price is known of rtx-4060; give it with --price rtx-4060:2.50" in " ".join(text.split())
    clusters = advice("gpt2-xl", "--gpus", 8, "--batch", 1, "--cluster", "p4d.24xlarge,p5.48xlarge")
    assert [(one["cluster"], one["gpu"]) for one in clusters["machines"]] == [
        ("p4d.24xlarge", "a100-40gb"),
        ("p5.48xlarge", "h100"),
    ]


def test_a_machine_that_cannot_be_searched_leaves_the_others():
    words = ("gpt2-small", "--gpus", 8, "--batch", 8, "--dtype", "fp8", "--gpu")
    compared = advice(*words, "h100,v100")
    assert "error" in compared["machines"][1] and compared["best"]["gpu"] == "h100"
    assert "Not searched" in call(*words, "h100,v100")
    assert "fp8" in call(*words, "v100,t4", code=2)


@pytest.mark.slow
def test_where_adapters_do_not_fit_weights_of_4_bits_are_proposed():
    words = ("llama-3.2-1b", "--gpu", "rtx-4090", "--gpus", 2, "--lora", 8, "--seq", 1024, "--memory", "3.6GB")
    text = call(*words)
    assert "does not fit" in text and " --quantize nf4" in cli.facts(text)["Fits with"]
    assert advice(*words, "--quantize", "nf4")["best"] is not None


def test_clouds_prices_are_taken_where_none_is_given():
    words = ("gpt2-xl", "--gpus", 8, "--batch", 1, "--cluster")
    best, known = advice(*words, "p5")["best"], price_of("p5.48xlarge")
    hours = 1e9 / best["tokens_per_s_per_gpu"] / 3600
    assert known is not None and best["cost_per_billion_tokens"] == pytest.approx(known.usd_per_gpu_hour * hours)
    assert f"${known.usd_per_gpu_hour:.2f} a GPU-hour, AWS, {known.date}" in " ".join(call(*words, "p5").split())
    assert advice(*words, "p5", "--price", "p5:1")["best"]["cost_per_billion_tokens"] == pytest.approx(hours)
    assert "cost_per_billion_tokens" not in advice("gpt2-xl", "--gpus", 8, "--batch", 1, "--gpu", "h100")["best"]
    assert "'b200' is none of the machines" in call(*words, "p5", "--price", "b200:1", code=2)


def test_the_price_of_an_instance_is_that_of_its_own_gpus():
    words = ("gpt2-medium", "--gpu", "a100-40gb,h100", "--cluster", "p4d.24xlarge", "--gpus", 8, "--batch", 1)
    answer, known = advice(*words), price_of("p4d.24xlarge")
    own, other = (one["answer"] for one in answer["machines"])
    assert known is not None and own["best"]["price_per_gpu_hour"] == known.usd_per_gpu_hour
    assert "price_per_gpu_hour" not in other["best"]
    assert "h100: p4d.24xlarge's price is that of its A100-40GB: --price h100:AMOUNT" in call(*words)
    given = [one["answer"] for one in advice(*words, "--price", "a100-40gb:1")["machines"]]
    assert given[0]["best"]["price_per_gpu_hour"] == 1 and "price_per_gpu_hour" not in given[1]["best"]


WIDE = ("--gpu", "h100", "--seq", 512, "--top", 9)
SETTINGS_TRIED = [
    ("llama-3.2-1b", 8, "--lora", 8, "--quantize", "nf4", "--offload", "cpu:parameters"),
    ("llama-3.2-1b", 8, "--offload", "cpu"),
    ("llama-3.2-1b", 1, "--lora", 8, "--offload", "cpu:parameters"),
    ("llama-3.2-1b", 16, "--optimizer-impl", "in-backward", "--global-batch", 64),
    ("gpt2-medium", 8, "--precision", "fsdp-mixed", "--param-dtype", "bf16"),
    ("gpt2-medium", 8, "--prefetch", 2, "--bucket-size", "64MiB"),
    ("gpt2-medium", 8, "--memory", "6GB", "--optimizer", "adamw-8bit"),
    ("qwen2.5-0.5b", 1, "--param-dtype", "bf16", "--reduce-dtype", "fp32"),
    ("qwen2.5-0.5b", 4, "--unit", "model.*", "--reduce-dtype", "fp32"),
]


@pytest.mark.parametrize("words", tiers.some(SETTINGS_TRIED, 3))
def test_each_row_is_what_its_command_forecasts(words):
    model, gpus, *options = words
    answer = advice(model, "--gpus", gpus, *WIDE, *options)
    [group] = answer["gpus"]
    assert group["rows"]
    for row in group["rows"]:
        [result, *_] = json.loads(cli.call(*shlex.split(row["command"])[1:], "--json").stdout)
        assert result["iteration_s"] == row["iteration_s"] and result["sharded"]["memory"] == row["memory"]


def test_what_no_sharding_accepts_is_refused_as_by_simulate():
    words = ("gpt2-medium", "--gpu", "h100", "--gpus", 4, "--optimizer-impl", "in-backward", "--accumulate", 4)
    assert "needs every gradient whole after one pass" in call(*words, code=2)


@pytest.mark.slow
def test_parameters_on_the_host_are_proposed_for_one_gpu_before_more_gpus():
    words = ("qwen3-32b", "--lora", 16, "--quantize", "nf4", "--gpu", "rtx-4090", "--gpus", 1, "--seq", 4096)
    ways = cli.facts(call(*words))["Fits with"]
    assert 0 < ways.index("--offload cpu:parameters") < ways.index("--quantize nf4-double") < ways.index("--gpus")
    assert advice(*words, "--offload", "cpu:parameters")["best"]["command"].count("--sharding zero3") == 1


@pytest.mark.slow
def test_offloaded_checkpoints_are_searched_where_nothing_fits_without():
    words = ("llama-3.2-1b", "--gpu", "rtx-4090", "--gpus", 1, "--lora", 8, "--seq", 32768, "--batch", 1)
    small = (*words, "--memory", "2GB", "--checkpointing")
    with_offload, without = (
        advice(*small, name)["gpus"][0]["never_fit"][0]["least_bytes"] for name in ("offload", "full")
    )
    hardware = find_hardware("rtx-4090")
    middle = (with_offload + without) / 2 / footprint.FULLEST + footprint.context_bytes(hardware)
    words = (*words, "--memory", f"{middle / 1e9:.3f}GB")
    assert with_offload < without and advice(*words)["best"]["checkpointing"] == "offload"
    assert "offloaded checkpointing" in call(*words).splitlines()[0]


def test_price_and_network_are_of_one_machine():
    words = ("gpt2-xl", "--batch", 1, "--tokens", "1e9", "--gpu")
    for gpu, gpus in (("h100", 16), ("b200", 16), ("a100", 32), ("h200", 16)):
        answer = advice(*words, gpu, "--gpus", gpus)
        [cost] = [line for line in answer["verdict"] if line.startswith("Cost: ")]
        name = re.search(r": ([\w.-]+)\)", cost)[1]
        assert (
            advice(*words, gpu, "--gpus", gpus, "--cluster", name)["best"]["samples_per_s"]
            >= 0.98 * (answer["best"]["samples_per_s"])
        )
    # Within a node, its network does not matter, and whole instances come first.
    assert "gpu_8x_h100_sxm5)" in call(*words, "h100", "--gpus", 8)
    assert "gpu_4x_h100_sxm5)" in call(*words, "h100", "--gpus", 4)


def test_where_no_price_is_of_such_a_network_the_cheapest_instance_is_named():
    words = ("gpt2-xl", "--batch", 1, "--tokens", "1e9", "--gpu", "h100", "--gpus", 16, "--bandwidth", "6.4Tbps")
    text = " ".join(call(*words).split())
    assert "the cheapest, gpu_8x_h100_sxm5, states no network" in text and "--cluster gpu_8x_h100_sxm5" in text
    assert "Cost " not in text and "cost_of_tokens" not in advice(*words)["best"]
    refused = " ".join(call(*words[:3], *words[5:], "--objective", "cost", code=2).split())
    assert "--objective cost needs a price" in refused


def test_a_price_is_of_a_gpu_by_any_of_its_names():
    words = ("gpt2-medium", "--gpus", 2, "--batch", 1, "--gpu", "rtx-4090", "--price")
    costs = [
        advice(*words, f"{name}:0.4")["best"]["cost_per_billion_tokens"] for name in ("rtx-4090", "4090", "RTX 4090")
    ]
    assert costs[0] == costs[1] == costs[2]
    assert "'5090' is none of the machines" in call(*words, "5090:0.4", code=2)


def test_a_row_of_a_list_is_that_of_a_command_of_its_own():
    words = ("gpt2-medium", "--seq", 512, "--global-batch", 64, "--checkpointing", "none", "--tokens", "1e9")
    several = advice(*words, "--gpu", "h100,rtx-a6000,b200", "--gpus", "1,4,16")
    for machine in several["machines"]:
        for outcome in machine["answer"]["gpus"]:
            alone = advice(*words, "--gpu", machine["gpu"], "--gpus", outcome["gpus"])
            assert alone["gpus"] == [outcome]
    prices = [row["price_per_gpu_hour"] for row in (one["rows"][0] for one in several["machines"][0]["answer"]["gpus"])]
    assert len({*prices}) == 3


def test_instances_are_paid_for_whole():
    words = ("gpt2-xl", "--batch", 1, "--tokens", "1e9", "--gpu", "b200", "--gpus")
    one, eight = advice(*words, 1)["best"], advice(*words, 8)["best"]
    assert (one["rented_gpus"], eight["rented_gpus"]) == (8, 8)
    hours = 1e9 / one["tokens_per_s_per_gpu"] / 3600
    assert one["cost_of_tokens"] == pytest.approx(8 * one["price_per_gpu_hour"] * hours)
    text = call(*words, "1,8")
    assert "\n* rented whole: 8 GPUs\n" in text
    rows = [line for line in text.splitlines() if re.match(r" +[18]  ", line)]
    assert [" * " in row for row in rows] == [row.startswith("   1") for row in rows]
    assert "gpu_8x_b200_sxm6, rented whole: 8 GPUs)" in " ".join(call(*words, 1).split())
    given = advice(*words, 1, "--price", 2)["best"]
    assert given["cost_of_tokens"] == pytest.approx(2 * hours)
    both = advice(*words, "1,8", "--objective", "cost")
    assert both["best"]["gpus"] == 8


def test_where_all_fit_tightly_checkpoints_are_offloaded():
    words = ("llama-3-70b", "--lora", 16, "--quantize", "nf4", "--gpu", "a6000", "--gpus", 4)
    full, best = advice(*words, "--checkpointing", "full"), advice(*words)["best"]
    assert full["best"]["tight"] and full["safer"]["checkpointing"] == "offload"
    assert best["checkpointing"] == "offload" and not best["tight"]
    assert "Host memory" in call(*words)


@pytest.mark.parametrize(("typed", "remedy"), [("1e9B", "1e9"), ("1e20", "1e9"), ("0", "1e9"), ("3x", "1e9")])
def test_absurd_numbers_of_tokens_are_refused(typed, remedy):
    words = ("gpt2-small", "--gpu", "h100", "--gpus", 8, "--tokens", typed)
    assert f"try: --tokens {remedy} (" in call(*words, code=2)


def test_sequences_beyond_the_context_are_noted():
    words = ("llama-3.2-1b", "--gpu", "h100", "--gpus", 8, "--batch", 1, "--sharding", "zero3", "--seq")
    beyond = "Sequences of 262,144 tokens are longer than llama-3.2-1b's context, 131,072 tokens"
    assert beyond in advice(*words, "256k")["notes"]
    assert not any("context" in note for note in advice(*words, "8k")["notes"])


def test_what_is_needed_and_what_can_be_allocated_are_compared_and_summed():
    words = ("llama-3.2-1b", "--gpu", "rtx-4090", "--gpus", 1, "--lora", 8, "--memory", "5GB", "--seq", 8192)
    words = (*words, "--checkpointing", "none")
    text = call(*words)
    said = re.search(r"at least ([\d.]+) GB to allocate per GPU, and ([\d.]+) of 5.0 GB can be", " ".join(text.split()))
    assert float(said[1]) > float(said[2])
    parts = re.findall(r"([\d.]+) GB +(besides: )?\w", text.split("Memory", 1)[1].split("Fits with")[0])
    assert sum(float(size) for size, besides in parts if not besides) == pytest.approx(float(said[1]), abs=0.15)
    alone = " ".join(cli.output("simulate", *words).split())
    assert re.search(r"does not fit, [\d.]+ GB to allocate per GPU, and ([\d.]+) of 5.0 GB can be", alone)[1] == said[2]


def test_batches_are_of_whole_pairs():
    words = ("llama-3.2-1b", "--gpu", "h100", "--gpus", 4, "--lora", 8, "--loss", "dpo", "--checkpointing", "full")
    assert all(row["batch"] % 2 == 0 for one in advice(*words)["gpus"] for row in one["rows"])
    assert all(row["batch"] % 2 == 0 for one in advice(*words, "--global-batch", 24)["gpus"] for row in one["rows"])
    assert "3 of each of 4 ranks are no multiple" in cli.said("advise", *words, "--global-batch", 12, code=2)
    assert cli.said("advise", *words, "--batch", 1, code=2).endswith("try: --batch 2")
