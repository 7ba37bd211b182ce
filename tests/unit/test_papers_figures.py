"""The paper's figures stand beside ours only where both were measured in one precision."""

from pathlib import Path

import pytest

from mixerloop import paper
from mixerloop.config import PRESETS
from mixerloop.reports.blocks import Table
from mixerloop.reports.results_section import results
from mixerloop.reports.study_results import ArmResults, PartResults, RunResults

SIZE, LOOP = "15m", "mixer_loop"


def measured_in(dtype):
    """A study of the paper's data with one model, its CORE measured in a type."""
    core = {"core_v1": 0.06, "core_v1_interval": [0.05, 0.07]}
    core |= {"manipulation_v1": 0.09, "manipulation_v1_interval": [0.08, 0.1]}
    run = RunResults(
        path=Path("runs") / LOOP,
        seed=1337,
        results={"core": core | {"provenance": {"compute_dtype": dtype}}},
        curve=[],
        seconds=None,
        tokens=None,
        provenance={},
    )
    sizes = {key: getattr(PRESETS[SIZE], key) for key in ("num_layers", "d_model", "vocab_size")}
    arm = {"name": LOOP, "parameters": 15_724_416, "flops_per_token": 1e8, **sizes}
    facts = {"name": "climbmix", "data": "climbmix --tokenizer {tokenizer}"}
    arms = [ArmResults(facts=arm, runs=[run])]
    table = next(iter(results(PartResults(facts=facts, arms=arms, comparison=None, missing=[]))))
    assert isinstance(table, Table)
    return table


@pytest.mark.parametrize(("dtype", "beside"), [("bfloat16", True), ("float32", False)])
def test_the_papers_core_is_set_beside_the_same_precision_only(dtype, beside):
    table = measured_in(dtype)
    (papers,) = (row for row in table.rows if row[0] == f"{LOOP} in the paper")
    shown = f"{paper.CORE[SIZE, LOOP].core_mean:.2f}" if beside else ""
    assert papers[table.columns.index("CORE")] == shown
    said = f"The paper measured CORE in bfloat16, and this study in {dtype}"
    assert (said in table.note) != beside
