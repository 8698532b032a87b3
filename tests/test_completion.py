"""Shell completion: its suggestions, and that it is fast."""

import os
import resource
import shutil
import subprocess
import sys
from pathlib import Path

import pytest
from paceline.cli.main import COMMANDS

PROGRAM = Path(sys.executable).with_name("paceline")


def asked(instruction, words="", at=0):
    environ = os.environ | {"_PACELINE_COMPLETE": instruction, "COMP_WORDS": words, "COMP_CWORD": str(at)}
    return subprocess.run([PROGRAM], env=environ, capture_output=True, text=True, check=True).stdout


@pytest.mark.parametrize("shell", ["bash", "zsh"])
def test_the_script_is_one_that_the_shell_reads(shell, tmp_path):
    script = tmp_path / "complete"
    script.write_text(asked(f"{shell}_source"))
    assert "_PACELINE_COMPLETE" in script.read_text()
    if shutil.which(shell):
        subprocess.run([shell, "-n", str(script)], check=True)


def test_commands_and_options_are_completed():
    names = [line.split(",")[1] for line in asked("bash_complete", "paceline ", 1).splitlines()]
    assert set(names) == set(COMMANDS)
    assert asked("bash_complete", "paceline simul", 1) == "plain,simulate\n"
    assert "plain,--bandwidth\n" in asked("bash_complete", "paceline simulate --b", 2)


def test_bash_completes(tmp_path):
    """As bash does it: the function that the script defines fills COMPREPLY."""
    script = tmp_path / "complete.bash"
    script.write_text(asked("bash_source"))
    lines = (
        f". {script}; COMP_WORDS=(paceline doct); COMP_CWORD=1; _paceline_completion {PROGRAM}; echo ${{COMPREPLY[@]}}"
    )
    done = subprocess.run(["bash", "-c", lines], capture_output=True, text=True, check=True)
    assert done.stdout.strip() == "doctor"


def test_nobody_waits_for_the_tab_key():
    """Measured in CPU time, which other programs on the machine hardly affect."""
    taken = []
    for _ in range(5):
        before = resource.getrusage(resource.RUSAGE_CHILDREN)
        asked("bash_complete", "paceline simulate --st", 2)
        after = resource.getrusage(resource.RUSAGE_CHILDREN)
        taken.append(after.ru_utime + after.ru_stime - before.ru_utime - before.ru_stime)
    assert min(taken) < 0.4
