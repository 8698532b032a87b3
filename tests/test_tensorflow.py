"""The fronts for TensorFlow, Keras and JAX, on real ranks (`make test-all` installs the frameworks)."""

import importlib.util
import json
import re
import sys
from pathlib import Path

import cli
import pytest
from job_workers.launch import clean
from tensorflow_workers.launch import run

EXAMPLES = Path(__file__).parent.parent / "examples"


def needs(framework):
    result = importlib.util.find_spec(framework) is not None
    return pytest.mark.skipif(not result, reason=f"{framework} is not installed; make test-all installs it")


def on_ranks(framework):
    def mark(test):
        return pytest.mark.process(pytest.mark.slow(pytest.mark.timeout(900)(needs(framework)(test))))

    return mark


def test_what_fronts_share_imports_no_framework():
    code = "import sys, paceline.hvd.lifecycle, paceline.hvd.elastic.runner; print(sorted(sys.modules))"
    done = cli.ended(sys.executable, "-c", code, check=True, env=clean())
    assert not {"torch", "tensorflow", "keras", "jax", "numpy"} & set(eval(done.stdout))


def test_without_the_framework_an_import_says_what_to_install():
    for module, framework in (("tensorflow", "tensorflow"), ("keras", "keras"), ("jax", "jax")):
        code = f"import sys; sys.modules[{framework!r}] = None; import paceline.{module}"
        done = cli.ended(sys.executable, "-c", code, env=clean())
        assert f"ImportError: paceline.{module} needs" in done.stderr, done.stderr


@pytest.mark.parametrize("ranks", [2, 3])
@on_ranks("tensorflow")
def test_operations_eager_and_in_graphs(ranks):
    said = run(ranks, "operations")
    assert all(f"joining on rank {rank} of {ranks}" in said for rank in range(ranks))


@on_ranks("tensorflow")
def test_ranks_train_like_one_process_with_the_whole_batch(tmp_path):
    said = run(2, "training", tmp_path / "model.keras")
    assert all(f"refused on rank {rank}" in said for rank in range(2))


@on_ranks("tensorflow")
def test_a_dead_rank_is_an_error_of_the_graph():
    said = run(2, "dying", code=1)
    ((seconds, match),) = re.findall(r"step 3 after (\d+) s: (.*)", said)
    assert "rank 1" in match and int(seconds) < 30


@on_ranks("tensorflow")
def test_an_elastic_job_goes_on_with_the_traced_graph(tmp_path):
    said = run(2, "elastic", tmp_path / "killed", options=("--elastic",))
    ends = re.findall(r"done with 2 ranks, ([\d.]+)", said)
    assert len(ends) == 2 and len(set(ends)) == 1
    undisturbed = run(2, "elastic", EXAMPLES / "README.md", options=("--elastic",))
    assert set(re.findall(r"done with 2 ranks, ([\d.]+)", undisturbed)) == set(ends)


@on_ranks("tensorflow")
def test_the_examples_learn(tmp_path):
    said = run(2, EXAMPLES / "tensorflow2_mnist.py", options=("--timeline", tmp_path / "run.json"))
    assert re.search(r"(9\d|100)% of 500 training pictures", said)
    doctor = [sys.executable, "-m", "paceline", "doctor", str(tmp_path / "run.json"), "--json"]
    answer = json.loads(cli.ended(*doctor, check=True, env=clean()).stdout)
    # Steps of both ranks, whose waits are exposed communication.
    assert [rank["rank"] for rank in answer["ranks"]] == [0, 1]
    assert answer["steps"] >= 50
    said = run(2, EXAMPLES / "keras_mnist.py")
    assert re.search(r"Test accuracy: (9\d|100)%", said)
    assert "Epoch 2: finished gradual learning rate warmup to 0.1." in said


@on_ranks("tensorflow")
def test_gradients_go_through_parameter_servers():
    said = run(2, EXAMPLES / "tensorflow2_mnist.py", options=("--strategy", "ps", "--servers", "1"))
    assert re.search(r"(9\d|100)% of 500 training pictures", said)


@on_ranks("jax")
def test_gradients_of_jax_are_those_of_the_whole_batch():
    assert "from those of one process with the whole batch" in run(2, EXAMPLES / "jax_grad.py")


@on_ranks("tensorflow")
def test_a_step_is_planned_from_its_own_graph_and_runs_by_the_plan(tmp_path):
    plan = tmp_path / "plan.json"
    run(2, "planned", plan)
    said = run(2, "planned", plan, "run", options=("--coordinator", "graph", "--coordinator-plan", plan))
    # The first two steps are negotiated, and compared with the plan. Nothing is fused in it.
    assert said.count("planned 40 of 12 steps") == 2, said


@on_ranks("tensorflow")
def test_a_plan_of_another_step_is_refused(tmp_path):
    plan = tmp_path / "plan.json"
    run(2, "planned", plan)
    document = json.loads(plan.read_text())
    small = next(tensor for tensor in document["tensors"] if tensor["bytes"] == 120)
    small["bytes"] = 124
    plan.write_text(json.dumps(document))
    said = run(2, "planned", plan, "run", options=("--coordinator-plan", plan), code=1)
    assert f"--coordinator-plan {plan}: is no plan of this step: sizes differ: '{small['name']}' has 120 bytes" in said
    small["name"] = "another"
    plan.write_text(json.dumps(document))
    said = run(2, "planned", plan, "run", options=("--coordinator-plan", plan), code=1)
    assert "it lacks 'DistributedGradientTape." in said and "try: paceline plan" in said


@on_ranks("tensorflow")
@pytest.mark.parametrize("way", ["clusters", "loss"])
def test_steps_with_xla_train_as_without(way):
    env = {"TF_XLA_FLAGS": "--tf_xla_cpu_global_jit", "TF_CPP_MIN_LOG_LEVEL": "0"}
    said = run(2, "xla", way, env=env)
    assert all(f"{way}: same weights on rank {rank}" in said for rank in range(2))
    # XLA has compiled something, and nothing in the steps without it.
    before, after = said.split("plain steps done", 1)
    assert "Compiled cluster using XLA" in after and "Compiled cluster using XLA" not in before, said[-3000:]


@on_ranks("tensorflow")
@pytest.mark.parametrize("front", ["tensorflow", "keras"])
def test_init_refuses_servers_that_would_run_the_optimizer(front):
    env = {**clean(), "PACELINE_STRATEGY": "async-ps"}
    done = cli.ended(sys.executable, "-c", f"import paceline.{front} as hvd; hvd.init()", env=env)
    assert done.returncode != 0
    assert "torch's optimizers on servers, and TensorFlow has none" in done.stderr
    assert "strategy='ps'" in done.stderr
    assert "paceline.torch.DistributedOptimizer" not in done.stderr
