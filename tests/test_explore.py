"""`paceline explore`: its state, its answers, who is let in, and the page in a real browser."""

import json
import signal
import subprocess
import sys
import urllib.error
import urllib.request
from contextlib import contextmanager

import cli
import paceline
import pytest
from browser import CHROMIUM, FLAGS, needs_chromium
from paceline.catalog.libraries import find_library
from paceline.cli.usage import UsageError
from paceline.errors import InvalidArgumentError
from paceline_lab.cli.explore import _first as first
from paceline_lab.explore import model_answers
from paceline_lab.explore.answers import answer, cluster_of, preset
from paceline_lab.explore.state import LIMITS, LIMITS_OF_MODELS, ModelState, State, parse, parse_of_model

for module in ("plotly", "starlette", "uvicorn"):
    pytest.importorskip(module)


@pytest.mark.parametrize("name", LIMITS)
def test_limits(name):
    least, most = LIMITS[name]
    for value in (least, most):
        assert getattr(parse(json.dumps({name: value}).encode()), name) == value
    for value in (least - 1, most + 1):
        with pytest.raises(InvalidArgumentError, match=f"{name}: must be "):
            parse(json.dumps({name: value}).encode())
    # No bucket size and no servers: the library decides.
    for value in ("3", True, [1], *([None] if name not in ("bucket_mb", "servers") else [])):
        with pytest.raises(InvalidArgumentError, match=f"{name}: is not a number"):
            parse(json.dumps({name: value}).encode())


@pytest.mark.parametrize("name", LIMITS_OF_MODELS)
def test_limits_of_models(name):
    least, most = LIMITS_OF_MODELS[name]
    for value in (least, most):
        assert getattr(parse_of_model(json.dumps({name: value}).encode()), name) == value
    for value in (least - 1, most + 1, 1e300):
        with pytest.raises(InvalidArgumentError, match=f"{name}: must be "):
            parse_of_model(json.dumps({name: value}).encode())
    for value in ("3", True, [1], *([None] if name not in ("bandwidth_gbps", "seq") else [])):
        with pytest.raises(InvalidArgumentError, match=f"{name}: is not a number"):
            parse_of_model(json.dumps({name: value}).encode())


@pytest.mark.parametrize(
    ("text", "message"),
    [
        (b'{"workers": 3}', "unknown field 'workers'"),
        (b'{"gpus": 2.5}', "gpus: must be a whole number, not 2.5"),
        (b'{"model": "/etc/passwd"}', "model: unknown value '/etc/passwd'"),
        (b'{"gpu": "h1000"}', "gpu: unknown value 'h1000'"),
        (b'{"dtype": "int3"}', "dtype: unknown value 'int3'"),
        (b'{"sharding": "hsdp:8"}', "sharding: unknown value 'hsdp:8'"),
        (b'{"checkpointing": null}', "checkpointing: is not text"),
    ],
)
def test_mistakes_about_models_are_named(text, message):
    with pytest.raises(InvalidArgumentError) as error:
        parse_of_model(text)
    assert message in str(error.value)


def test_answers_of_a_model_are_those_of_simulate():
    state = ModelState(model="bert-large", gpus=32, batch=2, accumulate=2, tensor_parallel=2, bandwidth_gbps=800)
    answer_of_page = model_answers.answer(state)
    assert [row["iteration_s"] for row in answer_of_page["rows"]] == sorted(
        row["iteration_s"] for row in answer_of_page["rows"]
    )
    assert {row["label"] for row in answer_of_page["rows"]} == {"none", "zero1", "zero2", "zero3", "hsdp:4"}
    for row in answer_of_page["rows"]:
        words = model_answers.command(state, row["sharding"]).split()[1:]
        [own] = cli.answer(*words)
        assert (row["iteration_s"], row["mfu"]) == (own["iteration_s"], own["mfu"])
        assert row["peak_bytes"] == own["sharded"]["memory"]["peak_bytes"] == sum(row["memory"].values())
        assert row["fits"] == own["sharded"]["fits"]
        assert row["per_gpu"] == own["tokens_per_s_per_gpu"]
        assert row["compute_s"] + sum(row["parts"].values()) == pytest.approx(row["iteration_s"])
        curve = next(one for one in answer_of_page["curves"] if one["sharding"] == row["sharding"])
        # Half as many ranks as GPUs; groups of a node's four make sense from eight ranks on.
        assert curve["gpus"] == (
            [16, 32] if row["sharding"] == "hsdp" else [2, 4, 8, 16, 32][row["sharding"] != "none" :]
        )
        assert curve["per_gpu"][-1] == row["per_gpu"]
    assert answer_of_page["command"] == model_answers.command(state, answer_of_page["shown"])
    assert (
        answer_of_page["timeline"]["iteration_s"] == answer_of_page["rows"][0]["iteration_s"]
        and answer_of_page["timeline"]["lanes"]
    )


def test_what_does_not_fit_is_not_the_fastest():
    answer_of_page = model_answers.answer(ModelState(gpus=16))
    assert not next(row for row in answer_of_page["rows"] if row["sharding"] == "none")["fits"]
    assert next(row for row in answer_of_page["rows"] if row["sharding"] == answer_of_page["shown"])["fits"]
    assert model_answers.answer(ModelState(gpus=16, sharding="none"))["shown"] == "none"
    alone = model_answers.answer(ModelState(gpus=1))
    assert [row["sharding"] for row in alone["rows"]] == ["none"]


def test_images_and_gpus_without_known_nodes():
    shown = model_answers.answer(ModelState(model="vit-huge", gpu="l40s", gpus=8, batch=4))
    assert shown["unit"] == "images/s"
    assert any("instances have the L40S" in note for note in shown["notes"])
    # Iterations of minutes are simulated, too.
    assert model_answers.answer(ModelState(model="gpt3-175b", gpu="a40", gpus=4096))["rows"][0]["iteration_s"] > 60
    for fields, message in (
        ({"model": "vit-huge", "seq": 512}, "seq: needs a model of text, and images of vit-huge have 257 patches"),
        ({"gpus": 12, "tensor_parallel": 8}, "tensor_parallel: 12 GPUs are not a multiple of 8"),
        ({"gpu": "l40s", "tensor_parallel": 2}, "no NVLink"),
    ):
        with pytest.raises(InvalidArgumentError, match=message):
            model_answers.answer(ModelState(**fields))


def test_the_page_is_that_of_the_name():
    for words, message in (
        (["lama-3-8b"], "try: llama-3-8b"),
        (["llama-3-8b", "--cluster", "flat"], "--cluster has no effect on a model, whose nodes are those of its --gpu"),
        (["resnet-18", "--gpu", "h100"], "--gpu has no effect on a recorded trace"),
        (["llama-3-8b", "--gpu", "h1000"], "h1000"),
    ):
        refused = cli.call("explore", *words, "--port", "0")
        assert refused.exit_code == 2 and message in refused.output, refused.output
    for words, script in ((["gpt2-small"], b"traces.js"), (["gpt2-small", "--gpu", "a100"], b"models.js")):
        with running(*words) as address:
            token = address.partition("token=")[2]
            status, text, _ = question(address, "/", token=token)
            assert status == 200 and script in text
            assert question(address, f"/static/{script.decode()}", token=token)[0] == 200
            assert question(address, "/forecast", token=token, body=b"{}")[0] == 200


@pytest.mark.parametrize(
    ("text", "message"),
    [
        (b"", "not JSON"),
        (b"\xff", "not JSON"),
        (b"[" * 100_000, "not JSON"),
        (b"[]", "not a JSON object"),
        (b'{"worker": 3}', "unknown field 'worker'"),
        (b'{"workers": 1' + b"0" * 400 + b"}", "workers: must be 1-128"),
        (b'{"bandwidth_gbps": Infinity}', "bandwidth_gbps: must be 0.1-60000"),
        (b'{"workers": 2.5}', "workers: must be a whole number, not 2.5"),
        (b'{"bandwidth_gbps": NaN}', "bandwidth_gbps: is not a number"),
        (b'{"multicast": 1}', "multicast: must be true or false"),
        (b'{"trace": "/etc/passwd"}', "trace: unknown value '/etc/passwd'"),
        (b'{"cluster": "../flat"}', "cluster: unknown value '../flat'"),
        (b'{"strategy": "rung"}', "unknown strategy 'rung'"),
        (b'{"trace": 3}', "trace: is not text"),
        (rb'{"trace": "\ud800"}', "not JSON"),
        (rb'{"cluster": "\ud800"}', "not JSON"),
        (rb'{"strategy": "\udfff"}', "not JSON"),
        (rb'{"\ud800": 1}', "not JSON"),
        (rb'{"strategy": "\u0000"}', "unknown strategy"),
        (b'{"workers": 2, "workers": 4}', "'workers' is given twice"),
    ],
)
def test_mistakes_are_named(text, message):
    with pytest.raises(InvalidArgumentError) as error:
        parse(text)
    assert message in str(error.value)


def test_answers_are_those_of_simulate():
    state = State(trace="resnet-18", workers=6, servers=2, bandwidth_gbps=3, latency_us=20, straggler=1.5, bucket_mb=10)
    answer_of_page = answer(state)
    assert [it["iteration_s"] for it in answer_of_page["ranking"]] == sorted(
        it["iteration_s"] for it in answer_of_page["ranking"]
    )
    machine = {"bandwidth": "3Gbps", "latency": "20us", "stragglers": [{"rank": 0, "factor": 1.5}]}
    for row in answer_of_page["ranking"]:
        servers = {"servers": 2} if row["servers"] else {}
        own = paceline.simulate(
            "resnet-18", None, row["strategy"], workers=6, bucket_size=10_000_000, **servers, **machine
        )
        assert row["iteration_s"] == own.iteration_s
        assert row["compute_s"] + row["exposed_s"] == pytest.approx(row["iteration_s"])
    for curve in answer_of_page["curves"]:
        assert curve["workers"] == [1, 2, 4, 6]
    assert answer_of_page["timeline"]["strategy"] == answer_of_page["ranking"][0]["strategy"]
    # Of the world that was asked for.
    assert answer_of_page["timeline"]["workers"] == 6
    assert answer_of_page["timeline"]["iteration_s"] == answer_of_page["ranking"][0]["iteration_s"]
    assert {
        lane.split()[1].rstrip(":") for lane in answer_of_page["timeline"]["lanes"] if lane.startswith("worker")
    } == set("0123")
    ends = [span["begin_s"] + span["duration_s"] for span in answer_of_page["timeline"]["spans"]]
    assert max(ends) <= answer_of_page["timeline"]["iteration_s"] * 1.001


def test_the_switch_decides_what_is_shown():
    answer_of_page = answer(State(trace="resnet-18", workers=4, multicast=False, aggregation=False))
    assert set(answer_of_page["left_out"]) == {
        *("ps-multicast", "ps-aggregation", "ps-multicast-aggregation", "ring-multicast", "sharp")
    }
    assert not set(answer_of_page["left_out"]) & {it["strategy"] for it in answer_of_page["ranking"]}


def test_the_switch_helps_only_where_it_is_ticked_or_a_cluster_says_so():
    assert not (State().multicast or State().aggregation)
    assert not (preset("flat")["multicast"] or preset("flat")["aggregation"])
    answer_of_page = answer(State(trace="resnet-18", workers=4))
    assert "sharp" in answer_of_page["left_out"]
    assert answer_of_page["bandwidth"] == "25 Gbps, TCP"
    assert answer(State(trace="resnet-18", workers=4, bandwidth_gbps=100))["bandwidth"] == "100 Gbps, RDMA"


def test_what_would_take_long_is_refused():
    with pytest.raises(InvalidArgumentError, match="611 buckets on 128 workers take longer than a slider should"):
        answer(State(trace="resnet-200", workers=128, bucket_mb=0))


def test_a_library_brings_its_buckets():
    def fastest(**fields):
        return answer(State(trace="resnet-18", workers=4, bandwidth_gbps=3, **fields))["ranking"][0]["iteration_s"]

    assert fastest() == fastest(bucket_mb=25) != fastest(bucket_mb=1)
    assert fastest(library="none") == fastest(library="none", bucket_mb=0) != fastest()
    assert fastest(library="horovod") != fastest()


@pytest.mark.parametrize("library", ["tensorflow-grpc", "byteps"])
def test_a_library_brings_its_servers(library):
    def ps(**fields):
        ranking = answer(State(trace="resnet-18", workers=4, library=library, **fields))["ranking"]
        return next(row for row in ranking if row["strategy"] == find_library(library).strategy)

    own = paceline.simulate("resnet-18", workers=4, library=library, bandwidth="25Gbps", latency="0us")
    assert (ps()["servers"], ps()["iteration_s"]) == (own.servers, own.iteration_s)
    assert ps()["servers"] == 4 and ps(servers=1)["servers"] == 1


def test_the_preset_is_a_name_and_the_help_says_so():
    answer_of_page = cli.call("explore", "--help").output
    assert "--cluster NAME" in answer_of_page and "FILE" not in answer_of_page


def test_a_model_may_name_its_gpu():
    assert first("llama-3-8b@a100:seq=4096,batch=2", None, None) == ModelState(gpu="a100-80gb", seq=4096, batch=2)
    assert first("llama-3-8b@h100", None, "h100") == first("llama-3-8b", None, "h100") == ModelState()


@pytest.mark.parametrize(
    ("words", "message"),
    [
        (["llama-3-8b@h100:attention=eager"], "the page has no attention"),
        (["llama-3-8b@a100", "--gpu", "h100"], "--gpu: 'llama-3-8b@a100' says a100, too"),
        (["netop-vgg-16@h100"], "--gpu has no effect on a recorded trace"),
        (["llama-3-8b@"], "has no GPU after @"),
    ],
)
def test_words_that_the_page_does_not_take(words, message):
    refused = cli.call("explore", *words)
    assert refused.exit_code == 2 and message in refused.stderr


def test_another_strategys_timeline():
    assert answer(State(trace="resnet-18", workers=4, strategy="tree"))["timeline"]["strategy"] == "tree"


def test_presets_move_the_sliders():
    for name in paceline.cluster_names():
        State(cluster=name, **preset(name))
        parse(json.dumps({"cluster": name, **preset(name)}).encode())
    assert preset("p3.16xlarge")["gpus_per_node"] == 8
    state = State(cluster="p3.16xlarge", **preset("p3.16xlarge"))
    assert cluster_of(state).intra_bandwidth_bps == 960e9


@contextmanager
def running(*words):
    command = [sys.executable, "-m", "paceline.cli", "explore", *words, "--port", "0"]
    process = subprocess.Popen(command, stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True)
    try:
        yield process.stdout.readline().strip()
    finally:
        process.send_signal(signal.SIGINT)
        out, err = process.communicate(timeout=30)
        assert not out and not err.strip(), err
        assert process.returncode in (0, 130)


def question(address, path, *, token, host=None, body=None):
    root = address.partition("/?")[0]
    headers = {"X-Paceline-Token": token} if token else {}
    request = urllib.request.Request(root + path, data=body, headers=headers)
    if host is not None:
        request.add_header("Host", host)
    try:
        with urllib.request.urlopen(request, timeout=30) as reply:
            return reply.status, reply.read(), reply.headers
    except urllib.error.HTTPError as error:
        return error.code, error.read(), error.headers


def test_a_stranger_gets_nothing():
    with running("resnet-18") as address:
        assert address.startswith("http://127.0.0.1:")
        token = address.partition("token=")[2]
        assert len(token) >= 32
        for path in ("/", "/static/app.js", "/static/plotly.js", "/cluster?name=flat", "/forecast", "/nothing"):
            for wrong in ("", "x", token[:-1], token + "x"):
                status, text, _ = question(address, path, token=wrong, body=b"{}" if path == "/forecast" else None)
                assert (status, token in text.decode()) == (403, False), path
        # A name that leads here but is not this machine's own: DNS rebinding.
        assert question(address, "/", token=token, host="evil.example:80")[0] == 400
        status, text, headers = question(address, "/", token=token)
        assert status == 200 and b"resnet-18" in text
        assert "default-src 'none'" in headers["Content-Security-Policy"]
        assert "unsafe-eval" not in headers["Content-Security-Policy"]
        assert question(address, "/static/..%2fserver.py", token=token)[0] == 404
        status, text, _ = question(address, "/forecast", token=token, body=b'{"workers": 999}')
        assert (status, json.loads(text)) == (
            400,
            {"error": "workers: must be 1-128, not 999", "remedy": "128"},
        )
        assert question(address, "/forecast", token=token, body=b"x" * 20_000)[0] == 413
        status, text, _ = question(address, "/forecast", token=token, body=b'{"trace": "resnet-18", "workers": 4}')
        assert status == 200 and json.loads(text)["simulations"] > 10


def test_no_request_is_an_error_of_the_server():
    """What no field, name, path or token may hold is refused, and the next request is answered."""
    odd = ["\\ud800", "\\udfff\\ud800", "\\u0000", "\\uffff", "a" * 9000, "'", "<script>"]
    fields = [*vars(State()), "other"]
    bodies = [f'{{"{name}": "{text}"}}'.encode() for name in fields for text in odd]
    bodies += [f'{{"{text}": 1}}'.encode() for text in odd]
    bodies += [f'{{"{name}": {value}}}'.encode() for name in LIMITS for value in ("1e999", "-1e999", "NaN", "9" * 4000)]
    bodies += [
        b'{"trace": ' + b"[" * 8000,
        b'{"a": ' + b'{"a": ' * 2000 + b"1" + b"}" * 2001,
        b"\xed\xa0\x80",
        b'"\xff"',
    ]
    with running("resnet-18") as address:
        token = address.partition("token=")[2]
        for body in bodies:
            status, text, _ = question(address, "/forecast", token=token, body=body)
            assert (status, list(json.loads(text))) == (400, ["error", "remedy"]), body[:100]
        for name in ("%ED%A0%80", "%00", "%FF", "a" * 5000, "", "flat%0D%0A"):
            assert question(address, f"/cluster?name={name}", token=token)[0] == 400, name
            assert question(address, f"/static/{name}", token=token)[0] == 404, name
            assert question(address, f"/?token={name}", token="")[0] == 403, name
        assert question(address, "/", token="\xff" * 10)[0] == 403
        assert question(address, "/cluster?name=flat", token=token)[0] == 200


def test_a_port_that_is_taken():
    with running() as address:
        port = address.split(":")[2].partition("/")[0]
        words = [sys.executable, "-m", "paceline.cli", "explore", "--port", port]
        done = cli.ended(*words, timeout=60)
        assert done.returncode == 2
        assert f"--port {port}: address already in use\n  try: --port 0" in done.stderr


@needs_chromium
@pytest.mark.parametrize("width", [1280, 390])
def test_in_a_browser(width):
    sync_api = pytest.importorskip("playwright.sync_api", reason="needs pip install playwright")
    with running("resnet-18", "--cluster", "10g-ethernet") as address, sync_api.sync_playwright() as play:
        browser = play.chromium.launch(executable_path=CHROMIUM, args=FLAGS)
        page = browser.new_page(viewport={"width": width, "height": 900})
        outside, wrong = [], []
        root = address.partition("/?")[0]
        page.on("request", lambda it: None if it.url.startswith((root, "data:", "blob:")) else outside.append(it.url))
        page.on("pageerror", lambda error: wrong.append(str(error)))
        page.on("console", lambda it: wrong.append(it.text) if it.type == "error" else None)
        page.goto(address)
        status = page.locator("#status")
        sync_api.expect(status).to_contain_text("simulations", timeout=30_000)
        sync_api.expect(page.locator("#ranking .ytick text").first).to_contain_text("ps")
        assert page.locator("#timeline .trace").count() >= 4

        # Keys move sliders, what moves redraws, and the link carries it.
        before = page.locator("#ranking").inner_html()
        page.locator("input[name=workers]").focus()
        page.keyboard.press("ArrowLeft")
        sync_api.expect(page.locator("#ranking-title")).to_have_text("16 workers, fastest first")
        assert "workers=16" in page.url
        assert page.locator("#ranking").inner_html() != before
        page.locator("input[name=multicast]").check()
        sync_api.expect(page.locator("#ranking")).to_contain_text("ps-multicast")
        page.locator("select[name=strategy]").select_option("tree")
        sync_api.expect(page.locator("#timeline-title")).to_contain_text("tree, 16 workers")

        other = browser.new_page(viewport={"width": width, "height": 900})
        other.goto(page.url)
        sync_api.expect(other.locator("#timeline-title")).to_contain_text("tree, 16 workers", timeout=30_000)
        assert other.locator("input[name=multicast]").is_checked()
        sync_api.expect(other.locator("#ranking-title")).to_have_text("16 workers, fastest first")

        # A preset moves the sliders.
        page.locator("select[name=cluster]").select_option("p3.16xlarge")
        sync_api.expect(page.locator("label:has(input[name=bandwidth_gbps]) output")).to_have_text("25 Gbps")
        sync_api.expect(page.locator("#left-out")).to_contain_text("ps-aggregation")
        assert page.evaluate("document.documentElement.scrollWidth <= document.documentElement.clientWidth")
        assert not outside and not wrong
        browser.close()


@needs_chromium
@pytest.mark.parametrize("width", [1280, 390])
def test_a_model_in_a_browser(width):
    sync_api = pytest.importorskip("playwright.sync_api", reason="needs pip install playwright")
    sync_api.expect.set_options(timeout=30_000)
    with running("llama-3-8b", "--gpu", "h100") as address, sync_api.sync_playwright() as play:
        browser = play.chromium.launch(executable_path=CHROMIUM, args=FLAGS)
        page = browser.new_page(viewport={"width": width, "height": 900})
        wrong = []
        page.on("pageerror", lambda error: wrong.append(str(error)))
        page.on("console", lambda it: wrong.append(it.text) if it.type == "error" else None)
        page.goto(address)
        sync_api.expect(page.locator("#status")).to_contain_text("simulations", timeout=30_000)
        sync_api.expect(page.locator("#memory")).to_contain_text("does not fit")
        sync_api.expect(page.locator("#iteration-title")).to_contain_text("64 GPUs")
        sync_api.expect(page.locator("#left-out code")).to_contain_text("--gpus 64 --sharding zero3")
        page.locator("input[name=gpus]").focus()
        page.keyboard.press("ArrowLeft")
        sync_api.expect(page.locator("#iteration-title")).to_contain_text("32 GPUs")
        page.locator("input[name=own_seq]").uncheck()
        sync_api.expect(page.locator("label:has(input[name=seq]) output")).to_have_text("4,096 ")
        page.locator("select[name=sharding]").select_option("hsdp")
        sync_api.expect(page.locator("#timeline-title")).to_contain_text("hsdp:8 on 32 GPUs")
        page.locator("select[name=model]").select_option("vit-huge")
        sync_api.expect(page.locator("#status")).to_contain_text(
            "seq: needs a model of text, and images of vit-huge have 257 patches"
        )
        assert "seq=4096" in page.url and "gpus=32" in page.url
        assert page.evaluate("document.documentElement.scrollWidth <= document.documentElement.clientWidth")
        assert wrong == ["Failed to load resource: the server responded with a status of 400 (Bad Request)"]
        browser.close()


def test_a_gpu_after_a_trainers_file(tmp_path):
    path = tmp_path / "own.yml"
    path.write_text("base_model: NousResearch/Meta-Llama-3-8B\nmicro_batch_size: 2\nsequence_len: 1024\n")
    state = first(f"{path}@b200", None, None)
    assert (state.model, state.gpu, state.batch, state.seq) == ("llama-3-8b", "b200", 2, 1024)
    with pytest.raises(UsageError, match="says b200, too"):
        first(f"{path}@b200", None, "h100")
