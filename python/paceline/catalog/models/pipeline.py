"""A pipeline's parts, and its microbatches in flight, whose activations a stage keeps for their backward passes."""

from __future__ import annotations

from collections.abc import Sequence


def ends_are_blocks(blocks: int, parts: int) -> bool:
    """Whether a pipeline counts embeddings and head as a block each: only thus are its parts equally large."""
    return blocks % parts != 0 and (blocks + 2) % parts == 0


def can_be_cut(blocks: int, parts: int) -> bool:
    """Whether each part has a block, or at the ends embeddings or head instead."""
    return parts <= blocks or ends_are_blocks(blocks, parts)


def blocks_of_parts(blocks: int, parts: int) -> list[int]:
    """Return the blocks of each part, of which the first ones have one more: stages take parts in turn."""
    if ends_are_blocks(blocks, parts):
        size = (blocks + 2) // parts
        return [size - 1, *[size] * (parts - 2), size - 1]
    size, more = divmod(blocks, parts)
    return [size + (part < more) for part in range(parts)]


def in_flight(stage: int, stages: int, microbatches: int, part_bytes: Sequence[float]) -> list[int]:
    """Return how many microbatches' activations a stage keeps of each of its parts when they need most memory.

    1F1B: as many as there are stages from this one on. Interleaved, the forward passes of the (V - 1) P + 2 (P - 1 -
    stage) parts of the warm-up and of one more come before the first backward pass, then each backward pass is followed
    by a forward pass; P microbatches pass a part, then the next part (D. Narayanan et al., "Efficient Large-Scale
    Language Model Training on GPU Clusters Using Megatron-LM", SC 2021, section 2.2). The first stage thus keeps
    P + (P - 1) / V microbatches (V. Korthikanti et al., "Reducing Activation Recomputation in Large Transformer
    Models", 2022, section 4.2.1).

    Args:
        stage: The stage, from 0.
        stages: P.
        microbatches: Of an iteration; with several parts, a multiple of P.
        part_bytes: Bytes that each of the stage's V parts keeps for a microbatch.
    """
    parts, after = len(part_bytes), stages - 1 - stage
    if parts == 1:
        return [min(after + 1, microbatches)]
    forward = [part for part in range(parts) for _ in range(stages)] * (microbatches // stages)
    first = min((parts - 1) * stages + 2 * after + 1, len(forward))
    now = [forward[:first].count(part) for part in range(parts)]
    most = list(now)
    # It repeats itself after all parts of P microbatches; the second time, all of them are in flight.
    for begun, done in list(zip(forward[first:], forward, strict=False))[: 2 * stages * parts]:
        now[parts - 1 - done] -= 1
        now[begun] += 1
        if _kept(now, part_bytes) > _kept(most, part_bytes):
            most = list(now)
    return most


def _kept(counts: Sequence[int], part_bytes: Sequence[float]) -> float:
    return sum(count * size for count, size in zip(counts, part_bytes, strict=True))
