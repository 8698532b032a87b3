"""The commands `paceline list models` and `gpus`: configurations and devices, with sources, and what one costs."""

from __future__ import annotations

import json
from dataclasses import replace
from typing import TYPE_CHECKING, Any

import click

from paceline._internal import units
from paceline._internal.block import Fact, block, headline, notes
from paceline._internal.console import Column, put, render, say, width, wrapped
from paceline.cli import param_types as types
from paceline.cli.command import Command
from paceline.cli.listed import chosen, words
from paceline.cli.usage import UsageError
from paceline.errors import naming
from paceline.settings.table import SETTINGS, of_place

if TYPE_CHECKING:
    from collections.abc import Sequence

    from paceline.catalog.calibration import Calibration
    from paceline.catalog.gpus import Hardware
    from paceline.catalog.models.config import Config
    from paceline.catalog.models.workload import Workload
    from paceline.forecast.sharded import Memory

_json = click.option("--json", "as_json", is_flag=True, help="Print JSON.")


_SECTIONS = {
    "Basic options": ("gpu", "batch", "seq", "gpus", "as_json"),
    "Details": (
        *("power_limit", "dtype", "precision", "checkpointing", "attention", "kernels", "cuda_graphs"),
        *("optimizer", "optimizer_impl", "moment_dtype", "loss_chunks", "loss_dtype"),
        *("lora", "dora", "lora_dropout", "quantize"),
        *("modules_to_save", "freeze", "constants"),
    ),
}


@click.command(cls=Command, sections=_SECTIONS)
@words
@types.options("models", *(one.name for one in of_place("models")))
@click.option("--gpus", type=types.COUNT, metavar="N", help="GPUs to shard over, for the memory of each sharding.")
@click.option("--constants", is_flag=True, help="Print the efficiencies by operator class, with sources.")
@_json
def models(*, name: tuple[str, ...], gpus: int | None, constants: bool, as_json: bool, **options: Any) -> None:  # noqa: ANN401
    """List the built-in models, or show NAME: a built-in model or a Hugging Face config.json.

    Other words filter the list by parts of names and families. With --gpu, also its time and memory on that GPU,
    without communication, as in paceline simulate. Options marked * take lists.

    \b
    paceline list models llama-3-8b
    paceline list models llama 8b
    paceline list models llama-3-8b --gpu h100 --seq 8192 --batch 2 --gpus 64
    """
    given = {key: value for key, value in options.items() if value is not None}
    if constants and (name or given or gpus is not None):
        raise UsageError(
            "--constants takes no model and no option but --json", remedy="paceline list models --constants"
        )
    if constants:
        _print_constants(as_json=as_json)
        return
    from paceline.catalog.models.config import built_in_configs
    from paceline.catalog.models.families import model_of
    from paceline.catalog.models.spec import config_named, find_workload

    if not name and (given or gpus is not None):
        raise UsageError("list models needs a model", remedy="paceline list models llama-3-8b --gpu h100")
    spec = " ".join(name)
    with naming(types.flags("models", given)):
        if given or gpus is not None:
            shown, is_one = [config_named(spec)], True
        else:
            shown, is_one = chosen(
                name, config_named, lambda: built_in_configs().values(), lambda one: (one.name, one.kind)
            )
        if not is_one:
            _print_list(shown, as_json=as_json)
            return
        config = shown[0]
        workload = find_workload(spec, **given) if "gpu" in given or "@" in spec else None
        if workload is None and set(given) - {"seq"}:
            flag = SETTINGS[min(set(given) - {"seq"})].spelling()
            raise UsageError(f"{flag} needs a GPU type", remedy="--gpu h100 (list: paceline list gpus)")
        if workload is None and gpus is not None:
            raise UsageError("--gpus needs a GPU type", remedy="--gpu h100 (list: paceline list gpus)")
        model = model_of(config, given.get("seq")) if workload is None else workload.model
    entry = _entry(config) | {"seq": model.sequence, "flops_per_sample": model.flops}
    if model.active_parameters != model.parameters:
        entry["active_parameters"] = model.active_parameters
    if model.is_frozen:
        entry["trained_parameters"] = model.trained_parameters
    if workload is not None:
        entry["on_gpu"] = _on_gpu(workload, gpus or 1)
    if as_json:
        put(json.dumps(entry | {"notes": list(model.notes), "config": dict(config.fields)}, indent=1))
        return
    used = f"; a token uses {_count(model.active_parameters)}" if "active_parameters" in entry else ""
    flops = f"{units.short(model.flops / 1e12)} TFLOPs per sample of {model.sequence:,} tokens, forward and backward"
    facts = [
        Fact("Parameters", f"{model.parameters:,}{used}"),
        *([Fact("Trained", f"{model.trained_parameters:,} parameters")] if model.is_frozen else []),
        Fact("Compute", flops),
        *([] if config.source else [Fact("Head", f"that of {model.architecture}")]),
        Fact("Source", config.source or str(config.where)),
    ]
    lines = [
        *headline(f"{config.name}: {model.family}, {_count(model.parameters)} parameters"),
        "",
        *block(facts),
    ]
    if workload is not None:
        lines += ["", *_text(workload, entry["on_gpu"])]
    say([*lines, *notes(model.notes)])


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


def _print_list(configs: Sequence[Config], *, as_json: bool) -> None:
    from paceline.catalog.models.families import MODEL_TYPES

    entries = [_entry(config) for config in configs]
    if as_json:
        put(json.dumps(entries, indent=1))
        return
    columns = [Column("name", left=True), Column("family", left=True, spare=2), Column("parameters")]
    columns += [Column("layers", spare=1), Column("hidden", spare=1), Column("tokens")]
    rows = [
        [
            str(entry["name"]),
            str(entry["model_type"]),
            _count(entry["parameters"]),
            *(f"{entry[key]:,}" for key in ("layers", "hidden", "context")),
        ]
        for entry in entries
    ]
    say(render(columns, [rows]))
    for text in (
        "Tokens: the default of --seq. Time and memory: paceline list models NAME --gpu h100",
        f"A config.json works, too: --config FILE, with a model_type of {', '.join(MODEL_TYPES)}.",
    ):
        say(["", *wrapped(text, width())])


def _print_constants(*, as_json: bool) -> None:
    from paceline.cli.catalog import constants_table
    from paceline.operators.constants import all_constants

    constants = list(all_constants().values())
    put(json.dumps([vars(constant) for constant in constants], indent=1)) if as_json else say(
        constants_table(constants)
    )


_HEADERS = {
    "parameters": "para-\nmeters",
    "gradients": "gradi-\nents",
    "optimizer": "opti-\nmizer",
    "gathered": "gath-\nered",
    "communication": "commu-\nnication",
    "activations": "acti-\nvations",
    "allocated": "allo-\ncated",
    "total": "total",
}
_KINDS = ("parameters", "gradients", "optimizer", "gathered", "communication", "activations")


def _memory(workload: Workload, sharding: str, gpus: int) -> Memory:
    """Return the memory of the plan that `paceline simulate` makes by default."""
    from paceline.catalog.builtin import load_cluster
    from paceline.catalog.libraries import DEFAULT, find_library
    from paceline.forecast.footprint import footprint
    from paceline.forecast.lowering import native
    from paceline.forecast.scenario import Scenario
    from paceline.forecast.sharded import Memory

    trace, size = workload.trace(), int(find_library(DEFAULT).required("bucket_size"))
    made = Scenario.of(
        trace, load_cluster(None), "native", gpus, sharding=sharding, optimizer=workload.optimizer, bucket_size=size
    )
    scenario = replace(made, workload=workload)
    peak = native(scenario).memory([trace])
    return Memory.of(peak, footprint(scenario, peak))


def _on_gpu(workload: Workload, gpus: int) -> dict[str, Any]:
    """Return time and memory on a GPU, as `--json` prints them."""
    compute = workload.compute_s
    rate = workload.batch / compute
    shardings = ("none", "zero1", "zero2", "zero3") if gpus > 1 else ("none",)
    return {
        "gpu": workload.hardware.name,
        **({} if (limit := workload.hardware.power_limit_w) is None else {"power_limit_w": limit}),
        "dtype": workload.precision,
        "precision": workload.recipe.name,
        "batch": workload.batch,
        "checkpointing": "offload" if workload.offloads else workload.checkpointing,
        "attention": workload.attention,
        "kernels": workload.kernels,
        **({"cuda_graphs": True} if workload.cuda_graphs else {}),
        "optimizer_impl": workload.optimizer_impl,
        "loss_chunks": workload.loss_chunks,
        "forward_s": workload.forward_s,
        "backward_s": workload.backward_s,
        "optimizer_s": workload.optimizer_s,
        "samples_per_s": rate,
        **workload.figures(rate, 1),
        "hfu": rate * workload.hardware_flops / workload.peak_flops,
        "memory_bytes": workload.hardware.memory_bytes,
        "gpus": gpus,
        "memory": [
            {
                "sharding": sharding,
                **{kind: getattr(memory, f"{kind}_bytes") or 0 for kind in _KINDS},
                "allocated": memory.peak_bytes,
                "reserved": memory.reserved_bytes,
                "total": memory.total_bytes,
                "fits": memory.fits_into(workload.hardware.memory_bytes),
                "tight": memory.is_tight_in(workload.hardware.memory_bytes),
            }
            for sharding in shardings
            for memory in [_memory(workload, sharding, gpus)]
        ],
    }


def _text(workload: Workload, document: dict[str, Any]) -> list[str]:
    from paceline.forecast.wording import terms

    hardware = workload.hardware
    times = ", ".join(
        f"{name} {units.duration(document[f'{name}_s'])}" for name in ("forward", "backward", "optimizer")
    )
    rate = f"{units.digits(document['samples_per_s'])} samples/s"
    if "tokens_per_s_per_gpu" in document:
        rate = f"{units.digits(document['tokens_per_s_per_gpu'])} tokens/s"
    made = [
        f"batch {document['batch']}",
        document["dtype"],
        f"{document['attention']} attention",
        f"{document['kernels']} kernels",
    ]
    if document["checkpointing"] != "none":
        made.append(workload.checkpointing_words)
    made += workload.trained_words
    shared = f", sharded over {document['gpus']:,}" if document["gpus"] > 1 else ""
    facts = [
        Fact("Time", f"{times}, without communication"),
        Fact("Setup", ", ".join(made)),
        Fact("Memory", f"{units.memory(hardware.memory_bytes)} per GPU{shared}"),
    ]
    columns = [Column("sharding", left=True), *map(Column, _HEADERS.values()), Column("fits", left=True)]
    rows = [
        [
            terms.sharding_cell(row["sharding"]),
            *(units.gigabytes(row[kind]) if row[kind] else "-" for kind in _HEADERS),
            "no" if not row["fits"] else "tightly" if row["tight"] else "yes",
        ]
        for row in document["memory"]
    ]
    return [
        *headline(f"On one {hardware.under_limit}: {rate}, MFU {units.percent(document['mfu'])}"),
        "",
        *block(facts),
        "",
        "Memory in GB",
        *render(columns, [rows]),
    ]


def _count(parameters: int) -> str:
    return f"{units.digits(parameters / 1e9)} B" if parameters >= 1e9 else f"{units.digits(parameters / 1e6)} M"


@click.command(cls=Command)
@words
@_json
def gpus(*, name: tuple[str, ...], as_json: bool) -> None:
    """List the GPU types for --gpu, or show NAME: a GPU type or a device file.

    Other words filter the list by parts of names and architectures.

    \b
    paceline list gpus h100
    paceline list gpus hopper
    """
    from paceline.catalog.gpus import PRECISIONS, all_hardware, find_hardware

    shown, is_one = chosen(
        name, find_hardware, all_hardware, lambda one: (one.name, *one.aliases, one.title, one.architecture)
    )
    if as_json:
        documents = [device.document() for device in shown]
        put(json.dumps(documents[0] if is_one else documents, indent=1))
        return
    if is_one:
        _show_gpu(shown[0])
        return
    spare = {"fp8": 3, "tf32": 3, "fp32": 3}
    columns = [Column("name", left=True), *(Column(f"{one}\nTFLOPS", spare=spare.get(one, 0)) for one in PRECISIONS)]
    columns += [Column("memory\nGB"), Column("memory\nGB/s", spare=1), Column("link\nGB/s", spare=2)]
    rows = [
        [
            device.name,
            *(_tera(device.peak_flops.get(one)) for one in PRECISIONS),
            units.gigabytes(device.memory_bytes),
            units.short(device.memory_bandwidth / 1e9, 4),
            _link(device, "*"),
        ]
        for device in shown
    ]
    say(render(columns, [rows]))
    aliases = ", ".join(f"{one} = {device.name}" for device in shown for one in device.aliases)
    for text in (
        "TFLOPS are dense. Memory is what CUDA gives programs (84.9 GB = 79.1 GiB on an 80 GB H100). Links are NVLink "
        "or Infinity Fabric, per GPU and direction, or with * what NCCL gets of a PCI Express slot.",
        *([f"Aliases: {aliases}."] if aliases else []),
        "Sources: paceline list gpus NAME",
    ):
        say(["", *wrapped(text, width())])


def _link(device: Hardware, mark: str) -> str:
    """Return the rate of NVLink, or that of the slot, with a mark."""
    from paceline.catalog.nodes import slot_bps

    if device.link_bandwidth is not None:
        return units.short(device.link_bandwidth / 1e9)
    return "-" if device.is_cpu or (slot := slot_bps(device)) is None else f"{units.short(slot / 8e9)}{mark}"


def _show_gpu(device: Hardware) -> None:
    from paceline.forecast.evidence import measured_on

    peaks = ", ".join(f"{name} {_tera(flops)}" for name, flops in device.peak_flops.items())
    memory = f"{units.memory(device.memory_bytes)} for programs ({device.memory_bytes / 2**30:.1f} GiB)"
    of = "of PCI Express, what NCCL gets of a slot"
    if device.link_bandwidth is not None:
        of = f"{'Infinity Fabric' if device.link.startswith('xgmi') else 'NVLink'}, per direction"
    facts = [
        Fact("Dense peak", f"{peaks} TFLOPS"),
        Fact("Memory", f"{memory}, {units.short(device.memory_bandwidth / 1e9, 4)} GB/s"),
        *([Fact("Link", f"{_link(device, '')} GB/s {of}")] if _link(device, "") != "-" else []),
        *([] if device.power_w is None else [Fact("Power", _power(device))]),
        *([_calibrated(device.calibration)] if device.calibration is not None else []),
        *([] if device.is_cpu else [Fact("Evidence", measured_on(device.architecture))]),
        *([Fact("Nodes", f"{device.node}, unless --cluster says otherwise")] if device.node else []),
        *([Fact("Aliases", ", ".join(device.aliases))] if device.aliases else []),
    ]
    say([*headline(f"{device.name}: {device.title}"), "", *block(facts), *notes(device.sources, title="Sources")])


def _power(device: Hardware) -> str:
    limit = device.power_limit_w
    return f"{device.power_w:g} W" + ("" if limit is None else f", limited to {limit:g} W")


def _calibrated(calibration: Calibration) -> Fact:
    date = str(calibration.conditions.get("date", "")).partition(" ")[0]
    return Fact("Calibrated", f"{date}: {units.count(len(calibration.operators), 'operator')}, {calibration.accuracy}")


def _tera(value: float | None) -> str:
    return "-" if value is None else units.short(value / 1e12, 4)
