"""`paceline record -- python train.py`: a script that knows nothing of it, in a process of its own.

Most are slow, since importing torch and making the first optimizer takes a new process seconds.
"""

import json
import sys
import textwrap

import pytest
from click.testing import CliRunner
from paceline.cli.record import record
from test_record_format import check_trace, layers

pytest.importorskip("torch")

SCRIPT = """
    import sys
    import torch
    from torch import nn

    torch.set_num_threads(1)

    class Net(nn.Module):
        def __init__(self):
            super().__init__()
            self.body = nn.Sequential(nn.Linear(8, 32), nn.ReLU())
            self.head = nn.Linear(32, 4)

        def forward(self, x):
            return self.head(self.body(x))

    generator, net = nn.Linear(8, 8), Net()
    adam, sgd = torch.optim.Adam(net.parameters()), torch.optim.SGD(generator.parameters(), lr=0.1)
    done = 0
    try:
        for _ in range(int(sys.argv[1])):
            x = generator(torch.randn(6, 8))
            net(x.detach()).sum().backward()
            adam.step()
            x.sum().backward()
            sgd.step()
            done += 1
    finally:
        print("steps", done)
    sys.exit(int(sys.argv[2]))
"""


@pytest.fixture
def script(tmp_path, capfd):
    """Run the script, or another text, under `paceline record`: (exit code, trace or None, the output of both)."""

    def run(*arguments, options=(), text=SCRIPT, prefix=(sys.executable,)):
        file = tmp_path / "train.py"
        file.write_text(textwrap.dedent(text))
        path = tmp_path / "T.json"
        command = ["-o", path, *options, "--", *prefix, file, *arguments]
        result = CliRunner().invoke(record, [str(part) for part in command])
        out, err = capfd.readouterr()
        trace = json.loads(path.read_text()) if path.exists() else None
        return result.exit_code, trace, result.output + out + err

    return run


@pytest.mark.process
def test_it_records_the_largest_module_and_lets_the_script_go_on(script):
    code, trace, said = script(40, 3)
    assert code == 3, said  # the script's own
    worker = check_trace(trace)
    assert layers(worker) == {
        "body.0": ["body.0.weight", "body.0.bias"],
        "body.1": [],
        "head": ["head.weight", "head.bias"],
    }
    assert (trace["name"], trace["batch"]) == ("Net", 6)
    assert "median of 10 steps after 3 of warm-up; recording made the step" in trace["provenance"]
    assert "recorded 10 steps of Net (420 parameters) with Adam, batch 6, to" in said
    assert "steps 40" in said


@pytest.mark.slow
def test_the_exit_code_is_passed_on_and_a_short_script_gives_what_there_was(script):
    code, trace, said = script(5, 3, options=["--name", "short", "--batch", "12"])
    assert code == 3
    check_trace(trace)
    assert "ended early" in said
    assert (trace["name"], trace["batch"]) == ("short", 12)


@pytest.mark.slow
def test_too_short_a_script(script):
    code, trace, said = script(2, 0)
    assert (code, trace) == (1, None)
    assert "ran 3 optimizer steps" in said  # two of Adam, one of the other before the second


@pytest.mark.slow
def test_it_can_end_the_script(script):
    code, trace, said = script(10**6, 9, options=["--stop-when-recorded", "--steps", "2", "--json"])
    assert code == 0
    check_trace(trace)
    steps = next(int(line.split()[1]) for line in said.splitlines() if line.startswith("steps "))
    assert steps < 20


@pytest.mark.slow
def test_a_closure_is_left_alone_and_told(script):
    text = """
        import torch
        model = torch.nn.Linear(2, 2)
        optimizer = torch.optim.LBFGS(model.parameters())
        def closure():
            loss = model(torch.ones(1, 2)).square().sum()
            loss.backward()
            return loss
        for _ in range(5):
            optimizer.step(closure)
        print("all done")
    """
    code, trace, said = script(text=text)
    assert (code, trace) == (1, None)
    assert "closure" in said
    assert "all done" in said


@pytest.mark.slow
def test_another_sitecustomize_still_runs_and_rank_1_does_not_record(script, tmp_path, monkeypatch):
    (tmp_path / "sitecustomize.py").write_text("print('the other sitecustomize')")
    monkeypatch.setenv("PYTHONPATH", str(tmp_path))
    monkeypatch.setenv("RANK", "1")
    code, trace, said = script(10, 0)
    assert (code, trace) == (1, None)
    assert "the other sitecustomize" in said
    assert "steps 10" in said


def test_a_script_that_does_not_train(script):
    code, trace, said = script(text="print('no torch here')")
    assert (code, trace) == (1, None)
    assert "no torch here" in said
    assert "0 steps" in said


def test_a_script_that_fails_before_it_trains(script, monkeypatch):
    monkeypatch.delenv("RANK", raising=False)
    code, trace, said = script(text="raise SystemExit(3)")
    assert (code, trace) == (3, None)
    assert "no trace: the script failed with exit code 3 before its first optimizer step" in said
    assert "  try: paceline run -np 1 --record" in said


@pytest.mark.slow
def test_torchrun_records_rank_0_alone(script):
    prefix = [sys.executable, "-m", "torch.distributed.run", "--standalone", "--nproc-per-node", "2"]
    code, trace, said = script(30, 0, prefix=prefix)
    assert code == 0, said
    check_trace(trace)
    assert said.count("paceline: recorded ") == 1
