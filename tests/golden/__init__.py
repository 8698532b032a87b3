"""Golden files: what command lines and Python printed before a change, to compare with what they print after it.

`commands/THEME.toml` lists the entries, `THEME/NAME.json` and `THEME/NAME.txt` hold their outputs. `make golden-check`
compares every number exactly, words only if it is asked to; `make golden` writes the files anew (CONTRIBUTING.md).
"""
