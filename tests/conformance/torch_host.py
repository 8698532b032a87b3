"""Runs torch's own tests of process groups with Paceline, one after the other, and prints a JSON line for each.

The tests are those of the installed wheel; none is copied. What a test finds in place of a backend's name is equal to
"gloo", so that nothing that gloo can do is skipped, and creates Paceline's group.
"""

from __future__ import annotations

import faulthandler
import importlib.util
import json
import os
import sys
import types
import unittest
from pathlib import Path
from typing import Any

sys.path.insert(0, str(Path(__file__).parent))
from loading import execute
from outcome import Result

_CHOICE = 'os.environ["BACKEND"]'
"""Where a file of tests chooses its backend."""


class Backend(str):
    """The name of a backend that is also equal to another's."""

    __slots__ = ("like",)

    def __new__(cls, name: str, like: str) -> Backend:
        """Return the name of a backend that passes for `like`."""
        made = super().__new__(cls, name)
        made.like = like
        return made

    def __eq__(self, other: object) -> bool:
        """Equal to both names."""
        return str.__eq__(self, other) is True or other == str(self.like)

    def __ne__(self, other: object) -> bool:
        """See `__eq__`."""
        return not self == other

    def __hash__(self) -> int:
        """Be found in sets of backends with the other name."""
        return hash(self.like)


def load(path: Path, name: str, backend: Backend) -> types.ModuleType:
    """Execute the file at `path` as the module `name`, with `backend` where it chooses one."""
    source = path.read_text().replace(_CHOICE, "_conformance_backend")
    return execute(path, name, source, _conformance_backend=backend)


def tests_of_wheel(name: str, backend: Backend) -> type[unittest.TestCase]:
    """Return the tests in a module of torch's wheel, with ranks that are forked instead of spawned, to save minutes."""
    import torch
    from torch.testing._internal import common_distributed as common

    place = importlib.util.find_spec(name)
    assert place is not None
    assert place.origin is not None
    common.DistTestCases.backend_feature["plugin"].add(str(backend))
    # They need 4 ranks; torch asks for 8, so that its own CI skips them.
    common.skip_if_small_worldsize = unittest.skipIf(int(os.environ["WORLD_SIZE"]) < 4, "Needs 4 ranks")
    module = load(Path(place.origin), name, backend)

    class TestDistributed(module.TestDistBackend, module.DistributedTest._DistTestBase):  # type: ignore[name-defined,misc]
        def setUp(self) -> None:
            super().setUp()
            self._start_processes(torch.multiprocessing.get_context("fork").Process)

    return TestDistributed


def main() -> None:
    """Read what to run from the command line."""
    request = json.loads(sys.argv[1])
    faulthandler.enable()
    ranks = int(request["ranks"])
    os.environ |= {
        "BACKEND": request["backend"],
        "WORLD_SIZE": str(ranks),
        "DISTRIBUTED_TESTS_DEFAULT_TIMEOUT": str(request["timeout_s"]),
        "TEMP_DIR": request["folder"],
        "INIT_METHOD": f"file://{request['folder']}/init",
    }
    import torch
    from torch.testing._internal import common_distributed as common

    if request["backend"] == "paceline":
        import paceline.torch  # noqa: F401  # for the forked ranks

    torch.set_num_threads(1)

    common.TIMEOUT_OVERRIDE.clear()
    case = tests_of_wheel(request["file"], Backend(request["backend"], "gloo"))
    names = unittest.TestLoader().getTestCaseNames(case)
    wanted = request.get("only")
    out = os.fdopen(os.dup(1), "w")
    # What tests print goes to the log.
    os.dup2(2, 1)

    def write(record: dict[str, Any]) -> None:
        print(json.dumps(record), file=out, flush=True)

    result = Result(write)
    for name in names:
        if wanted is None or name in wanted:
            case(name).run(result)
    os._exit(0)


if __name__ == "__main__":
    main()
