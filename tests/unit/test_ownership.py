"""What may be overwritten: files of this program, and nothing of the user."""

import contextlib
import itertools

import pytest

from mixerloop import ownership
from mixerloop.ownership import LEDGER, Ledger


class Killed(BaseException):
    pass


def contents(folder):
    return {
        str(path.relative_to(folder)): path.read_text()
        for path in sorted(folder.rglob("*"))
        if path.is_file() and path.name != LEDGER
    }


def write(folder, text, *, overwrite=False):
    page, table = folder / "page.html", folder / "figures" / "table.csv"
    Ledger(folder / "figures").write(
        {page: f"page {text}", table: f"table {text}".encode()}, overwrite=overwrite
    )


def test_own_files_are_replaced_as_often_as_asked(tmp_path):
    for text in ("one", "two", "two", "three"):
        write(tmp_path, text)
        assert contents(tmp_path) == {
            "page.html": f"page {text}",
            "figures/table.csv": f"table {text}",
        }


@pytest.mark.parametrize("name", ["page.html", "figures/table.csv"])
@pytest.mark.parametrize("begun", [False, True])
def test_a_file_of_the_user_stops_all_of_them(tmp_path, name, begun):
    (tmp_path / "figures").mkdir()
    if begun:
        write(tmp_path, "one")
    (tmp_path / name).write_text("mine")
    before = contents(tmp_path)
    with pytest.raises(ValueError, match="not a file that mixerloop wrote, or changed") as caught:
        write(tmp_path, "two")
    assert str(caught.value).startswith(f"{tmp_path / name}: ")
    assert str(caught.value).endswith("--overwrite replaces it")
    assert contents(tmp_path) == before
    write(tmp_path, "two", overwrite=True)
    write(tmp_path, "three")
    assert contents(tmp_path) == {"page.html": "page three", "figures/table.csv": "table three"}


def test_an_identical_file_may_be_of_any_origin(tmp_path):
    (tmp_path / "page.html").write_text("page one")
    write(tmp_path, "one")
    write(tmp_path, "two")


def test_nothing_is_written_through_a_link(tmp_path):
    (tmp_path / "mine").write_text("mine")
    (tmp_path / "page.html").symlink_to(tmp_path / "mine")
    with pytest.raises(ValueError, match=r"page\.html: is a link, which is not written through"):
        write(tmp_path, "one")
    write(tmp_path, "one", overwrite=True)
    assert (tmp_path / "mine").read_text() == "mine"
    assert (tmp_path / "page.html").read_text() == "page one"
    assert not (tmp_path / "page.html").is_symlink()


def test_a_folder_in_the_place_of_a_file_is_named(tmp_path):
    (tmp_path / "page.html").mkdir()
    for overwrite in (False, True):
        with pytest.raises(ValueError, match=r"page\.html: exists and is not a file"):
            write(tmp_path, "one", overwrite=overwrite)


@pytest.mark.parametrize("damaged", ["", "null", "{}", '{"files": {"../page.html": ["00"]}}'])
def test_a_ledger_that_is_not_ours_is_named(tmp_path, damaged):
    write(tmp_path, "one")
    (tmp_path / "figures" / LEDGER).write_text(damaged)
    with pytest.raises(ValueError, match=r"written\.json: .*; --overwrite replaces it"):
        write(tmp_path, "two")
    assert contents(tmp_path)["page.html"] == "page one"
    write(tmp_path, "two", overwrite=True)
    write(tmp_path, "three")


def test_after_a_kill_at_any_write_the_files_are_still_known(tmp_path, monkeypatch):
    write_file, write_sealed = ownership.write_file, ownership.write_sealed

    def killed_before(number):
        left = itertools.count(number, -1)

        def guarded(write):
            def call(*arguments):
                if next(left) == 0:
                    raise Killed
                write(*arguments)

            return call

        monkeypatch.setattr(ownership, "write_file", guarded(write_file))
        monkeypatch.setattr(ownership, "write_sealed", guarded(write_sealed))

    for number in range(4):  # the ledger, two files, the ledger
        folder = tmp_path / str(number)
        folder.mkdir()
        for text in ("one", "two"):  # new files, and files that are replaced
            killed_before(number)
            with contextlib.suppress(Killed):
                write(folder, text)
            monkeypatch.undo()
            write(folder, text)
            assert contents(folder)["page.html"] == f"page {text}"
