"""Where Python processes that this one starts import Paceline from.

`./paceline.pex run -np 2 -- python train.py`: in a file of pex or shiv, Paceline and what it needs are in folders that
only this process has on its path. Its agents, parameter servers and ranks are started with the same interpreter or
another, which would look for them in its own.
"""

from __future__ import annotations

import os
import site
import sys

HOME = os.path.dirname(os.path.dirname(os.path.dirname(os.path.abspath(__file__))))  # noqa: PTH100, PTH120
"""The folder that holds the package."""


def share(home: str = HOME) -> None:
    """Add what only this process imports from to PYTHONPATH, which children inherit; nothing if they find it anyway."""
    given = [one for one in os.environ.get("PYTHONPATH", "").split(os.pathsep) if one]
    folders = [*site.getsitepackages(), site.getusersitepackages()]
    usual = {*folders, *given, *_linked(folders)}
    if home in usual:
        return
    import sysconfig

    usual |= {sysconfig.get_path("stdlib"), sysconfig.get_path("platstdlib"), sysconfig.get_config_var("DESTSHARED")}
    usual.add(os.path.dirname(os.path.abspath(sys.argv[0])))  # noqa: PTH100, PTH120
    own = [one for one in sys.path if os.path.isdir(one) and (one == home or one not in usual)]  # noqa: PTH112
    if home in own:
        os.environ["PYTHONPATH"] = os.pathsep.join([*given, *own])


def _linked(folders: list[str]) -> set[str]:
    """Return the folders that an editable installation has named in `.pth` files."""
    linked = set()
    for folder in folders:
        if not os.path.isdir(folder):  # noqa: PTH112
            continue
        for name in os.listdir(folder):  # noqa: PTH208
            if name.endswith(".pth"):
                with open(os.path.join(folder, name), encoding="utf-8", errors="replace") as lines:  # noqa: PTH118, PTH123
                    linked |= {line.strip() for line in lines}
    return linked
