"""The files of figures: the numbers of every figure, and pictures of those that could be drawn."""

from collections.abc import Sequence
from pathlib import Path

from mixerloop.reports.drawing import Drawings
from mixerloop.reports.figure import Figure

ENDINGS = ("csv", "svg", "png")


def figure_files(
    figures: Sequence[Figure], drawings: Drawings, folder: Path
) -> dict[Path, bytes | str]:
    """The files of figures in a folder, by path, with their content."""
    files: dict[Path, bytes | str] = {}
    for figure in figures:
        contents: tuple[bytes | str, ...] = (figure.csv(),)
        if (drawn := drawings.drawn.get(figure.name)) is not None:
            contents = (*contents, drawn.svg, drawn.png)
        for ending, content in zip(ENDINGS, contents, strict=False):
            files[folder / f"{figure.name}.{ending}"] = content
    return files


def undrawn_warning(figures: Sequence[Figure], drawings: Drawings) -> str | None:
    """A line that names the figures without a picture; None if nothing is missing."""
    if drawings.problem is None:
        return None
    undrawn = [figure.name for figure in figures if figure.name not in drawings.drawn]
    names = ", ".join(undrawn) or "the figures of the page"
    return f"not drawn: {names} ({drawings.problem}); the numbers are complete"
