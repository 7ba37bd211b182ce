"""Which runs are one architecture, what a difference is made of, and what is said about it."""

import math
from dataclasses import replace
from pathlib import Path

import numpy as np
import pytest

from law_study import nll_result
from mixerloop.config import RunConfig, TrainConfig
from mixerloop.evaluation.comparison_result import judged_together, task_warnings
from mixerloop.evaluation.core.core_units import CoreUnits
from mixerloop.evaluation.core.metric import VERSIONS, Version
from mixerloop.evaluation.nll_result import document_units, equal_documents
from mixerloop.evaluation.task_result import sequence_units
from mixerloop.parent_record import ParentRecord
from mixerloop.results import encode, result_provenance
from mixerloop.studies.comparing import architectures
from mixerloop.studies.table import Row, Table
from small_model import small_config

MODEL = small_config(num_layers=2, d_model=16, num_heads=2, d_head=8, d_ffn=24, vocab_size=50)
ASKED = {"bundle": "b", "context": 1024, "limit": None, "compute_dtype": "float32"}
BASELINES: dict[Version, dict[str, float]] = {
    version: {"boolq": 0.62, "copa": 0.5} for version in VERSIONS
}
MAJORITY = {"boolq": 0.62, "copa": 0.55}


PARENT = ParentRecord(
    **{"folder": "runs/p", "sha256": "weights of another run", "schedule": "A F"},
    **{"step": 4, "run_id": None, "fresh": ()},
)


def answers(share, num=100):
    return np.arange(num) < round(share * num)


def core_units(boolq=0.5, copa=0.6, **changes):
    core = CoreUnits(
        settings=dict(ASKED),
        right={"boolq": answers(boolq), "copa": answers(copa)},
        baselines=BASELINES,
        majority=MAJORITY,
        is_whole=True,
        not_comparable_because=(),
    )
    return replace(core, **changes)


def nll_units(nats=(3.0, 6.0, 4.0), **asked):
    settings = {"data": "d", "context": 32, "compute_dtype": "float32", **asked}
    return document_units(np.array(nats), np.array([1, 2, 2]), **settings)


def run(name, schedule="2x(A2 F)", seed=1, core=None, nll=None, hops=None, **changes):
    train = TrainConfig(steps=4, warmup_steps=1, seed=seed)
    units = {"core": core, "nll": nll, "hops": hops}
    row = Row(
        path=Path("runs") / name,
        schedule=schedule,
        seed=seed,
        results=weights(changes.pop("checkpoint", name), schedule),
        config=RunConfig(model=replace(MODEL, schedule=schedule), train=train),
        trained_on="data",
        step="step-4",
        units={name: found for name, found in units.items() if found is not None},
    )
    return replace(row, **changes)


def weights(checkpoint, schedule):
    """A result of weights with this fingerprint; comparisons read no more of it."""
    of = result_provenance(checkpoint_sha256=checkpoint)
    return {"nll": nll_result(3.0, schedule=schedule, provenance=of)}


def compare(rows):
    named = zip(rows, architectures(rows), strict=True)
    return Table(tuple(replace(row, arm=arm) for row, arm in named)).compare()


def names(rows):
    """The rows of each architecture by index, and their seeds, in the order of seeds."""
    arms = architectures(rows)
    groups = {
        arm: sorted((n for n, one in enumerate(arms) if one == arm), key=lambda n: rows[n].seed)
        for arm in arms
    }
    return [(arm, tuple(of), tuple(rows[n].seed for n in of)) for arm, of in groups.items()]


def test_runs_that_differ_in_the_seed_are_one_architecture_in_the_order_of_seeds():
    found = names([run("a", seed=2), run("b", seed=1), run("f", "2x(A F)", seed=1)])
    assert found == [("2x(A2 F)", (1, 0), (1, 2)), ("2x(A F)", (2,), (1,))]


def test_a_single_document_is_not_compared_and_the_way_out_is_named():
    single = document_units(np.array([3.0]), np.array([2]), data="d", context=8, compute_dtype=None)
    first, second = run("a", nll=single), run("b", "2x(A F)", nll=single)
    with pytest.raises(ValueError, match=r"runs/a: its NLL is of a single .* --held-out FILE FILE"):
        compare([first, second])
    both = [replace(one, units={**one.units, "core": core_units()}) for one in (first, second)]
    compared = compare(both)
    assert not {"nll"} & compared.pairs[0].measures.keys()
    assert "single held-out document" in compared.warnings[0]


def test_runs_of_one_architecture_alone_are_compared_with_each_other():
    assert names([run("a", seed=1), run("b", seed=2)]) == [("a", (0,), (1,)), ("b", (1,), (2,))]
    twins = [run("x/run", seed=1), run("y/run", seed=2)]
    assert architectures(twins) == ["runs/x/run", "runs/y/run"]


@pytest.mark.parametrize(
    "other",
    [
        {"trained_on": "other data"},
        {"step": "step-2"},
        {"seed": 1},
        {"config": None},
        {"schedule": "2x(A4 F)"},
        {"parent": PARENT},
    ],
)
def test_other_data_steps_schedules_parents_or_no_other_seed_are_no_seeds_of_one(other):
    full = run("f", "2x(A F)", seed=1)
    found = architectures([run("a", seed=1), run("b", **({"seed": 2} | other)), full])
    assert len(set(found)) == 3


def test_how_a_run_was_computed_makes_no_other_architecture():
    one, other = run("a", seed=1), run("b", seed=2)
    assert other.config is not None
    assert other.config.train is not None
    train = replace(other.config.train, micro_batch=2, device="cpu")
    other = replace(other, config=replace(other.config, train=train))
    assert len(set(architectures([one, other, run("f", "2x(A F)")]))) == 2


def test_micro_batches_make_no_other_architecture():
    """Also with experts, whose balance loss is of the whole step."""
    sparse = MODEL.changed(ffn="experts", d_ffn=8, num_experts=4)
    runs = []
    for seed, number in ((1, 1), (2, 2)):
        train = TrainConfig(steps=4, warmup_steps=1, seed=seed, micro_batch=number)
        runs.append(run(str(seed), seed=seed, config=RunConfig(model=sparse, train=train)))
    assert len(set(architectures([*runs, run("f", "2x(A F)")]))) == 2


def test_seeds_that_were_given_a_time_end_at_steps_of_their_own():
    def timed(name, seed, step):
        train = TrainConfig(seconds=60, seed=seed)
        config = RunConfig(model=replace(MODEL, schedule="2x(A2 F)"), train=train)
        return run(name, seed=seed, config=config, step=step)

    found = names([timed("a", 1, "step-9"), timed("b", 2, "step-11"), run("f", "2x(A F)")])
    assert found[0] == ("2x(A2 F)", (0, 1), (1, 2))


def test_parts_of_tasks_add_up_and_one_that_carries_the_difference_is_named():
    """The paper's case: BoolQ makes it, and every model is below the majority class."""
    cores = [core_units(boolq=0.60, copa=0.60), core_units(boolq=0.53, copa=0.59)]
    parts = CoreUnits.task_parts(cores, [0], [1])
    total = sum(part.contribution for part in parts.values())
    assert total == pytest.approx((0.07 / 0.38 + 0.01 / 0.5) / 2)
    assert parts["boolq"].share == pytest.approx(parts["boolq"].contribution / total)
    assert (parts["boolq"].below_majority, parts["copa"].below_majority) == (True, False)
    said = list(task_warnings(parts))
    assert said[0].startswith("boolq alone makes +9.21 of the difference of +10.21, where both are")
    assert said[1].endswith("on 1 of 2 tasks: boolq")


def test_no_single_task_is_named_when_none_carries_more_than_half():
    cores = [core_units(boolq=0.72, copa=0.66), core_units(boolq=0.68, copa=0.607)]
    parts = CoreUnits.task_parts(cores, [0], [1])
    balanced = {
        label: replace(part, share=0.5, below_majority=False) for label, part in parts.items()
    }
    assert list(task_warnings(balanced)) == []
    against = replace(parts["boolq"], share=-1.25)
    assert "copa alone" in next(
        task_warnings({"boolq": against, "copa": replace(parts["copa"], share=2.25)})
    )


def test_who_is_as_good_as_the_most_frequent_answer_is_no_better():
    core = core_units(boolq=0.62, copa=0.9)
    parts = CoreUnits.task_parts([core, core], [0], [1])
    assert parts["boolq"].below_majority
    assert parts["boolq"].share is None
    assert list(task_warnings(parts)) == [
        "both are no better than always the most frequent answer on 1 of 2 tasks: boolq"
    ]


def test_a_difference_is_resolved_over_seeds_and_never_with_one():
    better = run("a", core=core_units(boolq=0.95, copa=0.95), nll=nll_units((1.0, 2.0, 2.0)))
    worse = run("f", "2x(A F)", core=core_units(boolq=0.5, copa=0.5), nll=nll_units())
    comparison = compare([better, worse])
    (pair,) = comparison.pairs
    assert {found.verdict for found in pair.measures.values()} == {"one seed: no verdict"}
    assert pair.measures["core_v1"].value == pytest.approx((0.45 / 0.38 + 0.45 / 0.5) / 2)
    assert pair.measures["nll"].value == pytest.approx((5 - 13) / 5)
    assert pair.seeds.startswith("one seed each")
    assert comparison.warnings == ("the intervals of the NLL come from 3 documents",)
    three = [seeded(one, seed) for one in (better, worse) for seed in (1, 2, 3)]
    (pair,) = compare(three).pairs
    assert pair.measures["core_v1"].verdict == "resolved"
    assert pair.measures["nll"].verdict == "resolved"
    assert pair.seeds.startswith("3 and 3 seeds")
    same = replace(worse, results=weights("copy", worse.schedule), path=Path("copy"), seed=2)
    assert encode(compare([worse, same]))["pairs"][0]["measures"]["nll"] == {
        **{"value": 0, "lower": 0, "upper": 0, "over": "documents"},
        **{"p_value": None, "holm_p_value": None, "verdict": "one seed: no verdict"},
    }


def seeded(one, seed):
    """The same answers of a model with another seed."""
    return run(
        f"{one.place.name}{seed}",
        one.schedule,
        seed,
        **dict(one.units),
    )


def test_several_comparisons_are_corrected_together():
    runs = [
        run(f"{name}{seed}", schedule, seed, hops=hops_units(share + seed / 100))
        for name, schedule, share in (("a", "2x(A2 F)", 0.7), ("f", "2x(A F)", 0.3))
        for seed in (1, 2, 3)
    ]
    alone = compare(runs)
    found = alone.pairs[0].measures["hops"]
    assert found.p_value is not None
    assert (found.holm_p_value, found.verdict) == (found.p_value, "resolved")
    number = math.ceil(0.06 / found.p_value)
    for comparison in judged_together([alone] * number):
        judged = comparison.pairs[0].measures["hops"]
        assert judged.holm_p_value == pytest.approx(min(1, number * found.p_value))
        assert judged.verdict == "not resolved"
        assert (judged.lower, judged.upper) == (found.lower, found.upper)


def test_one_seed_against_several_says_what_it_borrows():
    runs = [
        run("a", seed=1, nll=nll_units((3.0, 6.0, 4.0))),
        run("b", seed=2, nll=nll_units((3.1, 6.2, 4.1))),
        run("f", "2x(A F)", nll=nll_units((3.2, 6.0, 4.2))),
    ]
    (pair,) = compare(runs).pairs
    assert pair.seeds == "2 and 1 seeds: the one is taken to vary as the others do"
    assert pair.measures["nll"].upper - pair.measures["nll"].lower > 0.5


def test_the_mean_of_some_tasks_is_not_called_core():
    part = {"is_whole": False, "not_comparable_because": ("20 of the 22 tasks were not asked",)}
    results = [run("a", core=core_units(**part)), run("f", "2x(A F)", core=core_units(**part))]
    comparison = compare(results)
    assert set(comparison.arms[0].scores) == {"tasks_v1", "tasks_v2"}
    assert comparison.warnings == (
        "NLL is left out: it was not measured of runs/a",
        "not comparable with other results: 20 of the 22 tasks were not asked",
    )


@pytest.mark.parametrize(
    ("other", "named"),
    [
        (
            {"core": core_units(settings=ASKED | {"limit": 5})},
            "measured with limit 5, and of runs/a",
        ),
        ({"core": core_units(settings=ASKED | {"bundle": "c"})}, "measured with bundle c"),
        ({"core": core_units(settings=ASKED | {"compute_dtype": "bfloat16"})}, "compute_dtype"),
        ({"core": core_units(right={"boolq": answers(0.5)})}, "answered other tasks than runs/a"),
        ({"core": core_units(baselines=BASELINES | {"v2": {}})}, "other random baselines"),
        ({"nll": nll_units(data="e")}, "NLL was measured with data e"),
        (
            {"nll": replace(nll_units(), denominators=np.array([1, 2, 3]))},
            "its documents",
        ),
        ({"checkpoint": "a"}, "runs/a and runs/f are the same model"),
    ],
)
def test_what_was_measured_otherwise_is_refused(other, named):
    units = {"core": core_units(), "nll": nll_units()}
    with pytest.raises(ValueError, match=named):
        compare([run("a", **units), run("f", **(units | other))])


def test_one_run_or_no_common_measure_is_refused():
    with pytest.raises(ValueError, match="two runs or more"):
        compare([run("a", core=core_units())])
    with pytest.raises(ValueError, match="no measure was taken of all"):
        compare([run("a", core=core_units()), run("f", "2x(A F)", nll=nll_units())])


def test_a_document_that_holds_most_tokens_counts_as_most_documents():
    assert equal_documents(np.full(30, 7)) == pytest.approx(30)
    unequal = np.array([10_000, *(1,) * 99])
    assert equal_documents(unequal) < 1.1
    alike = {"data": "d", "context": 32, "compute_dtype": "float32"}
    nll = [document_units(np.full(100, value), unequal, **alike) for value in (2.0, 3.0)]
    runs = [run("a", nll=nll[0]), run("b", "2x(A F)", nll=nll[1])]
    (warning,) = (one for one in compare(runs).warnings if "documents" in one)
    assert warning == "the intervals of the NLL come from 100 documents, unequal ones: as good as 1"


def hops_units(share, **asked):
    """Of 50 sequences with 8 questions each, this share of the answers is right."""
    right = np.random.default_rng(0).binomial(8, share, size=50)
    asked = {"data": "d", "compute_dtype": "float32", **asked}
    return sequence_units("hops", right, np.full(50, 8), **asked)


def test_hops_have_a_verdict():
    def found(first, second):
        models = run("a", hops=hops_units(first)), run("b", "2x(A F)", hops=hops_units(second))
        (pair,) = compare([seeded(one, seed) for one in models for seed in (1, 2, 3)]).pairs
        return pair.measures["hops"]

    assert found(0.9, 0.4).verdict == "resolved"
    assert found(0.9, 0.4).value == pytest.approx(0.5, abs=0.06)
    assert found(0.5, 0.5).verdict == "not resolved"


def test_hops_that_were_asked_otherwise_are_not_compared():
    first = run("a", hops=hops_units(0.9))
    with pytest.raises(ValueError, match="hops was measured with data other"):
        compare([first, run("b", "2x(A F)", hops=hops_units(0.4, data="other"))])
    fewer = replace(hops_units(0.4), denominators=np.full(50, 9))
    with pytest.raises(ValueError, match="its sequences are not those of runs/a"):
        compare([first, run("b", "2x(A F)", hops=fewer)])


def test_hops_of_some_runs_are_left_out_and_named():
    both = [run("a", nll=nll_units(), hops=hops_units(0.9)), run("b", "2x(A F)", nll=nll_units())]
    comparison = compare(both)
    assert set(comparison.pairs[0].measures) == {"nll"}
    assert "hops is left out: it was not measured of runs/b" in comparison.warnings
