"""`paceline simulate --coordinator`: its output, its assumptions, and what it rejects."""

import csv
import io
import json
from functools import partial
from pathlib import Path

import cli
import paceline
import pytest
from paceline.catalog.strategies import all_coordinators
from paceline.forecast.coordinator_model.constants import all_constants

runs = partial(cli.answer, "simulate")
refused = partial(cli.refused, "simulate")

call = partial(cli.call, "simulate")

PARTS = ("compute_s", "coordinator_s", "copy_s", "collective_s")
USUAL = str.split(
    "trace strategy workers servers bandwidth_bps iteration_s samples_per_s scaling_efficiency exposed_communication_s "
    "forward_s backward_s bytes_sent_per_worker messages coordinator"
)
SUMMIT = ("resnet-50", "--cluster", "summit", "--dtype", "float16", "--samples-per-s", 853, "--iterations", 100)
PUBLISHED = (*SUMMIT, "--library", "none", "--no-overlap", "--strategy", "native")


def unfolded(text):
    """Without the ends of lines, which depend on the terminal."""
    return " ".join(text.split())


def test_all_of_them_at_any_scale():
    rows = runs(*PUBLISHED, "--workers", "6,24576", "--coordinator", "all")
    names = [it.name for it in all_coordinators()]
    assert names == ["negotiate", "global-sleep", "nonblocking", "partitioned", "graph"]
    assert [(row["workers"], row["coordinator"]) for row in rows] == [(n, name) for n in (6, 24576) for name in names]
    for row in rows:
        assert set(USUAL) <= set(row)
        assert sum(row[part] for part in PARTS) == pytest.approx(row["iteration_s"])
        assert row["samples_per_s"] == pytest.approx(row["workers"] * 32 / row["iteration_s"])
        assert row["scaling_efficiency"] == pytest.approx(row["compute_s"] / row["iteration_s"])
    assert len({row["compute_s"] for row in rows}) == 1


def test_the_same_seed_gives_the_same_bytes():
    words = (*PUBLISHED, "--workers", 1536, "--coordinator", "all", "--json")
    first, second, other = call(*words, "--seed", 7), call(*words, "--seed", 7), call(*words, "--seed", 8)
    assert first.stdout == second.stdout != other.stdout


def test_aliases_mean_the_same():
    rows = runs(*PUBLISHED, "--workers", 96, "--coordinator", "gs,nbcs,scp,topo,graph")
    assert [row["coordinator"] for row in rows] == ["global-sleep", "nonblocking", "partitioned", "graph"]


def test_people_see_the_parts_and_what_is_assumed():
    result = call(*PUBLISHED, "--workers", 24576, "--coordinator", "all")
    header, _ = cli.table(result.stdout)
    assert all(word in header for word in ("coordinator", "iter", "samples/s", "collective"))
    notes = cli.notes(result.stdout)
    assert any("48% of an iteration (published for this network)" in note for note in notes)
    assert any("fused up to 67.1 MB" in note for note in notes)
    assert "24,576 workers" in result.stdout.splitlines()[0]
    answer = call(
        "bert-base", "--workers", 8, "--coordinator", "graph", "--strategy", "ring", "--iterations", 10
    ).stdout
    parts = cli.facts(answer)["Coordinator"]
    assert all(part in parts for part in ("ms coordinator", "ms copies of the fusion buffer", "ms collectives"))
    notes = cli.notes(answer)
    assert any("lateness on flat is unmeasured (--coordinator-constants summit)" in note for note in notes)
    assert any("fused up to 134 MB" in note for note in notes)


def test_the_same_options_as_without():
    """Defaults are those of every forecast: all strategies, overlap, FIFO links, parameter servers too."""
    words = ("resnet-50", "--workers", 4, "--bandwidth", "10Gbps", "--iterations", 5)
    rows = runs(*words, "--coordinator", "none,graph")
    names = {kind: {row["strategy"] for row in rows if row.get("coordinator") == kind} for kind in (None, "graph")}
    assert names[None] == names["graph"] >= {"ring", "ps", "native"}
    [two] = runs(
        *words, "--coordinator", "graph", "--strategy", "ps", "--servers", 2, "--chunk", "1MB", "--network", "fluid"
    )
    assert (two["servers"], two["coordinator"]) == (2, "graph")
    [fast] = runs(*words, "--coordinator", "graph", "--strategy", "ring", "--compute-speedup", 4, "--detail")
    [slow] = runs(*words, "--coordinator", "graph", "--strategy", "ring", "--no-overlap")
    assert fast["compute_s"] == pytest.approx(slow["compute_s"] / 4)
    assert {busy["kind"] for busy in fast["busy"]} == {"compute", "worker egress", "worker ingress"}
    assert slow["iteration_s"] > next(
        row["iteration_s"] for row in rows if row.get("coordinator") and row["strategy"] == "ring"
    )


def test_one_question_has_one_answer():
    """On balanced ranks a coordinator costs its cycles and copies, nothing else."""
    words = (
        "resnet-50",
        "--library",
        "none",
        "--workers",
        16,
        "--strategy",
        "ring",
        "--bandwidth",
        "25Gbps",
        "--no-overlap",
        "--iterations",
        50,
    )
    [plain] = runs(*words, "--bucket-size", "128MiB")
    for row in runs(*words, "--coordinator", "all"):
        own = row["coordinator_s"] + row["copy_s"]
        # In graph order the last rank's turn comes up to a cycle of 1 ms later than the mean rank's.
        apart = 0.001 if row["coordinator"] == "graph" else 1e-7
        assert -1e-7 <= row["iteration_s"] - own - plain["iteration_s"] <= apart
        assert own < 0.004


def test_strategies_out_of_reach_are_left_out():
    result = call(*SUMMIT, "--workers", 24576, "--coordinator", "graph", "--json")
    assert {"native", "ring", "hierarchical"} == {row["strategy"] for row in json.loads(result.stdout)}
    assert "tree, ps, sharded-ps: too many messages to simulate, and no closed form" in unfolded(result.stderr)


def test_timeline_and_plot(tmp_path):
    pytest.importorskip("matplotlib")
    timeline, plot = tmp_path / "t.json", tmp_path / "p.png"
    words = ("resnet-50", "--workers", 8, "--strategy", "ring", "--iterations", 3)
    done = call(*words, "--coordinator", "negotiate", "--timeline", timeline)
    assert done.exit_code == 0, done.stderr
    events = json.loads(timeline.read_text())["traceEvents"]
    names = {event["name"] for event in events}
    assert {"forward", "backward", "negotiate", "copy in", "copy out"} <= names
    assert len({event["pid"] for event in events if event["name"] == "backward"}) == 8
    done = call(*words, "--coordinator", "all", "--plot", plot)
    assert done.exit_code == 0, done.stderr
    assert plot.read_bytes().startswith(b"\x89PNG")


def test_from_python():
    options = {"workers": 8, "strategy": "ring", "iterations": 5}
    result = paceline.simulate("resnet-50", **options, coordinator="topo")
    assert (result.coordinator, result.latest_s) == ("graph", 0.0)
    late = paceline.simulate("resnet-50", **options, coordinator="graph", coordinator_constants="summit")
    assert late.latest_s > 0
    assert late.compute_s + late.coordinator_s + late.copy_s + late.collective_s == pytest.approx(late.iteration_s)
    assert paceline.simulate("resnet-50", workers=8, strategy="ring", coordinator="none").coordinator is None


def test_csv_has_the_parts():
    answer = call(*PUBLISHED, "--workers", 96, "--coordinator", "graph,negotiate", "--csv")
    rows = list(csv.DictReader(io.StringIO(answer.stdout)))
    assert [row["coordinator"] for row in rows] == ["graph", "negotiate"]
    # Half a cycle, and a millisecond for its bucket.
    assert float(rows[0]["coordinator_s"]) == pytest.approx(0.0035)


def test_constants_can_be_set(tmp_path):
    file = tmp_path / "constants.json"
    words = (*PUBLISHED, "--workers", 1536, "--coordinator", "negotiate")
    [usual] = runs(*words)
    file.write_text(
        '{"cycle_ms": 1, "oversleep_probability": 0, "preemption_per_node": 0, "spin_preemption_per_node": 0}'
    )
    [calm] = runs(*words, "--coordinator-constants", file)
    assert calm["latest_s"] == 0
    assert calm["coordinator_s"] < 0.001 < usual["coordinator_s"]
    [unfused] = runs(*words, "--bucket-size", "none")
    assert (usual["buckets"], unfused["buckets"], unfused["copy_s"]) == (1, 161, 0)


@pytest.mark.parametrize(
    ("text", "said"),
    [
        ("[]", "not an object"),
        ("{", "not JSON"),
        ("[" * 100_000, "is nested too deeply"),
        ('{"cycle": 1}', "unknown constant 'cycle'"),
        ('{"cycle_ms": "5"}', "cycle_ms: must be 0-10000, not '5'"),
        ('{"cycle_ms": -1}', "cycle_ms: must be 0-10000, not -1"),
        ('{"fusion_mib": 64}', "--bucket-size"),
        ('{"oversleep_probability": NaN}', "oversleep_probability"),
        ('{"cores": 4}', "pipeline_cores"),
    ],
)
def test_wrong_constants_are_refused(tmp_path, text, said):
    file = tmp_path / "constants.json"
    file.write_text(text)
    result = cli.refused("simulate", *SUMMIT, "--workers", 6, "--coordinator", "graph", "--coordinator-constants", file)
    assert said in result


@pytest.mark.parametrize(
    ("words", "said"),
    [
        (["--coordinator", "topology"], "--coordinator: unknown coordinator 'topology'"),
        (["--coordinator", "nope"], "try: topo"),
        (
            ["--coordinator", "gs:0"],
            "--coordinator: gs: needs a number of cycles of 1 to 4294967295, not '0'\n  try: gs:4",
        ),
        (["--coordinator", "global-sleep:x"], "not 'x'\n  try: global-sleep:4"),
        (["--coordinator", "graph:2"], "--coordinator: graph: takes no '2'\n  try: graph"),
        (["--coordinator", "grpah:2"], "unknown coordinator 'grpah:2'\n  try: graph"),
        (["--coordinator", "nope"], "graph or topo"),
        (["--coordinator", ""], "--coordinator: '' names nothing"),
        (["--coordinator", "all", "--no-barrier"], "--no-barrier: has no effect under a coordinator"),
        (["--coordinator", "all", "--strategy", "ps", "--pull", "layer"], "--pull: has no effect under a coordinator"),
        (["--coordinator", "all", "--timeline", "t.json"], "--timeline shows one scenario, and 390 are requested"),
        (["--coordinator", "all", "--workers", "4096", "--strategy", "halving-doubling"], "has no closed form"),
        (
            ["--coordinator-constants", "c.json"],
            "--coordinator-constants: needs a coordinator",
        ),
        (
            ["--coordinator", "all", "--coordinator-constants", "missing.json"],
            "--coordinator-constants missing.json: no such file",
        ),
    ],
)
def test_what_does_not_apply_is_refused(words, said):
    result = cli.output("simulate", "resnet-50", *words, code=2)
    assert said in result
    assert "Traceback" not in result


def test_detail_without_json_is_refused():
    assert "--detail needs --json" in refused("resnet-50", "--coordinator", "graph", "--detail").replace("\n", " ")


def test_every_constant_is_documented():
    page = (Path(__file__).parent.parent / "docs" / "explanation" / "coordinator-model.md").read_text()
    for constant in all_constants().values():
        row = f"| `{constant.name}` | {constant.default:g} | {constant.unit} | {constant.meaning} | {constant.source} |"
        assert row in page, constant.name


@pytest.mark.slow
def test_a_common_sleep_every_so_many_cycles_lies_between_each_cycle_and_none():
    words = (*PUBLISHED, "--workers", 24576, "--iterations", 500, "--coordinator")
    names = ("gs", "gs:2", "gs:8", "gs:1000000", "negotiate")
    rows = runs(*words, ",".join(names))
    assert [row["coordinator"] for row in rows] == [
        "global-sleep",
        *(f"global-sleep:{cycles}" for cycles in (2, 8, 1_000_000)),
        "negotiate",
    ]
    times = [row["iteration_s"] for row in rows]
    assert times == sorted(times) and times[0] < 0.95 * times[-1]
    assert runs(*words, "gs:1") == runs(*words, "gs")


def test_a_coordinator_is_that_of_a_library():
    words = ("resnet-50", "--workers", 8, "--strategy", "ring", "--iterations", 5)
    [row] = runs(*words, "--coordinator", "negotiate")
    assert (row["library"], row["interval"]) == ("horovod", None)
    [bare] = runs(*words, "--coordinator", "negotiate", "--library", "none")
    assert bare["iteration_s"] < row["iteration_s"]
    assert refused(*words, "--coordinator", "negotiate", "--library", "ddp").rstrip() == (
        "paceline: error: --coordinator: has no effect on ddp, whose ranks need not agree\n"
        "  try: --library horovod, or drop --coordinator"
    )


def test_each_row_is_what_the_single_question_gives():
    words = ("resnet-50", "--workers", "2,8", "--strategy", "ring")
    fields = ("workers", "library", "bucket_size", "iteration_s")

    def figures(*more):
        return {tuple(row[name] for name in fields) for row in runs(*words, *more)}

    both = figures("--coordinator", "none,negotiate")
    assert both == figures("--coordinator", "none") | figures("--coordinator", "negotiate")
    answer = call(*words, "--coordinator", "none,negotiate").stdout
    assert "\nlibrary " in answer and any("--library horovod compares the same" in note for note in cli.notes(answer))
    same = figures("--coordinator", "none,negotiate", "--library", "horovod")
    assert same == figures("--library", "horovod") | figures("--coordinator", "negotiate")


def test_constants_are_given_once(tmp_path):
    file = tmp_path / "constants.json"
    file.write_text('{"cycle_ms": 1, "cycle_ms": 5}')
    result = refused(*SUMMIT, "--workers", 6, "--coordinator", "graph", "--coordinator-constants", file)
    assert "--coordinator-constants" in result and "'cycle_ms' is given twice" in result
