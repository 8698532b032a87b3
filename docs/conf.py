"""Sphinx's configuration: `make docs` builds the site with warnings as errors.

Nothing is read from the network unless PACELINE_DOCS_ONLINE is set; then names of Python, numpy and torch become links
to their documentation.
"""

from __future__ import annotations

import importlib
import os
import re
import tomllib
from itertools import pairwise
from pathlib import Path
from typing import TYPE_CHECKING

import click
import paceline

if TYPE_CHECKING:
    from sphinx.application import Sphinx

project = "Paceline"
author = "the Paceline authors"
project_copyright = f"2026, {author}"
version = release = paceline.__version__
_pyproject = tomllib.loads((Path(__file__).parent.parent / "pyproject.toml").read_text(encoding="utf-8"))
home = _pyproject["project"]["urls"].get("Source")

extensions = [
    "myst_nb",
    "sphinx.ext.autodoc",
    "sphinx.ext.intersphinx",
    "sphinx.ext.napoleon",
    "sphinx_click",
    "sphinx_copybutton",
    "sphinx_design",
]
exclude_patterns = ["_build", "jupyter_execute", "**.ipynb_checkpoints"]
highlight_language = "none"
# Docstrings quote code as Markdown does.
default_role = "literal"
# `--option` keeps its two hyphens.
smartquotes = False
maximum_signature_line_length = 88

myst_enable_extensions = ["colon_fence", "deflist", "attrs_inline"]
myst_heading_anchors = 4
nb_execution_mode = "force"
nb_execution_raise_on_error = True
nb_execution_timeout = 120

autodoc_member_order = "groupwise"
autodoc_typehints = "signature"
autodoc_class_signature = "separated"
autodoc_preserve_defaults = True
python_use_unqualified_type_names = True
napoleon_numpy_docstring = False
napoleon_use_rtype = False

nitpicky = True
# What only an inventory from the network could resolve, and types that users never name.
nitpick_ignore_regex = [
    (
        "py:.*",
        r"(torch|nn|numpy|np|npt|ray|click|pandas|pd|matplotlib|collections|typing|concurrent|os|io|types|abc|pathlib)\..*",
    ),
    ("py:(class|exc|obj|data)", r"[A-Za-z]+"),
    ("py:class", r"paceline(_lab)?\..*"),
]
if os.environ.get("PACELINE_DOCS_ONLINE"):
    intersphinx_mapping = {
        "python": ("https://docs.python.org/3", None),
        "numpy": ("https://numpy.org/doc/stable", None),
        "torch": ("https://docs.pytorch.org/docs/stable", None),
    }

html_theme = "pydata_sphinx_theme"
html_title = "Paceline"
html_static_path = ["_static"]
html_css_files = ["paceline.css"]
html_show_sourcelink = False
html_context = {"default_mode": "auto"}
html_theme_options = {
    "logo": {"text": "Paceline"},
    **({"github_url": home} if home else {}),
    "show_toc_level": 2,
    "navigation_with_keys": False,
    "header_links_before_dropdown": 6,
    "footer_start": ["copyright"],
    "footer_end": [],
}
copybutton_prompt_text = "$ "
copybutton_only_copy_prompt_lines = True

PUBLIC = ("paceline", "paceline.job", "paceline.torch", "paceline.torch.hvd", "paceline.ray")


_attributes: dict[str, list[str]] = {}


def before_napoleon(app: Sphinx, what: str, name: str, obj: object, options: object, lines: list[str]) -> None:
    """Docstrings are prose with code in backticks: what else has a meaning in reStructuredText is escaped.

    A module's docstring is for those who read the source; here the page introduces the module.
    """
    if what == "module":
        lines.clear()
    for at, line in enumerate(lines):
        parts = line.split("`")
        parts[::2] = [re.sub(r"(?<![*\\])\*(?!\*)|(?<=\w)_(?!\w)", r"\\\g<0>", part) for part in parts[::2]]
        lines[at] = "`".join(parts)
    if what in ("attribute", "data", "property"):
        _attributes[name] = list(lines)


def after_napoleon(app: Sphinx, what: str, name: str, obj: object, options: object, lines: list[str]) -> None:
    """Napoleon reads `words: more` of an attribute as a type and its description; types stand in annotations here."""
    if name in _attributes:
        lines[:] = _attributes.pop(name)


def check_all_documented(app: Sphinx, env: object) -> None:
    """Warn about a public name that no page of the reference documents."""
    from sphinx.util import logging

    documented = app.env.get_domain("py").data["objects"]
    known = {name.rsplit(".", 1)[-1] for name in documented}
    for module in PUBLIC:
        for name in importlib.import_module(module).__all__:
            if f"{module}.{name}" not in documented and name not in known and not name.startswith("__"):
                logging.getLogger(__name__).warning(
                    "%s.%s is public, and docs/reference/python does not document it", module, name
                )


def examples_as_code(app: Sphinx, ctx: object, lines: list[str]) -> None:
    """Lines of a help text that are kept as they are show commands."""
    text: list[str] = []
    for line in lines:
        if line.startswith("| "):
            if not text or not text[-1].startswith("    "):
                text += [".. code-block:: none", ""]
            text.append(f"    {line[2:]}")
        else:
            text.append(line)
    lines[:] = text


def trim_code(app: Sphinx, ctx: object, lines: list[str]) -> None:
    """Code in a help text may end with a space (`[rank 3] `), a literal of reStructuredText may not."""
    lines[:] = [re.sub(r"`([^`\s][^`]*?)\s+`", r"`\1`", line) for line in lines]


def in_sections(app: Sphinx, ctx: click.Context, lines: list[str]) -> None:
    """Options stand in the sections of `--help`, in its order; another name of one follows it."""
    sections = getattr(ctx.command, "sections", {})
    if len(sections) < 2:
        return
    shown = [one for one in ctx.command.params if isinstance(one, click.Option) and not one.hidden]
    starts = [place for place, line in enumerate(lines) if line.startswith(".. option::")]
    texts = [lines[begin:end] for begin, end in pairwise([*starts, len(lines)])]
    entries = [(getattr(one, "of", one.name), text) for one, text in zip(shown, texts, strict=True)]
    lines.clear()
    for title, names in sections.items():
        members = [text for name in names for of, text in entries if of == name]
        if members:
            lines += [f".. rubric:: {title}", "", *(line for text in members for line in text)]


def setup(app: Sphinx) -> None:
    """Called by Sphinx."""
    app.connect("sphinx-click-process-description", examples_as_code)
    app.connect("sphinx-click-process-options", trim_code)
    app.connect("sphinx-click-process-options", in_sections)
    app.connect("autodoc-process-docstring", before_napoleon, priority=400)
    app.connect("autodoc-process-docstring", after_napoleon, priority=600)
    app.connect("env-check-consistency", check_all_documented)
