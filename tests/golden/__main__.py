"""`python -m golden check` and `python -m golden write`, in tests/."""

import argparse
import contextlib
import multiprocessing
import sys
import time
from collections import Counter, defaultdict
from collections.abc import Sequence
from multiprocessing import util

from golden import capture, files
from golden.compare import Difference, Output, differences
from golden.entries import FOLDER, Entry, entries

_SHOWN = 5


def main(words: Sequence[str] | None = None) -> int:
    """Compare or write; return the exit code."""
    parser = argparse.ArgumentParser(prog="golden", description=__doc__)
    parser.add_argument("verb", choices=("check", "write"))
    parser.add_argument("only", nargs="*", help="run only entries with this in their file's name or command")
    parser.add_argument("--words", action="store_true", help="words count, too")
    parser.add_argument("--all", action="store_true", help="also those that take minutes")
    parser.add_argument("--full", action="store_true", help="print all differences of an entry, not only the first")
    parser.add_argument("--seconds", action="store_true", help="print the slowest entries")
    parser.add_argument("--processes", type=int, default=2)
    options = parser.parse_intermixed_args(words)
    listed = entries()
    chosen = [
        entry
        for entry in listed
        if (options.all or entry.tier != "optional")
        and all(word in entry.label or word in entry.command for word in options.only)
    ]
    if not chosen:
        parser.error("no entry has these words")
    shown = sys.maxsize if options.full else _SHOWN
    failed, seconds = 0, dict[str, float]()
    for entry, output, took in _run(chosen, options.processes):
        seconds[entry.label] = took
        if isinstance(output, str):
            failed += 1
            print(f"{entry.label}: {entry.command}\n  {output}")
            continue
        failed += _report(entry, output, options.words or options.verb == "write", shown)
        if options.verb == "write":
            files.write(entry, output)
    if not options.only:
        failed += _unlisted(listed, remove=options.verb == "write")
    _times(chosen, seconds, slowest=options.seconds)
    if options.verb == "write":
        print(f"{failed} of {len(chosen)} outputs changed: read the diff before you commit it")
        return 0
    print(f"{failed} of {len(chosen)} outputs differ" if failed else f"{len(chosen)} outputs are as they were")
    return 1 if failed else 0


def _run(chosen: Sequence[Entry], processes: int):
    """Yield each entry with its output, or what went wrong, and the seconds of CPU that it took."""
    # Forked before anything is run: what a command loads must not be half done in a child.
    import paceline.cli.main  # noqa: F401

    with multiprocessing.get_context("fork").Pool(min(processes, len(chosen)), _prepare) as pool:
        # What takes longest begins first.
        order = sorted(chosen, key=lambda entry: ("optional", "slow", "usual", "everyday").index(entry.tier))
        yield from pool.imap_unordered(_one, order)
        pool.close()
        pool.join()


_kept = contextlib.ExitStack()


def _prepare() -> None:
    """Stay in a folder until the process ends."""
    _kept.enter_context(capture.folder())
    util.Finalize(None, _kept.close, exitpriority=1)


def _one(entry: Entry) -> tuple[Entry, Output | str, float]:
    begin = time.process_time()
    try:
        output: Output | str = capture.run(entry)
    except Exception as error:
        output = f"{type(error).__name__}: {error}; {error.__cause__!r}"
    return entry, output, time.process_time() - begin


def _report(entry: Entry, output: Output, words: bool, shown: int) -> bool:
    """Print what differs; return whether anything does."""
    if not entry.path.exists():
        print(f"{entry.label}: new: {entry.command}")
        return True
    values = [it for it in differences(files.read(entry), output) if words or not it.is_wording]
    if not values:
        return False
    print(f"{entry.label}: {entry.command}")
    for difference in values[:shown]:
        print(f"  {difference}")
    if len(values) > shown:
        print(f"  and {len(values) - shown} more{_greatest(values)}")
    return True


def _greatest(result: Sequence[Difference]) -> str:
    sizes = [abs(it.relative) for it in result if it.relative is not None]
    return f"; the greatest relative difference is {max(sizes):.2e}" if sizes else ""


def _unlisted(listed: Sequence[Entry], *, remove: bool) -> int:
    """Print, and remove, golden files that belong to no entry; return how many there are."""
    themes = {entry.theme for entry in listed}
    known = {entry.path for entry in listed}
    values = [
        path
        for folder in FOLDER.iterdir()
        if folder.is_dir() and folder.name not in {"commands", "inputs", "__pycache__"}
        for path in sorted(folder.iterdir())
        if path not in known or folder.name not in themes
    ]
    for path in values:
        print(f"{path.relative_to(FOLDER)}: {'removed, because' if remove else ''} no entry has it")
        if remove:
            path.unlink()
    return len(values)


def _times(chosen: Sequence[Entry], seconds: dict[str, float], *, slowest: bool) -> None:
    sums, counts = defaultdict[str, float](float), Counter(entry.theme for entry in chosen)
    for entry in chosen:
        sums[entry.theme] += seconds[entry.label]
    print("seconds of CPU: " + "; ".join(f"{theme} {sums[theme]:.1f} ({counts[theme]})" for theme in sums))
    if slowest:
        for label in sorted(seconds, key=lambda label: -seconds[label])[:30]:
            print(f"  {seconds[label]:7.2f} s  {label}")


if __name__ == "__main__":
    sys.exit(main())
