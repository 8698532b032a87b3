"""A shell script's variables: their values, and texts in which they are replaced.

A few lines can multiply a script to gigabytes (`A=xxxx`, `B=$A$A$A$A`): the length of a text is checked before it is
made, and so is the number of references.
"""

from __future__ import annotations

import re
from collections.abc import Iterator

from paceline._internal.documents import ComplexityError

_REFERENCE = re.compile(
    r"\$\{(\w+)(?:\[[@*]\])?(?::?[-=]([^{}]*))?\}|\$([A-Za-z_]\w*)|\$\(\(([^()]*)\)\)|\$\[([^\[\]]*)\]"
)
_IN_SUM = re.compile(r"\$\{(\w+)(?::?[-=]([^{}]*))?\}|\$?([A-Za-z_]\w*)|\$\(\(([^()]*)\)\)|\$\[([^\[\]]*)\]")
"""As `_REFERENCE`; in a sum, names need no `$`."""
_NAMED = re.compile(r"\$(\{?)(\w+)")
_MOST_GROWTH = 1 << 18
"""Characters that variables may add to a script, all in all."""
_MOST_REFERENCES = 100_000
_LONGEST_SUM = 1000
_DEPTH = 16
"""Variables within variables."""


class Variables:
    """Variables of a script; nothing is executed."""

    def __init__(self, script: str, values: Iterator[tuple[str, str]]) -> None:
        """Begin with values that are set outside of the script."""
        self._script = script
        self._parts = {name: [value] for name, value in values}
        self._growth = 0
        self._references = 0

    def __contains__(self, name: str) -> bool:
        """Whether the script, or what is set outside of it, sets a variable."""
        return name in self._parts

    def __iter__(self) -> Iterator[str]:
        """Yield the values."""
        yield from map(self.value, self._parts)

    def value(self, name: str) -> str:
        """Return a value as the script has it; empty if there is none."""
        parts = self._parts.get(name, [])
        if len(parts) > 1:
            parts[:] = ["".join(parts)]
        return parts[0] if parts else ""

    def assign(self, name: str, value: str, *, append: bool) -> None:
        """Set a variable, or append to it. In `NAME="$NAME --more"` it has the value from before."""
        references = [match for match in _NAMED.finditer(value) if match[2] == name] if name in value else []
        parts = self._parts.get(name)
        if references:
            before = f"{name}__{len(self._parts)}"
            first = references[0]
            begins = first.start() == 0 and value.startswith("}", first.end()) == bool(first[1])
            if parts is not None and not append and begins and len(references) == 1:
                parts.append(value[first.end() + len(first[1]) :])
                return
            value = _NAMED.sub(lambda match: f"${match[1]}{before}" if match[2] == name else match[0], value)
            if parts is not None:
                self._parts[before] = parts
                parts = [f"${{{before}}}"]
        if append:
            self._parts[name] = parts = parts if parts is not None else []
            parts.append(f" {value}")
        else:
            self._parts[name] = [value]

    def expanded(self, text: str) -> str:
        """Return a text with its variables replaced. Raises ComplexityError if it grows without end."""
        for _ in range(_DEPTH):
            if "$" not in text:
                return text
            replaced, culprit = self._replaced(_REFERENCE, text, len(text) + _MOST_GROWTH - self._growth)
            if replaced is None:
                raise ComplexityError(
                    f"{self._line(culprit)}variables grow the script by more than {_MOST_GROWTH:,} characters"
                )
            if replaced == text:
                return text
            self._growth += max(0, len(replaced) - len(text))
            text = replaced
        return text

    def _replaced(self, pattern: re.Pattern[str], text: str, most: int, depth: int = 0) -> tuple[str | None, str]:
        """Return a text with its references replaced once; None, and the variable, if it is longer than `most`."""
        pieces, place, length = list[str](), 0, len(text)
        for match in pattern.finditer(text):
            name = match[1] or match[3] or ""
            self._references += 1
            if self._references > _MOST_REFERENCES:
                raise ComplexityError(f"{self._line(name)}more than {_MOST_REFERENCES:,} references to variables")
            replacement = self._replacement(match, name, depth)
            length += len(replacement) - len(match[0])
            if length > most:
                return None, name
            pieces += text[place : match.start()], replacement
            place = match.end()
        return "".join([*pieces, text[place:]]), ""

    def _replacement(self, match: re.Match[str], name: str, depth: int) -> str:
        if not name:
            total = self._sum(match[4] or match[5] or "", depth)
            return match[0] if total is None else str(total)
        if name in self._parts:
            return self.value(name)
        return match[0] if match[2] is None else match[2].strip("\"'")

    def _sum(self, text: str, depth: int) -> int | None:
        """Return the value of a sum; None if it is none of whole numbers, or is too long."""
        for _ in range(_DEPTH - depth):
            if len(text) > _LONGEST_SUM:
                return None
            total = _arithmetic(text)
            if total is not None:
                return total
            replaced, _ = self._replaced(_IN_SUM, text, _LONGEST_SUM, depth + 1)
            if replaced is None or replaced == text:
                return None
            text = replaced
        return None

    def _line(self, name: str) -> str:
        """Return the line that assigns a variable, as an error begins with it."""
        match = re.search(rf"(?<!\w){name}\+?=", self._script) if name else None
        return "" if match is None else f"line {self._script.count(chr(10), 0, match.start()) + 1}: "


def _arithmetic(text: str) -> int | None:
    """Return the whole number that sums, products and quotients without brackets make; None if it is none."""
    tokens = re.findall(r"\d{1,9}|[-+*/]", text)
    if "".join(tokens) != re.sub(r"\s", "", text) or len(tokens) % 2 == 0 or len(tokens) > 99:
        return None
    numbers, signs = tokens[::2], tokens[1::2]
    if not all(one.isdigit() for one in numbers) or any(one.isdigit() for one in signs):
        return None
    terms = [int(numbers[0])]
    for sign, number in zip(signs, map(int, numbers[1:]), strict=True):
        if sign in "*/":
            if sign == "/" and number == 0:
                return None
            terms[-1] = terms[-1] * number if sign == "*" else int(terms[-1] / number)
        else:
            terms.append(number if sign == "+" else -number)
        if abs(terms[-1]) > 1 << 31:
            return None
    return sum(terms)
