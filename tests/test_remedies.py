"""Every error is short and has a remedy, and the remedy, typed, works or leads on to another error."""

import json
import re
import shlex
from collections.abc import Iterator
from pathlib import Path

import cli
import click
import pytest
from golden import capture
from golden.entries import entries
from paceline.settings.table import SETTINGS, Setting
from remedies import typed
from test_help import ALL, parse

MOST_WORDS = 20
STARTS = ("run", "record", "emulate", "bench", "validate", "replay", "probe", "doctor", "explore", "study", "export")
"""Commands that start processes, measure, or take long: they are parsed and not run."""
ENTRIES = {entry.name: entry.words for entry in entries() if entry.theme == "errors"}
BASES = {
    "simulate": "tiny.json --workers 4",
    "advise": "gpt2-small --gpu a100 --gpus 8",
    "report": "blocks.json -o page.html",
    "models": "llama-3.2-1b --gpu h100",
    "plan": "graph.json",
    "validate": "--trace resnet-50",
    "replay": "tiny.json -o replayed.json",
    "bench": "--model mlp -np 2",
    "explore": "resnet-50",
    "run": "-np 2",
    "emulate run": "--workers 2 --bandwidth 500Mbps",
    "emulate up": "--workers 2 --bandwidth 500Mbps",
    "emulate check": "--workers 2 --bandwidth 500Mbps",
    "record": "-o recorded.json",
    "probe": "",
    "import sends": "aggregation.csv distribution.csv -o imported.json",
    "import kineto": "kineto.json -o imported.json",
    "import chakra": "chakra.et -o imported.json",
    "import tensorflow": "timeline.json --batch 8 -o imported.json",
    "export chakra": "tiny.json -o exported",
}
"""By command, the words with which it would work."""
AFTER = {"run": "-- true", "record": "-- true", "emulate run": "-- true"}
"""What comes after the options."""
WRONG = ("", "x", "-1", "0", "1e99", "1,1", "7,x", "9" * 25, "none.json", "\x1b[31m")
"""Values that most settings refuse."""
LLAMA = "simulate llama-3.2-1b --gpu h100 --strategy native"
COMBINATIONS = (
    "simulate tiny.json --workers 4 --servers 2 --strategy ring",
    "simulate tiny.json --workers 4 --distribution block --no-barrier --strategy ps",
    "simulate tiny.json --workers 4 --placement even --chunk 1MB --strategy ps",
    "simulate tiny.json --workers 4 --chunk 1MB --strategy native",
    "simulate tiny.json --workers 4 --inside ring --gpus-per-node 1 --strategy hierarchical",
    "simulate tiny.json --workers 4 --iterations 2 --sharding zero3",
    "simulate tiny.json --workers 4 --channel rdma --library byteps",
    "simulate tiny.json --workers 4 --jitter 3",
    "simulate tiny.json --workers 4 --degrade node9:0.5",
    "simulate tiny.json --workers 4 --degrade node1:0",
    "simulate tiny.json --workers 4 --straggler 7:2",
    "simulate tiny.json --workers 4 --intra-bandwidth 10Gbps",
    "simulate tiny.json --workers 4 --strategy sharp",
    "simulate tiny.json --workers 4 --strategy sharp --cluster dgx-h100",
    "simulate tiny.json --workers 4 --strategy ps-multicast --cluster dgx-h100",
    "simulate tiny.json --workers 4 --coordinator negotiate --no-barrier",
    "simulate tiny.json --workers 4 --coordinator negotiate --placement tiny.json",
    "simulate tiny.json --workers 4 --library ddp --coordinator negotiate --sharding zero1",
    "simulate tiny.json --workers 4 --compression fp16 --coordinator negotiate",
    "simulate tiny.json --workers 4 --compression powersgd:0",
    "simulate tiny.json --workers 4 --compression topk:2",
    "simulate tiny.json --workers 4 --compression fp16:2",
    "simulate tiny.json --workers 4 --timeline none/t.json --strategy ring",
    "simulate tiny.json --workers 4 --timeline . --strategy ring",
    "simulate tiny.json --workers 4 --plot figure.doc",
    "simulate tiny.json --workers 2,4 --plan-json plan.json",
    "simulate tiny.json --workers 4 --json --explain --csv",
    "simulate tiny.json --workers 4 --executor rya",
    "simulate tiny.json --workers 4 --network 10Gbps",
    "simulate tiny.json --workers 4 --memory 80",
    "simulate tiny.json --workers 4 --pull layer --sharding zero1",
    "simulate tiny.json --workers 4 --accumulate-sync last",
    "simulate tiny.json --workers 4 --reduce-dtype bfloat16",
    "simulate tiny.json --workers 4 --add-modules compute",
    "simulate tiny.json --workers 4 --add-modules comptue:2",
    "simulate tiny.json --workers 4 --samples-per-s 0",
    "simulate tiny.json --workers 4 --gpus-per-node 4 --nccl 9",
    "simulate tiny.json --library ddp@9",
    "simulate tiny.json --library horovod@2.30",
    "simulate tiny.json --jobs jobs-racks.toml",
    "simulate --jobs jobs-racks.toml --workers 4",
    "simulate blocks.json --gpus 8 --sharding zero3 --bucket-size 25MiB",
    "simulate blocks.json --gpus 8 --sharding zero1 --reshard-after-forward no",
    "simulate blocks.json --gpus 8 --sharding zero1 --unit h.*",
    "simulate blocks.json --gpus 8 --sharding zero3 --reshard-after-forward 3",
    "simulate blocks.json --gpus 8 --sharding zero3 --no-barrier",
    "simulate blocks.json --gpus 8 --sharding zero3 --library horovod",
    "simulate blocks.json --gpus 8 --sharding zero3:4",
    "simulate blocks.json --gpus 8 --sharding none:4",
    "simulate blocks.json --gpus 8 --sharding hsdp",
    "simulate blocks.json --gpus 8 --sharding zero2 --compression fp16",
    "simulate blocks.json --gpus 8 --sync-every 4 --accumulate 2 --accumulate-sync last",
    "simulate blocks.json --gpus 8 --strategy sharp --sharding zero3",
    f"{LLAMA} --gpus 16 --tensor-parallel 2 --gpus-per-node 1",
    f"{LLAMA} --gpus 16 --tensor-parallel 5",
    f"{LLAMA} --gpus 15 --tensor-parallel 2",
    f"{LLAMA} --gpus 16 --pipeline-parallel 2",
    f"{LLAMA} --gpus 16 --pipeline-parallel 2 --microbatches 3 --virtual-stages 2",
    f"{LLAMA} --gpus 16 --virtual-stages 2",
    f"{LLAMA} --gpus 16 --microbatches 2",
    f"{LLAMA} --gpus 16 --pipeline-parallel 40 --microbatches 40",
    f"{LLAMA} --gpus 16 --expert-parallel 4",
    f"{LLAMA} --gpus 16 --context-parallel 3",
    f"{LLAMA} --gpus 16 --device V100",
    f"{LLAMA} --gpus 16 --attention flsh",
    f"{LLAMA} --gpus 16 --kernels fast",
    f"{LLAMA} --gpus 16 --optimizer lion",
    f"{LLAMA} --gpus 16 --checkpointing al",
    f"{LLAMA} --gpus 16 --seq 8.5k",
    f"{LLAMA} --gpus 16 --dtype fp4",
    f"{LLAMA} --gpus 16 --sharding fdsp",
    "simulate llama-3.2-1b@ --gpus 8",
    "simulate llama-3.2-1b@h100:seqq=3 --gpus 8",
    "simulate llama-3.2-1b@h100:seq=3,seq=4 --gpus 8",
    "simulate llama-3.2-1b@h100:seq=x --gpus 8",
    "simulate llama-3.2-1b@h100 --gpu a100 --gpus 8",
    "simulate llama-3.2-1b --gpu h100,a100 --gpus 8",
    "simulate llama-3.2-1b --gpu gaudi3 --gpus 8",
    "simulate llama-3.2-1b --gpu h1 --gpus 8",
    "simulate llama-9-1b --gpu h100 --gpus 8",
    "simulate gpt2-small --gpu a100 --seq 4096 --gpus 8",
    "simulate vit-base --gpu a100 --seq 64 --gpus 8",
    "simulate llama-3.2-1b --gpu t4 --gpus 8 --tensor-parallel 2",
    "simulate allreduce",
    "simulate allreduce:x --workers 4",
    "simulate allreduce:3B --workers 4",
    "simulate allreduce:1MB/0 --workers 4",
    "simulate allreduce:1MB/x --workers 4",
    "simulate allreduce:1MB --workers 4 --batch 3",
    "simulate allreduce:1MB --workers 4 --samples-per-s 3",
    "simulate allreduce:1MB --workers 4 --compute-speedup 2",
    "simulate allreduce:1MB --workers 4 --gpu h100",
    "simulate allgather:1MB --workers 8",
    "simulate all-gather:1MB --cluster dgx-h100 --workers 8",
    "simulate allgather:1MB/4 --cluster dgx-h100 --workers 8",
    "simulate allgather:1XB --cluster dgx-h100 --workers 8",
    "simulate allgather:9TB --cluster dgx-h100 --workers 8",
    "simulate allgather:1MB --cluster dgx-h100 --workers 8 --iterations 3",
    "simulate allgather:1MB --cluster dgx-h100 --workers 8 --degrade node0:0.5",
    "simulate allgather:1MB --cluster dgx-h100 --workers 16 --degrade node7:0.5",
    "simulate ''",
    "simulate none.json",
    "simulate none.json --gpu h100",
    "simulate .",
    "simulate /dev/null",
    "simulate train.py",
    "simulate tiny.json --cluster .",
    "simulate tiny.json --cluster tiny.json",
    "simulate tiny.json --cluster ''",
    "simulate tiny.json --config tiny.json",
    "simulate resnet-50 --device H1000 --gpus 8",
    "simulate resnet-50 --gpu h200 --gpus 8",
    "advise",
    "advise gpt2-small --gpus 8",
    "advise gpt2-small --gpu a100",
    "advise resnet-50 --gpu a100 --gpus 8",
    "advise gpt2-small --gpu a100 --gpus 8 --global-batch 3",
    "advise gpt2-small --gpu a100 --gpus 8 --global-batch 64 --batch 3",
    "advise gpt2-small --gpu a100 --gpus 8 --objective cost",
    "advise gpt2-small --gpu a100 --gpus 8 --checkpoint-seconds 60",
    "advise gpt2-small --gpu a100 --gpus 8 --mtbf 4h",
    "advise gpt2-small --gpu a100 --gpus 8 --mtbf 4",
    "advise gpt2-small --gpu a100 --gpus 8 --mtbf 10s --checkpoint-seconds 60",
    "advise gpt2-small --gpu a100 --gpus 8 --pipeline-parallel 2",
    "advise gpt2-small --gpu a100 --gpus 8 --virtual-stages 2",
    "advise gpt2-small --gpu a100 --gpus 8 --tensor-parallel 3",
    "advise gpt2-small --gpu a100 --gpus 8 --sharding zero1:3",
    "advise gpt2-small --gpu a100 --gpus 8 --price free",
    "list gpus h10",
    "list clusters dgx",
    "list traces resnet5",
    "list libraries horovd",
    "list models llama",
    "list models --gpu h100",
    "list models llama-3.2-1b --gpus 8",
    "list models llama-3.2-1b --seq 8 --dtype bf16",
    "list clusters --export mine.json",
    "report blocks.json -o report.txt",
    "report none.toml -o page.html",
    "explore resnet5",
    "explore llama-3.2-1b --cluster flat",
    "explore resnet-50@h100",
    "plan none.json",
    "plan graph.json --signature x",
    "plan graph.json --fetch none",
    "import kineto none.json -o x.json",
    "import kineto tiny.json -o x.json",
    "import kineto . -o x.json",
    "import chakra none.et -o x.json",
    "import chakra tiny.json -o x.json",
    "import sends none.csv none.csv -o x.json",
    "import sends tiny.json tiny.json -o x.json",
    "export chakra none.json -o x",
    "run",
    "run -np 2",
    "run -np 2 --hosts a:1 --hostfile b -- true",
    "run -np 2 --strategy rign -- true",
    "run -np 2 --max-np 4 -- true",
    "run -np 2 --reset-limit 4 -- true",
    "run -np 2 --no-prefix --output-dir x -- true",
    "run --elastic -- true",
    "record -o x.json",
    "record -o x.json --model resnet50 --stop-when-recorded",
    "record -o x.json --gpu h100 --model resnet50",
    "record -o x.json --dtype bf16 -- true",
    "record -o none/x.json -- true",
    "doctor",
    "doctor --env run.json",
    "doctor none.json",
    "bench",
    "bench --engine ddp-glo -np 2",
    "bench --engine all,ddp-gloo -np 2",
    "bench --read none.log",
    "bench --read tiny.json",
    "study",
    "study raysgd",
    "study published --anchor",
    "study collectives --plots figures",
    "study published --data tiny.json",
    "validate --quick --full",
    "validate --cluster flat",
    "emulate exec worker0",
    "emulate down none",
    "probe",
    "simulat tiny.json",
    "simulate tiny.json --bandwith 10Gbps",
)
"""What is refused together, and names that nobody has."""
FILES = {
    "empty": "",
    "words": "ls -l",
    "list": "[]",
    "object": "{}",
    "cut": '{"format": "paceline-%s", "version": 1, ',
    "kind": '{"format": "paceline-other", "version": 1}',
    "version": '{"format": "paceline-%s", "version": 9}',
    "field": '{"format": "paceline-%s", "version": 1, "colour": 3}',
    "nan": '{"format": "paceline-%s", "version": NaN}',
}
TRACE = {
    "format": "paceline-trace",
    "version": 1,
    "name": "t",
    "batch": 1,
    "dtype": "float32",
    "workers": [
        {
            "forward": [{"layer": "a", "duration_s": 0.001, "tensors": ["a.w"]}],
            "gradients": [{"tensor": "a.w", "ready_s": 0.002, "bytes": 400}],
            "optimizer_s": 0.001,
        }
    ],
}
CLUSTER = {"format": "paceline-cluster", "version": 1, "name": "c", "bandwidth": "10Gbps"}
FABRIC = {"kind": "leaf-spine", "nodes_per_leaf": 4, "spines": 2}
GRAPH = {
    "format": "paceline-graph",
    "version": 1,
    "nodes": [{"name": "a"}, {"name": "b", "all_reduce": {"dtype": "float32", "bytes": 400}}],
    "edges": [["a", "b"]],
    "fetches": ["b"],
}
CHANGES: dict[str, tuple[dict, tuple[tuple[str, object], ...]]] = {
    "trace": (
        TRACE,
        (
            ("name", ""),
            ("name", "a\x1bb"),
            ("batch", 0),
            ("batch", "x"),
            ("dtype", "flot32"),
            ("workers", []),
            ("workers.0.forward.0.duration_s", -1),
            ("workers.0.forward.0.duration_s", "x"),
            ("workers.0.forward.0.duration_s", 1e9),
            ("workers.0.forward.0.tensors", ["b.w"]),
            ("workers.0.forward.0.tensors", ["a.w", "a.w"]),
            ("workers.0.gradients.0.bytes", 0),
            ("workers.0.gradients.0.bytes", 401),
            ("workers.0.gradients.0.bytes", 10**16),
            ("workers.0.gradients.0.shape", [3]),
            ("workers.0.gradients.0.tensor", "b.w"),
            ("workers.0.gradients", []),
            ("workers.0.backward_s", 0.001),
            ("frozen", [{"tensor": "x", "bytes": 4}]),
            ("frozen", [{"tensor": "a.w", "bytes": 4}]),
            ("distribution", [{"tensor": "x"}]),
            ("distribution", ["a.w", "a.w"]),
            ("variation", {"backward_spread": 99}),
        ),
    ),
    "cluster": (
        CLUSTER,
        (
            ("bandwidth", "10"),
            ("bandwidth", "10GB"),
            ("bandwidth", 10),
            ("latency", "10"),
            ("latency", "2min"),
            ("gpus_per_node", 0),
            ("channel", "tpc"),
            ("efficiency", 9),
            ("racks", {"nodes_per_rack": 0}),
            ("fabric", {**FABRIC, "kind": "leaf"}),
            ("fabric", {**FABRIC, "radix": 4}),
            ("fabric", {"kind": "leaf-spine"}),
            ("fabric", {"kind": "fat-tree", "radix": 3}),
            ("fabric", {"kind": "torus"}),
            ("fabric", {"kind": "torus", "dimensions": [0]}),
            ("fabric", {**FABRIC, "oversubscription": 2, "link_bandwidth": "10Gbps"}),
            ("switch", {"memory": 3}),
            ("switch", {"radix": 1}),
            ("jitter", {"sigma": 99}),
            ("stragglers", [{"rank": 1, "factor": 2}, {"rank": 1, "factor": 2}]),
            ("degraded", [{"link": "node0", "factor": 2}]),
        ),
    ),
    "graph": (
        GRAPH,
        (
            ("nodes", [{"name": "a"}, {"name": "a"}]),
            ("nodes.1.all_reduce.bytes", 401),
            ("nodes.1.all_reduce.dtype", "flot"),
            ("edges", [["a"]]),
            ("edges", [["a", "c"]]),
            ("edges", [["a", "b"], ["b", "a"]]),
            ("fetches", ["c"]),
            ("fetches", []),
        ),
    ),
}
READ_BY = {
    "trace": "simulate FILE --workers 2 --strategy ring",
    "cluster": "simulate tiny.json --workers 2 --strategy ring --cluster FILE",
    "graph": "plan FILE",
    "device": "list models llama-3.2-1b --gpu FILE",
}
OTHERS = {
    "constants": ("simulate tiny.json --workers 4 --coordinator negotiate --coordinator-constants FILE", (
        "x", "[]", '{"cycle": 1}', '{"cycle_ms": -1}', '{"fusion_mib": 64}', '{"cycle_ms": 1, "cycle_ms": 2}',
    )),
    "placement": ("simulate tiny.json --workers 4 --strategy ps --servers 2 --placement FILE", (
        "x", "[]", '{"x": 0}', '{"fc.weight": "a"}', '{"fc.weight": 9}', "{}", '{"a": NaN}',
    )),
    "config": ("simulate --config FILE --gpu h100 --gpus 8", (
        "x", "[]", "{}", '{"model_type": "lama"}', '{"model_type": "llama"}',
        '{"model_type": "llama", "hidden_size": -1}',
    )),
    "jobs": ("simulate --jobs FILE", (
        "x", "", "nodes = 4", "[[job]]\n", '[[job]]\ntrace = "tiny.json"\n',
        '[[job]]\ntrace = "tiny.json"\nworkers = "x"\n', '[[job]]\ntrace = "tiny.json"\nworker = 2\n',
        '[[job]]\ntrace = "tiny.json"\nworkers = 2\nstrategy = "rign"\n',
        '[[job]]\ntrace = "tiny.json"\nworkers = 2\nnodes = "spred"\n',
        'nodes = 1\n[[job]]\ntrace = "tiny.json"\nworkers = 2\n',
    )),
    "chapters": ("report FILE -o page.html", (
        "x = ", "title = 3", "[[chapter]]\n", '[[chapter]]\ntrace = "tiny.json"\nexplain = 3\n',
        '[[chapter]]\ntrace = "tiny.json"\nworker = 3\n', '[[chapter]]\ntrace = "tiny.json"\ntimeline = 3\n',
    )),
    "kineto": ("import kineto FILE -o x.json", ("x", "[]", "{}", '{"traceEvents": []}')),
    "csv": ("import sends FILE FILE -o x.json", (
        "", "time_s,tensor\n", "time_s,tensor,bytes,source,destination\n",
        "time_s,tensor,bytes,source,destination\nx,a,4,w,s\n", "time_s,tensor,bytes,source,destination\n1,a,0,w,s\n",
    )),
    "rows": ("study published --data FILE", ("", "x\n", "id,system\n1\n")),
}  # fmt: skip
"""Commands and what their FILE may hold."""


def error_of(words: list[str]) -> tuple[str, str] | None:
    """Return the error of a command line and its remedy; None if it works."""
    result = cli.call(*words)
    if result.exit_code == 0:
        return None
    lines = [line for line in result.stderr.splitlines() if line.startswith(("paceline: error: ", "  try: "))]
    assert lines and lines[0].startswith("paceline: error: "), (words, result.output)
    what = lines[0].removeprefix("paceline: error: ")
    assert len(lines) == 2, f"{shlex.join(words)}\n{what}\nhas no remedy"
    return what, lines[1].removeprefix("  try: ")


def is_started(words: list[str]) -> bool:
    """Whether a command line starts processes or a server, or measures."""
    return bool(words) and words[0] in STARTS


def follow(words: list[str], line: list[str], what: str) -> str:
    """Type a line of a remedy; return what is wrong with it, or nothing."""
    if is_started(line):
        try:
            parse(line)
        except click.ClickException as error:
            return "" if error.format_message() != what else "leads to the same error"
        except Exception as error:
            return "" if str(error) != what else "leads to the same error"
        return ""
    after = error_of(line)
    return f"leads to the same error: {shlex.join(line)}" if after is not None and after[0] == what else ""


def is_too_long(text: str) -> bool:
    """Whether a sentence has too many words; what is quoted, a path or a list counts as one."""
    short = re.sub(r"'[^']*'|\S*[/.]\S+|(\S+, )+\S+ (or|and) \S+|(\S+, ){2,}\S+", "x", text)
    return any(len(sentence.split()) > MOST_WORDS for sentence in re.split(r"[.:] ", short))


def check(words: list[str]) -> None:
    """The error of a command line is short, has a remedy, and each line of that works or leads on."""
    error = error_of(words)
    if error is None:
        return
    what, remedy = error
    said = f"{shlex.join(words)}\n{what}\n  try: {remedy}"
    assert ";" not in what.replace("&&", ""), said
    assert ";" not in re.sub(r"\{.*\}", "", remedy), said
    assert not is_too_long(what), said
    assert not is_too_long(remedy.partition(" (")[0]), said
    assert not re.search(r"\{(this|[a-z_]+=)", remedy), said
    assert "None" not in remedy, said
    lines = list(typed(words, what, remedy))
    if remedy.startswith(("-", "paceline ", "drop -")):
        assert lines, f"{said}\ncannot be typed"
    for line in lines[:2]:
        assert not (wrong := follow(words, line, what)), f"{said}\n{wrong}"


@pytest.fixture(scope="module", autouse=True)
def inputs():
    with capture.folder():
        Path("graph.json").write_text(json.dumps(GRAPH))
        Path("train.py").write_text("print()\n")
        yield


LONG = {"bench", "report blocks.json -o report.txt", "simulate allreduce", "advise resnet-50 --gpu a100 --gpus 8"}
LONG |= {"report-suffix", "model-no-gpu", "plot-suffix", "memory", "intra_bandwidth"}
"""Cases whose remedy, typed, takes a second or more."""


def each(cases):
    """Return the cases as parameters; one in three that is not long is of the everyday tier, the others are slow."""
    slow = [place % 3 > 0 or case in LONG for place, case in enumerate(cases)]
    return [
        pytest.param(case, marks=[pytest.mark.slow] * late, id=case) for case, late in zip(cases, slow, strict=True)
    ]


@pytest.mark.parametrize("name", each(ENTRIES))
def test_golden_errors(name):
    check(shlex.split(ENTRIES[name]))


@pytest.mark.parametrize("words", each(COMBINATIONS))
def test_what_is_refused_together(words):
    check(shlex.split(words))


def flags_of(setting: Setting) -> str:
    return setting.flag.split("/", maxsplit=1)[0]


def settings() -> Iterator[tuple[str, str]]:
    """Return each setting with each command that has it."""
    for name, setting in SETTINGS.items():
        for place in setting.uses:
            if place in BASES and setting.flag and not setting.kind_of(place).is_switch:
                yield name, place


def check_values(name: str, place: str, values: tuple[str, ...]) -> None:
    flag = flags_of(SETTINGS[name])
    for value in values:
        words = [*place.split(), *shlex.split(BASES[place]), f"{flag}={value}", *shlex.split(AFTER.get(place, ""))]
        kind = SETTINGS[name].kind_of(place)
        try:
            kind.check(value)
        except Exception:
            check(words)


@pytest.mark.parametrize("name", each(sorted({name for name, _ in settings()})))
def test_values_of_settings(name):
    places = [place for it, place in settings() if it == name]
    check_values(name, places[0], WRONG[1:2])


@pytest.mark.slow
@pytest.mark.parametrize(("name", "place"), list(settings()))
def test_all_values_of_settings_everywhere(name, place):
    check_values(name, place, WRONG)


@pytest.mark.parametrize("kind", READ_BY)
@pytest.mark.parametrize("fault", FILES)
def test_files(kind, fault):
    path = Path(f"{kind}-{fault}.json")
    text = FILES[fault]
    path.write_text(text % kind if "%s" in text else text)
    check([str(path) if word == "FILE" else word for word in READ_BY[kind].split()])


def changed(document: dict, place: str, value: object) -> dict:
    """Return a copy of a document with one value changed."""
    made = json.loads(json.dumps(document))
    *path, last = place.split(".")
    at = made
    for step in path:
        at = at[int(step)] if step.isdigit() else at[step]
    at[last] = value
    return made


@pytest.mark.parametrize(
    ("kind", "number"), [(kind, number) for kind, (_, faults) in CHANGES.items() for number in range(len(faults))]
)
def test_values_in_files(kind, number):
    document, faults = CHANGES[kind]
    path = Path(f"{kind}-value-{number}.json")
    path.write_text(json.dumps(changed(document, *faults[number])))
    words = [str(path) if word == "FILE" else word for word in READ_BY[kind].split()]
    assert error_of(words) is not None, faults[number]
    check(words)


@pytest.mark.parametrize(
    ("kind", "number"), [(kind, number) for kind, (_, texts) in OTHERS.items() for number in range(len(texts))]
)
def test_other_files(kind, number):
    words, texts = OTHERS[kind]
    path = Path(f"{kind}-{number}.{'toml' if kind in ('jobs', 'chapters') else 'json'}")
    path.write_text(texts[number])
    check([str(path) if word == "FILE" else word for word in words.split()])


def test_every_command_is_among_the_bases():
    assert {place for one in SETTINGS.values() for place in one.uses if place in ALL} <= {*BASES}
