"""A report as one self-contained HTML page: styles, scripts, numbers and pictures are inside."""

import json
from pathlib import Path

from mixerloop.files import write_file
from mixerloop.reports.elements import Drawing, Findings, Paragraph, Report, Table, as_markdown
from mixerloop.reports.figure import Figure, vega_version
from mixerloop.study_folder import FIGURES, REPORT

TEMPLATE = "page.html.j2"


def write_report(report: Report, page: Path) -> None:
    """Write the page, a Markdown version beside it, and a folder of figures with their numbers."""
    figures = FIGURES if page.name == REPORT else f"{page.stem}-{FIGURES}"
    folder = page.parent / figures
    folder.mkdir(parents=True, exist_ok=True)
    for figure in report.figures():
        figure.write(folder)
    for section in report.sections:
        for element in section.elements:
            if isinstance(element, Drawing):
                write_file(folder / f"{element.name}.svg", element.svg)
    write_file(page.with_suffix(".md"), as_markdown(report, figures))
    write_file(page, as_page(report))


def as_page(report: Report) -> str:
    """The HTML text of the page."""
    import vl_convert
    from jinja2 import Environment, PackageLoader, select_autoescape

    loader = PackageLoader("mixerloop.reports", ".")
    environment = Environment(
        loader=loader, autoescape=select_autoescape(default=True), trim_blocks=True
    )
    script = vl_convert.javascript_bundle(vl_version=vega_version())  # pyright: ignore
    return environment.get_template(TEMPLATE).render(
        report=report,
        script=script.replace("</script", "<\\/script"),
        kind_of=_kind,
        spec_of=_spec,
        csv_of=lambda figure: figure.csv(),
    )


def _kind(element: object) -> str:
    kinds = {Paragraph: "paragraph", Findings: "findings", Table: "table"}
    return {**kinds, Drawing: "drawing", Figure: "figure"}[type(element)]


def _spec(figure: Figure) -> str:
    """A chart's description as JSON that is safe inside a script element."""
    return json.dumps(figure.spec()).replace("<", "\\u003c")
