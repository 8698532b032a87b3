"""The settings of a job. Keywords and flags override environment variables, which override defaults.

docs/reference/settings.md lists them, from `paceline.settings.table`. An empty variable counts as unset. An unknown
PACELINE_ variable is an error, because it is most likely misspelled.

For tests, PACELINE_RUN_DISTURBANCE makes multicast receivers drop, duplicate and reorder datagrams: JSON with rates
from 0 to 1 and a seed, `{"lose": 0.2, "repeat": 0.1, "reorder": 0.1, "seed": 7}`.
"""

from __future__ import annotations

import importlib.util
import json
import os
from collections.abc import Mapping
from dataclasses import dataclass, fields
from pathlib import Path
from typing import Literal, Unpack

from paceline._internal.nearest import nearest
from paceline._internal.netif import address_for, address_of, loopback, split_endpoint
from paceline.catalog.strategies import GRAPH, check_knobs, find_strategy
from paceline.errors import InvalidArgumentError, Source, naming
from paceline.job import oneccl
from paceline.job.rank_environment import rank_environment
from paceline.settings.keywords import JobSettings
from paceline.settings.kinds import BAIDU_RING, BY_BUCKET, LONGEST_TIMEOUT_S, PLACEMENTS, SERVERS
from paceline.settings.table import JOIN, LEAST_START_S, OVER_MPI, OVER_UCX, SETTINGS, VARIABLES, find, of_place
from paceline.settings.values import JobValues

__all__ = [
    "BAIDU_RING",
    "LONGEST_TIMEOUT_S",
    "OVER_MPI",
    "OVER_UCX",
    "PLACEMENTS",
    "VARIABLES",
    "Settings",
    "ucx_package",
]

# Variables that other modules read: those of `paceline run`, `record` and `emulate`, and of torch's time estimator.
OTHER_PREFIXES = ("PACELINE_RUN_", "PACELINE_RECORD_")
OTHER_VARIABLES = frozenset(
    {"PACELINE_EMULATED", "PACELINE_ESTIMATE_ON", *(one.variable for one in SETTINGS.values() if one.variable)}
)


@dataclass(frozen=True, kw_only=True)
class Settings(JobValues):
    """Checked settings, as passed to the native module. Made by `from_environment`.

    Of `start_timeout_s` and `interface`, `start_limit_s` and `address` are what holds.
    """

    server_processes: int = 0
    """Parameter servers that `paceline run` has started; their ranks follow those of the workers."""
    switch_processes: int = 0
    """Processes that, after them, it has started to aggregate in the place of switches."""
    nodes_per_rack: int | None = None
    """Hosts under one switch, if there are several."""
    unfused: bool = False
    """Reduce every tensor separately: `baidu-ring`."""
    disturbance: dict[str, float] | None = None
    """Faults injected into multicasts, for tests."""

    @classmethod
    def from_environment(cls, environ: Mapping[str, str] | None = None, **keywords: Unpack[JobSettings]) -> Settings:
        """Read `environ` (by default this process's); keywords take precedence, unless they are None.

        Raises InvalidArgumentError, which carries setting and source and names the value and the remedy.
        """
        return cls.resolved(environ, keywords)

    @classmethod
    def resolved(
        cls,
        environ: Mapping[str, str] | None,
        given_values: Mapping[str, object],
        given_by: Literal["flag", "keyword"] = "keyword",
    ) -> Settings:
        """Do the same as `from_environment`, also for values from flags."""
        environ = os.environ if environ is None else environ
        _refuse_unknown(environ)
        given = _given(environ, given_values, given_by)
        sources = {name: source for name, (_, source) in given.items()}
        checked = {name: SETTINGS[name].check(value, source, JOIN) for name, (value, source) in given.items()}
        if "secret_file" in checked:
            checked["secret"] = checked.pop("secret_file")
        unfused = checked.get("strategy") == BAIDU_RING
        with naming(sources):
            if unfused:
                _preset(checked, sources)
            if checked.get("barrier") is False and "pull" not in sources:
                checked["pull"] = "layer"
            servers = _started(environ, "PACELINE_RUN_SERVERS", "server_processes")
            settings = cls(
                **checked,
                unfused=unfused,
                server_processes=servers,
                switch_processes=_started(environ, "PACELINE_RUN_SWITCHES", "switch_processes"),
                nodes_per_rack=_started(environ, "PACELINE_RUN_NODES_PER_RACK", "nodes_per_rack") or None,
                disturbance=_disturbance(environ),
            )
            _check_launcher(settings, environ)
            _check_together(settings, sources)
        return settings

    def placed(self) -> dict[str, int]:
        """Return the server of each tensor by name, if `placement` is a file.

        Raises InvalidArgumentError naming the file and the tensor.
        """
        from paceline.catalog.placement import read_table

        return {} if self.placement in PLACEMENTS else read_table(Path(self.placement), self.servers)

    @property
    def places_names(self) -> bool:
        """Whether tensors are placed by their names: by a file, or in the order of creation."""
        return self.placement not in BY_BUCKET

    def refuse_no_barrier(self, why: str, remedy: str) -> None:
        """Raise InvalidArgumentError if a job is to run without the barrier where gradients are applied together."""
        if not self.barrier:
            raise InvalidArgumentError(f"no-barrier: {why}", setting="barrier", remedy=remedy)

    def refuse_coordinator(self) -> None:
        """Raise InvalidArgumentError if a coordinator is named in a job whose ranks all use the same order."""
        if self.coordinator_plan is not None:
            raise InvalidArgumentError(
                "has no effect, as all ranks of this job call operations in the same order",
                setting="coordinator_plan",
                remedy="drop {this} (plans are for paceline.torch.hvd and paceline.tensorflow)",
            )
        if self.coordinator is not None:
            raise InvalidArgumentError(
                f"{self.coordinator} has no effect, as all ranks of this job call operations in the same order",
                setting="coordinator",
                remedy="drop {this} (coordinators are for paceline.torch.hvd)",
            )

    def refuse_asynchronous(self, who: str, instead: str = "paceline.torch.DistributedOptimizer, or {this=ps}") -> None:
        """Raise InvalidArgumentError if the strategy is asynchronous, and `who` has no optimizer that servers run."""
        if self.is_asynchronous:
            raise InvalidArgumentError(
                f"{self.strategy} applies gradients by torch's optimizers on servers, and {who} has none",
                setting="strategy",
                remedy=instead,
            )

    @property
    def start_limit_s(self) -> float:
        """How long ranks wait for each other at the start: as given, or as long as for an operation, but a minute."""
        return self.start_timeout_s if self.start_timeout_s is not None else max(self.timeout_s, LEAST_START_S)

    @property
    def helpers(self) -> int:
        """Number of processes of the job that do not train."""
        return self.server_processes + self.switch_processes

    def has_switch(self) -> bool:
        """Return whether the strategy aggregates in a switch."""
        return self.strategy is not None and "aggregation" in find_strategy(self.strategy).knobs

    def has_servers(self) -> bool:
        """Return whether the strategy has parameter servers."""
        return self.strategy is not None and "servers" in find_strategy(self.strategy).knobs

    @property
    def bound(self) -> int | None:
        """The bound on staleness in iterations; None: none."""
        return self.staleness if isinstance(self.staleness, int) else None

    @property
    def is_asynchronous(self) -> bool:
        """Whether servers apply each gradient when it arrives, instead of adding up those of all workers."""
        return self.strategy is not None and not find_strategy(self.strategy).is_synchronous

    def to_json(self) -> str:
        """Return JSON for the native module.

        The interface becomes this machine's address. Raises InvalidArgumentError if it has none.
        """
        values = {entry.name: getattr(self, entry.name) for entry in fields(self) if entry.name not in _ELSEWHERE}
        if self.is_asynchronous:
            # All-reduces of the script, of metrics for example, are among the workers.
            values["strategy"] = None
        if self.server_processes:
            values |= {"dedicated": True, "servers": self.server_processes}
        if self.switch_processes:
            values |= {"switches": self.switch_processes}
        if self.disturbance is not None:
            values["disturbance"] = self.disturbance
        if self.places_names:
            values["placement"] = "round-robin"
        values["interface"] = self.address()
        if self.transport in OVER_UCX:
            values["ucx_package"] = ucx_package()
        if self.native is not None:
            oneccl.prepare(self.address(), verbose=self.verbose)
        return json.dumps(values)

    def address(self) -> str:
        """Return this machine's address for the other ranks: the chosen one, or that towards rank 0.

        Ranks of one machine use loopback. Raises InvalidArgumentError if there is none.
        """
        if self.interface is not None:
            return address_of(self.interface, "PACELINE_INTERFACE")
        try:
            place = rank_environment()
        except InvalidArgumentError:
            # The caller has said which rank this is, and variables of no use to it may be exported in part.
            return loopback()
        several = place.local_size is not None and place.local_size < place.size
        rendezvous = self.rendezvous or place.rendezvous
        first = split_endpoint(rendezvous) if rendezvous else place.master_address
        return address_for(first) if several and first else loopback()


Given = dict[str, tuple[object, Source]]
"""By setting: the unchecked value and its source."""


def _given(environ: Mapping[str, str], values: Mapping[str, object], given_by: Literal["flag", "keyword"]) -> Given:
    """Return the values of the variables, overridden by `values`."""
    given: Given = {
        name: (environ[variable], SETTINGS[name].source("variable"))
        for variable, name in VARIABLES.items()
        if environ.get(variable, "")
    }
    known = [setting.name for setting in of_place(JOIN)]
    made: Given = {}
    for name, value in values.items():
        setting = find(name, known)
        if value is not None:
            made[name] = (value, setting.source(given_by, value))
    if "secret" in made or "secret_file" in made:
        given = {name: one for name, one in given.items() if name not in ("secret", "secret_file")}
    elif "secret" in given and "secret_file" in given:
        raise InvalidArgumentError(
            "PACELINE_SECRET and PACELINE_SECRET_FILE are both set", remedy="unset PACELINE_SECRET"
        )
    return given | made


def _check_launcher(settings: Settings, environ: Mapping[str, str]) -> None:
    """Refuse MPI if a script chose it under `paceline run`: mpirun must start the ranks."""
    launched = environ.get("PACELINE_RUN_ID") and (
        environ.get("PACELINE_RENDEZVOUS") or environ.get("PACELINE_RUN_ELASTIC")
    )
    if launched and settings.transport in OVER_MPI:
        raise InvalidArgumentError(
            f"{settings.transport} needs ranks that mpirun started, not paceline run",
            setting="transport",
            remedy="mpirun -n 4 python train.py, or {transport=auto}",
        )


def _check_together(settings: Settings, sources: Mapping[str, Source]) -> None:
    """Refuse given settings (those in `sources`) that contradict each other or have no effect."""
    for name in sources:
        if settings.transport in SETTINGS[name].idle_with:
            raise InvalidArgumentError(
                f"has no effect with transport {settings.transport}",
                setting=name,
                remedy="drop {this}, or {transport=auto}",
            )
    if settings.strategy is not None:
        strategy = find_strategy(settings.strategy)
        if strategy.is_offloaded and settings.transport not in OVER_MPI and settings.native is None:
            raise InvalidArgumentError(
                f"{strategy.name} is the all-reduce of a library, which shared memory and TCP do not have",
                setting="strategy",
                remedy="{strategy=ring} or tree, {transport=mpi} under mpirun, or {native=oneccl}",
            )
        check_knobs([strategy], sources)
        for name in ("chunk", "distribution", "pull"):
            if not strategy.is_synchronous and name in sources:
                raise InvalidArgumentError(
                    f"has no effect on jobs with {strategy.name}, only on forecasts", setting=name, remedy="drop {this}"
                )
    if settings.native is not None and not (settings.strategy and find_strategy(settings.strategy).is_offloaded):
        raise InvalidArgumentError(
            "has an effect with strategy native only", setting="native", remedy="{strategy=native}, or drop {this}"
        )
    if settings.native is None and "oneccl_library" in sources:
        raise InvalidArgumentError(
            "has no effect without native oneccl", setting="oneccl_library", remedy="{native=oneccl}, or drop {this}"
        )
    if settings.coordinator == GRAPH and settings.has_servers():
        raise InvalidArgumentError(
            f"{GRAPH} plans all-reduces among ranks, and {settings.strategy} has servers",
            setting="coordinator",
            remedy="{coordinator=negotiate}, or {strategy=ring}",
        )
    if settings.coordinator_plan is not None and (settings.has_servers() or settings.coordinator not in {None, GRAPH}):
        other = settings.coordinator if settings.coordinator not in {None, GRAPH} else settings.strategy
        raise InvalidArgumentError(
            f"has no effect with {other}: only {GRAPH}, among ranks without servers, follows a plan",
            setting="coordinator_plan",
            remedy="{coordinator=graph}, or drop {this}",
        )
    if settings.cuda not in {"auto", "nccl"} and "nccl_library" in sources:
        raise InvalidArgumentError(
            f"has no effect with cuda {settings.cuda}", setting="nccl_library", remedy="drop {this}"
        )
    if settings.cuda == "mpi" and not (
        settings.transport in OVER_MPI and settings.strategy and find_strategy(settings.strategy).is_offloaded
    ):
        raise InvalidArgumentError(
            "needs transport mpi and strategy native", setting="cuda", remedy="{transport=mpi} and {strategy=native}"
        )
    if settings.cuda in {"host", "nccl", "mpi"} and "cuda_pointer_cache" in sources:
        raise InvalidArgumentError(
            f"has no effect with cuda {settings.cuda}", setting="cuda_pointer_cache", remedy="drop {this}"
        )
    if settings.strategy is None and "pull" in sources:
        raise InvalidArgumentError("needs parameter servers", setting="pull", remedy="{strategy=ps}, or drop {this}")
    if "barrier" in sources:
        _check_barrier(settings)
    if settings.strategy is None and "staleness" in sources:
        raise InvalidArgumentError(
            "needs asynchronous servers", setting="staleness", remedy="{strategy=async-ps}, or drop {this}"
        )


def _check_barrier(settings: Settings) -> None:
    """Refuse a barrier, or none, where it has no effect, and settings that need one."""
    if not settings.has_servers() or settings.is_asynchronous:
        which = settings.strategy or "a strategy that is chosen by size"
        raise InvalidArgumentError(
            f"has no effect on {which}, which has no barrier of servers",
            setting="barrier",
            remedy="{strategy=ps}, or drop {this}",
        )
    if not settings.barrier and settings.pull == "step":
        raise InvalidArgumentError(
            "step waits for all sums of a step, and without the barrier each layer waits for its own",
            setting="pull",
            remedy="{this=layer}, or drop {this}",
        )
    if not settings.barrier and settings.distribution == "block":
        raise InvalidArgumentError(
            "block needs the barrier, as it sends everything to one worker before the next",
            setting="distribution",
            remedy="{this=round-robin}",
        )


def _preset(values: dict[str, object], sources: dict[str, Source]) -> None:
    """Expand `baidu-ring` into settings. Raises InvalidArgumentError for a setting that contradicts it."""
    values["strategy"] = find_strategy(BAIDU_RING).name
    if values.setdefault("transport", "mpi") not in OVER_MPI:
        raise InvalidArgumentError(
            f"{BAIDU_RING} runs over MPI", setting="strategy", remedy="{strategy=ring}, or drop {transport}"
        )
    sources.setdefault("transport", sources["strategy"])
    if "chunk" in values:
        raise InvalidArgumentError(
            f"{BAIDU_RING} uses one chunk per worker", setting="chunk", remedy="{strategy=ring}, or drop {this}"
        )
    if values.get("coordinator") not in (None, GRAPH):
        raise InvalidArgumentError(
            f"{BAIDU_RING} does not negotiate", setting="coordinator", remedy="{strategy=ring}, or drop {this}"
        )


def _started(environ: Mapping[str, str], variable: str, setting: str) -> int:
    """Return a number that the launcher gives; 0 without it."""
    text = environ.get(variable, "") if "PACELINE_RUN_ID" in environ else ""
    try:
        return SERVERS.check(text) if text else 0
    except InvalidArgumentError as error:
        raise error.at(setting, Source("variable", variable)) from None


def _disturbance(environ: Mapping[str, str]) -> dict[str, float] | None:
    name = "PACELINE_RUN_DISTURBANCE"
    text = environ.get(name, "")
    try:
        value = json.loads(text) if text else None
    except (ValueError, RecursionError):
        value = text
    if value is None or (isinstance(value, dict) and all(isinstance(rate, int | float) for rate in value.values())):
        return value
    raise InvalidArgumentError(
        f"{name}: '{text[:80]}' is not JSON", remedy=f'{name}=\'{{"lose": 0.2, "seed": 7}}\', or unset it'
    )


def is_known(variable: str) -> bool:
    """Return whether this is a variable of Paceline's."""
    return variable in VARIABLES or variable in OTHER_VARIABLES or variable.startswith(OTHER_PREFIXES)


def _refuse_unknown(environ: Mapping[str, str]) -> None:
    for variable in sorted(environ):
        if not variable.startswith("PACELINE_") or is_known(variable):
            continue
        near = nearest(variable, list(VARIABLES))
        remedy = f"{near}, or unset it" if near else f"unset {variable[:80]} (known: {', '.join(VARIABLES)})"
        raise InvalidArgumentError(f"unknown environment variable {variable[:80]}", remedy=remedy)


def ucx_package() -> str | None:
    """Return the folder of UCX's libraries in the package `libucx`, if it is installed: PyPI's libucx-cu12 or -cu13."""
    spec = importlib.util.find_spec("libucx")
    folders = [Path(place, "lib") for place in (spec and spec.submodule_search_locations) or ()]
    return next((str(folder) for folder in folders if folder.is_dir()), None)


# Settings that the native module gets in another way, or does not need.
_ELSEWHERE = frozenset(
    (
        "interface",
        "pull",
        "staleness",
        "unfused",
        "coordinator",
        "coordinator_plan",
        "timeline",
        "server_processes",
        "switch_processes",
        "disturbance",
    )
)
