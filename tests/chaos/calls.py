"""Every call, blocking or not, on fast and slow networks, while a rank dies, stops, leaves, or nothing happens."""

from __future__ import annotations

import contextlib
import json
import re
import time
from collections.abc import Iterator
from typing import Any

from job_workers.chaos import CALLS
from job_workers.launch import Ranks
from paceline import InvalidArgumentError, emulate
from paceline_lab.emulate.plan import NETWORK

from chaos.tally import Section

LIMIT_S = 4.0
"""PACELINE_TIMEOUT; on slow networks a transfer takes longer."""
_FAULTS = (None, None, None, "SIGKILL", "SIGKILL", "SIGSTOP", "exit")
_START_S = 60.0


def drawn(source: Any, *, slow: bool) -> dict[str, Any]:
    """Return a run."""
    size, fault = source.choice([2, 2, 3, 4]), source.choice(_FAULTS)
    mbps = source.choice([2, 5, 10]) if slow else 0
    # One that waits for an error is in one call; without a fault, all are made, or on a slow network some.
    most = 1 if fault else 3 if slow else len(CALLS)
    calls = source.sample(CALLS, most)
    length = source.choice([1, 1000, 50_000, 1_000_000])
    if slow:  # a message takes up to twice the limit
        length = int(source.uniform(0.1, 2.0) * LIMIT_S * mbps * 1e6 / 8 / 4 / size)
    return {
        "size": size,
        "mbps": mbps,
        "transport": "tcp" if slow else source.choice(["auto", "tcp"]),
        "asked": {
            "calls": calls,
            "async_": source.random() < 0.5,
            "length": length,
            "operations": None if fault else most * (1 if slow else source.choice([1, 3])),
            "leaves": source.random() < 0.5,
            "victim": source.randrange(size),
            "fault": fault,
            "delay_s": source.uniform(0.0, 3.0 if slow else 1.0),
            "lag_s": [source.choice([0.0, 0.0, 0.3, 1.5]) for _ in range(size)],
        },
    }


def run(section: Section, *, slow: bool) -> None:
    """Run until the time is over."""
    with contextlib.ExitStack() as stack:
        clusters: dict[int, emulate.Cluster] = {}
        number = 0
        while not section.over:
            trial = drawn(section.source(number), slow=slow)
            number += 1
            where: dict[str, Any] = {}
            if slow:
                try:
                    cluster = clusters.get(4) or stack.enter_context(
                        emulate.cluster(workers=4, bandwidth_bps=10e6, realtime=False)
                    )
                except (emulate.CannotEmulateError, emulate.ClusterError, InvalidArgumentError) as error:
                    section.skipped = str(error)
                    return
                clusters[4] = cluster
                cluster.set_bandwidth(trial["mbps"] * 1e6)
                where = on_hosts(cluster)
            one(section, trial, number - 1, **where)


def on_hosts(cluster: emulate.Cluster) -> dict[str, Any]:
    """Return how `Ranks` starts each rank on a host of its own."""
    workers = cluster.of_kind("worker")
    env = {
        "PACELINE_RENDEZVOUS": f"{workers[0].address}:29500",
        "PACELINE_INTERFACE": NETWORK,
        "LOCAL_WORLD_SIZE": "1",
    }
    return {
        "command": lambda rank: cluster.entering(workers[rank].name),
        "env": env,
        "env_of": {rank: {"LOCAL_RANK": "0"} for rank in range(len(workers))},
    }


def one(section: Section, trial: dict[str, Any], number: int, **where: Any) -> None:
    """Run one job, and check what every rank says."""
    result = trial["asked"]
    how = "async" if result["async_"] else "blocking"
    network = f"{trial['mbps']} Mbit/s" if trial["mbps"] else trial["transport"]
    ending = result["fault"] or ("leaves" if result["leaves"] else "stays")
    names = ", ".join(result["calls"]) if len(result["calls"]) < 4 else "all calls"
    what = f"run {number}: {names}, {how}, {ending}, {trial['size']} ranks of {result['length']} elements, {network}"
    for call in result["calls"]:
        section.ran(f"{call} {how} {ending}")
    env = {"PACELINE_TIMEOUT": f"{LIMIT_S:g}", "PACELINE_TRANSPORT": trial["transport"], **where.pop("env", {})}
    try:
        with Ranks(section.folder, trial["size"], "chaos", json.dumps(result), env=env, **where) as ranks:
            waits = 3 * LIMIT_S + 20 if trial["mbps"] else 20
            operations = result["operations"] or 0
            transfer_s = (
                32 * result["length"] * trial["size"] * operations / (trial["mbps"] * 1e6) if trial["mbps"] else 0
            )
            if result["fault"] == "SIGSTOP":
                _kill_when_others_know(ranks, result["victim"], waits)
            outcomes = ranks.outcomes(_START_S + waits + 4 * transfer_s)
        for words in wrong(trial, outcomes):
            section.violated(what, words)
    except AssertionError as error:
        section.violated(what, f"{error}")


def _kill_when_others_know(ranks: Ranks, victim: int, within: float) -> None:
    """End a rank that is stopped, once the others have noticed, or had the time for it."""
    ranks.wait_for(victim, "ends_at", _START_S)
    end = time.monotonic() + within
    while time.monotonic() < end and any(
        process.poll() is None for rank, process in ranks.processes.items() if rank != victim
    ):
        time.sleep(0.05)
    ranks.processes[victim].kill()


def wrong(trial: dict[str, Any], outcomes: dict[int, Any]) -> Iterator[str]:
    """Return what is wrong with what the ranks have said."""
    result = trial["asked"]
    victim = result["victim"] if result["fault"] else None
    struck = [said["ends_at"] for said in outcomes[result["victim"]].said if "ends_at" in said]
    for rank, outcome in outcomes.items():
        if "killed: did not end" in outcome.err and rank != victim:
            yield f"rank {rank} hangs: {outcome.err[-300:]}"
            continue
        if any("wrong" in said for said in outcome.said):
            yield f"rank {rank} has a wrong result: {outcome.said}"
        errors = [said for said in outcome.said if "error" in said]
        if rank == victim:
            continue
        if outcome.code != 0:
            yield f"rank {rank} ended with {outcome.code}: {outcome.err[-500:]}"
        elif victim is None:
            if not any(said.get("done") for said in outcome.said):
                why = errors[0]["error"] if errors else outcome.err[-300:]
                yield f"rank {rank} failed, and nothing went wrong ({errors[0]['call'] if errors else '?'}): {why}"
        elif not struck:
            yield f"rank {victim} was not struck"
        elif not errors:
            yield f"rank {rank} did not notice that rank {victim} was gone"
        else:
            error = errors[0]
            named = re.search(r"rank (\d+) \(", error["error"])
            if named is None or int(named[1]) != victim:
                yield f"rank {rank} names {named[0] if named else 'nobody'} and not {victim}: {error['error']}"
            late = error["at"] - struck[0]
            allowed = (2 * LIMIT_S + 15) if trial["mbps"] else (LIMIT_S + 4 if result["fault"] == "SIGSTOP" else 3.0)
            if late > allowed:
                yield f"rank {rank} noticed after {late:.1f} s, and {allowed:g} s are allowed: {error['error']}"
        for said in outcome.said:
            if said.get("closed_in", 0.0) > 8.0:
                yield f"rank {rank} took {said['closed_in']:.1f} s to close"
