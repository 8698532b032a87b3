"""`paceline bench` with real processes: engines side by side, and what happens when one is killed, stopped or wrong."""

import importlib.util
import json
import os
import signal
import subprocess
import sys
import time
from pathlib import Path

import cli
import pytest
from paceline.interop.logs import read_log
from paceline_lab.bench.engines import Options, chosen
from paceline_lab.bench.engines.horovod import HorovodMpi, HorovodTensorFlow, HorovodTensorFlowMpi
from paceline_lab.bench.engines.tensorflow import Mirrored
from paceline_lab.bench.environments import TENSORFLOW, install_line
from paceline_lab.bench.report import ALIKE

if importlib.util.find_spec("torchvision") is None:  # which takes seconds to import
    pytest.skip("needs torchvision", allow_module_level=True)

BENCH = (sys.executable, "-m", "paceline.cli", "bench")
SMALL = ("--model", "mlp", "--batch-size", "2", "-np", "2", "--rounds", "1", "--num-warmup-batches", "1")
LIMIT_S = 280


def bench(*words, cwd=None):
    return cli.ended(*BENCH, *words, timeout=LIMIT_S, cwd=cwd, env=environment())


def environment():
    return {name: value for name, value in os.environ.items() if not name.startswith("PACELINE_")} | {"COLUMNS": "110"}


def rows(done):
    assert done.returncode == 0, done.stderr
    answer = json.loads(done.stdout)
    return {row["engine"]: row for row in answer["rows"]}, answer


@pytest.mark.process
def test_engines_side_by_side_end_with_the_same_weights():
    engines = "paceline,ddp-gloo,ddp-nccl"
    done = bench(*SMALL, "--engine", engines, "--num-batches", "4", "--bandwidth", "10Gbps", "--json")
    result, answer = rows(done)
    assert list(result) == ["paceline", "ddp-gloo"]
    for row in result.values():
        assert row["ranks_alike"]
        assert row["workers"] == 2
        assert row["batch_size"] == 2
        assert len(row["step_seconds"][0]) == 4
        # Divided by the total time of the steps, which is longer than that of rank 0's steps.
        assert 0 < row["total_images_per_s"] <= 1.001 * 4 / (sum(row["step_seconds"][0]) / 4)
        assert 0 < row["forward_s"] < 60
        assert 0 < row["backward_s"] < 60
        assert row["cpu_per_rank"] > 0
        assert row["forecast_images_per_s"] > 0
    assert result["ddp-gloo"]["forecast_of"] == "ring"
    assert result["ddp-gloo"]["weights_difference"] < 1e-5
    (skipped,) = answer["skipped"]
    assert skipped["engine"] == "ddp-nccl"
    assert "needs one GPU" in skipped["reason"]
    assert not skipped["failed"]


@pytest.mark.process
def test_one_engine_prints_what_tf_cnn_benchmarks_prints(tmp_path):
    done = bench(*SMALL, "--engine", "paceline", "--strategy", "ps", "--num-batches", "5", "--display-every", "2")
    assert done.returncode == 0, done.stderr
    lines = done.stdout.splitlines()
    at = lines.index("Step\tImg/sec\ttotal_loss")
    assert [line.split("\t")[0] for line in lines[at + 1 : at + 4]] == ["1", "2", "4"]
    assert lines[-1] == lines[-3] == "-" * 64
    assert lines[-2].startswith("total images/sec: ")
    log = tmp_path / "log"
    log.write_text(done.stdout)
    (result,) = read_log(log)
    assert (result.what, result.way, result.devices, result.batch) == ("mlp", "paceline ps", 2, 2)


def waiting_for_ranks(process, count=2):
    """Pids of ranks that have begun to train or are about to, once all are there."""
    until = time.monotonic() + LIMIT_S
    while time.monotonic() < until:
        result = ranks_of(process.pid)
        if len(result) >= count:
            return result
        assert process.poll() is None, process.communicate()
        time.sleep(0.1)
    raise AssertionError("no ranks have begun")


def ranks_of(parent):
    values = []
    for folder in Path("/proc").iterdir():
        if folder.name.isdigit():
            try:
                pid = int((folder / "stat").read_text().rpartition(")")[2].split()[1])
                if pid == parent and b"torch_rank" in (folder / "cmdline").read_bytes():
                    values.append(int(folder.name))
            except (OSError, IndexError):
                continue
    return sorted(values)


def begun(*more):
    words = [*BENCH, *SMALL, "--engine", "ddp-gloo", "--num-batches", "100000", *more]
    return subprocess.Popen(words, stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True, env=environment())


@pytest.mark.process
@pytest.mark.skipif(not sys.platform.startswith("linux"), reason="looks for ranks in /proc")
def test_a_killed_rank_is_named_and_the_others_are_ended():
    process = begun("--json")
    ranks = waiting_for_ranks(process)
    os.kill(ranks[1], signal.SIGKILL)
    out, _ = process.communicate(timeout=LIMIT_S)
    assert process.returncode == 1
    (skipped,) = json.loads(out)["skipped"]
    assert skipped["failed"]
    assert "rank 1" in skipped["reason"]
    assert "SIGKILL" in skipped["reason"]
    assert not any(Path(f"/proc/{pid}").exists() for pid in ranks)


@pytest.mark.slow
def test_a_failure_in_a_later_round_leaves_the_row_of_those_before():
    process = begun("--json", "--num-batches", "4", "--rounds", "2")
    first = waiting_for_ranks(process)
    until = time.monotonic() + LIMIT_S
    while not (second := set(ranks_of(process.pid)) - set(first)):
        assert time.monotonic() < until
        assert process.poll() is None, process.communicate()
        time.sleep(0.02)
    os.kill(min(second), signal.SIGKILL)
    out, _ = process.communicate(timeout=LIMIT_S)
    assert process.returncode == 1
    answer = json.loads(out)
    assert [len(row["step_seconds"]) for row in answer["rows"]] == [1]
    assert answer["skipped"][0]["reason"].startswith("in round 2 (its row covers the rounds before): ")


@pytest.mark.slow
@pytest.mark.parametrize("number", [signal.SIGINT, signal.SIGTERM, signal.SIGKILL])
def test_nothing_outlives_a_bench_that_is_ended(number):
    process = begun()
    ranks = waiting_for_ranks(process)
    time.sleep(1)
    process.send_signal(number)
    process.communicate(timeout=30)
    assert process.returncode == {signal.SIGINT: 130, signal.SIGTERM: 143, signal.SIGKILL: -9}[number]
    until = time.monotonic() + 10
    while any(Path(f"/proc/{pid}").exists() for pid in ranks):
        assert time.monotonic() < until
        time.sleep(0.1)


@pytest.mark.slow
def test_what_was_measured_before_ctrl_c_is_kept(tmp_path):
    words = ("--model", "mlp", "--batch-size", "2", "-np", "2", "--rounds", "2", "--num-batches", "100")
    file = tmp_path / "kept.json"
    command = [*BENCH, *words, "--engine", "ddp-gloo", "-o", str(file)]
    process = subprocess.Popen(command, stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True, env=environment())
    assert "1/2" in process.stderr.readline()
    process.send_signal(signal.SIGINT)
    out, _ = process.communicate(timeout=60)
    assert process.returncode == 130
    assert "ended early: after 1 of 2 runs" in out
    (row,) = json.loads(file.read_text())["rows"]
    assert len(row["step_seconds"]) == 1


@pytest.mark.slow
def test_training_that_diverges_is_said():
    warm = ("--num-warmup-batches", "3")  # weights are compared after three steps: by then they are NaN
    done = bench(*SMALL, "--engine", "paceline,ddp-gloo", "--num-batches", "2", "--lr", "1e30", "--json", *warm)
    _, result = rows(done)
    assert "training diverged" in result["notes"][0]
    assert not done.stderr.count("Warning")


@pytest.mark.slow
def test_a_stopped_rank_ends_at_the_limit_and_the_waiting_are_named():
    process = begun("--json", "--limit", "20")
    ranks = waiting_for_ranks(process)
    os.kill(ranks[0], signal.SIGSTOP)
    out, _ = process.communicate(timeout=LIMIT_S)
    assert process.returncode == 1
    (skipped,) = json.loads(out)["skipped"]
    assert "did not finish within 20 s" in skipped["reason"] or "rank 1" in skipped["reason"]
    assert not any(Path(f"/proc/{pid}").exists() for pid in ranks)


@pytest.mark.parametrize(
    ("words", "says"),
    [
        (["--model", "mlp"], "the number of ranks is missing"),
        (["--model", "resnet81", "-np", "2"], "torchvision has no classification model 'resnet81'"),
        (["--engine", "ddp-glo", "-np", "2"], "ddp-gloo"),
        (["--engine", "ddp-gloo", "--strategy", "ring", "-np", "2"], "--strategy needs the engine paceline"),
        (["--engine", "ddp-gloo", "--servers", "2", "-np", "2"], "--servers has no effect on these engines"),
        (["--engine", "paceline,ddp-nccl", "--device", "cpu", "-np", "2"], "ddp-nccl computes on GPUs"),
        (["--engine", "ray-ps", "--device", "cuda", "-np", "2"], "--device cuda: ray-ps computes on CPUs only"),
        (["--num-workers", "2", "-np", "2"], "--num-workers has no effect on synthetic images"),
        (["--scaling", "weak", "-np", "2"], "--scaling needs several numbers of ranks"),
        (["--scaling", "strong", "--batch-size", "3", "-np", "1,2"], "try: --batch-size 2"),
        (["--num-batches", "2", "--rounds", "3", "-np", "2"], "must be at least --rounds, 3, not 2"),
        (["--data-dir", "/nowhere", "-np", "2"], "--data-dir /nowhere"),
        (
            ["--data-dir", "few", "-np", "1,2", "--batch-size", "2"],
            "2 ranks with 2 per step need 4 images, not 3",
        ),
        (["--data-dir", "few/cats", "-np", "2"], "must have 1-1000 folders, one per class, not 0"),
        (["--engine", ",", "-np", "2"], "names nothing"),
        (["--engine", "ddp-gloo,ddp-gloo", "-np", "2"], "ddp-gloo is listed twice"),
        (["--engine", "all,ddp-gloo", "-np", "2"], "try: --engine all"),
        (["--display-every", "3", "--rounds", "2", "-np", "2"], "--display-every has no effect on a table or JSON"),
        (["--read", "log", "-o", "log"], "--output log: would overwrite --read log"),
        (["--plot", "a.png", "-o", "a.png", "-np", "2"], "would overwrite --plot a.png"),
        (["--install", "pytorch"], "try: --install tensorflow (one of tensorflow, openmpi, mpich, oneccl, horovod"),
        (["--install", "tensorflow", "-np", "2"], "only creates an environment"),
        (["--install", "tensorflow", "--read", "log"], "only creates an environment"),
        (["--install", "tensorflow", "--json"], "only creates an environment"),
        (["--engine", "ddp-gloo", "--xla", "on", "-np", "2"], "--xla compiles TensorFlow's graphs only"),
        (["--engine", "tensorflow-ps", "--xla", "yes", "-np", "2"], "--xla: "),
        (["--plot", "x.txt", "-np", "2"], "unknown kind of file"),
    ],
)
def test_mistakes_are_named(words, says, tmp_path, monkeypatch):

    monkeypatch.chdir(tmp_path)
    (tmp_path / "few" / "cats").mkdir(parents=True)
    for number in range(3):
        (tmp_path / "few" / "cats" / f"{number}.jpg").touch()
    (tmp_path / "log").write_text("total images/sec: 5\n")
    done = cli.output("bench", *words, code=2)
    assert says in done
    assert "Traceback" not in done


def test_missing_tensorflow_is_a_row_that_says_how_to_install_it(monkeypatch, tmp_path):
    if importlib.util.find_spec("tensorflow"):
        pytest.skip("TensorFlow is in this environment")
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path))
    engines = ["tensorflow-ps", "tensorflow-mwm", "paceline-tensorflow"]
    lacking = [engine.missing() for engine in chosen(engines, Options(), [None])]
    assert lacking == [f"TensorFlow is not installed: {install_line(TENSORFLOW)}"] * 3


@pytest.mark.parametrize(("name", "framework"), [("horovod", "torch"), ("horovod-tensorflow", "tensorflow")])
def test_horovod_must_be_built_for_the_framework(monkeypatch, tmp_path, name, framework):
    # Like an installed Horovod, whose packages for all frameworks are there whether they were built or not.
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path))
    monkeypatch.syspath_prepend(tmp_path)
    folder = tmp_path / "horovod" / framework
    folder.mkdir(parents=True)
    (tmp_path / "horovod" / "__init__.py").touch()
    (engine,) = chosen([name], Options(), [None])
    assert engine.missing() == f"is not installed: {install_line(name)} (compiles it, 5 to 20 minutes)"
    (folder / "mpi_lib.so").touch()
    assert engine.missing() is None
    monkeypatch.setattr(sys, "executable", str(tmp_path / "bin" / "python"))
    (over_mpi,) = chosen([f"{name}-mpi"], Options(), [None])
    assert "was built without MPI" in over_mpi.missing()


NO_TENSORFLOW = Mirrored(Options()).missing()
NO_HOROVOD = HorovodTensorFlow(Options()).missing()
NO_HOROVOD_MPI = HorovodTensorFlowMpi(Options()).missing() or HorovodMpi(Options()).missing()
needs_tensorflow = pytest.mark.skipif(NO_TENSORFLOW is not None, reason=str(NO_TENSORFLOW))


@pytest.mark.process
@needs_tensorflow
def test_the_tape_for_tensorflow_ends_with_the_weights_of_ddp():
    words = (*SMALL, "--num-batches", "3", "--strategy", "ps", "--engine", "ddp-gloo,paceline-tensorflow")
    result, answer = rows(bench(*words, "--json"))
    assert list(result) == ["ddp-gloo", "paceline-tensorflow ps"] and not answer["skipped"]
    row = result["paceline-tensorflow ps"]
    assert row["servers"] == 1 and row["ranks_alike"] and row["weights_difference"] < 1e-3
    assert row["total_images_per_s"] > 0 and len(row["step_seconds"][0]) == 3


@pytest.mark.process
@pytest.mark.skipif(NO_HOROVOD is not None, reason=str(NO_HOROVOD))
def test_horovods_tape_ends_with_the_weights_of_ddp():
    result, answer = rows(bench(*SMALL, "--num-batches", "3", "--engine", "ddp-gloo,horovod-tensorflow", "--json"))
    assert list(result) == ["ddp-gloo", "horovod-tensorflow"] and not answer["skipped"]
    row = result["horovod-tensorflow"]
    assert row["ranks_alike"] and row["weights_difference"] < 1e-3


@pytest.mark.slow
@pytest.mark.skipif(NO_HOROVOD_MPI is not None, reason=str(NO_HOROVOD_MPI))
def test_horovod_over_mpi_ends_with_the_weights_of_ddp():
    result, answer = rows(
        bench(*SMALL, "--num-batches", "3", "--engine", "ddp-gloo,horovod-mpi,horovod-tensorflow-mpi", "--json")
    )
    assert list(result) == ["ddp-gloo", "horovod-mpi", "horovod-tensorflow-mpi"] and not answer["skipped"]
    assert result["horovod-mpi"]["weights_difference"] < 1e-6
    assert result["horovod-tensorflow-mpi"]["weights_difference"] < 1e-3
    assert all(row["ranks_alike"] for row in result.values())


@pytest.mark.process
@needs_tensorflow
def test_replicas_of_one_process_end_with_the_weights_of_ddp_with_and_without_xla():
    words = (*SMALL[:2], "--batch-size", "2", "-np", "1,3", "--rounds", "1", "--num-warmup-batches", "1")
    engines = ("--engine", "ddp-gloo,tensorflow-mirrored", "--xla", "off,on")
    done = bench(*words, "--num-batches", "3", *engines, "--json")
    assert done.returncode == 0, done.stderr
    answer = json.loads(done.stdout)
    assert not answer["skipped"]
    by_key = {(row["engine"], row["workers"]): row for row in answer["rows"]}
    names = ("ddp-gloo", "tensorflow-mirrored", "tensorflow-mirrored xla")
    assert set(by_key) == {(name, workers) for name in names for workers in (1, 3)}
    for workers in (1, 3):
        plain, compiled = (by_key[name, workers] for name in names[1:])
        assert plain["weights_difference"] < 1e-3 and compiled["weights_difference"] < 1e-3
        assert plain["ranks_alike"] and plain["replicas_apart"] == 0
        assert compiled["replicas_apart"] < 1e-4
        assert plain["xla_clusters"] is None and compiled["xla_clusters"] > 0


@pytest.mark.slow
@needs_tensorflow
def test_xla_clusters_the_graphs_of_every_engine_of_tensorflow():
    engines = "ddp-gloo,tensorflow-ps,tensorflow-mwm,paceline-tensorflow"
    result, answer = rows(bench(*SMALL, "--num-batches", "3", "--engine", engines, "--xla", "on,off", "--json"))
    assert not answer["skipped"]
    for name in engines.split(",")[1:]:
        assert result[f"{name} xla"]["xla_clusters"] > 0
        assert result[name]["xla_clusters"] is None
        assert result[f"{name} xla"]["weights_difference"] < 1e-3


@pytest.mark.slow
@needs_tensorflow
@pytest.mark.parametrize("model", ["cnn", "mlp", "resnet18"])
def test_tensorflow_trains_the_same_model(model):
    sizes = ("--image-size", "64") if model == "resnet18" else ()
    words = ("--model", model, "--batch-size", "4", "-np", "2", "--rounds", "1", "--num-batches", "2", *sizes)
    result, _ = rows(bench(*words, "--engine", "ddp-gloo,tensorflow-ps,tensorflow-mwm", "--json"))
    assert set(result) == {"ddp-gloo", "tensorflow-ps", "tensorflow-mwm"}
    for row in result.values():
        assert row["ranks_alike"]
    for name in ("tensorflow-ps", "tensorflow-mwm"):
        # `report.ALIKE` says how rounding grows in a ResNet.
        assert result[name]["weights_difference"] < (ALIKE if model == "resnet18" else 1e-3)


@pytest.mark.slow
@pytest.mark.parametrize("strategy", ["ring", "tree", "halving-doubling", "ps", "recursive-doubling"])
def test_strategies_and_coordinators_end_with_the_same_weights(strategy):
    coordinator = ("--coordinator", "negotiate")
    words = (*SMALL, "--num-batches", "2", "--strategy", strategy, "--engine", "ddp-gloo,paceline", "--json")
    for more in ((), coordinator):
        result, _ = rows(bench(*words, *more))
        assert result[f"paceline {strategy}"]["weights_difference"] < 1e-5


@pytest.mark.slow
def test_scaling_has_lines_and_efficiencies(tmp_path):
    words = ("--model", "mlp", "--batch-size", "4", "-np", "1,2", "--num-batches", "4", "--scaling", "strong")
    done = bench(*words, "--rounds", "2", "--json", "--plot", "p.png", cwd=tmp_path)
    assert done.returncode == 0, done.stderr
    answer = json.loads(done.stdout)
    assert [row["batch_size"] for row in answer["rows"]] == [4, 2]
    assert answer["rows"][0]["scaling_efficiency"] == 1
    (line,) = answer["regressions"]
    assert line["slope_interval"]["low"] <= line["slope"] <= line["slope_interval"]["high"]
    assert (tmp_path / "p.png").read_bytes().startswith(b"\x89PNG")


@pytest.fixture
def pictures(tmp_path):
    """Two classes of eight images of several sizes."""
    import numpy as np
    from PIL import Image

    draw = np.random.default_rng(3)
    for name in ("cats", "dogs"):
        (tmp_path / "images" / name).mkdir(parents=True)
        for number in range(8):
            pixels = draw.integers(0, 256, (40 + 5 * number, 50, 3), dtype=np.uint8)
            Image.fromarray(pixels).save(tmp_path / "images" / name / f"{number}.png")
    return tmp_path / "images"


@pytest.mark.slow
def test_image_files_go_through_loaders(pictures):
    engines = "paceline" + (",tensorflow-mwm" if NO_TENSORFLOW is None else "")
    words = (*SMALL, "--num-batches", "3", "--data-dir", str(pictures), "--engine", engines, "--json")
    result, answer = rows(bench(*words))
    assert set(result) == set(engines.split(","))
    for row in result.values():
        assert row["ranks_alike"]
        assert row["input_s"] > 0
        assert row["weights_difference"] is None
    assert any("not compared" in note for note in answer["notes"])
    empty = pictures / "none"
    empty.mkdir()
    done = bench(*SMALL, "--num-batches", "3", "--data-dir", str(empty), "--engine", "paceline")
    assert done.returncode == 2
    assert "must have 1-1000 folders, one per class, not 0" in done.stderr


@pytest.mark.slow
def test_on_an_emulated_cluster_ranks_run_on_its_hosts():
    inner = [*BENCH, *SMALL[:4], "--num-batches", "3", "--rounds", "1", "--engine", "paceline,ddp-gloo", "--json"]
    words = [*BENCH[:-1], "emulate", "run", "--workers", "2", "--bandwidth", "100Mbps", "--no-prefix", "--", *inner]
    done = cli.ended(*words, timeout=LIMIT_S, env=environment())
    if done.returncode == 77:
        pytest.skip(done.stderr.strip())
    result, _ = rows(done)
    for row in result.values():
        # A ring of two ranks sends the gradients once: a network of 100 Mbit/s cannot be faster, except for its burst.
        gradients = 4 * (3 * 32 * 32 * 256 + 256 + 256 * 256 + 256 + 256 * 1000 + 1000)
        assert row["step_s"] > 0.8 * gradients * 8 / 100e6
        assert row["forecast_of"] is not None
        assert -0.6 < row["forecast_error"] < 0.3
