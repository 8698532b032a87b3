"""FSDP's fields, which accelerate, transformers, axolotl and LLaMA-Factory share, with and without the prefix `fsdp_`.

accelerate/utils/dataclasses.py (`FullyShardedDataParallelPlugin`) and transformers/training_args.py (`fsdp_config`).
accelerate casts what is trained to FP32, gathers it in the type of `mixed_precision`, and reduces gradients in that
type (`set_mixed_precision`, `fsdp2_prepare_model`): the recipe `mixed`.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence

from paceline.interop.trainers.document import beside, document
from paceline.interop.trainers.reading import Reading
from paceline.interop.trainers.words import SHARDINGS

_RESHARD: Mapping[object, str | None] = {
    True: None,
    "true": None,
    False: "no",
    "false": "no",
}
WORDS = (
    *("full_shard", "shard_grad_op", "hybrid_shard", "hybrid_shard_zero2", "no_shard"),
    *("auto_wrap", "offload", "true", "false"),
)
"""Of transformers' `fsdp`: transformers/training_args.py, trainer_utils.py (`FSDPOption`)."""
LACKS: Mapping[str, tuple[str, ...]] = {"sharding": ("zero1", "zero2")}
"""It shards parameters, too, or nothing."""
PREFETCH: Mapping[object, bool] = {
    "backward_pre": True,
    "backward_post": False,
    "no_prefetch": False,
    "none": False,
    True: True,
    False: False,
}


def names(*fields: str) -> tuple[str, ...]:
    """Return the names of fields in `fsdp_config`, with and without their prefix."""
    return tuple(f"fsdp_config.{prefix}{field}" for field in fields for prefix in ("fsdp_", ""))


def include(reading: Reading) -> None:
    """Read the file that transformers' `fsdp_config` names. Raises InvalidArgumentError if it is not there."""
    name = "fsdp_config"
    word = reading.text(name)
    if not word.endswith(".json"):
        return
    file = beside(reading.path, word)
    if file is None:
        reading.miss(name, word)
        return
    reading.known(name, f"read, too: {file}")
    for field, value in document(file).items():
        reading.values.setdefault(f"{name}.{field}", value)
        reading.labels.setdefault(f"{name}.{field}", f"{file.name}: {field}")


def take(reading: Reading, words: Sequence[str] = ()) -> None:
    """Take FSDP's sharding and what belongs to it.

    `words`: those of transformers' `fsdp`, such as `full_shard auto_wrap offload`.
    """
    own = names("sharding_strategy")
    strategy = reading.choice(SHARDINGS, *own)
    cited = own
    for word in words:
        if word.lower() in SHARDINGS:
            strategy, cited = SHARDINGS[word.lower()], ("fsdp",)
    sharding, reshard = strategy or ("zero3", None)
    reading.lack(LACKS)
    fields = (*cited, "fsdp", "distributed_type", "fsdp_version", *names("version"))
    if not any(reading.values.get(one) for one in fields):
        # Version 2 has no strategy: what stands in `fsdp_config` says that there is FSDP.
        fields = tuple(one for one in reading.values if one.startswith("fsdp_config."))[:1]
    if str(reading.options.get("sharding")).startswith("hsdp:"):
        # Degrees say it, too.
        sharding = "hsdp"
    else:
        reading.take("sharding", sharding, *fields)
    if reading.text(*names("reshard_after_forward")).lower() in SHARDINGS:
        # Version 1 has the strategy in this field.
        sharding, reshard = SHARDINGS[reading.text(*names("reshard_after_forward")).lower()]
        reading.take("sharding", sharding, *names("reshard_after_forward"))
    elif (kept := reading.choice(_RESHARD, *names("reshard_after_forward"))) is not None:
        reshard = kept
    if sharding in ("zero3", "hsdp"):
        reading.take("reshard_after_forward", reshard, *names("reshard_after_forward"), *cited)
    if reading.flag(*names("activation_checkpointing")):
        reading.take("checkpointing", "full", *names("activation_checkpointing"))
    own = tuple(name for name in names("offload_params", "cpu_offload") if reading.flag(name))
    if own or "offload" in words:
        if str(reading.effective("sharding")).startswith(("zero3", "hsdp")):
            reading.take("offload", "cpu:parameters,states", *own, *(["fsdp"] if "offload" in words else []))
        else:
            reading.idle(reading.present(*own, "fsdp"), "only FSDP, zero3 and hsdp, offloads parameters")
    ahead = names("backward_prefetch", "backward_prefetch_policy")
    if reading.choice(PREFETCH, *ahead) is False:
        reading.leave(reading.present(*ahead), "units are forecast to be gathered ahead")
    if reading.flag(*names("forward_prefetch")):
        reading.known(reading.present(*names("forward_prefetch")), "as a forecast has it")
