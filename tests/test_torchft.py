"""torchft's process group over Paceline: a rank is killed, and the others are configured again in the same process."""

import re
import subprocess
import sys
from importlib.util import find_spec
from pathlib import Path

import pytest

pytestmark = [
    pytest.mark.process,
    pytest.mark.timeout(300),
    pytest.mark.skipif(find_spec("torchft") is None, reason="needs torchft (make test-all installs it)"),
]
RANK = Path(__file__).parent / "torchft_workers" / "rank.py"


def start(port, rank, first, by):
    command = [sys.executable, str(RANK), f"localhost:{port}", str(rank), str(first), by]
    return subprocess.Popen(command, stdout=subprocess.PIPE, stderr=subprocess.STDOUT, text=True)


@pytest.mark.parametrize("by", ["configure", "reconfigure"])
def test_the_others_go_on_without_a_killed_rank_and_another_takes_its_place(by):
    from torch.distributed import TCPStore

    store = TCPStore("localhost", 0, is_master=True, wait_for_workers=False)
    ranks = [start(store.port, rank, 0, by) for rank in range(3)]
    later = None
    try:
        assert "sum 6" in ranks[2].communicate(timeout=120)[0] and ranks[2].returncode == -9
        later = start(store.port, 2, 2, by)
        said = [process.communicate(timeout=120)[0] for process in [*ranks[:2], later]]
    finally:
        for process in [*ranks, *([later] if later else [])]:
            process.kill()
    for text in said[:2]:
        assert "configuration 0: sum 6" in text and "configuration 1: sum 3" in text, text
        assert "noticed" in text and "rank 2" in text, text
    for text in said:
        assert "configuration 2: sum 6" in text and text.endswith("done\n"), text


def test_training_goes_on_at_the_next_step_and_a_replica_comes_back(tmp_path):
    from torchft.coordination import LighthouseServer

    lighthouse = LighthouseServer(bind="[::]:0", min_replicas=1, join_timeout_ms=1000)
    address = re.sub(r"//[^:]+:", "//localhost:", lighthouse.address())

    def replica(number, *options):
        command = [sys.executable, str(RANK.with_name("replica.py")), address, str(number), str(tmp_path), *options]
        output = (tmp_path / f"{number}{''.join(options)}.txt").open("w+")
        return subprocess.Popen(command, stdout=output, stderr=subprocess.STDOUT, text=True)

    running = [replica(0), replica(1, "die")]
    try:
        assert running[1].wait(120) == -9, (tmp_path / "1die.txt").read_text()
        running.append(replica(1))
        for process in (running[0], running[2]):
            assert process.wait(120) == 0, "".join(path.read_text() for path in sorted(tmp_path.glob("*.txt")))
    finally:
        for process in running:
            process.kill()
        lighthouse.shutdown()
    values = [
        re.findall(r"step (\d+), \d+ repeated, weights (\w+)", (tmp_path / name).read_text())
        for name in ("0.txt", "1.txt")
    ]
    assert values[0] == values[1] and len(values[0]) == 1, values


def test_the_collectives_of_torchfts_own_tests():
    """Ranks are threads there. The functions check their results."""
    pytest.importorskip("parameterized", reason="torchft's tests need parameterized")
    suite = pytest.importorskip("torchft.process_group_test", reason="this torchft has no tests")
    from datetime import timedelta

    from paceline.torch.torchft import ProcessGroupPaceline

    class OverPaceline(suite.MultiPgBaseTest):
        WORLD_SIZE = 3

        @classmethod
        def _create_pg(cls, backend):
            return ProcessGroupPaceline(timedelta(seconds=60))

        def runTest(self):
            for collective in suite._COLLECTIVE_TO_FUNC:
                self._run_parallel(collective)

    test = OverPaceline()
    OverPaceline.setUpClass()
    try:
        test.runTest()
    finally:
        OverPaceline.tearDownClass()
