"""A report as one self-contained HTML page: styles, scripts, numbers and pictures are inside."""

from pathlib import Path

from mixerloop.files import check_can_hold
from mixerloop.ownership import Ledger
from mixerloop.reports.drawing import Drawings, draw_figures
from mixerloop.reports.elements import Drawing, Findings, Paragraph, Report, Table, as_markdown
from mixerloop.reports.figure import Figure
from mixerloop.reports.figure_files import figure_files, undrawn_warning
from mixerloop.study_folder import FIGURES, REPORT

TEMPLATE = "page.html.j2"


def check_page(page: Path, *, overwrite: bool = False) -> None:
    """Raise, before any work, if a report would replace a file that this program did not write."""
    check_can_hold(page.parent)
    Ledger(_figures_folder(page)).check((page, page.with_suffix(".md")), overwrite=overwrite)


def write_report(report: Report, page: Path, *, overwrite: bool = False) -> str | None:
    """Write the page, a Markdown version beside it, and a folder of figures with their numbers.

    Nothing is written if one of the files exists and this program did not write it, unless
    `overwrite`. Returns a warning if figures could not be drawn; the rest is complete.
    """
    figures, folder = report.figures(), _figures_folder(page)
    drawings = draw_figures(figures, with_script=True)
    files = figure_files(figures, drawings, folder)
    for section in report.sections:
        for element in section.elements:
            if isinstance(element, Drawing):
                files[folder / f"{element.name}.svg"] = element.svg
    files[page.with_suffix(".md")] = as_markdown(report, folder.name, {*drawings.drawn})
    files[page] = as_page(report, drawings)
    Ledger(folder).write(files, overwrite=overwrite)
    return undrawn_warning(figures, drawings)


def _figures_folder(page: Path) -> Path:
    return page.parent / (FIGURES if page.name == REPORT else f"{page.stem}-{FIGURES}")


def as_page(report: Report, drawings: Drawings) -> str:
    """The HTML text of the page."""
    from jinja2 import Environment, PackageLoader, select_autoescape

    loader = PackageLoader("mixerloop.reports", ".")
    environment = Environment(
        loader=loader, autoescape=select_autoescape(default=True), trim_blocks=True
    )
    return environment.get_template(TEMPLATE).render(
        report=report,
        script=None if drawings.script is None else _in_script(drawings.script),
        drawn=drawings.drawn,
        kind_of=_kind,
        in_script=lambda spec: spec.replace("<", "\\u003c"),
        csv_of=lambda figure: figure.csv(),
    )


def _kind(element: object) -> str:
    kinds = {Paragraph: "paragraph", Findings: "findings", Table: "table"}
    return {**kinds, Drawing: "drawing", Figure: "figure"}[type(element)]


def _in_script(code: str) -> str:
    """JavaScript that does not end the script element it is in."""
    return code.replace("</script", "<\\/script")
