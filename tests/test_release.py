"""What a release says of itself in several places is the same everywhere."""

import contextlib
import re
import tomllib
from pathlib import Path

import cli
import pytest

ROOT = Path(__file__).parent.parent
PYPROJECT = tomllib.loads((ROOT / "pyproject.toml").read_text(encoding="utf-8"))["project"]
VERSION = tomllib.loads((ROOT / "Cargo.toml").read_text(encoding="utf-8"))["workspace"]["package"]["version"]


def test_the_version_is_that_of_cargo():
    assert "version" in PYPROJECT["dynamic"] and "version" not in PYPROJECT
    assert f"\nversion: {VERSION}\n" in (ROOT / "CITATION.cff").read_text(encoding="utf-8")
    lock = tomllib.loads((ROOT / "Cargo.lock").read_text(encoding="utf-8"))
    ours = {
        package["name"]: package["version"] for package in lock["package"] if package["name"].startswith("paceline")
    }
    assert set(ours.values()) == {VERSION}, ours


def test_the_changelog_tells_of_the_version():
    text = (ROOT / "CHANGELOG.md").read_text(encoding="utf-8")
    headings = re.findall(r"^## \[(.+?)\](?: - (\d{4}-\d{2}-\d{2}))?$", text, re.MULTILINE)
    assert headings[0] == ("Unreleased", "")
    assert headings[1][0] == VERSION and all(date for _, date in headings[1:])


def tracked():
    """Every file of the repository that is text, and what it says."""
    if not (ROOT / ".git").exists():
        pytest.skip("not a checkout: git does not say which files belong to it")
    done = cli.ended("git", "ls-files", "-z", cwd=ROOT, check=True)
    for name in done.stdout.split("\0"):
        path = ROOT / name
        if path.is_file():
            with contextlib.suppress(UnicodeDecodeError):
                yield name, path.read_text(encoding="utf-8")


# Where anybody could take the name of a project that has no home.
OF_OTHERS = re.compile(
    r"(?:github\.com|gitlab\.com|codeberg\.org|bitbucket\.org)[/:]paceline"
    r"|pypi\.org/(?:project/)?paceline|paceline\.(?:readthedocs|github)\.io"
)
# From an index: not from a folder, nor a wheel by its path.
BY_NAME = re.compile(
    r"\b(?:pip3?|pipx|uv|uvx|conda|mamba)\s+(?:\w+\s+)?install\s+(?:-\S+\s+)*['\"]?paceline(?![-\w/.*])"
    r"|\bpaceline\[[a-z, ]+\]"
)


def test_nobody_is_sent_to_what_is_not_ours():
    """Whoever took that address, or the name on an index, would serve code to our readers (CONTRIBUTING.md, Home)."""
    home = PYPROJECT["urls"].get("Source")
    sent = [
        (name, result[0])
        for name, text in tracked()
        for pattern in (OF_OTHERS, BY_NAME)
        for result in pattern.finditer(text)
        if not (home and name == "pyproject.toml")
    ]
    assert not sent


@pytest.mark.parametrize(
    ("text", "wrong"),
    [
        ("pip install {}", True),
        ("uv pip install -U '{}'", True),
        ("`pip\ninstall {}`", True),
        ("needs '{}[torch]'", True),
        ("pip install {}-0.2.0.whl", False),
        ("pip install dist/{}-*.whl", False),
        ("pip install '.[torch]'\n{} run", False),
    ],
)
def test_what_counts_as_installing_by_name(text, wrong):
    assert bool(BY_NAME.search(text.format("paceline"))) == wrong


def test_extras_that_are_named_exist():
    extras = set(PYPROJECT["optional-dependencies"])
    named = {}
    for path in [*ROOT.glob("python/**/*.py"), *ROOT.glob("docs/**/*.md"), ROOT / "README.md", ROOT / "Makefile"]:
        text = path.read_text(encoding="utf-8")
        for words in re.findall(r"pip install '\.\[([a-z,]+)\]'", text) + re.findall(r"--extra ([a-z]+)", text):
            named |= dict.fromkeys(words.split(","), path)
    assert len(named) >= 6
    assert not {name: path for name, path in named.items() if name not in extras}


def test_extras_that_consist_of_others():
    """They are written out: the package's own name in a requirement is a name of an index."""
    extras = PYPROJECT["optional-dependencies"]
    assert set(extras["bench"]) == {*extras["torch"], *extras["plot"], *extras["emulate"]}
    assert set(extras["study"]) == set(extras["plot"])


def test_the_oldest_python_is_the_same_everywhere():
    oldest = PYPROJECT["requires-python"].removeprefix(">=")
    classifiers = [text.rpartition(" ")[2] for text in PYPROJECT["classifiers"] if re.search(r":: 3\.\d+$", text)]
    assert classifiers[0] == oldest
    tests = (ROOT / ".github/workflows/tests.yml").read_text(encoding="utf-8")
    assert sorted(set(re.findall(r'python: "(3\.\d+)"', tests))) == classifiers
    crate = tomllib.loads((ROOT / "crates/paceline-py/Cargo.toml").read_text(encoding="utf-8"))
    assert f"abi3-py{oldest.replace('.', '')}" in crate["dependencies"]["pyo3"]["features"]
