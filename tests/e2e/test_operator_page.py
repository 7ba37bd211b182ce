"""The examples of docs/operator.md run as they are printed, one after another."""

import re
from pathlib import Path

import needs

PAGE = (Path(__file__).parents[2] / "docs" / "operator.md").read_text()
EXAMPLE, IN_TRANSFORMERS = re.findall(r"```python\n(.*?)```", PAGE, re.DOTALL)
MOST_LINES = 5


def test_the_example_takes_five_lines_and_has_gradients():
    assert len([line for line in EXAMPLE.splitlines() if line.strip()]) == MOST_LINES
    names = {}
    exec(EXAMPLE, names)
    assert names["output"].shape == (2, 100, 4, 64)
    assert names["state"].shape == (2, 4, 64, 64)
    assert all(names[name].grad.abs().max() > 0 for name in ("query", "key", "value"))


@needs.package("transformers").mark
def test_the_example_in_transformers_trains_and_restores_the_functions():
    module = needs.module("transformers.models.mamba2.modeling_mamba2")
    before = module.mamba2_chunk_scan
    names = {}
    exec(EXAMPLE + IN_TRANSFORMERS, names)
    gradients = [parameter.grad for parameter in names["model"].parameters()]
    assert all(gradient is not None and gradient.isfinite().all() for gradient in gradients)
    assert module.mamba2_chunk_scan is before
