"""The runtime against its peers: all-reduce, the machine's limit, training in pairs, and the cost of doing nothing."""

from __future__ import annotations

import argparse
import json
from collections.abc import Callable, Iterable
from pathlib import Path
from typing import Any

import allreduce
import document
import environments
import idle
import show
import systems
import training

PARTS = ("all-reduce", "training", "idle")
DOCS = environments.ROOT / "docs" / "results" / "benchmarks.md"


def options() -> argparse.Namespace:
    """The command line."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--quick", action="store_true", help="two rounds, fewer sizes")
    parser.add_argument("--rounds", type=int, help="turns per system (default: 5)")
    parser.add_argument("--seconds", type=float, default=0.3, help="for each size in each turn")
    parser.add_argument("--ranks", type=lambda text: list(map(int, text.split(","))), default=[2, 4], help="as 2,4")
    parser.add_argument("--systems", type=_words(systems.SYSTEMS), help=f"some of {','.join(systems.SYSTEMS)}")
    parser.add_argument("--transport", choices=["shm", "tcp", "mpi", "grpc"], help="only systems on it")
    parser.add_argument("--parts", type=_words(PARTS), default=list(PARTS), help=f"some of {','.join(PARTS)}")
    parser.add_argument("--json", type=Path, help="save the results to this file; parts not measured now are kept")
    parser.add_argument("--from", dest="source", type=Path, help="show the results in this file without measuring")
    parser.add_argument("--plot", type=Path, help="plot the all-reduces to this PNG")
    parser.add_argument(
        "--markdown", nargs="?", type=Path, const=DOCS, help="write the section into this document (default: the docs)"
    )
    return parser.parse_args()


def _words(known: Iterable[str]) -> Callable[[str], list[str]]:
    def parse(text: str) -> list[str]:
        words = text.split(",")
        for word in words:
            if word not in known:
                raise argparse.ArgumentTypeError(f"'{word}' is none of {', '.join(known)}")
        return words

    return parse


def measure(arguments: argparse.Namespace, content: dict[str, Any]) -> None:
    """Measure the selected parts into the results, which are saved after each."""

    def keep() -> None:
        if arguments.json:
            arguments.json.write_text(json.dumps(content, indent=1) + "\n")

    rounds = arguments.rounds or (2 if arguments.quick else 5)
    sizes = allreduce.QUICK_SIZES if arguments.quick else allreduce.SIZES
    content["machine"] = document.machine()
    with show.progress() as say:
        if "all-reduce" in arguments.parts:
            names = arguments.systems or (list(systems.SYSTEMS) if arguments.transport else systems.DEFAULT)
            names = [name for name in names if arguments.transport in (None, systems.SYSTEMS[name].transport)]
            chosen, content["skipped"] = allreduce.available(names, say)
            content |= {"rounds": rounds, "seconds": arguments.seconds}
            for count in arguments.ranks:
                content.setdefault("all_reduce", {})[str(count)] = allreduce.measure(
                    chosen, count, sizes, rounds=rounds, seconds=arguments.seconds, say=say
                )
                keep()
        if "training" in arguments.parts:
            content["training"] = training.measure(rounds, 5 if arguments.quick else 10, say)
            keep()
        if "idle" in arguments.parts:
            content["idle"] = idle.measure(3 if arguments.quick else 10, say)
            keep()


def main() -> None:
    """Measure and show, or show what was measured."""
    arguments = options()
    kept = arguments.source or arguments.json
    content: dict[str, Any] = json.loads(kept.read_text()) if kept and kept.is_file() else {}
    if not arguments.source:
        measure(arguments, content)
    for table in document.tables(content):
        show.table(table)
    for reason in content.get("skipped", {}).values():
        print(f"skipped: {reason}")
    if arguments.plot:
        import plot

        plot.draw(content, arguments.plot)
    if arguments.markdown:
        document.write(content, arguments.markdown)
        if "all_reduce" in content:
            import plot

            plot.draw(content, arguments.markdown.parent / document.IMAGE)


if __name__ == "__main__":
    main()
