"""The public Python API: what `dir()` shows, what importing it loads, and its docstrings, whose examples are run."""

import contextlib
import dataclasses
import doctest
import importlib
import inspect
import os
import re
import sys
from pathlib import Path

import cli
import paceline
import pytest
from job_workers.launch import clean

ROOT = Path(__file__).parent.parent
LIGHT = ["paceline", "paceline.doctor", "paceline_lab.emulate", "paceline.errors", "paceline.job", "paceline_lab.plan"]
LIGHT += ["paceline.ray", "paceline.ray.ps"]
TORCH = ["paceline.torch", "paceline.torch.compression", "paceline.torch.hvd", "paceline.torch.hvd.elastic"]
FRONTS = ["paceline.tensorflow", "paceline.tensorflow.elastic", "paceline.keras", "paceline.keras.callbacks"]
FRONTS += ["paceline.keras.elastic", "paceline.jax"]
USUAL = {"__all__", "__doc__", "__file__", "__name__", "__path__", "__version__"}


def loaded(name):
    if name in TORCH:
        pytest.importorskip("torch")
    if name in FRONTS:
        # Triton's LLVM ends the process if TensorFlow's is there first.
        with contextlib.suppress(ImportError):
            importlib.import_module("triton.knobs")
        pytest.importorskip("jax" if name == "paceline.jax" else "tensorflow")
    return importlib.import_module(name)


@pytest.mark.parametrize("name", LIGHT + TORCH + FRONTS)
def test_dir_shows_what_is_public_and_no_helpers(name):
    module = loaded(name)
    assert set(module.__all__) <= set(dir(module)) <= {*module.__all__, *USUAL}
    for public in module.__all__:
        assert getattr(module, public) is not None
    assert len(set(module.__all__)) == len(module.__all__)


HOROVODS = {
    "torch": {
        **{"elastic.sampler": "ElasticSampler", "elastic": "TorchState", "elastic.state": "TorchState"},
        **{"mpi_ops": "allreduce_async_", "functions": "broadcast_parameters", "optimizer": "DistributedOptimizer"},
        **{"sync_batch_norm": "SyncBatchNorm", "compression": "Compression"},
    },
    "tensorflow": {
        **{"keras.callbacks": "MetricAverageCallback", "keras.elastic": "KerasState"},
        **{"keras": "DistributedOptimizer", "mpi_ops": "allreduce"},
    },
}
"""By framework, what Horovod's users import from which of its modules."""


@pytest.mark.parametrize("framework", HOROVODS)
def test_modules_are_where_horovods_are(framework):
    """Imported first, by a process of its own; classes are the same, wherever they are imported from."""
    pytest.importorskip(framework)
    code = "from paceline.common.exceptions import HorovodInternalError, HostsUpdatedInterrupt\n"
    for module, public in HOROVODS[framework].items():
        code += f"from paceline.{framework}.{module} import {public}\n"
    home = {"torch": "paceline.torch.hvd.elastic", "tensorflow": "paceline.keras.elastic"}[framework]
    state = {"torch": "TorchState", "tensorflow": "KerasState"}[framework]
    code += f"import {home} as home; print(home.{state} is {state})"
    out = cli.ended(sys.executable, "-c", code, check=True, env=clean(), timeout=120)
    assert out.stdout.strip() == "True"


def test_importing_paceline_loads_nothing_but_the_native_module():
    code = "import sys; before = set(sys.modules); import paceline; print(sorted(set(sys.modules) - before))"
    out = cli.ended(sys.executable, "-c", code, check=True, env=clean(), timeout=60)
    own = {name for name in eval(out.stdout) if name.startswith("paceline")}
    assert own == {"paceline", "paceline._internal", "paceline._internal.lazy"}
    slow = {"asyncio", "click", "dataclasses", "inspect", "json", "logging", "numpy", "pathlib", "rich", "tempfile"}
    assert not slow & set(eval(out.stdout))


def members(name):
    """Public functions, classes and methods of a module: what a caller may call, by its name."""
    module = loaded(name)
    for public in sorted(set(module.__all__) - {"__version__"}):
        value = getattr(module, public)
        home = getattr(value, "__module__", None) or ""
        if not home.startswith("paceline") or not callable(value):
            continue
        yield public, value
        if inspect.isclass(value):
            for method in dir(value):
                result = inspect.getattr_static(value, method)
                result = result.__func__ if isinstance(result, classmethod | staticmethod) else result
                if inspect.isfunction(result) and result.__module__.startswith("paceline"):
                    yield f"{public}.{method}", result


def arguments(result):
    """Names of the arguments that the docstring of a function or class has to describe."""
    if inspect.isclass(result):
        if dataclasses.is_dataclass(result) or "__init__" not in vars(result):
            return []
        return arguments(result.__init__)
    return [name for name in inspect.signature(result).parameters if name not in ("self", "cls")]


def test_no_docstring_begins_with_what():
    files = [path for path in (ROOT / "python").rglob("*.py*") if path.suffix in (".py", ".pyi")]
    assert not [path for path in files if re.search(r'"""What\b', path.read_text(encoding="utf-8"))]


@pytest.mark.parametrize("name", LIGHT + TORCH + FRONTS)
def test_docstrings_describe_every_argument(name):
    missing = []
    for public, result in members(name):
        own = public.rpartition(".")[2]
        if own.startswith("_"):
            continue
        text = inspect.getdoc(result) or ""
        if inspect.isclass(result):
            text += "\n" + (inspect.getdoc(result.__init__) or "")
        if not text.strip():
            missing.append(public)
        section = re.search(r"^Args:\n((?:    .*\n?|\n)*)", text, re.MULTILINE)
        described = set(re.findall(r"^    \*{0,2}(\w+):", section.group(1), re.MULTILINE)) if section else set()
        made_elsewhere = inspect.isclass(result) and "Made by" in text
        if not made_elsewhere:
            missing += [f"{public}({argument})" for argument in arguments(result) if argument not in described]
        missing += [f"{public}: no argument {word}" for word in described - set(arguments(result))]
    assert not missing


@pytest.fixture(scope="module")
def one_rank():
    """A process that no launcher has started: examples that join a job join one of a single rank."""
    with pytest.MonkeyPatch.context() as patch:
        for name in set(os.environ) - set(clean()):
            patch.delenv(name)
        yield


def examples(name, given):
    finder = doctest.DocTestFinder(recurse=False)
    seen = set()
    for public, result in members(name):
        if id(result) in seen:  # inherited by several classes
            continue
        seen.add(id(result))
        yield from finder.find(result, f"{name}.{public}", module=False, globs=dict(given))


def run_examples(name, given):
    flags = doctest.NORMALIZE_WHITESPACE | doctest.ELLIPSIS
    runner = doctest.DocTestRunner(optionflags=flags)
    said = []
    for test in examples(name, given):
        runner.run(test, out=said.append)
    assert not runner.failures, "".join(said)
    return runner.tries


@pytest.mark.parametrize("name", LIGHT)
def test_examples(name, one_rank):
    numpy = pytest.importorskip("numpy")
    pytest.importorskip("pandas")
    with paceline.job.join() as job:
        tried = run_examples(name, {"paceline": paceline, "np": numpy, "job": job})
    assert tried or name in ("paceline.ray", "paceline.ray.ps", "paceline.doctor", "paceline_lab.emulate")


@pytest.mark.parametrize("name", TORCH)
def test_examples_with_torch(name, one_rank):
    torch = pytest.importorskip("torch")
    import paceline.torch as hvd

    hvd.init()
    try:
        assert run_examples(name, {"paceline": paceline, "torch": torch, "hvd": hvd})
    finally:
        hvd.shutdown()


@pytest.mark.parametrize("name", FRONTS)
def test_examples_with_other_frameworks(name, one_rank):
    loaded(name)
    if name == "paceline.jax":
        import jax.numpy

        assert run_examples(name, {"paceline": paceline, "jnp": jax.numpy})
        return
    import keras
    import tensorflow

    hvd = importlib.import_module("paceline.keras" if "keras" in name else "paceline.tensorflow")
    hvd.init()
    try:
        tried = run_examples(name, {"paceline": paceline, "tf": tensorflow, "keras": keras, "hvd": hvd})
    finally:
        hvd.shutdown()
    assert tried or name in ("paceline.keras.callbacks", "paceline.keras.elastic")
