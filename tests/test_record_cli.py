"""`paceline record` on torchvision's models, and its complaints."""

import builtins
import importlib.util
import json
import os
import signal
import subprocess
import sys
from functools import partial
from pathlib import Path

import cli
import paceline
import pytest
from paceline.cli.record import _print_summary, _started
from test_record_format import check_trace, layers

run = partial(cli.call, "record")


def test_a_model_of_torchvision(tmp_path, capsys):
    pytest.importorskip("torchvision")
    path = tmp_path / "T.json"
    sizes = ["--batch", 2, "--image-size", 64, "--warmup", 1, "--steps", 1]
    result = cli.printed("record", "--model", "ResNet-18", "-o", path, *sizes, "--json", "--name", "mine")
    summary = json.loads(result)
    assert (summary["name"], summary["parameters"], summary["gradients"]) == ("mine", 11_689_512, 62)
    assert summary["overhead_ratio"] > 0
    trace = json.loads(path.read_text())
    worker = check_trace(trace)
    assert (trace["name"], trace["batch"], len(worker["gradients"])) == ("mine", 2, 62)
    assert layers(worker)["fc"] == ["fc.weight", "fc.bias"]
    _print_summary(summary, path, as_json=False, to_stderr=False)
    printed = capsys.readouterr().out
    for row in ("Forward", "Backward", "Optimizer", "11,689,512", "samples/s", "Overhead", "try: paceline simulate"):
        assert row in printed


@pytest.mark.slow
def test_auxiliary_classifiers():
    pytest.importorskip("torchvision")
    import torch
    from paceline.torch.recorder import torchvision as vision

    criterion = torch.nn.CrossEntropyLoss()
    target = torch.tensor([1, 2])
    for name, size, weights in (("googlenet", 64, [0.3, 0.3]), ("inception_v3", 299, [0.4])):
        torch.manual_seed(0)
        output = vision.build(name, size)(torch.randn(2, 3, size, size))
        main, *auxiliary = (output.logits, *(t for f, t in output._asdict().items() if f != "logits"))
        expected = criterion(main, target) + sum(
            w * criterion(t, target) for w, t in zip(weights, auxiliary, strict=True)
        )
        assert torch.allclose(vision.total_loss(output, target, criterion), expected)


def test_every_model_can_be_built_at_its_size():
    pytest.importorskip("torchvision")
    import torch
    from paceline.torch.recorder import torchvision as vision

    with torch.device("meta"):
        for name in ("vit_b_16", "maxvit_t", "swin_v2_t", "googlenet", "inception_v3", "alexnet"):
            model = vision.build(name, vision.default_image_size(name))
            assert model.training


def test_an_unknown_model_is_answered_with_the_nearest(tmp_path):
    pytest.importorskip("torchvision")
    assert "resnet50" in cli.refused("record", "--model", "resnet51", "-o", tmp_path / "T.json")


@pytest.mark.parametrize(
    ("arguments", "words"),
    [
        (["-o", "T.json"], "paceline record -o T.json -- python train.py"),
        (
            ["-o", "T.json", "--model", "resnet18", "--", "python", "x.py"],
            "give either --model NAME or a script",
        ),
        (["-o", "nowhere/T.json", "--model", "resnet18"], "does not exist"),
        (["-o", "nowhere/T.json", "--", "python", "x.py"], "does not exist"),
        (["-o", ".", "--model", "resnet18"], "is a folder"),
        (["-o", "T.json", "--threads", "2", "--", "python", "x.py"], "--threads needs --model"),
        (["-o", "T.json", "--stop-when-recorded", "--model", "resnet18"], "--stop-when-recorded needs a script"),
        (["-o", "T.json", "--", "nosuchcommand"], "try: -- python train.py"),
        (["-o", "T.json", "trian.py"], "trian.py: no such file try: -- train.py"),
        (["-o", "T.json", "--", "python", "-u", "trian.py"], "trian.py: no such file try: -- python -u train.py"),
        (["-o", "T.json", "--", "torchrun", "trian.py", "--lr", "1"], "try: -- torchrun train.py --lr 1"),
        (["-o", "T.json", "--", "python", "folder/x.py"], "folder/x.py: no such file try: another path (list: ls)"),
        (["--model", "resnet18"], "--output is missing"),
    ],
)
def test_mistakes_are_told_before_anything_runs(arguments, words, monkeypatch, tmp_path):
    monkeypatch.chdir(tmp_path)
    (tmp_path / "train.py").touch()
    assert words in " ".join(cli.refused("record", *arguments).split())


def test_a_file_of_python_is_started_by_python(monkeypatch, tmp_path):
    monkeypatch.chdir(tmp_path)
    Path("train.py").touch()
    for words in (("python", "-c", "x.py"), ("python", "-m", "pkg", "x.py"), ("bash", "x.py"), ("python", "train.py")):
        assert _started(words) == words
    # As the remedy for a missing --output has it.
    refused = cli.refused("record", "train.py", "--lr", "1")
    assert "try: paceline record -o mine.json train.py --lr 1" in refused
    assert _started(("train.py", "--lr", "1")) == ("python", "train.py", "--lr", "1")
    own = Path("own.py")
    own.write_text("#!/bin/sh\n")
    own.chmod(0o755)
    assert _started(("./own.py",)) == ("./own.py",)


def test_an_unknown_gpu_is_answered_with_the_option_and_the_nearest(tmp_path):
    words = ["record", "--gpu", "h101", "-o", str(tmp_path / "T.json"), "--", "python", "x.py"]
    assert "try: h100" in cli.call(*words).stderr


def test_help_says_that_no_gpu_is_needed_what_is_counted_and_what_is_estimated():
    words = " ".join(run("--help").stdout.split())
    assert "With --gpu, nothing is measured, and no GPU is needed." in words
    assert "Its operators are counted with the shapes of their tensors" in words
    assert "and a model of the GPU's kernels turns them into times." in words


def test_without_torch_it_says_what_to_install(monkeypatch, tmp_path):
    real = importlib.util.find_spec
    monkeypatch.setattr(importlib.util, "find_spec", lambda name, *a: None if name == "torch" else real(name, *a))
    monkeypatch.setattr(builtins, "__import__", _refuse_torch(builtins.__import__))
    assert "pip install '.[torch]'" in cli.refused("record", "--model", "resnet18", "-o", tmp_path / "T.json")


def _refuse_torch(real):
    def refuse(name, *arguments, **more):
        assert name.split(".")[0] != "torch"
        return real(name, *arguments, **more)

    return refuse


def test_without_cuda_it_cannot_be_done_here(tmp_path):
    torch = pytest.importorskip("torch")
    pytest.importorskip("torchvision")
    if torch.cuda.is_available():
        pytest.skip("there is a GPU")
    assert run("--model", "resnet18", "--device", "cuda", "-o", tmp_path / "T.json").exit_code == 77


def test_the_command_imports_no_torch():
    code = "import sys, paceline.cli.record; sys.exit('torch' in sys.modules or 'rich' in sys.modules)"
    assert subprocess.run([sys.executable, "-c", code], env=_environment(), check=False).returncode == 0


def _environment():
    return {**os.environ, "PYTHONPATH": str(Path(paceline.__file__).parent.parent)}


def test_links_and_devices_stay_what_they_are(tmp_path):
    pytest.importorskip("torch")
    from paceline._internal.recording import write_json

    link, target, pipe = tmp_path / "link.json", tmp_path / "target.json", tmp_path / "pipe"
    link.symlink_to(target)
    write_json(link, {"a": 1})
    assert link.is_symlink()
    assert json.loads(target.read_text()) == {"a": 1}
    os.mkfifo(pipe)
    reader = os.open(pipe, os.O_RDONLY | os.O_NONBLOCK)
    write_json(pipe, {"a": 2})
    assert json.loads(os.read(reader, 1000)) == {"a": 2}
    os.close(reader)
    assert pipe.is_fifo()
    assert sorted(path.name for path in tmp_path.iterdir()) == ["link.json", "pipe", "target.json"]


def test_names_that_no_trace_may_have(tmp_path):
    for name in ("a\x01b", "two\nlines", "\udcff"):
        result = cli.refused("record", "-o", tmp_path / "T.json", "--name", name, "--", sys.executable, "-c", "")
        assert "--name" in result


def test_the_script_ends_with_the_command(tmp_path):
    """A batch system ends the command; the script must not go on alone, and nothing stays behind."""
    words = ["-m", "paceline.cli", "record", "-o", str(tmp_path / "T.json"), "--", sys.executable, "-c"]
    script = "import os, time; print(os.getpid(), flush=True); time.sleep(60)"
    environment = {**os.environ, "TMPDIR": str(tmp_path)}
    command = subprocess.Popen([sys.executable, *words, script], stdout=subprocess.PIPE, env=environment, text=True)
    assert command.stdout is not None
    child = int(command.stdout.readline())
    command.terminate()
    assert command.wait(20) == 128 + signal.SIGTERM
    command.stdout.close()
    with pytest.raises(ProcessLookupError):
        os.kill(child, 0)
    assert list(tmp_path.iterdir()) == []
