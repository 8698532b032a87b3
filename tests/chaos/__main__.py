"""Runs what goes wrong in the real world: `python -m chaos --minutes 5 [--seed N] [--only calls] [--json FILE]`.

Exit code 1 if anything was wrong. The same seed draws the same runs; what the machine makes of them differs.
"""

from __future__ import annotations

import argparse
import json
import sys
import tempfile
import time
from collections.abc import Callable
from functools import partial
from pathlib import Path

from chaos import calls, files, packets, training
from chaos.tally import Section

# Each takes its share of the time.
SECTIONS: dict[str, tuple[float, Callable[[Section], None]]] = {
    "calls": (0.3, partial(calls.run, slow=False)),
    "slow calls": (0.35, partial(calls.run, slow=True)),
    "packets": (0.1, packets.run),
    "training": (0.2, training.run),
    "files": (0.05, files.run),
}


def main() -> int:
    """Run; return the exit code."""
    parser = argparse.ArgumentParser(prog="python -m chaos", description=__doc__)
    parser.add_argument("--minutes", type=float, default=5.0)
    parser.add_argument("--seed", type=int, help="of the runs; else one from the clock")
    parser.add_argument("--only", choices=SECTIONS, action="append", help="this section; may be repeated")
    parser.add_argument("--json", type=Path, metavar="FILE", help="write counts and what was wrong")
    given = parser.parse_args()
    seed = int(time.time()) if given.seed is None else given.seed
    chosen = given.only or list(SECTIONS)
    whole = sum(SECTIONS[name][0] for name in chosen)
    print(f"chaos: {given.minutes:g} minutes, --seed {seed}", flush=True)
    done: list[Section] = []
    with tempfile.TemporaryDirectory(prefix="paceline-chaos-") as folder:
        for name in chosen:
            share, run = SECTIONS[name]
            begin = time.monotonic()
            here = Path(folder) / name.replace(" ", "-")
            here.mkdir()
            section = Section(name, seed, begin + 60 * given.minutes * share / whole, here)
            run(section)
            section.seconds = time.monotonic() - begin
            done.append(section)
            _print(section)
    wrong = sum(len(section.wrong) for section in done)
    runs = sum(sum(section.counts.values()) for section in done)
    print(f"chaos: {runs} runs, {wrong} wrong, --seed {seed}")
    if given.json is not None:
        values = [
            {
                "name": section.name,
                "seconds": round(section.seconds, 1),
                "runs": dict(sorted(section.counts.items())),
                "wrong": section.wrong,
                "skipped": section.skipped or None,
            }
            for section in done
        ]
        given.json.write_text(json.dumps({"seed": seed, "minutes": given.minutes, "sections": values}, indent=2) + "\n")
    return int(wrong > 0)


def _print(section: Section) -> None:
    runs = sum(section.counts.values())
    skipped = f", skipped: {section.skipped}" if section.skipped else ""
    print(f"\n{section.name}: {runs} runs, {len(section.wrong)} wrong, {section.seconds:.0f} s{skipped}")
    for kind, number in sorted(section.counts.items()):
        print(f"  {number:5} {kind}")
    sys.stdout.flush()


if __name__ == "__main__":
    sys.exit(main())
