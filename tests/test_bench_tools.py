"""The arithmetic and the tables of benches/peers, without measuring anything."""

from __future__ import annotations

import sys
from pathlib import Path

import pytest

PEERS = Path(__file__).resolve().parents[1] / "benches" / "peers"


@pytest.fixture(autouse=True)
def scripts(monkeypatch):
    known = set(sys.modules)
    monkeypatch.syspath_prepend(str(PEERS))
    yield
    for name in set(sys.modules) - known:
        if str(PEERS) in str(getattr(sys.modules[name], "__file__", "")):
            del sys.modules[name]


def a_run(ours: float, gloo: float) -> dict:
    both = {
        "paceline": {"4096": [ours, ours * 2], "1048576": [ours, None]},
        "openmpi": {"4096": [ours * 3, ours * 4], "1048576": [ours * 2, ours]},
        "mpich": {"4096": [ours * 2, ours * 6], "1048576": [None, ours]},
    }
    through = {
        "gloo": {"4096": [gloo] * 2, "1048576": [gloo] * 2},
        "torch-paceline": {"4096": [ours] * 2, "1048576": [ours] * 2},
    }
    measured = {
        "times": both | through,
        "limit": {"4096": [ours / 2] * 2, "1048576": [ours / 4] * 2},
        "about": {"openmpi": "Open MPI 5", "gloo": "torch 2"},
        "busy": [0.01, 0.03],
    }
    machine = {"made": "today", "cpu": "one", "cores": 2, "kernel": "6"}
    return {"machine": machine, "rounds": 2, "seconds": 0.3, "all_reduce": {"2": measured}}


def test_a_time_is_the_median_of_the_slowest_ranks():
    import summary

    assert summary.slowest([[1, 5, 3], [2, 1, 9]]) == 5
    assert summary.middle([None, 3, 1]) == 2
    assert summary.middle([None]) is None
    assert summary.better([[3, None, None], [2, 4, None]]) == [2, 4, None]


def test_ratios_are_taken_within_rounds():
    import summary

    ratio = summary.faster([2, 30, None, 8], [1, 10, 5, None])
    assert (ratio.median, ratio.low, ratio.high) == (2.5, 2, 3)
    assert str(ratio) == "2.50 (2.00–3.00)"
    assert summary.faster([None], [1]) is None


def test_the_limit_counts_loads_and_stores():
    import summary

    # Two ranks: 3 S loaded and 2 S stored; a copy of b bytes moves 2 b.
    assert summary.moved_bytes(100, 2) == 500
    assert summary.moved_bytes(100, 4) == 1100
    assert summary.least_seconds(8, ranks=2, cores=2, copied_per_core=10) == pytest.approx(1.0)
    assert summary.least_seconds(8, ranks=2, cores=1, copied_per_core=10) == pytest.approx(2.0)
    assert summary.bus_bandwidth(10**9, 4, 1.5) == pytest.approx(1.0)


def test_numbers_are_short():
    import summary

    seconds = [4.14e-6, 276.4e-6, 9.9994e-3, 10.83e-3, 0.4361, None]
    assert [summary.microseconds(each) for each in seconds] == ["4.1", "276", "9999", "10.8k", "436k", "–"]
    assert [summary.size_text(size) for size in (4096, 1 << 20, 256 << 20)] == ["4 KiB", "1 MiB", "256 MiB"]


def test_tables_compare_with_the_better_peer_and_the_limit():
    import document

    table = next(table for table in document.tables(a_run(1e-6, 12e-6)) if "Without torch" in table.title)
    assert table.header[1:4] == ["Open MPI", "MPICH", "paceline"]
    # Rounds of 2/1 and 4/2; at 1 MiB ours failed in the second round, MPICH in the first.
    assert table.rows[0][4:] == ["2.00 (2.00–2.00)", "0.5", "3.00 (2.00–4.00)"]
    assert table.rows[1][4:] == ["2.00 (2.00–2.00)", "0.2", "4.00 (4.00–4.00)"]


def test_targets_name_the_worst_size():
    import targets

    rows = {(row[0], row[1]): row[2:] for row in targets.table(a_run(1e-6, 4.9e-6)).rows}
    assert rows["gloo, through torch, 1 MiB", "2"] == ["5.00", "4.90", "**no**"]
    assert rows["the better MPI, but for 16 MiB", "2"][2] == "yes"


def test_the_section_replaces_the_last_one_only():
    import document

    text = "# Benchmarks\n\n## One\n\n1\n\n## The runtime against its peers\n\nold\n\n## Three\n\n3\n"
    new = document.section(a_run(1e-6, 12e-6))
    once = document.replaced(text, new)
    assert "old" not in once
    assert once.index("## One") < once.index(document.HEADING) < once.index("## Three\n\n3\n")
    assert document.replaced(once, new) == once
    assert document.replaced("# Benchmarks\n", new).count(document.HEADING) == 1


def test_every_system_can_be_launched():
    import environments
    import systems

    for system in systems.SYSTEMS.values():
        launched = systems.launches(system, 3, ["--sizes", "4096"])
        assert (PEERS / system.job).is_file()
        assert len(launched) == (1 if system.environment else 3)
        assert all("4096" in command for command, _ in launched)
    assert {system.environment for system in systems.SYSTEMS.values()} - {""} == set(environments.PINS)
