"""The policies by which ranks agree on an order, in real processes. The ranks run `hvd_workers.plans`."""

import os

import pytest
from hvd_workers import cores, failures, optimizers, plans, training
from hvd_workers.launch import RankError, run

pytestmark = pytest.mark.process

POLICIES = ["negotiate", "global-sleep", "nonblocking", "partitioned", "graph"]


@pytest.mark.parametrize("ranks", [2, 3])
def test_what_is_not_as_planned_is_found_on_all_ranks_and_right(ranks):
    run(ranks, plans.everything)


def test_no_control_messages_after_the_plan_among_eight():
    run(8, plans.no_messages)


def test_small_buckets_are_planned_too():
    run(3, plans.changes, env={"HOROVOD_FUSION_THRESHOLD": "300"})


def test_ranks_join_under_a_plan():
    run(3, plans.joins)


def test_a_rank_whose_model_is_another_is_told_of():
    run(3, plans.one_changes, env={"PACELINE_TIMEOUT": "5", "HOROVOD_STALL_SHUTDOWN_TIME_SECONDS": "5"})


@pytest.mark.parametrize("policy", [*POLICIES[:-1], "global-sleep:3", "partitioned:dynamic"])
def test_every_policy_trains_the_same(policy):
    env = {"PACELINE_COORDINATOR": policy}
    run(2, training.everything, env=env)
    run(3, training.uneven, env=env)


@pytest.mark.parametrize("policy", POLICIES)
def test_names_in_flight_and_ranks_that_have_joined(policy):
    run(3, failures.as_horovod_refuses, env={"PACELINE_COORDINATOR": policy})


@pytest.mark.parametrize("policy", ["gs", "nbcs"])
def test_optimizers_under_other_policies(policy):
    run(3, optimizers.everything, env={"PACELINE_COORDINATOR": policy, "HOROVOD_CYCLE_TIME": "5"})


def test_a_rank_that_stays_away_is_named():
    run(3, plans.one_stays_away, env={"PACELINE_TIMEOUT": "3", "HOROVOD_STALL_SHUTDOWN_TIME_SECONDS": "3"})


SHORT = {"PACELINE_TIMEOUT": "2", "HOROVOD_STALL_SHUTDOWN_TIME_SECONDS": "30"}


@pytest.mark.parametrize("work", [plans.order, plans.one_is_slow, plans.evaluates], ids=lambda work: work.__name__)
def test_ranks_that_do_not_march_in_step(work):
    run(2, work, env=SHORT)


@pytest.mark.parametrize(
    "work", [plans.one_more_optimizer, plans.shared, plans.loads, plans.frozen_on_one], ids=lambda work: work.__name__
)
def test_optimizers_that_come_and_go(work):
    run(2, work, env=SHORT)


def test_ranks_with_other_coordinators_are_told_at_the_start():
    env = {0: {"PACELINE_COORDINATOR": "graph"}, 1: {"PACELINE_COORDINATOR": "negotiate"}}
    with pytest.raises(RankError, match="PACELINE_COORDINATOR is graph on rank 0 and negotiate on rank 1"):
        run(2, plans.no_messages, env_of=env)


@pytest.mark.skipif(len(os.sched_getaffinity(0)) < 2, reason="needs two cores")
def test_a_lent_core_is_taken_while_operations_are_pending():
    run(1, cores.lent, env={"PACELINE_COORDINATOR": "scp:dynamic"}, init=False)
