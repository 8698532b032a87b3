"""paceline.ray: what needs no cluster, and with a cluster of two nodes on this machine the rest."""

import functools
import importlib.util
import json
import os
import re
import signal
import sys
import threading
import time
from pathlib import Path

import cli
import numpy as np
import paceline
import pytest
from hypothesis import given
from hypothesis import strategies as st
from paceline.ray import ElasticRayExecutor, MissingRayError, RayExecutor, RaySettings
from paceline.ray.environment import World, by_node, checked_settings
from paceline.ray.layout import Layout
from paceline.ray.ps.replica import cuts
from paceline.ray.worker import Place

pytest.importorskip("torch")
import torch
from paceline.async_ps.clock import Clock
from ray_workers import elastic, work
from replay_async import replay

HAS_RAY = importlib.util.find_spec("ray") is not None
needs_ray = pytest.mark.skipif(not HAS_RAY, reason="Ray is not installed: pip install '.[ray]'")
SWEEP = ("simulate", "resnet-50", "--workers", "4,16", "--bandwidth", "1Gbps,10Gbps", "--json")


# Without a cluster.


def test_importing_paceline_ray_imports_no_ray():
    code = (
        "import sys, paceline, paceline.ray, paceline.ray.ps; print([m for m in ('ray', 'torch') if m in sys.modules])"
    )
    said = cli.ended(sys.executable, "-c", code, timeout=60, check=True)
    assert said.stdout.strip() == "[]"


def test_without_ray_the_install_line_is_said(monkeypatch):
    monkeypatch.setitem(sys.modules, "ray", None)
    with pytest.raises(MissingRayError) as missing:
        RayExecutor(num_workers=2).start()
    assert missing.value.remedy.startswith("pip install '.[ray]'")
    said = cli.call(*SWEEP, "--executor", "ray")
    assert (said.exit_code, said.stdout) == (77, "")
    assert "pip install '.[ray]'" in said.stderr


@pytest.mark.parametrize(
    ("make", "said"),
    [
        (RayExecutor, "num_workers, num_hosts: must be one of them"),
        (lambda: RayExecutor(num_workers=2, num_hosts=1), "num_workers, num_hosts: must be one of them"),
        (lambda: RayExecutor(num_workers=0), "num_workers: must be a number from 1 to 4096, not 0"),
        (lambda: RayExecutor(num_workers=2.5), "num_workers: must be a number from 1 to 4096, not 2.5"),
        (lambda: RayExecutor(num_workers=2, num_workers_per_host=2), "num_workers_per_host: needs num_hosts"),
        (lambda: RayExecutor(num_workers=2, gpus_per_worker=1), "gpus_per_worker: needs use_gpu=True"),
        (
            lambda: RayExecutor(num_workers=2, cpus_per_worker=0),
            "cpus_per_worker: must be a number of CPUs above 0, in steps of 0.0001, not 0",
        ),
        (lambda: RayExecutor(num_workers=10**9), "num_workers: must be a number from 1 to 4096, not 1000000000"),
        (
            lambda: RayExecutor(num_workers=2, cpus_per_worker=float("inf")),
            "cpus_per_worker: must be a number of CPUs above 0, in steps of 0.0001, not inf",
        ),
        (
            lambda: RayExecutor(num_workers=2, cpus_per_worker=1e-9),
            "cpus_per_worker: must be a number of CPUs above 0, in steps of 0.0001, not 1e-09",
        ),
        (lambda: RayExecutor(300, num_workers=2), "settings: 300 is not a RaySettings"),
        (lambda: RaySettings(nics=5), "nics: 5 is not a list"),
        (lambda: RayExecutor(num_workers=2, strategy="rings"), "strategy: "),
        (lambda: RayExecutor(num_workers=2, strategy="ring", servers=2), "servers: has no effect on ring"),
        (lambda: RayExecutor(num_workers=2, stratgy="ring"), "stratgy"),
        (lambda: RayExecutor(num_workers=2, rendezvous="a:1"), "rendezvous: has no effect under Ray"),
        (lambda: RayExecutor.create_settings(ssh_str="key"), "ssh_str: has no effect"),
        (
            lambda: RayExecutor.create_settings(timeout_s=-1),
            "timeout_s: must be a number of seconds above 0 and up to 2592000, not '-1'",
        ),
        (lambda: RaySettings(nics=["eth0", "eth1"]), "must be one network that all nodes have, not ['eth0', 'eth1']"),
        (lambda: RayExecutor(num_workers=2).run(print), "try: start()"),
        (lambda: ElasticRayExecutor(min_workers=0), "min_workers: must be a number from 1 to 4096, not 0"),
        (
            lambda: ElasticRayExecutor(min_workers=3, max_workers=2),
            "max_workers: must be at least min_workers, 3, not 2",
        ),
        (lambda: ElasticRayExecutor(reset_limit=-1), "reset_limit: must be at least 0, not -1"),
        (lambda: ElasticRayExecutor(timeline="run.json"), "timeline: "),
        (lambda: ElasticRayExecutor(env_vars={"RANK": "1"}), "env_vars: RANK: the executor sets it itself"),
        (lambda: ElasticRayExecutor().run(print), "try: start()"),
    ],
)
def test_what_cannot_be_is_refused(make, said):
    with pytest.raises(paceline.InvalidArgumentError, match=re.escape(said)):
        make()


@given(elements=st.integers(0, 10_000), shards=st.integers(1, 40))
def test_shards_cover_a_gradient_once_and_are_as_large_as_each_other(elements, shards):
    parts = [range(elements)[cut] for cut in cuts(elements, shards)]
    assert [index for part in parts for index in part] == list(range(elements))
    assert len(parts) == shards
    assert max(map(len, parts)) - min(map(len, parts)) <= 1


def place(node, gpus=()):
    return Place(actor="", node=node, address="10.0.0.1", host=node, pid=1, machine=node, gpus=gpus)


def world(nodes, gpus=None, **settings):
    variables, _ = checked_settings(settings)
    return World(
        workers=[place(node, (gpus or {}).get(number, ())) for number, node in enumerate(nodes)],
        servers=[place("a")] * (2 if settings else 0),
        interfaces=dict.fromkeys(range(9), "10.0.0.1"),
        address="10.0.0.1",
        port=4000,
        master_port=4001,
        settings=variables,
        secret="s" * 16,
    )


@given(st.lists(st.sampled_from("abc"), min_size=1, max_size=9))
def test_ranks_of_a_node_are_neighbors_and_count_from_zero(nodes):
    order = by_node([place(node) for node in nodes])
    assert sorted(order) == list(range(len(nodes)))
    there = world([nodes[number] for number in order])
    values = [there.of_rank(rank) for rank in range(len(nodes))]
    assert [int(each["RANK"]) for each in values] == list(range(len(nodes)))
    for node in set(nodes):
        local = [
            int(each["LOCAL_RANK"])
            for each, number in zip(values, order, strict=True)
            if nodes[number] == node and int(each["LOCAL_WORLD_SIZE"]) == nodes.count(node)
        ]
        assert local == list(range(nodes.count(node)))
    groups = [int(each["GROUP_RANK"]) for each in values]
    assert groups == sorted(groups)


def test_the_variables_of_ranks_and_servers(monkeypatch):
    monkeypatch.setenv("PACELINE_TIMEOUT", "7")
    monkeypatch.setenv("RANK", "5")
    there = world("aab", strategy="ps", servers=2, single_copy=False, start_timeout_s=12.0)
    result = there.of_rank(1)
    assert (result["PACELINE_TIMEOUT"], result["PACELINE_START_TIMEOUT"], result["PACELINE_SINGLE_COPY"]) == (
        "7",
        "12",
        "0",
    )
    assert (result["RANK"], result["WORLD_SIZE"], result["PACELINE_RUN_SERVERS"]) == ("1", "3", "2")
    assert result["PACELINE_RENDEZVOUS"] == "10.0.0.1:4000"
    server = there.of_server(1)
    assert server["PACELINE_RUN_SERVER"] == "1"
    assert "RANK" not in server
    assert there.secret not in repr(there)


def test_workers_of_a_node_see_all_of_its_gpus():
    there = world("aab", gpus={0: ("1",), 1: ("0",), 2: ("0",)})
    assert [there.of_rank(rank)["CUDA_VISIBLE_DEVICES"] for rank in range(3)] == ["1,0", "1,0", "0"]


def test_room_that_workers_need():
    room = Layout(num_hosts=2, num_workers_per_host=3, cpus_per_worker=2, use_gpu=True).room
    assert (list(room.bundles), room.strategy) == ([{"CPU": 6.0, "GPU": 3.0}] * 2, "STRICT_SPREAD")
    assert Layout(num_workers=3).room.total == {"CPU": 3.0}


# With one.


@pytest.fixture(scope="module")
def nodes():
    """A cluster of two nodes with two CPUs each, the second one with two devices called GPU; this process uses it."""
    ray = pytest.importorskip("ray", reason="Ray is not installed: pip install '.[ray]'")
    from ray.cluster_utils import Cluster

    os.environ |= {"RAY_USAGE_STATS_ENABLED": "0", "RAY_worker_niceness": "0"}
    node = {"object_store_memory": 150_000_000}
    cluster = Cluster(initialize_head=True, head_node_args={**node, "num_cpus": 2, "include_dashboard": False})
    cluster.add_node(**node, num_cpus=2, num_gpus=2)
    cluster.wait_for_nodes()
    # Ray lets workers import what stands beside the driver's script, which is pytest here.
    tests = {"env_vars": {"PYTHONPATH": str(Path(__file__).parent)}}
    ray.init(address=cluster.address, runtime_env=tests, logging_level="ERROR", log_to_driver=False)
    yield cluster
    ray.shutdown()
    cluster.shutdown()


def killed_when(path, name, number):
    """Kill a process that has written its id."""
    file = path / name
    end = time.monotonic() + 60
    while not (file.exists() and file.read_text()):
        assert time.monotonic() < end
        time.sleep(0.05)
    os.kill(int(file.read_text()), number)


@needs_ray
@pytest.mark.slow
class TestExecutor:
    """Ranks as actors."""

    def test_ranks_on_two_nodes(self, nodes):
        with RayExecutor(num_workers=4) as executor:
            result = executor.run(work.total, args=[2.0])
            again = executor.run(work.total, kwargs={"scale": 3.0})
            assert executor.execute(lambda one: one) == [None] * 4
        assert [rank for rank, _, _, _ in result] == [0, 1, 2, 3]
        assert {(size, value) for _, size, value, _ in result} == {(4, 20.0)}
        assert {value for _, _, value, _ in again} == {30.0}
        assert [each["LOCAL_RANK"] for *_, each in result] == ["0", "1", "0", "1"]
        assert [each["GROUP_RANK"] for *_, each in result] == ["0", "0", "1", "1"]

    def test_a_timeline_that_is_not_made_leaves_the_old_one(self, nodes, tmp_path):
        path, old = tmp_path / "run.json", '[\n{"ph": "i"}\n]\n'
        path.write_text(old)
        with RayExecutor(num_workers=2, timeline=str(path)) as executor:
            assert executor.run(str, args=[1]) == ["1", "1"]
        assert path.read_text() == old
        with RayExecutor(num_workers=2, timeline=str(path)) as executor:
            executor.run(work.total, args=[2.0])
        assert len(json.loads(path.read_text())["traceEvents"]) > 2
        assert [one.name for one in tmp_path.iterdir()] == ["run.json"]

    def test_an_executable_in_every_actor(self, nodes):
        executor = RayExecutor(num_hosts=2, num_workers_per_host=1)
        executor.start(executable_cls=list, executable_args=["ab"], extra_env_vars={"MINE": "5"})
        with executor:
            assert executor.execute("".join) == ["ab", "ab"]
            assert executor.execute_single(len) == 2
            assert executor.run(os.getenv, ["MINE"]) == ["5", "5"]
            assert len({each.node for each in executor.world.workers}) == 2

    def test_devices_of_the_node(self, nodes):
        with RayExecutor(num_workers=2, use_gpu=True) as executor:
            result = executor.run(work.total, [1.0])
        assert {each["CUDA_VISIBLE_DEVICES"] for *_, each in result} <= {"0,1", "1,0"}

    def test_everything_is_given_back(self, nodes):
        import ray

        with RayExecutor(num_workers=2, strategy="ps", servers=2) as executor:
            pids = executor.run(work.pid)
            pids += [each.pid for each in executor.world.servers]
        end = time.monotonic() + 20
        while any(Path(f"/proc/{each}").exists() for each in pids) or ray.available_resources().get("CPU") != 4:
            assert time.monotonic() < end, (pids, ray.available_resources())
            time.sleep(0.1)

    def test_no_room(self, nodes):
        settings = RaySettings(placement_group_timeout_s=1)
        with pytest.raises(paceline.JobError, match=r"no room for 9 workers within 1 s: they need 9 CPU .* are 4 CPU"):
            RayExecutor(settings, num_workers=9).start()
        with pytest.raises(paceline.JobError, match="each on a different node, of 2"):
            RayExecutor(settings, num_hosts=3).start()

    def test_a_rank_that_raises_is_named_and_the_executor_goes_on(self, nodes):
        with RayExecutor(num_workers=3) as executor:
            with pytest.raises(
                paceline.JobError, match=r"^rank 1 \(host .*, pid \d+\) failed: LookupError: no pictures"
            ):
                executor.run(work.raises, [1])
            lock = threading.Lock()
            with pytest.raises(
                paceline.InvalidArgumentError, match=r"sent to the ranks: cannot pickle '_thread\.lock'"
            ):
                executor.run(lambda: lock)
            with pytest.raises(paceline.JobError, match=r"called sys\.exit\(3\); return instead"):
                executor.run(lambda: sys.exit(3))
            assert {value for _, _, value, _ in executor.run(work.total, [1.0])} == {6.0}

    @pytest.mark.parametrize("how", ["SIGKILL", "SIGSTOP"])
    def test_a_rank_that_ends_is_named(self, nodes, tmp_path, how):
        settings = RaySettings(grace_s=2)
        with RayExecutor(settings, num_workers=3, timeout_s=4.0) as executor:
            pid = executor.world.workers[1].pid
            started = time.monotonic()
            said = "died: its process was killed" if how == "SIGKILL" else "silent: stopped, or its host"
            with pytest.raises(paceline.JobError, match=rf"rank 1 \(host .*, pid {pid}\).*{said}"):
                executor.run(work.ends, [1, how, tmp_path])
            assert time.monotonic() - started < 60
            with pytest.raises(paceline.JobError, match=r"(?s)cannot continue: .*rank 1 .*try: shutdown"):
                executor.run(work.pid)
        assert not Path(f"/proc/{pid}").exists() or how == "SIGSTOP"

    def test_a_server_that_dies_is_named(self, nodes, tmp_path):
        with RayExecutor(num_workers=2, strategy="ps", servers=2) as executor:
            references = executor.run_remote(work.ends, [9, "SIGKILL", tmp_path])
            killed_when(tmp_path, "rank-0", 0)
            os.kill(executor.world.servers[1].pid, signal.SIGKILL)
            # Ray tells of it, or a rank that has seen its connection break.
            with pytest.raises(
                paceline.JobError, match=r"server 1 \(.*\) died(: its process was killed| \(connection )"
            ):
                executor._gathered(references)

    def test_a_raylet_that_dies_is_named(self, nodes, tmp_path):
        extra = nodes.add_node(num_cpus=2, resources={"extra": 1}, object_store_memory=150_000_000)
        nodes.wait_for_nodes()
        try:
            with RayExecutor(RaySettings(grace_s=3), num_hosts=3) as executor:
                references = executor.run_remote(work.ends, [9, "SIGKILL", tmp_path])
                killed_when(tmp_path, "rank-0", 0)
                lost = next(rank for rank, each in enumerate(executor.world.workers) if each.node == extra.node_id)
                nodes.remove_node(extra, allow_graceful=False)
                extra = None
                with pytest.raises(paceline.JobError, match=rf"^rank {lost} \(host .*\) died[: ]"):
                    executor._gathered(references)
        finally:
            if extra is not None:
                nodes.remove_node(extra)


@needs_ray
@pytest.mark.slow
class TestTraining:
    """Every engine on Ray ends with the same weights."""

    STEPS = 6

    def compare(self, weights, workers):
        alone = work.train_alone(workers, self.STEPS)
        assert weights.keys() == alone.keys()
        for name, weight in weights.items():
            np.testing.assert_allclose(weight, alone[name], rtol=1e-4, atol=1e-6)

    @pytest.mark.parametrize("job", [{"strategy": "ring"}, {"strategy": "ps", "servers": 1, "transport": "tcp"}])
    def test_the_runtime(self, nodes, job):
        with RayExecutor(num_workers=3, **job) as executor:
            everywhere = executor.run(work.train, [self.STEPS])
        for weights in everywhere:
            assert all((weights[name] == everywhere[0][name]).all() for name in weights)
        self.compare(everywhere[0], 3)

    @pytest.mark.parametrize(
        ("question", "shape"),
        [
            ({"workers": 4}, (4, 2, 2)),
            ({"workers": 3, "servers": 3}, (3, 2, 3)),
            ({"hosts": 2}, (2, 2, 2)),
            ({"workers": 1}, (1, 1, 1)),
            ({"workers": 4, "inside": "ring"}, (4, 2, 2)),
            ({"workers": 3, "servers": 3, "inside": "ring"}, (3, 2, 3)),
            ({"workers": 2, "servers": 2, "inside": "ring"}, (2, 1, 2)),
            ({"workers": 1, "inside": "ring"}, (1, 1, 1)),
        ],
    )
    def test_the_object_store(self, nodes, question, shape):
        from paceline.ray.ps import train

        done = []
        trained = train(
            work.model,
            work.optimizer,
            work.batch,
            steps=self.STEPS,
            progress=lambda *ended: done.append(ended),
            **question,
        )
        assert (trained.workers, trained.nodes, trained.servers) == shape
        assert trained.inside == question.get("inside", "root")
        assert done == [(number, self.STEPS) for number in range(1, self.STEPS + 1)]
        assert [len(steps) for steps in trained.steps] == [self.STEPS] * trained.workers
        for step in (step for steps in trained.steps for step in steps):
            parts = step.input_s + step.forward_s + step.backward_s + step.exchange_s + step.optimizer_s
            assert parts == pytest.approx(step.step_s)
            assert 0 < step.forward_s < 60
        self.compare(trained.weights, trained.workers)

    @pytest.mark.parametrize(
        ("servers", "staleness", "make"),
        [(1, None, work.optimizer), (2, 1, functools.partial(torch.optim.Adam, lr=0.01, weight_decay=0.1))],
    )
    def test_asynchronous_training_is_a_replay_of_its_order(self, nodes, servers, staleness, make):
        from paceline.ray.ps import train

        how = {"asynchronous": True, "staleness": staleness, "record_order": True}
        done = []
        trained = train(
            work.model,
            make,
            work.batch,
            steps=self.STEPS,
            workers=3,
            servers=servers,
            progress=lambda *ended: done.append(ended),
            **how,
        )

        def model():
            torch.manual_seed(0)
            return work.model()

        def loss(net, rank, step):
            inputs, targets = work.batch(rank, step)
            return torch.nn.functional.cross_entropy(net(inputs), targets)

        order = [[entry._asdict() for entry in server] for server in trained.applied]
        want = replay(order, model, loss, lambda net: (make(net.parameters()), None))
        assert trained.weights.keys() == want.keys()
        for name, weight in trained.weights.items():
            np.testing.assert_allclose(weight, want[name].numpy(), rtol=1e-5, atol=1e-7)
        assert trained.staleness.gradients == 3 * self.STEPS * len(want)
        if staleness is not None:
            assert trained.staleness.most <= Clock.most_stale(3, staleness)
        assert done == [(number, self.STEPS) for number in range(1, self.STEPS + 1)]
        assert [len(steps) for steps in trained.steps] == [self.STEPS] * 3

    @pytest.mark.parametrize("staleness", [None, 0])
    def test_who_stays_away_in_asynchronous_training(self, nodes, staleness):
        from paceline.ray.ps import train

        batch = functools.partial(work.bad_batch, at=2, how="stays away")
        how = {"workers": 4, "timeout_s": 6, "settings": RaySettings(grace_s=2)}
        with pytest.raises(paceline.JobError, match=r"^rank 3 \(host .*, pid \d+\) did not answer within 6 s: step 3"):
            train(work.model, work.optimizer, batch, steps=6, asynchronous=True, staleness=staleness, **how)

    def test_optimizers_that_servers_cannot_run(self, nodes):
        from paceline.ray.ps import train

        with pytest.raises(paceline.InvalidArgumentError, match=r"^rank \d: async-ps: servers cannot run"):
            train(work.model, torch.optim.LBFGS, work.batch, steps=1, workers=2, asynchronous=True)

    def test_an_unknown_reduction_inside_nodes_is_refused(self):
        from paceline.ray.ps import train

        with pytest.raises(paceline.InvalidArgumentError, match="inside: unknown 'nccl'") as refused:
            train(work.model, work.optimizer, work.batch, steps=1, workers=2, inside="nccl")
        assert refused.value.remedy == 'inside="root" or "ring"'
        with pytest.raises(paceline.InvalidArgumentError, match="inside: ring has no effect on asynchronous"):
            train(work.model, work.optimizer, work.batch, steps=1, workers=2, inside="ring", asynchronous=True)

    def test_models_that_cannot_be_trained_in_this_way(self, nodes):
        import torch
        from paceline.ray.ps import train

        with pytest.raises(paceline.InvalidArgumentError, match=r"^rank \d: model: has no trainable parameters"):
            train(torch.nn.ReLU, work.optimizer, work.batch, steps=1, workers=2)
        with pytest.raises(paceline.InvalidArgumentError, match=r"model: weight is torch\.float64 on cpu"):
            half = functools.partial(torch.nn.Linear, 3, 3, dtype=torch.float64)
            train(half, work.optimizer, work.batch, steps=1, workers=2)

    @pytest.mark.parametrize(
        ("how", "said"),
        [
            ("raises", r"^rank 3 \(host .*, pid \d+\) failed: LookupError: no pictures here"),
            ("dies", r"^rank 3 \(host .*, pid \d+\) died: its process was killed, or crashed"),
            ("stays away", r"^rank 3 \(host .*, pid \d+\) did not answer within 6 s: step 3"),
        ],
    )
    @pytest.mark.parametrize("inside", ["root", "ring"])
    def test_who_failed_in_the_object_store(self, nodes, how, said, inside):
        from paceline.ray.ps import train

        batch = functools.partial(work.bad_batch, at=2, how=how)
        patience = {"timeout_s": 6, "settings": RaySettings(grace_s=2)}
        with pytest.raises(paceline.JobError, match=said):
            train(work.model, work.optimizer, batch, steps=6, workers=4, inside=inside, **patience)


@needs_ray
@pytest.mark.slow
class TestSweeps:
    """Forecasts as tasks."""

    def run(self, *words, cluster=None):
        environment = {**os.environ, "RAY_ADDRESS": cluster.address if cluster else ""}
        command = [sys.executable, "-m", "paceline", *words]
        return cli.ended(*command, timeout=240, env=environment)

    @pytest.mark.parametrize("more", [(), ("--coordinator", "all", "--strategy", "ring")])
    def test_the_rows_are_those_of_this_machine_to_the_byte(self, nodes, more):
        local, there = self.run(*SWEEP, *more), self.run(*SWEEP, *more, "--executor", "ray", cluster=nodes)
        assert (there.returncode, there.stderr) == (0, local.stderr)
        assert there.stdout == local.stdout
        assert len(json.loads(local.stdout)) >= 4

    def test_a_cluster_of_its_own(self):
        cell = ("simulate", "allreduce:1MB", "--workers", "4", "--strategy", "ring", "--json")
        assert self.run(*cell, "--executor", "ray").stdout == self.run(*cell).stdout

    def test_the_first_mistake_is_told_as_on_this_machine(self, nodes):
        words = (*SWEEP, "--strategy", "ps", "--servers", "1,100000000")
        local, there = self.run(*words), self.run(*words, "--executor", "ray", cluster=nodes)
        assert (there.returncode, there.stderr) == (local.returncode, local.stderr)
        assert local.returncode == 2

    def test_nobody_answers(self):
        environment = {**os.environ, "RAY_ADDRESS": "127.0.0.1:9"}
        command = [sys.executable, "-m", "paceline", *SWEEP, "--executor", "ray"]
        said = cli.ended(*command, timeout=240, env=environment)
        assert said.returncode == 1
        assert "RAY_ADDRESS=127.0.0.1:9: no Ray cluster answers there" in said.stderr
        assert "Traceback" not in said.stderr

    def test_from_python(self, nodes):
        values = {"workers": [2, 4], "bandwidth": "10Gbps", "strategies": ["ring", "ps"]}
        done = []
        there = paceline.sweep("resnet-50", executor="ray", progress=lambda *ended: done.append(ended), **values)
        assert there == paceline.sweep("resnet-50", **values)
        assert done[-1] == (4, 4)
        with pytest.raises(paceline.InvalidArgumentError, match="executor: unknown value 'dask'"):
            paceline.sweep("resnet-50", executor="dask", **values)


@needs_ray
@pytest.mark.slow
class TestElastic:
    """Ranks that are replaced."""

    STEPS = 60

    def run(self, path, executor, at, do, pause_s=0.02):
        """Train; when rank 0 has committed step `at`, do something."""

        def wait():
            step = path / "step"
            while not (step.exists() and int(step.read_text() or 0) >= at):
                time.sleep(0.02)
            do()

        threading.Thread(target=wait, daemon=True).start()
        with executor:
            return executor.run(elastic.train, [self.STEPS, path], {"pause_s": pause_s})

    def check(self, result, size, at):
        """All ends are the same, nothing from the last commit on was done again, and the weights are as without."""
        alone = work.train_alone(size, self.STEPS)
        assert [each for _, each, _ in result] == [size] * size
        for _, _, weights in result:
            for name, weight in weights.items():
                np.testing.assert_array_equal(weight, result[0][2][name])
                np.testing.assert_allclose(weight, alone[name], rtol=1e-4, atol=1e-5)
        began = max((begins for begins, _, _ in result), key=len)
        assert began[0] == 0
        assert len(began) == 2
        assert began[1] >= at

    @pytest.mark.parametrize("rank", [0, 1])
    def test_an_actor_that_is_killed_is_replaced(self, nodes, tmp_path, rank):
        def kill():
            os.kill(int((tmp_path / f"rank-{rank}").read_text().split()[0]), signal.SIGKILL)

        executor = ElasticRayExecutor(min_workers=2, max_workers=2)
        self.check(self.run(tmp_path, executor, 20, kill), 2, 20)

    def test_the_actors_of_a_raylet_that_dies_go_to_another_node(self, nodes, tmp_path):
        node = {"num_cpus": 2, "object_store_memory": 150_000_000}
        added = [nodes.add_node(**node) for _ in range(2)]
        nodes.wait_for_nodes()

        def remove():
            """One of the two that has an actor: three of the four nodes have."""
            from ray._private import state

            actors = state.actors().values()
            held = {actor["Address"]["NodeID"] for actor in actors if actor["State"] == "ALIVE"}
            victim = next(each for each in added if each.node_id in held)
            added.remove(victim)
            nodes.remove_node(victim, allow_graceful=False)

        try:
            executor = ElasticRayExecutor(min_workers=3, max_workers=3, cpus_per_worker=2)
            result = self.run(tmp_path, executor, 20, remove, 0.1)
        finally:
            for each in added:
                nodes.remove_node(each)
        self.check(result, 3, 20)

    def test_a_function_that_raises_ends_the_job(self, nodes):
        said = r"failed: LookupError: no pictures here; 1 slot left"
        with (
            ElasticRayExecutor(min_workers=2, max_workers=2) as executor,
            pytest.raises(paceline.JobError, match=said),
        ):
            executor.run(work.raises, [1])

    def test_no_more_resets_than_allowed(self, nodes, tmp_path):
        def kill():
            os.kill(int((tmp_path / "rank-1").read_text().split()[0]), signal.SIGKILL)

        executor = ElasticRayExecutor(min_workers=2, max_workers=2, reset_limit=0)
        with pytest.raises(paceline.JobError, match=r"died: its process was killed.*reset"):
            self.run(tmp_path, executor, 10, kill)

    def test_no_room(self, nodes):
        with (
            ElasticRayExecutor(RaySettings(timeout_s=2), min_workers=9) as executor,
            pytest.raises(paceline.JobError, match="4 slots have been offered for 2 s"),
        ):
            executor.run(print)
