"""Rows and tables: selection, means over seeds, data frames, and the row of a cell's process."""

import importlib
import json
import sys
from dataclasses import replace
from pathlib import Path

import pytest

from law_study import SIZES, nll_result, write_study
from mixerloop import result_files
from mixerloop.config import DataConfig, RunConfig, TrainConfig
from mixerloop.evaluation.nll_result import NllResult
from mixerloop.files import read_sealed
from mixerloop.parent_record import ParentRecord
from mixerloop.reports import elements
from mixerloop.reports.results_section import loss_parts
from mixerloop.results import Estimate
from mixerloop.studies import cells
from mixerloop.studies.cell_process import row_from, row_text
from mixerloop.studies.overview import study_table, write_table
from mixerloop.studies.reading import _loss_parts, read_plan
from mixerloop.studies.table import Row, Table
from small_model import small_config

MODEL = small_config(num_layers=2, d_model=16, num_heads=2, d_head=8, d_ffn=24, vocab_size=50)


def filled(arm, seed, nll):
    return Row(part="p", arm=arm, seed=seed, path=Path(f"{arm}{seed}"), results={"nll": nll})


TABLE = Table(
    (
        filled("a", 1, nll_result(3.0)),
        filled("b", 1, nll_result(5.0)),
        filled("a", 2, nll_result(4.0)),
        Row(part="p", arm="c", seed=1, run="p/c-seed1"),
    )
)


def test_rows_are_selected_and_grouped_in_their_order():
    assert [row.seed for row in TABLE.where(arm="a")] == [1, 2]
    assert list(TABLE.by("arm")) == ["a", "b", "c"]
    assert list(TABLE.arms) == ["a", "b"]
    assert TABLE.missing == ["p/c-seed1"]
    assert [result.nll.value for result in TABLE.results(NllResult)] == [3.0, 5.0, 4.0]


def test_an_estimate_is_over_seeds_or_that_of_the_only_row():
    mean = TABLE.where(arm="a").estimate(NllResult, "nll")
    assert isinstance(mean, Estimate)
    assert (mean.value, mean.over) == (3.5, "seeds")
    assert TABLE.where(arm="b").estimate(NllResult, "nll") == nll_result(5.0).nll
    assert TABLE.where(arm="c").estimate(NllResult, "nll") is None


def test_the_parts_of_a_loss_stand_beside_each_other():
    """Of the last tenth of the steps; a pass that no step has made is no part."""
    steps = [{"step": n, "loss": 9.0} for n in range(18)]
    steps += [{"loss": 3.0, "loss.nll": 2.0, "loss.nll.pass1": 2.0}, {"loss": 5.0, "loss.nll": 4.0}]
    parts = _loss_parts(steps)
    assert parts == {"loss": 4.0, "loss.nll": 3.0, "loss.nll.pass1": 2.0}
    assert _loss_parts(steps[:18]) == {}
    rows = (replace(TABLE.rows[0], loss_parts=parts), *TABLE.rows[1:])
    (table,) = loss_parts(Table(rows))
    assert isinstance(table, elements.Table)
    assert table.columns == ["model", "loss", "NLL", "nll.pass1"]
    assert table.rows == [["a", "4.0000", "3.0000", "2.0000"]]
    assert not list(loss_parts(TABLE))


def test_a_cells_process_gets_the_row_that_was_planned():
    train = TrainConfig(steps=4, warmup_steps=1, seed=3)
    config = RunConfig(model=MODEL, data=DataConfig(path="data/p"), train=train)
    of = ParentRecord(folder="p", sha256="s", schedule="A F", step=1, run_id=None, fresh=("x",))
    planned = Row(run="p/ä-seed3", arm="ä", seed=3, measure=("nll",), parent=of, tokens=7)
    text = row_text(replace(planned, config=config))
    assert text.isascii()
    got = row_from(text)
    assert replace(got, config=None) == planned
    data, _ = got.with_config().for_training()
    assert data.path == str(Path("data/p").resolve())
    assert row_text(got) == text
    for damaged in ("", "[]", "{}", text[:-9], text.replace('"seed": 3', '"seed": "3"')):
        with pytest.raises(ValueError, match="stdin: not the row of a cell"):
            row_from(damaged)


@pytest.fixture(scope="module")
def study(tmp_path_factory):
    """A finished study of two sizes, three budgets and three models."""
    folder = tmp_path_factory.mktemp("table") / "study"
    write_study(folder, SIZES)
    return folder


def test_a_column_that_is_missing_or_unknown_is_an_error(study):
    (row, *_) = read_sealed(study / "plan.json")["rows"]
    assert Row.from_table(row).planned() == row
    with pytest.raises(ValueError, match="rows have no column results"):
        Row.from_table({**row, "results": {}})
    with pytest.raises(ValueError, match="a row has no parameters"):
        Row.from_table({key: row[key] for key in row if key != "parameters"})


def test_the_rows_of_a_study_are_written_with_their_figures(study, tmp_path, monkeypatch):
    write_table(study, csv=tmp_path / "rows.csv", parquet=tmp_path / "rows.parquet")
    lines = (tmp_path / "rows.csv").read_text().splitlines()
    assert len(lines) == 1 + len(read_plan(study).rows)
    assert lines[0].startswith('"number","run","part","family","size","tokens"')
    table = importlib.import_module("pyarrow.parquet").read_table(tmp_path / "rows.parquet")
    records = study_table(study).records()
    assert table.to_pylist() == json.loads(json.dumps(records))
    assert records[0]["nll.nll"] == pytest.approx(records[0]["nll.nll_lower"] + 0.01)
    (tmp_path / "mine.csv").write_text("mine")
    with pytest.raises(ValueError, match=r"mine\.csv: not a file that mixerloop wrote"):
        write_table(study, csv=tmp_path / "mine.csv")
    for package in ("pandas", "polars"):
        monkeypatch.setitem(sys.modules, package, None)  # importing it raises ImportError
    with pytest.raises(ValueError, match=r"^a data frame needs pandas or polars"):
        study_table(study).frame()


def test_a_result_is_decoded_once_while_its_file_stays_as_it_is(study, monkeypatch):
    decoded = []
    decode = result_files.decode
    monkeypatch.setattr(result_files, "SURELY_LATER", 0)
    monkeypatch.setattr(result_files, "decode", lambda *of: decoded.append(of) or decode(*of))
    monkeypatch.setattr(result_files, "_READ", {})
    rows = read_plan(study).rows
    for _ in range(3):
        study_table(study)
        assert {cells.state_of(study, row).state for row in rows} == {"waiting"}
    assert len(decoded) == len(rows)
    path = study / rows[0].run / "results/nll.json"
    path.write_bytes(path.read_bytes().replace(b'"tokens": 99', b'"tokens": 98'))
    with pytest.raises(ValueError, match=r"nll\.json: damaged"):
        study_table(study)
