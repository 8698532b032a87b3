"""Paceline in one file, as pex and shiv make it: only the process that runs the file has its folders on sys.path."""

import os
import sys
import venv

import base_environment
import cli
import pytest
from paceline._internal import import_path

BUILT_IN = [one for one in sys.path if "python3" in one]
ALL_REDUCE = """
import array
from paceline import job
with job.join() as me:
    mine = array.array("f", [me.rank + 1.0] * 100)
    me.all_reduce(mine)
    print("sum", mine[0])
"""
# What such a file does: unpacks, adds the folder to its own path, and calls the entry point.
PROGRAM = "import site\nsite.addsitedir({folder!r})\nfrom paceline.__main__ import main\nmain()\n"


def shared(monkeypatch, home, path, given=None):
    """PYTHONPATH of children."""
    if given is None:
        monkeypatch.delenv("PYTHONPATH", raising=False)
    else:
        monkeypatch.setenv("PYTHONPATH", given)
    monkeypatch.setattr(sys, "path", path)
    import_path.share(str(home))
    return os.environ.get("PYTHONPATH")


def test_what_only_this_process_has_is_shared(monkeypatch, tmp_path):
    unpacked, needed, missing = tmp_path / "unpacked", tmp_path / "needed", tmp_path / "missing"
    unpacked.mkdir()
    needed.mkdir()
    path = [str(unpacked), *BUILT_IN, str(needed), str(missing)]
    own = f"{unpacked}{os.pathsep}{needed}"
    assert shared(monkeypatch, unpacked, path) == own
    assert shared(monkeypatch, unpacked, path, given="/other") == f"/other{os.pathsep}{own}"


def test_an_ordinary_installation_is_left_alone(monkeypatch, tmp_path):
    assert shared(monkeypatch, import_path.HOME, [*BUILT_IN, str(tmp_path)]) is None
    assert shared(monkeypatch, tmp_path, [str(tmp_path), *BUILT_IN], given=str(tmp_path)) == str(tmp_path)
    assert shared(monkeypatch, tmp_path, BUILT_IN) is None


@pytest.mark.process
@pytest.mark.parametrize("options", [(), ("--servers", "1", "--strategy", "ps")], ids=["ranks", "servers"])
def test_ranks_and_servers_of_a_packed_program(tmp_path, options):
    base = base_environment.make(tmp_path / "packed")
    (folder,) = base.parent.parent.glob("lib/python3*/site-packages")
    program, script = tmp_path / "program.py", tmp_path / "train.py"
    program.write_text(PROGRAM.format(folder=str(folder)))
    script.write_text(ALL_REDUCE)
    venv.create(tmp_path / "bare", symlinks=True)
    python = tmp_path / "bare/bin/python"
    environ = {name: value for name, value in os.environ.items() if name not in ("PYTHONPATH", "VIRTUAL_ENV")}
    words = [python, program, "run", "-np", "2", *options, "--", python, script]
    done = cli.ended(*words, env=environ, cwd=tmp_path)
    assert done.returncode == 0, done.stderr
    assert done.stdout.count("sum 3.0") == 2
