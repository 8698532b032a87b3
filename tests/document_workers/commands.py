"""Runs commands, JSON lines of words, under a limit of memory; what is neither done nor refused ends the process.

`commands.py LIMIT_MB SECONDS`: SECONDS is what a command may take. The last line of the standard output is the command
that was run last, and what came of it.
"""

import json
import resource
import signal
import sys

# Imported before the limit counts, as the limit is one of addresses.
import paceline.forecast.jobs.model  # noqa: F401
import paceline.forecast.sweep  # noqa: F401
from click.testing import CliRunner
from paceline.cli.main import main

limit, seconds = int(sys.argv[1]), int(sys.argv[2])
before = int(open("/proc/self/statm").read().split()[0]) * resource.getpagesize()  # noqa: SIM115, PTH123
resource.setrlimit(resource.RLIMIT_AS, (before + limit * 1_000_000,) * 2)
for line in sys.stdin:
    words = json.loads(line)
    print(json.dumps({"words": words}), flush=True)
    signal.alarm(seconds)
    result = CliRunner().invoke(main, words)
    signal.alarm(0)
    is_refused = result.exit_code == 2 and result.stderr.startswith(("paceline: ", "Usage: "))
    if result.exit_code != 0 and not is_refused:
        print(json.dumps({"words": words, "failed": repr(result.exception)[:500], "said": result.output[-500:]}))
        sys.exit(3)
print(json.dumps({"done": True}))
