"""The simulations of a chapter: its runs, their explanation, and the events of one run."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Any

from paceline._internal import units
from paceline.catalog.strategies import find_strategy
from paceline.errors import InvalidArgumentError
from paceline.forecast.execute import execute
from paceline.forecast.result import Result
from paceline.forecast.run import traced
from paceline.forecast.verdict.advice import Verdict, advise
from paceline.forecast.verdict.explain import Explanation, explain
from paceline.forecast.verdict.groups import Group, grouped, is_too_large
from paceline.forecast.verdict.remedy import Proposed, proposed
from paceline.forecast.wording import rows, verdict
from paceline.forecast.wording.verdict import Answer

from paceline_lab.report.lanes import MOST_LANES
from paceline_lab.report.spec import Chapter, Spec


@dataclass(frozen=True)
class Simulated:
    """A chapter's results. `events`: of the run `shown`, in Chrome's format."""

    chapter: Chapter
    groups: Sequence[Group]
    results: Sequence[Result]
    answers: Sequence[Answer]
    notes: Sequence[str]
    explanation: Explanation | None
    shown: Result | None
    events: Sequence[dict[str, Any]]

    @property
    def largest(self) -> Group:
        """The configuration with the most workers; the first of several."""
        return max(self.groups, key=lambda group: group.results[0].workers)


def simulated(spec: Spec, progress: Callable[[int, int], None] | None = None) -> list[Simulated]:
    """Simulate all chapters. Raises InvalidArgumentError naming the chapter."""
    runs = [run for chapter in spec.chapters for run in chapter.prepared.scenarios]
    results = execute(runs, progress)
    made, begin = [], 0
    for number, chapter in enumerate(spec.chapters, start=1):
        end = begin + len(chapter.prepared.scenarios)
        made.append(_simulated(number, chapter, results[begin:end]))
        begin = end
    return made


def _simulated(number: int, chapter: Chapter, results: Sequence[Result]) -> Simulated:
    prepared = chapter.prepared
    groups = grouped(prepared.scenarios, results, requested_extras=prepared.requested_extras, noun=prepared.noun)
    shown, events = _timeline(number, chapter, groups)
    answers = [verdict.answer(one, groups, proposed=_proposed(chapter, one)) for one in advise(groups)]
    return Simulated(
        chapter=chapter,
        groups=groups,
        results=results,
        answers=answers,
        notes=[*(note for one in answers for note in one.notes), *prepared.notes, *rows.notes(results)],
        explanation=explain(groups) if chapter.explained else None,
        shown=shown,
        events=events,
    )


def _proposed(chapter: Chapter, of: Verdict) -> Proposed | None:
    return proposed(chapter.typed, chapter.sweep, of.group.scenario(of.result), of.result)


def _timeline(number: int, chapter: Chapter, groups: Sequence[Group]) -> tuple[Result | None, list[Any]]:
    """Return the timeline of the requested run, or of the fastest on the fewest workers."""
    if chapter.shown is None:
        return None, []
    strategy, workers = chapter.shown
    pairs = [
        (scenario, result) for group in groups for scenario, result in zip(group.scenarios, group.results, strict=True)
    ]
    if strategy is not None:
        name = find_strategy(strategy).name
        pairs = [pair for pair in pairs if pair[1].strategy == name]
    count = workers if workers is not None else min((pair[1].workers for pair in pairs), default=0)
    pairs = [pair for pair in pairs if pair[1].workers == count]
    if not pairs:
        wanted = units.listed([str(word) for word in (strategy, workers) if word is not None])
        raise InvalidArgumentError(
            f"chapter {number}: timeline: {wanted}: the chapter has no such run", remedy="one of its runs"
        )
    scenario, result = min(pairs, key=lambda pair: (is_too_large(pair[1]), pair[1].iteration_s))
    return result, traced(scenario, MOST_LANES)[1]
