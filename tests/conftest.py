"""How many examples hypothesis tries, and which tier a test belongs to.

Few examples in `make test`, many in `make test-all` (`--hypothesis-profile=full`); no deadlines, for busy machines.
"""

import os
import signal
import sys

import pytest
import tiers
from hypothesis import settings

settings.register_profile("few", max_examples=25, deadline=None)
settings.register_profile("full", max_examples=150, deadline=None)
settings.load_profile("few")

os.environ["COLUMNS"] = "120"  # pytest-xdist sets 80.
# Several workers share the cores: torch's threads would wait for each other, busily.
os.environ.setdefault("OMP_NUM_THREADS", "1")
# Else Python writes a line and its end apart, and those of two ranks mix in the pipe of a launcher.
os.environ.pop("PYTHONUNBUFFERED", None)

# Models by name mean the built-in ones, whatever the user has downloaded.
os.environ["HF_HUB_CACHE"] = os.devnull

sys.addaudithook(tiers.audit)

# A shell that is not interactive starts commands in the background with Ctrl-C ignored, also by all their children.
if signal.getsignal(signal.SIGINT) is signal.SIG_IGN:
    signal.signal(signal.SIGINT, signal.default_int_handler)


def pytest_collection_modifyitems(items: list[pytest.Item]):
    """Begin with what one process must run as a whole, and what may take long: last, it would run alone."""

    def limit_s(item: pytest.Item) -> float:
        marker = item.get_closest_marker("timeout")
        return marker.args[0] if marker else 0

    items.sort(key=lambda item: (item.get_closest_marker("xdist_group") is None, -limit_s(item)))


@pytest.hookimpl(wrapper=True)
def pytest_runtest_protocol(item: pytest.Item):
    """Tell `tiers` which test is running."""
    if not any(item.get_closest_marker(name) for name in ("process", "slow")):
        tiers.everyday[:] = [item.nodeid]
    try:
        return (yield)
    finally:
        tiers.everyday.clear()
