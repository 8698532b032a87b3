"""`paceline report`: the specification, and the page in a real browser."""

import html
import re
from html.parser import HTMLParser
from pathlib import Path

import cli
import pytest
from browser import CHROMIUM, FLAGS, needs_chromium
from paceline.errors import InvalidArgumentError
from paceline.forecast.wording import explanation
from paceline_lab.report.chapters import simulated
from paceline_lab.report.spec import of_trace, read

pytest.importorskip("matplotlib")
ROOT = Path(__file__).parent.parent
SMALL = """
title = "A <small> report"
[[chapter]]
title = "One & only"
trace = "resnet-18"
workers = [2, 4]
strategy = ["ring", "ps"]
servers = 2
bucket_size = "25MB"
"""


def spec(tmp_path, text):
    path = tmp_path / "spec.toml"
    path.write_text(text)
    return path


def made(tmp_path, text, *options):
    page = tmp_path / "page.html"
    done = cli.output("report", spec(tmp_path, text), "-o", page, *options)
    return page.read_text(encoding="utf-8"), done


class Ids(HTMLParser):
    def __init__(self, text):
        super().__init__()
        self.ids, self.links = [], []
        self.feed(text)

    def handle_starttag(self, tag, attrs):
        for name, value in attrs:
            if name == "id":
                self.ids.append(value)
            elif name in ("href", "src", "xlink:href", "action", "srcset", "data"):
                self.links.append(value)


def test_the_page_loads_nothing(tmp_path):
    text, _ = made(tmp_path, SMALL)
    result = Ids(text)
    assert len(result.ids) == len(set(result.ids))
    assert all(link.startswith("#") for link in result.links)
    assert {link[1:] for link in result.links} <= set(result.ids)
    assert not re.search(r"<script|@import|url\((?!#)", text)
    assert set(re.findall(r"url\(#([^)]*)\)", text)) <= set(result.ids)


def test_it_holds_what_was_asked_for(tmp_path):
    text, _ = made(tmp_path, SMALL)
    assert "<h1>A &lt;small&gt; report</h1>" in text and "One &amp; only" in text
    for title in (
        "Throughput: 25 Gbps",
        "Scaling: 25 Gbps",
        "Strategies: 4 workers",
        "One iteration: ring, 2 workers",
    ):
        assert title in text
    rows = re.findall(r"<tr[^>]*><td class=\"name\">(\w+)</td><td>([^<]*)</td><td>(\d+)</td>", text)
    assert "<th>servers</th><th>workers</th>" in text
    assert sorted(rows) == [("ps", "2", "2"), ("ps", "2", "4"), ("ring", "–", "2"), ("ring", "–", "4")]
    labels = re.findall(r'aria-label="([^"]*)"', text)
    assert len(labels) == 5 and all(labels)


def test_the_same_spec_gives_the_same_bytes(tmp_path):
    page, _ = made(tmp_path, SMALL)
    assert made(tmp_path, SMALL, "--png", tmp_path / "pictures")[0] == page


def test_a_chapter_has_the_interval(tmp_path):
    question = 'title = "T"\n[[chapter]]\ntitle = "C"\ntrace = "resnet-18"\nworkers = 8\nbandwidth = "25Gbps"\n'
    text, _ = made(tmp_path, question)
    assert "<p><strong>resnet-18, DDP (NCCL), 8 workers: " in text
    assert re.search(r"<dt>Likely</dt><dd>[^<]* samples/s \(80%", text)


def test_explanations_are_those_of_simulate(tmp_path):
    text, _ = made(tmp_path, SMALL + "explain = true\n")
    (chapter,) = simulated(read(tmp_path / "spec.toml"))
    further = explanation.further(chapter.explanation)
    assert {"Scales to", "Likely"} <= {fact.label for fact in further}
    for fact in further:
        assert f"<dt>{fact.label}</dt>" in text
        assert all(html.escape(value) in text for value in fact.values if isinstance(value, str))
    assert "2x network bandwidth" in text


def test_a_legend_says_what_columns_mean(tmp_path):
    text, _ = made(tmp_path, SMALL)
    assert "<dt>scaling</dt><dd>samples/s per rank, relative to one rank alone" in text
    assert "<dt>exposed</dt>" in text and "memory per GPU" not in text
    question = '[[chapter]]\ntrace = "resnet-18"\nworkers = [2, 4]\nstrategy = "ring"\nsharding = ["zero1", "zero3"]\n'
    text, _ = made(tmp_path, question)
    (memory,) = re.findall("<dt>memory per GPU</dt><dd>([^<]*)</dd>", text)
    assert memory.startswith("at its peak: parameters, gradients, optimizer states")
    rows = re.findall(r"<tr[^>]*><td class=\"name\">ring, (zero\d)</td>.*<td>[\d.]+ [MG]B</td></tr>", text)
    assert sorted(rows) == ["zero1", "zero1", "zero3", "zero3"] and "<th>memory per GPU</th>" in text
    assert re.search(r'aria-label="Memory per GPU: zero\d [\d.]+ [MG]B, zero\d [\d.]+ [MG]B', text)
    assert made(tmp_path, question.replace("]\n", ']\nmemory = "1MB"\n', 1))[0].count("does not fit") >= 1
    text, _ = made(tmp_path, '[[chapter]]\ntrace = "allreduce:8MB"\nworkers = [2, 4]\nstrategy = "ring"\n')
    assert '<dl class="legend">' not in text


def test_pictures(tmp_path):
    _, answer = made(tmp_path, SMALL, "--png", tmp_path / "pictures")
    pictures = sorted((tmp_path / "pictures").iterdir())
    assert [path.name.split("-", 2)[2] for path in pictures] == [
        f"{name}.png" for name in ("breakdown", "efficiency", "ranking", "scaling", "timeline")
    ]
    assert all(path.read_bytes().startswith(b"\x89PNG") and str(path) in answer for path in pictures)


def test_all_reduces_have_no_efficiency(tmp_path):
    text, _ = made(tmp_path, '[[chapter]]\ntrace = "allreduce:8MB"\nworkers = [2, 4]\nstrategy = "ring"\n')
    assert "All-reduce: 25 Gbps" in text and "Scaling: " not in text


@pytest.mark.parametrize(
    ("text", "message"),
    [
        ("", "chapter: is missing"),
        ("title = 3\n[[chapter]]\ntrace='resnet-18'", "title: 3 is not text"),
        ("titel = 'x'", "unknown field 'titel'"),
        ("[[chapter]]\n", "chapter 1: trace: is missing"),
        ("[[chapter]]\ntrace='resnet-19'", "chapter 1: unknown trace 'resnet-19'"),
        ("[[chapter]]\ntrace='resnet-18'\nworker=[2]", "chapter 1: unknown field 'worker'"),
        ("[[chapter]]\ntrace='resnet-18'\nworkers=[0]", "chapter 1: workers: must be 1-1000000, not 0"),
        ("[[chapter]]\ntrace='resnet-18'\nworkers=[]", "chapter 1: workers: an empty list"),
        ("[[chapter]]\ntrace='resnet-18'\nbandwidth='fast'", "chapter 1: bandwidth: 'fast' is not a rate"),
        (
            "[[chapter]]\ntrace='resnet-18'\nbandwidth='25GBps'",
            "bandwidth: '25GBps' is ambiguous: B is bytes, rates use bits",
        ),
        (
            "[[chapter]]\ntrace='resnet-18'\nbucket_size='25Mb'",
            "bucket_size: '25Mb' is ambiguous: b is bits, sizes use bytes",
        ),
        ("[[chapter]]\ntrace='resnet-18'\noverlap='maybe'", "chapter 1: overlap: must be 1 or 0, not 'maybe'"),
        ("[[chapter]]\ntrace='resnet-18'\nexplain=1", "chapter 1: explain: must be true or false, not 1"),
        ("[[chapter]]\ntrace='resnet-18'\nstrategy='rung'", "chapter 1: strategy: unknown strategy 'rung'"),
        ("[[chapter]]\ntrace='resnet-18'\ntimeline={worker=2}", "timeline: unknown field 'worker'"),
        ("[[chapter]]\ntrace='resnet-18'\ntimeline=3", "timeline: must be false or a run"),
        ("[[chapter]]\ntrace='resnet-18'\ncluster=5", "chapter 1: cluster: 5 is not text"),
        ("[[chapter]]\ntrace='resnet-18'\ncluster={}", "chapter 1: cluster: {} is not text"),
        ("[[chapter]]\ntrace='resnet-18'\nbatch=" + "9" * 5000, "is not TOML: a number has too many digits"),
        ("not toml", "is not TOML"),
    ],
)
def test_mistakes_are_named(tmp_path, text, message):
    path = spec(tmp_path, text)
    with pytest.raises(InvalidArgumentError) as error:
        read(path)
    assert str(error.value).startswith(str(path))
    assert message in str(error.value)


def test_a_timeline_of_a_run_that_is_not_there(tmp_path):
    path = spec(tmp_path, SMALL + 'timeline = { strategy = "tree" }\n')
    error = cli.refused("report", path, "-o", tmp_path / "page.html")
    assert f"{path}: chapter 1: timeline: tree: the chapter has no such run" in error
    assert not (tmp_path / "page.html").exists()


def test_the_page_must_be_html(tmp_path):
    assert "try: --output" in cli.refused("report", spec(tmp_path, SMALL), "-o", tmp_path / "page.pdf")


HARNESS = """<!doctype html><title>waiting</title><iframe id=f src=page.html width={width} height=900></iframe><script>
addEventListener("load", () => {{
  const page = document.getElementById("f").contentDocument, root = page.documentElement;
  const pictures = [...page.querySelectorAll("svg")].map(it => it.getBoundingClientRect());
  const text = [...page.querySelectorAll("svg text, svg use")].map(it => it.getBoundingClientRect().height);
  document.title = JSON.stringify({{
    scrolls: root.scrollWidth, width: root.clientWidth, pictures: pictures.map(it => [it.left, it.right, it.height]),
    heading: page.querySelector("h1").textContent, text: text.length, side: new Set(pictures.map(it => it.left)).size,
  }});
}});
</script>"""


@needs_chromium
@pytest.mark.parametrize(("width", "columns"), [(1280, 2), (390, 1)])
def test_in_a_browser(tmp_path, width, columns):
    import json

    made(tmp_path, SMALL + "explain = true\n")
    (tmp_path / "harness.html").write_text(HARNESS.format(width=width))
    flags = [*FLAGS, "--headless", "--allow-file-access-from-files"]
    flags += [f"--user-data-dir={tmp_path / 'profile'}", "--window-size=1600,1000", "--virtual-time-budget=10000"]
    words = [CHROMIUM, *flags, "--dump-dom", (tmp_path / "harness.html").as_uri()]
    done = cli.ended(*words, timeout=120)
    answer = json.loads(html.unescape(re.search(r"<title>(.*?)</title>", done.stdout)[1]))
    assert answer["heading"] == "A <small> report"
    # Nothing stands out of the screen: tables scroll by themselves.
    assert answer["scrolls"] <= answer["width"]
    assert len(answer["pictures"]) == 5
    for left, right, height in answer["pictures"]:
        assert 0 <= left < right <= answer["width"]
        assert height > 100
    assert answer["side"] == columns


def test_the_example(tmp_path):
    chapters = read(ROOT / "examples" / "report.toml").chapters
    assert len(chapters) == 3
    assert [chapter.explained for chapter in chapters] == [True, False, False]
    assert chapters[1].shown is None


def test_a_model_on_gpus_leads_with_what_fits(tmp_path):
    page = tmp_path / "model.html"
    cli.output("report", "llama-3-8b@h100", "-o", page)
    text = " ".join(re.sub(r"<[^>]+>", " ", page.read_text()).split())
    assert re.search(r"Scaling llama-3-8b, zero[123]( \(FSDP\))?, 64x H100: [\d,]+ tokens/s per GPU, MFU ", text)
    for title in ("Throughput", "MFU", "Shardings", "Memory per GPU"):
        assert re.search(rf"\b{title}: .*", text)
    assert "One iteration: none" not in text and "workers" not in text
    refused = cli.output("report", "llama-3-8b", "-o", page, code=2)
    assert "llama-3-8b needs a GPU type" in refused and "try: llama-3-8b@h100" in refused


def test_a_trainers_file_is_a_workload_on_the_gpu_after_its_name(tmp_path):
    path = tmp_path / "axolotl.yml"
    path.write_text("base_model: meta-llama/Llama-3.2-1B\nadapter: lora\nlora_r: 8\nsequence_len: 1024\n")
    page = tmp_path / "report.html"
    assert "axolotl.yml@h100" in cli.refused("report", path, "-o", page)
    path.write_text("base_model: unheard/of\nadapter: lora\nlora_r: 8\nsequence_len: 1024\n")
    refused = " ".join(cli.refused("report", f"{path}@h100", "-o", page).split())
    assert "model = " in refused and "--model" not in refused


def test_a_page_has_what_became_of_a_trainers_file(tmp_path):
    path, page = tmp_path / "titan.toml", tmp_path / "report.html"
    parallel = "[parallelism]\ndata_parallel_shard_degree = -1\nenable_async_tensor_parallel = true\n"
    path.write_text(f'[model]\nname = "llama3"\nflavor = "8B"\n[training]\nlocal_batchsize = 2\n{parallel}')
    [chapter] = of_trace(f"{path}@h100").chapters
    # torchtitan has neither ZeRO-1 nor ZeRO-2.
    assert chapter.sweep.get("sharding") == ["none", "zero3", "hsdp"]
    done = cli.call("report", f"{path}@h100", "-o", page)
    text = " ".join(re.sub(r"<[^>]+>", " ", page.read_text()).split())
    for shown in (text, " ".join(done.stderr.split())):
        assert "training.local_batchsize" in shown and "training.local_batch_size" in shown
        assert "parallelism.enable_async_tensor_parallel" in shown
    assert "data_parallel_shard_degree -1 --sharding zero3" in text
    assert "llama-3-8b, zero3 (FSDP), 64x H100: " in text and "does not fit, " not in text


def test_a_trainers_file_is_reported_where_its_batch_and_degrees_permit(tmp_path):
    path = tmp_path / "train.sh"
    size = "--num-layers 2 --hidden-size 1024 --num-attention-heads 16 --seq-length 512 --max-position-embeddings 512"
    parallel = "--tensor-model-parallel-size 8 --pipeline-model-parallel-size 2 --num-microbatches 4"
    batch = "--micro-batch-size 2 --global-batch-size 4 --vocab-size 32000 --bf16"
    path.write_text(f"torchrun --nproc_per_node 8 pretrain_gpt.py {size} {parallel} {batch}\n")
    of = of_trace(f"{path}@h100")
    assert {one.workers * 16 for one in of.chapters[0].prepared.scenarios} == {16, 32}
    assert "hsdp" not in {one.options.get("sharding") for one in of.chapters[0].prepared.scenarios}
