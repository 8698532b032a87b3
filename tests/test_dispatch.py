"""Dispatch of tokens to experts: nodes and GPUs that a token reaches, and groups that do not divide a node."""

from itertools import combinations
from math import comb

import cli
import paceline
import pytest
from hypothesis import given
from hypothesis import strategies as st
from paceline.catalog.builtin import load_cluster
from paceline.catalog.gpus import find_hardware
from paceline.catalog.models.config import Config, find_config
from paceline.catalog.models.dispatch import deepep_bytes, deepep_s, groups_of_experts, reached
from paceline.catalog.models.exchanges import HOP_S, Links, all_to_all_s, in_whole_groups
from paceline.catalog.models.families import model_of
from paceline.catalog.models.spec import workload_of
from paceline.catalog.models.traits import Experts
from paceline.errors import InvalidArgumentError

LINKS = Links(8, 44e9)
JOB = {"gpu": "h100", "seq": 4096, "strategy": "native"}
mixtures = st.tuples(st.integers(1, 3), st.integers(1, 3), st.integers(1, 4)).flatmap(
    lambda sizes: st.builds(
        Experts,
        st.just(sizes[0] * sizes[2]),
        st.integers(1, min(sizes[0], sizes[1]) * sizes[2]),
        groups=st.just(sizes[0]),
        chosen_groups=st.just(min(sizes[0], sizes[1])),
    )
)


@given(mixtures, st.data())
def test_a_share_of_tokens_reaches_neighboring_experts(experts, data):
    """As counted over all ways to choose groups, and experts of them."""
    size = data.draw(st.integers(1, experts.count))
    per_group = experts.count // experts.groups
    hits = total = 0
    for groups in combinations(range(experts.groups), experts.chosen_groups):
        open_to = [index for index in range(experts.count) if index // per_group in groups]
        for chosen in combinations(open_to, experts.routed):
            for start in range(0, experts.count, size):
                neighbors = {(start + index) % experts.count for index in range(size)}
                hits += bool(neighbors & set(chosen))
                total += 1
    assert reached(experts, size) == pytest.approx(hits / total)


def test_a_token_reaches_few_nodes():
    free = Experts(256, 8)
    assert reached(free, 32) == pytest.approx(1 - comb(224, 8) / comb(256, 8))
    # DeepSeek-V3 chooses from 4 of 8 groups: 3.6 nodes of 8, where 5.3 would be reached.
    limited = Experts(256, 8, groups=8, chosen_groups=4)
    assert 8 * reached(limited, 32) == pytest.approx(4 * (1 - comb(96, 8) / comb(128, 8)))
    assert 8 * reached(limited, 32) < 3.7
    assert 8 * reached(free, 32) > 5.2
    assert reached(limited, 256) == 1


@pytest.mark.parametrize(("ranks", "published", "error"), [(16, 43e9, 0.31), (32, 58e9, 0.02), (64, 51e9, 0.02)])
def test_deepep_is_as_fast_as_it_was_measured(ranks, published, error):
    """Its table of normal kernels on H800 (deepseek-ai/DeepEP, docs/legacy.md): bytes to all nodes, a second."""
    nodes = ranks // 8
    experts = Experts(256, 8, groups=nodes, chosen_groups=min(nodes, 4))
    moved = 4096 * 7168 * 2
    seconds = deepep_s(find_hardware("h800"), moved, experts, ranks, LINKS)
    assert moved * nodes * reached(experts, 256 // nodes) / seconds == pytest.approx(published, rel=error)


@given(st.sampled_from([2, 4, 8, 16, 64, 128]), st.sampled_from([(128, 8, 1, 1), (256, 8, 8, 4), (128, 4, 1, 1)]))
def test_deepep_never_sends_more_than_an_all_to_all(ranks, sizes):
    experts, h100 = Experts(*sizes[:2], groups=sizes[2], chosen_groups=sizes[3]), find_hardware("h100")
    once, each = 1e8, sizes[1] * 1e8
    assert deepep_s(h100, once, experts, ranks, LINKS) <= all_to_all_s(h100, each, ranks, LINKS) + HOP_S
    # One expert a token is sent once by both.
    single = Experts(sizes[0], 1)
    hops = (1 + (ranks > 8) - (ranks - 1)) * HOP_S
    both = deepep_s(h100, once, single, ranks, LINKS) - hops
    assert both == pytest.approx(all_to_all_s(h100, once, ranks, LINKS))


def test_buffers_of_deepep():
    """Rows of 7,168 elements in 16 bits, beside indices, weights and scales (csrc/config.hpp)."""
    row = 2 * 7168 + 2048
    assert deepep_bytes(2 * 7168, 8, 8) == 10 * 8 * 256 * row
    assert deepep_bytes(2 * 7168, 64, 8) == 10 * 8 * 288 * row + 10 * 8 * 256 * row


def test_deepep_takes_less_time_and_memory_than_all_to_alls():
    options = {"workers": 64, "expert_parallel": 64, "sharding": "zero3", **JOB}
    plain = paceline.simulate("qwen3-30b-a3b", None, **options)
    sent_once = paceline.simulate("qwen3-30b-a3b", None, expert_dispatch="deepep", **options)
    assert sent_once.expert_parallel_s < 0.8 * plain.expert_parallel_s
    assert sent_once.sharded.memory.total_bytes < plain.sharded.memory.total_bytes
    assert paceline.simulate("qwen3-30b-a3b", None, expert_dispatch="hybridep", **options) == sent_once
    words = ["simulate", "qwen3-30b-a3b", "--gpu", "h100", "--gpus", "64", "--seq", "4096", "--expert-parallel", "64"]
    assert "experts on 64 GPUs (DeepEP)" in cli.facts(cli.printed(*words, "--expert-dispatch", "deepep"))["Setup"]


def test_a_dispatcher_without_experts_on_other_gpus_has_no_effect():
    words = ["mixtral-8x7b", "--gpu", "h100", "--gpus", "16", "--seq", "4096", "--expert-dispatch", "deepep"]
    assert "--expert-dispatch: has no effect where no GPUs share experts" in cli.refused("simulate", *words)
    assert "expert-dispatch" not in cli.printed("advise", *words, "--checkpointing", "full", "--sharding", "zero3")


def test_latent_rows_are_what_travels():
    config = find_config("nemotron-3-nano-30b-a3b")
    narrow = Config("mine", "config.json", config.fields | {"moe_latent_size": config.fields["hidden_size"] // 2})
    whole, latent = (
        workload_of(one, "h100", 4096, links=LINKS, expert_parallel=8).expert_parallel_s for one in (config, narrow)
    )
    assert 0.5 < latent / whole < 0.54


@pytest.mark.parametrize(
    ("fields", "groups"),
    [
        ({}, (8, 4)),
        ({"n_group": None, "topk_group": None}, (1, 1)),
        ({"n_group": 1, "topk_group": 1}, (1, 1)),
        ({"topk_method": "greedy"}, (1, 1)),
        ({"n_group": 4, "topk_group": None}, (4, 4)),
    ],
)
def test_groups_of_experts_are_read(fields, groups):
    config = Config("mine", "config.json", find_config("deepseek-v3").fields | fields)
    assert groups_of_experts(config, 256, 8) == groups
    assert next(layer.experts for layer in model_of(config, 64).layers if layer.experts).groups == groups[0]


def test_groups_that_cannot_be_are_refused():
    for fields, message in (({"n_group": 7}, "7 does not divide the 256 experts"), ({"n_group": 128}, "fewer than")):
        config = Config("mine", "config.json", find_config("deepseek-v3").fields | fields)
        with pytest.raises(InvalidArgumentError, match=message):
            groups_of_experts(config, 256, 8 if "divide" in message else 9)


def test_racks_hold_whole_groups():
    rack = load_cluster("gb200-nvl72")
    used = in_whole_groups(rack, [64, 1])
    assert (used.gpus_per_node, used.nics_per_node, used.bandwidth_bps) == (64, 64, rack.bandwidth_bps * 64 / 72)
    assert in_whole_groups(rack, [8, 1]) is in_whole_groups(rack, [144, 1]) is rack
    assert in_whole_groups(rack, [5, 7]).gpus_per_node == 70
    assert in_whole_groups(rack, [64, 10]) is rack
    words = ["simulate", "qwen3-30b-a3b", "--gpu", "gb200", "--seq", "4096", "--expert-parallel", "64", "--gpus"]
    assert "Assumed 64 of the 72 GPUs of a node" in " ".join(cli.printed(*words, "128").split())
    assert "of the 72" not in cli.printed(*words, "64")
    shown = " ".join(cli.refused(*words, "128", "--gpus-per-node", "72").split())
    assert "groups of 64 GPUs do not divide the 72 of a node" in shown
