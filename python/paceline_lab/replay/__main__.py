"""`python -m paceline_lab.replay TRACE`: a rank that replays a trace."""

import sys

from paceline_lab.cli.replay import run

if __name__ == "__main__":
    sys.exit(run())
