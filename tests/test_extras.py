"""An installation without extras imports none of their packages, and a command that needs an extra names it."""

import sys

import cli
import pytest

ASIDE = ("studies", "bench", "plan", "torch", "ray", "emulate", "validate", "replay", "report", "explore", "probe")
RUN = "import sys\nfrom paceline.cli.main import main\ntry: main({words!r})\nexcept SystemExit: pass\n"


@pytest.mark.parametrize(
    "code",
    [
        "import sys, paceline; paceline.load_trace; paceline.simulate; paceline.all_strategies",
        RUN.format(words=["--help"]),
        RUN.format(words=["simulate", "resnet-50", "--workers", "4", "--json"]),
        RUN.format(words=["strategies"]),
    ],
)
def test_studies_bench_and_readers_are_not_imported_by_default(code):
    code += f"\nprint([name for name in {ASIDE} if 'paceline.' + name in sys.modules], file=sys.stderr)"
    done = cli.ended(sys.executable, "-c", code, check=True)
    assert done.stderr.strip().splitlines()[-1] == "[]"


@pytest.mark.parametrize(
    ("words", "missing", "extra"),
    [
        (["simulate", "resnet-18", "--workers", "2", "--plot", "a.png"], "matplotlib", "plot"),
        (["report", "spec.toml", "-o", "a.html"], "matplotlib", "plot"),
        (["study", "ddl-nccl", "--plots", "figures"], "matplotlib", "plot"),
        (["bench"], "torch", "bench"),
        (["bench"], "torchvision", "bench"),
        (["record", "--model", "resnet18", "-o", "a.json"], "torch", "torch"),
        (["explore", "resnet-18"], "plotly", "explore"),
        (["explore", "resnet-18"], "uvicorn", "explore"),
        (["emulate", "up", "--workers", "2", "--bandwidth", "1Gbps"], "pyroute2", "emulate"),
        (["export-chakra", "resnet-18", "--workers", "2", "-o", "job"], "google.protobuf", "chakra"),
        (["import", "tensorflow", "a.xplane.pb", "--batch", "1", "-o", "a.json"], "google.protobuf", "chakra"),
        (["plan", "graph.pb"], "tensorflow", "tensorflow"),
        (["simulate", "resnet-18", "--workers", "2", "--executor", "ray"], "ray", "ray"),
    ],
)
def test_a_missing_extra_is_named(words, missing, extra, monkeypatch, tmp_path):
    monkeypatch.chdir(tmp_path)
    (tmp_path / "graph.pb").write_bytes(b"\x0a\x00")
    (tmp_path / "spec.toml").write_text("title = 'a'\n[[chapter]]\ntitle = 'b'\ntrace = 'resnet-18'\n")
    monkeypatch.setitem(sys.modules, missing, None)
    done = cli.call(*words)
    assert f"pip install '.[{extra}]'" in done.output + str(done.exception), done.output
    assert done.exit_code in {1, 2, 77}
