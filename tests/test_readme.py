"""The README's and the documentation's sessions print what they say, their Python runs, and their links lead somewhere.

`python tests/test_readme.py --write` renews the sessions.
"""

import re
import shlex
import sys
from pathlib import Path

import cli
import pytest
from test_examples import run

ROOT = Path(__file__).parent.parent
PAGES = [ROOT / "README.md", *sorted((ROOT / "docs").glob("[!_]*/**/*.md"))]
SESSION = re.compile(r"```(?:console)?\n\$ (paceline [^\n]*)\n(.*?)```", re.DOTALL)
# Output of a command that measures: another at each run.
MEASURES = (
    "paceline record",
    "paceline probe",
    "paceline bench",
    "paceline validate",
    "paceline run",
    "paceline emulate",
)
SESSIONS = [
    (page, command, output)
    for page in PAGES
    for command, output in SESSION.findall(page.read_text(encoding="utf-8"))
    if not command.startswith(MEASURES)
]
PYTHON = re.compile(r"```python\n((?:import numpy as np\n)?import paceline\n.*?)```", re.DOTALL)
SNIPPETS = [(page, code) for page in PAGES for code in PYTHON.findall(page.read_text(encoding="utf-8"))]


def name(value: object) -> str:
    return str(value.relative_to(ROOT)) if isinstance(value, Path) else str(value).split("\n")[0][:60]


def test_there_are_sessions():
    assert len(SESSIONS) >= 5
    assert SNIPPETS


@pytest.mark.parametrize(("page", "command", "output"), SESSIONS, ids=name)
def test_session(page: Path, command: str, output: str):
    assert run(command) == output


@pytest.mark.parametrize(("page", "code"), SNIPPETS, ids=name)
def test_python(page: Path, code: str):
    exec(code, {})


@pytest.mark.parametrize("page", PAGES, ids=name)
def test_links(page: Path):
    """Of files in this repository; `make docs` checks anchors."""
    text = re.sub(r"```.*?```", "", page.read_text(encoding="utf-8"), flags=re.DOTALL)
    for target in re.findall(r"\]\(([^)#\s]+)[^)]*\)", text):
        if not target.startswith(("http://", "https://")):
            assert (page.parent / target).exists(), target


# Names of files' fields, of other programs, and what units may be typed as.
TYPED = re.compile(r"```.*?```|`[^`]*`|\]\([^)]*\)|<!-- [a-z-]+ -->\n.*?(?=\n#|<!-- end|\Z)", re.DOTALL)
UNITS = re.compile(r"\d %|[kMGT]bit/s|\d times (?:as fast|faster|slower)")
GENERATED = ("libraries.md", "machines.md", "settings.md", "network-operator.md")


@pytest.mark.parametrize("page", [page for page in PAGES if page.name not in GENERATED], ids=name)
def test_units_are_those_of_the_output(page: Path):
    """`71.3%`, `100 Gbps`, `1.85x`."""
    assert not UNITS.findall(TYPED.sub("", page.read_text(encoding="utf-8")))


@pytest.mark.parametrize("page", PAGES, ids=name)
def test_a_page_begins_with_its_answer(page: Path):
    assert not re.search(r"^# .*\n+This (?:page|guide)\b", page.read_text(encoding="utf-8"))


def test_readme_is_short():
    assert len((ROOT / "README.md").read_text(encoding="utf-8").splitlines()) <= 120


FIGURES = {
    "paceline advise llama-3.1-8b --lora 16 --quantize nf4 --gpu rtx-4090 --gpus 1 --seq 2048": ["2,194", "2,744"],
    "paceline advise llama-3-70b --lora 16 --gpu a6000 --gpus 4 --seq 4096": [
        *("50.0", "48.3 of", "51.0 GB", "--quantize nf4", "--offload cpu", "--loss-chunks 8"),
    ],
    "paceline advise llama-3-70b --lora 16 --quantize nf4 --gpu a6000 --gpus 4 --seq 4096": [
        "37.4",
        "28.3 GB",
        "23.7 s",
    ],
}
"""Of commands in docs/how-to/fine-tune.md: figures of the text around them."""
COMMENTED = re.compile(r"^(paceline simulate [^#\n]*)   # ([\d.]+) GB, ([\d.]+ s)$", re.MULTILINE)


FINE_TUNE = (ROOT / "docs/how-to/fine-tune.md").read_text(encoding="utf-8")


@pytest.mark.parametrize(
    ("command", "figures"),
    [
        *(pytest.param(command, figures, marks=pytest.mark.slow) for command, figures in FIGURES.items()),
        *((command, [size, time]) for command, size, time in COMMENTED.findall(FINE_TUNE)),
    ],
    ids=name,
)
def test_figures_in_text_are_those_of_the_output(command, figures):
    output = cli.output(*shlex.split(command)[1:])
    assert command in FINE_TUNE
    for figure in figures:
        assert figure in FINE_TUNE and figure in output, figure


if __name__ == "__main__":
    assert sys.argv[1:] == ["--write"], "usage: python tests/test_readme.py --write"
    for page in PAGES:
        text = page.read_text(encoding="utf-8")
        renewed = SESSION.sub(
            lambda result: (
                result[0] if result[1].startswith(MEASURES) else f"```console\n$ {result[1]}\n{run(result[1])}```"
            ),
            text,
        )
        if renewed != text:
            page.write_text(renewed, encoding="utf-8")
