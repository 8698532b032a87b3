"""Branches of a shell script: those that its variables decide against are left out; nothing is executed.

Decided are comparisons of texts and whole numbers in `if`, `elif` and `case`, and whether a text is empty. A condition
on arguments of the script, on files or on what a command prints is open: its branches are all read, and the last value
of a variable counts.
"""

from __future__ import annotations

import re
from collections.abc import Callable, Iterator
from dataclasses import dataclass, field
from fnmatch import fnmatchcase
from operator import eq, ge, gt, le, lt, ne

from paceline.interop.trainers.variables import Variables

_BEFORE_KEYWORD = re.compile(r";[ \t]*(?=(?:if|then|else|elif|fi|esac)\b)")
_AFTER_KEYWORD = re.compile(r"(?m)^([ \t]*(?:then|else|fi|esac))[ \t;]+(?=\S)")
_AFTER_BRANCH = re.compile(r"(?m)(;;&?|;&)[ \t]*$")
_PATTERN = re.compile(r"[ \t]*\(?[ \t]*([^()\s=$|]+(?:[ \t]*\|[ \t]*[^()\s=$|]+)*)[ \t]*\)(.*)$")
_TEST = re.compile(r"\[\[?[ \t](.*?)[ \t]\]\]?|test[ \t]+(.*)")
_JOINT = re.compile(r"[ \t]*(&&|\|\|)[ \t]*(?=!|\[|test\b)")
_JOINT_WITHIN = re.compile(r"[ \t](&&|\|\|)[ \t]")
_GUARDED = re.compile(r"[ \t]*((?:![ \t]*)?\[\[?[ \t].*?[ \t]\]\]?)[ \t]*(&&|\|\|)[ \t]*(?!\[|!)")
"""A condition before what it guards: `[ -n "$X" ] && ARGS+=" --x"`."""
_WORD = re.compile(r"(?:[^\s\"']|\"[^\"]*\"|'[^']*')+")
_UNSET = re.compile(r"\$\{?(?!SLURM)([A-Za-z_]\w*)\}?")
_NAMED = re.compile(r"\$\{?(\w+)")
_WHOLE = re.compile(r"[+-]?[0-9]{1,18}")
_NUMBERS: dict[str, Callable[[int, int], bool]] = {"eq": eq, "ne": ne, "gt": gt, "ge": ge, "lt": lt, "le": le}
_LONGEST = 1000
"""Characters of a condition."""


@dataclass
class _Frame:
    """An `if` or a `case` while its branches are read."""

    is_case: bool
    is_read: bool
    """Whether what is around it is."""
    word: str | None = None
    """Of a `case`; None: open."""
    taken: bool = False
    """Whether a branch was decided for."""
    active: bool = False
    """Whether the branch at hand is read."""
    branches: int = 0
    """Those that are read."""
    open_on: set[str] = field(default_factory=set)
    """Variables on which open comparisons depend."""

    def begin(self, holds: bool | None) -> None:
        """Begin a branch whose condition holds, or not; None: it is open."""
        self.active = self.is_read and not self.taken and holds is not False
        self.taken |= holds is True
        self.branches += self.active


class Branches:
    """Reads a script's lines in order, without those of branches that are decided against."""

    def __init__(self, variables: Variables, assigned: Callable[[str], str]) -> None:
        """Prepare the reading. `assigned`: puts the assignments of a text into the variables, and returns the rest."""
        self._variables, self._assigned = variables, assigned
        self._frames: list[_Frame] = []
        self.open_on: dict[str, None] = {}
        """Variables that several branches depend on and that the script leaves open, in the order of the script."""

    def read(self, text: str) -> str:
        """Return the text without assignments, keywords, and branches that are decided against."""
        text = _AFTER_BRANCH.sub(r"\n\1", _AFTER_KEYWORD.sub(r"\1\n", _BEFORE_KEYWORD.sub("\n", text)))
        pieces, own = list[str](), list[str]()
        for line in text.split("\n"):
            if not self._is_control(line):
                own += [line] * self._is_active
                continue
            pieces.append(self._assigned("\n".join(own)))
            own = list(self._controlled(line))
        pieces.append(self._assigned("\n".join(own)))
        while self._frames:
            self._end()
        return "\n".join(pieces)

    @property
    def _is_active(self) -> bool:
        return not self._frames or self._frames[-1].active

    def _is_control(self, line: str) -> bool:
        word = line.split(None, 1)[0] if line.strip() else ""
        if word in ("if", "elif", "then", "else", "fi", "esac", ";;", ";;&", ";&"):
            return True
        if line.lstrip().startswith(("[", "!")) and _GUARDED.match(line[:_LONGEST]):
            return self._is_active
        return _begins_case(line) or (
            bool(self._frames) and self._frames[-1].is_case and _PATTERN.match(line[:_LONGEST]) is not None
        )

    def _controlled(self, line: str) -> Iterator[str]:
        """Follow a line with a keyword; yield what it has besides and is read."""
        word, *others = line.split(None, 1)
        rest = others[0].strip(" \t;") if others else ""
        if word[0] in "[!" and (guarded := _GUARDED.match(line[:_LONGEST])):
            if self._holds(guarded[1]) is not (guarded[2] == "||"):
                yield line[guarded.end() :]
        elif _begins_case(line):
            rest = rest.removesuffix("in").strip()
            value = self._expanded(rest)
            self._frames.append(_Frame(True, self._is_active, None if value is None else value.strip("\"'")))
            self._frames[-1].open_on |= set() if value is not None else set(_NAMED.findall(rest))
        elif word in ("if", "elif"):
            if word == "if":
                self._frames.append(_Frame(False, self._is_active))
            if self._frames:
                frame = self._frames[-1]
                is_open = frame.is_read and not frame.taken
                frame.begin(self._holds(rest) if is_open else False)
                if is_open and _TEST.match(rest.lstrip("! \t")) is None:
                    # It runs a program: `if ! torchrun …`.
                    yield rest
        elif word == "else" and self._frames:
            self._frames[-1].begin(None)
        elif word in ("fi", "esac"):
            self._end()
        elif self._frames and self._frames[-1].is_case and (match := _PATTERN.match(line[:_LONGEST])):
            frame = self._frames[-1]
            patterns = [one.strip().strip("\"'") for one in match[1].split("|")]
            known = None if frame.word is None else any(fnmatchcase(frame.word, one) for one in patterns)
            if known is None and patterns[0].startswith("-"):
                # Of the script's own options, as if it were started without any.
                known = False
            frame.begin(known)
            if frame.active:
                yield line[match.start(2) :]

    def _end(self) -> None:
        if self._frames:
            frame = self._frames.pop()
            if frame.branches > 1:
                self.open_on |= dict.fromkeys(sorted(frame.open_on))

    # Conditions.

    def _expanded(self, text: str) -> str | None:
        """Return a text with its variables; None if some are open, or a command says it."""
        value = self._variables.expanded(text[:_LONGEST])
        return None if "$" in value or "`" in value else value

    def _holds(self, condition: str) -> bool | None:
        """Return whether a condition holds; None if the script does not say."""
        if len(condition) > _LONGEST:
            return None
        return _joined(_JOINT.split(condition), self._test)

    def _test(self, text: str) -> bool | None:
        text, negations = text.strip(), 0
        while text.startswith("!"):
            text, negations = text[1:].strip(), negations + 1
        match = _TEST.fullmatch(text)
        if match is None:
            return None
        inner = match[1] if match[1] is not None else match[2]
        result = _joined(_JOINT_WITHIN.split(inner) if text.startswith("[[") else [inner], self._compared)
        return result if result is None or negations % 2 == 0 else not result

    def _compared(self, text: str) -> bool | None:
        words = _WORD.findall(text)
        if words and words[0] == "!":
            result = self._compared(text.strip()[1:])
            return None if result is None else not result
        if len(words) == 2 and words[0] in ("-z", "-n"):
            bare = words[1].strip("\"'")
            # A variable that nothing sets is empty, unless Slurm sets it.
            is_unset = (match := _UNSET.fullmatch(bare)) is not None and match[1] not in self._variables
            value = "" if is_unset else self._expanded(bare)
            return None if value is None else (value == "") == (words[0] == "-z")
        if len(words) != 3:
            return None
        left, right = (self._expanded(one) for one in (words[0], words[2]))
        if left is None or right is None:
            if self._frames:
                self._frames[-1].open_on |= set(_NAMED.findall(text))
            return None
        left, right = left.strip("\"'"), right.strip("\"'")
        sign = words[1]
        if sign in ("=", "==", "!="):
            return fnmatchcase(left, right) is (sign != "!=")
        compare = _NUMBERS.get(sign[1:]) if sign.startswith("-") else None
        if compare is None or not (_WHOLE.fullmatch(left) and _WHOLE.fullmatch(right)):
            return None
        return bool(compare(int(left), int(right)))


def _joined(parts: list[str], test: Callable[[str], bool | None]) -> bool | None:
    """Return whether conditions hold that `&&` and `||` join, which are every second part; None: it is open."""
    result = test(parts[0])
    for joint, part in zip(parts[1::2], parts[2::2], strict=True):
        if joint == "&&" and result is not False:
            other = test(part)
            result = other if result or other is False else None
        elif joint == "||" and result is not True:
            other = test(part)
            result = other if result is False or other else None
    return result


def _begins_case(line: str) -> bool:
    words = line[:_LONGEST].split()
    return len(words) > 2 and words[0] == "case" and words[-1] == "in"
