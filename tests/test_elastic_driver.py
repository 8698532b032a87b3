"""Who is in the next world: every order of deaths, commits and arrivals ends with one state on all ranks."""

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from paceline.job.elastic_commits import Commits
from paceline.launch.elastic.driver import Driver
from paceline.launch.elastic.order import agreed, places
from paceline.launch.elastic.roster import (
    End,
    Exit,
    Give,
    Kill,
    Limits,
    Notify,
    Release,
    Retire,
    Slot,
    Start,
    State,
    Worker,
)

KILLED = Exit(code=-9, words="killed")
RAISED = Exit(code=1, words="rank 1 (pid 7) exited with code 1: ValueError: no")


def slots(count, host="a"):
    return [Slot(host, number) for number in range(count)]


class Process:
    """A worker that trains: it synchronizes, then commits, and after each commit waits for the others."""

    def __init__(self, number):
        self.number = number
        self.phase = "starting"
        self.commits = Commits()
        self.place = None
        self.passed = 0


class Job:
    """Processes around a driver, stepped in an order that a test chooses. What a commit holds is its history."""

    def __init__(self, limits, offered):
        self.driver = Driver(limits)
        self.now = 0.0
        self.living = {}
        self.ended = None
        self.world = []
        self.committed_by_all = -1
        self.contents = {}
        self.obey(self.driver.offer(offered, self.now))

    def obey(self, actions):
        given = {}
        for action in actions:
            match action:
                case Start(worker, _):
                    self.living[worker] = Process(worker)
                case Give(worker, place):
                    given[worker] = place
                case Kill(worker):
                    self.kill(worker)
                case End(reason):
                    self.ended = (reason,)
                case Notify() | Retire():
                    pass
        if given:
            self.begin(given)

    def begin(self, given):
        """What must hold in every world."""
        assert sorted(place.rank for place in given.values()) == list(range(len(given)))
        assert len({(place.generation, place.commit, place.size) for place in given.values()}) == 1
        self.world = sorted(given, key=lambda worker: given[worker].rank)
        commit = given[self.world[0]].commit
        assert commit is not None or self.committed_by_all < 0, "training begins anew"
        if commit is not None:
            assert commit >= self.committed_by_all, "a commit that all had made is lost"
            assert commit in self.living[self.world[0]].commits.numbers, "rank 0 cannot give what it has not"
        for worker in self.world:
            process = self.living[worker]
            if commit is not None:
                process.commits.back_to(commit)
            process.place, process.phase = given[worker], "syncing"
        self.contents = {"root": self.living[self.world[0]].commits.last() if commit is not None else ("new",)}

    def kill(self, worker, how=KILLED):
        process = self.living.pop(worker, None)
        if process is not None:
            self.obey(self.driver.exited(worker, how, self.now))

    def step(self, worker):
        """One thing that this process does next, if it does not wait for others."""
        process = self.living[worker]
        if process.phase == "starting":
            process.phase = "waiting"
            self.obey(self.driver.requests_place(worker, [], "", self.now))
        elif process.phase != "waiting" and not self.driver.intact:
            # An operation has failed. It may have passed the last one before: then it is one commit ahead.
            process.phase = "waiting"
            self.obey(self.driver.requests_place(worker, process.commits.numbers, "JobError", self.now))
        elif process.phase == "syncing":
            number = process.place.commit or 0
            process.commits.adopt(number, self.contents["root"])
            process.phase, process.passed = "training", number
            self.obey(self.driver.synced(worker))
        elif process.phase == "training":
            # A step needs all of the world to have passed the commit before.
            if all(self.living[other].passed >= process.passed for other in self.world):
                process.commits.add((*process.commits.last(), process.place.generation))
                process.phase = "committed"
        elif process.phase == "committed":
            reached = [self.living[other].commits.numbers for other in self.world]
            mine = process.commits.numbers[-1]
            if all(numbers and numbers[-1] >= mine for numbers in reached):
                self.committed_by_all = max(self.committed_by_all, mine)
                process.passed, process.phase = mine, "training"

    def check_contents(self):
        """Commits with one number are the same wherever they are held."""
        holders = [process.commits for process in self.living.values() if process.place is not None]
        if self.driver.intact:
            last = {}
            for commits in holders:
                for number in commits.numbers:
                    last.setdefault(number, set()).add(commits._held[number])
            assert all(len(contents) == 1 for contents in last.values()), last


@settings(deadline=None)
@given(st.integers(2, 5), st.randoms(use_true_random=False), st.data())
def test_no_commit_that_all_have_made_is_lost_whoever_dies_when(size, random, data):
    least = data.draw(st.integers(1, size))
    job = Job(Limits(least=least, most=size, fruitless=10**6), slots(size))
    kills = data.draw(st.integers(0, 12))
    for _ in range(400):
        if job.ended or job.committed_by_all > 20:
            break
        victims = sorted(job.living)
        trained = [number for number in victims if job.living[number].commits.numbers]
        if kills and random.random() < 0.05 and len(trained) != 1:  # else the last one that holds the state
            kills -= 1
            job.kill(random.choice(victims))
        elif job.living:
            job.step(random.choice(sorted(job.living)))
            job.check_contents()
    if job.ended:  # two may die before the second had heard of the first
        assert "all ranks that held the last commit have died" in job.ended[0]
    while not job.ended and job.committed_by_all < 3:
        before = job.committed_by_all, job.driver.generation, [process.phase for process in job.living.values()]
        for worker in sorted(job.living):
            if worker in job.living:
                job.step(worker)
        after = job.committed_by_all, job.driver.generation, [process.phase for process in job.living.values()]
        assert before != after, "nothing moves any more"


@given(st.lists(st.tuples(st.integers(0, 3), st.booleans()), min_size=1, max_size=8), st.integers(0, 50))
def test_rank_0_holds_the_commit_and_hosts_stay_together(kinds, last):
    workers = [
        Worker(number, Slot(f"host{host}", number), 0.0, State.WAITING, (last,) if holds else ())
        for number, (host, holds) in enumerate(kinds)
    ]
    placed = places(workers, {}, 7)
    assert [place.rank for _, place in placed] == list(range(len(workers)))
    assert {worker.number for worker, _ in placed} == {worker.number for worker in workers}
    commit = agreed(workers)
    assert all(place.commit == commit for _, place in placed)
    if commit is not None:
        assert commit in placed[0][0].commits
    nodes = [place.node for _, place in placed]
    assert nodes == sorted(nodes) and nodes[-1] + 1 == placed[0][1].nodes
    for node in set(nodes):
        assert len({worker.slot.host for worker, place in placed if place.node == node}) == 1
        assert [place.local_rank for _, place in placed if place.node == node] == list(range(nodes.count(node)))


def test_survivors_keep_their_ranks():
    before = {slot: rank for rank, slot in enumerate(slots(4))}
    workers = [Worker(number, slot, 0.0, State.WAITING, (5,)) for number, slot in enumerate(slots(4))]
    workers[2].commits = ()
    assert [worker.number for worker, _ in places(workers, before, 2)] == [0, 1, 2, 3]
    workers[0].commits = ()
    assert [worker.number for worker, _ in places(workers, before, 2)] == [1, 0, 2, 3]


def test_all_go_back_to_the_commit_of_whoever_has_made_least():
    workers = [Worker(0, Slot("a", 0), 0.0, State.WAITING, (6, 7)), Worker(1, Slot("a", 1), 0.0, State.WAITING, (5, 6))]
    assert agreed(workers) == 6
    assert agreed([workers[0]]) == 7


def ready(driver, workers, now=0.0, commits=()):
    actions = []
    for worker in workers:
        actions += driver.requests_place(worker, commits, "", now)
    return actions


def started(driver, count, now=0.0):
    return [action.worker for action in driver.offer(slots(count), now) if isinstance(action, Start)]


def ends(actions):
    return [action.reason for action in actions if isinstance(action, End)]


def test_a_process_that_never_asks_is_killed_and_replaced():
    driver = Driver(Limits(least=2, most=2, start_s=60))
    assert started(driver, 2) == [0, 1]
    assert ready(driver, [0]) == []
    assert driver.patience() == 60
    assert any(action == Kill(1) for action in driver.tick(60.0))
    assert any(action == Start(2, Slot("a", 1)) for action in driver.exited(1, KILLED, 61.0))
    assert [type(action) for action in ready(driver, [2], 62.0)] == [Give, Give]


def test_a_rank_that_does_not_come_back_is_killed():
    driver = Driver(Limits(least=2, most=2, return_s=40))
    started(driver, 2)
    ready(driver, [0, 1])
    driver.synced(0)
    assert driver.requests_place(0, [3], "rank 1 is silent", 100.0) == []
    assert driver.patience() == 140.0
    assert Kill(1) in driver.tick(140.0)
    driver.exited(1, KILLED, 141.0)
    assert driver.requests_place(1, [3], "", 142.0) == [], "it is dead"
    given = [action for action in ready(driver, [2], 143.0) if isinstance(action, Give)]
    assert [(action.worker, action.place.rank, action.place.commit) for action in given] == [(0, 0, 3), (2, 1, 3)]


def test_an_exception_of_its_own_closes_the_slot():
    driver = Driver(Limits(least=1, most=2))
    started(driver, 2)
    ready(driver, [0, 1])
    driver.synced(0)
    actions = driver.exited(1, RAISED, 1.0)
    assert not ends(actions) and not any(isinstance(action, Start) for action in actions)
    given = [action for action in driver.requests_place(0, [4], "", 2.0) if isinstance(action, Give)]
    assert [action.place.size for action in given] == [1]
    strict = Driver(Limits(least=2, most=2))
    started(strict, 2)
    ready(strict, [0, 1])
    (reason,) = ends(strict.exited(1, RAISED, 1.0))
    assert reason == "rank 1 (pid 7) exited with code 1: ValueError: no; 1 slot left, and --min-np is 2"


def test_a_rank_that_failed_because_of_another_is_replaced():
    driver = Driver(Limits(least=2, most=2))
    started(driver, 2)
    actions = driver.exited(1, Exit(code=1, words="JobError", follows=True), 1.0)
    assert any(isinstance(action, Start) for action in actions)


def test_slots_in_which_processes_always_die_are_given_up():
    driver = Driver(Limits(least=1, most=1, fruitless=5))
    (worker,) = started(driver, 1)
    for _ in range(4):
        (worker,) = [action.worker for action in driver.exited(worker, KILLED, 0.0) if isinstance(action, Start)]
    (reason,) = ends(driver.exited(worker, KILLED, 0.0))
    assert "the 5th time without a commit" in reason


def test_worlds_without_a_commit_are_not_made_for_ever():
    driver = Driver(Limits(least=2, most=2, fruitless=3))
    started(driver, 2)
    ready(driver, [0, 1])
    for _ in range(3):
        assert not ends(ready(driver, [0, 1], commits=(0,)))
    driver.requests_place(0, (0,), "ranks disagree on op 2", 0.0)
    (reason,) = ends(driver.requests_place(1, (0,), "", 0.0))
    assert reason == "ranks disagree on op 2: the last 3 worlds ended without a commit"


def test_the_limit_of_resets():
    driver = Driver(Limits(least=2, most=2, resets=1))
    started(driver, 2)
    ready(driver, [0, 1])
    assert not ends(ready(driver, [0, 1], commits=(1,)))
    driver.requests_place(0, (2,), "rank 1 died", 0.0)
    (reason,) = ends(driver.requests_place(1, (2,), "", 0.0))
    assert reason == "rank 1 died: the job has been reset 1 times, which is --reset-limit"


def test_when_all_that_held_the_state_are_gone_the_job_has_failed():
    driver = Driver(Limits(least=2, most=2))
    started(driver, 2)
    ready(driver, [0, 1])
    driver.synced(0)
    driver.synced(1)
    first = Exit(code=-9, words="rank 0 was killed")
    assert not ends(driver.exited(0, first, 1.0))
    (reason,) = ends(driver.exited(1, KILLED, 1.0))
    assert f"all ranks that held the last commit have died, the last: {KILLED.words}; commits" in reason


def test_before_anybody_had_a_state_all_may_die():
    driver = Driver(Limits(least=2, most=2))
    started(driver, 2)
    ready(driver, [0, 1])
    actions = driver.exited(0, KILLED, 1.0) + driver.exited(1, KILLED, 1.0)
    assert not ends(actions)
    assert [action.worker for action in actions if isinstance(action, Start)] == [2, 3]


def test_with_fewer_at_once_and_with_more_after_a_commit():
    driver = Driver(Limits(least=1, most=2))
    started(driver, 2)
    ready(driver, [0, 1])
    driver.exited(1, KILLED, 1.0)
    given = [action for action in driver.requests_place(0, [3], "", 1.0) if isinstance(action, Give)]
    assert [action.place.size for action in given] == [1]
    assert driver.requests_place(2, [], "", 5.0) == [Notify(0)]
    assert not any(isinstance(action, Notify) for action in driver.tick(6.0)), "told once"
    given = [action for action in driver.requests_place(0, [4], "", 7.0) if isinstance(action, Give)]
    assert [(action.worker, action.place.rank, action.place.commit) for action in given] == [(0, 0, 4), (2, 1, 4)]


def test_a_slot_that_is_gone_is_left_after_a_commit():
    driver = Driver(Limits(least=1, most=2))
    started(driver, 2)
    ready(driver, [0, 1])
    actions = driver.offer(slots(1), 1.0)
    assert [action for action in actions if isinstance(action, Notify)] == [Notify(0), Notify(1)]
    assert Retire(1) in driver.requests_place(1, [2], "", 2.0)
    given = [action for action in driver.requests_place(0, [2], "", 2.0) if isinstance(action, Give)]
    assert [(action.worker, action.place.size) for action in given] == [(0, 1)]
    assert not any(isinstance(action, Start) for action in driver.exited(1, Exit(code=0, words="left"), 3.0))


def test_too_few_slots_are_waited_for():
    driver = Driver(Limits(least=2, most=4, start_s=60))
    assert not ends(driver.offer(slots(1), 0.0))
    assert not ends(driver.tick(59.0))
    (reason,) = ends(driver.tick(60.0))
    assert reason == "1 slot has been offered for 60 s, and --min-np is 2"


def test_nothing_is_started_before_there_is_room_for_the_fewest():
    driver = Driver(Limits(least=2, most=4))
    assert not driver.offer(slots(1), 0.0)
    assert [action.slot for action in driver.offer(slots(3), 1.0) if isinstance(action, Start)] == slots(3)


def test_a_lost_host_gets_nothing_any_more():
    driver = Driver(Limits(least=2, most=4))
    both = slots(2) + slots(2, "b")
    driver.offer(both, 0.0)
    ready(driver, [0, 1, 2, 3])
    driver.synced(0)
    lost = Exit(code=-9, words="lost host b", host_lost=True)
    actions = driver.exited(2, lost, 1.0) + driver.exited(3, lost, 1.0)
    assert not any(isinstance(action, Start) for action in actions)
    given = [action for action in ready(driver, [0, 1], commits=(1,)) if isinstance(action, Give)]
    assert [action.place.size for action in given] == [2, 2]


def test_a_spare_slot_is_taken_when_another_is_closed():
    driver = Driver(Limits(least=2, most=2))
    assert started(driver, 3) == [0, 1]
    ready(driver, [0, 1])
    driver.synced(0)
    actions = driver.exited(1, RAISED, 1.0)
    assert [action.slot for action in actions if isinstance(action, Start)] == [Slot("a", 2)]


def test_the_end():
    driver = Driver(Limits(least=2, most=2))
    started(driver, 2)
    ready(driver, [0, 1])
    assert not ends(driver.exited(0, Exit(code=0, words=""), 1.0))
    assert ends(driver.exited(1, Exit(code=0, words=""), 1.0)) == [None]


@pytest.mark.parametrize("answer", [True, False])
def test_a_death_after_others_have_finished_is_a_failure(answer):
    driver = Driver(Limits(least=2, most=2))
    started(driver, 2)
    ready(driver, [0, 1])
    if answer:
        driver.finished(0, 1.0)
    else:
        driver.exited(0, Exit(code=0, words=""), 1.0)
    assert ends(driver.exited(1, KILLED, 1.0)) == ["killed, after other ranks had finished"]


def last_world(least=1):
    """Worker 1 of two has died, 0 goes on alone, and 2 is to replace 1."""
    driver = Driver(Limits(least=least, most=2))
    started(driver, 2)
    ready(driver, [0, 1])
    driver.synced(0)
    driver.synced(1)
    assert Start(2, Slot("a", 1)) in driver.exited(1, KILLED, 1.0)
    assert [
        type(action) for action in driver.requests_place(0, [3], "rank 1 died", 1.0) if isinstance(action, Give)
    ] == [Give]
    return driver


def test_elastic_end_a_process_that_asks_afterwards_is_told_to_leave():
    driver = last_world()
    assert not ends(driver.finished(0, 2.0))
    # Its connection is not there yet: what asks nevertheless is not an error of the job.
    actions = driver.requests_place(2, [], "", 3.0)
    assert not ends(actions) and driver.patience() == 62.0
    assert not ends(driver.exited(2, Exit(code=1, words="raised"), 4.0))
    assert ends(driver.exited(0, Exit(code=0, words=""), 500.0)) == [None], "it saves its model as long as it likes"


@pytest.mark.parametrize("asks", [True, False])
def test_elastic_end_a_late_process_does_not_keep_the_job(asks):
    driver = last_world()
    if asks:
        assert not ends(driver.requests_place(2, [], "", 1.5))
    assert Retire(2) in driver.finished(0, 2.0)
    assert ends(driver.exited(0, Exit(code=0, words=""), 3.0)) == [None]


def test_elastic_end_a_rank_may_take_its_time_though_another_asks_for_a_world():
    """The barrier at the end lets one rank through and fails on the other: both have finished."""
    driver = Driver(Limits(least=2, most=2, return_s=40))
    started(driver, 2)
    ready(driver, [0, 1])
    assert not ends(driver.requests_place(1, [3], "rank 0 has left", 1.0, done=True))
    assert driver.finished(0, 2.0) == [Release(1)]
    assert driver.patience() is None and not driver.tick(1000.0)
    driver.exited(1, Exit(code=0, words=""), 1001.0)
    assert ends(driver.exited(0, Exit(code=0, words=""), 1002.0)) == [None]


def test_elastic_end_a_death_before_the_others_say_so_counts_like_one_after():
    driver = Driver(Limits(least=2, most=2))
    started(driver, 2)
    ready(driver, [0, 1])
    driver.exited(1, KILLED, 1.0)
    assert ends(driver.finished(0, 2.0)) == ["killed, as other ranks finished"]


def test_the_state_is_handed_over_before_the_last_rank_that_holds_it_leaves():
    driver = Driver(Limits(least=1, most=1))
    started(driver, 1)
    ready(driver, [0])
    driver.synced(0)
    actions = driver.offer([Slot("b", 0)], 1.0)
    assert Notify(0) in actions and Start(1, Slot("b", 0)) in actions
    assert not driver.requests_place(0, [7], "", 2.0), "nobody else has the state yet"
    given = [action for action in driver.requests_place(1, [], "", 3.0) if isinstance(action, Give)]
    assert [(action.worker, action.place.size, action.place.commit) for action in given] == [(0, 2, 7), (1, 2, 7)]
    driver.synced(1)
    assert Retire(0) in driver.requests_place(0, [8], "", 4.0) + driver.requests_place(1, [8], "", 4.0)
    assert driver.workers[1].state is State.PLACED


def test_a_rank_that_waits_and_stops_does_not_hold_up_the_next_world():
    driver = Driver(Limits(least=2, most=2, start_s=60))
    started(driver, 2)
    ready(driver, [0, 1], now=5.0)
    driver.gave(0, 6.0)
    assert driver.patience() == 65.0
    assert Kill(1) in driver.tick(65.0)


def test_a_rank_whose_connection_is_cut_while_it_waits_asks_again_or_is_killed():
    driver = Driver(Limits(least=1, most=2, start_s=60))
    started(driver, 2)
    ready(driver, [0, 1])
    driver.synced(0)
    driver.synced(1)
    driver.requests_place(0, [4], "", 10.0)
    driver.disconnected(0, 11.0)
    assert not any(isinstance(action, Give) for action in driver.requests_place(1, [3], "", 12.0)), "0 may come back"
    assert Kill(0) in driver.tick(71.0)
    given = [action for action in driver.exited(0, KILLED, 72.0) if isinstance(action, Give)]
    assert [(action.worker, action.place.commit) for action in given] == [(1, 3)]


def test_hosts_that_come_and_go_faster_than_ranks_start():
    driver = Driver(Limits(least=2, most=2, fruitless=3))
    reasons, now = [], 0.0
    while not reasons and now < 100:
        reasons = ends(driver.offer(slots(2), now)) + ends(driver.offer([], now + 4.0))
        now += 8.0
    assert now < 30 and reasons == ["0 slots are offered, and --min-np is 2: too few 3 times without a world between"]
