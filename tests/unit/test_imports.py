"""What must be quick loads no torch."""

import subprocess
import sys

import pytest

HELP = """
import contextlib, io, sys
loaded = lambda *names: sorted({name.split(".")[0] for name in sys.modules} & set(names))
def said(*arguments):
    from mixerloop.cli.main import main
    sys.argv = ["mixerloop", *arguments]
    with contextlib.redirect_stdout(io.StringIO()) as printed:
        try:
            main()
        except SystemExit as stop:
            assert not stop.code
    return printed.getvalue()
"""


def run(script: str) -> None:
    ended = subprocess.run([sys.executable, "-c", HELP + script], capture_output=True, text=True)
    assert ended.returncode == 0, ended.stderr


def test_importing_loads_no_torch_and_changes_no_environment():
    """A cell's process settles the machine before torch is loaded."""
    run("""
import importlib, os
before = dict(os.environ)
for name in (
    "mixerloop", "mixerloop.schedule", "mixerloop.config", "mixerloop.runs", "mixerloop.catalog",
    "mixerloop.results", "mixerloop.measures", "mixerloop.result_files", "mixerloop.study_folder",
    "mixerloop.program", "mixerloop.benchmarking.settings", "mixerloop.studies.cell_process",
    "mixerloop.laws.study_law", "mixerloop.studies.comparing", "mixerloop.reports.build",
):
    importlib.import_module(name)
    assert not loaded("torch"), name
assert before == os.environ
""")


def test_help_and_completion_load_neither_torch_nor_scipy_nor_a_package_of_tokenizers():
    run("""
for verb in (
    "describe", "init", "generate", "data", "train", "runs", "evaluate", "transport", "bench",
    "doctor", "configs", "studies", "completion", "law",
):
    assert "usage: mixerloop" in said(verb, "--help")
    assert not loaded("torch", "scipy", "sentencepiece", "tokenizers"), verb
assert "usage: mixerloop" in said("--help")
assert "complete -o default" in said("completion", "bash")
assert not loaded("torch", "scipy", "sentencepiece", "tokenizers")
""")


@pytest.mark.slow
def test_running_a_model_does_not_load_torchs_compiler():
    """It takes longer to load than all the rest, and training alone needs it."""
    run("""
import torch
from mixerloop.config import preset
from mixerloop.model.initialization import fresh_model
model = fresh_model(preset("nano").changed(num_layers=1), seed=0)
with torch.inference_mode():
    model(torch.zeros(1, 3, dtype=torch.long))
assert "torch._dynamo" not in sys.modules
""")
