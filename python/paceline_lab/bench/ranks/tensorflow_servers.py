"""Distributed TensorFlow with parameter servers and synchronous replicas: a worker, or a server if TASK says `server`.

As tf_cnn_benchmarks ran it (`--variable_update=parameter_server`, synchronous): variables are placed round-robin on the
servers, workers pull them over gRPC, and SyncReplicasOptimizer adds up the gradients of all workers before one update.
That is the graph mode of TensorFlow 1, which TensorFlow 2 still has.
"""

from __future__ import annotations

import json
import os
import time
from pathlib import Path
from typing import Any

import numpy as np
import tensorflow as tf

from paceline_lab.bench.ranks.rank_spec import RankSpec, place, read
from paceline_lab.bench.ranks.stopwatch import Stopwatch, cpu_s
from paceline_lab.bench.ranks.tensorflow_common import alone, checker, clusters_in, loader, software, threads
from paceline_lab.bench.ranks.tensorflow_layers import Model

v1 = tf.compat.v1
ENDED = "workers-ended"


def main() -> None:
    """Serve until the process is ended, or train as a worker."""
    spec, cluster = read(), json.loads(os.environ["TF_CONFIG"])
    task = cluster["task"]
    config = v1.ConfigProto(intra_op_parallelism_threads=threads() if task["type"] == "worker" else 1)
    server = v1.train.Server(cluster["cluster"], task["type"], task["index"], protocol="grpc", config=config)
    if task["type"] == "ps":
        serve(spec, task["index"])
    else:
        rank, size, _ = place()
        work(spec, rank, size, server, cluster["cluster"])


def serve(spec: RankSpec, index: int) -> None:
    """Serve until the folder says that the workers have ended, and report the CPU time."""
    folder = Path(spec.folder)
    new = folder / f".server-{index}"
    while not (folder / ENDED).exists():
        new.write_text(json.dumps({"cpu_s": cpu_s()}), encoding="utf-8")
        new.replace(folder / f"server-{index}.json")  # Write it whole, because a signal ends this process.
        time.sleep(0.2)


def work(spec: RankSpec, rank: int, size: int, server: Any, cluster: dict[str, list[str]]) -> None:  # noqa: ANN401
    """Train with the other workers."""
    model = Model(str(spec.graph))
    channels_last = (spec.batch, spec.image_size, spec.image_size, 3)
    graph = tf.Graph()
    with graph.as_default():
        own = f"/job:worker/task:{rank}"
        spread = v1.train.replica_device_setter(cluster=cluster, worker_device=own)
        with v1.device(spread):
            weights = {name: _variable(name, value) for name, value in model.initial.items()}
            counter = v1.train.get_or_create_global_step()
        with v1.device(own):
            images = v1.placeholder(tf.float32, channels_last)
            labels = v1.placeholder(tf.int64, (spec.batch,))
            local = v1.GraphKeys.LOCAL_VARIABLES
            statistics = {
                name: _variable(name, value, collections=[local], trainable=False)
                for name, value in model.statistics.items()
            }
            loss = model.loss(weights, images, labels, statistics)
            once = v1.train.MomentumOptimizer(spec.learning_rate, spec.momentum)
            optimizer = v1.train.SyncReplicasOptimizer(once, replicas_to_aggregate=size, total_num_replicas=size)
            gradients = optimizer.compute_gradients(loss, list(weights.values()))
        with v1.device(spread):
            update = optimizer.apply_gradients(gradients, global_step=counter)
    # No initial tokens: with one per worker, each would run a step ahead on old weights.
    hooks = [optimizer.make_session_run_hook(rank == 0, num_tokens=0)]
    config = v1.ConfigProto(
        operation_timeout_in_ms=int(spec.limit_s * 1000),
        device_filters=["/job:ps", own],  # A worker waits for servers, but not for later workers.
    )
    stopwatch, load = Stopwatch(spec, rank), loader(spec, rank, size)
    with (
        graph.as_default(),
        v1.train.MonitoredTrainingSession(
            server.target,
            is_chief=rank == 0,
            hooks=hooks,
            config=config,
            save_checkpoint_secs=None,
            save_summaries_steps=None,
            log_step_count_steps=None,
            max_wait_secs=int(spec.limit_s),
            stop_grace_period_secs=1,  # For the chief's token thread, which waits for another step.
        ) as session,
    ):
        clusters: list[int] = []

        def train(batch: tuple[Any, Any]) -> float:
            looks = spec.xla and not clusters  # At the first step, at which XLA compiles.
            ran = v1.RunMetadata() if looks else None
            graphs = v1.RunOptions(output_partition_graphs=True) if looks else None
            fed = {images: batch[0], labels: batch[1]}
            _, value = session.run([update, loss], fed, options=graphs, run_metadata=ran)
            if ran is not None:
                clusters.append(clusters_in(ran.partition_graphs))
            return float(value)

        def values() -> dict[str, Any]:
            # Bypass the hooks, which would consume a token.
            return model.torchs(session._tf_sess().run(weights))

        stopwatch.run(load, train, checker([0], stopwatch, values))
        final = values()
        _wait_for_all(spec, rank, size)
    alone(spec, model, load, stopwatch)
    stopwatch.write(final, **software(spec, clusters[0] if clusters else None))


def _variable(name: str, value: Any, **options: Any) -> Any:  # noqa: ANN401
    return v1.get_variable(
        name.replace(".", "/"),
        shape=value.shape,
        dtype=tf.float32,
        initializer=lambda shape, dtype=None, partition_info=None: np.ascontiguousarray(value),
        use_resource=True,
        **options,
    )


def _wait_for_all(spec: RankSpec, rank: int, size: int) -> None:
    """Wait until all workers on this host have trained, before the steps without communication."""
    folder = Path(spec.folder)
    (folder / f"trained-{rank}").touch()
    here = int(os.environ.get("LOCAL_WORLD_SIZE", str(size)))
    until = time.monotonic() + spec.limit_s
    while len(list(folder.glob("trained-*"))) < here and time.monotonic() < until:
        time.sleep(0.05)


if __name__ == "__main__":
    main()
