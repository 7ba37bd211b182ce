import json

import pytest

from mixerloop import runs


def test_a_folder_appears_only_when_it_is_complete(tmp_path):
    with pytest.raises(ZeroDivisionError), runs.new_folder(tmp_path / "run") as folder:
        (folder / "half").write_text(str(1 / 0))
    assert list(tmp_path.iterdir()) == []
    with runs.new_folder(tmp_path / "run") as folder:
        (folder / "whole").write_text("written")
    assert (tmp_path / "run" / "whole").read_text() == "written"
    assert [path.name for path in tmp_path.iterdir()] == ["run"]


def test_a_folder_is_never_overwritten(tmp_path):
    (tmp_path / "run").mkdir()
    with pytest.raises(ValueError, match="already exists"), runs.new_folder(tmp_path / "run"):
        pass


def test_a_failed_write_leaves_the_old_file(tmp_path):
    path = tmp_path / "file"
    runs.write_file(path, "old")
    with pytest.raises(TypeError):
        runs.write_file(path, None)  # pyright: ignore[reportArgumentType]
    assert path.read_text() == "old"
    assert [p.name for p in tmp_path.iterdir()] == ["file"]


@pytest.fixture
def sealed(tmp_path):
    folder = tmp_path / "step-0"
    folder.mkdir()
    (folder / "a").write_bytes(b"0123456789")
    (folder / "b").write_bytes(b"x")
    runs.seal(folder)
    runs.check_seal(folder)
    return folder


@pytest.mark.parametrize(
    ("damage", "message"),
    [
        (lambda f: (f / "a").write_bytes(b"012345678"), "a: damaged, 9 bytes instead of 10"),
        (lambda f: (f / "a").write_bytes(b"0123456788"), "a: damaged, its sha256"),
        (lambda f: (f / "b").unlink(), "b: missing from the checkpoint"),
        (lambda f: (f / "contents.json").write_text("{"), "contents.json: cannot read"),
        (lambda f: (f / "contents.json").write_text("[]"), "contents.json: not a list of files"),
        (
            lambda f: (f / "contents.json").write_text(
                json.dumps({"files": {"../x": {"bytes": 1, "sha256": ""}}})
            ),
            "names a file outside its folder",
        ),
    ],
)
def test_damage_to_a_sealed_folder_is_named(sealed, damage, message):
    damage(sealed)
    with pytest.raises(ValueError, match=message):
        runs.check_seal(sealed)


def test_the_newest_checkpoint_of_a_run_is_meant(tmp_path):
    for step in (2, 10, 9):
        runs.checkpoint_folder(tmp_path, step).mkdir(parents=True)
    (tmp_path / "checkpoints" / "step-11.partial").mkdir()
    assert runs.find_checkpoint(tmp_path).name == "step-10"


@pytest.mark.parametrize(("name", "message"), [("gone", "no such run"), ("", "neither a run")])
def test_a_path_without_a_checkpoint_is_refused(tmp_path, name, message):
    with pytest.raises(ValueError, match=message):
        runs.find_checkpoint(tmp_path / name)


def test_provenance_names_code_versions_machine_and_what_the_caller_knows():
    facts = runs.provenance(seed=3)
    assert facts["seed"] == 3
    assert facts["versions"]["torch"]
    assert facts["machine"]["cores"] >= 1
    assert {"commit", "dirty", "created", "command"} <= facts.keys()
    json.dumps(facts)
