"""Logs of benchmarks that are not read: what each is, for the message that refuses it."""

from __future__ import annotations

import re

_PAIR = "the rate or latency between two hosts"
_OTHERS = (
    (
        "perftest (ib_write_bw and the like)",
        _PAIR,
        re.compile(
            r"#bytes\s+#iterations\b|\b(?:RDMA_Write|RDMA_Read|Send|Atomic\w*|Raw\w*)\b.* (?:BW|Latency) Test\b"
        ),
    ),
    ("iperf", _PAIR, re.compile(r"\[ *ID\]\s+Interval\s+Transfer\b|\"sum_(?:sent|received)\"\s*:|\biperf Done\b")),
    ("netperf", _PAIR, re.compile(r"\bMIGRATED \w+ (?:STREAM|REQUEST/RESPONSE)|\b\w+ STREAM TEST from ")),
    ("qperf", _PAIR, re.compile(r"^\s*(?:bw|msg_rate|latency)\s+=\s+[\d.,]+ [KMG]?\S*", re.MULTILINE)),
    ("sockperf", _PAIR, re.compile(r"\bsockperf: ")),
    ("ucx_perftest", _PAIR, re.compile(r"\boverhead \(usec\).*\bbandwidth \(MB/s\)")),
    (
        "the Intel MPI Benchmarks",
        "times of MPI's collectives and pairs",
        re.compile(r"\bIntel\(R\) MPI Benchmarks|#\s*Benchmarking \w+"),
    ),
)


def named(lines: list[str]) -> str | None:
    """Return what a log that is not read is of, with what it measures; None if that is unknown."""
    text = "\n".join(lines)
    return next((f"{tool}, {what}" for tool, what, pattern in _OTHERS if pattern.search(text)), None)
