"""The names of exceptions and their base classes."""

import pickle
import traceback

import paceline
import pytest
from paceline.cli import usage
from paceline.cli.usage import show_error


def test_every_error_is_a_paceline_error_and_of_python_s_own_kind():
    assert issubclass(paceline.InvalidArgumentError, (paceline.PacelineError, ValueError))
    assert issubclass(paceline.JobError, (paceline.PacelineError, RuntimeError))
    with pytest.raises(paceline.PacelineError, match="unknown trace"):
        paceline.simulate("resnet-5", strategy="ring", workers=2)


def test_the_old_name_works_with_a_warning():
    with pytest.warns(DeprecationWarning, match="paceline.UserError is now paceline.InvalidArgumentError"):
        assert paceline.UserError is paceline.InvalidArgumentError
    with pytest.warns(DeprecationWarning, match="paceline.job.UserError"):
        assert paceline.job.UserError is paceline.InvalidArgumentError
    with pytest.raises(AttributeError, match="no attribute 'nothing'"):
        paceline.nothing  # noqa: B018


def test_native_errors_are_these():
    with pytest.raises(paceline.InvalidArgumentError) as caught:
        paceline.Trace.all_reduce("allreduce:3")
    assert type(caught.value) is paceline.InvalidArgumentError


@pytest.mark.parametrize("version", ["2.4.0", "2.6.0+cpu"])
def test_a_torch_over_which_ddp_would_hang_is_refused(version):
    pytest.importorskip("torch")
    from paceline.torch.backend.register import check_torch
    from torch.torch_version import TorchVersion

    with pytest.raises(paceline.InvalidArgumentError, match=rf"torch {version[:3]}.*needs torch 2\.7 or newer"):
        check_torch(TorchVersion(version))
    for fine in ("2.7.0", "2.10.0+cpu", "2.15.0.dev20261101", "3.0.0a0"):
        check_torch(TorchVersion(fine))


def test_an_error_is_one_line_and_its_remedy_a_note():
    with pytest.raises(paceline.JobError, match="try: a longer --timeout") as caught:
        raise paceline.JobError("rank 0 waited 12 s", remedy="a longer --timeout")
    for error in (caught.value, pickle.loads(pickle.dumps(caught.value))):
        assert (str(error), error.remedy) == ("rank 0 waited 12 s", "a longer --timeout")
        assert traceback.format_exception_only(error) == [
            "paceline.errors.JobError: rank 0 waited 12 s\n",
            "  try: a longer --timeout\n",
        ]
    assert paceline.JobError("failed").remedy is None
    assert not hasattr(paceline.JobError("failed"), "__notes__")


def test_a_remedy_is_spelled_as_the_caller_spells_settings():
    def error() -> paceline.InvalidArgumentError:
        return paceline.InvalidArgumentError("needs sharding", remedy="{sharding=zero3}, {batch=8} or {stragglers}")

    said = {
        "keyword": "sharding='zero3', batch=8 or stragglers",
        "flag": "--sharding zero3, --batch 8 or --straggler",
        "key": 'sharding = "zero3", batch = 8 or stragglers',
    }
    assert error().remedy == said["keyword"]
    for kind, words in said.items():
        moved = error().at("prefetch", paceline.errors.Source(kind, "prefetch")).within("ring with 4 workers")
        for one in (moved, pickle.loads(pickle.dumps(moved))):
            assert one.remedy == words
            assert one.__notes__ == [f"  try: {words}"]
    moved.add_note("of the caller")
    moved.at("prefetch")
    assert len(moved.__notes__) == 2


def test_a_terminal_breaks_long_remedies_only_between_what_is_typed(monkeypatch, capsys):
    remedy = "--sharding zero3 with --prefetch 2, or 'a name', or paceline list gpus --json, or PACELINE_X=1"
    show_error("short", remedy)
    assert capsys.readouterr().err == f"paceline: error: short\n  try: {remedy}\n"
    monkeypatch.setattr(usage, "on_terminal", lambda: True)
    for columns in range(20, 120):
        monkeypatch.setattr(usage, "width", lambda columns=columns: columns)
        show_error("short", remedy)
        lines = capsys.readouterr().err.splitlines()
        [start] = [i for i, line in enumerate(lines) if line.startswith("  try: ")]
        assert all(line.startswith("    ") for line in lines[start + 1 :])
        assert " ".join(line.strip() for line in lines[start:]) == f"try: {remedy}"
        for typed in ("--sharding zero3", "--prefetch 2", "paceline list gpus --json", "PACELINE_X=1"):
            assert any(typed in line for line in lines)
        if columns >= 40:
            assert all(len(line) <= columns for line in lines)
