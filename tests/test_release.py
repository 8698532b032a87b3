"""What a release says of itself in several places is the same everywhere."""

import re
import tomllib
from pathlib import Path

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
    links = set(re.findall(r"^\[(.+?)\]: https://", text, re.MULTILINE))
    assert links == {name for name, _ in headings}


def test_extras_that_are_named_exist():
    extras = set(PYPROJECT["optional-dependencies"])
    named = {}
    for path in [*ROOT.glob("python/**/*.py"), *ROOT.glob("docs/**/*.md"), ROOT / "README.md", ROOT / "Makefile"]:
        text = path.read_text(encoding="utf-8")
        for words in re.findall(r"pip install '(?:paceline|\.)\[([a-z,]+)\]'", text) + re.findall(
            r"--extra ([a-z]+)", text
        ):
            named |= dict.fromkeys(words.split(","), path)
    assert len(named) >= 6
    assert not {name: path for name, path in named.items() if name not in extras}


def test_the_oldest_python_is_the_same_everywhere():
    oldest = PYPROJECT["requires-python"].removeprefix(">=")
    classifiers = [text.rpartition(" ")[2] for text in PYPROJECT["classifiers"] if re.search(r":: 3\.\d+$", text)]
    assert classifiers[0] == oldest
    tests = (ROOT / ".github/workflows/tests.yml").read_text(encoding="utf-8")
    assert sorted(set(re.findall(r'python: "(3\.\d+)"', tests))) == classifiers
    crate = tomllib.loads((ROOT / "crates/paceline-py/Cargo.toml").read_text(encoding="utf-8"))
    assert f"abi3-py{oldest.replace('.', '')}" in crate["dependencies"]["pyo3"]["features"]
