import json
import os

import pytest

from mixerloop import prepare_hops, runs
from mixerloop.files import check_can_hold, check_seal, locked, new_folder, seal_folder, write_file
from mixerloop.provenance import collect_provenance


def test_a_folder_appears_only_when_it_is_complete(tmp_path):
    with pytest.raises(ZeroDivisionError), new_folder(tmp_path / "run") as folder:
        (folder / "half").write_text(str(1 / 0))
    assert list(tmp_path.iterdir()) == []
    with new_folder(tmp_path / "run") as folder:
        (folder / "whole").write_text("written")
    assert (tmp_path / "run" / "whole").read_text() == "written"
    assert [path.name for path in tmp_path.iterdir()] == ["run"]


def test_a_folder_inside_a_sealed_one_may_have_its_own_seal(tmp_path):
    inner = tmp_path / "inner"
    inner.mkdir()
    (inner / "file").write_text("x")
    seal_folder(inner)
    seal_folder(tmp_path)
    check_seal(tmp_path)
    (inner / "contents.json").write_text("{}")
    with pytest.raises(ValueError, match="damaged"):
        check_seal(tmp_path)


def test_of_two_who_make_one_folder_the_second_is_told(tmp_path):
    def both():
        with new_folder(tmp_path / "run"):
            (tmp_path / "run").mkdir()
            (tmp_path / "run" / "first").write_text("x")

    with pytest.raises(ValueError, match="already exists"):
        both()
    assert [p.name for p in tmp_path.iterdir()] == ["run"]


def test_a_file_is_written_through_a_link_and_never_over_a_device(tmp_path):
    (tmp_path / "real").write_text("old")
    (tmp_path / "link").symlink_to(tmp_path / "real")
    write_file(tmp_path / "link", "new")
    assert (tmp_path / "link").is_symlink()
    assert (tmp_path / "real").read_text() == "new"
    os.mkfifo(tmp_path / "pipe")
    for place in ("pipe", ""):
        with pytest.raises(ValueError, match="exists and is not a file"):
            write_file(tmp_path / place, "new")
    with pytest.raises(ValueError, match="there is no folder"):
        write_file(tmp_path / "gone" / "file", "new")


def test_a_folder_is_never_overwritten(tmp_path):
    (tmp_path / "run").mkdir()
    with pytest.raises(ValueError, match="already exists"), new_folder(tmp_path / "run"):
        pass


def test_a_failed_write_leaves_the_old_file(tmp_path):
    path = tmp_path / "file"
    write_file(path, "old")
    with pytest.raises(TypeError):
        write_file(path, None)  # pyright: ignore[reportArgumentType]
    assert path.read_text() == "old"
    assert [p.name for p in tmp_path.iterdir()] == ["file"]


@pytest.fixture
def sealed(tmp_path):
    folder = tmp_path / "step-0"
    folder.mkdir()
    (folder / "a").write_bytes(b"0123456789")
    (folder / "b").write_bytes(b"x")
    seal_folder(folder)
    check_seal(folder)
    return folder


@pytest.mark.parametrize(
    ("damage", "message"),
    [
        (lambda f: (f / "a").write_bytes(b"012345678"), "a: damaged, 9 bytes instead of 10"),
        (lambda f: (f / "a").write_bytes(b"0123456788"), "a: damaged, its sha256"),
        (lambda f: (f / "b").unlink(), "b: missing from the checkpoint"),
        (lambda f: (f / "contents.json").write_text("{"), "contents.json: cannot read"),
        (lambda f: (f / "contents.json").write_text("[]"), "contents.json: damaged, it is not a"),
        (
            lambda f: (f / "contents.json").write_text(
                json.dumps({"files": {"../x": {"bytes": 1, "sha256": ""}}})
            ),
            "'../x' is not the name of a file in here",
        ),
        (
            lambda f: (f / "contents.json").write_text(
                json.dumps({"files": {"a\0b": {"bytes": 1, "sha256": ""}}})
            ),
            "is not the name of a file in here",
        ),
        (
            lambda f: (f / "contents.json").write_text(
                json.dumps({"files": {"a": {"bytes": None, "sha256": ""}}})
            ),
            r"contents\.json: not a list of files",
        ),
        (lambda f: (f / "contents.json").write_text("[" * 100_000), r"contents\.json: cannot read"),
        (lambda f: (f / "contents.json").unlink(), r"contents\.json: there is no such file"),
        (lambda f: (f / "c").write_text("new"), "c: not in the checkpoint's list of files"),
        (lambda f: ((f / "a").unlink(), (f / "a").symlink_to(f / "b")), "a: is a link"),
    ],
)
def test_damage_to_a_sealed_folder_is_named(sealed, damage, message):
    damage(sealed)
    with pytest.raises(ValueError, match=message):
        check_seal(sealed)


def test_the_newest_checkpoint_of_a_run_is_meant(tmp_path):
    for step in (2, 10, 9):
        runs.checkpoint_folder(tmp_path, step).mkdir(parents=True)
        seal_folder(runs.checkpoint_folder(tmp_path, step))
    (tmp_path / "checkpoints" / "step-11.partial").mkdir()
    assert runs.find_checkpoint(tmp_path).name == "step-10"
    (tmp_path / "checkpoints/step-10/contents.json").unlink()
    with pytest.raises(ValueError, match=r"step-10/contents\.json: missing"):
        runs.find_checkpoint(tmp_path)


def test_a_run_may_lie_in_a_folder_named_checkpoints(tmp_path):
    run = tmp_path / "checkpoints/run"
    seal_folder(made(runs.checkpoint_folder(run, 3)))
    assert runs.find_checkpoint(run).name == "step-3"
    check_can_hold(tmp_path / "checkpoints/results")
    with pytest.raises(ValueError, match="lies in a sealed folder"):
        check_can_hold(run / "checkpoints/step-3/results")


def made(folder):
    folder.mkdir(parents=True)
    return folder


def test_a_lock_is_not_written_through_a_link(tmp_path):
    (tmp_path / "mine").write_text("mine")
    (tmp_path / "lock").symlink_to(tmp_path / "mine")
    with pytest.raises(OSError, match="lock"), locked(tmp_path):
        pass
    assert (tmp_path / "mine").read_text() == "mine"


@pytest.mark.parametrize(("name", "message"), [("gone", "no such run"), ("", "neither a run")])
def test_a_path_without_a_checkpoint_is_refused(tmp_path, name, message):
    with pytest.raises(ValueError, match=message):
        runs.find_checkpoint(tmp_path / name)


def test_prepared_data_in_place_of_a_run_is_named(tmp_path):
    prepare_hops(tmp_path / "data")
    with pytest.raises(ValueError, match="data: prepared data, and not a run"):
        runs.find_checkpoint(tmp_path / "data")


def test_provenance_names_code_versions_machine_and_what_the_caller_knows():
    facts = collect_provenance(seed=3)
    assert facts["seed"] == 3
    assert facts["versions"]["torch"]
    assert facts["machine"]["cores"] >= 1
    assert {"commit", "dirty", "created", "command"} <= facts.keys()
    json.dumps(facts)
