"""One simulated configuration, and the cache that simulates each only once, on all cores."""

from __future__ import annotations

from collections.abc import Callable, Iterable
from concurrent.futures import ThreadPoolExecutor, as_completed
from dataclasses import dataclass

from paceline import Trace, load_trace, simulate
from paceline._internal.system import cores
from paceline.catalog.names import Distribution, Pull
from paceline.catalog.strategies import find_strategy

from paceline_lab.studies.network_operator.variants import in_forward_order, sliced, toy

TENSORS = {"vgg-16": 32, "inception-v3": 190, "resnet-101": 314, "resnet-200": 611}
# Tensors that a module of each kind adds.
_MODULE_TENSORS = {"compute": 14, "network": 20}


@dataclass(frozen=True)
class Config:
    """A configuration; None stands for the command line's default."""

    # "vgg-16" is the built-in trace netop-vgg-16; variants.py creates "toy" and "toy, staggered".
    model: str
    strategy: str
    workers: int = 32
    gbps: float = 25
    servers: int | None = None
    chunk: str | None = None
    distribution: Distribution | None = None
    pull: Pull | None = None
    barrier: bool | None = None
    compute_speedup: float | None = None
    # In the notation of `--add-module`.
    modules: str | None = None
    # In the notation of `--send-order`.
    order: str | None = None
    # Number of slices per tensor, which placement spreads over the servers.
    slices: int | None = None
    # Whether variables are placed on servers in the order of creation, as TensorFlow does.
    tensorflow: bool = False

    def cost(self) -> float:
        """Estimate the number of messages, so that long runs start first."""
        tensors = TENSORS.get(self.model, 10) * (self.slices or 1)
        if self.modules:
            kind, count = self.modules.split(":")
            tensors += _MODULE_TENSORS[kind] * int(count)
        cut = self.strategy.startswith("ring") and self.chunk != "whole"
        return tensors * self.workers * (2 * self.workers if cut and self.chunk == "per-worker" else 8 if cut else 2)


class Simulations:
    """Iteration times, each simulated once."""

    def __init__(self) -> None:
        """Start with an empty cache."""
        self._times: dict[Config, float] = {}
        self._staggering: dict[Config, float] = {}
        self._traces: dict[tuple[str, str | None, int | None], Trace] = {}

    def trace(self, model: str, modules: str | None = None, slices: int | None = None) -> Trace:
        """Return the model's trace, unchanged or modified."""
        key = (model, modules, slices)
        if key not in self._traces:
            if slices is not None:
                trace = sliced(in_forward_order(self.trace(model, modules)), slices)
            elif modules is not None:
                trace = self.trace(model).with_modules(modules)
            elif model.startswith("allreduce:"):
                trace = load_trace(model)
            elif model.startswith("toy"):
                trace = toy(staggered="staggered" in model)
            else:
                trace = load_trace(f"netop-{model}")
            self._traces[key] = trace
        return self._traces[key]

    def _simulate(self, config: Config) -> float:
        trace = self.trace(config.model, config.modules, config.slices)
        result = simulate(
            trace,
            None,
            find_strategy(config.strategy).name,
            workers=config.workers,
            library="none",
            bandwidth=f"{config.gbps}Gbps",
            servers=config.servers,
            chunk=config.chunk,
            distribution=config.distribution,
            pull=config.pull,
            placement="tensorflow" if config.tensorflow else None,
            barrier=config.barrier,
            compute_speedup=config.compute_speedup,
            send_order=config.order,
            critical_path=False,
        )
        if result.staggering is not None:
            self._staggering[config] = result.staggering.backward.spread_s
        return result.iteration_s

    def staggering(self, config: Config) -> float:
        """Return how far apart workers begin their backward passes, in seconds."""
        return self._staggering[config] if self[config] >= 0 else 0.0

    def prepare(self, configs: Iterable[Config], progress: Callable[[int, int], None] | None = None) -> None:
        """Simulate new configurations on all cores, the longest first."""
        new = sorted(set(configs) - self._times.keys(), key=lambda config: (-config.cost(), repr(config)))
        # Create traces beforehand, so that no two threads create the same one.
        for config in new:
            self.trace(config.model, config.modules, config.slices)
        with ThreadPoolExecutor(cores()) as pool:
            futures = {pool.submit(self._simulate, config): config for config in new}
            try:
                for done, future in enumerate(as_completed(futures), start=1):
                    self._times[futures[future]] = future.result()
                    if progress is not None:
                        progress(done, len(new))
            except BaseException:
                pool.shutdown(wait=False, cancel_futures=True)
                raise

    def __getitem__(self, config: Config) -> float:
        """Return seconds per iteration."""
        if config not in self._times:
            self._times[config] = self._simulate(config)
        return self._times[config]

    def __len__(self) -> int:
        """Return the number of simulated configurations."""
        return len(self._times)
