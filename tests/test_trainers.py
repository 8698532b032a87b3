"""Trainers and torch's options for data-parallel training: the same weights over Paceline as over gloo, to the bit."""

import os
import re
import sys
from importlib.util import find_spec
from types import SimpleNamespace

import cli
import pytest
from paceline import accelerate_backend
from torch_workers.checks import BACKENDS
from torch_workers.trainers import EXAMPLES, trained

OPTIONS = ["plain", "powersgd", "fp16", "bf16", "post-local-sgd", "zero", "join", "sparse"]


def needs(*modules):
    missing = [module for module in modules if find_spec(module) is None]
    return pytest.mark.skipif(bool(missing), reason=f"needs {', '.join(missing)} (make test-all installs it)")


def same(name, *options):
    assert trained(name, *options, "--backend", "paceline") == trained(name, *options, "--backend", "gloo")


@pytest.mark.process
@pytest.mark.parametrize("option", OPTIONS)
def test_options_of_ddp(option):
    same("ddp_options.py", "--with", option)


@pytest.mark.process
@pytest.mark.slow
def test_a_compiled_model():
    same("ddp_options.py", "--with", "compile")


@pytest.mark.process
@pytest.mark.skipif(not BACKENDS, reason="needs torch 2.15")
@pytest.mark.parametrize("tensor_parallel", ["1", "2"])
def test_fsdp2_with_tensor_parallelism_and_a_checkpoint(tensor_parallel):
    same("fsdp2.py", "--tensor-parallel", tensor_parallel)


@pytest.mark.process
@pytest.mark.slow
@pytest.mark.skipif(not BACKENDS, reason="needs torch 2.15")
@pytest.mark.parametrize(
    ("name", "options"),
    [
        pytest.param("accelerate_train.py", ["--accumulate", "2"], marks=needs("accelerate"), id="accelerate"),
        pytest.param("transformers_trainer.py", [], marks=needs("transformers", "accelerate"), id="transformers"),
        pytest.param("lightning_train.py", [], marks=needs("lightning"), id="lightning-ddp"),
        pytest.param("lightning_train.py", ["--strategy", "fsdp"], marks=needs("lightning"), id="lightning-fsdp"),
    ],
)
def test_trainers(name, options):
    same(name, *options)


@pytest.mark.process
@pytest.mark.slow
@needs("deepspeed")
@pytest.mark.parametrize("stage", ["1", "2", "3"])
def test_deepspeed(stage):
    same("deepspeed_zero.py", "--stage", stage)


@pytest.mark.process
@pytest.mark.slow
@needs("accelerate")
def test_accelerate_under_paceline_run():
    script, env = EXAMPLES / "accelerate_train.py", {**os.environ, "OMP_NUM_THREADS": "1"}
    done = cli.program("run", "-np", "2", "--", sys.executable, script, env=env, timeout=280)
    assert done.returncode == 0, done.stderr
    assert re.search(r"weights [0-9a-f]{16}, the same on 2 ranks", done.stdout), done.stdout


@pytest.mark.process
@pytest.mark.slow
@pytest.mark.timeout(1000)
@needs("ray")
def test_ray_train():
    hashes = []
    for backend in ("paceline", "gloo"):
        env = {**os.environ, "OMP_NUM_THREADS": "1", "RAY_worker_niceness": "0"}
        command = (sys.executable, EXAMPLES / "ray_torch_trainer.py", "--backend", backend)
        done = cli.ended(*command, env=env, timeout=480)
        assert done.returncode == 0, done.stderr
        # Ray may repeat what a worker prints.
        hashes.append(set(re.findall(r"weights ([0-9a-f]{16}), the same on 2 ranks", done.stdout)))
    assert hashes[0] == hashes[1] and len(hashes[0]) == 1, hashes


def state(chosen, kind="MULTI_CPU"):
    """Like accelerate's module of that name, as far as it matters here."""

    class PartialState:
        def _prepare_backend(self, cpu=False, sagemaker_dp=False, backend=None):
            return chosen or backend, kind

    return SimpleNamespace(PartialState=PartialState)


def test_accelerate_keeps_the_backend_paceline_and_no_other():
    module = state("gloo")
    for _ in range(2):
        accelerate_backend.keep_backend(module)
    choose = module.PartialState()._prepare_backend
    assert choose(True, False, "paceline") == choose(cpu=True, backend="paceline") == ("paceline", "MULTI_CPU")
    assert choose(True, False, "mpi") == choose(True) == ("gloo", "MULTI_CPU")
    accelerators = state("hccl")
    accelerate_backend.keep_backend(accelerators)
    assert accelerators.PartialState()._prepare_backend(False, False, "paceline")[0] == "hccl"
    accelerate_backend.keep_backend(SimpleNamespace())  # A version without the class is left as it is.


def test_accelerate_is_changed_when_it_is_imported(tmp_path):
    package = tmp_path / "accelerate"
    package.mkdir()
    (package / "__init__.py").write_text("from accelerate import state\n")
    (package / "state.py").write_text(
        "class PartialState:\n    def _prepare_backend(self, cpu=False, dp=False, backend=None):\n"
        "        return 'gloo', None\n"
    )
    script = (
        "from paceline import accelerate_backend, as_gloo; as_gloo.load(); as_gloo.load(); import accelerate, sys\n"
        "print(accelerate.state.PartialState()._prepare_backend(True, False, 'paceline')[0])\n"
        "print(sum(type(finder).__name__ == '_AfterImport' for finder in sys.meta_path))"
    )
    done = cli.ended(
        sys.executable,
        "-c",
        script,
        env={**os.environ, "PYTHONPATH": os.pathsep.join([str(tmp_path), *sys.path])},
        timeout=60,
        check=True,
    )
    assert done.stdout.split() == ["paceline", "0"]
