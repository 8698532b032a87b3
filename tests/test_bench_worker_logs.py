"""Logs in which several workers have written: whole, alternating, torn and truncated; and lines over such logs."""

import json
import shutil
from pathlib import Path

import cli
import pytest
from hypothesis import given
from hypothesis import strategies as st
from paceline import InvalidArgumentError
from paceline.interop.logs import read_log
from paceline_lab.bench.log_fits import fits, number

RULE = "-" * 64
STEPS = (1, 10, 20, 100)


def worker(of, total, way="horovod"):
    """Return the log of a worker, by tf_cnn_benchmarks' conventions: its own rate, and the total of all."""
    each = total / (of if way == "horovod" else 1)
    lines = ["TensorFlow:  2.1", "Model:       resnet50", "Mode:        training", f"Batch size:  {32 * of} global"]
    lines += ["             32 per device", "Num batches: 100", f"Variables:   {way}", "==========", "Done warm up"]
    lines += ["Step\tImg/sec\ttotal_loss"]
    lines += [f"{step}\timages/sec: {each:.1f} +/- 0.3 (jitter = 2.6)\t7.995" for step in STEPS]
    return "\n".join([*lines, RULE, f"total images/sec: {total:.2f}", RULE, ""])


def alternate(data, logs):
    """Return the lines of logs in an order that keeps each log's own."""
    left, mixed = [log.splitlines(keepends=True) for log in logs], []
    while any(left):
        place = data.draw(st.sampled_from([at for at, one in enumerate(left) if one]))
        mixed.append(left[place].pop(0))
    return "".join(mixed)


def write(folder, text, name="nccl_g4_horovod.txt"):
    log = folder / name
    log.write_text(text)
    return log


def grep(text):
    """Return what `grep -m 1 "total "` gives, as the publication has it."""
    return float(next(line for line in text.splitlines() if "total images" in line).split()[-1])


@given(data=st.data(), workers=st.integers(2, 6), prefix=st.sampled_from(["", "{rank}: ", "[1,{rank}]<stdout>:"]))
def test_lines_of_workers_in_any_order(tmp_path_factory, data, workers, prefix):
    folder = tmp_path_factory.mktemp("logs")
    totals = [round(1187.5 + data.draw(st.integers(-300, 300)) / 100, 2) for _ in range(workers)]
    logs = [
        "".join(f"{prefix.format(rank=rank)}{line}\n" for line in worker(workers, total).splitlines())
        for rank, total in enumerate(totals)
    ]
    text = alternate(data, logs)
    (read,) = read_log(write(folder, text))
    assert (read.devices, read.batch, read.what, read.way) == (workers, 32, "resnet50", "horovod")
    assert read.total_images_per_s == grep(text)
    assert sorted(read.totals_images_per_s) == sorted(totals)
    assert (read.steps, read.jitter, read.notes) == (100, 2.6, [])
    shutil.rmtree(folder)


def test_logs_of_workers_one_after_the_other(tmp_path):
    text = "".join(worker(4, total) for total in (1187.52, 1186.9, 1188.1, 1187.0))
    (read,) = read_log(write(tmp_path, text))
    assert (read.devices, read.total_images_per_s, len(read.totals_images_per_s)) == (4, 1187.52, 4)
    # Fewer or more logs than the run has workers, or other totals, are several runs.
    assert len(read_log(write(tmp_path, worker(4, 1187.52) * 3))) == 3
    assert len(read_log(write(tmp_path, "".join(worker(4, 1187.52 * factor) for factor in (1, 2, 3, 4))))) == 4
    assert len(read_log(write(tmp_path, worker(2, 590.0, "parameter_server") * 2))) == 2
    (first, second) = read_log(write(tmp_path, worker(2, 600.0) * 2 + worker(4, 1187.52) * 4))
    assert [(one.devices, one.total_images_per_s) for one in (first, second)] == [(2, 600.0), (4, 1187.52)]


@given(data=st.data(), workers=st.integers(2, 4))
def test_workers_that_write_into_each_others_lines(tmp_path_factory, data, workers):
    """Buffers that end within a line tear it. The total is one that a worker printed, or the log is refused.

    A number of the heads and tails of two workers' totals cannot be told from a whole one; it is within 1% of them.
    """
    folder = tmp_path_factory.mktemp("logs")
    size = data.draw(st.integers(40, 400))
    totals = [1187.5 + rank for rank in range(workers)]
    logs = [worker(workers, total) for total in totals]
    parts = [[log[at : at + size] for at in range(0, len(log), size)] for log in logs]
    text = ""
    while any(parts):
        text += data.draw(st.sampled_from([one for one in parts if one])).pop(0)
    try:
        read = read_log(write(folder, text))
    except InvalidArgumentError as error:
        assert "nccl_g4_horovod.txt:" in str(error)
    else:
        for one in read:
            assert all(any(abs(each / total - 1) < 0.01 for total in totals) for each in one.totals_images_per_s)
    shutil.rmtree(folder)


@given(data=st.data())
def test_a_log_of_workers_that_ends_anywhere(tmp_path_factory, data):
    folder = tmp_path_factory.mktemp("logs")
    totals = [1187.52, 1186.9, 1188.1]
    whole = alternate(data, [worker(3, total) for total in totals])
    text = whole[: data.draw(st.integers(1, len(whole)))]
    try:
        read = read_log(write(folder, text))
    except InvalidArgumentError as error:
        assert "nccl_g4_horovod.txt:" in str(error)
    else:
        assert all(total in totals for one in read for total in one.totals_images_per_s)
    shutil.rmtree(folder)


def test_a_worker_without_a_total_is_named(tmp_path):
    first, second = worker(2, 595.0).splitlines(), worker(2, 596.0).splitlines()
    lines = [line for two in zip(first, second, strict=True) for line in two]
    (read,) = read_log(write(tmp_path, "\n".join(line for line in lines if line != "total images/sec: 596.00") + "\n"))
    assert (read.total_images_per_s, read.notes) == (595.0, ["1 worker of 2 printed no total that can be read"])


def test_totals_that_differ_are_noted(tmp_path):
    (read,) = read_log(write(tmp_path, worker(2, 600.0) + worker(2, 615.0)))
    assert read.notes == ["2 workers printed totals of 600.0 to 615.0 images/s: the first counts"]


@pytest.mark.parametrize(
    ("path", "gpus"),
    [
        *[("nccl_g4.txt", 4), ("ddl_g16_horovod.txt", 16), ("gpus=8.log", 8), ("run-24gpus.log", 24)],
        *[("np2/log.txt", 2), ("4_ranks/a.txt", 4), ("resnet50.txt", None), ("g2_np4.txt", None), ("log8.txt", None)],
    ],
)
def test_the_number_of_gpus_in_a_name(tmp_path, path, gpus):
    log = tmp_path / "logs" / path
    log.parent.mkdir(parents=True)
    log.write_text("1\timages/sec: 300.6 +/- 0.0 (jitter = 0.0)\t8.1\ntotal images/sec: 300.00\n")
    read = read_log(log)
    number(read, None)
    assert read[0].devices == gpus


def publication(folder):
    """Write logs of two libraries whose lines are exact: 295 and 301 with one process, 326 and 331 over Horovod."""
    logs = []
    for library, alone, together in (("nccl", 295, 326), ("ddl", 301, 331)):
        for gpus in (1, 2, 3, 4):
            logs.append(write(folder, worker(gpus, alone * gpus + 2, "parameter_server"), f"{library}_g{gpus}.txt"))
        for gpus in (4, 8, 16, 24):
            text = worker(gpus, together * gpus - 8) * gpus
            logs.append(write(folder, text, f"{library}_g{gpus}_horovod.txt"))
    return logs


def test_slopes_of_the_publications_logs(tmp_path):
    words = [word for log in publication(tmp_path) for word in ("--read", str(log))]
    answer = json.loads(cli.output("bench", *words, "--json"))
    slopes = {one["logs"]: (one["slope"], one["intercept"]) for one in answer["regressions"]}
    assert slopes == {
        "nccl_g*.txt": (pytest.approx(295), pytest.approx(2)),
        "nccl_g*_horovod.txt": (pytest.approx(326), pytest.approx(-8)),
        "ddl_g*.txt": (pytest.approx(301), pytest.approx(2)),
        "ddl_g*_horovod.txt": (pytest.approx(331), pytest.approx(-8)),
    }
    shown = cli.output("bench", *words)
    assert "nccl_g*_horovod.txt (horovod)" in shown
    assert "1.020x" in shown  # 301 / 295
    assert "1.015x" in shown  # 331 / 326


def test_the_interval_covers_the_slope_of_noisy_logs(tmp_path):
    noise = {1: 4.0, 2: -3.0, 3: -5.0, 4: 4.0}
    read = [
        one
        for gpus, off in noise.items()
        for one in read_log(write(tmp_path, worker(gpus, 300.0 * gpus + off, "replicated"), f"g{gpus}.txt"))
    ]
    (result,) = fits(read)
    # By hand: x = 1..4, residuals 4, -3, -5, 4 of 300 x have slope -0.2 and intercept 0.5; s² = 65.8 / 2; t(2) = 4.303.
    assert result.line.slope == pytest.approx(299.8)
    assert result.line.slope_interval is not None
    assert result.line.slope_interval.high - result.line.slope == pytest.approx(4.303 * (65.8 / 2 / 5) ** 0.5, rel=1e-3)


def test_series_are_kept_apart(tmp_path):
    for gpus, batch in ((1, 32), (2, 32), (1, 64), (2, 64)):
        folder = tmp_path / f"batch{batch}"
        folder.mkdir(exist_ok=True)
        write(folder, worker(gpus, 300.0 * gpus).replace(f"{32 * gpus} global", f"{batch * gpus} global").replace(
            "32 per", f"{batch} per") * gpus, f"g{gpus}.txt")  # fmt: skip
    logs = sorted(tmp_path.glob("*/*.txt"))
    result = fits([one for log in logs for one in read_log(log)])
    assert [(one.name, len(one.points)) for one in result] == [("batch32/g*.txt", 2), ("batch64/g*.txt", 2)]
    assert all(one.line.slope_interval is None for one in result)


def test_logs_that_do_not_tell_their_number(tmp_path):
    logs = []
    for name, rate in (("a.txt", 300), ("b.txt", 590), ("c.txt", 301)):
        text = f"1\timages/sec: {rate}.0 +/- 0.0 (jitter = 0.0)\t8.1\ntotal images/sec: {rate}.00\n"
        logs += ["--read", str(write(tmp_path, text, name))]
    assert json.loads(cli.output("bench", *logs, "--json"))["regressions"] == []
    answer = json.loads(cli.output("bench", *logs, "--gpus", "1,2,1", "--json"))
    assert [one["devices"] for one in answer["read"]] == [1, 2, 1]


@pytest.mark.parametrize(
    ("words", "says"),
    [
        (["--gpus", "1"], "--gpus: 1 number for 2 runs of training"),
        (["--gpus", "1,4"], "is a log of 2 devices, not 4"),
        (["--gpus", "0,2"], "must be 1-4096, not 0"),
    ],
)
def test_numbers_of_gpus_that_contradict(tmp_path, words, says):
    logs = [write(tmp_path, worker(gpus, 300.0 * gpus, "replicated"), f"g{gpus}.txt") for gpus in (1, 2)]
    refused = cli.call("bench", *[word for log in logs for word in ("--read", str(log))], *words)
    assert refused.exit_code == 2
    assert says in " ".join(refused.output.split())


def test_gpus_without_logs():
    log = Path(__file__).parent / "data" / "bench" / "osu.log"
    refused = cli.call("bench", "--read", str(log), "--gpus", "4")
    assert (refused.exit_code, "--gpus needs logs of training" in refused.output) == (2, True)


def test_the_plot_of_logs(tmp_path):
    words = [word for log in publication(tmp_path) for word in ("--read", str(log))]
    cli.output("bench", *words, "--plot", str(tmp_path / "fit.svg"))
    drawn = (tmp_path / "fit.svg").read_text()
    assert "<svg" in drawn
    refused = cli.call("bench", *words[:2], "--plot", str(tmp_path / "one.svg"))
    assert (refused.exit_code, "--plot needs logs of training with two numbers of GPUs" in refused.output) == (2, True)
