"""The names of exceptions and their base classes."""

import paceline
import pytest


def test_every_error_is_a_paceline_error_and_of_python_s_own_kind():
    assert issubclass(paceline.InvalidArgumentError, (paceline.PacelineError, ValueError))
    assert issubclass(paceline.JobError, (paceline.PacelineError, RuntimeError))
    with pytest.raises(paceline.PacelineError, match="unknown trace"):
        paceline.simulate("resnet-5", strategy="ring", workers=2)


def test_the_old_name_works_with_a_warning():
    with pytest.warns(DeprecationWarning, match="paceline.UserError is now paceline.InvalidArgumentError"):
        assert paceline.UserError is paceline.InvalidArgumentError
    with pytest.warns(DeprecationWarning, match="paceline.job.UserError"):
        assert paceline.job.UserError is paceline.InvalidArgumentError
    with pytest.raises(AttributeError, match="no attribute 'nothing'"):
        paceline.nothing  # noqa: B018


def test_native_errors_are_these():
    with pytest.raises(paceline.InvalidArgumentError) as caught:
        paceline.Trace.all_reduce("allreduce:3")
    assert type(caught.value) is paceline.InvalidArgumentError


@pytest.mark.parametrize("version", ["2.4.0", "2.6.0+cpu"])
def test_a_torch_over_which_ddp_would_hang_is_refused(version):
    pytest.importorskip("torch")
    from paceline.torch.backend.register import check_torch
    from torch.torch_version import TorchVersion

    with pytest.raises(paceline.InvalidArgumentError, match=rf"torch {version[:3]}.*needs torch 2\.7 or newer"):
        check_torch(TorchVersion(version))
    for fine in ("2.7.0", "2.10.0+cpu", "2.15.0.dev20261101", "3.0.0a0"):
        check_torch(TorchVersion(fine))
