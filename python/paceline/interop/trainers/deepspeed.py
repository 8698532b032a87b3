"""DeepSpeed's JSON: https://www.deepspeed.ai/docs/config-json/, deepspeed/runtime/config.py, runtime/zero/config.py.

`auto` is what transformers' integration takes from the trainer (transformers/integrations/deepspeed.py).
"""

from __future__ import annotations

import re
from collections.abc import Mapping
from pathlib import Path

from paceline.catalog.recipes import COMPUTED
from paceline.interop.trainers.document import beside, document
from paceline.interop.trainers.reading import AUTO, Reading, Trainer
from paceline.interop.trainers.words import eager_kernels, take_optimizer

STAGES = {0: "none", 1: "zero1", 2: "zero2", 3: "zero3"}
LACKS: Mapping[str, tuple[str, ...]] = {
    "sharding": ("hsdp",),
    "reshard_after_forward": ("no",),
    "accumulate_sync": (),
}
"""ZeRO has groups only as MiCS, which transformers' integration does not initialize (`deepspeed.zero.MiCS_Init`).
Stage 3 partitions after each use, and `no_sync` is refused beside partitioned gradients (deepspeed/runtime/engine.py).
"""
_BY_NAME = re.compile(r"(?:z(?:ero)?[-_]?(?:stage)?|stage)[-_]?([0-3])(?!\d)", re.IGNORECASE)
"""The stage in the name of a file: `ds_z3_config.json`, `zero2.json`, `stage3_no_offloading.conf`."""
ON_CPU = "all that is offloaded is on the CPU, although some is on NVMe"
"""Assumption where both places are named."""
_OFFLOADING = re.compile(r"(?<!no[-_])offload", re.IGNORECASE)


_FORMER = {
    "zero_optimization.cpu_offload": "offload_optimizer",
    "zero_optimization.cpu_offload_params": "offload_param",
}
"""Switches of versions before 0.3.16, and the sections that have taken their place."""


def _derive(reading: Reading) -> None:
    if isinstance(reading.values.get("zero_optimization"), bool):
        # deepspeed/runtime/zero/config.py (`read_zero_config_deprecated`)
        stage = int(reading.flag("zero_optimization"))
        reading.stand_in("zero_optimization.stage", stage, "zero_optimization")
    tensor = reading.whole("tensor_parallel.autotp_size", least=0)
    reading.take("tensor_parallel", tensor or None, "tensor_parallel.autotp_size", unless=1)
    name = "sequence_parallel_size"
    reading.take("context_parallel", reading.whole(name), name, unless=1)
    batch = reading.whole("train_micro_batch_size_per_gpu")
    passes = reading.whole("gradient_accumulation_steps")
    total = reading.whole("train_batch_size")
    reading.take("batch", batch, "train_micro_batch_size_per_gpu")
    reading.take("sharding", reading.choice(STAGES, "zero_optimization.stage"), "zero_optimization.stage")
    if "sharding" not in reading.options:
        reading.default("sharding", "none", "stage 0, DeepSpeed's default", "--sharding zero3")
    _of_total(reading, batch, passes, total)
    _precision(reading)
    _buckets(reading)
    _groups(reading)
    for name, part in _FORMER.items():
        if reading.flag(name):
            reading.stand_in(f"zero_optimization.{part}.device", "cpu", name)
    offload(reading, "zero_optimization.offload_param.device", "zero_optimization.offload_optimizer.device")
    name = "optimizer.type"
    take_optimizer(reading, name, default="transformers' default")
    if reading.options.get("optimizer") == "adamw" and not reading.flag("optimizer.params.torch_adam"):
        # Apex's kernel by default: deepspeed/runtime/engine.py (`_configure_basic_optimizer`).
        reading.take("optimizer_impl", "fused", name)
    eager_kernels(reading)
    for name in ("zero_optimization.overlap_comm", "zero_optimization.contiguous_gradients"):
        if reading.flag(name, default=True):
            reading.known(name, "as a forecast has it")
        else:
            reading.leave(
                name,
                "communication is forecast to overlap" if "overlap" in name else "contiguous gradients are forecast",
            )


def _of_total(reading: Reading, batch: int | None, passes: int | None, total: int | None) -> None:
    """Take the third of batch, passes and GPUs from the other two and the whole batch of an iteration."""
    reading.passes(passes, "gradient_accumulation_steps")
    if total is not None and batch is None and reading.replicas is not None and "batch" not in reading.given:
        # deepspeed/runtime/config.py (`_set_batch_related_parameters`)
        each = reading.replicas * (passes or 1)
        if total % each:
            problem = f"{total} samples are not a multiple of {each}, GPUs x accumulation"
            raise reading.wrong("train_batch_size", problem, str(max(1, round(total / each)) * each))
        reading.take("batch", total // each, "train_batch_size", "gradient_accumulation_steps")
    if total is None or batch is None:
        return
    each = batch * (passes or 1)
    if passes is None and reading.gpus is not None:
        reading.passes_of_global("train_batch_size", total, "train_micro_batch_size_per_gpu")
    elif total % each == 0:
        reading.take("workers", total // each, "train_batch_size")
    else:
        raise reading.wrong(
            "train_batch_size",
            f"{total} samples are not a multiple of {each}, micro-batch x accumulation",
            str(max(1, round(total / each)) * each),
        )


def _precision(reading: Reading) -> None:
    enabled = [name for name in ("bf16", "fp16") if reading.flag(f"{name}.enabled")]
    if len(enabled) > 1:
        raise reading.wrong("fp16.enabled", "contradicts bf16.enabled", "false")
    for name in enabled:
        reading.take("dtype", name, f"{name}.enabled")
        reading.take("precision", "o2", f"{name}.enabled")
    if reading.flag("amp.enabled"):
        reading.take("precision", "o2", "amp.enabled")
    if enabled or reading.has("amp.enabled"):
        return
    left = [name for name in ("bf16", "fp16") if reading.values.get(f"{name}.enabled") == AUTO]
    dtype = reading.effective("dtype")
    if dtype is None and left:
        words = "bfloat16, where the file leaves the type to the trainer"
        reading.default("dtype", "bf16", words, "--precision NAME")
    elif dtype is None:
        reading.default("dtype", "fp32", "FP32, as neither bf16 nor fp16 is enabled", "--dtype bf16")
        reading.take("dtype", "fp32", *(f"{name}.enabled" for name in ("bf16", "fp16")))
    if left and reading.effective("dtype") in COMPUTED["o2"]:
        reading.take("precision", "o2", *(f"{name}.enabled" for name in left))


def _buckets(reading: Reading) -> None:
    """Take the size of a bucket of gradients, which DeepSpeed gives in elements of the reduced type."""
    name = "zero_optimization.reduce_bucket_size"
    elements = reading.number(name)
    if elements is None:
        return
    if reading.effective("sharding") in ("zero1", "zero2"):
        reading.take("bucket_size", f"{elements * (4 if reading.effective('dtype') == 'fp32' else 2)}B", name)
    else:
        reading.known(name, "no effect with stages 0 and 3, whose units are forecast")


def _groups(reading: Reading) -> None:
    """Take groups that hold whole parameters: MiCS shards in groups, hpZ gathers for the backward pass from a node."""
    group = reading.whole("zero_optimization.mics_shard_size", least=-1)
    if group is not None and group > 0:
        reading.take("sharding", f"hsdp:{group}", "zero_optimization.mics_shard_size")
    is_mics = str(reading.effective("sharding")).startswith("hsdp")
    reading.lack({name: values for name, values in LACKS.items() if not (is_mics and name == "sharding")})
    second = reading.whole("zero_optimization.zero_hpz_partition_size")
    if second is not None and second > 1 and reading.effective("sharding") == "zero3":
        reading.take("reshard_after_forward", second, "zero_optimization.zero_hpz_partition_size")


def offload(reading: Reading, parameters: str, states: str) -> None:
    """Take what is held in the memory of the CPU, or on NVMe."""
    fields = {"parameters": parameters, "states": states}
    devices = {
        part: device
        for part, name in fields.items()
        if (device := reading.choice({"none": "", "cpu": "cpu", "nvme": "nvme", False: ""}, name))
    }
    if "parameters" in devices and not str(reading.effective("sharding")).startswith(("zero3", "hsdp")):
        # deepspeed/runtime/zero/config.py: `offload_param` is for stage 3.
        del devices["parameters"]
        reading.idle(parameters, "only stage 3 offloads parameters")
    if not devices:
        return
    places = sorted(set(devices.values()))
    reading.take("offload", f"{places[0]}:{','.join(devices)}", *(fields[part] for part in devices))
    if len(places) > 1:
        reading.assume(ON_CPU, "--offload nvme:PART")


def include(reading: Reading, *names: str) -> None:
    """Read the file of DeepSpeed's that a trainer's field names, or what stands in its place; the trainer wins."""
    inside = {
        key[len(name) + 1 :]: value
        for name in names
        for key, value in reading.values.items()
        if key.startswith(f"{name}.")
    }
    if inside:
        for name in names:
            for one in inside:
                reading.values.pop(f"{name}.{one}", None)
        reading.include(DEEPSPEED, reading.path, inside, {one: f"{names[0]}.{one}" for one in inside})
        return
    # `--deepspeed` alone says that DeepSpeed is used; another argument names its file.
    name = next((one for one in names if isinstance(reading.values.get(one), str | list)), names[0])
    word = _word(reading, name)
    if not word or word in ("None", "false", "True"):
        return
    file = beside(reading.path, word)
    if file is not None:
        reading.known(name, f"read, too: {file}")
        inside = document(file)
        reading.include(DEEPSPEED, file, inside, {one: f"{file.name}: {one}" for one in inside})
        return
    stage = _BY_NAME.search(Path(word).name)
    if stage is None:
        reading.miss(name, word)
        return
    reading.lack(LACKS)
    reading.take("sharding", STAGES[int(stage[1])], name)
    reading.take("precision", "o2", name)
    reading.assume(
        f"ZeRO-{stage[1]}, by the name of {word:.80}, which is not there", "the file beside this one, or --sharding"
    )
    if _OFFLOADING.search(Path(word).name):
        reading.take("offload", "cpu:parameters,states" if stage[1] == "3" else "cpu:states", name)


def _word(reading: Reading, name: str) -> str:
    """Return the path that a field names; of one in a folder that a variable says, its name."""
    value = str(reading.values.get(name))
    if "$" in value and "$" not in (file := value.rpartition("/")[2]):
        return file
    if "sharding" not in reading.given:
        reading.check_set(name, "{sharding=zero3}")
    return reading.text(name)


DEEPSPEED = Trainer(
    "DeepSpeed",
    lambda values: any(
        key.startswith(
            (
                "zero_optimization.",
                "train_micro_batch_size_per_gpu",
                "zero_allow_untested",
                "bf16.enabled",
                "fp16.enabled",
            )
        )
        for key in values
    ),
    _derive,
    tables=("deepspeed",),
)
