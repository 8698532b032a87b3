"""Dispatch of tokens to experts on other GPUs by kernels that send a token once to a node, and once to a GPU of it."""

from __future__ import annotations

from collections import Counter
from functools import lru_cache
from math import comb

from paceline.catalog.gpus import Hardware
from paceline.catalog.models.config import Config
from paceline.catalog.models.exchanges import HOP_S, Links
from paceline.catalog.models.traits import Experts

_CHANNELS = 10
"""Of DeepEP: half of the 20 multiprocessors that its kernels take (deepseek-ai/DeepEP 1.2, deep_ep/buffer.py)."""
_PEERS = 8
"""GPUs of a node that DeepEP knows (NUM_MAX_NVL_PEERS)."""
_ROWS_OF_PEER = {False: 256, True: 288}
"""Rows of a channel's buffer for a GPU of the node, by whether there are other nodes (`get_dispatch_config`)."""
_ROWS_OF_NODE = 2 * 128
"""Likewise for a node: those to be sent, and those received."""
_BESIDE_ROW = 128 * (8 + 4 + 4)
"""Bytes beside a row: indices, weights and scales of up to 128 experts (deepseek-ai/DeepEP, csrc/config.hpp)."""


def groups_of_experts(config: Config, count: int, routed: int) -> tuple[int, int]:
    """Return the groups of a configuration's experts, and of how many of them a token's experts may be.

    Raises InvalidArgumentError for groups that its experts do not fill, or that have too few.
    """
    groups = config.whole("n_group", 0) or 1
    chosen = min(groups, config.whole("topk_group", 0) or groups)
    if groups == 1 or config.get("topk_method") == "greedy":
        return 1, 1
    if count % groups:
        raise config.wrong("n_group", f"{groups} does not divide the {count} experts")
    if chosen * (count // groups) < routed:
        raise config.wrong("topk_group", f"{chosen} groups have fewer than the {routed} experts of a token")
    return groups, chosen


@lru_cache(maxsize=1024)
def reached(experts: Experts, size: int) -> float:
    """Return the share of tokens that choose some of so many neighboring experts, if all are chosen equally often.

    A token's experts are of a few groups (`chosen_groups`), as node-limited routing has it. The mean over all places
    at which the neighbors may begin.
    """
    starts = range(0, experts.count, size)
    return sum(1 - _missed(experts, start, size) for start in starts) / len(starts)


def _missed(experts: Experts, start: int, size: int) -> float:
    """Return the share of tokens that choose none of `size` experts from `start` on."""
    per_group = experts.count // experts.groups
    inside = Counter((start + index) % experts.count // per_group for index in range(size))
    # Ways to choose groups, by their number and by how many of the experts are in them.
    ways: Counter[tuple[int, int]] = Counter({(0, 0): 1})
    for group in range(experts.groups):
        more = Counter({(chosen + 1, of + inside[group]): number for (chosen, of), number in ways.items()})
        ways.update({key: number for key, number in more.items() if key[0] <= experts.chosen_groups})
    whole = experts.chosen_groups * per_group
    misses = sum(
        number * comb(whole - of, experts.routed)
        for (chosen, of), number in ways.items()
        if chosen == experts.chosen_groups
    )
    return misses / (comb(experts.groups, experts.chosen_groups) * comb(whole, experts.routed))


def deepep_s(hardware: Hardware, moved_bytes: float, experts: Experts, ranks: int, links: Links) -> float:
    """Return the seconds of DeepEP's dispatch, or of its combine, which sends the same bytes back.

    A token goes once to each node that has some of its experts, to the GPU of the sender's number, and from there by
    NVLink once to each GPU that has some (DeepSeek-AI, DeepSeek-V3, 2024, section 3.2.2). Both links work at once.

    Args:
        hardware: The GPU.
        moved_bytes: Of a GPU's tokens, each counted once.
        experts: The mixture, of which each GPU has an equal part.
        ranks: GPUs that share it.
        links: To other nodes.
    """
    near, part = min(ranks, links.gpus_per_node), experts.count // ranks
    inside = between = 0.0
    if near > 1:
        assert hardware.bus_bandwidth is not None
        gpus = ranks * reached(experts, part)
        inside = moved_bytes * gpus * (near - 1) / near / hardware.bus_bandwidth
    if ranks > near:
        nodes = (ranks - near) / near * reached(experts, near * part)
        between = moved_bytes * nodes / links.card
    return ((near > 1) + (ranks > near)) * HOP_S + max(inside, between)


def deepep_bytes(row_bytes: int, ranks: int, gpus_per_node: int) -> int:
    """Return the bytes of DeepEP's buffers on a GPU, for rows of so many bytes.

    Source: deepseek-ai/DeepEP 1.2, csrc/config.hpp.
    """
    is_wide, row = ranks > gpus_per_node, row_bytes + _BESIDE_ROW
    near = _CHANNELS * min(ranks, gpus_per_node, _PEERS) * _ROWS_OF_PEER[is_wide] * row
    return near + (_CHANNELS * -(-ranks // gpus_per_node) * _ROWS_OF_NODE * row if is_wide else 0)
