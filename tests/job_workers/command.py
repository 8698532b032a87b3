"""A rank that runs a paceline command, given by its arguments."""

import sys

from paceline.cli.main import main

if __name__ == "__main__":
    main(sys.argv[1:], prog_name="paceline")
