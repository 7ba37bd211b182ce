"""Reports of results that somebody has edited: the report of what was measured, or one line.

Files that are no results at all are cases of tests/chaos.
"""

import copy
import random
import shutil

import pytest

from mixerloop.files import json_text, read_sealed, write_sealed
from mixerloop.reports.build import build_report
from mixerloop.reports.elements import as_markdown
from mixerloop.reports.study_results import read_study

RUN = "hops/mixer_loop(4)-seed1"
FILES = (
    *("plan.json", "prefill.json", "hops/comparison.json", f"{RUN}/provenance.json"),
    *(f"{RUN}/results/{name}.json" for name in ("nll", "hops", "transport")),
)
REMOVED = object()
VALUES = (None, [], {}, "x", -1, 10**30, float("nan"), True, REMOVED)
EDITS = 60

pytestmark = pytest.mark.slow


@pytest.fixture(scope="module")
def study(finished_study, tmp_path_factory):
    return shutil.copytree(finished_study / "whole", tmp_path_factory.mktemp("edited") / "study")


def places(value, place=()):
    """The keys that lead to each value inside a JSON value."""
    members = value.items() if isinstance(value, dict) else enumerate(value)
    for key, member in members:
        yield (*place, key)
        if isinstance(member, dict | list):
            yield from places(member, (*place, key))


def edited(content, place, value):
    content = copy.deepcopy(content)
    inner = content
    for key in place[:-1]:
        inner = inner[key]
    if value is REMOVED:
        del inner[place[-1]]
    else:
        inner[place[-1]] = value
    return content


@pytest.mark.parametrize("name", FILES)
def test_an_edited_file_makes_the_same_report_or_an_error(study, name):
    path = study / name
    whole, content = path.read_bytes(), read_sealed(path)
    places_of, draw = list(places(content)), random.Random(name)
    try:
        for _ in range(EDITS):
            change = edited(content, draw.choice(places_of), draw.choice(VALUES))
            path.write_text(json_text(change))
            with pytest.raises(ValueError, match=path.name):
                read_study(study)
            write_sealed(path, change)  # as if this program had measured it
            try:
                report = build_report(read_study(study))
            except ValueError:
                continue
            as_markdown(report, "figures", ())
            assert all(figure.csv() for figure in report.figures())
    finally:
        path.write_bytes(whole)
