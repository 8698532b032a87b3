"""Runs the plan: one engine after the other, in rounds, so that disturbances affect all engines alike."""

from __future__ import annotations

import json
import tempfile
from collections.abc import Sequence
from contextlib import ExitStack
from pathlib import Path
from typing import Any

from paceline_lab.bench import weights
from paceline_lab.bench.engines import Engine
from paceline_lab.bench.host_group import HostGroup
from paceline_lab.bench.places import Places, arrange
from paceline_lab.bench.plan import Plan
from paceline_lab.bench.processes import EngineFailedError, Process, run
from paceline_lab.bench.ranks.rank_spec import RankSpec
from paceline_lab.bench.ranks.stopwatch import result_name
from paceline_lab.bench.result import Measured, Result, Row, Skipped, compare

_TRACE = "trace.json"


class Watcher:
    """Sees a benchmark as it runs; this one shows nothing."""

    def expects(self, runs: int) -> None:
        """Take the total number of runs."""

    def begins(self, engine: Engine, workers: int, number: int) -> None:
        """Begin a run of an engine, the `number`-th from 0."""

    def hears(self, event: dict[str, Any]) -> None:
        """Take a step of rank 0: `step` (negative in the warm-up), `seconds`, `loss`."""

    def ended(self, why: str | None, images_per_s: float | None = None) -> None:
        """End the run; `why`: the reason of a failure."""


class Runner:
    """Runs the engines of a plan on a group of hosts; the same on every host."""

    def __init__(self, plan: Plan, group: HostGroup, address: str, watcher: Watcher) -> None:
        """`address`: this host's address to listen on."""
        self.plan, self.group, self.address, self.watcher = plan, group, address, watcher
        self.result = Result()
        self._stack = ExitStack()
        self._graph: str | None = None
        self._kept: dict[tuple[str, int], weights.Weights] = {}
        self._skipped: set[tuple[str, int]] = set()

    def run(self) -> Result:
        """Run all rounds. Engines that cannot run, or fail, are listed in `skipped`. Raises JobError.

        Ctrl-C and SIGTERM end it; the result is what has been measured until then.
        """
        with self._stack:
            able = [engine for engine in self.plan.engines if self._able(engine)]
            cells = [(engine, workers) for workers in self.plan.workers for engine in able]
            runs = self.plan.rounds * len(cells)
            self.watcher.expects(runs)
            try:
                self._rounds(cells)
            except (KeyboardInterrupt, SystemExit) as end:
                if self.group.host or not self.result.rows:
                    raise
                self.result.ended = end.code if isinstance(end, SystemExit) and isinstance(end.code, int) else 130
                made = sum(len(row.runs) for row in self.result.rows)
                self.result.notes.append(f"ended early: after {made} of {runs} runs")
            order = [(engine.label, workers) for engine, workers in cells]
            self.result.rows.sort(key=lambda row: order.index((row.engine, row.workers)))
            compare(self.result.rows)
            if self.group.host == 0:
                self._compare_weights()
        return self.result

    def _rounds(self, cells: Sequence[tuple[Engine, int]]) -> None:
        """Run every engine with every number of ranks; each round starts with another engine."""
        for number in range(self.plan.rounds):
            turn = number % max(1, len(cells))
            for engine, workers in [*cells[turn:], *cells[:turn]]:
                if (engine.label, workers) not in self._skipped:
                    self._once(engine, workers, number)

    def _able(self, engine: Engine) -> bool:
        """Return whether the engine can run on all hosts."""
        reason = engine.missing()
        if reason is None and engine.own_launcher and self.group.hosts > 1:
            reason = engine.one_host
        if reason is None and engine.needs_graph:
            reason = self._exported()
        reason = next((text for text in self.group.gather(reason) if text), None)
        if reason is not None:
            self.result.skipped.append(Skipped(engine.label, None, reason))
        return reason is None

    def _exported(self) -> str | None:
        """Write the model as layers, once. Return the reason if that is impossible."""
        if self._graph is None:
            from paceline_lab.bench.ranks.graph import UntranslatableError, export

            folder = self._folder("graph")
            try:
                export(self._spec(self.plan.workers[0], 0, folder, {"mode": "export"}), folder)
            except UntranslatableError as error:
                return f"{self.plan.model} cannot be built in TensorFlow: {error}"
            self._graph = str(folder)
        return None

    def _folder(self, name: str) -> Path:
        return Path(self._stack.enter_context(tempfile.TemporaryDirectory(prefix=f"paceline-bench-{name}-")))

    def _spec(self, workers: int, number: int, folder: Path, own: dict[str, Any]) -> RankSpec:
        plan = self.plan
        return RankSpec(
            **{
                "model": plan.model,
                "batch": plan.batch_of(workers),
                "batches": plan.batches_of(number),
                "warmup": plan.num_warmup_batches,
                "alone": plan.alone,
                "traced": number == 0,
                "seed": plan.seed,
                "learning_rate": plan.learning_rate,
                "momentum": plan.momentum,
                "image_size": plan.image_size,
                "classes": plan.classes,
                "data_dir": None if plan.data_dir is None else str(plan.data_dir.absolute()),
                "loader_workers": plan.loader_workers,
                "folder": str(folder),
                "graph": self._graph,
                "fusion_bytes": plan.fusion_bytes,
                "limit_s": plan.wait_s,
                **own,
            }
        )

    def _once(self, engine: Engine, workers: int, number: int) -> None:
        """Run an engine once."""
        with tempfile.TemporaryDirectory(prefix="paceline-bench-") as name:
            folder = Path(name)
            spec = self._spec(workers, number, folder, engine.spec_fields())
            spec.save()
            self.watcher.begins(engine, workers, number)
            places = arrange(self.group, workers, engine.servers, self.address)
            own, wrong = self._processes(engine, spec, places)
            row = self.result.row(engine.label, workers)
            try:
                run(self.group, own, folder, self.plan.limit_s, self.watcher.hears, wrong)
                measured = self._gather(folder, workers)
            except EngineFailedError as error:
                self._skipped.add((engine.label, workers))
                before = f"in round {number + 1} (its row covers the rounds before): " if row is not None else ""
                self.result.skipped.append(Skipped(engine.label, workers, before + str(error), failed=True))
                self.watcher.ended(str(error))
                return
            if row is None:
                row = Row(engine.label, workers, spec.batch, engine.servers)
                self.result.rows.append(row)
                if self.group.host == 0:
                    self._kept[engine.label, workers] = weights.read(folder)
            row.runs.append(measured)
            self.watcher.ended(None, row.totals[-1])

    def _processes(self, engine: Engine, spec: RankSpec, places: Places) -> tuple[list[Process], str | None]:
        """Return the processes of this host, or its problem, which the other hosts must know."""
        try:
            return (engine.processes(spec, places) if places.own else []), None
        except EngineFailedError as error:
            return [], str(error)

    def _gather(self, folder: Path, workers: int) -> Measured:
        """Return the results of the ranks of all hosts. Raises EngineFailedError naming ranks that wrote nothing."""
        own = [json.loads(path.read_text(encoding="utf-8")) for path in sorted(folder.glob(result_name("*")))]
        servers = sum(json.loads(path.read_text(encoding="utf-8"))["cpu_s"] for path in folder.glob("server-*.json"))
        gathered = self.group.gather({"ranks": own, "servers": servers})
        ranks = sorted((rank for one in gathered for rank in one["ranks"]), key=lambda rank: int(rank["rank"]))
        lacking = sorted(set(range(workers)) - {int(rank["rank"]) for rank in ranks})
        if lacking:
            raise EngineFailedError(
                f"no result from rank {', '.join(map(str, lacking))}, although all processes succeeded"
            )
        trace = folder / _TRACE
        recorded = trace.read_text(encoding="utf-8") if trace.exists() else None
        return Measured(ranks, sum(one["servers"] for one in gathered), recorded)

    def _compare_weights(self) -> None:
        """Compare weights with the first engine's with as many ranks."""
        if len(self.result.rows) < 2 or self.plan.data_dir is not None:
            return
        from paceline_lab.bench.ranks.models import build

        initial: weights.Weights = {}
        for row in self.result.rows:
            if not initial:
                model = build(self._spec(row.workers, 0, Path(), {"mode": "export"}))
                initial = {name: value.detach().numpy() for name, value in model.named_parameters()}
            first = next(one for one in self.result.rows if one.workers == row.workers)
            if row is not first:
                ours, theirs = self._kept[row.engine, row.workers], self._kept[first.engine, first.workers]
                apart = weights.difference(ours, theirs, initial)
                if apart is None:
                    self.result.notes.append(
                        f"weights of {row.engine} are not compared, because training diverged; lower --lr"
                    )
                row.weights_difference = apart
