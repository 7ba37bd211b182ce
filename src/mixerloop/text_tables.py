"""Tables of text, as wide as the terminal, or of a fixed width in a log or a notebook."""

import sys
from typing import TYPE_CHECKING, Any

from mixerloop.messages import printable

if TYPE_CHECKING:
    from rich.table import Table

PIPE_WIDTH = 120  # columns, if stdout is no terminal


def table_of(first: str, *others: str) -> "Table":
    """A table without lines; the first column is aligned to the left, all others to the right."""
    table = _table(header_style="bold", pad_edge=False)
    table.add_column(first)
    for title in others:
        table.add_column(title, justify="right")
    return table


def table_of_words(*titles: str) -> "Table":
    """A table without lines whose columns are aligned to the left."""
    return _table(*titles, header_style="bold", pad_edge=False, padding=(0, 2, 0, 0))


def _table(*titles: str, **options: Any) -> "Table":
    """A table that shows each cell on a line of its own, whatever a name in it holds."""
    from rich.table import Table

    class Printable(Table):
        def add_row(self, *cells: Any, **options: Any) -> None:
            super().add_row(*map(printable, cells), **options)

    return Printable(*titles, box=None, **options)


def text_of(table: "Table") -> str:
    """The table as text, without a line break at the end."""
    from rich.console import Console

    width = None if sys.stdout.isatty() else PIPE_WIDTH
    console = Console(highlight=False, markup=False, emoji=False, width=width)
    with console.capture() as captured:
        console.print(table)
    return captured.get().removesuffix("\n")


def print_table(table: "Table") -> None:
    """Print a table on stdout."""
    print(text_of(table))
