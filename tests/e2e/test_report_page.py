"""The report in a real browser: it draws, it answers, and it asks the network for nothing."""

import csv
import shutil
from pathlib import Path

import pytest

import needs
from command_line import mixerloop
from mixerloop.files import read_sealed, write_sealed

pytestmark = [pytest.mark.slow, needs.CHROMIUM.mark]

ALL_DRAWN = "[...document.querySelectorAll('figure.chart')].every(f => f.dataset.drawn === 'yes')"
PHONE = 390
HOSTILE = (
    '<img src=x onerror="window.run=1"></title></script><script>window.run=2</script>'
    "<!--<script>\u2028{{7*7}}${window.run=3}"
)
FORMULA = '=HYPERLINK("http://example.org")'


@pytest.fixture(scope="module")
def page_file(finished_study, tmp_path_factory):
    """The report of a study, with all its figures."""
    study = tmp_path_factory.mktemp("page") / "study"
    shutil.copytree(finished_study / "whole", study)
    plan = read_sealed(study / "plan.json")
    write_sealed(study / "plan.json", plan | {"title": "In a browser </script>"})
    mixerloop("report", "study", cwd=study.parent)
    return study / "report.html"


@pytest.fixture
def drawn(opened):
    """A function that opens a page and waits for its figures."""

    def drawn(file, **options):
        page, heard = opened(file, **options)
        page.wait_for_function(ALL_DRAWN)
        return page, heard

    return drawn


@pytest.mark.parametrize("scheme", ["light", "dark"])
def test_every_figure_is_drawn_without_a_word_or_a_request(drawn, page_file, scheme):
    page, heard = drawn(page_file, scheme=scheme)
    figures = page.locator("figure.chart")
    assert figures.count() == len(list((page_file.parent / "figures").glob("*.csv")))
    for number in range(figures.count()):
        marks = figures.nth(number).locator("svg .mark-symbol path, svg .mark-rect path")
        assert marks.count() > 0
    assert page.locator("figure svg.schedules rect.mixer").count() > 0
    assert page.title() == "In a browser </script>"
    assert heard == []


def test_the_layer_picker_changes_what_is_shown(drawn, page_file):
    page, heard = drawn(page_file)
    figure = page.locator("figure#hops-transport-layers")
    picker = figure.locator("select")
    assert picker.locator("option").all_text_contents()[:2] == ["0", "1"]

    def marks():
        return [
            path.get_attribute("d") or path.get_attribute("transform")
            for path in figure.locator("svg .mark-line path, svg .mark-rule line").all()
        ]

    before = marks()
    picker.select_option("1")
    page.wait_for_timeout(200)
    assert marks() != before
    picker.select_option("0")
    page.wait_for_timeout(200)
    assert marks() == before
    assert heard == []


def test_a_table_is_sorted_by_the_column_that_is_clicked(drawn, page_file):
    page, _ = drawn(page_file)
    table = page.locator("#hops--results table").first
    header = table.locator("thead th", has_text="MFLOP/token")

    def column():
        return [float(text) for text in table.locator("tbody tr td:nth-child(4)").all_inner_texts()]

    header.click()
    assert column() == sorted(column())
    header.click()
    assert column() == sorted(column(), reverse=True)
    assert header.get_attribute("aria-sort") == "descending"


def test_a_phone_need_not_scroll_sideways(drawn, page_file):
    page, _ = drawn(page_file, width=PHONE)
    assert page.evaluate("document.documentElement.scrollWidth") <= PHONE


def test_numbers_of_a_figure_can_be_taken_along(drawn, page_file):
    page, _ = drawn(page_file)
    link = page.locator("figure#hops-accuracy a.files")
    with page.expect_download() as download:
        link.click()
    assert download.value.suggested_filename == "hops-accuracy.csv"
    saved = download.value.path().read_text()
    assert saved == (page_file.parent / "figures" / "hops-accuracy.csv").read_text()


@pytest.fixture(scope="module")
def hostile_page(page_file, tmp_path_factory):
    """The report of the same study, with names that are code where they are not escaped."""
    study = Path(shutil.copytree(page_file.parent, tmp_path_factory.mktemp("hostile") / "study"))
    plan = read_sealed(study / "plan.json")
    comparison = read_sealed(study / "hops/comparison.json")
    plan |= {"title": HOSTILE, "about": HOSTILE}
    arms = dict.fromkeys(row["arm"] for row in plan["rows"])
    hostile = dict(zip(arms, (HOSTILE, FORMULA, "[a](javascript:run)"), strict=True))
    for row in plan["rows"]:
        row |= {"data": HOSTILE, "arm": hostile[row["arm"]]}
    for arm in comparison["arms"]:
        arm["name"] = hostile[arm["name"]]
    for pair in comparison["pairs"]:
        pair |= {key: hostile[pair[key]] for key in ("first", "second")}
    write_sealed(study / "plan.json", plan)
    write_sealed(study / "hops/comparison.json", comparison)
    mixerloop("report", "study", cwd=str(study.parent))
    return study / "report.html"


def test_no_name_of_a_study_runs_in_the_page(drawn, hostile_page):
    page, heard = drawn(hostile_page)
    assert heard == []
    assert page.evaluate("window.run") is None
    assert page.title() == page.locator("h1").text_content() == HOSTILE
    assert page.locator("main img").count() == 0
    marks = page.locator("figure#hops-accuracy svg .mark-symbol path")
    marks.first.hover(force=True)
    page.wait_for_timeout(200)
    assert page.evaluate("window.run") is None


def test_no_name_of_a_study_runs_in_a_picture_or_a_table(browser, hostile_page):
    for svg in sorted((hostile_page.parent / "figures").glob("*.svg")):
        page = browser.new_page()
        page.goto(svg.as_uri())
        assert page.evaluate("window.run") is None
        assert page.evaluate("document.documentElement.tagName") == "svg"
        page.close()
    with (hostile_page.parent / "figures" / "hops-accuracy.csv").open(newline="") as file:
        names = {row["model"] for row in csv.DictReader(file)}
    assert f"'{FORMULA}" in names
    assert FORMULA not in names
