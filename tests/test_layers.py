"""The order of what depends on what: packages and modules of Python, crates of Rust."""

import ast
import importlib
import re
import sys
import tomllib
from collections.abc import Iterator
from pathlib import Path

import pytest

ROOT = Path(__file__).parent.parent
CORE, LAB = "paceline", "paceline_lab"
MOVED = {"paceline.emulate", "paceline.plan", "paceline.replay"}
"""Names of the last release, which lead to the lab's."""


def modules() -> dict[str, Path]:
    """Return the file of each module, by name."""
    files = {}
    for package in (CORE, LAB):
        for path in (ROOT / "python" / package).rglob("*.py"):
            parts = path.relative_to(ROOT / "python").with_suffix("").parts
            files[".".join(parts[:-1] if parts[-1] == "__init__" else parts)] = path
    return files


MODULES = modules()


def is_of_types(node: ast.AST) -> bool:
    return isinstance(node, ast.If) and "TYPE_CHECKING" in ast.unparse(node.test)


def statements(body: list[ast.stmt], *, types: bool, late: bool) -> Iterator[ast.stmt]:
    """Return what is executed at import time, and with `types` under TYPE_CHECKING, and with `late` in functions."""
    for node in body:
        if is_of_types(node) and not types:
            yield from statements(node.orelse, types=types, late=late)
            continue
        if isinstance(node, ast.FunctionDef | ast.AsyncFunctionDef) and not late:
            continue
        yield node
        for _, value in ast.iter_fields(node):
            if isinstance(value, list):
                inner = [it for it in value if isinstance(it, ast.stmt)]
                inner += [it for handler in value if isinstance(handler, ast.ExceptHandler) for it in handler.body]
                yield from statements(inner, types=types, late=late)


def imports(name: str, *, types: bool = False, late: bool = False) -> set[str]:
    """Return the modules of both packages that a module imports; names of `paceline` itself are lazy or native."""
    imported: set[str] = set()
    for node in statements(ast.parse(MODULES[name].read_text()).body, types=types, late=late):
        if isinstance(node, ast.Import):
            imported |= {alias.name for alias in node.names}
        elif isinstance(node, ast.ImportFrom) and node.module is not None:
            assert node.level == 0, f"{name}: a relative import"
            for alias in node.names:
                inner = f"{node.module}.{alias.name}"
                imported.add(inner if inner in MODULES else node.module)
    return {it for it in imported if it in MODULES and it not in (name, CORE)}


def circles(graph: dict[str, set[str]]) -> list[list[str]]:
    """Return the strongly connected components of more than one node, by R. Tarjan's algorithm."""
    index: dict[str, int] = {}
    low: dict[str, int] = {}
    stack: list[str] = []
    components = []

    def visit(node: str) -> None:
        index[node] = low[node] = len(index)
        stack.append(node)
        for other in sorted(graph[node]):
            if other not in index:
                visit(other)
                low[node] = min(low[node], low[other])
            elif other in stack:
                low[node] = min(low[node], index[other])
        if low[node] == index[node]:
            component = []
            while not component or component[-1] != node:
                component.append(stack.pop())
            if len(component) > 1:
                components.append(sorted(component))

    for node in sorted(graph):
        if node not in index:
            visit(node)
    return components


def test_the_core_does_not_import_the_lab():
    wrong = {
        name: lab
        for name in MODULES
        if name.split(".")[0] == CORE
        and (lab := {it for it in imports(name, types=True, late=True) if it.split(".")[0] == LAB})
    }
    assert wrong == {}
    named = {name for name in MODULES if name.split(".")[0] == CORE and f'"{LAB}.' in MODULES[name].read_text()}
    assert named == MOVED


def test_no_circle_at_import_time():
    assert circles({name: imports(name) for name in MODULES}) == []


STAGES = {
    "types": "kinds likeness progress footprint result scenario staggering sharded sharding asynchronous nccl "
    "nccl.model coordinator_model measured trainer_file offload wording.terms wording.notes",
    "request": "request",
    "prepare": "prepare lowering compression beyond memory coordinator_model.options jobs jobs.spec remedies typed",
    "run": "run evidence anchor execute ray_executor nccl.request baseline",
    "verdict": "verdict jobs.model advisor longest",
    "wording": "wording",
    "output": "output advisor.report advisor.comparison advisor.as_in_file jobs.table jobs.plot nccl.table",
    "api": "simulate sweep",
}
"""The path of a forecast, from below: modules of `paceline.forecast`, or packages whose others are elsewhere."""


def stage(module: str) -> int:
    """Return the stage of a module: where it is named, or else its package."""
    name = module.removeprefix("paceline.forecast.")
    of = {known: number for number, names in enumerate(STAGES.values()) for known in names.split()}
    result = of.get(name, of.get(name.rpartition(".")[0]))
    assert result is not None, f"{module} has no stage: name it in STAGES"
    return result


def test_a_forecast_goes_one_way():
    """Types and imports in functions included: what a stage imports stands at its height or below."""
    forecast = [name for name in MODULES if name.startswith("paceline.forecast.")]
    up = {
        (name, other)
        for name in forecast
        for other in imports(name, types=True, late=True)
        if other in forecast and stage(other) > stage(name)
    }
    assert up == set()


def test_no_circle_by_type():
    assert circles({name: imports(name, types=True) for name in MODULES}) == []


LAYERS = [
    {"os", "protobuf", "trace-events", "model", "nccl", "kernels", "coordinator"},
    {"schedule", "cuda"},
    {"transport", "iteration", "cuda-stand-in"},
    {"executor", "mpi", "oneccl", "rendezvous", "simulator", "ucx"},
    {"grpc", "scenario"},
    {"engine"},
    {"runtime"},
    {"paceline-py"},
]
"""Crates, the lowest first: one depends on lower ones only."""


def test_crates_depend_on_lower_ones():
    layer = {crate: number for number, crates in enumerate(LAYERS) for crate in crates}
    assert set(layer) == {path.parent.name for path in ROOT.glob("crates/*/Cargo.toml")}
    for crate, number in layer.items():
        manifest = tomllib.loads((ROOT / "crates" / crate / "Cargo.toml").read_text())
        for name in manifest.get("dependencies", {}):
            other = name.removeprefix("paceline-")
            if other in layer:
                assert layer[other] < number, f"{crate} depends on {other}"


Module = tuple[str, ...]
"""A module of a crate: `crate::tcp::stream` is `("tcp", "stream")`."""


def without_tests(path: Path) -> str:
    """Return the code of a file without comments, and without its module of tests, which stands at the end."""
    text = re.sub(r"//[^\n]*", "", path.read_text())
    return re.split(r"\n#\[cfg\((?:all\()?test\b[^\n]*\n(?:#\[[^\n]*\n)*mod \w+ \{", text)[0]


def used(tree: str) -> Iterator[str]:
    """Return the paths of a `use` declaration."""
    head, braced, body = re.sub(r" as \w+|\s", "", tree).partition("{")
    if not braced:
        yield head
        return
    depth = 0
    parts = [""]
    for letter in body.removesuffix("}"):
        depth += (letter == "{") - (letter == "}")
        if letter == "," and not depth:
            parts.append("")
        else:
            parts[-1] += letter
    for part in filter(None, parts):
        yield from (f"{head}{it}".removesuffix("::self") for it in used(part))


def files_of(crate: Path) -> dict[str, set[str]]:
    """Return which files of a crate each file uses: those of the items, wherever another one exports them again."""
    modules: dict[Module, str] = {}
    for path in (crate / "src").rglob("*.rs"):
        parts = path.relative_to(crate / "src").with_suffix("").parts
        modules[() if parts in (("lib",), ("main",)) else parts[:-1] if parts[-1] == "mod" else parts] = without_tests(
            path
        )

    def absolute(module: Module, path: str) -> Module | None:
        first, *rest = path.split("::")
        if first == "super":
            return absolute(module[:-1], "::".join(["self", *rest]))
        if first == "self" and rest[:1] == ["super"]:
            return absolute(module, "::".join(rest))
        start = {"crate": (), "self": module}.get(first, module)
        known = first in ("crate", "self") or (*module, first) in modules
        return (*start, *(rest if first in ("crate", "self") else [first, *rest])) if known else None

    exported: dict[tuple[Module, str], Module] = {}
    paths: dict[Module, set[Module]] = {module: set() for module in modules}
    declaration = r"(?m)^\s*(pub(?:\([^)]*\))?\s+)?use\s+([^;]+);"
    for module, text in modules.items():
        for public, tree in re.findall(declaration, text):
            for path in filter(None, (absolute(module, it) for it in used(tree))):
                if public or not module:
                    exported[module, path[-1]] = path
                else:
                    paths[module].add(path)
        for path in re.findall(r"(?<![\w:])[a-z]\w*(?:::\w+)+", re.sub(declaration, "", text)):
            paths[module] |= {it for it in [absolute(module, path)] if it}

    def file_of(path: Module) -> Module:
        at = next(length for length in range(len(path), -1, -1) if path[:length] in modules)
        onward = exported.get((path[:at], path[at])) if at < len(path) else None
        return path[:at] if onward in (None, path) else file_of(onward)

    names = {module: "/".join(module) or "lib" for module in modules}
    return {names[module]: {names[file_of(it)] for it in its} - {names[module]} for module, its in paths.items()}


BY_NATURE = {
    "os: simulated/fd": "the simulated kernel: what a descriptor is, and what waits for one",
    "cuda-stand-in: ipc": "the simulated driver: memory, the streams that write it, and the processes that share it",
    "transport: multicast": "a socket and its two directions, files of one module",
    "transport: shm": "the code, and its model for loom, which stands in for the memory",
    "transport: tcp": "a connection and its buffers, files of one module",
    "nccl: machine": "a machine and the transport between its nodes, files of one model",
    "executor: timeline": "a recording and its file, files of one module",
    "mpi: channel": "a port and the channels that it hands out",
    "rendezvous: mesh": "the connections of a rank, and who may take which",
    "engine: assemble": "the driving thread and the failure detector wake each other; both work on the engine",
    "runtime: communicator": "a communicator, and the ways in which it runs an operation on a device",
    "runtime: negotiation/begun": "one state machine: an operation before and after it has begun",
    "runtime: negotiation": "the coordinator, its thread and its state machine",
    "paceline-py: cluster": "the functions of the native module, and what they have in common, in lib.rs",
}
"""Circles of files that stay, by one of their files, and why."""


@pytest.mark.parametrize("crate", sorted(it for layer in LAYERS for it in layer))
def test_circles_of_files_are_those_with_a_reason(crate):
    left = circles(files_of(ROOT / "crates" / crate))
    assert sorted(it for it in BY_NATURE if it.startswith(f"{crate}: ")) == sorted(f"{crate}: {it[0]}" for it in left)


@pytest.mark.parametrize("name", sorted(MOVED))
def test_names_of_the_last_release_lead_on(name):
    sys.modules.pop(name, None)
    with pytest.warns(FutureWarning, match=f"{name} is now {LAB}"):
        module = importlib.import_module(name)
    assert module is sys.modules[name.replace(CORE, LAB, 1)]
    sys.modules.pop(name, None)


SENTENCES = re.compile(
    r"""endswith\("\ | removeprefix\("[a-z]+\s | note\.replace | startswith\("(outside|bound\ by|no\ ) | \bin\ note\b"""
    r"""| "\ (not\ )?in\ (str\()?(error|note|evidence|reason|.*\.(reason|evidence|note|provenance))\b""",
    re.VERBOSE,
)


def test_no_code_looks_into_sentences():
    """Parts, resources, changes, notes and evidence are values; `wording` makes words of them, for readers alone."""
    places = [name for name in MODULES if re.match(r"paceline(_lab)?\.(forecast|catalog|report|explore)\b", name)]
    places = [name for name in places if ".wording" not in name] + ["paceline.cli.advise", "paceline.cli.simulate"]
    looks = [
        f"{name}: {line.strip()}"
        for name in places
        for line in MODULES[name].read_text().splitlines()
        if SENTENCES.search(line)
    ]
    assert looks == []
