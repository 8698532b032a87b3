"""What the pages of `paceline explore` draw, as JSON: the one place that knows where it is computed."""

import json
from typing import Any

_MOST = 40
"""Values of a list that are shown; of longer ones the first and last, and all numbers' sum."""


def of_trace(**state: Any) -> str:
    """Return the page of a recording for the positions of its sliders."""
    from paceline_lab.explore.answers import answer
    from paceline_lab.explore.state import parse

    return _printed(answer(parse(json.dumps(state).encode())))


def of_model(**state: Any) -> str:
    """Return the page of a model on GPUs for the positions of its sliders."""
    from paceline_lab.explore.model_answers import answer
    from paceline_lab.explore.state import parse_of_model

    return _printed(answer(parse_of_model(json.dumps(state).encode())))


def _printed(drawn: dict[str, Any]) -> str:
    return json.dumps(_short({key: value for key, value in drawn.items() if key != "elapsed_ms"}))


def _short(value: Any) -> Any:
    if isinstance(value, dict):
        return {key: _short(one) for key, one in value.items()}
    if not isinstance(value, (list, tuple)):
        return value
    if len(value) <= _MOST:
        return [_short(one) for one in value]
    return {"length": len(value), "first": _short(value[0]), "last": _short(value[-1]), "sum": sum(_numbers(value))}


def _numbers(value: Any) -> list[float]:
    if isinstance(value, dict):
        return [number for one in value.values() for number in _numbers(one)]
    if isinstance(value, (list, tuple)):
        return [number for one in value for number in _numbers(one)]
    return [value] if isinstance(value, (int, float)) and not isinstance(value, bool) else []
