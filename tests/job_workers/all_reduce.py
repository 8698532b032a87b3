"""Every strategy, dtype and op over the given transports, one job after the other, each rank checked against numpy.

Arguments: transports separated by commas (`copied` is shm without single copies, `tls` encrypted gRPC), lengths
likewise, and `async` to have all of a strategy's operations in flight.
"""

import os
import sys

import paceline

from job_workers.values import DTYPES, NO_AVERAGE, OPS, Digest, check_combined, holdings, said, tell, values

STRATEGIES = [entry.name for entry in paceline.all_strategies() if not entry.is_offloaded]

SPECIAL = {"copied": {"transport": "shm", "single_copy": False}, "tls": {"transport": "grpc", "tls": True}}


def everything(job, lengths, in_flight, digest):
    for strategy in STRATEGIES:
        by(job, strategy, lengths, in_flight, digest)


def by(job, strategy, lengths, in_flight, digest):
    """Every dtype and op by one strategy."""
    begun = []
    for length in lengths:
        for dtype in DTYPES:
            for number, op in enumerate(OPS):
                if op == "average" and dtype in NO_AVERAGE:
                    continue
                seeds = [(rank, number) for rank in range(job.size)]
                array = values(dtype, length, job.rank, number)
                handle = job.all_reduce(array, op, strategy=strategy, async_=in_flight, **said(dtype))
                begun.append((handle, array, op, dtype, seeds))
    for handle, array, op, dtype, seeds in begun:
        if in_flight:
            assert handle.wait() is array
            assert handle.done()
        check_combined(array, op, dtype, seeds, strategy)
        digest.add(array)


def main(transports, lengths, in_flight):
    before, digests = holdings(), {}
    for word in transports:
        digest = Digest()
        settings = dict(SPECIAL.get(word, {"transport": word}))
        if word == "tcp" and "JOB_TEST_RENDEZVOUS" in os.environ:
            # Other transports of this run must not inherit it.
            settings["rendezvous"] = os.environ["JOB_TEST_RENDEZVOUS"]
        with paceline.job.join(**settings) as job:
            if job.size > 1 and word != "auto":
                # The tensors' transport, not that of control messages.
                used = settings["transport"].removeprefix("grpc+")
                assert set(job.status()["transports"]) - {"self"} == {used}, job.status()
            everything(job, lengths, in_flight, digest)
        digests[word] = digest.text()
    tell(digests=digests, before=before, after=holdings())


if __name__ == "__main__":
    main(sys.argv[1].split(","), [int(word) for word in sys.argv[2].split(",")], "async" in sys.argv)
