"""The seal of an exported folder: a changed file of our own export is named."""

import shutil

import pytest

from command_line import mixerloop, refused
from mixerloop.files import CONTENTS
from small_model import model_file

FILES = ("config.json", "model.safetensors", CONTENTS)
VERBS = (["describe"], ["generate", "--prompt-tokens", 1], ["import", "--out", "run"])


@pytest.fixture(scope="module")
def exported(tmp_path_factory):
    place = tmp_path_factory.mktemp("exported")
    (place / "small.toml").write_text(model_file())
    mixerloop("init", "small.toml", "--out", "run", cwd=place)
    mixerloop("export", "run", "--out", "folder", cwd=place)
    return place / "folder"


@pytest.fixture
def folder(exported, tmp_path):
    return shutil.copytree(exported, tmp_path / "folder")


def read_by(verb, folder, code=0):
    arguments = (verb[0], folder.name, *verb[1:])
    if code:
        return refused(*arguments, cwd=folder.parent)
    return mixerloop(*arguments, cwd=folder.parent).stdout


@pytest.mark.parametrize("verb", VERBS)
def test_a_flipped_bit_or_a_missing_file_is_named(folder, verb):
    for name in FILES:
        whole = (folder / name).read_bytes()
        for at in (0.1, 0.95):
            content = bytearray(whole)
            content[int(at * len(content))] ^= 1
            (folder / name).write_bytes(content)
            assert f"folder/{name}" in read_by(verb, folder, code=2)
            assert not (folder.parent / "run").exists()
        (folder / name).unlink()
        if name != CONTENTS:
            assert name in read_by(verb, folder, code=2)
            (folder / name).symlink_to("gone")
            assert name in read_by(verb, folder, code=2)
            (folder / name).unlink()
        (folder / name).write_bytes(whole)


@pytest.mark.parametrize("verb", VERBS)
def test_a_folder_without_a_seal_and_with_files_of_the_user_is_read(folder, verb):
    (folder / "README.md").write_text("mine")
    read_by(verb, folder)
    shutil.rmtree(folder.parent / "run", ignore_errors=True)
    (folder / CONTENTS).unlink()
    read_by(verb, folder)


def test_a_folder_in_the_place_of_a_tokenizer_is_not_a_missing_tokenizer(folder):
    (folder / CONTENTS).unlink()
    (folder / "tokenizer.model").mkdir()
    assert "tokenizer.model" in refused("import", folder, "--out", "run", cwd=folder.parent)
