"""Errors in training when a rank dies, raises or is stopped in the middle of a backward pass."""

import pytest
from torch_workers import failures
from torch_workers.launch import RankError, run

pytestmark = pytest.mark.process


@pytest.mark.parametrize(
    ("how", "seconds", "said"),
    [
        ("kill", 2.5, "died"),
        ("raise", 3.5, "has left the job"),
        pytest.param("stop", 9, "silent", marks=pytest.mark.slow),
    ],
)
def test_a_misfortune_in_mid_backward_is_told_to_the_others(tmp_path, how, seconds, said):
    with pytest.raises(RankError) as error:
        run(3, failures.in_backward, how, str(tmp_path), env={"PACELINE_TIMEOUT": "5"}, limit_s=25)
    assert "rank 1: " in str(error.value), "rank 1 is the only one that fails"
    assert "rank 0: " not in str(error.value).split("rank 1: ")[0]
    for rank in (0, 2):
        took, text = (tmp_path / str(rank)).read_text().split("\n", 1)
        assert "rank 1 (" in text, text
        assert said in text, text
        assert float(took) < seconds
