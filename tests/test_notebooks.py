"""The tutorials' notebooks run from beginning to end, and find what they say."""

from pathlib import Path

import pytest

nbformat = pytest.importorskip("nbformat")
nbclient = pytest.importorskip("nbclient")
pytest.importorskip("ipykernel")

TUTORIALS = Path(__file__).parent.parent / "docs" / "tutorials"
pytestmark = pytest.mark.slow


def printed(name: str) -> str:
    """What the cells print and show, as text."""
    notebook = nbformat.read(TUTORIALS / name, as_version=4)
    nbclient.NotebookClient(notebook, timeout=120, kernel_name="python3").execute()
    outputs = [output for cell in notebook.cells for output in cell.get("outputs", [])]
    said = [output.get("text") or output.get("data", {}).get("text/plain", "") for output in outputs]
    pictures = [kind for output in outputs for kind in output.get("data", {}) if kind.startswith("image/")]
    return "\n".join([*said, *pictures])


def test_forecast():
    pytest.importorskip("pandas")
    text = printed("forecast-notebook.ipynb")
    assert "of linear scaling" in text
    assert "halving-doubling" in text
    assert "image/png" in text


def test_record_and_doctor():
    pytest.importorskip("torch")
    text = printed("record-and-doctor.ipynb")
    assert "exposed communication" in text
    assert "1. Straggler: rank 1" in text


def test_none_keeps_outputs():
    for path in sorted(TUTORIALS.glob("*.ipynb")):
        for cell in nbformat.read(path, as_version=4).cells:
            assert not cell.get("outputs"), f"{path.name}: clear the outputs; `make docs` runs it"
