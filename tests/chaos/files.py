"""Full disks for timelines and recordings, and few file descriptors: a job goes on, or says what is wrong."""

from __future__ import annotations

import os
import resource
import signal
import subprocess
import sys
from typing import Any

from job_workers.launch import TESTS, clean, left_over

from chaos.tally import Section

_LIMIT_S = 300.0
_TRAIN = [sys.executable, "-m", "emulate_workers.train"]
_TORCH = [sys.executable, str(TESTS / "run_record_workers" / "horovod.py")]
"""A recording needs an optimizer of torch's."""


def run(section: Section) -> None:
    """Run until the time is over, and each kind at least once."""
    number = 0
    while number < 4 or not section.over:
        source = section.source(number)
        if number % 2:
            few_descriptors(section, number, source.randint(12, 80), source.choice([2, 3]))
        else:
            full_disk(section, number, source.choice([4, 16, 40]), ("timeline", "record")[number // 2 % 2])
        number += 1


def _call(section: Section, number: int, words: list[str], **how: Any) -> tuple[int, str]:
    mark = f"chaos-{os.getpid()}-{section.name}-{number}"
    env = {**clean(), "JOB_TEST_MARK": mark, "OMP_NUM_THREADS": "1", "OPENBLAS_NUM_THREADS": "1"}
    pipes: dict[str, Any] = {"stdout": subprocess.DEVNULL, "stderr": subprocess.PIPE, "text": True}
    process = subprocess.Popen(words, env=env, cwd=TESTS, start_new_session=True, **pipes, **how)
    try:
        _, text = process.communicate(timeout=_LIMIT_S)
    except subprocess.TimeoutExpired:
        os.killpg(process.pid, signal.SIGKILL)
        process.communicate()
        return 124, f"does not end within {_LIMIT_S:g} s"
    if left := left_over(mark, 5.0):
        return 125, f"processes stayed behind: {left}"
    return process.returncode, text


def few_descriptors(section: Section, number: int, most: int, ranks: int) -> None:
    """A job whose processes may open few files."""
    section.ran("few descriptors")
    words = [sys.executable, "-m", "paceline", "run", "-np", str(ranks), "--", *_TRAIN]

    def limit() -> None:
        resource.setrlimit(resource.RLIMIT_NOFILE, (most, most))

    code, text = _call(section, number, words, preexec_fn=limit)
    said = "Too many open files" in text or "open files" in text
    if code != 0 and not said:
        section.violated(f"ulimit -n {most}, {ranks} ranks", f"exit code {code}: {text[-1500:]}")
    if "panicked" in text:
        section.violated(f"ulimit -n {most}, {ranks} ranks", f"a panic: {text[-1500:]}")


def full_disk(section: Section, number: int, kib: int, kind: str) -> None:
    """A timeline or a recording on a disk that is too small."""
    folder = section.folder / f"disk-{number}"
    folder.mkdir()
    out = folder / f"{kind}.json"
    mount = ["mount", "-t", "tmpfs", "-o", f"size={kib}k", "none", str(folder)]
    unshare = ["unshare", "--mount", *([] if os.geteuid() == 0 else ["--map-root-user"])]
    words = [sys.executable, "-m", "paceline", "run", "-np", "2", f"--{kind}", str(out), "--"]
    words += _TORCH if kind == "record" else _TRAIN
    tried = subprocess.run([*unshare, *mount], capture_output=True, text=True, check=False)
    if tried.returncode:
        section.counts[f"skipped: no small disk can be mounted here ({tried.stderr.strip()[:80]})"] += 1
        return
    section.ran(f"full disk for a {kind}")
    # What was written is gone with the namespace.
    valid = f"{sys.executable} -m json.tool {out} >/dev/null 2>&1 && echo chaos-valid >&2 || echo chaos-torn >&2"
    script = f'"$@"; code=$?; if [ -e {out} ]; then {valid}; fi; exit $code'
    code, text = _call(section, number, [*unshare, "sh", "-c", f"{' '.join(mount)} && {script}", "sh", *words])
    what = f"{kind} on a disk of {kib} KiB"
    if code in (124, 125):
        section.violated(what, text)
    elif text.count("Traceback") > text.count("paceline.errors.JobError: ") or "panicked" in text:
        # The script of a rank that waits for another's does not catch what it gets.
        section.violated(what, f"no plain message: {text[-1500:]}")
    elif "chaos-torn" in text:
        section.violated(what, f"half a file is left: {text[-800:]}")
    elif code == 0 and not _says(text) and "chaos-valid" not in text:
        section.violated(what, f"succeeds without a word: {text[-800:]}")
    elif code != 0 and not _says(text):
        section.violated(what, f"exit code {code} without the reason: {text[-800:]}")


def _says(text: str) -> bool:
    return "No space left" in text or "no space left" in text
