"""The arguments of the command that a shell script starts, with its variables and arrays; nothing is executed.

Read are assignments (`NAME=value`, `NAME="…"`, `NAME=( … )`, `NAME+=( … )`, also with `export`), defaults
(`${NAME:-8}`), sums and products of whole numbers (`$((8 * NODES))`), continued lines, comments, and the nodes and GPUs
of `#SBATCH` lines. Of a variable that is assigned twice, the last value counts. Branches (`if`, `case`) that variables
decide against, commands that only print, and documents of `<<EOF` are left out.
"""

from __future__ import annotations

import re
from bisect import bisect_right
from collections.abc import Collection, Iterator, Mapping
from typing import Any

from paceline.interop.trainers.branches import Branches
from paceline.interop.trainers.variables import Variables

_WHOLE_COMMENT = re.compile(r"(?m)^[ \t]*#.*$")
_COMMENT = re.compile(r"(?m)(?<=[ \t;])#.*$")
_ASSIGNMENT = re.compile(
    r"(?m)(?:^|(?<=[;&|\s]))(?:export\s+|declare\s+(?:-\w+\s+)?|local\s+)?([A-Za-z_]\w*)(\+?)=(?=\S|$)"
)
_FLAG = re.compile(r"--?[A-Za-z][\w.-]*")
_PROGRAM = re.compile(
    r".*\.(?:py|sh)|python3?|torchrun|accelerate|deepspeed|srun|mpirun|bash|-m|axolotl|llamafactory-cli|trl"
)
"""Begins what another program gets, and ends the values of an option."""
_FILE = re.compile(r"[\w./~${}-]+\.(?:ya?ml|toml|json)")
NAMED_FILE = "(file)"
"""The field of a file that a program gets as an argument without a name: `axolotl train qlora.yml`."""
PROGRAM = "(command)"
"""The field of the script or subcommand that gets the arguments: `trl dpo`, `trl/scripts/dpo.py`."""
_SUBCOMMANDS = frozenset(("trl", "swift", "megatron"))
"""Programs whose next word says what is trained."""
_SUBCOMMAND = re.compile(r"[a-z][a-z_-]{1,20}")
_ONE_PER_GPU = frozenset(("accelerate", "deepspeed", "llamafactory-cli", "trl", "axolotl"))
"""Programs that start a process for each GPU they see, unless an argument says another number."""
_LAUNCHERS = _ONE_PER_GPU | _SUBCOMMANDS | {"torchrun"}
"""Programs that start the training."""
_HERE_DOCUMENT = re.compile(r"<<-?[ \t]*['\"]?([A-Za-z_]\w*)['\"]?")
_PRINTING = frozenset(
    ("echo", "printf", "read", "grep", "sed", "awk", "cat", "jq", "export", "source", "cd", "mkdir", "[")
)
"""Commands whose options are no trainer's."""
_KEYWORDS = frozenset(("if", "then", "else", "elif", "do", "while", "!", "{"))
_ESCAPE = "\\"
_EXPR = re.compile(r"\$\(expr[ \t]([\w \t$*/+{}\\-]{1,200})\)")
"""A sum as a command: `$(expr 16 / $GPUS)`."""
_REDIRECTION = re.compile(r"(?:(?<=\s)[0-9]|&)?>{1,2}[ \t]*(?:&[0-9]|(?:\$\([^()]*\)|[^\s;&|])+)")
"""Of what a command prints: `2>&1`, `> train.log`, `&>> train.log`."""
_BATCH = re.compile(r"(?m)^#SBATCH[ \t]+(.*)$")
_BATCH_OPTION = re.compile(r"(?:^|\s)(--nodes|-N|--gpus-per-node|--gpus|-G|--gres)[= \t]*(\S{1,40})")
_COUNT = re.compile(r"(?:[\w.-]*[A-Za-z][\w.-]*:)*(\d{1,5})\b")
"""The number of `4`, `a100:4`, `gpu:a100:4`, or the least of `2-4`."""
OPEN = "(branches)"
"""The field that lists variables which branches depend on and which the script leaves open."""
SLURM = "#SBATCH "
"""Begins the fields that are lines of a batch script: `#SBATCH --nodes`."""
_VISIBLE = "CUDA_VISIBLE_DEVICES"
OF_VISIBLE = f"{_VISIBLE} (number)"
"""The field of the GPUs that a script shows to its programs."""
OF_NODES, OF_EACH = ("NNODES", "NUM_NODES"), ("GPUS_PER_NODE", "NPROC_PER_NODE", OF_VISIBLE)
"""Variables that give a launcher the number of nodes, and of GPUs of each."""
_NODES = frozenset(("--nnodes", "--num-nodes", "--num-machines"))
_EACH = frozenset(("--nproc-per-node", "--num-gpus", "--gpus-per-node", "--gpus"))
_ALL = "--num-processes"
"""Options that say it."""
_PASSED_ON = ("$@", "$*", "${@}")
"""A script's own arguments."""
_OVERRIDE = re.compile(r"\+{0,2}([A-Za-z_]\w*(?:\.\w+)+)=(.+)")
"""A field of Hydra's or OmegaConf's configurations: `model.tensor_model_parallel_size=2`."""


def arguments(text: str) -> Iterator[tuple[str, Any]]:
    """Yield options and their values: True without one, a list of several.

    `--nproc_per_node 8`, `--nproc-per-node=8` and `--nproc-per-node 8` are the same. Raises ComplexityError, with the
    line, if variables refer to each other without end.
    """
    text = _EXPR.sub(lambda match: f"$(({match[1].replace(_ESCAPE, '')}))", text.replace("\r\n", "\n"))
    batch = {
        f"{SLURM}{name}": value
        for line in _BATCH.findall(text)
        for name, value in _BATCH_OPTION.findall(line)
        if _COUNT.match(value) and (value.startswith("gpu:") or name != "--gres")
    }
    variables = Variables(text, _of_slurm(batch))
    lines = _WHOLE_COMMENT.sub("", _without_documents(text))
    plain = _COMMENT.sub("", re.sub(r"\\[ \t]*\n", " ", lines))
    branches = Branches(variables, lambda part: "".join(_without_assignments(part, variables)))
    commands = branches.read(plain)
    lines = variables.expanded(commands)
    options = _of_lines(lines)
    program, sees_all = _program(lines)
    if not options:
        # A file of arguments only, which another script reads.
        options = [pair for value in variables for pair in _of_lines(variables.expanded(value))]
    if branches.open_on:
        yield OPEN, list(branches.open_on)[:8]
    yield from ((name, _scalar(value)) for name, value in batch.items())
    names = {name for name, _ in options}
    settings = list(_settings(variables, names))
    yield from settings
    if _EACH.isdisjoint(names) and _ALL not in names and not {name for name, _ in settings} & {*OF_EACH}:
        yield from _visible(variables, sees_all=sees_all)
    if program:
        yield PROGRAM, program
    yield from options


def _without_documents(text: str) -> str:
    """Return a script without the lines of its documents, from `<<EOF` to the line `EOF`."""
    lines = text.split("\n")
    ends: dict[str, list[int]] = {}
    for place, line in enumerate(lines):
        ends.setdefault(line.strip(), []).append(place)
    left: list[str] = []
    place = 0
    while place < len(lines):
        match = _HERE_DOCUMENT.search(lines[place])
        known = [] if match is None else ends.get(match[1], [])
        after = bisect_right(known, place)
        left.append(lines[place] if match is None else lines[place].replace(match[0], " "))
        place = known[after] + 1 if after < len(known) else place + 1
    return "\n".join(left)


def requested(values: Mapping[str, Any]) -> tuple[int | None, int | None, tuple[str, ...]]:
    """Return the nodes that `#SBATCH` lines ask Slurm for, the GPUs of each, and these fields; None: they do not say.

    Without a number of nodes it gives one.
    """

    def count(*names: str) -> tuple[int | None, tuple[str, ...]]:
        own = [(f"{SLURM}{name}", str(values.get(f"{SLURM}{name}", ""))) for name in names]
        counts = [(int(match[1]), (field,)) for field, word in own if (match := _COUNT.match(word)) is not None]
        return counts[0] if counts else (None, ())

    nodes, of_nodes = count("--nodes", "-N")
    each, of_each = count("--gpus-per-node", "--gres")
    if each is None:
        total, of_each = count("--gpus", "-G")
        each = None if total is None else max(1, total // (nodes or 1))
    return nodes, each, (*of_nodes, *of_each)


def _of_slurm(values: Mapping[str, Any]) -> Iterator[tuple[str, str]]:
    """Yield the variables that Slurm sets, from a script's `#SBATCH` lines."""
    nodes, each, _ = requested(values)
    for name, count in (("SLURM_NNODES", nodes), ("SLURM_JOB_NUM_NODES", nodes), ("SLURM_GPUS_ON_NODE", each)):
        if count is not None:
            yield name, str(count)


def _program(text: str) -> tuple[str, bool]:
    """Return the script or subcommand that gets the most options, and whether it is started for each GPU.

    What a launcher starts counts before what prepares or evaluates.
    """
    program, most, sees_all = "", (False, 0), False
    for command in _commands_of(text):
        names = {word.rpartition("/")[2] for word in command}
        options = sum(word.startswith("--") for word in command)
        rank = (bool(names & _LAUNCHERS), options)
        if options and rank > most:
            program, most, sees_all = _named_program(command), rank, bool(names & _ONE_PER_GPU)
    return program, sees_all


def _named_program(words: list[str]) -> str:
    """Return a command's script, module or subcommand; empty if it names none."""
    name = ""
    for before, word, after in zip(["", *words], words, [*words[1:], ""], strict=False):
        if before in ("-m", "--module") or (word.endswith(".py") and not before.startswith("--")):
            name = word
        elif (
            word.rpartition("/")[2] in _SUBCOMMANDS
            and not before.startswith("--")
            and _SUBCOMMAND.fullmatch(after) is not None
        ):
            return f"{word.rpartition('/')[2]} {after}"
    return name


def _visible(variables: Variables, *, sees_all: bool) -> Iterator[tuple[str, int]]:
    """Yield the number of GPUs that the script shows; of several, only where a process is started for each."""
    devices = variables.expanded(variables.value(_VISIBLE)).strip().strip("\"'")
    if re.fullmatch(r"\d{1,3}(?:,\d{1,3})*", devices) and (sees_all or "," not in devices):
        yield OF_VISIBLE, devices.count(",") + 1


def _commands_of(text: str) -> Iterator[list[str]]:
    """Yield the commands of a text whose options may be a trainer's."""
    for line in text.splitlines():
        for command in _commands(_words(_REDIRECTION.sub(" ", line))):
            if next((word for word in command if word not in _KEYWORDS), "") not in _PRINTING:
                yield command


def _of_lines(text: str) -> list[tuple[str, Any]]:
    return [pair for command in _commands_of(text) for pair in _flags(command)]


def _commands(words: list[str]) -> Iterator[list[str]]:
    """Yield the commands that `;`, `&` and `|` separate."""
    own: list[str] = []
    for word in [*words, ";"]:
        if word and not word.strip(";&|"):
            if own:
                yield own
            own = []
        else:
            own.append(word)


def _settings(variables: Variables, options: Collection[str]) -> Iterator[tuple[str, Any]]:
    """Yield variables that give launchers the number of nodes and GPUs, where no option says it."""
    for names, own in ((OF_NODES, _NODES), (OF_EACH, _EACH)):
        for name in names if own.isdisjoint(options) else ():
            value = variables.expanded(variables.value(name)).strip().strip("\"'")
            if value.isascii() and value.isdigit():
                yield name, int(value[:9])


def _without_assignments(text: str, variables: Variables) -> Iterator[str]:
    """Yield what is no assignment; put the assigned texts into `variables`."""
    place = 0
    while (match := _ASSIGNMENT.search(text, place)) is not None:
        yield text[place : match.start()]
        value, place = _value(text, match.end())
        variables.assign(match[1], value, append=bool(match[2]))
        yield " "
    yield text[place:]


def _value(text: str, start: int) -> tuple[str, int]:
    """Return the text that is assigned at a place, without the outer brackets or quotation marks, and its end."""
    if text.startswith("(", start):
        end = _closing(text, start)
        return text[start + 1 : end], end + 1
    place = start
    while place < len(text) and not text[place].isspace() and text[place] not in ";&|":
        if text[place] in "\"'":
            end = text.find(text[place], place + 1)
            place = len(text) if end < 0 else end + 1
        elif text.startswith("$(", place) or text.startswith("${", place):
            place = _closing(text, place + 1) + 1
        else:
            place += 1
    value = text[start:place]
    if len(value) >= 2 and value[0] == value[-1] and value[0] in "\"'":
        value = value[1:-1]
    return value, place


def _closing(text: str, start: int) -> int:
    """Return the place of the bracket that closes the one at `start`; the end if there is none."""
    pair = {"(": ")", "{": "}"}[text[start]]
    depth = 0
    for place in range(start, len(text)):
        depth += (text[place] == text[start]) - (text[place] == pair)
        if depth == 0:
            return place
    return len(text)


_WORD = re.compile(r"(?:\$\((?:[^()]|\((?:[^()]|\([^()]*\))*\))*\)|[^\s\"';&|()<>]|\"[^\"]*\"|'[^']*')+|[;&|]+")
"""A word, in which what a shell would compute is one, or what separates commands."""


def _words(text: str) -> list[str]:
    """Return the words of a command; quotation marks hold a word together."""
    words = list[str]()
    for word in _WORD.findall(text):
        bare = word.replace('"', "").replace("'", "") if len(word) < 10_000 else word
        # A quoted group of arguments is several words: `"$MODEL_ARGS"` of a launcher that splits it.
        words += bare.split() if " --" in f" {bare}" else [bare]
    return words


def _flags(words: list[str]) -> Iterator[tuple[str, Any]]:
    name, values, has_program = "", list[str](), False
    for word in [*(one for one in words if one not in _PASSED_ON), "--"]:
        begins = _PROGRAM.fullmatch(word) is not None or word == "--"
        has_program |= begins
        override = None if begins else _OVERRIDE.fullmatch(word)
        if override is not None:
            yield override[1], _scalar(override[2])
            continue
        if not (begins or _FLAG.fullmatch(word.partition("=")[0])):
            if not name and has_program and _FILE.fullmatch(word):
                yield NAMED_FILE, word
            values.append(word)
            continue
        if name:
            yield name, _together(values)
        key, equals, value = word.partition("=")
        name = f"--{key[2:].replace('_', '-')}" if key.startswith("--") and len(key) > 2 else ""
        values = [value] if equals else []


def _together(values: list[str]) -> Any:  # noqa: ANN401 - a scalar, or a list of them
    if not values:
        return True
    return _scalar(values[0]) if len(values) == 1 else [_scalar(one) for one in values[:64]]


def _scalar(text: str) -> bool | int | float | str:
    lowered = text.lower()
    if lowered in ("true", "false"):
        return lowered == "true"
    if re.fullmatch(r"[+-]?[0-9]{1,18}", text):
        return int(text)
    if re.fullmatch(r"[+-]?(\d+\.\d*|\.?\d+)([eE][+-]?\d{1,3})?", text) and len(text) < 40:
        return float(text)
    return text
