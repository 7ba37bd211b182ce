"""A report is safe where it is opened: names are text in Markdown, HTML, SVG and CSV."""

import csv
import io
from functools import partial

import altair as alt
import pytest
from markdown_it import MarkdownIt

from mixerloop.notation import resolve
from mixerloop.reports.drawing import Drawings, Drawn
from mixerloop.reports.elements import (
    Drawing,
    Findings,
    Paragraph,
    Report,
    Section,
    Table,
    as_markdown,
    escaped,
    with_distinct_names,
)
from mixerloop.reports.figure import Figure, Point
from mixerloop.reports.page import as_page
from mixerloop.reports.schedule_diagram import draw

HOSTILE = [
    "<script>alert(1)</script>",
    "<img src=x onerror=alert(1)>",
    "[click](javascript:alert(1))",
    "![x](http://example.org/x.png)",
    "[click][ref]",
    "[ref]: http://example.org",
    "*bold* _slanted_ `code` ~~gone~~ $x$",
    "a | b",
    "&lt;b&gt;",
    "back\\slash",
    "two\nlines\n\n# heading",
    "# heading",
    "- item",
    "+ item",
    "1. item",
    "> quoted",
    "=====",
    "</title></svg><script>alert(1)</script>",
    "\x1b[31mred\x00",
]


def report_of(text: str, rows: list[Point] | None = None) -> Report:
    figure = Figure(
        "figure",
        text,
        [{"model": text, "value": -1.5}] if rows is None else rows,
        partial(alt.Chart),
    )
    svg = draw({text: resolve("mixer_loop", 2)}, {"mixer": 1, "ffn": 1})
    elements = [
        *(Paragraph(text), Findings([text]), Table(text, [text, "n"], [[text, "-1.5"]], text)),
        *(Drawing("drawing", text, svg), figure),
    ]
    return Report(text, text, [Section(text, list(elements))])


def rendered(markdown: str) -> str:
    """The HTML that a renderer of Markdown makes."""
    return MarkdownIt("commonmark").enable("table").render(markdown)


@pytest.mark.parametrize("text", HOSTILE)
def test_text_in_markdown_is_shown_as_it_is(text):
    html = rendered(as_markdown(report_of(text), "a (b) [c]-figures", {"figure"}))
    assert "<script" not in html
    assert "onerror" not in html.replace("onerror=alert(1)&gt;", "")
    for tag in ("<em>", "<code>", "<s>", "<blockquote>", "<ol>", "<hr"):
        assert tag not in html
    assert html.count("<h1>") == html.count("<h2>") == html.count("<table>") == 1
    assert html.count("<ul>") == html.count("<li>") == 1
    assert html.count("<strong>") == 2
    assert html.count("<a ") == 1
    assert html.count("<img ") == 2
    assert 'src="a%20%28b%29%20%5Bc%5D-figures/figure.svg"' in html
    assert html.count("<td>") == 2


def test_names_of_loops_and_intervals_stay_readable():
    for text in ("mixer_loop(2)", "1.20 [1.10, 1.30]", "-0.5 to +0.5", "4x(A2 F)", "95 %"):
        assert escaped(text) == text


@pytest.mark.parametrize("text", HOSTILE)
def test_text_in_the_page_is_shown_as_it_is(text):
    drawn = Drawn(spec='{"title": "</script><!--<script>"}', svg="<svg></svg>", png=b"")
    page = as_page(report_of(text), Drawings(drawn={"figure": drawn}, script="draw()"))
    assert "<script>alert" not in page
    assert "<img" not in page
    assert '{"title": "\\u003c/script>\\u003c!--\\u003cscript>"}' in page
    assert page.count("<script") == page.count("</script>") == 3


@pytest.mark.parametrize("name", ["=1+1", "+1", "-1", "@SUM(A1)", "\tx", "\rx", "\nx", " =1+1"])
def test_no_name_in_a_table_is_a_formula(name):
    rows: list[Point] = [{"model": name, "value": -1.5, "low": None, "high": -2}]
    figure = report_of("x", rows).figures()[0]
    (row,) = csv.DictReader(io.StringIO(figure.csv(), newline=""))
    text = " ".join(name.splitlines())
    assert row == {"model": f"'{text}", "value": "-1.5", "low": "", "high": "-2"}


def test_a_figure_without_numbers_is_an_empty_table():
    assert report_of("x", []).figures()[0].csv() == "\n"


def test_a_figure_that_was_not_drawn_is_named_in_the_page_and_in_markdown():
    report = report_of("x")
    assert "could not be drawn" in as_page(report, Drawings(drawn={}))
    markdown = as_markdown(report, "figures", ())
    assert "(figures/figure.csv)" in markdown
    assert "(figures/figure.svg)" not in markdown


def test_figures_of_models_with_similar_names_have_files_of_their_own():
    sections = with_distinct_names(
        [Section("x", [Figure(name, name, [], alt.Chart) for name in ("a", "A", "b", "a", "a-2")])]
    )
    names = [figure.name for figure in Report("", "", sections).figures()]
    assert names == ["a", "A-2", "b", "a-3", "a-2-2"]
