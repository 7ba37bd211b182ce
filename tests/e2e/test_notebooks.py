"""The notebooks of examples/ run from start to end."""

import re
import sys
from pathlib import Path

import nbformat
import pytest
from nbclient import NotebookClient

EXAMPLES = Path(__file__).parents[2] / "examples"
NOTEBOOKS = sorted(EXAMPLES.glob("*.ipynb"))
MOST_BYTES = 300_000
MOST_LINES = 14
"""Of a cell."""
MACHINE_PATH = re.compile(r"(?<![\w.])/(?:home|root|tmp|var|Users|usr|opt)/")
PATIENCE = 1800


def test_there_are_two_notebooks_within_their_size():
    assert [path.stem for path in NOTEBOOKS] == ["compare_two_runs", "tour"]
    assert sum(path.stat().st_size for path in NOTEBOOKS) < MOST_BYTES


@pytest.mark.parametrize("path", NOTEBOOKS, ids=lambda path: path.stem)
def test_a_notebook_is_valid_short_and_names_no_path_of_a_machine(path):
    notebook = nbformat.read(path, as_version=4)
    nbformat.validate(notebook)
    outputs = [output for cell in notebook.cells for output in cell.get("outputs", ())]
    assert outputs
    assert all(output.output_type != "error" for output in outputs)
    counts = [cell.execution_count for cell in notebook.cells if cell.cell_type == "code"]
    assert counts == list(range(1, len(counts) + 1))  # run once, from the start, and saved
    assert all(len(cell.source.splitlines()) <= MOST_LINES for cell in notebook.cells)
    assert MACHINE_PATH.search(path.read_text()) is None


@pytest.mark.slow
@pytest.mark.parametrize("path", NOTEBOOKS, ids=lambda path: path.stem)
def test_a_notebook_runs(path, tmp_path, monkeypatch):
    """A failing cell raises; the kernel is this Python, whatever kernels a user has installed."""
    monkeypatch.setenv("JUPYTER_PATH", str(Path(sys.prefix) / "share" / "jupyter"))
    monkeypatch.setenv("IPYTHONDIR", str(tmp_path / "ipython"))
    notebook = nbformat.read(path, as_version=4)
    place = {"metadata": {"path": str(tmp_path)}}
    NotebookClient(notebook, timeout=PATIENCE, kernel_name="python3", resources=place).execute()
    codes = [cell for cell in notebook.cells if cell.cell_type == "code"]
    assert [cell.execution_count for cell in codes] == list(range(1, len(codes) + 1))
    if path.stem == "tour":
        assert "image/svg+xml" in codes[-1].outputs[-1].data
    else:
        assert "one seed: no verdict" in str(codes[3].outputs)
