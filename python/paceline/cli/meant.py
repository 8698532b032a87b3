"""What is meant by options that do not exist here but do in trainers and launchers: an error about one names ours."""

from __future__ import annotations

import click

# By option: ours, and how to write it. Those of several commands come first.
_MEANT: dict[str, tuple[tuple[str, str], ...]] = {
    "--fsdp": (("--sharding", "--sharding zero3, or hsdp for its hybrid"),),
    "--fsdp2": (("--sharding", "--sharding zero3, or hsdp for its hybrid"),),
    "--zero": (("--sharding", "--sharding zero1, zero2 or zero3"),),
    "--zero-stage": (("--sharding", "--sharding zero1, zero2 or zero3"),),
    "--deepspeed": (("--sharding", "--sharding zero1, zero2 or zero3"),),
    "--ddp": (("--sharding", "--sharding none"),),
    "--nodes": (
        ("--gpus", "--gpus N, all of them together, and --gpus-per-node"),
        ("--hosts", "--hosts a:8,b:8, with the ranks of each host"),
        ("--workers", "--workers N, all ranks together"),
    ),
    "--dp": (("--gpus", "--gpus N, all of them together"),),
    "--data-parallel": (("--gpus", "--gpus N, all of them together"),),
    "--tp": (("--tensor-parallel", "--tensor-parallel N"),),
    "--pp": (("--pipeline-parallel", "--pipeline-parallel N"),),
    "--ep": (("--expert-parallel", "--expert-parallel N"),),
    "--cp": (("--context-parallel", "--context-parallel N"),),
    "--micro-batch-size": (("--batch", "--batch N, the samples of a pass of one rank"),),
    "--mbs": (("--batch", "--batch N, the samples of a pass of one rank"),),
    "--batch-size": (("--batch", "--batch N, the samples of a pass of one rank"),),
    "--global-batch-size": (("--global-batch", "--global-batch N"), ("--accumulate", "--batch and --accumulate")),
    "--gbs": (("--global-batch", "--global-batch N"), ("--accumulate", "--batch and --accumulate")),
    "--gradient-accumulation-steps": (("--accumulate", "--accumulate N"),),
    "--seq-len": (("--seq", "--seq N"),),
    "--seq-length": (("--seq", "--seq N"),),
    "--sequence-length": (("--seq", "--seq N"),),
    "--precision": (("--dtype", "--dtype bf16, fp16, fp32, tf32 or fp8"),),
    "--bf16": (("--dtype", "--dtype bf16"),),
    "--fp16": (("--dtype", "--dtype fp16"),),
    "--activation-checkpointing": (("--checkpointing", "--checkpointing full or selective"),),
    "--gradient-checkpointing": (("--checkpointing", "--checkpointing full or selective"),),
    "--recompute": (("--checkpointing", "--checkpointing full or selective"),),
    "--compile": (("--kernels", "--kernels compiled"),),
    "--model": (("--config", "the model as the first word, or --config FILE"),),
}
_SAME = {"--nnodes": "--nodes", "--num-nodes": "--nodes", "--num-machines": "--nodes", "--num_nodes": "--nodes"}


def meant(error: click.NoSuchOption) -> str | None:
    """Return what to write instead of an option that another program has; None if nothing is known."""
    name = error.option_name.replace("_", "-")
    if error.ctx is None:
        return None
    known = {option for parameter in error.ctx.command.params for option in parameter.opts}
    ours = next((how for option, how in _MEANT.get(_SAME.get(name, name), ()) if option in known), None)
    return None if ours is None else f"No such option '{error.option_name}'; write {ours}"
