"""From what users type to a workload: `llama-3-8b@h100:seq=8192,batch=2`, or a name or config.json with options."""

from __future__ import annotations

from pathlib import Path
from typing import Any, get_args

from paceline._internal.files import NO_SUCH_FILE
from paceline._internal.nearest import alike, did_you_mean, nearest
from paceline._internal.units import binary_count
from paceline.catalog import names
from paceline.catalog.builtin_names import built_in_trace, trace_names
from paceline.catalog.gpus import Hardware, all_hardware, find_hardware
from paceline.catalog.models.config import Config, built_in_configs, find_config, is_config, read_config
from paceline.catalog.models.families import model_of
from paceline.catalog.models.layers import Model
from paceline.catalog.models.pipeline import can_be_cut
from paceline.catalog.models.roofline import Links
from paceline.catalog.models.workload import Workload
from paceline.errors import InvalidArgumentError

_PARALLEL = (
    "tensor_parallel",
    "pipeline_parallel",
    "microbatches",
    "virtual_stages",
    "expert_parallel",
    "context_parallel",
)
OPTIONS = ("gpu", "seq", "batch", "dtype", "checkpointing", "attention", "kernels", "optimizer", *_PARALLEL)
"""Settings that make a workload of a model."""
_IN_WORDS = OPTIONS[1 : -len(_PARALLEL)]
"""Options in a word: the parallel ones change the cluster, too, which a word does not know."""
ONLY_MODELS = ("gpu", "seq", "checkpointing", "attention", "kernels", *_PARALLEL)
"""Those that have no effect on a recording."""
_PRECISIONS = {"bfloat16": "bf16", "float16": "fp16", "float32": "fp32"}
_LONGEST = 2**24


def find_workload(source: object, *, default_gpu: str | None = None, **given: Any) -> Workload | None:  # noqa: ANN401
    """Return the workload that a word or a file stands for; None if it is not a model.

    Args:
        source: `NAME`, `NAME@GPU` or `NAME@GPU:OPTION=VALUE,…`, or a config.json, likewise.
        default_gpu: The GPU of a model that names none, such as the cluster's.
        **given: `OPTIONS`; None counts as not given. Those in `source` and those given may not contradict.

    Raises:
        InvalidArgumentError: The model has no GPU, an option is unknown or wrong, or the configuration is malformed.
    """
    if not isinstance(source, str | Path):
        return None
    named, own = split_word(str(source))
    options = _merged(str(source), own, {name: value for name, value in given.items() if value is not None})
    config = _config_of(named)
    if config is None:
        if not own:
            return None
        raise unknown_workload(named)
    if "gpu" not in options:
        if is_recorded(named):
            return None
        if default_gpu is not None:
            options["gpu"] = default_gpu
    if "gpu" not in options:
        known = ", ".join(device.name for device in all_hardware())
        raise InvalidArgumentError(
            f"{config.name} is a configuration, not a recording: its times are computed for a GPU; name one, as in "
            f"{named}@h100 or --gpu h100 (known are {known})"
        )
    return workload_of(config, **options)


def config_named(word: str) -> Config:
    """Return a built-in configuration or a config.json; options after @ are ignored. Raises InvalidArgumentError."""
    named, _ = split_word(word)
    found = _config_of(named)
    if found is None and Path(named).suffix == ".json":
        return read_config(Path(named))
    if found is None:
        raise unknown_workload(named)
    return found


def workload_of(  # noqa: PLR0917
    config: Config,
    gpu: str | Hardware,
    seq: int | None = None,
    batch: int | None = None,
    dtype: str | None = None,
    checkpointing: str | None = None,
    attention: str | None = None,
    kernels: str | None = None,
    optimizer: str | None = None,
    tensor_parallel: int | None = None,
    pipeline_parallel: int | None = None,
    microbatches: int | None = None,
    virtual_stages: int | None = None,
    expert_parallel: int | None = None,
    context_parallel: int | None = None,
    links: Links | None = None,
) -> Workload:
    """Return the workload of a configuration on a GPU.

    Args:
        config: The configuration.
        gpu: Its name or device file.
        seq: Tokens of a sample; by default the model's context, at most 8,192.
        batch: Samples of a forward and backward pass, 1 by default.
        dtype: `fp8`, `bf16`, `fp16`, `tf32` or `fp32`; by default the GPU's 16-bit type.
        checkpointing: `none`, `selective` or `full`.
        attention: `flash` or `unfused`.
        kernels: `eager`, `fused` or `compiled`.
        optimizer: `adam`, `momentum` or `sgd`.
        tensor_parallel: GPUs that share every layer.
        pipeline_parallel: Stages of a pipeline.
        microbatches: Of an iteration, each of `batch` samples, with a pipeline.
        virtual_stages: Parts of the model that each stage has: the interleaved schedule.
        expert_parallel: GPUs that have a part each of the experts of every layer.
        context_parallel: Ranks that share every sample, each with a part of its tokens.
        links: Over which tokens come to experts, and keys and values to queries.

    Raises:
        InvalidArgumentError: A value is unknown, or contradicts the model or the GPU.
    """
    hardware = gpu if isinstance(gpu, Hardware) else find_hardware(gpu)
    precision = _PRECISIONS.get(dtype, dtype) if dtype else _default_precision(hardware)
    hardware.peak(_one_of(precision, get_args(names.Precision), "dtype"))
    model, tensor, pipeline = model_of(config, seq), tensor_parallel or 1, pipeline_parallel or 1
    _check_parallel(model, hardware, tensor, pipeline, microbatches=microbatches, parts=virtual_stages)
    expert = expert_parallel or 1
    if expert > 1:
        _check_experts(model, hardware, tensor, expert)
    if context_parallel is not None and context_parallel > 1:
        _check_context(model, hardware, context_parallel)
    return Workload(
        model,
        hardware,
        batch or 1,
        precision,
        _one_of(attention or "flash", get_args(names.Attention), "attention"),
        _one_of(checkpointing or "none", get_args(names.Checkpointing), "checkpointing"),
        _one_of(kernels or "fused", get_args(names.Kernels), "kernels"),
        _one_of({"adamw": "adam"}.get(optimizer or "", optimizer or "adam"), get_args(names.Optimizer), "optimizer"),
        tensor,
        pipeline,
        microbatches or 1,
        virtual_stages or 1,
        expert,
        context_parallel or 1,
        links,
        source=config.source or config.where,
    )


def unknown_workload(named: str) -> InvalidArgumentError:
    """Return the error for a name that is neither a model nor a recording."""
    if named.endswith(".json"):
        return InvalidArgumentError(f"{named:.200}: {NO_SUCH_FILE}")
    hint = did_you_mean(alike(named.rpartition("/")[2], list(built_in_configs())))
    return InvalidArgumentError(
        f"unknown model '{named[:80]}'{hint}; give a config.json, or a name that `paceline list models` lists"
    )


def _check_parallel(
    model: Model, hardware: Hardware, tensor: int, pipeline: int, *, microbatches: int | None, parts: int | None
) -> None:
    """Raise InvalidArgumentError if a model cannot be cut like this."""
    if tensor > 1:
        _check_nvlink(hardware, ", and tensor-parallel GPUs need one", "tensor_parallel")
    heads = {layer.attention.heads for layer in model.layers if layer.attention is not None}
    if any(count % tensor for count in heads):
        raise InvalidArgumentError(
            f"{tensor} does not divide the {min(heads)} attention heads of {model.name}", setting="tensor_parallel"
        )
    blocks = {layer.block for layer in model.layers if layer.block}
    if not can_be_cut(len(blocks), pipeline):
        raise InvalidArgumentError(
            f"{pipeline} stages are more than the {len(blocks)} blocks of {model.name}", setting="pipeline_parallel"
        )
    if pipeline > 1 and microbatches is None:
        raise InvalidArgumentError(
            f"needs the number of microbatches of an iteration, each of --batch samples: --microbatches {4 * pipeline}",
            setting="pipeline_parallel",
        )
    if pipeline == 1 and microbatches is not None:
        raise InvalidArgumentError(
            "has no effect without --pipeline-parallel; --accumulate makes several passes without one",
            setting="microbatches",
        )
    if parts is None or parts == 1:
        return
    if pipeline == 1:
        raise InvalidArgumentError("has no effect without --pipeline-parallel; leave it out", setting="virtual_stages")
    if not can_be_cut(len(blocks), pipeline * parts):
        raise InvalidArgumentError(
            f"{pipeline} stages of {parts} parts are more than the {len(blocks)} blocks of {model.name}",
            setting="virtual_stages",
        )
    if microbatches is not None and microbatches % pipeline:
        raise InvalidArgumentError(
            f"the interleaved schedule needs a multiple of the {pipeline} stages as microbatches, not {microbatches}; "
            f"give --microbatches {-(-microbatches // pipeline) * pipeline}",
            setting="virtual_stages",
        )


def _check_nvlink(hardware: Hardware, why: str, setting: str) -> None:
    """Raise InvalidArgumentError if a GPU has no NVLink; `why`: what for."""
    if hardware.bus_bandwidth is None:
        raise InvalidArgumentError(
            f"{hardware.title} has no NVLink{why}; leave it out, or give a device file with bus_bandwidth "
            "(`paceline list gpus NAME --json`)",
            setting=setting,
        )


def _check_experts(model: Model, hardware: Hardware, tensor: int, expert: int) -> None:
    """Raise InvalidArgumentError if a model's experts cannot be divided like this."""
    found = [tensor for tensor in model.tensors() if tensor.is_of_experts]
    if not found:
        raise InvalidArgumentError(f"has no effect on {model.name}, which has no experts", setting="expert_parallel")
    if found[0].shape[0] % expert:
        raise InvalidArgumentError(
            f"{expert} does not divide the {found[0].shape[0]} experts of {model.name}", setting="expert_parallel"
        )
    if expert % tensor:
        raise InvalidArgumentError(
            f"{expert} is not a multiple of the {tensor} tensor-parallel GPUs, each of which has a part of the experts",
            setting="expert_parallel",
        )
    _check_nvlink(hardware, ", over which tokens come to the experts of a node", "expert_parallel")


def _check_context(model: Model, hardware: Hardware, context: int) -> None:
    """Raise InvalidArgumentError if ranks cannot share a model's samples."""
    attentions = [layer.attention for layer in model.layers if layer.attention is not None]
    if model.family == "vit" or not all(one.exchanged for one in attentions):
        raise InvalidArgumentError(
            f"is not modeled for {model.name}: it is for models of text whose attention is within one sequence",
            setting="context_parallel",
        )
    if model.sequence % context:
        raise InvalidArgumentError(
            f"{context} does not divide the {model.sequence} tokens of a sample", setting="context_parallel"
        )
    _check_nvlink(hardware, ", over which keys and values are passed in a node", "context_parallel")


def is_recorded(name: str) -> bool:
    """Return whether there is a built-in recording of this name, too."""
    return built_in_trace(name) in trace_names()


def _default_precision(hardware: Hardware) -> str:
    return next(name for name in ("bf16", "fp16", "fp32") if name in hardware.peak_flops)


def _config_of(named: str) -> Config | None:
    found = find_config(named)
    if found is not None:
        return found
    try:
        path = Path(named)
        return read_config(path) if is_config(path) else None
    except (OSError, ValueError):  # too long, or contains a NUL
        return None


def split_word(text: str) -> tuple[str, dict[str, Any]]:
    """Return name and options of a word such as NAME@GPU:OPTION=VALUE. Raises InvalidArgumentError."""
    named, at, rest = text.rpartition("@")
    if not at or "/" in rest or is_file(text):
        return text, {}
    gpu, colon, pairs = rest.partition(":")
    if not gpu:
        raise InvalidArgumentError(f"'{text[:80]}' has no GPU after @; write {named}@h100")
    options: dict[str, Any] = {"gpu": gpu}
    for pair in pairs.split(",") if colon else []:
        option, equals, value = pair.partition("=")
        if option not in _IN_WORDS or not (equals and value):
            raise InvalidArgumentError(
                f"'{text[:80]}': '{pair[:40]}' is not an option; write OPTION=VALUE with {', '.join(_IN_WORDS)}"
            )
        if option in options:
            raise InvalidArgumentError(f"'{text[:80]}': {option} is given twice")
        options[option] = _whole(text, option, value) if option in ("seq", "batch") else value
    return named, options


def is_file(text: str) -> bool:
    """Return whether a word is the path of a file."""
    try:
        return Path(text).is_file()
    except (OSError, ValueError):  # too long, or contains a NUL
        return False


def _whole(text: str, option: str, value: str) -> int:
    number = binary_count(value)
    if number is None and value.isascii() and value.isdigit() and len(value) < 12:
        number = int(value)
    if not isinstance(number, int) or not 1 <= number <= _LONGEST:
        raise InvalidArgumentError(
            f"'{text[:80]}': {option}: '{value[:40]}' is not a whole number from 1 to {_LONGEST}"
        )
    return number


def _merged(text: str, own: dict[str, Any], given: dict[str, Any]) -> dict[str, Any]:
    for name, value in given.items():
        if name in own and own[name] != value:
            raise InvalidArgumentError(f"'{text[:80]}' says {own[name]}; give one of them", setting=name)
    return given | own


def _one_of(value: str, known: tuple[str, ...], setting: str) -> Any:  # noqa: ANN401 - a Literal
    if value not in known:
        near = nearest(value, list(known))
        every = f"one of {', '.join(known)}"
        hint = f"did you mean {near}? It is {every}" if near else f"it is {every}"
        raise InvalidArgumentError(f"'{value[:80]}' is unknown; {hint}", setting=setting)
    return value
