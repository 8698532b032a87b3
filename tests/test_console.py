"""The progress bar, and lines of text."""

import io
import time

from paceline._internal import console


class Terminal(io.StringIO):
    def isatty(self):
        return True


def terminal(monkeypatch, shown):
    """Make it the standard error, which pytest replaces before each test."""
    monkeypatch.setattr(console, "_PATIENCE_S", 0.05)
    monkeypatch.setenv("TERM", "xterm")
    monkeypatch.setattr("sys.stderr", shown)
    return shown


def until(shown, words):
    deadline = time.monotonic() + 30
    while words not in shown.getvalue():
        assert time.monotonic() < deadline, shown.getvalue()
        time.sleep(0.01)


def test_long_work_is_shown_before_its_first_item_is_done(monkeypatch):
    shown = terminal(monkeypatch, Terminal())
    with console.Bar("simulating") as bar:
        until(shown, "0/?")
        bar(1, 3)
        until(shown, "1/3")
    assert "0:00:0" in shown.getvalue()


def test_short_work_is_not_shown(monkeypatch):
    shown = terminal(monkeypatch, Terminal())
    with console.Bar("simulating") as bar:
        bar(1, 1)
    time.sleep(0.1)
    assert shown.getvalue() == ""


def test_nothing_is_shown_in_a_file(monkeypatch):
    shown = terminal(monkeypatch, io.StringIO())
    with console.Bar("simulating"):
        time.sleep(0.1)
    assert shown.getvalue() == ""


def test_line_feeds_and_styles_are_printed_and_other_control_characters_escaped(capsys):
    console.say(["Step\n1 \x1b[31m2.5\x1b[0m", "a\x1b]0;title\x07b\rc\u202e"])
    assert capsys.readouterr().out == "Step\n1 2.5\na\\x1b]0;title\\x07b\\rc\\u202e\n"
