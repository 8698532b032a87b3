"""The page: one HTML file that loads nothing, for wide and narrow screens."""

from __future__ import annotations

import html
import io
import re
from collections.abc import Iterable, Sequence
from pathlib import Path

from paceline import __version__
from paceline._internal import units
from paceline._internal.files import replaced
from paceline.forecast.output import plotting
from paceline.forecast.output.html import FACTS_STYLE, LEGEND_STYLE, answer, facts, legend, notes, table
from paceline.forecast.result import Result
from paceline.forecast.trainer_file import TrainerFile
from paceline.forecast.wording import explanation as explanations
from paceline.forecast.wording import trainer_file as trainer_files

from paceline_lab.report.chapters import Simulated
from paceline_lab.report.charts import Chart, charts
from paceline_lab.report.spec import Spec

_STYLE = """
:root { color-scheme: light; }
* { box-sizing: border-box; }
body { font: 16px/1.5 system-ui, sans-serif; margin: 0 auto; max-width: 76rem; padding: 1rem; color: #222; }
h1 { line-height: 1.2; font-size: 1.8rem; } h2 { margin-top: 2.5rem; border-top: 2px solid #ddd; padding-top: 1rem; }
h3 { font-size: 1rem; margin: 0 0 .3rem; }
.charts { display: grid; grid-template-columns: repeat(auto-fill, minmax(min(100%, 27rem), 1fr)); gap: 1.5rem; }
.charts figure { margin: 0; min-width: 0; } .charts figure.wide { grid-column: 1 / -1; max-width: 56rem; }
svg { width: 100%; height: auto; display: block; }
.scroll { overflow-x: auto; }
table { border-collapse: collapse; font-variant-numeric: tabular-nums; margin: 1rem 0; font-size: .9rem; }
th, td { padding: .25em .8em; text-align: right; border-bottom: 1px solid #ddd; white-space: nowrap; }
th { vertical-align: bottom; } .text { text-align: left; }
.name { text-align: left; position: sticky; left: 0; background: #fff; }
.notes { color: #555; font-size: .9rem; }
tr.best td { font-weight: 600; } footer { margin: 3rem 0 1rem; color: #555; font-size: .85rem; }
nav a { margin-right: 1em; }
"""


def write(spec: Spec, chapters: Sequence[Simulated], page: Path, pictures: Path | None) -> list[Path]:
    """Write the page, and every chart as PNG into a folder if one is given; return the files."""
    drawn = [list(charts(chapter)) for chapter in chapters]
    # Before any picture, because a figure drawn a second time has different names in it.
    text = _document(spec, chapters, drawn)
    written = []
    if pictures is not None:
        for number, own in enumerate(drawn, start=1):
            for chart in own:
                path = pictures / f"{page.stem}-{number}-{chart.name}.png"
                with replaced(path) as temporary:
                    plotting.save(chart.drawn, temporary, "png")
                written.append(path)
    with replaced(page) as temporary:
        temporary.write_text(text, encoding="utf-8")
    return [page, *written]


def _document(spec: Spec, chapters: Sequence[Simulated], drawn: Sequence[Sequence[Chart]]) -> str:
    title = html.escape(spec.title)
    links = "".join(
        f'<a href="#chapter-{number}">{html.escape(chapter.chapter.title)}</a>'
        for number, chapter in enumerate(chapters, start=1)
    )
    body = "\n".join(
        _chapter(number, chapter, own)
        for number, (chapter, own) in enumerate(zip(chapters, drawn, strict=True), start=1)
    )
    return (
        '<!doctype html>\n<html lang="en"><head><meta charset="utf-8">'
        '<meta name="viewport" content="width=device-width, initial-scale=1">'
        f"<title>{title}</title><style>{_STYLE}{FACTS_STYLE}{LEGEND_STYLE}</style></head>\n<body><h1>{title}</h1>\n"
        f"{_paragraphs([spec.text])}{f'<nav>{links}</nav>' if len(chapters) > 1 else ''}\n{body}\n"
        f"<footer>Forecasts by paceline {html.escape(__version__)}: what they assume is in "
        "docs/explanation/models.md and docs/explanation/limitations.md. They are optimistic.</footer></body></html>\n"
    )


def _chapter(number: int, chapter: Simulated, drawn: Sequence[Chart]) -> str:
    lines = [f'<section id="chapter-{number}"><h2>{html.escape(chapter.chapter.title)}</h2>']
    lines += [_paragraphs([chapter.chapter.text]), *map(answer, chapter.answers)]
    lines.append('<div class="charts">')
    lines += [_figure(number, chart) for chart in drawn]
    lines += ["</div>", _explained(chapter), _table(chapter), notes(chapter.notes)]
    lines += [_of_file(chapter.chapter.file) if chapter.chapter.file is not None else "", "</section>"]
    return "\n".join(lines)


def _paragraphs(texts: Iterable[str]) -> str:
    return "".join(f"<p>{html.escape(text)}</p>" for text in texts if text)


def _figure(number: int, chart: Chart) -> str:
    out = io.BytesIO()
    plotting.save(chart.drawn, out, "svg")
    svg = out.getvalue().decode()
    svg = svg[svg.index("<svg") :]
    # Names inside a drawing must not clash with those of another on the same page.
    prefix = f"c{number}-{chart.name}-"
    svg = re.sub(r'(\bid="|href="#|url\(#)', lambda match: match[1] + prefix, svg)
    wide = ' class="wide"' if chart.name == "timeline" else ""
    says = html.escape(chart.says)
    svg = svg.replace("<svg ", f'<svg role="img" aria-label="{says}" ', 1)
    return f"<figure{wide}><h3>{html.escape(chart.title)}</h3>\n{svg}</figure>"


def _explained(chapter: Simulated) -> str:
    if chapter.explanation is None:
        return ""
    explanation = chapter.explanation
    rows = []
    for one in explanation.changes:
        if one.iteration_s is None:
            continue
        gain = "–" if one.gain is None else units.factor(one.gain)
        rows.append(
            f'<tr><td class="name">{html.escape(explanations.change(one))}</td>'
            f"<td>{units.duration(one.iteration_s, 4)}</td><td>{gain}</td></tr>"
        )
    head = '<th class="name">what if</th><th>iteration</th><th>gain</th>'
    changes = (
        f'<div class="scroll"><table><thead><tr>{head}</tr></thead><tbody>{"".join(rows)}</tbody></table></div>'
        if rows
        else ""
    )
    return f"{facts(explanations.further(explanation))}{changes}"


def _of_file(file: TrainerFile) -> str:
    """Return what became of the fields of a trainer's file: a table of those that are read, and facts on the others."""
    read = "".join(
        f'<tr><td class="name">{html.escape(row.field)}</td><td class="text">{html.escape(row.value)}</td>'
        f'<td class="text">{html.escape(row.words)}</td></tr>'
        for row in trainer_files.read(file)
    )
    head = f'<th class="name">Read from {html.escape(file.path.name)}</th><th class="text">value</th>'
    return (
        f"<p>{html.escape(trainer_files.headline(file))}</p>"
        f'<div class="scroll"><table><thead><tr>{head}<th class="text">option</th></tr></thead><tbody>{read}</tbody>'
        f"</table></div>{facts(trainer_files.others(file))}"
    )


def _table(chapter: Simulated) -> str:
    results: list[Result] = []
    best = []
    for group in chapter.groups:
        best.append(len(results))
        results += group.fastest_first()
    noun = plotting.noun_of(results, chapter.chapter.prepared.noun)
    return f'<div class="scroll">{table(results, best, noun)}</div>\n{legend(results)}'
