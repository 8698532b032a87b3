"""Every family of transformers by its default configuration: as many parameters, or a reason why not."""

import json

import pytest
from paceline import InvalidArgumentError
from paceline.catalog.models.config import Config
from paceline.catalog.models.families import model_of

_TASKS = ("CAUSAL_LM", "IMAGE_TEXT_TO_TEXT", "MASKED_LM", "SEQ_TO_SEQ_CAUSAL_LM", "SPEECH_SEQ_2_SEQ")


@pytest.mark.slow
@pytest.mark.parametrize("task", _TASKS)
def test_a_family_is_right_or_refused_or_its_rest_is_named(task):
    """A model of several parts may be forecast without those that are no language model, with a note."""
    transformers, torch = pytest.importorskip("transformers"), pytest.importorskip("torch")
    auto = pytest.importorskip("transformers.models.auto.modeling_auto")
    wrong, right = [], 0
    for kind, names in getattr(auto, f"MODEL_FOR_{task}_MAPPING_NAMES").items():
        name = names[0] if isinstance(names, tuple | list) else names
        try:
            config = transformers.AutoConfig.for_model(kind)
            fields = json.loads(config.to_json_string(use_diff=False))
            mine = model_of(Config(kind, "here", {**fields, "architectures": [name]}))
            with torch.device("meta"):
                theirs = getattr(transformers, name)._from_config(config)
        except InvalidArgumentError:
            continue
        except Exception:  # Defaults of transformers from which it makes no model itself, or which need more packages.
            continue
        right += 1
        if mine.parameters != sum(it.numel() for it in theirs.parameters()):
            is_partial = mine.parameters < theirs.num_parameters() and any("Skipped" in note for note in mine.notes)
            wrong += [] if is_partial else [kind]
    assert not wrong
    assert right
