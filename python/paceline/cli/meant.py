"""Options that trainers and launchers have, but a command does not: what the error about one says to write instead."""

from __future__ import annotations

import difflib
import re
import shlex
from collections.abc import Iterable, Mapping, Sequence

import click

from paceline.cli.help_layout import Alias, examples
from paceline.cli.usage import UsageError, called
from paceline.errors import InvalidArgumentError

_RANKS = ("-np {4} (all ranks)", "--gpus {64} (all GPUs)", "--workers {64} (all ranks)")
_PER_NODE = (
    "--gpus 64 --gpus-per-node {8} (all GPUs, and those of a node)",
    "-np {8} (on this machine; on several, --hosts node1:8,node2:8)",
    *_RANKS,
)
_NODES = (
    "--gpus 64 --gpus-per-node 8 (all GPUs, and those of a node)",
    "--hosts node1:8,node2:8 (the ranks of each host)",
    *_RANKS,
)
_HOSTS = ("--hosts node1:8,node2:8 (one command starts the ranks of all hosts)",)
_SIZES = "allreduce:1MB-1GB (sizes are in the first word)"
_MODEL = "{llama-3-8b} (the model is the first word)"
_TAKES = {_SIZES: ("simulate",), _MODEL: ("simulate", "advise", "models", "explore")}
"""The commands whose first word that is."""

# Names as other programs spell them (torchrun, accelerate, DeepSpeed, Megatron, torchtitan, Trainer, Lightning,
# nccl-tests, mpirun, srun), without dashes in front; and what to write here. Of several, the first whose options the
# command has. In braces are values, which that of the option takes the place of, if it is accepted.
_MEANT: dict[str, tuple[str, ...]] = {
    "zero zero-stage deepspeed": ("--sharding zero{3} (zero1, zero2, zero3)",),
    "zero1 zero-1 use-distributed-optimizer use-zero1": ("--sharding zero1",),
    "zero2 zero-2": ("--sharding zero2",),
    "zero3 zero-3 full-shard": ("--sharding zero3",),
    "fsdp fsdp2 use-fsdp use-torch-fsdp2 fsdp-sharding-strategy": ("--sharding zero3 (hsdp is its hybrid)",),
    "hsdp hybrid-shard data-parallel-replicate-degree": ("--sharding hsdp",),
    "ddp": ("--sharding none",),
    "world-size num-gpus n-gpus ngpus gpu-count total-gpus num-processes nproc nprocs n-procs num-procs num-ranks"
    " nranks ntasks np n g dp dp-size data-parallel data-parallel-size data-parallel-shard-degree ranks": _RANKS,
    "nproc-per-node gpus-per-node num-gpus-per-node ntasks-per-node devices-per-node npernode ppn ranks-per-node"
    " devices gpus": _PER_NODE,
    "nodes nnodes num-nodes n-nodes num-machines": _NODES,
    "standalone": ("-np 4",),
    "master-addr node-rank machine-rank rdzv-endpoint rdzv-backend rdzv-id main-process-ip": _HOSTS,
    "master-port main-process-port": ("--port {29500}",),
    "machinefile host-file": ("--hostfile {hosts.txt}",),
    "max-restarts": ("--elastic --reset-limit {3}",),
    "tee redirects log-dir": ("--output-dir {logs}",),
    "tp tp-size tp-degree tensor-model-parallel-size tensor-parallel-size tensor-parallel-degree": (
        "--tensor-parallel {8}",
    ),
    "pp pp-size pp-degree pipeline-model-parallel-size pipeline-parallel-size pipeline-parallel-degree": (
        "--pipeline-parallel {8}",
    ),
    "ep ep-size expert-model-parallel-size expert-parallel-size expert-parallel-degree": ("--expert-parallel {8}",),
    "cp cp-size context-parallel-size context-parallel-degree sp sequence-parallel-size": ("--context-parallel {2}",),
    "vpp virtual-pipeline-model-parallel-size num-virtual-stages": ("--virtual-stages {2}",),
    "num-microbatches pipeline-parallel-microbatches n-microbatches": ("--microbatches {8}", "--accumulate {8}"),
    "bs batch batch-size micro-batch-size micro-batch mbs per-device-train-batch-size per-gpu-batch-size"
    " per-device-batch-size train-micro-batch-size-per-gpu local-batch-size": (
        "--batch {32} (per GPU and accumulation step)",
        "--batch-size {32}",
    ),
    "global-batch global-batch-size gbs train-batch-size total-batch-size": (
        "--global-batch {1024}",
        "--batch 4 --accumulate 4 (times the GPUs)",
    ),
    "gradient-accumulation-steps gradient-accumulation grad-accum grad-accumulation grad-accum-steps grad-acc"
    " accumulate-grad-batches gas": ("--accumulate {4}",),
    "seq-len seq-length sequence-length sequence max-seq-len max-seq-length max-sequence-length max-length"
    " max-position-embeddings model-max-length context-length context block-size cutoff-len": ("--seq {8192}",),
    "precision mixed-precision amp torch-dtype": ("--dtype {bf16} (bf16, fp16, tf32, fp32)",),
    "bf16": ("--dtype bf16", "--dtype bfloat16"),
    "fp16 half": ("--dtype fp16", "--dtype float16"),
    "fp8 fp8-format": ("--dtype fp8",),
    "tf32": ("--dtype tf32",),
    "fp32": ("--dtype fp32", "--dtype float32"),
    "activation-checkpointing activation-checkpoint gradient-checkpointing recompute recompute-activations"
    " recompute-granularity ac ac-mode": ("--checkpointing {full} (full, selective)",),
    "cuda-graph enable-cuda-graph external-cuda-graph cuda-graph-impl use-cuda-graph": ("--cuda-graphs",),
    "compile torch-compile use-compile compile-model": ("--kernels compiled",),
    "flash-attn flash-attention use-flash-attn attn attn-implementation attention-backend sdpa": (
        "--attention {flash} (flash, unfused)",
    ),
    "liger liger-kernel use-liger use-liger-kernel fused-linear-cross-entropy chunked-loss": ("--loss-chunks 8",),
    "activation-offloading offload-activations cpu-offload-activations": ("--checkpointing offload",),
    "optimizer-implementation optim-impl fused-optimizer": ("--optimizer-impl {fused} (fused, foreach, loop)",),
    "optim optimizer-type": ("--optimizer {adam} (adamw, adamw-8bit, paged-adamw-8bit, adafactor, lion, muon, sgd)",),
    "price-per-hour price-per-gpu price-per-gpu-hour gpu-price hourly-price cost cost-per-hour cost-per-gpu-hour": (
        "--price {2.50} (per GPU and hour)",
    ),
    "gpu-type gpu-model gpu-name gpu accelerator accelerator-type hardware": ("--gpu {h100}",),
    "gpu-memory vram gpu-mem": ("--memory {80GB}",),
    "bw net-bw network-bandwidth net-bandwidth link-bandwidth bandwidth-gbps": ("--bandwidth {400Gbps}",),
    "net-latency network-latency alpha": ("--latency {5us}",),
    "format output-format out-format": ("--json, or --csv", "--json"),
    "csv": ("--json",),
    "output out o output-file out-file outfile save save-path": (
        "-o {out.json}",
        "--export {out.json}",
        "--json > {out.json}",
        "--output-dir {logs}",
    ),
    "output-dir out-dir": ("-o {out.json}", "--plots {plots}", "--json > {out.json}"),
    "model model-name model-name-or-path model-path model-id arch": (
        "{llama-3-8b} (the model is the first word), or --config config.json",
        _MODEL,
        "--trace {resnet-50}",
    ),
    "b minbytes e maxbytes f stepfactor": (_SIZES,),
    "steps num-steps max-steps num-iterations num-iters iters train-iters": (
        "--iterations {10}",
        "--num-batches {30}",
        "--repeats {5}",
    ),
    "warmup-steps warmup-iters": ("--num-warmup-batches {3}", "--warmup {3}"),
    "bucket-cap-mb bucket-cap ddp-bucket-cap-mb ddp-bucket-size fusion-threshold fusion-threshold-mb bucket": (
        "--bucket-size {25MiB}",
    ),
    "gradient-compression fp16-allreduce comm-hook ddp-comm-hook": ("--compression {fp16}",),
    "grad-reduce-dtype mixed-precision-reduce": ("--reduce-dtype {fp32}",),
    "timeline-filename chrome-trace profile": ("--timeline {run.json}",),
}
_ALIKE = 0.8
"""As alike as `--bandwith` and `--bandwidth`, and not as `--bw` and `--jobs`."""
_BY_NAME = {name: ours for names, ours in _MEANT.items() for name in names.split()}
_FORECASTS = ("simulate", "advise")
"""Commands with many options, which others do not have."""
_OPTION = re.compile(r"(?<![\w-])(--?[a-z][a-z-]*)(?: ([a-z0-9][^ ,]*))?(?=[, ]|$)")
"""An option and its value."""
_VALUE = re.compile(r"(?:(--?[a-z][a-z-]*) )?([a-z]*)\{([^}]*)\}")
"""An option, and its value in braces, which may begin with letters that stay."""


def meant(error: click.NoSuchOption) -> UsageError:
    """Return the error about an option that a command does not have, with what to write instead where it is known."""
    remedy = None if error.ctx is None else _instead(error, error.ctx)
    return UsageError(f"unknown option {error.option_name}", error.ctx, remedy=remedy)


def _instead(error: click.NoSuchOption, ctx: click.Context) -> str:
    """Return what to write instead of an option, with its value if that is accepted."""
    name = error.option_name.lower().replace("_", "-").lstrip("-")
    command, known = ctx.command, _options(ctx.command)
    if f"--{name}" in known:
        return f"--{name}"
    value, rest = _typed(error.option_name, getattr(error, "words", ()))
    if instead := _of_command(name, command, value) or _near(name, known):
        return instead
    path = called(ctx)
    if isinstance(command, click.Group):
        return _after_the_command(error, ctx, value, rest) or f"{path} --help (lists the options)"
    if not ctx.allow_interspersed_args:  # A script has its own options.
        is_of_script = "--" in rest or any(word.endswith((".py", ".sh")) for word in rest)
        begun = [path, *map(shlex.quote, rest)] if is_of_script else examples(command)[:1]
        return " ".join([*begun, error.option_name, *([value] if value else []), "(an option of the script)"])
    root = ctx.find_root()
    for other in _FORECASTS:
        theirs = root.command.get_command(root, other) if isinstance(root.command, click.Group) else None
        if theirs is None or theirs is command:
            continue
        same = f"--{name} {value}" if value else f"--{name}"
        if ours := same if f"--{name}" in _options(theirs) else _of_command(name, theirs, value):
            return " ".join(["paceline", other, *map(shlex.quote, _kept(rest, command, theirs)), ours])
    return f"{path} --help (lists the options)"


def _kept(words: Sequence[str], command: click.Command, other: click.Command) -> list[str]:
    """Return the words of a command line without the options, and their values, that another command does not have."""
    kept: list[str] = []
    own, theirs = _options(command), _options(other)
    is_value_of_dropped = False
    for word in words:
        name = word.partition("=")[0]
        is_dropped = name in own and name not in theirs
        if not is_dropped and not is_value_of_dropped:
            kept.append(word)
        is_value_of_dropped = is_dropped and "=" not in word and not getattr(own[name], "is_flag", False)
    return kept


def _after_the_command(error: click.NoSuchOption, ctx: click.Context, value: str, rest: list[str]) -> str | None:
    """Return the command line with an option behind its command, if that has it: `paceline --json list models`."""
    name = error.option_name
    for given, words in (("", [value, *rest] if value else rest), (value, rest)):
        option = _options(_leaf(ctx.command, words, ctx)).get(name)
        if option is not None and bool(given) != bool(getattr(option, "is_flag", False)):
            return " ".join([called(ctx), *map(shlex.quote, words), name, *([shlex.quote(given)] if given else [])])
    return None


def _leaf(command: click.Command, words: Sequence[str], ctx: click.Context) -> click.Command:
    """Return the command that these words name."""
    for word in words:
        inner = command.get_command(ctx, word) if isinstance(command, click.Group) else None
        if inner is None:
            break
        command = inner
    return command


def _typed(name: str, words: Sequence[str]) -> tuple[str, list[str]]:
    """Return the value of an option as it was typed, and the other words."""
    for place, word in enumerate(words):
        head, equals, value = word.partition("=")
        if head != name and not (len(name) == 2 and head.startswith(name)):
            continue
        following = words[place + 1 : place + 2]
        if equals or not following or following[0].startswith("-"):
            return value, [*words[:place], *words[place + 1 :]]
        return following[0], [*words[:place], *words[place + 2 :]]
    return "", [*words]


def _of_command(name: str, command: click.Command, value: str) -> str | None:
    """Return what to write in this command for another program's option."""
    known = _options(command)
    for template in _BY_NAME.get(name, ()):
        takes = next((commands for words, commands in _TAKES.items() if template.startswith(words)), None)
        if takes is not None and command.name not in takes:
            continue
        ours = _VALUE.sub(lambda match: _filled(match, value, known, command), template)
        used = _OPTION.findall(re.sub(r"[()]", " ", ours))
        if all(option in known and _accepts(known[option], given, command) for option, given in used):
            return ours
    return None


def _filled(match: re.Match[str], value: str, known: Mapping[str, click.Parameter], command: click.Command) -> str:
    """Return an option with the value that was typed, if it takes that, or else with the one in braces."""
    option, begin, usual = match[1] or "", match[2], match[3]
    word = begin + value
    taken = value and not set(value) & {*" ()"} and (not option or _accepts(known.get(option), word, command))
    return f"{option} {word if taken else begin + usual}".lstrip()


def _accepts(option: click.Parameter | None, value: str, command: click.Command) -> bool:
    """Return whether an option of a command has this value."""
    from paceline.settings.table import SETTINGS

    if option is None:
        return False
    if not value or (isinstance(option, click.Option) and option.is_flag):
        return True
    setting = SETTINGS.get(option.of if isinstance(option, Alias) else option.name or "")
    try:
        if setting is not None and command.name in setting.uses:
            setting.check(value, place=command.name)
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
