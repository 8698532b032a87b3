"""Logs of tf_cnn_benchmarks, nccl-tests and OSU's benchmarks, whole and damaged."""

import json
import re
import shutil
import textwrap
from pathlib import Path

import cli
import pytest
from hypothesis import given
from hypothesis import strategies as st
from paceline import InvalidArgumentError
from paceline.interop.logs import read_log

LOGS = Path(__file__).parent / "data" / "bench"
NAMES = ["tf_cnn.log", "nccl.log", "osu.log"]


def only(path):
    (read,) = read_log(path)
    return read


def test_tf_cnn():
    result = only(LOGS / "tf_cnn.log")
    assert (result.format, result.what, result.way) == ("tf_cnn_benchmarks", "resnet50", "horovod")
    assert (result.devices, result.batch, result.steps) == (4, 32, 100)
    assert (result.total_images_per_s, result.uncertainty, result.jitter) == (1187.52, 0.3, 2.6)


def test_nccl():
    result = only(LOGS / "nccl.log")
    assert (result.format, result.what, result.devices) == ("nccl-tests", "all_reduce", 4)
    last = result.sizes[-1]
    assert (last.size_bytes, last.seconds) == (104857600, pytest.approx(800e-6))
    assert (last.algorithm_bandwidth, last.bus_bandwidth) == (pytest.approx(131.07e9), pytest.approx(196.61e9))
    assert result.seconds_of(1 << 20) == pytest.approx(80e-6)
    assert result.seconds_of(1) is None  # below all measured sizes


def test_nccl_counts_wrong_results(tmp_path):
    log = tmp_path / "log"
    log.write_text((LOGS / "nccl.log").read_text().replace("  13.11   19.66      0", "  13.11   19.66      7"))
    assert only(log).notes[1:] == ["1 size had wrong results"]


def test_osu_latency_and_bandwidth():
    latency, bandwidth = only(LOGS / "osu.log"), only(LOGS / "osu_bw.log")
    assert (latency.what, latency.sizes[-1].seconds) == ("Allreduce", pytest.approx(512e-6))
    assert latency.sizes[-1].algorithm_bandwidth == pytest.approx(1048576 / 512e-6)
    # Between 1 KiB in 4 us and 1 MiB in 512 us, the middle on log-log paper.
    assert latency.seconds_of(32 * 1024) == pytest.approx((4e-6 * 512e-6) ** 0.5)
    assert (bandwidth.what, bandwidth.sizes[-1].algorithm_bandwidth) == ("Bandwidth", pytest.approx(12e9))
    assert bandwidth.sizes[-1].seconds is None


@pytest.mark.parametrize(
    ("title", "what"),
    [
        ("OSU MPI Bi-Directional Bandwidth Test v5.8", "Bi-Directional Bandwidth"),
        ("OSU MPI-CUDA Bi-Directional Bandwidth Test v7.0", "Bi-Directional Bandwidth"),
        ("OSU MPI Bandwidth Test v7.4", "Bandwidth"),
        ("OSU MPI Multiple Bandwidth / Message Rate Test v7.2", "Multiple Bandwidth / Message Rate"),
        ("OSU MPI_Put Bandwidth Test v5.8", "MPI_Put Bandwidth"),
        ("OSU MPI Latency Test v5.8", "Latency"),
        ("OSU MPI Multi-threaded Latency Test v5.8", "Multi-threaded Latency"),
        ("OSU MPI_Get latency Test v5.8", "MPI_Get latency"),
        ("OSU MPI-CUDA Allreduce Latency Test v5.6.2", "Allreduce"),
        ("OSU NCCL Allgather Latency Test v7.0", "Allgather"),
        ("OSU MPI All-to-All Personalized Exchange Latency Test v3.6", "All-to-All Personalized Exchange"),
        ("OSU MPI Non-blocking Allreduce Latency Test v7.0", "Non-blocking Allreduce"),
        ("OSU OpenSHMEM Put Test v5.8", "Put"),
    ],
)
def test_the_whole_name_of_an_osu_test(tmp_path, title, what):
    log = tmp_path / "log"
    column = "Bandwidth (MB/s)" if "Bandwidth" in title else "Latency (us)"
    log.write_text(f"# {title}\n# Size      {column}\n1      3.20\n4194304       12000.00\n")
    assert only(log).what == what


PERFTEST = """
---------------------------------------------------------------------------------------
                    RDMA_Write BW Test
 Dual-port       : OFF          Device         : mlx5_0
 Number of qps   : 1            Transport type : IB
---------------------------------------------------------------------------------------
 #bytes     #iterations    BW peak[MB/sec]    BW average[MB/sec]   MsgRate[Mpps]
 65536      5000             23453.19            23451.10            0.375218
---------------------------------------------------------------------------------------
"""
LATENCY = """
                    Send Latency Test
 #bytes #iterations    t_min[usec]    t_max[usec]  t_typical[usec]    t_avg[usec]    t_stdev[usec]
 2       1000          0.92           3.51         0.95               0.97           0.10
"""
IPERF3 = """Connecting to host 10.0.0.2, port 5201
[  5] local 10.0.0.1 port 42712 connected to 10.0.0.2 port 5201
[ ID] Interval           Transfer     Bitrate         Retr  Cwnd
[  5]   0.00-1.00   sec  1.09 GBytes  9.39 Gbits/sec    0   1.52 MBytes
iperf Done.
"""
IPERF2 = """Client connecting to 10.0.0.2, TCP port 5001
[ ID] Interval       Transfer     Bandwidth
[  3]  0.0-10.0 sec  10.9 GBytes  9.38 Gbits/sec
"""
IMB = """# Intel(R) MPI Benchmarks 2021.3, MPI-1 part
# Benchmarking Allreduce
# #processes = 4
       #bytes #repetitions  t_min[usec]  t_max[usec]  t_avg[usec]
            0         1000         0.03         0.03         0.03
"""


@pytest.mark.parametrize(
    ("text", "tool"),
    [
        *[(PERFTEST, "perftest (ib_write_bw and the like)"), (LATENCY, "perftest (ib_write_bw and the like)")],
        *[(IPERF3, "iperf"), (IPERF2, "iperf"), ('{"start": {}, "end": {"sum_sent": {"bytes": 1}}}', "iperf")],
        ("tcp_bw:\n    bw  =  1.18 GB/sec\n", "qperf"),
        ("MIGRATED TCP STREAM TEST from 0.0.0.0 port 0 AF_INET to 10.0.0.2\n", "netperf"),
        ("sockperf: Summary: Latency is 5.1 usec\n", "sockperf"),
        (IMB, "the Intel MPI Benchmarks"),
    ],
)
def test_other_logs_are_named(tmp_path, text, tool):
    log = tmp_path / "log"
    log.write_text(text)
    for prefix in ("", "[1,0]<stdout>:", "    "):
        log.write_text("\n".join(f"{prefix}{line}" for line in text.splitlines()) + "\n")
        refused = cli.call("bench", "--read", log)
        if prefix.startswith("[") and tool == "qperf":
            continue  # It is known by the begin of a line.
        assert refused.exit_code == 2
        assert f"--read {log}: is a log of {tool}, " in refused.output
        assert "paceline simulate --bandwidth RATE --latency TIME, or a log of nccl-tests" in " ".join(
            refused.output.split()
        )


@pytest.mark.parametrize(
    ("name", "old", "new", "line", "says"),
    [
        ("tf_cnn.log", "10\timages/sec: 298.9", "10\timages/sec: many", 23, "'many' is not a number"),
        ("tf_cnn.log", "+/- 0.5 (jitter = 2.1)", "+/- 0.5 (jitter", 24, "is not a step"),
        ("tf_cnn.log", "total images/sec: 1187.52", "", 28, "the log ends without 'total images/sec:'"),
        ("nccl.log", "80.00   13.11", "80.00   13_1", 14, "algbw: '13_1'"),
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


@pytest.mark.parametrize("name", NAMES)
def test_the_tests_of_a_log_are_read_one_by_one(tmp_path, name):
    log, text = tmp_path / name, (LOGS / name).read_text()
    log.write_text(text + text)
    alone, (first, second) = only(LOGS / name), read_log(log)
    for one in (first, second):
        assert (one.what, one.devices, one.sizes) == (alone.what, alone.devices, alone.sizes)
        assert (one.total_images_per_s, one.notes) == (alone.total_images_per_s, alone.notes)
    assert first.line < second.line
    assert (first.name, second.name) == (f"{name}:{first.line}", f"{name}:{second.line}")


def test_each_test_of_a_log_has_its_own_name(tmp_path):
    nccl, osu = (LOGS / "nccl.log").read_text(), (LOGS / "osu.log").read_text()
    commands = "$ for t in all_gather alltoall; do $t; done\n", "$ mpirun -np 4 build/alltoall_perf_mpi -b 1K\n"
    gather = "# Collective test starting: all_gather_perf\n" + nccl.replace("  sum  ", " none  ")
    log = tmp_path / "log"
    log.write_text(commands[0] + gather + commands[1] + nccl + osu)
    assert [(one.format, one.what) for one in read_log(log)] == [
        ("nccl-tests", "all_gather"),
        ("nccl-tests", "alltoall"),
        ("osu", "Allreduce"),
    ]
    shown = cli.call("bench", "--read", log)
    assert all(word in shown.output for word in ("all_gather", "alltoall", "Allreduce", "log:3"))


def test_types_and_operations_of_one_test_are_told_apart(tmp_path):
    log, text = tmp_path / "log", "$ all_reduce_perf -d all\n" + (LOGS / "nccl.log").read_text()
    rows = [line for line in text.splitlines() if " float " in line]
    halves = "\n".join(row.replace("float", " half").replace("  sum", "  max") for row in rows)
    log.write_text(text.replace(rows[-1], rows[-1] + "\n" + halves))
    floats, halves = read_log(log)
    assert (floats.what, halves.what) == ("all_reduce (float, sum)", "all_reduce (half, max)")
    assert floats.sizes == halves.sizes


@pytest.mark.parametrize(
    ("redop", "root", "ratio", "what", "says"),
    [
        ("sum", -1, 1.5, "all_reduce", "by its columns it is all_reduce"),
        ("sum", -1, 0.75, "reduce_scatter", "reduce_scatter"),
        ("sum", -1, 1, "sendrecv", "sendrecv"),  # An all-reduce of 4 ranks would have 1.5.
        ("sum", 0, 1, "reduce", "reduce"),
        ("none", 0, 1, "broadcast", "broadcast"),
        ("none", -1, 0.75, "unknown", "all_gather or alltoall"),
    ],
)
def test_columns_tell_the_operation(tmp_path, redop, root, ratio, what, says):  # noqa: PLR0917
    lines = (LOGS / "nccl.log").read_text().splitlines()
    for at, line in enumerate(lines):
        if " float " in line:
            words = line.split()
            words[3:5] = redop, str(root)
            words[7] = f"{float(words[6]) * ratio:.2f}"
            lines[at] = "  ".join(words)
    log = tmp_path / "log"
    log.write_text("\n".join(lines) + "\n")
    read = only(log)
    assert read.what == what
    assert "does not name the operation" in read.notes[0]
    assert says in read.notes[0]


def test_what_is_no_number_is_left_out(tmp_path):
    log, text = tmp_path / "log", (LOGS / "nccl.log").read_text()
    log.write_text(
        text.replace("80.00   13.11   19.66", "0.00     inf     nan").replace("131.07  196.61", "1e308  196.61")
    )
    read = only(log)
    assert [one.algorithm_bandwidth is None for one in read.sizes] == [False, False, True, True]
    assert read.sizes[2].bus_bandwidth is None
    assert "2 sizes with inf or nan" in " ".join(read.notes)
    json.loads(cli.call("bench", "--json", "--read", log).output)
    log.write_text((LOGS / "osu.log").read_text().replace(" 4.00", " inf"))
    assert only(log).sizes[1].seconds is None


def test_two_rows_of_size_0(tmp_path):
    log, text = tmp_path / "log", (LOGS / "nccl.log").read_text()
    row = next(line for line in text.splitlines(keepends=True) if "  1024  " in line)
    empty = row.replace("  1024 ", "     0 ").replace("  256 ", "    0 ")
    log.write_text(text.replace(row, empty + empty + row))
    assert [one.size_bytes for one in only(log).sizes] == [0, 0, 1024, 32768, 1 << 20, 100 << 20]


PREFIXES = [
    "[1,0]<stdout>:",
    "[prterun-node1-31337@1,0]<stdout>: ",
    "0: ",
    " 0: ",
    "[0] ",
    "[rank0]: ",
    "[default0]:",
    "[pod/nccl-launcher-x7k2p/nccl] ",
    "2024-05-17T09:14:03.{n:09d}Z ",
    "[2024-05-17 09:14:{s:02d}] ",
    "2024-05-17 09:14:{s:02d},{n:03d} INFO ",
    "May 17 09:14:{s:02d} node1 launch[812]: ",
    "I0517 09:14:{s:02d}.000{n:03d} 812 run.cc:88] ",
    "node1: ",
    "nccl-1  | ",
    "> ",
    "> > ",
    "    ",
    "\t",
    "\x1b[32m",
    "\x1b[1;36mnode1:\x1b[0m ",
    "(worker pid=812, ip=10.0.0.7) ",
]
AROUND = [
    "",
    "\n",
    "```\n",
    "```text\n",
    "~~~\n",
    "Loading modules: gcc/12\n",
    "=== node 1 of 2 ===\n",
    "2 nodes, 8 GPUs\n",
]
PROMPTS = [
    "",
    "```",
    "root@gpu-01:~# ",
    "[user@login1 nccl-tests]$ ",
    "$ ",
    "(base) user@a100:~$ exit\n",
    "> ",
    "logout\n",
]


@pytest.mark.parametrize("name", NAMES)
@given(data=st.data())
def test_logs_are_read_as_people_paste_them(tmp_path_factory, name, data):
    lines = (LOGS / name).read_text().splitlines()
    prefixes = data.draw(st.lists(st.sampled_from(PREFIXES), max_size=2))
    ends = data.draw(st.sampled_from(["\n", "\r\n", "\x1b[0m\n", "   \n"]))
    pasted = data.draw(st.sampled_from(AROUND))
    for at, line in enumerate(lines):
        before = "".join(prefix.format(n=at * 37, s=at) for prefix in prefixes)
        pasted += before + line + ends
    pasted += data.draw(st.sampled_from(AROUND)) + data.draw(st.sampled_from(PROMPTS))
    log = tmp_path_factory.mktemp("logs") / name
    log.write_bytes(pasted.encode())
    read, whole = only(log), only(LOGS / name)
    for attribute in ("format", "what", "devices", "batch", "way", "total_images_per_s", "jitter", "sizes", "notes"):
        assert getattr(read, attribute) == getattr(whole, attribute), attribute
    shutil.rmtree(log.parent)


@pytest.mark.parametrize("name", NAMES)
@pytest.mark.parametrize("encoding", ["utf-8-sig", "utf-16", "latin-1"])
def test_logs_of_other_encodings(tmp_path, name, encoding):
    log = tmp_path / name
    log.write_bytes(("Modul für GPUs geladen\n" + (LOGS / name).read_text()).encode(encoding))
    read, whole = only(log), only(LOGS / name)
    assert (read.what, read.sizes, read.total_images_per_s) == (whole.what, whole.sizes, whole.total_images_per_s)


@pytest.mark.parametrize("name", NAMES)
def test_commas_between_thousands(tmp_path, name):
    log = tmp_path / name
    log.write_text(re.sub(r"(?<!\S)\d{4,}(?=[.\s])", lambda number: f"{int(number[0]):,}", (LOGS / name).read_text()))
    assert only(log).sizes == only(LOGS / name).sizes


def test_figures_that_nobody_measured_are_left_out(tmp_path):
    log = tmp_path / "log"
    log.write_text((LOGS / "osu.log").read_text().replace("512.00", "1e307"))
    assert (only(log).sizes[-1].seconds, only(log).notes) == (None, ["1 size with inf or nan instead of a figure"])


@given(width=st.integers(60, 130))
def test_rows_that_a_mail_has_wrapped(tmp_path_factory, width):
    text = (LOGS / "nccl.log").read_text()
    log = tmp_path_factory.mktemp("logs") / "log"
    log.write_text("\n".join(part for line in text.splitlines() for part in textwrap.wrap(line, width) or [""]) + "\n")
    assert only(log).sizes == only(LOGS / "nccl.log").sizes
    shutil.rmtree(log.parent)


def test_a_paste_without_a_last_line_end_is_whole(tmp_path):
    log, text = tmp_path / "log", (LOGS / "nccl.log").read_text()
    rows = text[: text.index("# Out of")].rstrip()
    log.write_text(rows)
    assert len(only(log).sizes) == 4
    for name in ("osu.log", "tf_cnn.log"):
        log.write_text((LOGS / name).read_text().rstrip("\n-"))
        only(log)


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
    assert only(log).notes[1:] == ["3 values out of bounds: the benchmark failed"]
    log.write_text(text[: text.index("# Out of")])
    assert "was the benchmark interrupted?" in only(log).notes[1]
    log.write_text(
        text.replace("#wrong", " error").replace("     0  ", " 2e-07 ")
    )  # the greatest error, in old versions
    assert only(log).notes[1:] == []


def test_osu_without_what_was_computed_meanwhile(tmp_path):
    log = tmp_path / "log"
    heading = "# Size           Overall(us)       Compute(us)    Pure Comm.(us)        Overlap(%)"
    log.write_text(
        f"# OSU MPI Non-blocking Allreduce Latency Test v7.3\n{heading}\n8    9.00    4.00    5.00    80.0\n"
    )
    assert only(log).sizes[0].seconds == pytest.approx(5e-6)


def test_other_files_are_refused(tmp_path):
    log = tmp_path / "log"
    log.write_text("hello\n")
    with pytest.raises(
        InvalidArgumentError, match="has no headings of tf_cnn_benchmarks, nccl-tests or OSU's benchmarks"
    ):
        read_log(log)
    for content in (b"", b"\xff\xfe", bytes(range(256)), b"\0" * 99):
        log.write_bytes(content)
        with pytest.raises(
            InvalidArgumentError, match="has no headings of tf_cnn_benchmarks, nccl-tests or OSU's benchmarks"
        ):
            read_log(log)
    with pytest.raises(InvalidArgumentError, match="no such file"):
        read_log(tmp_path / "none")


@pytest.mark.parametrize("name", NAMES)
@given(data=st.data())
def test_damaged_logs_are_read_or_refused(tmp_path_factory, name, data):
    text = (LOGS / name).read_text()
    at = data.draw(st.integers(0, len(text) - 1))
    letters = data.draw(st.text(st.characters(codec="utf-8"), max_size=4))
    log = tmp_path_factory.mktemp("logs") / name
    log.write_text(text[:at] + letters + text[at + len(letters) + 1 :], encoding="utf-8")
    try:
        read = read_log(log)
    except InvalidArgumentError as error:
        assert str(log) in str(error)
    else:
        assert all(one.sizes or one.total_images_per_s is not None for one in read)
    shutil.rmtree(log.parent)


def test_the_command_reads_logs_without_torch():
    logs = [word for name in ("tf_cnn", "nccl", "osu") for word in ("--read", str(LOGS / f"{name}.log"))]
    shown = cli.output("bench", *logs)
    assert "1,188 ± 0.30" in shown
    assert "196.6" in shown or "197" in shown
    answer = cli.call("bench", *logs, "--json")
    assert [one["format"] for one in json.loads(answer.output)["read"]] == ["tf_cnn_benchmarks", "nccl-tests", "osu"]
