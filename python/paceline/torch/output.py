"""Writing a trace so that a reader never sees half of one."""

from __future__ import annotations

import json
import os
import tempfile
from pathlib import Path
from typing import Any


def check_writable(path: Path) -> None:
    """Raise OSError if a file could not be written at `path`: better now than after minutes of recording."""
    if path.is_dir():
        raise IsADirectoryError(f"{path} is a folder")
    if not path.parent.is_dir():
        raise FileNotFoundError(f"the folder {path.parent} does not exist")
    if not os.access(path.parent, os.W_OK):
        raise PermissionError(f"the folder {path.parent} is not writable")


def write_json(path: Path, document: dict[str, Any]) -> None:
    """Write JSON beside `path` and rename it into place; an existing file is replaced, a link's target too."""
    path = Path(os.path.realpath(path))
    if path.exists() and not path.is_file():  # a device or a pipe cannot be replaced
        path.write_text(json.dumps(document, indent=1) + "\n", encoding="utf-8")
        return
    handle, temporary = tempfile.mkstemp(prefix=f".{path.name[:100]}.", suffix=".tmp", dir=path.parent)
    try:
        with os.fdopen(handle, "w", encoding="utf-8") as file:
            json.dump(document, file, indent=1)
            file.write("\n")
        # mkstemp makes files for the owner alone; a trace is as readable as any file the user writes.
        mask = os.umask(0)
        os.umask(mask)
        Path(temporary).chmod(0o666 & ~mask)
        Path(temporary).replace(path)
    except BaseException:
        Path(temporary).unlink(missing_ok=True)
        raise
