"""The paper's figures stand beside ours only where both were measured in one precision."""

from pathlib import Path

import pytest

from mixerloop import paper
from mixerloop.config import PRESETS
from mixerloop.evaluation.core.core_result import CoreResult, CoreSettings
from mixerloop.reports.elements import Table
from mixerloop.reports.results_section import results
from mixerloop.results import Estimate, result_provenance
from mixerloop.studies.table import Row
from mixerloop.studies.table import Table as StudyTable

SIZE, LOOP = "15m", "mixer_loop"


def measured_in(dtype):
    """A study of the paper's data with one model, its CORE measured in a type."""
    core = CoreResult(
        checkpoint="run",
        schedule="12x(A4 F)",
        trained_schedule="12x(A4 F)",
        core_v1=Estimate(value=0.06, lower=0.05, upper=0.07, over="examples"),
        manipulation_v1=Estimate(value=0.09, lower=0.08, upper=0.1, over="examples"),
        guess_core_v1=None,
        core_v2=None,
        manipulation_v2=None,
        guess_core_v2=None,
        comparable=True,
        not_comparable_because=(),
        tokens_plain=1,
        tokens_processed=1,
        tasks={},
        decisions_differing=None,
        settings=CoreSettings(
            **{"checkpoint": "c", "schedule": "12x(A4 F)", "tokenizer": "t", "bundle": "b"},
            compute_dtype=dtype,
            forms={},
            device="cpu",
            context=1024,
            limit=None,
            plain=False,
        ),
        provenance=result_provenance(compute_dtype=dtype),
    )
    row = Row(
        **{"arm": LOOP, "seed": 1337, "part": "climbmix", "schedule": "12x(A4 F)"},
        data="climbmix --tokenizer {tokenizer}",
        num_layers=PRESETS[SIZE].num_layers,
        d_model=PRESETS[SIZE].d_model,
        vocab_size=PRESETS[SIZE].vocab_size,
        parameters=15_724_416,
        flops_per_token=1e8,
        path=Path("runs") / LOOP,
        results={"core": core},
    )
    table = next(iter(results(StudyTable((row,)))))
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
