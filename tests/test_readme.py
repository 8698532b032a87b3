"""The README's sessions print what the README says, and its Python runs."""

import re
from pathlib import Path

import pytest
from test_examples import run

README = (Path(__file__).parent.parent / "README.md").read_text()
SESSIONS = re.findall(r"```\n\$ (paceline [^\n]*)\n(.*?)```", README, re.DOTALL)


def test_there_are_sessions():
    assert len(SESSIONS) >= 3


@pytest.mark.parametrize(("command", "output"), SESSIONS, ids=lambda text: text.split("\n")[0][:60])
def test_session(command: str, output: str):
    assert run(command) == output


def test_python():
    *_, code = re.findall(r"```python\n(.*?)```", README, re.DOTALL)
    exec(code, {})
