"""The records of cells: a damaged record is an error that names its file."""

import json

import pytest

from mixerloop.files import write_sealed
from mixerloop.studies.cells import state_of
from mixerloop.studies.table import Row
from mixerloop.study_folder import STATE, record_of

CELL = "part/arm-seed1"
ROW = Row(run=CELL, measure=("nll",))


def state_file(folder):
    path = record_of(folder, CELL) / STATE
    path.parent.mkdir(parents=True)
    return path


def test_a_cell_without_a_record_is_waiting(tmp_path):
    assert state_of(tmp_path, ROW).state == "waiting"


def test_the_error_of_a_failed_cell_is_read(tmp_path):
    write_sealed(state_file(tmp_path), {"state": "failed", "error": "no data"})
    state = state_of(tmp_path, ROW)
    assert (state.state, state.error) == ("failed", "no data")


def test_a_record_of_the_first_version_is_read(tmp_path):
    state_file(tmp_path).write_text('{"state": "failed", "error": "no data"}')
    assert state_of(tmp_path, ROW).state == "failed"


@pytest.mark.parametrize(
    "content",
    [
        *("", "null", "[]", "{}", '"done"', "{", '{"state": null, "error": null}'),
        *('{"state": "dote"}', '{"state": "done", "error": 3}', '{"stat": "done"}'),
    ],
)
def test_a_damaged_record_is_named(content, tmp_path):
    path = state_file(tmp_path)
    path.write_text(content)
    with pytest.raises(ValueError, match="remove this file to run its cell again") as caught:
        state_of(tmp_path, ROW)
    assert str(caught.value).startswith(f"{path}: ")


def test_a_changed_value_of_a_record_is_found(tmp_path):
    path = state_file(tmp_path)
    write_sealed(path, {"state": "failed", "error": "no data"})
    written = json.loads(path.read_text())
    path.write_text(json.dumps(written | {"state": "done"}, indent=2) + "\n")
    with pytest.raises(ValueError, match=f"{STATE}: damaged"):
        state_of(tmp_path, ROW)


def test_a_folder_in_the_place_of_a_record_is_named(tmp_path):
    path = state_file(tmp_path)
    path.mkdir()
    with pytest.raises(ValueError, match=STATE):
        state_of(tmp_path, ROW)
