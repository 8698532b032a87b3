"""The arithmetic and the tables of benches/peers, without measuring anything."""

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


def test_a_time_is_the_median_of_the_slowest_ranks_and_ratios_are_taken_within_rounds():
    import summary

    assert summary.slowest([[1, 5, 3], [2, 1, 9]]) == 5
    assert summary.middle([None, 3, 1]) == 2
    assert summary.middle([None]) is None
    assert summary.better([[3, None, None], [2, 4, None]]) == [2, 4, None]
    ratio = summary.faster([2, 30, None, 8], [1, 10, 5, None])
    assert (ratio.median, ratio.low, ratio.high) == (2.5, 2, 3)
    assert str(ratio) == "2.50 (2.00–3.00)"
    assert summary.faster([None], [1]) is None


def test_the_limit_counts_loads_and_stores():
    import summary

    # Two ranks: 3 S loaded and 2 S stored; a copy of b bytes moves 2 b. Four: 11 S.
    assert summary.least_seconds(8, ranks=2, cores=2, copied_per_core=10) == pytest.approx(1.0)
    assert summary.least_seconds(8, ranks=2, cores=1, copied_per_core=10) == pytest.approx(2.0)
    assert summary.least_seconds(8, ranks=4, cores=1, copied_per_core=11) == pytest.approx(4.0)


def test_numbers_are_short():
    import summary

    seconds = [4.14e-6, 276.4e-6, 9.9994e-3, 10.83e-3, 0.4361, None]
    assert [summary.microseconds(each) for each in seconds] == ["4.1", "276", "9999", "10.8k", "436k", "–"]
    assert [summary.size_text(size) for size in (4096, 1 << 20, 256 << 20)] == ["4 KiB", "1 MiB", "256 MiB"]


def test_tables_compare_with_the_better_peer_and_the_limit(capsys):
    import run

    ours = 1e-6
    times = {
        "paceline": {4096: [ours, ours * 2], 1 << 20: [ours, None]},
        "openmpi": {4096: [ours * 3, ours * 4], 1 << 20: [ours * 2, ours]},
        "mpich": {4096: [ours * 2, ours * 6], 1 << 20: [None, ours]},
    }
    measured = {"times": times, "limit": {4096: [ours / 2] * 2, 1 << 20: [ours / 4] * 2}}
    header, rows = run.table(run.COMPARISONS[1], measured)
    assert header[1:4] == ["Open MPI", "MPICH", "paceline"]
    # Rounds of 2/1 and 4/2; at 1 MiB ours failed in the second round, MPICH in the first.
    assert rows[0][4:] == ["2.00 (2.00–2.00)", "0.5", "3.00 (2.00–4.00)"]
    assert rows[1][4:] == ["2.00 (2.00–2.00)", "0.2", "4.00 (4.00–4.00)"]
    assert run.table(run.COMPARISONS[0], measured) is None
    run.show({2: measured}, markdown=True)
    assert "Without torch, 2 ranks, microseconds:\n\n| size | Open MPI |" in capsys.readouterr().out


def test_every_system_can_be_launched():
    import systems

    for system in systems.SYSTEMS.values():
        launched = systems.launches(system, 3, ["--sizes", "4096"])
        assert len(launched) == (1 if system.environment else 3)
        assert all("4096" in process.words and str(systems.RANK) in process.words for process in launched)
    assert {system.environment for system in systems.SYSTEMS.values()} - {""} <= set(systems.environments.REQUIREMENTS)
