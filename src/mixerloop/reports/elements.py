"""The elements of a report: sections of paragraphs, tables, figures and drawings."""

from dataclasses import dataclass

from mixerloop.reports.figure import Figure


@dataclass(frozen=True)
class Paragraph:
    """Text without markup."""

    text: str


@dataclass(frozen=True)
class Findings:
    """A list of short sentences, each on its own line."""

    lines: list[str]


@dataclass(frozen=True)
class Table:
    """Text in columns; a cell may carry the number it is sorted by."""

    title: str
    columns: list[str]
    rows: list[list[str]]
    note: str = ""


@dataclass(frozen=True)
class Drawing:
    """An SVG picture that is not a chart, such as a diagram of schedules."""

    name: str
    title: str
    svg: str


Element = Paragraph | Findings | Table | Drawing | Figure


@dataclass(frozen=True)
class Section:
    """Elements under one heading."""

    title: str
    elements: list[Element]

    @property
    def anchor(self) -> str:
        """The HTML id that links within the page point to."""
        return "".join(c if c.isalnum() else "-" for c in self.title.lower()).strip("-")


@dataclass(frozen=True)
class Report:
    """The title, the description and the sections of a page."""

    title: str
    about: str
    sections: list[Section]

    def figures(self) -> list[Figure]:
        """The charts of all sections, in the order of the page."""
        return [
            element
            for section in self.sections
            for element in section.elements
            if isinstance(element, Figure)
        ]


def as_markdown(report: Report, figures: str) -> str:
    """The report as Markdown; `figures` is the folder of the image files."""
    parts = [f"# {report.title}", report.about]
    for section in report.sections:
        parts.append(f"## {section.title}")
        parts += [_markdown(element, figures) for element in section.elements]
    return "\n\n".join(part for part in parts if part) + "\n"


def _markdown(element: Element, figures: str) -> str:
    if isinstance(element, Paragraph):
        return element.text
    if isinstance(element, Findings):
        return "\n".join(f"- {line}" for line in element.lines)
    if isinstance(element, Table):
        rows = [element.columns, ["---"] * len(element.columns), *element.rows]
        table = "\n".join("| " + " | ".join(_escaped(row)) + " |" for row in rows)
        title = f"**{element.title}**\n\n" if element.title else ""
        return f"{title}{table}" + (f"\n\n{element.note}" if element.note else "")
    if isinstance(element, Drawing):
        return f"![{element.title}]({figures}/{element.name}.svg)"
    link = f"[numbers]({figures}/{element.name}.csv)"
    return f"**{element.title}** ({link})\n\n![{element.title}]({figures}/{element.name}.svg)"


def _escaped(row: list[str]) -> list[str]:
    return [cell.replace("|", "\\|") for cell in row]
