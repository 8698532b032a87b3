"""A benchmark from command-line options to result: hosts, plan, measurement."""

from __future__ import annotations

import os
import signal
import sys
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager
from types import FrameType
from typing import Any

from paceline.errors import InvalidArgumentError
from paceline.job.rank_environment import rank_environment
from paceline.job.settings import Settings
from paceline.torch.recorder.torchvision import UnknownModelError, default_image_size, resolve

from paceline_lab.bench import forecasts
from paceline_lab.bench.classic import Steps
from paceline_lab.bench.engines import Engine, Options, chosen
from paceline_lab.bench.host_group import Alone, HostGroup, Ranks
from paceline_lab.bench.places import LOOPBACK
from paceline_lab.bench.plan import WEAK, Plan
from paceline_lab.bench.progress import Shown
from paceline_lab.bench.ranks.models import SMALL
from paceline_lab.bench.result import Result
from paceline_lab.bench.runner import Runner, Watcher
from paceline_lab.bench.scaling import scale

_PATIENCE_S = 300.0
"""Time limit for a host of the job that does not answer because it exports a model or ends processes."""
_BATCH, _GPU_BATCH, _BATCHES, _WARMUP, _ROUNDS = 8, 64, 30, 3, 3
_SMALL_IMAGE = 32
_NCCL = "ddp-nccl"
_UNFUSED = ("tensorflow-ps", "tensorflow-mirrored", "ray-ps", "baidu-ring")


class Session:
    """One benchmark."""

    def __init__(
        self, plan: Plan, group: HostGroup, network: forecasts.Network | None, *, quiet: bool, every: int
    ) -> None:
        """`quiet`: print only JSON to stdout."""
        self.plan, self.group, self.network = plan, group, network
        self.result = Result()
        self.live = plan.engines[0] if not quiet and _one_run(plan) else None
        """The engine whose steps are printed while it runs."""
        self._every = every

    def run(self) -> None:
        """Measure and forecast. Raises InvalidArgumentError, JobError."""
        if self.group.host:
            self._measure(Watcher())
            return
        if self.live is not None:
            self._measure(Steps(self.plan, self._every))
        else:
            with Shown(self.plan) as shown:
                self._measure(shown)
        scale(self.result)
        if self.network is not None:
            forecasts.forecast(self.result, list(self.plan.engines), self.network, self.group.hosts, self.plan.model)

    def _measure(self, watcher: Watcher) -> None:
        address = LOOPBACK if self.group.hosts == 1 else Settings.from_environment().address()
        self.result = Runner(self.plan, self.group, address, watcher).run()


@contextmanager
def opened(options: Mapping[str, Any], *, quiet: bool) -> Iterator[Session]:
    """Join the other hosts, if any. Raises InvalidArgumentError, JobError."""
    given, place = Settings.from_environment(), rank_environment()
    if given.strategy is not None or given.server_processes:
        raise InvalidArgumentError("paceline bench was launched with a strategy", remedy="paceline bench --strategy ps")
    network = forecasts.network(options["cluster"], options["bandwidth"])
    hosts = place.size if place.launcher != "none" else 1
    if (place.local_size or 1) > 1 and hosts > 1:
        raise InvalidArgumentError(
            f"{place.local_size} processes of paceline bench were started on this host",
            remedy="paceline bench -np 2 (starts the ranks)",
        )
    plan = _plan(options, given, hosts)
    plan.check()
    _compute_fairly()
    signal.signal(signal.SIGTERM, _end)
    every = options["display_every"] or 10
    if options["display_every"] is not None and (quiet or not _one_run(plan)):
        raise InvalidArgumentError(
            "--display-every has no effect on a table or JSON",
            remedy="drop --display-every, or one engine, one -np and one round",
        )
    if hosts == 1:
        yield Session(plan, Alone(), network, quiet=quiet, every=every)
        return
    from paceline.job import job

    # Naming a strategy avoids tuning; the hosts exchange only short messages.
    with job.join(strategy="recursive-doubling", timeout_s=max(given.timeout_s, _PATIENCE_S)) as ranks:
        yield Session(plan, Ranks(ranks), network, quiet=quiet, every=every)


def _one_run(plan: Plan) -> bool:
    return len(plan.engines) == len(plan.workers) == plan.rounds == 1


def _end(number: int, _: FrameType | None) -> None:
    """Exit as on Ctrl-C, which ends the started processes."""
    sys.exit(128 + number)


def _compute_fairly() -> None:
    """Leave SCHED_FIFO, under which an emulated cluster starts processes: computation under it would block senders."""
    if hasattr(os, "sched_getscheduler") and os.sched_getscheduler(0) == os.SCHED_FIFO:
        os.sched_setscheduler(0, os.SCHED_OTHER, os.sched_param(0))


def _plan(options: Mapping[str, Any], given: Settings, hosts: int) -> Plan:
    ranks: list[int] | None = options["ranks"]
    if ranks is None and hosts == 1:
        raise InvalidArgumentError("the number of ranks is missing", remedy="-np 2, or several: -np 1,2,4")
    workers = ranks or [hosts]
    if options["scaling"] is not None and len(workers) < 2:
        raise InvalidArgumentError("--scaling needs several numbers of ranks", remedy="-np 1,2,4")
    model, image_size = _model(options["model"] or "resnet50", options["image_size"])
    names = options["engines"] or ["paceline"]
    xla = [one == "on" for one in options["xla"] or ["off"]]
    engines = chosen(names, _of_engines(options, given, names), options["strategy"] or [None], xla)
    _refuse_idle(options, engines)
    on_gpus = all(engine.spec_fields().get("device") == "cuda" for engine in engines)
    return Plan(
        engines=engines,
        workers=workers,
        model=model,
        batch_size=options["batch_size"] or (_GPU_BATCH if on_gpus else _BATCH),
        num_batches=options["num_batches"] or _BATCHES,
        num_warmup_batches=_WARMUP if options["num_warmup_batches"] is None else options["num_warmup_batches"],
        rounds=options["rounds"] or (_ROUNDS if len(engines) > 1 else 1),
        scaling=options["scaling"] or WEAK,
        seed=1 if options["seed"] is None else options["seed"],
        learning_rate=options["lr"] or 0.001,
        image_size=image_size,
        data_dir=options["data_dir"],
        loader_workers=2 if options["num_workers"] is None else options["num_workers"],
        limit_s=options["limit"] or 900.0,
        fusion_bytes=options["bucket_size"],
    )


def _model(name: str, image_size: int | None) -> tuple[str, int]:
    """Return the model's name and image size. Raises InvalidArgumentError."""
    if name in SMALL:
        return name, image_size or _SMALL_IMAGE
    try:
        known = resolve(name)
    except UnknownModelError as error:
        raise InvalidArgumentError(f"--model: {error}", remedy="--model mlp or cnn (built in)") from None
    return known, image_size or default_image_size(known)


def _of_engines(options: Mapping[str, Any], given: Settings, names: Sequence[str]) -> Options:
    return Options(
        device=options["device"] or _device_of(names),
        transport=options["transport"],
        coordinator=options["coordinator"],
        servers=options["servers"] or 1,
        inside=options["inside"] or "root",
        fusion_bytes=options["bucket_size"],
        secret=given.secret or "",
    )


def _device_of(names: Sequence[str]) -> str:
    """Return where the engines beside NCCL's compute: on GPUs as well, if there are any."""
    import torch

    return "cuda" if _NCCL in names and torch.cuda.is_available() else "cpu"


def _refuse_idle(options: Mapping[str, Any], engines: list[Engine]) -> None:
    """Raise InvalidArgumentError for an option that has no effect."""
    ours = any(engine.name.startswith("paceline") for engine in engines)
    for name in ("strategy", "transport", "coordinator"):
        if options[name] is not None and not ours:
            raise InvalidArgumentError(f"--{name} needs the engine paceline", remedy=f"drop --{name}")
    if options["xla"] is not None and not any("tensorflow" in engine.name for engine in engines):
        raise InvalidArgumentError(
            "--xla compiles TensorFlow's graphs only", remedy="--engine tensorflow-ps, or drop --xla"
        )
    if options["device"] == "cpu" and any(engine.name == _NCCL for engine in engines):
        raise InvalidArgumentError(
            f"--device cpu: {_NCCL} computes on GPUs", remedy="--engine ddp-gloo, or drop --device"
        )
    elsewhere = [engine.name for engine in engines if engine.spec_fields().get("device") != "cuda"]
    if options["device"] == "cuda" and elsewhere:
        raise InvalidArgumentError(
            f"--device cuda: {elsewhere[0]} computes on CPUs only",
            remedy="drop --device (paceline, ddp-gloo, ddp-nccl, horovod and tensorflow-mirrored compute on both)",
        )
    if options["inside"] is not None and not any(engine.name == "ray-ps" for engine in engines):
        raise InvalidArgumentError("--inside needs the engine ray-ps", remedy="--engine ray-ps, or drop --inside")
    if options["servers"] is not None and not any(engine.servers for engine in engines):
        raise InvalidArgumentError(
            "--servers has no effect on these engines", remedy="--strategy ps, or --engine tensorflow-ps"
        )
    if options["num_workers"] is not None and options["data_dir"] is None:
        raise InvalidArgumentError(
            "--num-workers has no effect on synthetic images", remedy="drop --num-workers, or --data-dir DIR"
        )
    if options["bucket_size"] is not None and all(engine.name in _UNFUSED for engine in engines):
        raise InvalidArgumentError(
            f"--bucket-size has no effect on {engines[0].name}, which does not fuse", remedy="drop --bucket-size"
        )
