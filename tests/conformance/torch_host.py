"""Runs torch's own tests of process groups with Paceline, one after the other, and prints a JSON line for each.

The tests are those of the installed wheel, or of a source tree of torch; none is copied. What a test finds in place of
a backend's name is equal to "gloo", so that nothing is skipped that gloo is able to do, and creates Paceline's group.
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
from outcome import Result

WHEEL = "torch.testing._internal.distributed.distributed_test"
# What a file of tests has where it chooses its backend, and what stands there instead.
_CHOICES = {'os.environ["BACKEND"]': "_conformance_backend"}


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
    source = path.read_text()
    for chosen, instead in _CHOICES.items():
        source = source.replace(chosen, instead)
    spec = importlib.util.spec_from_file_location(name, path)
    assert spec is not None
    module = importlib.util.module_from_spec(spec)
    sys.modules[name] = module
    vars(module)["_conformance_backend"] = backend
    exec(compile(source, str(path), "exec", dont_inherit=True), vars(module))
    return module


def tests_of_wheel(backend: Backend) -> type[unittest.TestCase]:
    """Return the tests of process groups in torch's wheel, forked instead of spawned, which saves minutes."""
    from torch.testing._internal import common_distributed as common

    place = importlib.util.find_spec(WHEEL)
    assert place is not None
    assert place.origin is not None
    common.DistTestCases.backend_feature["plugin"].add(str(backend))
    # What torch asks for, too few ranks for groups of several, so that its CI's machines need not run them: 8.
    common.skip_if_small_worldsize = unittest.skipIf(int(os.environ["WORLD_SIZE"]) < 4, "Needs 4 ranks")
    module = load(Path(place.origin), WHEEL, backend)

    class TestDistributed(module.TestDistBackend, module.DistributedTest._DistTestBase):  # type: ignore[name-defined,misc]
        def setUp(self) -> None:
            super().setUp()
            self._fork_processes()

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

    def fork(self: Any) -> None:
        self._start_processes(torch.multiprocessing.get_context("fork").Process)

    common.MultiProcessTestCase._fork_processes = fork
    common.TIMEOUT_OVERRIDE.clear()
    case = tests_of_wheel(Backend(request["backend"], "gloo"))
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
