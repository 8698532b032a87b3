"""A forecast to make."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import Any, Unpack

from paceline._core import Cluster, Trace
from paceline.catalog.channels import with_channel
from paceline.catalog.gpus import titled
from paceline.catalog.libraries import NONE, Library, find_library
from paceline.catalog.models.workload import Workload
from paceline.catalog.offload import Faster
from paceline.catalog.strategies import KNOBS, Strategy, find_strategy
from paceline.forecast.coordinator_model.model import Coordination
from paceline.forecast.likeness import Conditions
from paceline.settings.keywords import CoreOptions
from paceline.settings.table import SETTINGS, SIMULATE


@dataclass(frozen=True)
class Scenario:
    """A forecast to make: everything that its result depends on. Made by `of`, which checks every option."""

    trace: Trace
    """Computation of a GPU; `forecast.offload` has what is offloaded."""
    cluster: Cluster
    strategy: Strategy
    workers: int
    """Ranks that train."""
    library: Library = field(default_factory=lambda: find_library(NONE))
    """The library whose habits and costs it has."""
    options: Mapping[str, Any] = field(default_factory=dict)
    """The given options, by their names in `paceline.settings.table`; they win over the library's."""
    timeline: Path | None = None
    """A file for Chrome trace JSON."""
    coordination: Coordination | None = None
    """How ready tensors are coordinated; None: a bucket starts on a rank when it is complete there."""
    workload: Workload | None = None
    """The model, if the trace was made from a configuration."""
    faster_host: Faster = field(default_factory=Faster)
    """Factors by which parts of offloading are faster than the rates of `paceline.catalog.offload`."""
    recorded: Conditions | None = None
    """Those of a recording without a device, whose operators give the trace its times; None if there is none."""
    update_bytes: int = 0
    """Of temporaries in the optimizer's step of a recording that has its operators."""
    changes: Mapping[str, Any] = field(default_factory=dict)
    """How the trace was changed: `add_module` and `send_order`, and the `placement` as it was given."""
    base: int = 0
    """The place of the trace before that among those of the request."""
    assumed_network: str = ""
    """Of a GPU without a built-in cluster: the rate between nodes that is assumed, and how to give another."""
    one_a_node: bool = False
    """Whether it was assumed, not said, that every rank has a node: the verdict says so."""

    @classmethod
    def of(
        cls,
        trace: Trace,
        cluster: Cluster,
        strategy: str | Strategy,
        workers: int,
        *,
        library: str | Library = NONE,
        timeline: Path | None = None,
        coordination: Coordination | None = None,
        **options: Unpack[CoreOptions],
    ) -> Scenario:
        """Check every option, and leave out those that are None. Raises InvalidArgumentError."""
        # The library is the bare schedule unless it is given: which one users get by default is up to `prepare`.
        chosen = library if isinstance(library, Library) else find_library(SETTINGS["library"].check(library))
        # Elsewhere the cluster's own latency counts, even if it is 0.
        own = cluster.channel
        if own == "auto" or (chosen.channel and own != chosen.channel):
            cluster = with_channel(cluster, chosen.channel or None, bare=chosen.is_bare)
        entry = strategy if isinstance(strategy, Strategy) else find_strategy(SETTINGS["strategy"].check(strategy))
        if not entry.is_synchronous and options.get("bucket_size") is None:
            # Whatever the library does with sums: a gradient is pushed when it is there (`paceline.torch.hvd`).
            options["bucket_size"] = "none"
        return cls(
            trace,
            cluster,
            entry,
            SETTINGS["workers"].check(workers, None, SIMULATE),
            chosen,
            _checked(options),
            timeline,
            coordination,
        )

    def changed(
        self,
        *,
        trace: Trace | None = None,
        cluster: Cluster | None = None,
        workers: int | None = None,
        **options: Unpack[CoreOptions],
    ) -> Scenario:
        """Return the same scenario with these changes."""
        given = {name: value for name, value in self.options.items() if name not in options}
        return replace(
            self,
            trace=trace or self.trace,
            cluster=cluster or self.cluster,
            workers=self.workers if workers is None else workers,
            options=given | _checked(options),
            timeline=None,
        )

    def under(self, strategy: Strategy) -> Scenario:
        """Return the same scenario under another strategy, with the options that it uses."""
        return replace(self, strategy=strategy, options=used_by(strategy, self.options), timeline=None)

    @property
    def capacity_bytes(self) -> int | None:
        """Memory of a GPU, if it is known."""
        given: int | None = self.options.get("memory")
        if given is not None:
            return given
        if self.workload is not None:
            return self.workload.hardware.memory_bytes
        hardware = titled(self.trace.device)
        return None if hardware is None else hardware.memory_bytes

    def nodes(self, ranks_per_node: int) -> int:
        """Return over how many nodes its GPUs are: the stages of a pipeline are on nodes of their own."""
        stages = 1 if self.workload is None else self.workload.pipeline
        return -(-self.workers // ranks_per_node) * stages

    @property
    def spans_nodes(self) -> bool:
        """Whether its workers are on several nodes, with a switch between them."""
        return self.nodes(self.cluster.gpus_per_node) > 1


def _checked(options: Mapping[str, Any]) -> dict[str, Any]:
    return {name: SETTINGS[name].check(value, None, SIMULATE) for name, value in options.items() if value is not None}


def used_by(strategy: Strategy, options: Mapping[str, Any]) -> dict[str, Any]:
    """Return the options that a strategy uses."""
    return {name: value for name, value in options.items() if name not in KNOBS or name in strategy.knobs}
