"""The commands `paceline list models` and `gpus`: configurations and devices, with sources, and what one costs."""

from __future__ import annotations

import json
from typing import TYPE_CHECKING, Any

import click

from paceline._internal import units
from paceline._internal.console import Column, put, render, say, width, wrapped
from paceline.cli import param_types as types
from paceline.cli.command import Command
from paceline.cli.completion import complete
from paceline.errors import naming
from paceline.settings.table import of_place

if TYPE_CHECKING:
    from paceline import _core
    from paceline.catalog.gpus import Hardware
    from paceline.catalog.models.config import Config
    from paceline.catalog.models.workload import Workload

_json = click.option("--json", "as_json", is_flag=True, help="Print JSON.")


_SECTIONS = {
    "Basic options": ("gpu", "batch", "seq", "gpus", "as_json"),
    "Details": ("dtype", "checkpointing", "attention", "kernels", "constants"),
}


@click.command(cls=Command, sections=_SECTIONS)
@click.argument("name", required=False, shell_complete=complete)
@types.options("models", *(one.name for one in of_place("models")))
@click.option("--gpus", type=types.COUNT, metavar="N", help="GPUs to shard over, for the memory of each sharding.")
@click.option("--constants", is_flag=True, help="Print the efficiencies by operator class, with sources.")
@_json
def models(*, name: str | None, gpus: int | None, constants: bool, as_json: bool, **options: Any) -> None:  # noqa: ANN401
    """List the built-in models, or show NAME: a built-in model or a Hugging Face config.json.

    With --gpu, also its time and memory on that GPU, without communication, as in paceline simulate.

    \b
    paceline list models llama-3-8b
    paceline list models llama-3-8b --gpu h100 --seq 8192 --batch 2 --gpus 64
    """
    given = {key: value for key, value in options.items() if value is not None}
    if constants and (name is not None or given or gpus is not None):
        raise click.UsageError("--constants: takes no model and no options but --json")
    if constants:
        _print_constants(as_json=as_json)
        return
    if name is None:
        if given or gpus is not None:
            raise click.UsageError("name a model: paceline list models llama-3-8b --gpu h100")
        _print_list(as_json=as_json)
        return
    from paceline.catalog.models.families import model_of
    from paceline.catalog.models.spec import config_named, find_workload

    with naming(types.flags("models", given)):
        config = config_named(name)
        workload = find_workload(name, **given) if "gpu" in given or "@" in name else None
        if workload is None and set(given) - {"seq"}:
            raise click.UsageError(f"--{min(set(given) - {'seq'})}: has no effect without --gpu")
        if workload is None and gpus is not None:
            raise click.UsageError("--gpus: has no effect without --gpu")
        model = model_of(config, given.get("seq")) if workload is None else workload.model
    entry = _entry(config) | {"seq": model.sequence, "flops_per_sample": model.flops}
    if model.active_parameters != model.parameters:
        entry["active_parameters"] = model.active_parameters
    if workload is not None:
        entry["on_gpu"] = _on_gpu(workload, gpus or 1)
    if as_json:
        put(json.dumps(entry | {"notes": list(model.notes), "config": dict(config.fields)}, indent=1))
        return
    lines = [f"{config.name}: {model.family}, {_count(model.parameters)} parameters ({model.parameters:,})"]
    if "active_parameters" in entry:
        lines.append(f"a token uses {_count(model.active_parameters)} of them")
    lines.append(
        f"{units.short(model.flops / 1e12)} TFLOPs per sample of {model.sequence} tokens, forward and backward"
    )
    if not config.source:
        lines.append(f"with the head of {model.architecture}")
    lines += wrapped(f"from {config.source or config.where}", width())
    lines += [line for note in model.notes for line in wrapped(f"note: {note}", width())]
    if workload is not None:
        lines += ["", *_text(workload, entry["on_gpu"])]
    say(lines)


def _entry(config: Config) -> dict[str, Any]:
    from paceline.catalog.models.families import model_of

    model = model_of(config)
    blocks = {layer.block for layer in model.layers if layer.block}
    return {
        "name": config.name,
        "model_type": config.kind,
        "architecture": model.architecture,
        "parameters": model.parameters,
        "layers": len(blocks),
        "hidden": next(layer.hidden for layer in model.layers if layer.block),
        "context": model.sequence,
        "source": config.source or config.where,
    }


def _print_list(*, as_json: bool) -> None:
    from paceline.catalog.models.config import built_in_configs
    from paceline.catalog.models.families import MODEL_TYPES

    entries = [_entry(config) for config in built_in_configs().values()]
    if as_json:
        put(json.dumps(entries, indent=1))
        return
    columns = [Column("name", left=True), Column("family", left=True), Column("parameters"), Column("layers")]
    columns += [Column("hidden"), Column("tokens")]
    rows = [
        [
            str(entry["name"]),
            str(entry["model_type"]),
            _count(entry["parameters"]),
            *(str(entry[key]) for key in ("layers", "hidden", "context")),
        ]
        for entry in entries
    ]
    say(render(columns, [rows], highlight_first=False))
    known = f"A config.json is a model, too, if its model_type is one of {', '.join(MODEL_TYPES)}."
    say(["", *wrapped(f"tokens: of a sequence, unless --seq says otherwise. {known}", width())])


def _print_constants(*, as_json: bool) -> None:
    from paceline.catalog.efficiency import all_efficiencies
    from paceline.cli.catalog import constants_table

    constants = list(all_efficiencies().values())
    put(json.dumps([vars(constant) for constant in constants], indent=1)) if as_json else say(
        constants_table(constants)
    )


_KINDS = ("parameters", "gradients", "optimizer", "gathered", "communication", "activations")


def _memory(workload: Workload, sharding: str, gpus: int) -> _core.Memory:
    """Return the memory of the plan that `paceline simulate` makes by default."""
    from paceline.catalog.builtin import load_cluster
    from paceline.catalog.libraries import DEFAULT, find_library
    from paceline.forecast.lowering import native
    from paceline.forecast.scenario import Scenario

    trace, size = workload.trace(), int(find_library(DEFAULT).required("bucket_size"))
    scenario = Scenario.of(
        trace, load_cluster(None), "native", gpus, sharding=sharding, optimizer=workload.optimizer, bucket_size=size
    )
    return native(scenario).memory([trace])


def _on_gpu(workload: Workload, gpus: int) -> dict[str, Any]:
    """Return time and memory on a GPU, as `--json` prints them."""
    compute = workload.compute_s
    rate = workload.batch / compute
    shardings = ("none", "zero1", "zero2", "zero3") if gpus > 1 else ("none",)
    return {
        "gpu": workload.hardware.name,
        "dtype": workload.precision,
        "batch": workload.batch,
        "checkpointing": workload.checkpointing,
        "attention": workload.attention,
        "kernels": workload.kernels,
        "forward_s": workload.forward_s,
        "backward_s": workload.backward_s,
        "optimizer_s": workload.optimizer_s,
        "samples_per_s": rate,
        **workload.figures(rate, 1),
        "hfu": rate * workload.hardware_flops / workload.hardware.peak(workload.precision),
        "memory_bytes": workload.hardware.memory_bytes,
        "gpus": gpus,
        "memory": [
            {
                "sharding": sharding,
                **{kind: getattr(memory, f"{kind}_bytes") or 0 for kind in _KINDS},
                "total": memory.peak_bytes,
                "fits": memory.peak_bytes <= workload.hardware.memory_bytes,
            }
            for sharding in shardings
            for memory in [_memory(workload, sharding, gpus)]
        ],
    }


def _text(workload: Workload, found: dict[str, Any]) -> list[str]:
    hardware = workload.hardware
    times = ", ".join(f"{name} {units.duration(found[f'{name}_s'])}" for name in ("forward", "backward", "optimizer"))
    rate = f"{units.digits(found['samples_per_s'])} samples/s"
    if "tokens_per_s_per_gpu" in found:
        rate = f"{units.digits(found['tokens_per_s_per_gpu'])} tokens/s"
    made = f"{found['dtype']}, {found['attention']} attention, {found['kernels']} kernels"
    if found["checkpointing"] != "none":
        made += f", {found['checkpointing']} checkpointing"
    lines = wrapped(f"On one {hardware.title}, batch {found['batch']}, {made}:", width())
    lines += wrapped(f"{times}; {rate}, MFU {units.percent(found['mfu'])}, without communication.", width())
    kinds = (*_KINDS, "total")
    columns = [Column("sharding", left=True), *(Column(f"{kind}\nGB") for kind in kinds), Column("fits", left=True)]
    from paceline.forecast.sharded import TIGHT

    tight = TIGHT * hardware.memory_bytes
    rows = [
        [
            row["sharding"],
            *(units.digits(row[kind] / 1e9, 3) for kind in kinds),
            "no" if not row["fits"] else "tightly" if row["total"] > tight else "yes",
        ]
        for row in found["memory"]
    ]
    capacity = f"Memory of one GPU, {units.size(hardware.memory_bytes)}"
    shared = f", {found['gpus']} GPUs" if found["gpus"] > 1 else ""
    return [*lines, "", f"{capacity}{shared}:", "", *render(columns, [rows], highlight_first=False)]


def _count(parameters: int) -> str:
    return f"{units.digits(parameters / 1e9)} B" if parameters >= 1e9 else f"{units.digits(parameters / 1e6)} M"


@click.command(cls=Command)
@click.argument("name", required=False, shell_complete=complete)
@_json
def gpus(*, name: str | None, as_json: bool) -> None:
    """List the GPU types for --gpu, or show NAME: a GPU type or a device file.

    \b
    paceline list gpus h100
    """
    from paceline.catalog.gpus import PRECISIONS, all_hardware, find_hardware
    from paceline.catalog.nodes import slot_bps

    shown = [find_hardware(name)] if name else list(all_hardware())
    if as_json:
        documents = [_document(device) for device in shown]
        put(json.dumps(documents[0] if name else documents, indent=1))
        return
    columns = [Column("name", left=True), *(Column(f"{one}\nTFLOP/s") for one in PRECISIONS)]
    columns += [Column("memory\nGB"), Column("bandwidth\nGB/s"), Column("NVLink\nGB/s"), Column("PCIe\nGB/s")]
    rows = [
        [
            device.name,
            *(_tera(device.peak_flops.get(one)) for one in PRECISIONS),
            units.short(device.memory_bytes / 1e9),
            units.short(device.memory_bandwidth / 1e9, 4),
            "-" if device.link_bandwidth is None else units.short(device.link_bandwidth / 1e9),
            "-" if (slot := slot_bps(device)) is None else units.short(slot / 8e9),
        ]
        for device in shown
    ]
    say(render(columns, [rows], highlight_first=False))
    if name:
        notes = [text for device in shown for text in device.sources]
    else:
        others = units.listed([f"{one} is {device.name}" for device in shown for one in device.aliases])
        notes = [
            "Dense peaks; the memory that programs get; NVLink of one GPU, each way, or else what NCCL gets of its "
            "slot of PCI Express. Sources: paceline list gpus NAME.",
            f"Other names: {others}.",
        ]
    say(["", *(line for text in notes for line in wrapped(text, width(), "    "))])


def _tera(value: float | None) -> str:
    return "-" if value is None else units.short(value / 1e12, 4)


def _document(device: Hardware) -> dict[str, Any]:
    """Return the device file, which --gpu takes."""
    fields = {"format": "paceline-device", "version": 1, **vars(device)}
    fields |= {
        "peak_flops": dict(device.peak_flops),
        "sources": list(device.sources),
        "aliases": list(device.aliases),
        "like": list(device.like),
    }
    return {key: value for key, value in fields.items() if value not in (None, [])}
