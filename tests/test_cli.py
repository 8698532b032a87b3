"""The command line as a whole: commands, messages, exit codes, and how little it imports."""

import importlib.metadata
import json
import os
import subprocess
import sys
from importlib.metadata import EntryPoint
from pathlib import Path

import cli
import paceline
import pytest
from cli import call
from cli import program as process
from paceline.cli.main import added_commands

EXAMPLES = Path(__file__).parent.parent / "examples"


def test_version_and_help():
    assert call("--version").output.startswith("paceline 0.")
    listed = call("--help").output
    assert all(f"  {name} " in listed for name in ("simulate", "record", "list", "import", "bench"))
    assert all(f"  {name} " in call("list", "--help").output for name in ("traces", "clusters", "strategies"))
    for words in ("simulate", "list traces", "list clusters", "list strategies", "import sends"):
        assert "--help" in cli.output(*words.split(), "--help")


def test_no_command_is_a_mistake():
    for words in ((), ("list",), ("import",)):
        result = cli.output(*words, code=2)
        assert "Usage: " in result and "error" not in result


def test_no_subcommand_is_a_mistake():
    result = cli.output("emulate", code=2)
    assert "Commands:\n" in result and "error" not in result


@pytest.mark.parametrize(("typed", "meant"), [("simulat", "simulate"), ("stratgies", "list strategies")])
def test_an_unknown_command_names_the_nearest(typed, meant):
    assert cli.refused(typed) == f"paceline: error: no such command '{typed}'\n  try: paceline {meant}\n"


def test_a_command_that_is_not_installed_does_not_break_the_others(monkeypatch):
    broken = EntryPoint("lab", "paceline_not_there.commands:COMMANDS", "paceline.commands")
    monkeypatch.setattr(importlib.metadata, "entry_points", lambda group: [broken])
    added_commands.cache_clear()
    try:
        shown = call("--help")
        assert "study" not in shown.stdout
        assert "no commands of 'paceline_not_there.commands:COMMANDS': No module named" in shown.stderr
        assert call("study").exit_code == 2
        assert call("strategies").exit_code == 0
    finally:
        added_commands.cache_clear()


def test_an_unknown_option_names_the_nearest():
    result = cli.refused("simulate", "allreduce:1MB", "--bandwith", "25Gbps")
    assert "--bandwidth" in result


def test_messages_are_one_printable_line():
    result = cli.refused("simulate", "allreduce:1MB", "--strategy", "a\x1b[31m\n\u202eb" + "c" * 100_000)
    assert len(result) < 1100
    assert all(line.isprintable() for line in result.splitlines())


def test_real_process_exit_codes():
    good = process("simulate", "allreduce:1MB", "--workers", "2", "--strategy", "ring", "--json")
    assert (good.returncode, good.stderr) == (0, "")
    bad = process("simulate", "allreduce:1MB", "--workers", "two")
    assert (bad.returncode, bad.stdout) == (2, "")
    assert bad.stderr.startswith("paceline: error: ")
    assert bad.stderr.count("\n") == 2


def test_a_reader_that_leaves_early_is_no_error():
    command = f"{sys.executable} -m paceline.cli simulate allreduce:1MB --json | head -c 1"
    shell = cli.ended("bash", "-c", command)
    assert shell.stdout == "["
    assert shell.stderr == ""


@pytest.mark.parametrize("closed", ["2>&-", "0<&- 2>&-"])
def test_output_survives_a_closed_stderr(tmp_path, closed):
    out = tmp_path / "out"
    words = "simulate allreduce:1MB --workers 2 --strategy ring --json"
    code = "import paceline._internal.console as c; c._PATIENCE_S = 0; from paceline.cli.main import main; main()"
    command = f"{sys.executable} -c '{code}' {words} {closed} > {out}"
    assert subprocess.run(["bash", "-c", command], check=False).returncode == 0
    assert json.loads(out.read_text())[0]["strategy"] == "ring"


def test_ascii_terminals_get_an_answer():
    result = process("simulate", "allreduce:1MB", "--workers", "2", env={**os.environ, "PYTHONIOENCODING": "ascii"})
    assert result.returncode == 0
    assert "Traceback" not in result.stderr


def test_json_needs_no_heavy_module():
    code = (
        "import sys\nfrom paceline.cli.main import main\n"
        "try:\n    main(['simulate', 'allreduce:1MB', '--workers', '2', '--json'])\n"
        "except SystemExit:\n    pass\n"
        "heavy = {'matplotlib', 'pandas', 'torch', 'rich', 'numpy', 'asyncio', 'logging'} & set(sys.modules)\n"
        "sys.exit(f'imported: {heavy}' if heavy else 0)"
    )
    ran = cli.ended(sys.executable, "-c", code)
    assert ran.returncode == 0, ran.stderr


def test_lists_as_json():
    traces = json.loads(call("traces", "--json").stdout)
    assert all(trace["provenance"] and trace["gradient_bytes"] > 0 for trace in traces)
    clusters = json.loads(call("clusters", "--json").stdout)
    assert {"flat", "p3.16xlarge"} <= {cluster["name"] for cluster in clusters}
    assert all(cluster["provenance"] for cluster in clusters)
    strategies = {entry["name"]: entry for entry in json.loads(call("strategies", "--json").stdout)}
    assert "butterfly" in strategies["recursive-doubling"]["aliases"]
    assert "--servers" in strategies["ps"]["options"]
    assert "--servers" not in strategies["ring"]["options"]
    assert strategies["ps-multicast"]["needs"] == ["multicast"]


def test_lists_for_people():
    for command in ("traces", "clusters", "strategies"):
        result = call(command)
        assert (result.exit_code, result.stderr) == (0, "")
        assert not any(line.endswith(" ") for line in result.stdout.splitlines())
    assert "tiny" in call("traces", EXAMPLES / "tiny.json").stdout
    assert call("traces", "allreduce:5MB").exit_code == 0
    assert call("clusters", "nowhere").exit_code == 2
    # Forecasts take the channel's.
    (flat,) = [line for line in call("clusters").stdout.splitlines() if line.startswith("flat ")]
    assert "37 us" in flat


def test_export_and_use(tmp_path):
    copy = tmp_path / "cluster.json"
    assert call("clusters", "p3.16xlarge", "--export", copy).exit_code == 0
    assert json.loads(copy.read_text())["gpus_per_node"] == 8
    assert call("simulate", "allreduce:1MB", "--cluster", copy, "--workers", "16").exit_code == 0
    trace = tmp_path / "trace.json"
    assert call("traces", "allreduce:1MB/3", "--export", trace).exit_code == 0
    again = call("simulate", trace, "--workers", "4", "--strategy", "ring", "--json")
    named = call("simulate", "allreduce:1MB/3", "--workers", "4", "--strategy", "ring", "--json")
    assert again.stdout == named.stdout
    assert call("traces", "--export", trace).exit_code == 2
    assert call("clusters", "flat", "--export", tmp_path / "no" / "x.json").exit_code == 2
    assert sorted(tmp_path.iterdir()) == [copy, trace]


def test_import_sends(tmp_path):
    header = "time_s,tensor,bytes,source,destination\n"
    aggregation = tmp_path / "aggregation.csv"
    aggregation.write_text(header + "0.0,fc,400,worker0,ps0\n0.02,conv,40,worker0,ps0\n")
    distribution = tmp_path / "distribution.csv"
    distribution.write_text(header + "0.0,conv,40,ps0,worker0\n0.1,fc,400,ps0,worker0\n")
    output = tmp_path / "trace.json"
    words = [
        "import-sends",
        aggregation,
        distribution,
        "--name",
        "m",
        "--batch",
        "8",
        "--forward",
        "10ms",
        "-o",
        output,
    ]
    result = call(*words)
    assert (result.exit_code, result.stderr) == (0, "")
    assert "440 B of gradients in 2 tensors Workload batch 8, 1 worker try: paceline simulate" in " ".join(
        result.stdout.split()
    )
    assert call("simulate", output, "--workers", "2").exit_code == 0
    for wrong in (["--forward", "10"], ["--batch", "0"], ["--dtype", "int8"], ["-o", tmp_path / "no" / "x"]):
        assert call(*words, *wrong).exit_code == 2
    aggregation.write_text("nothing")
    assert "aggregation.csv" in cli.refused(*words)


def test_import_sends_after_a_dependency_and_without_patterns(tmp_path):
    header = "time_s,tensor,bytes,source,destination\n"
    plain, filtered = tmp_path / "plain.csv", tmp_path / "all.csv"
    plain.write_text(header + "0.0,fc,400,worker0,ps0\n0.02,conv,40,worker0,ps0\n")
    filtered.write_text(
        header
        + "1.0,conv,40,worker0,ps0\n2.0,loss/begin,4,worker0,ps0\n2.1,bn/moving_mean,6,worker0,ps0\n"
        + "2.5,fc,400,worker0,ps0\n2.51,aux/fc,40,worker0,ps0\n2.52,conv,40,worker0,ps0\n"
    )
    distribution = tmp_path / "distribution.csv"
    distribution.write_text(header + "0.0,conv,40,ps0,worker0\n0.1,fc,400,ps0,worker0\n")

    def words(aggregation, output, *more):
        options = ["--name", "m", "--batch", "8", "--forward", "10ms", "-o", tmp_path / output]
        return ["import", "sends", aggregation, distribution, *options, *more]

    more = ["--dependency", "loss/begin", "--exclude", "*/moving_*", "--exclude", "aux"]
    for arguments in (words(plain, "a.json"), words(filtered, "b.json", *more)):
        result = call(*arguments)
        assert result.exit_code == 0, result.stderr
    assert (tmp_path / "a.json").read_text() == (tmp_path / "b.json").read_text()
    for wrong, said, remedy in (
        (["--exclude", "nobody"], "'nobody' is the name of no tensor", "--exclude '*/moving_*'"),
        (
            ["--dependency", "loss/begun"],
            "'worker0' never sends the dependency 'loss/begun'",
            "--dependency loss/begin",
        ),
    ):
        refused = " ".join(cli.refused(*words(filtered, "c.json", *more, *wrong)).split())
        assert said in refused and remedy in refused, refused


def test_ctrl_c_during_the_imports():
    code = (
        "import sys\nclass CtrlC:\n    def find_spec(self, name, *rest):\n        if name == 'click':\n"
        "            raise KeyboardInterrupt\nsys.meta_path.insert(0, CtrlC())\n"
        "import runpy\nrunpy.run_module('paceline', run_name='__main__')"
    )
    ran = cli.ended(sys.executable, "-c", code)
    assert (ran.returncode, ran.stderr) == (130, "paceline: interrupted; there is no result\n")


def test_ctrl_c_ends_a_long_simulation_at_once(tmp_path):
    code = (
        "import os, signal, threading\nfrom paceline.cli.main import main\n"
        "threading.Timer(0.5, os.kill, (os.getpid(), signal.SIGINT)).start()\n"
        "main(['simulate', 'allreduce:100MB', '--workers', '20000', '--strategy', 'ring', '--chunk', 'per-worker',"
        " '--timeline', 'out.json'])"
    )
    ran = subprocess.run([sys.executable, "-c", code], capture_output=True, cwd=tmp_path, timeout=60, check=False)
    assert ran.returncode == 130
    assert b"interrupted" in ran.stderr
    assert b"Traceback" not in ran.stderr
    assert not list(tmp_path.iterdir())


@pytest.mark.skipif(not Path("/dev/full").is_char_device(), reason="needs /dev/full")
def test_a_message_that_cannot_be_written_leaves_its_exit_code():
    with Path("/dev/full").open("w") as full:
        command = [sys.executable, "-m", "paceline.cli", "simulate", "--strategy", "rnig"]
        assert subprocess.run(command, stderr=full, check=False).returncode == 2


@pytest.mark.parametrize(
    "words",
    [
        ["run", "-np", "1", "--", "true"],
        ["run", "-np", "1", "--timeline", "t.json", "--", "true"],
        ["simulate", "allreduce:1MB", "--workers", "2", "--strategy", "ring", "--timeline", "t.json"],
        ["record", "-o", "trace.json", "--", "true"],
    ],
)
def test_a_working_directory_that_is_gone(tmp_path, words):
    gone = tmp_path / "gone"
    gone.mkdir()
    code = f"import os; os.rmdir({str(gone)!r}); from paceline.cli.main import main; main({words!r})"
    ran = cli.ended(sys.executable, "-c", code, cwd=gone)
    assert ran.returncode == 2
    assert ran.stderr.endswith("the current directory no longer exists\n  try: cd to a folder that exists\n")
    assert ran.stderr.count("\n") == 2


def test_as_a_module():
    done = cli.program("--version", check=True)
    assert done.stdout == f"paceline {paceline.__version__}\n"
