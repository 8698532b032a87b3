"""The name that `paceline_lab.replay` had in the last release; `python -m paceline.replay` goes on, too."""

import runpy

from paceline._internal.moved import moved

if __name__ == "__main__":
    runpy.run_module("paceline_lab.replay", run_name="__main__")
else:
    moved(__name__, "paceline_lab.replay")
