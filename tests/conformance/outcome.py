"""What becomes of each test of a suite, as records that another process reads."""

from __future__ import annotations

import time
import unittest
from collections.abc import Callable
from typing import Any


class Result(unittest.TestResult):
    """Passes on a record of each test: its name, what became of it, the message of its failure or skip, seconds."""

    def __init__(
        self,
        write: Callable[[dict[str, Any]], None],
        begin: Callable[[str], None] = lambda name: None,
        *,
        whole: bool = False,
    ) -> None:
        """`write` gets each test's record, `begin` its name before it runs; `whole`: the name with module and class."""
        super().__init__()
        self.whole = whole
        self.write, self.begin = write, begin
        self.began = 0.0
        self.result: tuple[str, str] = ("passed", "")
        self.failed_at = 0.0

    def _name(self, test: unittest.TestCase) -> str:
        return test.id() if self.whole else test.id().split(".")[-1]

    def startTest(self, test: unittest.TestCase) -> None:
        """See the class."""
        super().startTest(test)
        self.begin(self._name(test))
        self.began, self.result = time.monotonic(), ("passed", "")

    def addError(self, test: unittest.TestCase, err: Any) -> None:
        """See the class."""
        if err[0].__name__ == "Skipped":  # pytest.skip()
            self.addSkip(test, str(err[1]))
            return
        super().addError(test, err)
        if self.result[0] != "failed":  # What follows in tearDown is a consequence.
            self.result, self.failed_at = ("failed", self._exc_info_to_string(err, test)), time.time()

    def addFailure(self, test: unittest.TestCase, err: Any) -> None:
        """See the class."""
        self.addError(test, err)

    def addSubTest(self, test: unittest.TestCase, subtest: unittest.TestCase, err: Any) -> None:
        """See the class."""
        if err is not None:
            self.addError(test, err)

    def addSkip(self, test: unittest.TestCase, reason: str) -> None:
        """See the class."""
        super().addSkip(test, reason)
        self.result = ("skipped", reason)

    def stopTest(self, test: unittest.TestCase) -> None:
        """See the class."""
        outcome, message = self.result
        seconds = time.monotonic() - self.began
        record = {"test": self._name(test), "outcome": outcome, "message": message, "seconds": seconds}
        self.write(record | {"failed_at": self.failed_at})
        super().stopTest(test)
