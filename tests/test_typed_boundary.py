"""What passes between Python and the native module has types; JSON is what files and `--json` contain."""

import json
import re
import sys
from collections import Counter
from pathlib import Path

import cli
import paceline
import pytest
from paceline._core import Cluster, Degraded, Racks, Trace
from paceline._internal.documents import read_json
from paceline.catalog.builtin import totals
from paceline.forecast import request

PACKAGES = Path(__file__).parent.parent / "python"


def test_nothing_parses_what_the_native_module_wrote():
    parsed = re.compile(r"json\.loads\(.*(to_json|summary)\(\)")
    assert [path for path in PACKAGES.rglob("*.py") if parsed.search(path.read_text(encoding="utf-8"))] == []


@pytest.mark.parametrize("words", ["", "--json", "--explain", "--strategy ring --network fluid"])
@pytest.mark.parametrize("trace", ["resnet-50 --workers 8,16", "llama-3-8b --gpu h100 --gpus 64 --sharding zero3"])
def test_simulate_takes_nothing_from_json(monkeypatch, trace, words):
    def refused(self):
        raise AssertionError(f"{self!r} was written as JSON")

    for type_ in (Trace, Cluster):
        monkeypatch.setattr(type_, "to_json", refused)
    monkeypatch.setattr(Trace, "summary", refused)
    cli.printed("simulate", *trace.split(), *words.split())


JOBS = """
cluster = "dgx-h100"
[[job]]
trace = "resnet-50"
workers = 16
[[job]]
name = "sharded"
trace = "bert-large"
workers = 16
sharding = "zero3"
"""


@pytest.mark.parametrize("words", ["llama-3-8b --gpu h100 --gpus 64 --sharding zero3", "--jobs jobs.toml"])
def test_a_forecast_is_typed_until_it_is_printed(monkeypatch, tmp_path, words):
    """A model is looked up once; what is parsed before is the text of files."""
    (tmp_path / "jobs.toml").write_text(JOBS)
    monkeypatch.chdir(tmp_path)
    calls = Counter()

    def counted(name, call):
        def wrapper(*args, **kwargs):
            if sys._getframe(1).f_code is not read_json.__code__:
                calls[name] += 1
            return call(*args, **kwargs)

        return wrapper

    for name in ("loads", "dumps"):
        monkeypatch.setattr(json, name, counted(name, getattr(json, name)))
    monkeypatch.setattr(request, "find_workload", counted("model", request.find_workload))
    result = cli.call("simulate", *words.split())
    assert result.exit_code == 0, result.output
    assert calls.pop("model") == 1 or words.startswith("--jobs")
    assert not calls


def test_the_summary_of_a_trace_says_what_to_use_instead():
    trace = paceline.load_trace("resnet-50")
    with pytest.warns(FutureWarning, match=r"read the trace's fields, such as trace\.batch"):
        assert json.loads(trace.summary()) == totals(trace)


def test_a_cluster_with_other_fields_is_that_of_its_file():
    cluster = paceline.load_cluster("p3.16xlarge")
    slow = [Degraded("node1", 0.5)]
    changed = cluster.replace(bandwidth_bps=1e9, latency_s=3e-6, racks=Racks(4, 2.0), degraded=slow, efficiency=None)
    assert (changed.bandwidth_bps, changed.latency_s, changed.racks) == (1e9, 3e-6, Racks(4, 2.0))
    assert changed.degraded == slow and changed.gpus_per_node == cluster.gpus_per_node
    assert Cluster.from_json(changed.to_json().encode(), "again") == changed
    assert changed != cluster == cluster.replace()
    written = {"bandwidth": "1Gbps", "latency": "3us", "racks": {"nodes_per_rack": 4, "oversubscription": 2.0}}
    written["degraded"] = [{"link": "node1", "factor": 0.5}]
    assert cluster.replace(efficiency=None).with_fields(json.dumps(written)) == changed


def test_a_trace_with_other_fields_is_that_of_its_file():
    trace = paceline.load_trace("resnet-50")
    changed = trace.replace(name="other", batch=2, workers=trace.workers * 2, optimizer_bytes=12)
    assert (changed.name, changed.batch, changed.worker_count, changed.optimizer_bytes) == ("other", 2, 2, 12)
    assert Trace.from_json(changed.to_json().encode(), "again") == changed
    assert changed != trace == trace.replace() == Trace.from_json(trace.to_json().encode(), "again")


@pytest.mark.parametrize(
    ("fields", "message"),
    [
        ({"bandwidth_bps": 0.0}, "bandwidth"),
        ({"latency_s": -1.0}, "latency_s: must be 0 s to a day, not -1 s"),
        ({"channel": "udp"}, "channel: unknown channel 'udp'"),
        ({"gpus_per_node": 0}, "gpus_per_node"),
        ({"degraded": [Degraded("node1", 2.0)]}, r"degraded\[0\]\.factor: must be 0-1, not 2"),
        ({"racks": Racks(0, 1.0)}, "nodes_per_rack"),
    ],
    ids=str,
)
def test_wrong_values_name_their_field(fields, message):
    with pytest.raises(paceline.InvalidArgumentError, match=message):
        paceline.load_cluster("p3.16xlarge").replace(**fields)
    with pytest.raises(TypeError, match="a cluster has no field 'speed'"):
        paceline.load_cluster("p3.16xlarge").replace(speed=1)
