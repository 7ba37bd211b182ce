"""No verb replaces a file of the user, unless it is told to."""

import json
import shutil

import pytest

from command_line import mixerloop, refused

MINE = "mine"
SMALL = ("--windows", 2, "--positions", 2)


pytestmark = pytest.mark.usefixtures("quick")


@pytest.fixture
def place(measured_run, tmp_path):
    """A folder with a run whose transport was measured, and nothing else."""
    shutil.copytree(measured_run, tmp_path / "run")
    return tmp_path


def files_of(place) -> dict[str, bytes]:
    return {
        str(path.relative_to(place)): path.read_bytes()
        for path in sorted(place.rglob("*"))
        if path.is_file()
    }


VERBS = {
    "report": ("report", "run", "--out", "x.html"),
    "transport": ("transport", "run", *SMALL, "--out", "kept"),
    "fresh": ("transport", "--random", "nano", "--context", 32, *SMALL, "--out", "kept"),
    "hops": ("evaluate", "hops", "run", "--sequences", 9, "--out", "kept"),
    "task": ("evaluate", "task", "run", "--sequences", 9, "--out", "kept"),
    "nll": ("evaluate", "nll", "run", "--out", "kept"),
    "picture": ("describe", "nano", "--picture", "x.svg"),
    "png": ("describe", "nano", "--picture", "x.png"),
}
FILES = {
    "report": ("x.html", "x.md", "x-figures/runs-transport-passes.svg", "x-figures/written.json"),
    "transport": ("kept/transport.json", "kept/figures/transport-gain.csv"),
    "fresh": ("kept/transport.json", "kept/figures/transport-novelty.png"),
    "hops": ("kept/hops.json", "kept/hops.jsonl"),
    "task": ("kept/task.json", "kept/task.jsonl"),
    "nll": ("kept/nll.json", "kept/nll.jsonl"),
    "picture": ("x.svg",),
    "png": ("x.png",),
}


CASES = [(verb, name) for verb in FILES for name in FILES[verb]]


def planted(place, name):
    file = place / name
    file.parent.mkdir(parents=True, exist_ok=True)
    file.write_text(MINE)
    return file


@pytest.mark.parametrize(("verb", "name"), CASES)
def test_a_file_of_the_user_is_left_alone(place, verb, name):
    planted(place, name)
    before = files_of(place)
    line = refused(*VERBS[verb], cwd=place)
    assert line.startswith(f"mixerloop: {name}: ")
    assert line.endswith("; --overwrite replaces it")
    assert files_of(place) == before


@pytest.mark.slow
@pytest.mark.parametrize(("verb", "name"), CASES)
def test_with_overwrite_the_file_is_replaced_and_then_known(place, verb, name):
    file = planted(place, name)
    mixerloop(*VERBS[verb], "--overwrite", cwd=place)
    assert file.read_bytes() != MINE.encode()
    mixerloop(*VERBS[verb], cwd=place)


@pytest.mark.slow
@pytest.mark.parametrize("verb", ["report", "transport", "hops", "picture"])
def test_nothing_is_written_through_a_link(place, verb):
    name = FILES[verb][0]
    (place / "mine").write_text(MINE)
    (place / name).parent.mkdir(exist_ok=True)
    (place / name).symlink_to(place / "mine")
    assert f"{name}: is a link" in refused(*VERBS[verb], cwd=place)
    mixerloop(*VERBS[verb], "--overwrite", cwd=place)
    assert (place / "mine").read_text() == MINE
    assert not (place / name).is_symlink()


@pytest.mark.slow
def test_a_report_that_the_user_changed_is_left_alone(place):
    mixerloop(*VERBS["report"], cwd=place)
    notes = place / "x.md"
    notes.write_text(notes.read_text() + "\nMy own remarks.\n")
    mixerloop("transport", "run", "--windows", 3, "--positions", 2, cwd=place)
    before = files_of(place)
    assert "x.md: not a file that mixerloop wrote, or changed" in refused(
        *VERBS["report"], cwd=place
    )
    assert files_of(place) == before


def test_a_report_of_new_results_replaces_the_old_report(place):
    mixerloop(*VERBS["report"], cwd=place)
    before = files_of(place)
    mixerloop("transport", "run", "--windows", 3, "--positions", 2, cwd=place)
    mixerloop(*VERBS["report"], cwd=place)
    after = files_of(place)
    assert after.keys() == before.keys()
    assert after["x.md"] != before["x.md"]
    mixerloop(*VERBS["report"], "--json", cwd=place)
    assert files_of(place) == after


@pytest.mark.parametrize("folder", ["run/config.toml", "run/checkpoints/step-4"])
def test_a_page_goes_into_no_file_and_no_checkpoint(place, folder):
    before = files_of(place)
    assert folder in refused("report", "run", "--out", f"{folder}/x.html", cwd=place)
    assert files_of(place) == before


def test_a_picture_is_what_its_name_says(place):
    mixerloop("describe", "nano", "--picture", "x.png", cwd=place)
    assert (place / "x.png").read_bytes().startswith(b"\x89PNG")
    for name in ("x.jpg", "x", "x.svg.gz"):
        assert "a picture ends in .svg or .png" in refused(
            "describe", "nano", "--picture", name, cwd=place
        )
        assert not (place / name).exists()


@pytest.mark.slow
def test_the_function_has_the_same_rule(place):
    import mixerloop as package

    (place / "x.md").write_text(MINE)
    with pytest.raises(ValueError, match=r"x\.md: not a file that mixerloop wrote"):
        package.make_report([place / "run"], place / "x.html")
    assert (place / "x.md").read_text() == MINE
    page = package.make_report([place / "run"], place / "x.html", overwrite=True).page
    assert json.loads((page.parent / "x-figures/written.json").read_text())["files"].keys() >= {
        *("../x.html", "../x.md", "runs-schedules.svg")
    }
