"""Losses that compare sequences, or a model with a reference, as multiples of passes.

| loss | sequences of a comparison | forward passes besides, without gradients |
| --- | --- | --- |
| `lm` | 1 | |
| `dpo` | 2 | reference |
| `kto` | 1 | policy over other completions, reference over both |
| `orpo`, `cpo`, `simpo` | 2 | |

A batch counts sequences: a pair is two. With adapters the reference is the model without them; else it is another model
in memory. Sources: trl's `DPOTrainer`, `KTOTrainer` (`calculate_KL`), `ORPOTrainer` and `CPOTrainer`; R. Rafailov et
al., "Direct Preference Optimization", 2023; K. Ethayarajh et al., "KTO", 2024; J. Hong et al., "ORPO", 2024.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass

from paceline.catalog import names


@dataclass(frozen=True)
class Loss:
    """A loss's passes."""

    title: str
    """For prose."""
    sequences: int = 1
    """Sequences that are compared with each other."""
    policy: int = 0
    """Forward passes of the model besides, without gradients."""
    reference: int = 0
    """Forward passes of the reference."""


LOSSES: Mapping[names.Loss, Loss] = {
    "lm": Loss("language modeling"),
    "dpo": Loss("DPO", 2, reference=1),
    "kto": Loss("KTO", policy=1, reference=2),
    "orpo": Loss("ORPO", 2),
    "cpo": Loss("CPO", 2),
    "simpo": Loss("SimPO", 2),
}
GENERATING = ("grpo", "ppo", "rloo", "gkd", "dapo", "gspo", "reinforce", "online-dpo", "nash-md", "xpo")
"""Methods whose step generates samples before it updates the model, as trl and open-instruct call them."""
