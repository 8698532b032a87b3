"""Logs of tf_cnn_benchmarks, nccl-tests and OSU's benchmarks, whole and damaged."""

import json
import shutil
from pathlib import Path

import pytest
from click.testing import CliRunner
from hypothesis import given
from hypothesis import strategies as st
from paceline import InvalidArgumentError
from paceline.bench.logs import read_log
from paceline.cli.main import main

LOGS = Path(__file__).parent / "data" / "bench"


def test_tf_cnn():
    found = read_log(LOGS / "tf_cnn.log")
    assert (found.format, found.what, found.way) == ("tf_cnn_benchmarks", "resnet50", "horovod")
    assert (found.devices, found.batch, found.steps) == (4, 32, 100)
    assert (found.total_images_per_s, found.uncertainty, found.jitter) == (1187.52, 0.3, 2.6)


def test_nccl():
    found = read_log(LOGS / "nccl.log")
    assert (found.format, found.what, found.devices) == ("nccl-tests", "all_reduce", 4)
    last = found.sizes[-1]
    assert (last.size_bytes, last.seconds) == (104857600, pytest.approx(800e-6))
    assert (last.algorithm_bandwidth, last.bus_bandwidth) == (pytest.approx(131.07e9), pytest.approx(196.61e9))
    assert found.seconds_of(1 << 20) == pytest.approx(80e-6)
    assert found.seconds_of(1) is None  # below all measured sizes


def test_nccl_counts_wrong_results(tmp_path):
    log = tmp_path / "log"
    log.write_text((LOGS / "nccl.log").read_text().replace("  13.11   19.66      0", "  13.11   19.66      7"))
    assert read_log(log).notes == ["1 size had wrong results"]


def test_osu_latency_and_bandwidth():
    latency, bandwidth = read_log(LOGS / "osu.log"), read_log(LOGS / "osu_bw.log")
    assert (latency.what, latency.sizes[-1].seconds) == ("Allreduce", pytest.approx(512e-6))
    assert latency.sizes[-1].algorithm_bandwidth == pytest.approx(1048576 / 512e-6)
    # Between 1 KiB in 4 us and 1 MiB in 512 us, the middle on log-log paper.
    assert latency.seconds_of(32 * 1024) == pytest.approx((4e-6 * 512e-6) ** 0.5)
    assert (bandwidth.what, bandwidth.sizes[-1].algorithm_bandwidth) == ("Bandwidth", pytest.approx(12e9))
    assert bandwidth.sizes[-1].seconds is None


@pytest.mark.parametrize(
    ("name", "old", "new", "line", "says"),
    [
        ("tf_cnn.log", "10\timages/sec: 298.9", "10\timages/sec: many", 23, "'many' is not a number"),
        ("tf_cnn.log", "+/- 0.5 (jitter = 2.1)", "+/- 0.5 (jitter", 24, "is not a step"),
        ("tf_cnn.log", "total images/sec: 1187.52", "", 28, "was the benchmark interrupted?"),
        ("nccl.log", "80.00   13.11", "80.00   nan", 14, "algbw: 'nan'"),
        ("nccl.log", "    40.00    0.82    1.23      0    39.10    0.84    1.26      0", "", 13, "columns"),
        ("osu.log", "4.00", "-4.00", 5, "the second column: '-4.00'"),
        ("osu.log", "1024 ", "1k ", 5, "Size: '1k'"),
    ],
)
def test_errors_name_the_line(tmp_path, name, old, new, line, says):  # noqa: PLR0917
    log, text = tmp_path / name, (LOGS / name).read_text()
    assert old in text
    log.write_text(text.replace(old, new))
    with pytest.raises(InvalidArgumentError) as caught:
        read_log(log)
    assert f"{log}:{line}: " in str(caught.value)
    assert says in str(caught.value)


@pytest.mark.parametrize("name", ["tf_cnn.log", "nccl.log", "osu.log"])
def test_a_log_of_two_runs_is_refused(tmp_path, name):
    log, text = tmp_path / name, (LOGS / name).read_text()
    log.write_text(text + text)
    with pytest.raises(InvalidArgumentError, match="a second run"):
        read_log(log)


@pytest.mark.parametrize(("name", "last"), [("tf_cnn.log", "1187.52"), ("nccl.log", "199.10"), ("osu.log", "512.00")])
def test_a_log_that_is_cut_within_a_number_is_refused(tmp_path, name, last):
    log, text = tmp_path / name, (LOGS / name).read_text()
    log.write_text(text[: text.index(last) + 3])
    with pytest.raises(InvalidArgumentError, match="the log is truncated"):
        read_log(log)


@pytest.mark.parametrize(("name", "old", "new"), [("nccl.log", " 32768 ", " 1024 "), ("osu.log", "1048576", "1024")])
def test_a_size_that_stands_twice_is_refused(tmp_path, name, old, new):
    log, text = tmp_path / name, (LOGS / name).read_text()
    log.write_text(text.replace(old, new))
    with pytest.raises(InvalidArgumentError, match="appears again"):
        read_log(log)


def test_numbers_that_only_python_writes_are_refused(tmp_path):
    log = tmp_path / "log"
    log.write_text((LOGS / "tf_cnn.log").read_text().replace("1187.52", "1187_52"))
    with pytest.raises(InvalidArgumentError, match="'1187_52' is not a number"):
        read_log(log)


def test_nccl_says_what_its_last_lines_say(tmp_path):
    log, text = tmp_path / "log", (LOGS / "nccl.log").read_text()
    log.write_text(text.replace("values : 0 OK", "values : 3 FAILED"))
    assert read_log(log).notes == ["3 values out of bounds: the benchmark failed"]
    log.write_text(text[: text.index("# Out of")])
    assert "was the benchmark interrupted?" in read_log(log).notes[0]
    log.write_text(
        text.replace("#wrong", " error").replace("     0  ", " 2e-07 ")
    )  # the greatest error, in old versions
    assert read_log(log).notes == []


def test_osu_without_what_was_computed_meanwhile(tmp_path):
    log = tmp_path / "log"
    heading = "# Size           Overall(us)       Compute(us)    Pure Comm.(us)        Overlap(%)"
    log.write_text(
        f"# OSU MPI Non-blocking Allreduce Latency Test v7.3\n{heading}\n8    9.00    4.00    5.00    80.0\n"
    )
    assert read_log(log).sizes[0].seconds == pytest.approx(5e-6)


def test_other_files_are_refused(tmp_path):
    log = tmp_path / "log"
    log.write_text("hello\n")
    with pytest.raises(InvalidArgumentError, match="neither a log of tf_cnn_benchmarks"):
        read_log(log)
    log.write_bytes(b"\xff\xfe")
    with pytest.raises(InvalidArgumentError, match="not UTF-8"):
        read_log(log)
    with pytest.raises(InvalidArgumentError, match="there is no such file"):
        read_log(tmp_path / "none")


@pytest.mark.parametrize("name", ["tf_cnn.log", "nccl.log", "osu.log"])
@given(data=st.data())
def test_damaged_logs_are_read_or_refused(tmp_path_factory, name, data):
    text = (LOGS / name).read_text()
    at = data.draw(st.integers(0, len(text) - 1))
    letters = data.draw(st.text(st.characters(codec="utf-8"), max_size=4))
    log = tmp_path_factory.mktemp("logs") / name
    log.write_text(text[:at] + letters + text[at + len(letters) + 1 :], encoding="utf-8")
    try:
        found = read_log(log)
    except InvalidArgumentError as error:
        assert str(log) in str(error)
    else:
        assert found.sizes or found.total_images_per_s is not None
    shutil.rmtree(log.parent)


def test_the_command_reads_logs_without_torch():
    logs = [word for name in ("tf_cnn", "nccl", "osu") for word in ("--read", str(LOGS / f"{name}.log"))]
    shown = CliRunner().invoke(main, ["bench", *logs])
    assert shown.exit_code == 0
    assert "1188 ± 0.30" in shown.output
    assert "196.6" in shown.output or "197" in shown.output
    told = CliRunner().invoke(main, ["bench", *logs, "--json"])
    assert [one["format"] for one in json.loads(told.output)["read"]] == ["tf_cnn_benchmarks", "nccl-tests", "osu"]
