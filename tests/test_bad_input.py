"""Users' mistakes: each gives one short message on stderr that names the cause, exit code 2, no traceback."""

import json
import os
from functools import partial
from pathlib import Path

import cli
import paceline
import pytest
from paceline.settings import kinds

refused = partial(cli.refused, "simulate")

TINY = json.loads((Path(__file__).parent.parent / "examples" / "tiny.json").read_text())


@pytest.fixture
def written(tmp_path):
    def write(content):
        path = tmp_path / "trace.json"
        path.write_bytes(content if isinstance(content, bytes) else json.dumps(content).encode())
        return path

    return write


def changed(**fields):
    """The tiny trace with fields of the document or of its worker changed; None removes a field."""
    trace = json.loads(json.dumps(TINY))
    for name, value in fields.items():
        place = trace["workers"][0] if name in ("forward", "gradients", "backward_s") else trace
        if value is None:
            del place[name]
        else:
            place[name] = value
    return trace


def gradients(**fields):
    first = {**TINY["workers"][0]["gradients"][0], **fields}
    return [{key: value for key, value in first.items() if value is not None}, *TINY["workers"][0]["gradients"][1:]]


def test_missing_files():
    assert "nowhere.json" in refused("nowhere.json")
    assert "unknown trace 'resnet-5000'" in refused("resnet-5000")
    assert "nowhere.json" in refused("allreduce:1MB", "--cluster", "nowhere.json")
    assert "unknown cluster" in refused("allreduce:1MB", "--cluster", "p3.16large")


@pytest.mark.parametrize(
    ("words", "message"),
    [
        (("simulate", "none.json", "--gpu", "h100"), "none.json: "),
        (("simulate", "--config", "none.json", "--gpu", "h100"), "--config: none.json: "),
        (("simulate", "llama-3-8b", "--gpu", "none.json"), "--gpu: none.json: "),
        (("simulate", "resnet-50", "--cluster", "none.json"), "--cluster: none.json: "),
        (("advise", "none.json", "--gpu", "h100", "--gpus", "8"), "none.json: "),
        (("advise", "--config", "none.json", "--gpu", "h100", "--gpus", "8"), "--config: none.json: "),
        (("advise", "llama-3-8b", "--gpu", "h100", "--gpus", "8", "--cluster", "none.json"), "--cluster: none.json: "),
        (("study", "published", "--data", "none.json"), "--data: none.json: "),
    ],
)
def test_a_missing_file_is_named_with_its_option_and_the_remedy(words, message):
    assert cli.refused(*words) == f"paceline: error: {message}no such file\n  try: another path (list: ls)\n"


def test_a_folder_in_place_of_a_file_is_named(tmp_path):
    result = cli.call("study", "published", "--data", tmp_path)
    assert result.stderr == (
        f"paceline: error: --data: {tmp_path}: is a folder\n  try: a file in it (list: ls {tmp_path})\n"
    )


@pytest.mark.parametrize(
    ("typed", "meant"),
    [
        ("llama-8b", "llama-3-8b, llama-3.1-8b or llama-7b"),
        ("llama3", "llama-3-8b, llama-3-70b or llama-3.1-8b"),
        ("gpt2", "gpt2-small, gpt2-medium or gpt2-large"),
        ("resnet5", "resnet-50"),
    ],
)
def test_misspelled_models_and_traces_get_suggestions(typed, meant):
    assert f"unknown trace '{typed}'\n  try: {meant} (list: " in refused(typed)


@pytest.mark.parametrize(
    ("words", "message"),
    [
        (("--batch", "1,2,4"), "--batch: '1,2,4' is a list, and one value is expected"),
        (("--batch", "1,2,4"), "try: --batch 1 (paceline advise searches it)"),
        (("--checkpointing", "none,full"), "'none,full' is a list, and one value is expected"),
        (("--gpu", "h100,x100"), "--gpu: unknown GPU 'x100'"),
        *[(("--seq", word), "try: --seq max") for word in ("maximum", "mx")],
        (("--gpus", "two"), "try: --gpus 2"),
        (("--seq", "512,x"), "--seq: must be a whole number, 1-16777216, not '512,x'"),
        (("--network", "400Gbps"), "--network: '400Gbps' is a rate, and this is how flows share a link"),
    ],
)
def test_a_value_of_another_form_or_option_is_told(words, message):
    assert message in refused("llama-3-8b", *words)


@pytest.mark.parametrize(
    "content",
    [
        b"",
        b"\n",
        b"{",
        json.dumps(TINY).encode()[:300],
        json.dumps(TINY).encode() + b"}",
        bytes(range(256)),
        b"\x00" * 1000,
        b"\xff\xfe{\x00}\x00",
        b"[" * 1_000_000,
        b'{"a":' * 100_000,
        b"null",
        b"[]",
        b"{}",
        b'"text"',
        b"1e999",
    ],
    ids=lambda content: repr(content[:12]),
)
def test_files_that_are_no_traces(written, content):
    path = written(content)
    assert "trace.json" in refused(path)
    assert "trace.json" in refused("allreduce:1MB", "--cluster", path)
    assert "trace.json" in refused(path.with_name("trace.json"), "--workers", 2)


@pytest.mark.parametrize(
    "words", [["simulate", b"a\xff"], [b"s\xff"], ["traces", b"\xff"], ["simulate", b"allreduce:\xff"]]
)
def test_names_that_are_not_utf_8(words):
    result = cli.program(*words)
    assert result.returncode == 2
    assert result.stderr.startswith("paceline: error: ")
    assert result.stderr.count("\n") == 2


@pytest.mark.parametrize("name", ["\ud800", "a/\ud800", "allreduce:\ud800"])
def test_names_that_are_not_utf_8_in_python(name):
    with pytest.raises(paceline.InvalidArgumentError, match=r"trace|size"):
        paceline.simulate(name, workers=4)


@pytest.mark.parametrize("name", ["x" * 100_000, "a/" + "x" * 100_000, "a\0b"])
def test_names_that_no_file_can_have(name):
    for words in ({"trace": name}, {"trace": "allreduce:1MB", "cluster": name}):
        with pytest.raises(paceline.InvalidArgumentError) as error:
            paceline.simulate(**words, workers=4)
        assert name[:20] in str(error.value)


def test_directories_and_devices(tmp_path):
    assert "the folder has no config.json" in refused(tmp_path)
    assert "is a directory" in refused("allreduce:1MB", "--cluster", tmp_path)
    assert "device" in refused("/dev/zero")
    assert "device" in refused("allreduce:1MB", "--placement", "/dev/zero")


def test_huge_files(tmp_path):
    path = tmp_path / "huge.json"
    with path.open("wb") as file:
        os.truncate(file.fileno(), 2**31)
    for words in ([path], ["allreduce:1MB", "--cluster", path], ["allreduce:1MB", "--placement", path]):
        assert "huge.json" in refused(*words)


@pytest.mark.skipif(os.geteuid() == 0, reason="root reads everything")
def test_unreadable_files(written):
    path = written(TINY)
    path.chmod(0)
    assert "trace.json" in refused(path)


@pytest.mark.parametrize(
    ("trace", "named"),
    [
        (changed(version=99), "version"),
        (changed(format="something"), "format"),
        (changed(batch=0), "batch"),
        (changed(batch=-1), "batch"),
        (changed(batch=1.5), "batch"),
        (changed(dtype="float31"), "float32"),
        (changed(backward_s=-1.0), "backward_s"),
        (changed(backward_s=float("nan")), "NaN"),
        (changed(backward_s=float("inf")), "Infinity"),
        (changed(backward_s=1e300), "backward_s"),
        (changed(gradients=gradients(ready_s=-0.1)), "ready_s"),
        (changed(gradients=gradients(ready_s=float("nan"))), "NaN"),
        (changed(gradients=gradients(bytes=None)), "bytes"),
        (changed(gradients=gradients(bytes=0)), "bytes"),
        (changed(gradients=gradients(bytes=3)), "bytes"),
        (changed(gradients=gradients(tensor="nobody needs it")), "nobody needs it"),
        (changed(forward=[{"layer": "a", "duration_s": -1, "tensors": []}]), "duration_s"),
        (changed(workers=[]), "workers"),
        (changed(workers=[TINY["workers"][0], {"forward": [], "gradients": []}]), "workers[1]"),
        (changed(color="blue"), "color"),
        (changed(name=None), "name"),
    ],
)
def test_traces_with_a_mistake(written, trace, named):
    said = refused(written(trace))
    assert "trace.json" in said
    assert named in said


def test_clusters_with_a_mistake(tmp_path):
    path = tmp_path / "cluster.json"
    for field, value in [
        ("version", 2),
        ("bandwidth", "25"),
        ("bandwidth", "25GB"),
        ("bandwidth", "25GBps"),
        ("intra_bandwidth", "3.2TBps"),
        ("switch", {"memory": "25Mb"}),
        ("bandwidth", "-1Gbps"),
        ("gpus_per_node", 0),
        ("latency", "1h"),
        ("bandwith", "25Gbps"),
        ("racks", {"nodes_per_rack": 0, "oversubscription": 1}),
    ]:
        path.write_text(json.dumps({"format": "paceline-cluster", "version": 1, "bandwidth": "25Gbps", field: value}))
        said = refused("allreduce:1MB", "--cluster", path)
        assert "cluster.json" in said
        assert field in said


@pytest.mark.parametrize(
    ("words", "named"),
    [
        (["--workers", "0"], "--workers: must be 1-1000000, not 0"),
        (["--workers", "-4"], "--workers"),
        (["--workers", "1000001"], "--workers"),
        (["--workers", "9" * 5000], "--workers"),
        (["--workers", "2,,4"], "--workers"),
        (["--workers", "2,2"], "listed twice"),
        (["--workers", ""], "--workers"),
        (["--workers", "1.5e0"], "--workers"),
        (["--workers", "\u0664"], "--workers"),
        (["--servers", "0"], "--servers"),
        (["--bandwidth", "25"], "'25' has no unit"),
        (["--bandwidth", "25GB"], "is a size in bytes"),
        (
            ["--bandwidth", "25GBps"],
            "'25GBps' is ambiguous: B is bytes, rates use bits",
        ),
        (["--bandwidth", "10Gbps,3.2TBps"], "try: 25.6Tbps for bytes"),
        (["--bandwidth", "25GB/s"], "try: 200Gbps for bytes"),
        (["--bandwidth", "25gb/s"], "try: 25Gbps for bits"),
        (["--bandwidth", "0Gbps"], "--bandwidth"),
        (["--bandwidth", "-25Gbps"], "--bandwidth"),
        (["--bandwidth", "nanGbps"], "--bandwidth"),
        (["--bandwidth", "25Gbps,25000Mbps"], "listed twice"),
        (["--latency", "10"], "has no unit"),
        (["--latency", "10Gbps"], "--latency"),
        (["--latency", "2h"], "latency"),
        (["--gpus-per-node", "0"], "--gpus-per-node"),
        (["--gpus-per-node", "2000"], "--gpus-per-node"),
        (["--bucket-size", "25"], "has no unit"),
        (["--bucket-size", "0B"], "--bucket-size"),
        (["--bucket-size", "25Mb"], "'25Mb' is ambiguous: b is bits, sizes use bytes"),
        (["--chunk", "512Kib"], "try: 512KiB for bytes"),
        (["--chunk", "half"], "--chunk"),
        (["--chunk", "1B"], "chunk"),
        (["--strategy", "rnig"], "try: ring"),
        (["--strategy", ""], "--strategy"),
        (["--strategy", "ring", "--servers", "2"], "--servers"),
        (["--compute-speedup", "0"], "--compute-speedup"),
        (["--compute-speedup", "nan"], "--compute-speedup"),
        (["--compute-speedup", "fast"], "--compute-speedup"),
        (["--samples-per-s", "0"], "--samples-per-s"),
        (["--samples-per-s", "inf"], "--samples-per-s"),
        (["--add-module", "compute"], "compute:"),
        (["--add-module", "mine.json"], "try: --add-module mine.json:1"),
        (["--add-module", "convolution:3"], "convolution"),
        (["--add-module", "compute:-1"], "compute:"),
        (["--network", "tcp"], "--network"),
        (["--iterations", "0"], "--iterations"),
        (["--seed", "-1"], "--seed"),
        (["--cluster", ""], "cluster"),
        (["--cluster", "\x00"], "paceline"),
        (["--placement", "odd"], "odd"),
        (["extra"], "extra"),
        (["--json=yes"], "--json"),
    ],
)
def test_options_with_a_mistake(words, named):
    assert named in refused("netop-vgg-16", *words)


def test_a_rate_beside_a_gpu_names_what_was_given():
    assert "try: drop --batch, or drop --gpu" in refused("resnet-50", "--gpu", "p100", "--batch", 64)
    words = ("--samples-per-s", 400, "--batch", 64)
    assert "try: drop --samples-per-s and --batch, or drop --device" in refused("resnet-50", "--device", "P100", *words)


def test_a_gpu_with_published_rates_only_says_where_they_are():
    said = cli.refused("list", "gpus", "p100")
    assert "only published rates" in said and "paceline list traces" in said
    assert "paceline list traces" in refused("resnet-50", "--gpu", "nothing")


@pytest.mark.parametrize(
    ("tensor", "says", "remedy"),
    [
        ({"bytes": 404, "shape": [10, 10]}, "404 bytes of float32 are not the 100 elements", '"bytes": 400'),
        ({"bytes": 402}, "402 bytes are not whole float32 elements", '"bytes": 404'),
    ],
)
def test_a_modules_tensor_that_does_not_fit_is_named(tmp_path, tensor, says, remedy):
    layer = {"layer": "conv", "forward_s": 0.001, "backward_s": 0.002, "tensors": [{"tensor": "kernel", **tensor}]}
    path = tmp_path / "block.json"
    path.write_text(json.dumps({"format": "paceline-module", "version": 1, "name": "block", "layers": [layer]}))
    said = refused("netop-vgg-16", "--add-module", f"{path}:2")
    assert f"{path}: layers[0].tensors[0]: 'kernel' of 'conv': {says}" in said
    assert f"try: {remedy}" in said


@pytest.mark.parametrize(
    "spec",
    [
        "allreduce",
        "allreduce:",
        "allreduce:100",
        "allreduce:100Gbps",
        "allreduce:0B",
        "allreduce:-1MB",
        "allreduce:100Mb",
    ],
)
def test_all_reduces_with_a_mistake(spec):
    assert "allreduce" in refused(spec)


@pytest.mark.parametrize("spec", ["allreduce:1MB/0", "allreduce:1MB/x", "allreduce:8B/4", "allreduce:1MB/9999999999"])
def test_counts_with_a_mistake(spec):
    assert "allreduce" in refused(spec)


def test_stragglers_that_do_not_exist(tmp_path):
    path = tmp_path / "cluster.json"
    path.write_text(
        '{"format": "paceline-cluster", "version": 1, "bandwidth": "1Gbps", "stragglers": [{"rank": 9, "factor": 2}]}'
    )
    assert "rank 9" in refused("allreduce:1MB", "--cluster", path, "--workers", 4)


def test_whole_numbers_may_have_an_exponent():
    kind = kinds.whole(1, 10**7)
    assert [kind.check(text) for text in ("1e6", "1.5E3", "8", 8)] == [1_000_000, 1500, 8, 8]
    for text in ("1e-3", "1.23e1", "1e99", "e6", "1e"):
        with pytest.raises(paceline.InvalidArgumentError):
            kind.check(text)


@pytest.mark.parametrize("trace", ["", "  "])
def test_an_empty_name_is_said_to_be_empty(trace):
    with pytest.raises(paceline.InvalidArgumentError, match="name of a trace or model is empty"):
        paceline.simulate(trace)


def test_a_dict_is_no_cluster_and_its_fields_are_keywords():
    with pytest.raises(paceline.InvalidArgumentError, match="is not text, a name or a file") as error:
        paceline.simulate("resnet-50", {"bandwidth": "25Gbps"}, workers=4)
    assert "bandwidth='25Gbps'" in error.value.remedy
