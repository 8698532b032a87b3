"""Expert parallelism: what ranks keep, compute and exchange of a mixture's experts, and what is refused."""

import json

import cli
import paceline
import pytest
from paceline.catalog.gpus import find_hardware
from paceline.catalog.models.config import find_config
from paceline.catalog.models.exchanges import Links, all_to_all_s
from paceline.catalog.models.families import model_of
from paceline.catalog.models.spec import workload_of
from paceline.errors import InvalidArgumentError
from paceline.forecast.jobs import model as jobs
from paceline.forecast.jobs import spec
from paceline.forecast.kinds import Measure
from paceline.operators.constants import constant

LINKS = Links(8, 44e9)
JOB = {"gpu": "h100", "seq": 4096, "strategy": "native"}


def mixture(**options):
    return workload_of(find_config("mixtral-8x7b"), "h100", 4096, links=LINKS, **options)


def forecast(workers=64, **options):
    return paceline.simulate("mixtral-8x7b", None, workers=workers, **JOB, **options)


def experts_of(model):
    return sum(tensor.size for tensor in model.tensors() if tensor.is_of_experts)


def test_a_rank_has_its_part_of_the_experts_and_the_work_of_all_its_tokens():
    whole, divided = mixture(), mixture(expert_parallel=4)
    experts = experts_of(whole.model)
    assert divided.own.parameters == whole.model.parameters - experts * 3 // 4
    assert divided.model is not divided.own and whole.own is whole.model
    # What it trains a token with is the same, and so is the work.
    assert divided.own.active_parameters == whole.model.active_parameters
    assert divided.mfu(1.0) == whole.mfu(1.0)
    sizes = {one.tensor: one.bytes for one in divided.trace().workers[0].gradients}
    assert sum(sizes.values()) == 2 * divided.own.parameters
    # Weights of fewer experts pass through memory, and tokens go to the others and back.
    assert divided.expert_parallel_s > 0 and whole.expert_parallel_s == 0
    assert divided.compute_s - divided.expert_parallel_s < whole.compute_s
    assert divided.compute_s > mixture(expert_parallel=8).compute_s - mixture(expert_parallel=8).expert_parallel_s


def test_tokens_go_to_experts_and_back_in_both_passes():
    made = mixture(expert_parallel=8, batch=2)
    h100 = find_hardware("h100")
    # Two experts a token, 2 bytes an element.
    moved = 2 * 4096 * 2 * 4096 * 2 * constant("experts.imbalance")
    one = all_to_all_s(h100, moved, 8, LINKS)
    assert one == pytest.approx(7 * 3.4e-6 + moved * 7 / 8 / 360e9)
    assert made.expert_parallel_s == pytest.approx(32 * 4 * one)
    assert mixture(expert_parallel=8, batch=2, checkpointing="full").expert_parallel_s == pytest.approx(32 * 6 * one)
    # On several nodes, most go over the cards: three quarters of them from 8 of 32 GPUs.
    wide = all_to_all_s(h100, moved, 32, LINKS)
    assert wide == pytest.approx(31 * 3.4e-6 + moved * 24 / 32 / 44e9)
    # Tensor-parallel GPUs send their parts of the sequence, and have whole experts.
    shared = mixture(expert_parallel=8, batch=2, tensor_parallel=2)
    assert shared.expert_ranks == 4
    assert shared.expert_parallel_s == pytest.approx(32 * 4 * all_to_all_s(h100, moved / 2, 8, LINKS))
    # Only attention is all-reduced between them.
    plain = mixture(batch=2, tensor_parallel=2)
    assert shared.tensor_parallel_s == pytest.approx(plain.tensor_parallel_s / 2)


def test_memory_of_all_ranks_has_the_states_once():
    config = model_of(find_config("mixtral-8x7b"), 4096)
    dense = config.parameters - experts_of(config)
    result = {ways: forecast(expert_parallel=ways, sharding="zero1").sharded.memory for ways in (1, 2, 4, 8)}
    # 12 bytes a parameter, whoever has them.
    states = {ways: memory.optimizer_bytes * 64 / (12 * config.parameters) for ways, memory in result.items()}
    assert all(share == pytest.approx(1, rel=1e-3) for share in states.values())
    for ways, memory in result.items():
        assert memory.parameters_bytes == 2 * (dense + experts_of(config) // ways)
    sharded = forecast(expert_parallel=8, sharding="zero3").sharded.memory
    assert sharded.parameters_bytes * 64 == pytest.approx(4 * config.parameters, rel=1e-3)
    # A block's experts are gathered, of all of them the rank's part.
    assert sharded.gathered_bytes < forecast(sharding="zero3").sharded.memory.gathered_bytes / 2


@pytest.mark.parametrize("sharding", [None, "zero1", "zero2", "zero3"])
def test_experts_are_exchanged_by_those_who_have_the_same(sharding):
    options = {} if sharding is None else {"sharding": sharding}
    whole, divided, alone = (forecast(8, expert_parallel=ways, **options) for ways in (1, 2, 8))
    assert whole.bytes_sent_per_worker > divided.bytes_sent_per_worker > alone.bytes_sent_per_worker
    model = model_of(find_config("mixtral-8x7b"), 4096)
    dense = model.parameters - experts_of(model)
    # Nobody else has what a rank of 8 has of 8 experts: dense parameters alone are sent.
    times = 3 if sharding == "zero3" else 2
    least = times * 2 * dense * 7 / 8
    assert 0.85 * least < alone.bytes_sent_per_worker < 1.01 * least


def test_reliefs_and_words_know_the_all_to_alls():
    result = forecast(128, expert_parallel=8, gpus_per_node=4, sharding="zero1", accumulate=2)
    assert result.expert_parallel_s == pytest.approx(
        2 * forecast(128, expert_parallel=8, gpus_per_node=4).expert_parallel_s
    )
    arguments = ["simulate", "mixtral-8x7b", "--gpu", "h100", "--gpus", "64", "--seq", "4096", "--expert-parallel", "8"]
    answer = cli.facts(cli.printed(*arguments, "--gpus-per-node", "4"))
    assert "experts on 8 GPUs" in answer["Setup"]
    assert "tokens to experts and back" in answer["EP"]
    assert "2x faster compute, including EP all-to-alls" in answer["Would help"]
    document = cli.answer(*arguments)
    assert document[0]["expert_parallel_s"] > 0
    slow, fast = (forecast(64, expert_parallel=8, gpus_per_node=4, bandwidth=rate) for rate in ("400Gbps", "800Gbps"))
    assert slow.expert_parallel_s > 1.8 * fast.expert_parallel_s


def test_cards_are_those_of_a_gpu_whatever_the_cluster_calls_its_rate():
    """On rails the rate is that of a card, elsewhere that of a node."""
    options = {"workers": 32, "expert_parallel": 8, "gpus_per_node": 4, **JOB}
    pod, rails = (paceline.simulate("mixtral-8x7b", name, **options) for name in ("h100-pod", "h100-rails"))
    # Four of the pod's GPUs share what eight did.
    assert 1 < rails.expert_parallel_s / pod.expert_parallel_s < 2.2


def test_exchanges_within_computation_are_scaled_with_it():
    whole = forecast(16, expert_parallel=8, sharding="zero1")
    faster = forecast(16, expert_parallel=8, sharding="zero1", compute_speedup=4.0)
    assert faster.expert_parallel_s == pytest.approx(whole.expert_parallel_s / 4)
    slower = forecast(16, expert_parallel=8, sharding="zero1", samples_per_s=0.5)
    assert slower.expert_parallel_s / slower.compute_s < 0.2
    assert slower.expert_parallel_s > 2 * whole.expert_parallel_s


def test_numbers_of_gpus_by_default_are_groups_with_all_experts():
    arguments = [
        "simulate",
        "mixtral-8x7b",
        "--gpu",
        "h100",
        "--expert-parallel",
        "8",
        "--strategy",
        "native",
        "--json",
    ]
    rows = json.loads(cli.call(*arguments).stdout)
    assert [row["workers"] for row in rows] == [8, 16, 32, 64]


def test_explanations_know_the_groups():
    arguments = ["simulate", "mixtral-8x7b", "--gpu", "h100", "--gpus", "16", "--seq", "4096", "--expert-parallel", "8"]
    run = cli.output(*arguments, "--strategy", "native", "--explain")
    assert "\n--strategy ring " in run and "aggregation" not in run


def test_the_whole_gathered_ahead_is_a_block_with_its_experts():
    times = [forecast(32, expert_parallel=ways, sharding="zero3").iteration_s for ways in (2, 4, 8)]
    assert times == sorted(times, reverse=True)


def test_jobs_may_divide_their_experts():
    given = {"trace": "mixtral-8x7b@h100:seq=4096", "workers": 16, "strategy": "native", "expert_parallel": 8}
    mix = spec.mix({"cluster": "dgx-h100", "iterations": 2, "job": [given | {"sharding": "zero1"}]}, "jobs.toml")
    [result] = jobs.simulate_jobs(mix).jobs
    alone = forecast(16, expert_parallel=8, sharding="zero1", library="none", bucket_size="25MiB")
    experts = "tokens for experts take as long as alone and put no load on shared links"
    assert mix.jobs[0].is_planned and not any(experts in note for note in mix.notes)
    wide = given | {"gpus_per_node": 4, "sharding": "zero1"}
    across = spec.mix({"cluster": "dgx-h100", "iterations": 2, "job": [wide]}, "jobs.toml")
    assert any(experts in note for note in across.notes)
    twice = next(one for one in jobs.simulate_jobs(across).what_if if one.measure is Measure.BANDWIDTH)
    really = spec.mix({"cluster": "dgx-h100", "bandwidth": "6400Gbps", "iterations": 2, "job": [wide]}, "jobs.toml")
    assert twice.iteration_s[0] == pytest.approx(jobs.simulate_jobs(really).jobs[0].iteration_s)
    with pytest.raises(InvalidArgumentError, match=r"jobs\.toml: job 1 .*expert_parallel: is not modeled with hsdp"):
        spec.mix({"cluster": "dgx-h100", "job": [given | {"sharding": "hsdp:8"}]}, "jobs.toml")
    assert result.iteration_s == pytest.approx(alone.iteration_s, rel=0.25)


@pytest.mark.parametrize(
    ("change", "message"),
    [
        ({"expert_parallel": 3}, "expert_parallel: 3 does not divide the 8 experts of mixtral-8x7b"),
        (
            {"expert_parallel": 8, "workers": 12},
            "expert_parallel: 12 GPUs are not a multiple of 8, the GPUs that have all experts",
        ),
        ({"expert_parallel": 2, "tensor_parallel": 4}, "must be a multiple of the 4 tensor-parallel GPUs, not 2"),
        ({"expert_parallel": 8, "gpu": "l40s"}, "no NVLink"),
        ({"expert_parallel": 8, "sharding": "hsdp:8"}, "is not modeled with hsdp"),
        ({"expert_parallel": 8, "compression": "fp16"}, "is not modeled with compression"),
        (
            {"expert_parallel": 8, "strategy": "ps"},
            "ps needs servers or a switch, and expert-parallel needs collectives",
        ),
        (
            {"expert_parallel": 8, "gpus_per_node": 4, "bandwidth": ["100Gbps", "200Gbps"]},
            "8 GPUs are on several nodes, whose exchanges need one bandwidth",
        ),
    ],
    ids=lambda value: str(value)[:40],
)
def test_what_cannot_be_is_refused(change, message):
    options = {"workers": 64, **JOB} | change
    with pytest.raises(InvalidArgumentError, match=message):
        paceline.sweep("mixtral-8x7b", None, **options)


def test_models_without_experts_and_recordings_have_none_to_divide():
    with pytest.raises(InvalidArgumentError, match="needs experts, and llama-2-7b has none"):
        paceline.simulate("llama-2-7b", None, workers=8, expert_parallel=8, **JOB)
    with pytest.raises(InvalidArgumentError, match="needs a model, and resnet-50 was recorded"):
        paceline.simulate("resnet-50", None, "ring", workers=8, expert_parallel=8)
