"""What a report is made of: sections of paragraphs, tables, figures and drawings."""

from dataclasses import dataclass

from mixerloop.reports.figure import Figure


@dataclass(frozen=True)
class Paragraph:
    """Plain text."""

    text: str


@dataclass(frozen=True)
class Findings:
    """Short sentences, one line each."""

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
    """A picture that is not a chart."""

    name: str
    title: str
    svg: str


Block = Paragraph | Findings | Table | Drawing | Figure


@dataclass(frozen=True)
class Section:
    """A part of the page with a heading."""

    title: str
    blocks: list[Block]

    @property
    def anchor(self) -> str:
        """Its address in the page."""
        return "".join(c if c.isalnum() else "-" for c in self.title.lower()).strip("-")


@dataclass(frozen=True)
class Report:
    """A whole page."""

    title: str
    about: str
    sections: list[Section]

    def figures(self) -> list[Figure]:
        """All charts, in order."""
        return [
            block
            for section in self.sections
            for block in section.blocks
            if isinstance(block, Figure)
        ]


def as_markdown(report: Report, figures: str) -> str:
    """The report as text; `figures` is the folder the pictures are in."""
    parts = [f"# {report.title}", report.about]
    for section in report.sections:
        parts.append(f"## {section.title}")
        parts += [_markdown(block, figures) for block in section.blocks]
    return "\n\n".join(part for part in parts if part) + "\n"


def _markdown(block: Block, figures: str) -> str:
    if isinstance(block, Paragraph):
        return block.text
    if isinstance(block, Findings):
        return "\n".join(f"- {line}" for line in block.lines)
    if isinstance(block, Table):
        rows = [block.columns, ["---"] * len(block.columns), *block.rows]
        table = "\n".join("| " + " | ".join(_escaped(row)) + " |" for row in rows)
        title = f"**{block.title}**\n\n" if block.title else ""
        return f"{title}{table}" + (f"\n\n{block.note}" if block.note else "")
    if isinstance(block, Drawing):
        return f"![{block.title}]({figures}/{block.name}.svg)"
    link = f"[numbers]({figures}/{block.name}.csv)"
    return f"**{block.title}** ({link})\n\n![{block.title}]({figures}/{block.name}.svg)"


def _escaped(row: list[str]) -> list[str]:
    return [cell.replace("|", "\\|") for cell in row]
