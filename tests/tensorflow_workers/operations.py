"""Every operation on two or three ranks, eagerly and in graphs, against values that are computed here."""

import sys

import numpy as np
import paceline.tensorflow as hvd
import pytest
import tensorflow as tf

assert "torch" not in sys.modules

hvd.init()
RANK, SIZE = hvd.rank(), hvd.size()
ALL = sum(range(1, SIZE + 1))
DTYPES = ("float16", "bfloat16", "float32", "float64", "int8", "int16", "int32", "int64", "uint8", "uint16", "uint32")


def same(result, wanted):
    np.testing.assert_allclose(np.asarray(tf.cast(result, tf.float64)), np.asarray(wanted, float), rtol=1e-3)


def both(function, *tensors):
    """What a function gives eagerly, which is what its graph gives at the first call and at the third."""
    result = tf.nest.flatten(function(*tensors))
    graph = tf.function(function)
    for again in (graph(*tensors), graph(*tensors), graph(*tensors)):
        for one, other in zip(result, tf.nest.flatten(again), strict=True):
            assert one.dtype == other.dtype
            assert other.shape == one.shape
            np.testing.assert_array_equal(one.numpy(), other.numpy())
    return result if len(result) > 1 else result[0]


def reductions():
    x = tf.constant([1.0, -2.0]) * (RANK + 1)
    same(both(lambda x: hvd.allreduce(x, op=hvd.Sum), x), [ALL, -2 * ALL])
    same(both(hvd.allreduce, x), [ALL / SIZE, -2 * ALL / SIZE])
    same(both(lambda x: hvd.allreduce(x, op=hvd.Min), x), [1, -2 * SIZE])
    same(both(lambda x: hvd.allreduce(x, op=hvd.Max), x), [SIZE, -2])
    same(
        both(lambda x: hvd.allreduce(x, op=hvd.Product), x),
        [np.prod(range(1, SIZE + 1)), (-2) ** SIZE * np.prod(range(1, SIZE + 1))],
    )
    same(hvd.allreduce(x, op=hvd.Sum, prescale_factor=0.5, postscale_factor=4.0), [2 * ALL, -4 * ALL])
    same(hvd.allreduce(x, op=hvd.Sum, compression=hvd.Compression.fp16), [ALL, -2 * ALL])
    assert hvd.allreduce(x, compression=hvd.Compression.bf16).dtype == tf.float32
    for dtype in DTYPES:
        values = tf.cast([RANK + 1, 2, 0], dtype)
        result = both(lambda values: hvd.allreduce(values, op=hvd.Sum), values)
        assert result.dtype == values.dtype
        same(result, [ALL, 2 * SIZE, 0])
        same(
            hvd.allreduce(tf.cast([7 * RANK, 1, 0], dtype)),
            [int(7 * (ALL - SIZE) / SIZE) if "int" in dtype else 7 * (ALL - SIZE) / SIZE, 1, 0],
        )
    assert both(lambda x: hvd.allreduce(x, op=hvd.Sum), tf.constant([RANK == 0, False])).numpy().tolist() == [
        True,
        False,
    ]
    result = both(lambda x: hvd.allreduce(x, op=hvd.Sum), tf.complex([1.0, 2.0], [float(RANK), 0.0]))
    assert result.numpy().tolist() == [SIZE + (ALL - SIZE) * 1j, 2.0 * SIZE]
    several = both(lambda x, y: hvd.grouped_allreduce([x, y], op=hvd.Sum), x, tf.ones([3], tf.float64))
    same(several[0], [ALL, -2 * ALL])
    same(several[1], [SIZE] * 3)
    slices = hvd.allreduce(tf.IndexedSlices(tf.ones([1, 2]) * (RANK + 1), [RANK], dense_shape=[SIZE, 2]))
    same(tf.convert_to_tensor(slices), [[(rank + 1) / SIZE] * 2 for rank in range(SIZE)])
    scalar = both(hvd.allreduce, tf.constant(float(RANK)))
    assert scalar.shape == ()
    assert both(hvd.allreduce, tf.zeros([0, 3])).shape == (0, 3)
    # Buffers of a graph's results are its own: the next call does not change them.
    graph = tf.function(lambda x: hvd.allreduce(x, op=hvd.Sum))
    first = graph(x)
    graph(x * 2)
    same(first, [ALL, -2 * ALL])


def movements():
    for dtype in (*DTYPES, "bool", "complex64"):
        rows = tf.cast(tf.reshape(tf.range(2 * (RANK + 1)), [RANK + 1, 2]) % 2, dtype)
        result = both(hvd.allgather, rows)
        assert result.dtype == rows.dtype
        assert result.shape == (ALL, 2)
        root = both(lambda values: hvd.broadcast(values, SIZE - 1), tf.cast([RANK, 1], dtype))
        same(tf.cast(root, tf.float32), [1 if dtype == "bool" else SIZE - 1, 1])
    same(both(hvd.allgather, tf.constant(RANK)), range(SIZE))
    assert [one.shape[0] for one in both(lambda x: hvd.grouped_allgather([x, x[:1]]), tf.ones([RANK + 1]))] == [
        ALL,
        SIZE,
    ]
    same(
        both(hvd.alltoall, tf.range(2 * SIZE) + 100 * RANK),
        [100 * rank + 2 * RANK + k for rank in range(SIZE) for k in (0, 1)],
    )
    splits = tf.constant([rank + 1 for rank in range(SIZE)])
    rows, received = both(lambda x: hvd.alltoall(x, splits=splits), tf.range(ALL))
    assert received.numpy().tolist() == [RANK + 1] * SIZE
    same(rows, list(range(RANK * (RANK + 1) // 2, (RANK + 1) * (RANK + 2) // 2)) * SIZE)
    part = both(lambda x: hvd.reducescatter(x, op=hvd.Sum), tf.ones([SIZE + 1, 2]))
    same(part, [[SIZE] * 2] * (2 if RANK == 0 else 1))
    assert [one.shape[0] for one in both(lambda x: hvd.grouped_reducescatter([x, x]), tf.ones([SIZE]))] == [1, 1]
    numbers = tf.complex(tf.range(SIZE + 1.0), tf.fill([SIZE + 1], float(RANK)))
    part = both(lambda x: hvd.reducescatter(x, op=hvd.Sum), numbers)
    mine = [0, 1] if RANK == 0 else [RANK + 1]
    assert part.numpy().tolist() == [SIZE * number + (ALL - SIZE) * 1j for number in mine]
    assert hvd.allgather_object({"rank": RANK}) == [{"rank": rank} for rank in range(SIZE)]
    assert hvd.broadcast_object([RANK], SIZE - 1) == [SIZE - 1]
    weights = [tf.Variable([float(RANK)] * 3), tf.Variable(RANK)]
    hvd.broadcast_variables(weights, root_rank=SIZE - 1)
    same(weights[0], [SIZE - 1] * 3)
    weights[0].assign([float(RANK)] * 3)
    tf.function(lambda: hvd.broadcast_variables(weights, root_rank=0))()
    same(weights[0], [0] * 3)
    assert int(tf.function(hvd.size_op)()) == SIZE
    assert int(hvd.rank_op()) == RANK


def derivatives():
    def slope(function, x):
        with tf.GradientTape() as tape:
            tape.watch(x)
            y = tf.reduce_sum(function(x) * tf.cast(RANK + 1, x.dtype))
        return tape.gradient(y, x)

    x = tf.ones([SIZE, 2])
    same(both(lambda x: slope(lambda x: hvd.allreduce(x, op=hvd.Sum), x), x), np.full([SIZE, 2], ALL))
    same(both(lambda x: slope(lambda x: hvd.broadcast(x, 0), x), x), np.full([SIZE, 2], ALL / SIZE if RANK == 0 else 0))
    same(both(lambda x: slope(hvd.allgather, x), x), np.full([SIZE, 2], ALL / SIZE))
    same(both(lambda x: slope(hvd.alltoall, x), x), [[rank + 1] * 2 for rank in range(SIZE)])
    same(
        both(lambda x: slope(lambda x: hvd.reducescatter(x, op=hvd.Average), x), x),
        [[rank + 1] * 2 for rank in range(SIZE)],
    )
    same(slope(lambda x: hvd.grouped_allreduce([x], op=hvd.Sum)[0], x), np.full([SIZE, 2], ALL))


def many_in_one_graph():
    """More operations than threads, of which one needs the results of the others."""

    @tf.function
    def graph(x):
        parts = [hvd.allreduce(x * float(k), op=hvd.Sum, name=f"part{k}") for k in range(8)]
        return hvd.allreduce(tf.add_n(parts), name="all")

    for _ in range(3):
        same(graph(tf.ones([4])), [28 * SIZE] * 4)


def tapes():
    weights = [
        tf.Variable([1.0, 2.0]),
        tf.Variable(tf.ones([4, 2])),
        tf.Variable(1.0),
        tf.Variable(tf.ones([600, 600])),
    ]

    def step(groups=None, sparse_as_dense=False, local=False):
        with tf.GradientTape() as tape:
            loss = tf.reduce_sum(weights[0]) * (RANK + 1.0) + tf.reduce_sum(tf.gather(weights[1], [RANK]))
            loss += tf.reduce_sum(weights[3]) * RANK
        tape = hvd.DistributedGradientTape(tape, groups=groups, sparse_as_dense=sparse_as_dense)
        if local:
            tape.register_local_source(weights[0])
        return tape.gradient(loss, weights)

    mine = [(RANK + 1) / SIZE] * 2  # scaled, although it stays here
    for how in ({}, {"groups": 2}, {"groups": [weights[:2]]}, {"sparse_as_dense": True}, {"local": True}):
        for function in (step, tf.function(step)):
            for _ in range(3):
                first, second, third, fourth = function(**how)
                same(first, mine if "local" in how else [ALL / SIZE] * 2)
                assert isinstance(second, tf.IndexedSlices) != ("sparse_as_dense" in how)
                same(tf.convert_to_tensor(second), [[1 / SIZE if row < SIZE else 0] * 2 for row in range(4)])
                assert third is None
                same(fourth[0, :2], [(ALL - SIZE) / SIZE] * 2)


def process_sets():
    members = [0, 2] if SIZE == 3 else [1]
    ends = hvd.add_process_set(members)
    if ends.included():
        same(both(lambda x: hvd.allreduce(x, op=hvd.Sum, process_set=ends), tf.constant([RANK])), [sum(members)])
        weight = tf.Variable(2.0)
        with tf.GradientTape() as tape:
            loss = weight * RANK
        result = hvd.DistributedGradientTape(tape, process_set=ends).gradient(loss, [weight])[0]
        same(result, sum(members) / len(members))
    else:
        with pytest.raises(ValueError, match="is not in ProcessSet"):
            hvd.allreduce(tf.ones(1), process_set=ends)
    hvd.remove_process_set(ends)


def errors():
    """Each is told, and the job goes on."""
    with pytest.raises(hvd.HorovodInternalError, match="uneven") as result:
        hvd.allreduce(tf.ones([RANK + 1]), name="uneven")
    assert isinstance(result.value, tf.errors.FailedPreconditionError)
    with pytest.raises(tf.errors.OpError, match="uneven"):
        tf.function(lambda x: hvd.allreduce(x, name="uneven"))(tf.ones([RANK + 1]))
    with pytest.raises(TypeError, match="Min of complex64 is not defined; sum and average are"):
        hvd.allreduce(tf.complex(1.0, 1.0), op=hvd.Min)
    with pytest.raises(TypeError, match="use broadcast_object"):
        hvd.broadcast(tf.constant("text"), 0)
    with pytest.raises(NotImplementedError, match="Adasum"):
        hvd.allreduce(tf.ones(1), op=hvd.Adasum)
    with pytest.raises(ValueError, match="root_rank 9 is not in"):
        hvd.broadcast(tf.ones(1), 9)
    with pytest.raises(ValueError, match="splits"):
        hvd.alltoall(tf.ones(3), splits=[9] * SIZE)
    with pytest.raises(AttributeError, match="estimators are gone"):
        hvd.BroadcastGlobalVariablesHook  # noqa: B018
    same(hvd.allreduce(tf.constant(1.0), op=hvd.Sum), SIZE)


def joining():
    for _ in range(2 if RANK == 0 else 1):
        hvd.allreduce(tf.ones(2), op=hvd.Sum, name="step")
    assert int(hvd.join()) == 0


for test in (reductions, movements, derivatives, many_in_one_graph, tapes, process_sets, errors, joining):
    test()
    print(f"{test.__name__} on rank {RANK} of {SIZE}", flush=True)
hvd.shutdown()
