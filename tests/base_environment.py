"""An environment that holds Paceline and what it depends on without extras, and nothing else."""

import re
import venv
from importlib import metadata
from pathlib import Path


def make(home: Path) -> Path:
    """Create it in a folder, in a tenth of a second: packages are links to this environment's. Returns its Python."""
    venv.create(home, symlinks=True)
    (site,) = home.glob("lib/python3*/site-packages")
    for name in sorted(needed("paceline")):
        package = metadata.distribution(name)
        for top in {file.parts[0] for file in package.files or [] if not file.parts[0].startswith("..")}:
            (site / top).symlink_to(package.locate_file(top))
    program = home / "bin" / "paceline"
    python = home / "bin" / "python"
    program.write_text(f"#!{python}\nfrom paceline.__main__ import main\nmain()\n", encoding="utf-8")
    program.chmod(0o755)
    return python


def needed(name: str) -> set[str]:
    """Return a package and all that it depends on without extras, on this Python and system."""
    names, left = set(), [name]
    while left:
        name = left.pop()
        if name in names:
            continue
        names.add(name)
        # What a marker restricts is either of an extra or of another Python; none of ours depends on the Python.
        plain = [line for line in metadata.requires(name) or [] if ";" not in line]
        left += [re.match(r"[\w.-]+", line)[0] for line in plain]
    return names
