"""Reports of results that somebody has edited: the report of what was measured, or one line."""

import copy
import random

import pytest

from command_line import mixerloop, refused
from mixerloop.files import json_text, read_sealed, write_sealed
from mixerloop.reports.build import build_report
from mixerloop.reports.elements import as_markdown
from mixerloop.reports.study_results import read_study
from small_model import training_file

STUDY = """
title = "Edited"
[[parts]]
name = "hops"
config = "small.toml"
prepare = ["hops"]
arms = ["no_loop", "mixer_loop(2)"]
seeds = [1]
measure = ["nll", "hops", "transport"]
[parts.transport]
windows = 2
positions = 2
removal = true
[prefill]
sizes = ["nano"]
batches = [1]
length = 32
repeats = 2
"""
RUN = "hops/mixer_loop(2)-seed1"
FILES = (
    *("plan.json", "prefill.json", "hops/comparison.json", f"{RUN}/provenance.json"),
    *(f"{RUN}/results/{name}.json" for name in ("nll", "hops", "transport")),
)
REMOVED = object()
VALUES = (None, [], {}, "x", -1, 10**30, float("nan"), True, REMOVED)
EDITS = 60

pytestmark = pytest.mark.slow


@pytest.fixture(scope="module")
def study(tmp_path_factory):
    place = tmp_path_factory.mktemp("edited")
    (place / "small.toml").write_text(training_file(train={"evaluate_every": 2}))
    (place / "study.toml").write_text(STUDY)
    mixerloop("study", "study.toml", "--jobs", "1", "--out", "study", cwd=place)
    return place / "study"


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


@pytest.mark.parametrize("name", FILES)
@pytest.mark.parametrize("content", ["", "null", "[" * 10**5, '{"a": NaN}', "\ud800", "9" * 10**5])
def test_what_is_no_result_is_named_in_one_line(study, name, content):
    path = study / name
    whole = path.read_bytes()
    path.write_bytes(content.encode(errors="surrogatepass"))
    try:
        assert f"{path.relative_to(study.parent)}: " in refused("report", "study", cwd=study.parent)
    finally:
        path.write_bytes(whole)


@pytest.mark.parametrize("name", FILES)
@pytest.mark.parametrize("kind", ["dangling", "loop", "folder"])
def test_a_name_without_a_file_behind_it_is_not_taken_for_a_missing_result(study, name, kind):
    path = study / name
    whole = path.read_bytes()
    path.unlink()
    if kind == "folder":
        path.mkdir()
    else:
        path.symlink_to(path if kind == "loop" else "nowhere")
    try:
        assert f"{path.relative_to(study.parent)}: " in refused("report", "study", cwd=study.parent)
    finally:
        path.rmdir() if kind == "folder" else path.unlink()
        path.write_bytes(whole)
