"""The elements of a report: sections of paragraphs, tables, figures and drawings."""

import re
from collections.abc import Collection, Sequence
from dataclasses import dataclass, replace
from urllib.parse import quote

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


def with_distinct_names(sections: Sequence[Section]) -> list[Section]:
    """The same sections; figures and drawings whose files would have one name get a number."""
    taken: set[str] = set()

    def distinct(element: Element) -> Element:
        if not isinstance(element, Drawing | Figure):
            return element
        name, number = element.name, 1
        while name.lower() in taken:  # some disks do not tell upper from lower case
            number += 1
            name = f"{element.name}-{number}"
        taken.add(name.lower())
        return replace(element, name=name)

    return [
        replace(section, elements=[distinct(element) for element in section.elements])
        for section in sections
    ]


def as_markdown(report: Report, figures: str, drawn: Collection[str]) -> str:
    """The report as Markdown, in which all text is shown as it is.

    `figures` is the folder of the image files, and `drawn` has the names of the figures with an
    image.
    """
    parts = [f"# {escaped(report.title)}"]
    parts += [_line(paragraph) for paragraph in report.about.split("\n\n")]
    for section in report.sections:
        parts.append(f"## {escaped(section.title)}")
        parts += [_markdown(element, figures, drawn) for element in section.elements]
    return "\n\n".join(part for part in parts if part) + "\n"


def _markdown(element: Element, figures: str, drawn: Collection[str]) -> str:
    if isinstance(element, Paragraph):
        return _line(element.text)
    if isinstance(element, Findings):
        return "\n".join(f"- {_line(line)}" for line in element.lines)
    if isinstance(element, Table):
        rows = [[escaped(cell) for cell in row] for row in (element.columns, *element.rows)]
        rows.insert(1, ["---"] * len(element.columns))
        table = "\n".join("| " + " | ".join(row) + " |" for row in rows)
        title = f"**{escaped(element.title)}**\n\n" if element.title else ""
        return f"{title}{table}" + (f"\n\n{_line(element.note)}" if element.note else "")
    path = quote(f"{figures}/{element.name}")
    image = f"![{_in_brackets(element.title)}]({path}.svg)"
    if isinstance(element, Drawing):
        return image
    about = f"**{escaped(element.title)}** ([numbers]({path}.csv))"
    return f"{about}\n\n{image}" if element.name in drawn else f"{about}\n\nNot drawn."


def escaped(text: str) -> str:
    """Text as Markdown on one line: no part of it is HTML, a link or markup.

    A bracket is escaped where it would end a link, and an underscore where it would begin emphasis,
    so that intervals and the names of loops stay readable in the file itself.
    """
    text = " ".join(re.sub(r"[\x00-\x1f\x7f-\x9f]", " ", text).split())
    text = text.replace("&", "&amp;").replace("<", "&lt;").replace(">", "&gt;")
    text = re.sub(r"([\\`*~|$])", r"\\\1", text)
    text = re.sub(r"\](?=[(\[:])", r"\\]", text)
    return re.sub(r"(?<![^\W_])_|_(?![^\W_])", r"\\_", text)


def _line(text: str) -> str:
    """Escaped text at the beginning of a line, where it is no heading, list or table."""
    text = escaped(text)
    return re.sub(r"^([#+=:-]|\d+(?=[.)]))", lambda start: _harmless(start[0]), text)


def _harmless(start: str) -> str:
    return f"{start}\\" if start.isdecimal() else f"\\{start}"


def _in_brackets(text: str) -> str:
    return re.sub(r"(?<!\\)([\[\]])", r"\\\1", escaped(text))
