"""The rows of scripts/publications.py: all 127, and nothing that a study does not have."""

import importlib.util
import re
import sys
from pathlib import Path

import pytest
from paceline_lab.studies import claims, run_study

# The studies run once, on one worker.
pytestmark = pytest.mark.xdist_group("studies")
ROOT = Path(__file__).parent.parent
COUNTS = {"000": 14, "001": 50, "002": 12, "003": 32, "004": 19}
"""Of the systems, options, experiments, figures and sentences that an audit of the publications lists: 127."""
FAST = ("ray-sgd", "ddl-nccl", "cuda-aware-mpi", "network-operator")


def script():
    spec = importlib.util.spec_from_file_location("publications", ROOT / "scripts" / "publications.py")
    module = importlib.util.module_from_spec(spec)
    sys.modules["publications"] = module
    spec.loader.exec_module(module)
    return module


publications = script()
ROWS = publications.read_rows()


def test_every_row_is_there():
    expected = {f"{publication}-{number}" for publication, count in COUNTS.items() for number in range(1, count + 1)}
    assert expected <= {row.id for row in ROWS}
    assert set(publications.titles()) == set(COUNTS)


def test_each_row_tests_something():
    for row in ROWS:
        assert row.live or row.forecast or row.study, row.id
        assert bool(row.live) == bool(row.shows), row.id
        assert not row.live or re.compile(row.shows), row.id
        assert len(row.value) == len(row.bounds), row.id
        assert not row.forecast or row.value or row.prints, row.id
        assert bool(row.study) == bool(row.rows or row.claims), row.id
        assert not row.fails or row.study or row.forecast, f"{row.id}: the figures of what fails are printed"


@pytest.mark.slow
@pytest.mark.parametrize("name", FAST)
def test_rows_and_claims_are_those_of_the_study(name):
    study = run_study(name)
    for row in ROWS:
        if row.study == name:
            for beginning in row.rows:
                assert any(f"{it.table}: {it.row}".startswith(beginning) for it in study.rows), (row.id, beginning)


def test_every_claim_of_a_study_is_in_a_row():
    left = {(study, claim["claim"]) for study, all_claims in claims._claims().items() for claim in all_claims}
    for row in ROWS:
        for beginning in row.claims:
            own = [claim["claim"] for claim in claims._claims()[row.study] if claim["claim"].startswith(beginning)]
            assert len(own) == 1, (row.study, beginning)
            left.discard((row.study, own[0]))
    assert left == set()


def test_numbers_of_documents():
    document = [{"a": 3, "b": {"c": 6}}]
    assert publications.at(document, "0.a") == 3
    assert publications.at(document, "0.b.c / 0.a") == 2


def test_a_row_that_breaks_is_named(tmp_path):
    row = publications.Row("000-1", "nothing", live="echo no; exit 3", shows="yes")
    outcome = publications.evaluate(row)
    assert not outcome.works and "exit 3" in outcome.verdict
    lacking = publications.evaluate(publications.Row("000-1", "nothing", live="true", shows="", needs=["nowhere"]))
    assert lacking.works and lacking.skipped == "needs nowhere"
    assert "not run here" in publications.page([lacking])


@pytest.mark.parametrize("only", ["", "zzz", "001-1,zzz", "001-1,"])
def test_a_row_that_there_is_not_is_an_error(only, monkeypatch, capsys):
    monkeypatch.setattr(sys, "argv", ["publications.py", "--only", only])
    monkeypatch.setattr(publications, "evaluate", None)
    with pytest.raises(SystemExit) as ended:
        publications.main()
    assert ended.value.code == 2
    assert f"no row or publication is {only.rpartition(',')[2]!r}; try: --only 000-1" in capsys.readouterr().err


def test_a_live_part_that_cannot_run_here_keeps_the_pages_cell(tmp_path, monkeypatch):
    row = publications.Row("000-1", "one | two", live="echo 3 | cat", shows="[0-9]", needs=["nowhere"])
    page = tmp_path / "page.md"
    monkeypatch.setattr(publications, "PAGE", page)
    lacking = publications.evaluate(row)
    assert not publications.kept(lacking)
    page.write_text(publications.page([publications.Outcome(row, live="3 | 4 ms")]))
    assert publications.kept(lacking)
    assert lacking.live == "3 | 4 ms"
    assert "| 3 \\| 4 ms |" in publications.patched([lacking])
    page.write_text(publications.page([publications.evaluate(row)]))
    assert not publications.kept(publications.evaluate(row))
