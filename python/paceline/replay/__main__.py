"""`python -m paceline.replay TRACE`: a rank that replays a trace."""

import sys

from paceline.cli.replay import run

if __name__ == "__main__":
    sys.exit(run())
