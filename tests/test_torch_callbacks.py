"""Futures whose callbacks wait for other operations. The ranks run `torch_workers.callbacks`."""

import paceline
import paceline.torch
import pytest
from torch_workers import callbacks
from torch_workers.launch import run

pytestmark = pytest.mark.process


def test_what_is_no_hook_is_refused():
    with pytest.raises(paceline.InvalidArgumentError, match="in_order: None is not a communication hook"):
        paceline.torch.in_order(None)


def test_compression_hooks_that_wait_in_callbacks_give_what_they_give_with_gloo():
    run(2, callbacks.hooks_as_with_gloo, default=None, limit_s=60)


def test_callbacks_may_wait_raise_and_begin_operations():
    run(2, callbacks.everything, limit_s=60)


def test_a_callback_that_waits_when_the_job_ends_is_told():
    run(2, callbacks.the_end, default=None, limit_s=60)
