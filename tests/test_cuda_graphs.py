"""CUDA graphs: what the host launches at once, what is left of its time, and which files have them."""

from dataclasses import replace

import cli
import paceline
import pytest
from hypothesis import given
from hypothesis import strategies as st
from paceline.catalog.constants import assuming
from paceline.catalog.gpus import find_hardware
from paceline.catalog.models.config import find_config
from paceline.catalog.models.exchanges import Links
from paceline.catalog.models.families import model_of
from paceline.catalog.models.modules import Setting, operators_of
from paceline.catalog.models.spec import workload_of
from paceline.errors import InvalidArgumentError
from paceline.interop import trainers
from paceline.operators.kernels import Work
from paceline.operators.machine import Machine, all_constants
from paceline.operators.operator import SYNCHRONIZE, Operator, contiguous
from paceline.operators.queues import Queues, dispatch_s
from paceline.operators.works import program_of

H100 = Machine(find_hardware("h100"))
LINKS = Links(8, 44e9)
ADD = Operator("add", (contiguous((4,), "float32"),) * 2, (contiguous((4,), "float32"),))


def works(*seconds):
    return [Work("memory", 0, 0, (one,)) for one in seconds]


def times(operators, seconds):
    """Return when host and device are done with operators of one kernel each."""
    queues = Queues()
    program_of(operators, works(*seconds), [False] * len(operators), H100).run(queues)
    return queues


def test_the_host_launches_a_graph_once():
    count, each = 100, 1e-6
    plain, graph = times([ADD] * count, [each] * count), times([replace(ADD, in_graph=True)] * count, [each] * count)
    launch = dispatch_s(ADD, H100)
    delay = plain.device_s - plain.host_s - each
    assert plain.host_s == pytest.approx(count * launch)
    # The kernels follow each other, as many as they are.
    assert (graph.host_s, graph.device_s) == (launch, pytest.approx(launch + delay + count * each))
    # What is not part of the graph ends it: the next one is launched anew.
    twice = [replace(ADD, in_graph=place != 50) for place in range(count)]
    assert times(twice, [each] * count).host_s == pytest.approx(3 * launch)


@given(st.lists(st.tuples(st.booleans(), st.floats(1e-6, 1e-3), st.sampled_from([1.0, 2.7]), st.booleans())))
def test_a_graph_is_never_slower(listed):
    plain = [
        replace(ADD, host=host, name=SYNCHRONIZE if waits and not inside else "add")
        for inside, _, host, waits in listed
    ]
    graph = [replace(one, in_graph=inside) for one, (inside, *_) in zip(plain, listed, strict=True)]
    seconds = [one for _, one, *_ in listed]
    without, within = times(plain, seconds), times(graph, seconds)
    assert within.host_s <= without.host_s + 1e-12
    assert sum(seconds) <= within.device_s <= without.device_s + 1e-12 or not listed


_ADDRESSES = "needs parameters and activations in the GPU's memory, at the same addresses"


def pass_s(model, gpu, **options):
    workload = workload_of(find_config(model), gpu, links=LINKS, **options)
    return workload.forward_s + workload.backward_s


@pytest.mark.parametrize("kernels", ["eager", "fused", "compiled", "transformer-engine"])
@pytest.mark.parametrize(
    ("model", "options"),
    [("gpt2-small", {}), ("bert-base", {"checkpointing": "full"}), ("qwen3-30b-a3b", {"expert_parallel": 8})],
)
def test_a_model_is_as_fast_as_without_the_host(model, options, kernels):
    options = {**options, "seq": 256, "kernels": kernels}
    plain, graphs = (pass_s(model, "gb200", **options, cuda_graphs=wanted) for wanted in (False, True))
    host = all_constants()["host.operator"]
    with assuming({host: 1e-9}):
        bound = pass_s(model, "gb200", **options)
    assert bound <= graphs * (1 + 1e-9)
    assert graphs <= plain * (1 + 1e-9)
    if "expert_parallel" not in options:
        # Embeddings, head and the launches of the graphs are left.
        assert graphs - bound < 0.25 * (plain - bound) + 5e-4


@pytest.mark.parametrize("kernels", ["fused", "compiled"])
def test_graphs_change_nothing_where_the_device_is_the_bound(kernels):
    plain, graphs = (
        pass_s("llama-3-8b", "h100", seq=8192, batch=1, kernels=kernels, cuda_graphs=wanted) for wanted in (False, True)
    )
    assert graphs == pytest.approx(plain, rel=1e-3)


def listed(model, role, **options):
    layers = model_of(find_config(model), 1024).layers
    layer = next(
        one for one in layers if one.form.role == role and (role != "mlp" or one.experts or "30b" not in model)
    )
    return operators_of(layer, Setting("hopper", 1, "bfloat16", cuda_graphs=True, **options))


def outside(operators):
    return {one.name for one in operators if not one.in_graph}


@pytest.mark.parametrize("kernels", ["eager", "fused", "transformer-engine"])
def test_routed_experts_are_not_part_of_graphs(kernels):
    made = listed("qwen3-30b-a3b", "mlp", kernels=kernels, expert=8)
    inside = {one.name for one in (*made.forward, *made.backward) if one.in_graph}
    for operators in (made.forward, made.backward):
        assert "_grouped_mm" in outside(operators)
        # The norm before them, and the router.
        assert any(one.in_graph for one in operators)
    assert {"topk", "mm"} <= inside
    assert not {"_grouped_mm", SYNCHRONIZE, "sort", "unpermute"} & inside
    whole = listed("qwen3-30b-a3b", "attention", kernels=kernels)
    assert not outside((*whole.forward, *whole.backward))


def test_hooks_of_fsdp_are_not_part_of_graphs():
    made = listed("llama-3-8b", "mlp", gathered=2)
    assert outside(made.forward) == {"split_with_sizes_copy"}
    assert outside(made.backward) == {"split_with_sizes_copy", "chunk_cat"}
    assert all(not one.in_graph for one in listed("llama-3-8b", "head").forward)


def test_graphs_that_cannot_be_are_refused(tmp_path):
    for words, message in (
        (("resnet50", "--gpus", "8"), "needs a model, and resnet50 was recorded"),
        (("gpt2-small", "--gpu", "h100", "--offload", "cpu:activations"), _ADDRESSES),
        (("gpt2-small", "--gpu", "h100", "--checkpointing", "offload"), _ADDRESSES),
    ):
        assert f"--cuda-graphs: {message}" in cli.refused("simulate", *words, "--cuda-graphs")
    cpu = replace(find_hardware("h100"), architecture="cpu")
    with pytest.raises(InvalidArgumentError, match="launches nothing on a GPU"):
        workload_of(find_config("gpt2-small"), cpu, cuda_graphs=True)
    assert workload_of(find_config("gpt2-small"), "h100", cuda_graphs=True, offload="cpu:states").cuda_graphs


def test_a_forecast_names_them():
    words = ("simulate", "gpt2-small", "--gpu", "gb200", "--gpus", "4", "--seq", "256", "--kernels", "eager")
    plain, graphs = cli.facts(cli.printed(*words)), cli.facts(cli.printed(*words, "--cuda-graphs"))
    assert "eager kernels, CUDA graphs" in graphs["Setup"]
    assert "or CUDA graphs" in plain["Bottleneck"]
    in_python = paceline.simulate("gpt2-small", None, gpu="gb200", workers=4, seq=256, cuda_graphs=True)
    in_a_word = paceline.simulate("gpt2-small@gb200:seq=256,cuda_graphs=true", None, workers=4)
    assert in_python.iteration_s == in_a_word.iteration_s


MEGATRON = (
    "torchrun --nproc_per_node 8 pretrain_gpt.py --num-layers 32 --hidden-size 4096 --num-attention-heads 32 --bf16"
)


@pytest.mark.parametrize(
    ("words", "expected", "assumed"),
    [
        ("", None, ""),
        ("--cuda-graph-impl none --cuda-graph-scope attn", None, ""),
        ("--enable-cuda-graph", True, ""),
        ("--external-cuda-graph --cuda-graph-scope attn mlp --cuda-graph-warmup-steps 3", True, ""),
        ("--num-experts 8 --cuda-graph-impl transformer_engine --cuda-graph-scope attn moe_router", True, ""),
        ("--cuda-graph-impl transformer_engine --cuda-graph-modules attn", True, "whole blocks"),
        ("--cuda-graph-impl local --cuda-graph-scope full_iteration", True, "one of the whole iteration"),
        ("--cuda-graph-impl full_iteration", True, "one of the whole iteration"),
    ],
)
def test_arguments_of_megatron(tmp_path, words, expected, assumed):
    (tmp_path / "train.sh").write_text(f"{MEGATRON} {words}\n")
    reading = trainers.read(tmp_path / "train.sh", {})
    assert reading.options.get("cuda_graphs") is expected
    named = [one.words for one in reading.assumptions if "CUDA graphs" in one.words]
    assert bool(named) == bool(assumed) and assumed in " ".join(named)
    fates = {row.fate for row in reading.rows(lambda name, _: name) if "graph" in row.field}
    assert fates <= {"read", "no effect"}


def test_files_of_nemo_and_of_transformers(tmp_path):
    (tmp_path / "nemo.yaml").write_text(
        "model:\n  num_layers: 32\n  hidden_size: 4096\n  num_attention_heads: 32\n"
        "  cuda_graph_impl: transformer_engine\n  cuda_graph_scope: [attn, moe_router]\n"
        "train:\n  micro_batch_size: 1\n  global_batch_size: 8\n"
    )
    assert trainers.read(tmp_path / "nemo.yaml", {}).options["cuda_graphs"] is True
    for mode, expected in (("reduce-overhead", True), ("max-autotune", True), ("default", None)):
        (tmp_path / "args.json").write_text(
            f'{{"per_device_train_batch_size": 1, "output_dir": "out", "torch_compile_mode": "{mode}"}}'
        )
        options = trainers.read(tmp_path / "args.json", {}).options
        assert (options["kernels"], options.get("cuda_graphs")) == ("compiled", expected)
