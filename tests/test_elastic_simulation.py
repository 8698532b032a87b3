"""Elastic jobs in a virtual world: the search finds old faults, repeats itself to the byte, and is clean now."""

import time
from itertools import count

import pytest

pytest.importorskip("greenlet")

from elastic_simulation import exhaustive
from elastic_simulation.corpus import SCENARIOS
from elastic_simulation.scenario import draw, run
from elastic_simulation.systematic import two_ranks
from paceline.job.elastic_member import LauncherGoneError, Membership
from paceline.launch.elastic import discovery
from paceline.launch.elastic.driver import Driver
from paceline.launch.elastic.roster import State
from paceline.launch.elastic.service import Service
from paceline.launch.elastic.supervisor import ElasticSupervisor
from paceline.launch.supervisor import Supervisor


def test_equal_seeds_give_equal_events():
    for seed in range(40):
        first, again = run(draw(seed)), run(draw(seed))
        assert "\n".join(first.log) == "\n".join(again.log)
        assert (first.code, first.violations) == (again.code, again.violations)
    assert run(draw(1)).log != run(draw(2)).log


def test_random_worlds():
    states = set()
    for seed in range(150):
        result = run(draw(seed))
        assert not result.violations, f"python -m elastic_simulation --replay {seed}: {result.violations}"
        states |= result.states
    assert len(states) > 100


@pytest.mark.parametrize("scenario", SCENARIOS, ids=lambda scenario: str(scenario.seed))
def test_what_failed_once(scenario):
    assert not run(scenario).violations


@pytest.mark.slow
def test_every_order_of_messages_with_two_ranks_a_death_and_a_late_request():
    reached = exhaustive.explore()
    assert not reached.violations, "\n".join(reached.violations[0])
    assert reached.states > 10_000


@pytest.mark.slow
def test_every_order_of_messages_with_two_deaths():
    reached = exhaustive.explore(deaths=2)
    assert not reached.violations, "\n".join(reached.violations[0])


@pytest.mark.slow
def test_a_death_before_every_event_and_a_request_at_every_moment():
    for scenario in two_ranks():
        assert not run(scenario, coverage=False).violations, scenario


# Each of these puts a fault back that Paceline has had, or could have had.


def late_request(patch):
    """A process that asks when training has ended fails the job."""

    def _finish(self, now):
        self._finished = True

    def _see_through(self):
        if self._in(State.WAITING):
            self._end(f"a rank ended before others had finished; {self._why}")
        elif not self.workers:
            self._end(None)

    patch.setattr(Driver, "_finish", _finish)
    patch.setattr(Driver, "_see_through", _see_through)


def flapping_script(patch):
    """Answers of a discovery script are taken at their word, and shortages are not counted."""
    patch.setattr(discovery, "_GONE", 1)
    check = Driver._check

    def _check(self, now):
        self._shortages = 0
        check(self, now)

    patch.setattr(Driver, "_check", _check)


def returning_limit_after_the_end(patch):
    """A rank that saves its model is killed, because another one asks for a world."""
    due = Driver._due

    def _due(self, worker):
        return not self.intact if worker.state is State.PLACED else due(self, worker)

    patch.setattr(Driver, "_due", _due)


def state_not_handed_over(patch):
    """A rank whose slot is gone leaves at once, though nobody else holds the state."""
    patch.setattr(Driver, "_with_state", lambda self, waiting: waiting)
    dismiss = Driver._dismiss

    def _dismiss(self, now):
        held, self._held = self._held, False
        dismiss(self, now)
        self._held = held

    patch.setattr(Driver, "_dismiss", _dismiss)


def never_reconnects(patch):
    def _reconnect(self):
        raise LauncherGoneError("gone")

    patch.setattr(Membership, "_reconnect", _reconnect)


def stale_answers(patch):
    """An answer to an earlier round counts for this one."""
    next_ = Membership._next

    def _next(self, *kinds):
        message = next_(self, *kinds)
        if "void" in message or "of" in message:
            message = {
                name: self.place.generation if name in ("void", "of") else each for name, each in message.items()
            }
        return message

    patch.setattr(Membership, "_next", _next)


def waits_for_a_stopped_rank_for_ever(patch):
    """Nobody limits how long ranks of a new world wait for each other's addresses."""
    patch.setattr(Driver, "_await", lambda self, now: None)
    patch.setattr(Driver, "gave", lambda self, number, now: self._take())


def all_hosts_lost_is_success(patch):
    patch.setattr(Service, "abandon", lambda self, reason: [])


def spins_while_stopping(patch):
    def _turn(self):
        if not self.stopping:
            turn(self)

    turn = ElasticSupervisor._turn
    patch.setattr(ElasticSupervisor, "_turn", _turn)


def lost_host_after_the_end(patch):
    lost = ElasticSupervisor._lost

    def _lost(self, host, message):
        (Supervisor._lost if self.stopping else lost)(self, host, message)

    patch.setattr(ElasticSupervisor, "_lost", _lost)


def barrier_does_not_say_that_it_is_done(patch):
    """A rank on which the barrier at the end has failed wants another world."""
    patch.setattr(Membership, "again", lambda self: True)


def rank_0_is_whoever_comes_first(patch):
    """The world begins anew, whoever holds the commit."""
    patch.setattr("paceline.launch.elastic.order.agreed", lambda workers: None)


MUTATIONS = [
    late_request,
    flapping_script,
    returning_limit_after_the_end,
    state_not_handed_over,
    never_reconnects,
    stale_answers,
    waits_for_a_stopped_rank_for_ever,
    spins_while_stopping,
    lost_host_after_the_end,
    barrier_does_not_say_that_it_is_done,
    rank_0_is_whoever_comes_first,
]


@pytest.mark.parametrize(
    "mutation",
    [*MUTATIONS[:1], *(pytest.param(mutation, marks=pytest.mark.slow) for mutation in MUTATIONS[1:])],
    ids=lambda mutation: mutation.__name__,
)
def test_mutations_are_found_within_a_minute(mutation, monkeypatch, capsys):
    mutation(monkeypatch)
    begin = time.process_time()
    for seed in count():
        result = run(draw(seed), coverage=False)
        if result.violations:
            break
        assert time.process_time() - begin < 59, f"not found in {seed} schedules"
    with capsys.disabled():
        print(f"\n{mutation.__name__}: seed {seed}, {time.process_time() - begin:.1f} s: {result.violations[0][:150]}")


def test_a_mutation_that_needs_a_rare_meeting_of_faults_is_found_by_what_failed_once(monkeypatch):
    all_hosts_lost_is_success(monkeypatch)
    assert any("nobody has finished" in violation for each in SCENARIOS for violation in run(each).violations)
