"""Shell completion: its suggestions, and that it is fast."""

import os
import resource
import shutil
import subprocess
import sys
from pathlib import Path

import cli
import click
import pytest
from click.shell_completion import ShellComplete
from paceline.cli.help_layout import Alias, placeholder
from paceline.cli.main import all_commands, main
from paceline.settings.table import SETTINGS

PROGRAM = Path(sys.executable).with_name("paceline")


def question(instruction, words="", at=0):
    environ = os.environ | {"_PACELINE_COMPLETE": instruction, "COMP_WORDS": words, "COMP_CWORD": str(at)}
    return cli.ended(PROGRAM, env=environ, check=True).stdout


@pytest.mark.parametrize("shell", ["bash", "zsh"])
def test_the_script_is_one_that_the_shell_reads(shell, tmp_path):
    script = tmp_path / "complete"
    script.write_text(question(f"{shell}_source"))
    assert "_PACELINE_COMPLETE" in script.read_text()
    if shutil.which(shell):
        subprocess.run([shell, "-n", str(script)], check=True)


def test_commands_and_options_are_completed():
    names = [line.split(",")[1] for line in question("bash_complete", "paceline ", 1).splitlines()]
    assert set(names) == set(all_commands())
    assert question("bash_complete", "paceline simul", 1) == "plain,simulate\n"
    assert "plain,--bandwidth\n" in question("bash_complete", "paceline simulate --b", 2)


def test_commands_are_completed_without_importing_them():
    code = (
        "import sys; from click.shell_completion import ShellComplete; from paceline.cli.main import main;"
        "assert ShellComplete(main, {}, 'paceline', 'X').get_completions([], '');"
        "assert ShellComplete(main, {}, 'paceline', 'X').get_completions(['list'], 'm')[0].value == 'models';"
        "print(*sorted(name for name in sys.modules if name.startswith('paceline.cli.')))"
    )
    imported = cli.ended(sys.executable, "-c", code, check=True).stdout.split()
    assert not {"paceline.cli.simulate", "paceline.cli.models", "paceline.cli.run"} & {*imported}


def test_bash_completes(tmp_path):
    """As bash does it: the function that the script defines fills COMPREPLY."""
    script = tmp_path / "complete.bash"
    script.write_text(question("bash_source"))
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
        question("bash_complete", "paceline simulate --st", 2)
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
        (("simulate", "--compression", ""), ["none", "fp16", "powersgd:4"]),
        (("simulate", "--coordinator", ""), ["negotiate"]),
        (("simulate", "allr"), ["allreduce:1GB"]),
        (("simulate", "--chunk", "per"), ["per-worker"]),
        (("validate", "--trace", "resnet-50,v"), ["resnet-50,vgg-16"]),
        (("run", "--interface", "lo"), ["lo"]),
        (("run", "--transport", "grpc"), ["grpc+tcp"]),
        (("bench", "--install", ""), ["openmpi"]),
        (("libraries", "ch"), ["channels"]),
        (("advise", "--checkpointing", ""), ["none", "selective", "full"]),
        (("simulate", "--bucket-size", ""), ["none"]),
        (("simulate", "--send-order", ""), ["recorded", "forward", "reverse"]),
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
    assert "ps" in completed("simulate", "--baseline", "p")
    # `strategy=ps,servers=1` is one baseline, in which no second strategy follows.
    assert completed("simulate", "--baseline", "ps,") == []


def test_files_are_completed_beside_names_and_where_no_name_begins_so(tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    for name in ("mine.json", "minutes.txt", "dgx-mine.json"):
        (tmp_path / name).touch()
    assert "mine.json" in completed("simulate", "mi") and "minutes.txt" not in completed("simulate", "mi")
    assert {"dgx-h100", "dgx-mine.json"} <= {*completed("simulate", "--cluster", "dgx-")}
    assert completed("simulate", "--cluster", "./m") == ["file"]
    assert completed("simulate", "./m") == ["file"]
    assert completed("simulate", "--gpu", "nothing") == []


def forecasts():
    for command in ("simulate", "advise"):
        for option in main.get_command(None, command).params:
            if isinstance(option, click.Option) and not option.is_flag and not option.hidden:
                yield command, option


FREE = {"N", "X", "RATE", "TIME", "NUMBER", "PATTERN", "KIND:N", "RANK:X", "LINK:X", "MONEY", "SECONDS", "WATTS"}
FREE |= {"SHARE", "RANK[:MODULES]", "MODULE", "VALUE"}
"""Values without names."""


@pytest.mark.parametrize(("command", "option"), list(forecasts()), ids=lambda it: getattr(it, "name", it))
def test_each_option_with_names_completes(command, option):
    """Each name that is offered is accepted; those of a list follow a comma, once."""
    flag, of = option.opts[-1], placeholder(option)
    items = completed(command, flag, "")
    if of == "FILE":
        assert items == ["file"]
        return
    name = option.of if isinstance(option, Alias) else option.name
    setting = SETTINGS[name]
    words = [word for word in option.type.name.removesuffix(",…").split("|") if word.islower()]
    assert ("NAME" not in of and not words) or items, of
    assert items or of.removesuffix(",…") in FREE | {"SIZE"}
    for item in items:
        setting.check(item, place=command)
    if setting.kind_of(command).is_list and len(items) > 1:
        following = completed(command, flag, f"{items[0]},")
        assert f"{items[0]},{items[1]}" in following and items[0] not in following


def test_bash_breaks_words_where_values_do_not(tmp_path):
    """It keeps what is before `:`, `=` or `@`, and replaces the rest; the line says what the word was."""
    for line, broken, answered in (
        ("simulate llama-3-8b@h10", "h10", ["h100", "h100-96gb", "h100-pcie"]),
        ("simulate llama-3-8b@", "@", ["h100", "a10g"]),
        ("simulate --compression powersgd:", ":", ["4"]),
        ("simulate --sharding=zero3,h", "zero3,h", ["zero3,hsdp"]),
        ("simulate --sharding zero3,h", "zero3,h", ["zero3,hsdp"]),
        ("simulate --sharding ", "", ["hsdp", "none"]),
    ):
        values = {"COMP_BEFORE": f"paceline {line}", "COMP_BROKEN": broken}
        environ = os.environ | {"_PACELINE_COMPLETE": "bash_complete", "COMP_WORDS": "", "COMP_CWORD": "0"} | values
        printed = cli.ended(PROGRAM, env=environ, check=True).stdout.splitlines()
        assert {f"plain,{value}" for value in answered} <= {*printed}


def test_lists_are_completed_in_every_shell():
    assert "COMP_LINE" in question("bash_source")
    assert 'string split -m 1 ","' in question("fish_source")
    assert (
        "plain,zero3,hsdp"
        in cli.ended(
            PROGRAM,
            env=os.environ
            | {
                "_PACELINE_COMPLETE": "fish_complete",
                "COMP_WORDS": "paceline simulate --sharding",
                "COMP_CWORD": "zero3,h",
            },
            check=True,
        ).stdout.splitlines()
    )
    assert "zero3,hsdp" in question("zsh_complete", "paceline simulate --sharding zero3,h", 3).splitlines()


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
