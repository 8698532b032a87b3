"""What an error advises works: the command that it names, or the option, the value or the name that it proposes."""

import re
import shlex
from pathlib import Path

import pytest
from click.testing import CliRunner
from paceline.cli.main import main

ROOT = Path(__file__).parent.parent
TINY = str(ROOT / "examples" / "tiny.json")
LLAMA = "simulate llama-3-8b --gpu h100 --strategy native"
MISTAKES = [
    "simulate resnet5 --workers 2",
    "simulate llama-3-8b --workers 8",
    "simulate {tiny} --workers 2 --bandwidth 10",
    "simulate {tiny} --workers 2 --bandwidth 10GB",
    "simulate {tiny} --workers 2 --latency 5",
    "simulate {tiny} --workers 2 --strategy rign",
    "simulate {tiny} --workers 2 --bucket-size 25",
    "simulate {tiny} --workers 4 --servers 2 --strategy ring",
    "simulate {tiny} --workers 4 --chunk 1MB --strategy native",
    "simulate {tiny} --workers 4 --tensor-parallel 2",
    "simulate {tiny} --workers 4 --gpu h100",
    "simulate {tiny} --workers 4 --coordinator negotiat",
    "simulate {tiny} --workers 4 --library horovd",
    "simulate {tiny} --workers 4 --prefetch 2",
    "simulate {tiny} --workers 4 --bandwith 10Gbps",
    "simulate {tiny} --workers 4 --cluster p3.16xlrge",
    "simulate allreduce:1MB --workers 4 --compute-speedup 2",
    "simulate allreduce",
    "simulate allgather:1GB --workers 8",
    "simulate all-gather:1GB --cluster dgx-h100 --workers 8",
    "simulate gpt2-xxl --gpu h100 --workers 8",
    f"{LLAMA} --gpus 16 --pipeline-parallel 2",
    f"{LLAMA} --gpus 16 --pipeline-parallel 2 --microbatches 3 --virtual-stages 2",
    f"{LLAMA} --gpus 16 --sharding fdsp",
    f"{LLAMA} --gpus 16 --sharding zero3:8",
    f"{LLAMA} --gpus 16 --prefetch 2",
    f"{LLAMA} --gpus 16 --reshard-after-forward no",
    f"{LLAMA} --gpus 16 --virtual-stages 2",
    "advise",
    "advise gpt2-small --gpu a100",
    "advise gpt2-smal --gpu a100 --gpus 8",
    "advise gpt2-small --gpu a100 --gpus 8 --global-batch 3",
    "models llama",
    "models --gpu h100",
    "traces resnet5",
    "clusters dgx-h10",
    "libraries horovd",
    "study",
    "study raysgd",
    "simulat {tiny} --workers 2",
    "run -np 2 --strategy rign -- true",
]


def corrected(words, message):
    """Every command line that follows the message, in the order of how plainly it says so."""
    line = shlex.join(words)
    for command in re.findall(r"(?:`|: |try )paceline ([a-z][^`;]*)", message):
        yield shlex.split(re.sub(r"\b(NAME|GPU|TRACE)\b", "", command))
    wrong = re.search(r"(?:unknown \w+(?: or model)?|No such option|no such command|: |^)\s*'([^']+)'", message)
    wrong = wrong and wrong[1]
    if wrong is not None and wrong not in line:
        wrong = None
    for value in re.findall(
        r"(?:[Dd]id you mean one of:|[Dd]id you mean|write|such as|is|as in) '?([\w.@:/-]+)'?", message
    ):
        if wrong and ":" in value and f"{wrong}:" in line:
            yield [value if word.startswith(f"{wrong}:") else word for word in words]
        elif wrong and value not in ("meant", "unknown"):
            yield shlex.split(line.replace(wrong, value))
        elif "as in" in message or "such as" in message:
            yield [words[0], value, *words[2:]]
    for option, value in re.findall(r"(--[a-z][\w-]*) ([\w.:/,-]*\w)", message):
        kept = list(words)
        while option in kept:
            del kept[kept.index(option) : kept.index(option) + 2]
        yield [*kept, option, value]
    if "leave it out" in message:
        option = re.search(r"(--[\w-]+)", message)[1]
        at = words.index(option)
        yield [*words[:at], *words[at + 2 :]]


def attempt(words):
    return CliRunner().invoke(main, words)


@pytest.mark.parametrize("mistake", MISTAKES)
def test_what_an_error_advises_works(mistake):
    words = shlex.split(mistake.format(tiny=TINY))
    refused = attempt(words)
    assert refused.exit_code == 2, refused.output
    message = refused.stderr.splitlines()[-1].removeprefix("paceline: error: ")
    advised = list(corrected(words, message))
    assert advised, message
    results = {shlex.join(one): attempt(one) for one in advised[:4]}
    assert any(result.exit_code == 0 for result in results.values()), (
        message,
        {k: r.stderr for k, r in results.items()},
    )
    for one in re.findall(r"`paceline ([a-z]+(?: --help)?)`", message):
        assert attempt(one.split()).exit_code == 0, one


def test_pages_of_errors_say_what_is_so():
    """Python's examples in docs/reference/errors.md."""
    text = (ROOT / "docs" / "reference" / "errors.md").read_text(encoding="utf-8")
    examples = re.findall(r"```python\n(.*?)```", text, re.DOTALL)
    assert examples
    for example in examples:
        wanted = dict(re.findall(r"^\s+(error\.\w+)  # (.+)$", example, re.MULTILINE))
        seen = {}
        code = re.sub(r"^(\s+)(error\.\w+)  # .+$", r"\1seen['\2'] = repr(\2)", example, flags=re.MULTILINE)
        exec(code, {"paceline": __import__("paceline"), "seen": seen})
        assert seen == wanted
