"""The order of what depends on what: packages and modules of Python, crates of Rust."""

import ast
import importlib
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


LEFT = [
    ["paceline.hvd.process_sets", "paceline.hvd.world"],
    ["paceline.job.collectives", "paceline.job.job"],
    [f"paceline.torch.backend.{name}" for name in ("collectives", "process_group", "sparse", "tensor_collectives")],
    ["paceline.torch.backend.completion", "paceline.torch.backend.work"],
    ["paceline_lab.emulate.cluster", "paceline_lab.emulate.fidelity"],
]
"""Circles by type that are left."""


def test_no_further_circle_by_type():
    assert sorted(circles({name: imports(name, types=True) for name in MODULES})) == LEFT


LAYERS = [
    {"os", "protobuf", "trace-events", "model", "nccl", "kernels", "coordinator"},
    {"schedule", "cuda"},
    {"transport", "iteration", "cuda-stand-in"},
    {"executor", "mpi", "rendezvous", "simulator"},
    {"grpc"},
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


@pytest.mark.parametrize("name", sorted(MOVED))
def test_names_of_the_last_release_lead_on(name):
    sys.modules.pop(name, None)
    with pytest.warns(FutureWarning, match=f"{name} is now {LAB}"):
        module = importlib.import_module(name)
    assert module is sys.modules[name.replace(CORE, LAB, 1)]
    sys.modules.pop(name, None)
