"""The examples of docs/extending.md run as they are printed, in one process."""

import re
import subprocess
import sys
from pathlib import Path

import pytest

from command_line import environment

PAGE = Path(__file__).parents[2] / "docs" / "extending.md"
THEN = """
import mixerloop
from mixerloop.reports.build import PART_SECTIONS

config = mixerloop.load_config(sys.argv[1])
config = dataclasses.replace(
    config,
    model=config.model.changed(
        num_layers=2, vocab_size=16, schedule="early_loop(2)", mixer="running_mean",
        ffn="squared_relu", d_squared=24, damping="mixer",
    ),
    data=dataclasses.replace(config.data, path="data/echo"),
    train=dataclasses.replace(
        config.train,
        depth="powers(4)",
        objective=type(config.train.objective).from_table({"kind": "short", "price": 0.1}),
    ),
)
trained = mixerloop.train(config, "run")
assert trained.last.parts.keys() == {"nll", "length"}
subject = mixerloop.open_subject("run")
assert subject.provenance().forms["running_mean"] == "torch"
assert len(mixerloop.evaluate_task(subject).accuracy_by_group) == 10
assert mixerloop.measure_transport(subject).intact_max_abs_error == 0
assert measure_norms(subject).mean_norm.lower > 0
assert "parameters" in PART_SECTIONS
"""


@pytest.mark.slow
def test_the_examples_of_the_page_run_and_work_together(tmp_path):
    examples = re.findall(r"```python\n(.*?)```", PAGE.read_text(), re.DOTALL)
    assert len(examples) == 10
    (tmp_path / "example.py").write_text("import dataclasses, sys\n" + "\n".join(examples) + THEN)
    (tmp_path / "config.toml").write_text(
        '[model]\npreset = "nano"\n[data]\npath = "data/echo"\n'
        "[train]\nsteps = 3\nglobal_batch = 4\nwarmup_steps = 1\n"
        'compute_dtype = "float32"\ntensorboard = false\n'
    )
    done = subprocess.run(
        [sys.executable, "example.py", "config.toml"],
        cwd=tmp_path,
        env=environment(tmp_path),
        capture_output=True,
        text=True,
    )
    assert done.returncode == 0, done.stderr
