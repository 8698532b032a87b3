"""The entry point of `paceline` and `python -m paceline`: Ctrl-C during the imports says what it says later."""

from __future__ import annotations

import sys


def main() -> None:
    """Run the command line; exit with 130 after Ctrl-C."""
    try:
        from paceline.cli.main import main as run

        run(prog_name="paceline")
    except KeyboardInterrupt:
        sys.stderr.write("paceline: interrupted; there is no result\n")
        sys.exit(130)


if __name__ == "__main__":
    main()
