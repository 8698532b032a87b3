"""Options that trainers and launchers have, but a command does not: what the error about one says to write instead."""

from __future__ import annotations

import difflib
import re
from collections.abc import Iterable

import click

from paceline.cli.usage import UsageError, called
from paceline.errors import InvalidArgumentError

_ZERO = ("--sharding zero1, zero2 or zero3",)
_RANKS = ("--gpus N, all of them together", "-np N, all ranks together", "--workers N, all ranks together")
_PER_NODE = (
    "--gpus N, all of them together, and --gpus-per-node N",
    "-np N on this machine, or --hosts a:8,b:8 with the ranks of each host",
    *_RANKS,
)
_NODES = (
    "--gpus N, all of them together, and --gpus-per-node N",
    "--hosts a:8,b:8, with the ranks of each host",
    *_RANKS,
)
_HOSTS = ("--hosts a:8,b:8: one command starts the ranks of all hosts",)
_SIZES = "the sizes in the first word, as in allreduce:1MB-1GB"
_MODEL = "the model as the first word"
_TAKES = {_SIZES: ("simulate",), _MODEL: ("simulate", "advise", "models", "explore")}
"""The commands whose first word that is."""
_SCRIPTS = "{command} … -- python train.py {option} (an option of the script)"

# Names as other programs spell them (torchrun, accelerate, DeepSpeed, Megatron, torchtitan, Trainer, Lightning,
# nccl-tests, mpirun, srun), without dashes in front; and what to write here. Of several, the first whose options the
# command has.
_MEANT: dict[str, tuple[str, ...]] = {
    "zero zero-stage deepspeed": _ZERO,
    "zero1 zero-1 use-distributed-optimizer use-zero1": ("--sharding zero1",),
    "zero2 zero-2": ("--sharding zero2",),
    "zero3 zero-3 full-shard": ("--sharding zero3",),
    "fsdp fsdp2 use-fsdp use-torch-fsdp2 fsdp-sharding-strategy": ("--sharding zero3, or hsdp for its hybrid",),
    "hsdp hybrid-shard data-parallel-replicate-degree": ("--sharding hsdp",),
    "ddp": ("--sharding none",),
    "world-size num-gpus n-gpus ngpus gpu-count total-gpus num-processes nproc nprocs n-procs num-procs num-ranks"
    " nranks ntasks np n g dp dp-size data-parallel data-parallel-size data-parallel-shard-degree ranks": _RANKS,
    "nproc-per-node gpus-per-node num-gpus-per-node ntasks-per-node devices-per-node npernode ppn ranks-per-node"
    " devices gpus": _PER_NODE,
    "nodes nnodes num-nodes n-nodes num-machines": _NODES,
    "standalone": ("-np N",),
    "master-addr node-rank machine-rank rdzv-endpoint rdzv-backend rdzv-id main-process-ip": _HOSTS,
    "master-port main-process-port": ("--port 29500",),
    "machinefile host-file": ("--hostfile FILE",),
    "max-restarts": ("--elastic --reset-limit N",),
    "tee redirects log-dir": ("--output-dir DIR",),
    "tp tp-size tp-degree tensor-model-parallel-size tensor-parallel-size tensor-parallel-degree": (
        "--tensor-parallel N",
    ),
    "pp pp-size pp-degree pipeline-model-parallel-size pipeline-parallel-size pipeline-parallel-degree": (
        "--pipeline-parallel N",
    ),
    "ep ep-size expert-model-parallel-size expert-parallel-size expert-parallel-degree": ("--expert-parallel N",),
    "cp cp-size context-parallel-size context-parallel-degree sp sequence-parallel-size": ("--context-parallel N",),
    "vpp virtual-pipeline-model-parallel-size num-virtual-stages": ("--virtual-stages N",),
    "num-microbatches pipeline-parallel-microbatches n-microbatches": ("--microbatches N", "--accumulate N"),
    "bs batch batch-size micro-batch-size micro-batch mbs per-device-train-batch-size per-gpu-batch-size"
    " per-device-batch-size train-micro-batch-size-per-gpu local-batch-size": (
        "--batch N, the samples of a pass of one rank",
        "--batch-size N",
    ),
    "global-batch global-batch-size gbs train-batch-size total-batch-size": (
        "--global-batch N",
        "--batch N and --accumulate N",
    ),
    "gradient-accumulation-steps gradient-accumulation grad-accum grad-accumulation grad-accum-steps grad-acc"
    " accumulate-grad-batches gas": ("--accumulate N",),
    "seq-len seq-length sequence-length sequence max-seq-len max-seq-length max-sequence-length max-length"
    " max-position-embeddings model-max-length context-length context block-size cutoff-len": ("--seq N",),
    "precision mixed-precision amp torch-dtype": ("--dtype bf16, fp16, fp32 or tf32",),
    "bf16": ("--dtype bf16", "--dtype bfloat16"),
    "fp16 half": ("--dtype fp16", "--dtype float16"),
    "fp8 fp8-format": ("--dtype fp8",),
    "tf32": ("--dtype tf32",),
    "fp32": ("--dtype fp32", "--dtype float32"),
    "activation-checkpointing activation-checkpoint gradient-checkpointing recompute recompute-activations"
    " recompute-granularity ac ac-mode": ("--checkpointing full or selective",),
    "compile torch-compile use-compile compile-model": ("--kernels compiled",),
    "flash-attn flash-attention use-flash-attn attn attn-implementation attention-backend sdpa": (
        "--attention flash or unfused",
    ),
    "optim optimizer-type": ("--optimizer adam, sgd or momentum",),
    "price-per-hour price-per-gpu price-per-gpu-hour gpu-price hourly-price cost cost-per-hour cost-per-gpu-hour": (
        "--price 2.50, for a GPU and an hour",
    ),
    "gpu-type gpu-model gpu-name gpu accelerator accelerator-type hardware": ("--gpu h100",),
    "gpu-memory vram gpu-mem": ("--memory 80GB",),
    "bw net-bw network-bandwidth net-bandwidth link-bandwidth bandwidth-gbps": (
        "--bandwidth 400Gbps",
        "--bandwidth 500Mbps",
    ),
    "net-latency network-latency alpha": ("--latency 5us",),
    "format output-format out-format": ("--json or --csv", "--json"),
    "csv": ("--json",),
    "output out o output-file out-file outfile save save-path": (
        "-o FILE",
        "--export FILE",
        "--json > FILE",
        "--output-dir DIR",
    ),
    "output-dir out-dir": ("-o FILE", "--plots DIR", "--json > FILE"),
    "model model-name model-name-or-path model-path model-id arch": (
        "the model as the first word, or --config FILE",
        _MODEL,
        "--trace resnet-50",
    ),
    "b minbytes e maxbytes f stepfactor": (_SIZES,),
    "steps num-steps max-steps num-iterations num-iters iters train-iters": (
        "--iterations N",
        "--num-batches N",
        "--repeats N",
    ),
    "warmup-steps warmup-iters": ("--num-warmup-batches N", "--warmup N"),
    "bucket-cap-mb bucket-cap ddp-bucket-cap-mb ddp-bucket-size fusion-threshold fusion-threshold-mb bucket": (
        "--bucket-size 25MiB",
    ),
    "gradient-compression fp16-allreduce comm-hook ddp-comm-hook": ("--compression fp16",),
    "grad-reduce-dtype mixed-precision-reduce": ("--reduce-dtype fp32",),
    "timeline-filename chrome-trace profile": ("--timeline FILE",),
}
_ALIKE = 0.8
"""As alike as `--bandwith` and `--bandwidth`, and not as `--bw` and `--jobs`."""
_BY_NAME = {name: ours for names, ours in _MEANT.items() for name in names.split()}
_FORECASTS = ("simulate", "advise")
"""Commands with many options, which others do not have."""
_OPTION = re.compile(r"(?<![\w-])(--?[a-z][a-z-]*)(?: ([a-z0-9][^ ]*?))?(?=[,: ]|$)")
"""An option and its value; a placeholder is in capitals."""


def meant(error: click.NoSuchOption) -> UsageError:
    """Return the error about an option that a command does not have, with what to write instead where it is known."""
    remedy = None if error.ctx is None else _instead(error, error.ctx)
    return UsageError(f"unknown option {error.option_name}", error.ctx, remedy=remedy)


def _instead(error: click.NoSuchOption, ctx: click.Context) -> str:
    """Return what to write instead of an option."""
    name = error.option_name.lower().replace("_", "-").lstrip("-")
    command, known = ctx.command, _options(ctx.command)
    if f"--{name}" in known:
        return f"--{name}"
    if instead := _of_command(name, command) or _near(name, known):
        return instead
    path = called(ctx)
    if not isinstance(command, click.Group) and not ctx.allow_interspersed_args:  # A script has its own options.
        return _SCRIPTS.format(command=path, option=error.option_name)
    root = ctx.find_root()
    for other in _FORECASTS:
        theirs = root.command.get_command(root, other) if isinstance(root.command, click.Group) else None
        if theirs is not None and (
            ours := f"--{name}" if f"--{name}" in _options(theirs) else _of_command(name, theirs)
        ):
            return f"paceline {other} … {ours}"
    return f"{path} --help (lists the options)"


def _of_command(name: str, command: click.Command) -> str | None:
    """Return what to write in this command for another program's option."""
    known = _options(command)
    for ours in _BY_NAME.get(name, ()):
        takes = next((commands for words, commands in _TAKES.items() if ours.startswith(words)), None)
        if (takes is None or command.name in takes) and all(
            option in known and _accepts(known[option], value) for option, value in _OPTION.findall(ours)
        ):
            return ours
    return None


def _accepts(option: click.Parameter, value: str) -> bool:
    """Return whether an option has this value, which may be a word of the sentence after an option without values."""
    if not value or (isinstance(option, click.Option) and option.is_flag):
        return True
    try:
        option.type.convert(value, option, None)
    except (InvalidArgumentError, click.BadParameter):
        return False
    return True


def _near(name: str, known: Iterable[str]) -> str | None:
    """Return the option that is so typed but for a slip, or the only one that begins so."""
    long = [option for option in sorted(known) if option.startswith("--") and len(name) > 2]
    begun = [option for option in long if option.startswith(f"--{name}")]
    near = begun if len(begun) == 1 else difflib.get_close_matches(f"--{name[:80]}", long, 1, _ALIKE)
    return next(iter(near), None)


def _options(command: click.Command) -> dict[str, click.Parameter]:
    names = {name: one for one in command.params for name in (*one.opts, *one.secondary_opts)}
    return {name: one for name, one in names.items() if name.startswith("-")}
