"""A law that cells were made from is found again, with intervals that hold it at their rate."""

from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from law_study import BUDGETS, LAW, MEDIUM, nll_result
from law_study import SIZES as SMALL_AND_LARGE
from mixerloop.config import preset
from mixerloop.evaluation.hops_result import HopsResult
from mixerloop.laws.figures import law_figures
from mixerloop.laws.fit import (
    HUBER,
    PARAMETERS,
    Design,
    fit_design,
    fit_groups,
    fit_numbers,
    predicted_nll,
)
from mixerloop.laws.law_result import LawResult
from mixerloop.laws.points import Point, counts, loop_name, of_one_loop, read_points
from mixerloop.laws.resampling import interval_ends, resampled_numbers
from mixerloop.laws.study_law import law_of_points
from mixerloop.model.accounting import account_model
from mixerloop.results import decode, result_provenance
from mixerloop.studies.plan import model_facts
from mixerloop.studies.table import Row, Table

PHI = {"no_loop": 0.0, "mixer_loop": 0.3, "full_loop": 0.46}
SIZES = {name: (SMALL_AND_LARGE | MEDIUM)[name] for name in ("small", "medium", "large")}
TWO_SIZES: dict[str, Any] = {"sizes": ("small", "large")}
LOOPS = (("no_loop", 1), ("mixer_loop", 2), ("mixer_loop", 4), ("full_loop", 4))
SEEDS = (1, 2, 3)
NOISE = 0.005
"""Nats between seeds, as in small models of text."""
EXACT = 1e-3
"""The relative error of parameters that cells without noise give."""
PHI_WITHIN = 0.15
"""Five standard deviations of the mixer loop's phi in the grid of three sizes (0.027 each)."""
STUDIES, INSIDE = 100, (92, 98)


def planted(
    *,
    noise=NOISE,
    generator=None,
    sizes=tuple(SIZES),
    budgets=BUDGETS,
    loops=LOOPS,
    seeds=SEEDS,
):
    """The points of a study whose models follow the law."""
    generator = generator or np.random.default_rng(0)
    points = []
    for size in sizes:
        embedding, mixers, ffns = SIZES[size]
        for tokens in budgets:
            for loop, passes in loops:
                recurrent = {"no_loop": 0, "mixer_loop": mixers, "full_loop": mixers + ffns}[loop]
                model = {"once": embedding + mixers + ffns - recurrent, "recurrent": recurrent}
                place = {"passes": passes, "tokens": tokens}
                nll = predicted_nll({**LAW, "phi": PHI[loop]}, **model, **place)
                nlls = tuple(nll + noise * generator.standard_normal() for _ in seeds)
                points.append(Point(loop=loop, size=size, **model, **place, nlls=nlls))
    return points


def groups_of(loop, **grid):
    return of_one_loop(planted(**grid), loop)


# --- the fit -------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("loop", "sizes"), [("mixer_loop", ("small", "large")), ("full_loop", tuple(SIZES))]
)
def test_without_noise_every_parameter_is_exact(loop, sizes):
    fit = fit_groups(groups_of(loop, noise=0, sizes=sizes))
    assert fit.values == pytest.approx({**LAW, "phi": PHI[loop]}, rel=EXACT)
    assert max(map(abs, fit.residuals)) < 1e-6
    assert fit.at_bound == ()


def test_a_given_floor_makes_two_budgets_enough():
    fit = fit_groups(groups_of("mixer_loop", noise=0, budgets=BUDGETS[:2]), floor=LAW["E"])
    assert fit.values == pytest.approx({**LAW, "phi": PHI["mixer_loop"]}, rel=EXACT)


def test_the_derivatives_are_those_of_the_law():
    design = Design(groups_of("mixer_loop"))
    point = np.array([0.4, -0.3, -1.2, -0.5, -0.9, 0.35])
    step = 1e-6
    for n, column in enumerate(design.jacobian(point).T):
        ahead, behind = point.copy(), point.copy()
        ahead[n] += step
        behind[n] -= step
        slope = (design.law(ahead) - design.law(behind)) / (2 * step)
        np.testing.assert_allclose(column, slope, rtol=1e-6, atol=1e-9)


def test_every_start_leads_to_the_same_law():
    design = Design(groups_of("mixer_loop"))
    numbers, run_sd = fit_numbers(design)
    for start in design.starts():
        again, found = fit_design(design, design.nll, start=start, clip=HUBER * run_sd)
        assert found.success
        np.testing.assert_allclose(design.law(again), design.law(numbers), atol=1e-5)
        assert again[-1] == pytest.approx(numbers[-1], abs=1e-3)


def test_one_run_that_failed_hardly_moves_phi():
    groups = groups_of("mixer_loop")
    before = fit_groups(groups)
    start, _ = fit_numbers(Design(groups))
    moved, moved_plainly = [], []
    for number in range(0, len(groups), 5):
        (first, *others) = groups[number].nlls
        spoiled = list(groups)
        spoiled[number] = replace(groups[number], nlls=(first + 0.3, *others))
        moved.append(abs(fit_groups(spoiled).phi - before.phi))
        design = Design(spoiled)
        plain, _ = fit_design(design, design.nll, start=start, clip=np.inf)
        moved_plainly.append(abs(plain[-1] - before.phi))
    assert max(moved) < PHI_WITHIN
    assert np.mean(moved) < 0.25 * np.mean(moved_plainly)


def test_a_loop_that_does_harm_has_a_phi_below_zero(monkeypatch):
    monkeypatch.setitem(PHI, "full_loop", -0.3)
    assert fit_groups(groups_of("full_loop")).phi == pytest.approx(-0.3, abs=PHI_WITHIN)


# --- intervals -----------------------------------------------------------------------------------


def test_the_interval_of_phi_holds_the_truth_and_has_the_width_of_the_noise():
    (wide,), (narrow,) = (
        law_of_points(planted(noise=noise, loops=LOOPS[:3], **TWO_SIZES), resamples=100).loops
        for noise in (NOISE, NOISE / 5)
    )
    assert wide.phi.lower < PHI["mixer_loop"] < wide.phi.upper
    assert 3 < (wide.phi.upper - wide.phi.lower) / (narrow.phi.upper - narrow.phi.lower) < 8


def test_intervals_of_exact_cells_are_points():
    (law,) = law_of_points(planted(noise=0, loops=LOOPS[:3]), resamples=10).loops
    assert law.phi.lower == law.phi.upper == law.phi.value


def phi_inside(loop, *, resamples=200, studies=STUDIES, **grid):
    """The number of simulated studies whose interval holds phi."""
    generator = np.random.default_rng(7)
    inside = 0
    for number in range(studies):
        design = Design(groups_of(loop, generator=generator, **grid))
        numbers, run_sd = fit_numbers(design)
        rows = resampled_numbers(design, numbers, run_sd, resamples=resamples, seed=number)
        (lower, upper), _ = interval_ends(design, rows)
        inside += lower[-1] <= PHI[loop] <= upper[-1]
    return inside


@pytest.mark.slow
@pytest.mark.parametrize("loop", ["mixer_loop", "full_loop"])
def test_intervals_of_phi_hold_it_at_their_rate(loop):
    assert INSIDE[0] <= phi_inside(loop) <= INSIDE[1]


@pytest.mark.parametrize(("seeds", "over"), [((1, 2), "cells"), (SEEDS, "seeds and cells")])
def test_an_interval_is_over_seeds_from_three_on(seeds, over):
    result = law_of_points(planted(seeds=seeds, **TWO_SIZES), resamples=2)
    assert {law.phi.over for law in result.loops} == {over}
    assert any("fewer than three seeds" in remark for remark in result.remarks) == (over == "cells")


# --- what is not identified ----------------------------------------------------------------------


def everywhere(cell):
    return True


def grows_with_the_budget(cell):
    """One budget for each size: the size term and the token term look the same."""
    return cell.tokens == dict(zip(SIZES, BUDGETS, strict=True))[cell.size]


def in_one_size(cell):
    return cell.loop == "no_loop" or (cell.size == "small" and cell.passes == 4)


def six_cells(cell):
    """The loop at the smallest budget only."""
    first = cell.tokens == BUDGETS[0] and cell.loop in ("no_loop", "mixer_loop")
    return cell.passes != 2 and (first or (cell.size == "small" and cell.loop == "no_loop"))


@pytest.mark.parametrize(
    ("grid", "which", "floor", "said"),
    [
        (
            {"sizes": ("small",)},
            *(everywhere, None),
            "alpha needs two sizes or more of no_loop; the study has one: small",
        ),
        (
            {"budgets": BUDGETS[:2]},
            *(everywhere, None),
            "E, B and beta need three token budgets or more of one size; the study has two: "
            "3,000,000, 10,000,000 of small; add a budget, or give the floor E and three sizes",
        ),
        (
            {"budgets": BUDGETS[:1]},
            *(everywhere, LAW["E"]),
            "beta needs two token budgets or more of one size; the study has one: 3,000,000 of",
        ),
        (
            {"budgets": BUDGETS[:2], **TWO_SIZES},
            *(everywhere, LAW["E"]),
            "B and beta need three token budgets of one size, or three sizes of no_loop; the "
            "study has two: 3,000,000, 10,000,000 of small, and two: small, large",
        ),
        (
            {"loops": LOOPS[:1]},
            *(everywhere, None),
            "phi needs cells with passes above 1; the study has no_loop of",
        ),
        (
            {"loops": LOOPS[1:3]},
            *(everywhere, None),
            r"A and alpha need cells of no_loop \(one pass\); the study has",
        ),
        ({}, everywhere, 5.0, "floor must be from 0 to the smallest NLL, 2.4.*, got 5.0"),
        ({}, everywhere, float("nan"), "floor must be from 0 to the smallest NLL"),
        ({}, grows_with_the_budget, None, "three token budgets or more of one size"),
        (
            {"budgets": (3_000_000, 3_010_000, 3_020_000)},  # they hardly differ
            *(everywhere, None),
            "three token budgets or more of one size",
        ),
        (TWO_SIZES, in_one_size, None, "E and alpha need three sizes of no_loop, or two with"),
        (
            TWO_SIZES,
            *(six_cells, None),
            r"6 parameters need 7 cells or more .*; the study has 6",
        ),
    ],
)
def test_what_is_not_identified_is_named_with_what_is_missing(grid, which, floor, said):
    with pytest.raises(ValueError, match=said):
        law_of_points(list(filter(which, planted(**grid))), floor=floor, resamples=2)


def test_a_loop_that_is_not_identified_leaves_the_others():
    cells = [
        cell for cell in planted(**TWO_SIZES) if cell.loop != "full_loop" or cell.size == "small"
    ]
    result = law_of_points(cells, resamples=2)
    assert [law.loop for law in result.loops] == ["mixer_loop"]
    assert "one model of the loop" in result.rejected["full_loop"]


def test_two_sizes_and_one_number_of_passes_are_remarked_upon():
    result = law_of_points(planted(**TWO_SIZES), resamples=2)
    said = " ".join(result.remarks)
    assert "two sizes of no_loop: E and alpha rest on the loop's own cells" in said
    assert "full_loop: one number of passes (4)" in said
    assert "mixer_loop: one number of passes" not in said
    assert all(law.left_out == () for law in result.loops)


# --- the result ----------------------------------------------------------------------------------


@pytest.fixture(scope="module")
def result():
    return law_of_points(planted(), title="Planted", resamples=3)


def test_the_result_has_residuals_predictions_and_the_published_phi(result):
    mixer, full = result.loops
    assert (mixer.published_phi, full.published_phi) == (None, 0.46)
    assert (mixer.passes, full.passes) == ((2, 4), (4,))
    assert list(mixer.parameters) == list(PARAMETERS)
    assert len(mixer.cells) == 27
    assert mixer.seed_sd == pytest.approx(NOISE, rel=0.3)
    assert [one.size for one in mixer.left_out] == list(SIZES)
    assert max(one.rms_error for one in mixer.left_out) < 0.1
    assert decode(LawResult, result.to_json()) == result


def test_a_figure_shows_cells_and_curves_of_each_loop(result):
    figures = law_figures(result)
    assert [figure.name for figure in figures] == ["law-mixer_loop", "law-full_loop"]
    rows = figures[0].rows
    assert sum(row["row"] == "cell" for row in rows) == 27
    assert {row["model"] for row in rows if row["row"] == "curve"} == {"no_loop", "mixer_loop"}
    assert figures[0].chart().to_dict()["hconcat"]


# --- the cells of a study ------------------------------------------------------------------------


PARAMETERS_OF_ARM = 5_000_000


def facts_of(arm, num_layers):
    """The columns of a model; an arm may have any name."""
    schedule = "no_loop" if arm.startswith("plain") else arm
    model = replace(preset("nano"), num_layers=num_layers, schedule=schedule)
    return {
        **model_facts(model),
        **{"arm": arm, "parameters": PARAMETERS_OF_ARM, "flops_per_token": 1.0},
    }


def row_of(arm, num_layers):
    return Row(**facts_of(arm, num_layers))


def part_of(name, arms, *, num_layers=4, data="stdlib", **changed):
    """The filled rows of a part."""
    return [
        Row(
            **{"part": name, "data": data, "measure": ("nll",), **facts_of(arm, num_layers)},
            **{"seed": seed, "path": Path(f"{name}/{arm}-seed{seed}"), "trained_tokens": 5000},
            **{"results": {"nll": nll_result(3 + seed / 100)}, **changed},
        )
        for arm in arms
        for seed in SEEDS
    ]


def points_of(*parts, named=()):
    return read_points(Table(tuple(row for part in parts for row in part)), named)


def test_points_are_read_with_their_passes_and_parameters():
    arms = ("no_loop", "mixer_loop", "mixer_loop(2)", "full_loop(3)")
    points = points_of(part_of("one", arms), part_of("two", arms, num_layers=8))
    assert len(points) == 2 * 4
    small = [point for point in points if point.size == f"4x{preset('nano').d_model}"]
    by_model = {(point.loop, point.passes): point for point in small}
    assert list(by_model) == [
        ("no_loop", 1),
        ("mixer_loop", 4),
        ("mixer_loop", 2),
        ("full_loop", 3),
    ]
    plain, mixer, _, full = by_model.values()
    assert (plain.once, plain.recurrent) == (PARAMETERS_OF_ARM, 0)
    assert all(point.once + point.recurrent == PARAMETERS_OF_ARM for point in points)
    per_layer = row_of("no_loop", 4).layer_parameters[0]
    assert mixer.recurrent == 4 * per_layer["mixer"]
    assert full.recurrent == 4 * (per_layer["mixer"] + per_layer["ffn"])
    assert (full.tokens, full.nlls) == (5000, (3.01, 3.02, 3.03))


def test_the_parameters_of_sublayers_and_the_rest_are_all_parameters():
    config = preset("nano")
    layers = sum(sum(of.values()) for of in row_of("no_loop", config.num_layers).layer_parameters)
    readout = config.vocab_size * config.d_model + config.d_model
    assert layers + readout == account_model(config).parameters


def test_only_some_layers_may_loop_but_with_one_number_of_passes():
    per_layer = row_of("no_loop", 3).layer_parameters[0]
    assert counts(row_of("A F (A F)4 A F", 3)) == (4, sum(per_layer.values()), 0)
    with pytest.raises(ValueError, match="makes 2 and 3 passes in different sublayers"):
        counts(row_of("A2 F A3 F", 2))


def test_a_model_without_a_loop_is_no_loop_whatever_its_name():
    points = points_of(part_of("one", ("plain and deep", "mixer_loop", "no_loop")))
    assert [(point.loop, len(point.nlls)) for point in points] == [
        ("no_loop", 6),
        ("mixer_loop", 3),
    ]


def test_a_loop_is_named_without_its_number_of_passes():
    for arm, loop in (("mixer_loop(2)", "mixer_loop"), ("6x(A2 F)", "6x(A2 F)"), ("x", "x")):
        assert loop_name(arm) == loop


def test_parts_of_one_size_name_it_and_parts_that_tune_are_left_out():
    tuning = part_of("tune", ("no_loop",), size="s", is_tuning=True)
    (point,) = points_of(tuning, part_of("one", ("no_loop",), size="s"))
    assert (point.size, point.tokens, len(point.nlls)) == ("s", 5000, 3)


def test_parts_with_other_data_are_pooled_only_by_name():
    parts = part_of("one", ("no_loop",)), part_of("two", ("no_loop",), data="hops")
    with pytest.raises(ValueError, match="the parts one and two have different data; name the"):
        points_of(*parts)
    assert len(points_of(*parts, named=["two"])[0].nlls) == 3
    with pytest.raises(ValueError, match="no part 'three'; the study has: one, two"):
        points_of(*parts, named=["three"])


def test_rows_that_cannot_be_pooled_are_rejected():
    *others, third = part_of("one", ("no_loop",))

    def with_row(**changed):
        return [*others, replace(third, **changed)]

    with pytest.raises(ValueError, match="no_loop-seed3: NLL was measured with context 32, and of"):
        points_of(with_row(results={"nll": nll_result(3.0, context=32)}))
    of = {name: nll_result(3.0).__dict__[name] for name in ("schedule", "trained_schedule")}
    hops = HopsResult(**of, checkpoint="", accuracy_by_hop=(), provenance=result_provenance())
    with pytest.raises(ValueError, match="no_loop-seed3: has no held-out NLL"):
        points_of(with_row(results={"hops": hops}))
    with pytest.raises(ValueError, match="no_loop-seed3: has no record of its training"):
        points_of(with_row(trained_tokens=None))
    with pytest.raises(ValueError, match="the study has no finished runs yet"):
        points_of([])


def test_a_plan_of_an_older_version_is_rejected_with_the_command_that_writes_it_again():
    with pytest.raises(ValueError, match="write it again: mixerloop study"):
        counts(replace(row_of("no_loop", 2), layer_parameters=()))
