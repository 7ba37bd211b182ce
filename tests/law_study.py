"""The folder of a finished study whose models follow a law; nothing is trained."""

import json

from mixerloop.evaluation.nll_result import NllResult
from mixerloop.laws.fit import predicted_nll
from mixerloop.result_files import write_result
from mixerloop.results import Estimate, result_provenance
from mixerloop.studies.reading import StudyPlan
from mixerloop.studies.table import Row

LAW = {"E": 1.8, "A": 60.0, "alpha": 0.34, "B": 300.0, "beta": 0.38}
ARMS = {  # schedule of one layer, phi, passes
    "no_loop": ("A F", 0.0, 1),
    "mixer_loop": ("A4 F", 0.3, 4),
    "full_loop": ("(A F)4", 0.46, 4),
}
SIZES = {"small": (300_000, 200_000, 500_000), "large": (1_200_000, 3_200_000, 8_000_000)}
MEDIUM = {"medium": (600_000, 800_000, 2_000_000)}
BUDGETS = (3_000_000, 10_000_000, 30_000_000)


def model_facts(name, size):
    embedding, mixer, ffn = size
    return {
        **{"arm": name, "schedule": ARMS[name][0], "num_layers": 1, "d_model": 64},
        **{"vocab_size": 300, "parameters": embedding + mixer + ffn, "flops_per_token": 1.0},
        "macs": {"mixer": mixer, "ffn": ffn},
        "layer_parameters": ({"mixer": mixer, "ffn": ffn},),
    }


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


def write_run(folder, row, tokens, noise):
    _, phi, passes = ARMS[row.arm]
    layer = row.layer_parameters[0]
    recurrent = {"no_loop": 0, "mixer_loop": layer["mixer"]}.get(row.arm, sum(layer.values()))
    nll = noise + predicted_nll(
        {**LAW, "phi": phi},
        once=row.parameters - recurrent,
        recurrent=recurrent,
        passes=passes,
        tokens=tokens,
    )
    result = nll_result(nll, schedule=row.schedule, trained_schedule=row.schedule)
    write_result(folder / "results", result)
    (folder / "metrics.jsonl").write_text(json.dumps({"step": 1, "tokens": tokens}) + "\n")


def write_study(folder, sizes, budgets=BUDGETS):
    """The folder of a finished study: a part for each size and budget, a seed for each arm."""
    rows = []
    for size, parameters in sizes.items():
        for tokens in budgets:
            part = f"text-{size}-{tokens}"
            for arm in ARMS:
                row = Row(
                    **{"number": len(rows) + 1, "run": f"{part}/{arm}-seed1", "part": part},
                    **{"family": "text", "match": "parameters+tokens", "measure": ("nll",)},
                    **{"seed": 1, "data": "text tales.jsonl", "compute_dtype": "float32"},
                    **{"size": size, **model_facts(arm, parameters)},
                )
                write_run(folder / row.run, row, tokens, noise=1e-4 * (len(rows) * 7 % 5 - 2))
                rows.append(row)
    plan = StudyPlan(
        **{"name": "planted", "title": "Planted", "about": "", "prefill": None},
        **{"rows": tuple(rows), "provenance": result_provenance()},
    )
    plan.write(folder)
