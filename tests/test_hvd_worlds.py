"""Horovod's init, ranks and process sets, in real processes. The ranks run `hvd_workers`."""

import pytest
from hvd_workers import norms, worlds
from hvd_workers.launch import run

pytestmark = pytest.mark.process


@pytest.mark.parametrize("ranks", [1, 2])
def test_calls_before_init_and_after_shutdown(ranks):
    run(ranks, worlds.before_and_after, init=False)


def test_what_is_built_and_what_is_not_there():
    run(1, worlds.answers)


def test_ranks_of_two_nodes():
    # As the launcher places them: in turns, or one node after the other.
    env = {"LOCAL_WORLD_SIZE": "2"}
    turns = run(4, worlds.places, env=env, env_of={rank: {"LOCAL_RANK": str(rank // 2)} for rank in range(4)})
    assert turns == [[0, 0, 2, 0, 2, True], [1, 0, 2, 1, 2, True], [2, 1, 2, 0, 2, True], [3, 1, 2, 1, 2, True]]
    after = run(3, worlds.places, env=env, env_of={2: {"LOCAL_RANK": "0", "LOCAL_WORLD_SIZE": "1"}})
    assert after == [[0, 0, 2, 0, 2, False], [1, 1, 2, 0, 1, False], [2, 0, 1, 1, 2, False]]


def test_a_launcher_that_does_not_say_which_ranks_share_a_node():
    unsaid = {rank: {"LOCAL_RANK": "", "LOCAL_WORLD_SIZE": ""} for rank in range(2)}
    assert run(2, worlds.places, env_of=unsaid) == [[0, 0, 2, 0, 1, True], [1, 1, 2, 0, 1, True]]


def test_process_sets():
    run(4, worlds.sets)
    run(3, worlds.from_the_start, init=False)


def test_worlds_of_some_ranks():
    run(4, worlds.two_worlds, init=False)


def test_forked_children_and_scripts_that_just_end():
    run(2, worlds.forked)
    run(2, worlds.without_shutdown, init=False)


def test_a_process_that_ends_with_operations_in_flight():
    run(2, worlds.scripts, init=False)


@pytest.mark.parametrize("ranks", [1, pytest.param(2, marks=pytest.mark.slow), 3])
def test_batch_normalization_is_that_of_the_joined_batch(ranks):
    run(ranks, norms.everything)
