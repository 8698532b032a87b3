"""Shell completion: its suggestions, and that it is fast."""

import os
import resource
import shutil
import subprocess
import sys
from pathlib import Path

import cli
import pytest
from click.shell_completion import ShellComplete
from paceline.cli.main import all_commands, main

PROGRAM = Path(sys.executable).with_name("paceline")


def asked(instruction, words="", at=0):
    environ = os.environ | {"_PACELINE_COMPLETE": instruction, "COMP_WORDS": words, "COMP_CWORD": str(at)}
    return cli.ended(PROGRAM, env=environ, check=True).stdout


@pytest.mark.parametrize("shell", ["bash", "zsh"])
def test_the_script_is_one_that_the_shell_reads(shell, tmp_path):
    script = tmp_path / "complete"
    script.write_text(asked(f"{shell}_source"))
    assert "_PACELINE_COMPLETE" in script.read_text()
    if shutil.which(shell):
        subprocess.run([shell, "-n", str(script)], check=True)


def test_commands_and_options_are_completed():
    names = [line.split(",")[1] for line in asked("bash_complete", "paceline ", 1).splitlines()]
    assert set(names) == set(all_commands())
    assert asked("bash_complete", "paceline simul", 1) == "plain,simulate\n"
    assert "plain,--bandwidth\n" in asked("bash_complete", "paceline simulate --b", 2)


def test_bash_completes(tmp_path):
    """As bash does it: the function that the script defines fills COMPREPLY."""
    script = tmp_path / "complete.bash"
    script.write_text(asked("bash_source"))
    lines = (
        f". {script}; COMP_WORDS=(paceline doct); COMP_CWORD=1; _paceline_completion {PROGRAM}; echo ${{COMPREPLY[@]}}"
    )
    done = cli.ended("bash", "-c", lines, check=True)
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


def completed(*words):
    """What click completes for the last of these words, as `type,value`, or `type` for files."""
    shell = ShellComplete(main, {}, "paceline", "_PACELINE_COMPLETE")
    items = shell.get_completions(list(words[:-1]), words[-1])
    return ["file" if item.type == "file" else item.value for item in items]


@pytest.mark.parametrize(
    ("words", "some"),
    [
        (("simulate", "--strategy", ""), ["ring", "tree", "native", "hierarchical"]),
        (("run", "--strategy", "r"), ["ring", "recursive-doubling"]),
        (("simulate", "--gpu", "h1"), ["h100"]),
        (("advise", "--gpu", ""), ["a100-80gb", "h200"]),
        (("advise", "llama-3"), ["llama-3-8b", "llama-3-70b"]),
        (("simulate", ""), ["resnet-50", "llama-3-8b"]),
        (("simulate", "llama-3-8b@h1"), ["llama-3-8b@h100"]),
        (("models", "gpt2"), ["gpt2-xl"]),
        (("gpus", "a"), ["a100-80gb", "a10g"]),
        (("traces", ""), ["resnet-50"]),
        (("clusters", "dgx"), ["dgx-h100"]),
        (("libraries", ""), ["ddp", "horovod"]),
        (("simulate", "--cluster", "dgx"), ["dgx-h100"]),
        (("simulate", "--library", ""), ["ddp", "horovod"]),
        (("simulate", "--sharding", ""), ["zero3", "hsdp", "fsdp", "none"]),
        (("simulate", "--compression", ""), ["none", "fp16", "powersgd:"]),
        (("simulate", "--coordinator", ""), ["negotiate"]),
        (("simulate", "--device", ""), ["V100", "A100"]),
        (("advise", "--checkpointing", ""), ["none", "selective", "full"]),
        (("simulate", "--bucket-size", ""), ["none"]),
        (("simulate", "--dtype", "b"), ["bfloat16", "bf16"]),
        (("study", ""), ["ray-sgd"]),
        (("record", "--gpu", "h"), ["h100"]),
        (("bench", "--engine", ""), ["paceline", "ddp-gloo"]),
    ],
    ids=lambda words: " ".join(sorted(words) if isinstance(words, set) else words),
)
def test_values_are_completed(words, some):
    items = completed(*words)
    assert {*some} <= {*items}
    assert all(item.startswith(words[-1]) for item in items)


def test_the_last_item_of_a_list_is_completed():
    assert "ring,ps" in completed("simulate", "--strategy", "ring,p")
    assert "ring" not in completed("simulate", "--strategy", "ring,")
    assert completed("simulate", "--sharding", "zero3,h") == ["zero3,hsdp"]


def test_files_are_completed_where_no_name_begins_so():
    assert completed("simulate", "--cluster", "./m") == ["file"]
    assert completed("simulate", "./m") == ["file"]
    assert completed("simulate", "--gpu", "nothing") == []


@pytest.mark.parametrize("words", ["simulate --strategy ", "advise --gpu ", "models ", "simulate --cluster "])
def test_values_come_fast(words):
    """Nothing heavy is imported: the modules are few, and none is another package than click."""
    code = (
        "import sys; from click.shell_completion import ShellComplete; from paceline.cli.main import main;"
        f"*args, last = {words!r}.split(' ');"
        "assert ShellComplete(main, {}, 'paceline', 'X').get_completions(args, last);"
        "print(*{name.partition('.')[0] for name in sys.modules})"
    )
    done = cli.ended(sys.executable, "-c", code, check=True)
    assert not {"numpy", "torch", "rich", "matplotlib", "pandas", "ray", "tensorflow"} & set(done.stdout.split())
