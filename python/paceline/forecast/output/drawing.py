"""The figure that plots return. Imports matplotlib, which takes a while: import this where something is drawn."""

from __future__ import annotations

import io

from matplotlib.figure import Figure


class Drawing(Figure):
    """A matplotlib figure that notebooks show, whichever backend is in use; no window is opened."""

    def _repr_png_(self) -> bytes:
        out = io.BytesIO()
        self.savefig(out, format="png", dpi=96)
        return out.getvalue()
