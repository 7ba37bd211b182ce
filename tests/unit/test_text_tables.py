"""Tables of text show names as they are."""

import pytest

from mixerloop.text_tables import table_of, text_of


@pytest.mark.parametrize("name", ["[red]a[/red]", "[/]", ":smile:", "a [b] c", "\\[x]"])
def test_markup_in_a_name_is_text(name):
    table = table_of(name, "other")
    table.add_row(name, "1")
    header, row = text_of(table).splitlines()
    assert header.split("  ")[0] == name
    assert row.split("  ")[0] == name
