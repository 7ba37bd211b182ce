"""The folder of a finished study whose models follow a law; nothing is trained."""

import json

from mixerloop.evaluation.nll_result import NllResult
from mixerloop.files import write_sealed
from mixerloop.laws.fit import predicted_nll
from mixerloop.result_files import write_result
from mixerloop.results import Estimate, encode, result_provenance
from mixerloop.study_folder import (
    PLAN,
    PlannedArm,
    PlannedCell,
    PlannedPart,
    StudyPlan,
    TransportSettings,
)

LAW = {"E": 1.8, "A": 60.0, "alpha": 0.34, "B": 300.0, "beta": 0.38}
ARMS = {  # schedule of one layer, phi, passes
    "no_loop": ("A F", 0.0, 1),
    "mixer_loop": ("A4 F", 0.3, 4),
    "full_loop": ("(A F)4", 0.46, 4),
}
SIZES = {"small": (300_000, 200_000, 500_000), "large": (1_200_000, 3_200_000, 8_000_000)}
MEDIUM = {"medium": (600_000, 800_000, 2_000_000)}
BUDGETS = (3_000_000, 10_000_000, 30_000_000)


def planned_arm(name, size):
    embedding, mixer, ffn = size
    return PlannedArm(
        **{"name": name, "schedule": ARMS[name][0], "num_layers": 1, "d_model": 64},
        **{"vocab_size": 300, "parameters": embedding + mixer + ffn, "flops_per_token": 1.0},
        macs={"mixer": mixer, "ffn": ffn},
        layer_parameters=({"mixer": mixer, "ffn": ffn},),
    )


def nll_result(nll, **changed):
    """A held-out NLL, on the same data for all runs."""
    figure = Estimate(value=nll, lower=nll - 0.01, upper=nll + 0.01, over="documents")
    fields = {
        "checkpoint": "run",
        "schedule": "A F",
        "trained_schedule": "A F",
        "nll": figure,
        "bits_per_byte": None,
        "accuracy": figure,
        "by_position": (),
        "documents": 9,
        "tokens": 99,
        "context": 64,
        "warnings": (),
        "by_passes": {},
        "provenance": result_provenance(data="d" * 64, compute_dtype="float32"),
    }
    return NllResult(**{**fields, **changed})


def write_run(folder, arm, tokens, noise):
    _, phi, passes = ARMS[arm.name]
    layer = arm.layer_parameters[0]
    recurrent = {"no_loop": 0, "mixer_loop": layer["mixer"]}.get(arm.name, sum(layer.values()))
    nll = noise + predicted_nll(
        {**LAW, "phi": phi},
        once=arm.parameters - recurrent,
        recurrent=recurrent,
        passes=passes,
        tokens=tokens,
    )
    result = nll_result(nll, schedule=arm.schedule, trained_schedule=arm.schedule)
    write_result(folder / "results", result)
    (folder / "metrics.jsonl").write_text(json.dumps({"step": 1, "tokens": tokens}) + "\n")


def write_study(folder, sizes, budgets=BUDGETS):
    """The folder of a finished study: a part for each size and budget, a seed for each arm."""
    parts, cells = [], []
    for size, parameters in sizes.items():
        arms = tuple(planned_arm(name, parameters) for name in ARMS)
        for tokens in budgets:
            name = f"text-{size}-{tokens}"
            parts.append(
                PlannedPart(
                    **{"name": name, "match": "parameters+tokens", "measure": ("nll",)},
                    **{"seeds": (1,), "data": "text tales.jsonl", "compute_dtype": "float32"},
                    **{"transport": TransportSettings(), "arms": arms, "size": size},
                )
            )
            for arm in arms:
                run = f"{name}/{arm.name}-seed1"
                write_run(folder / run, arm, tokens, noise=1e-4 * (len(cells) * 7 % 5 - 2))
                cells.append(
                    PlannedCell(
                        **{"number": len(cells) + 1, "name": run, "part": name, "arm": arm.name},
                        **{"seed": 1, "measure": ("nll",)},
                    )
                )
    plan = StudyPlan(
        **{"name": "planted", "title": "Planted", "about": "", "prefill": None},
        **{"parts": tuple(parts), "cells": tuple(cells), "provenance": result_provenance()},
    )
    write_sealed(folder / PLAN, encode(plan))
