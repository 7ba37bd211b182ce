"""From results to a report: what was compared, what was found, and where every number is from."""

import math
from collections.abc import Iterator, Sequence
from typing import Any

from mixerloop import paper
from mixerloop.notation import parse
from mixerloop.reports import charts
from mixerloop.reports.blocks import Block, Drawing, Findings, Paragraph, Report, Section, Table
from mixerloop.reports.figure import CONTROL
from mixerloop.reports.schedule_diagram import draw
from mixerloop.reports.student_t import over_runs
from mixerloop.reports.study_results import ArmResults, PartResults, StudyResults
from mixerloop.reports.transport_figures import layers_figure, passes_figure, transport_figures

MATCHED = {
    "parameters+tokens": "All models have the same parameters and see the same tokens in the same "
    "order; they differ in compute.",
    "flops": "All models are trained with the same compute; they differ in the tokens they see.",
    "seconds": "All models are trained for the same time, on whatever machine each ran on.",
    "as they are": "The runs are shown as they are; nothing says that they are matched.",
}
MEASURES = {"nll": "held-out NLL", "core": "CORE", "tasks": "mean of the tasks"}
LEFT_OUT = "is left out"
"""In a warning about a measure that was not taken, which a study says by itself."""


def build_report(results: StudyResults) -> Report:
    """Everything, in the order one would read it."""
    sections = [Section("What was found", [Findings(findings(results)), *_unfinished(results)])]
    for part in results.parts:
        if part.arms:
            sections.append(Section(f"{part.name}: compared", list(_compared(part))))
            sections.append(Section(f"{part.name}: results", list(_results(part))))
            if transport := list(_transport(part)):
                sections.append(Section(f"{part.name}: what each pass does", transport))
    if results.prefill is not None:
        sections.append(Section("Prefill", _prefill(results.prefill)))
    sections.append(Section("The paper's figures", _paper()))
    sections.append(Section("Where every number is from", list(_provenance(results))))
    return Report(results.plan["title"], results.plan["about"], sections)


def findings(results: StudyResults) -> list[str]:
    """The order of the models by each measure, and no sentence that the numbers do not say."""
    found = []
    for part in results.parts:
        if part.comparison is not None:
            found += [_ordering(part, name) for name, _ in _measures(part.comparison["pairs"][0])]
    found += [
        f"prefill: at {case['size']} and {case['batch']} prompts at once the mixer loop reads "
        f"{case['mixer_over_full']:.2f} times as fast as the full loop"
        for case in (results.prefill["cases"] if results.prefill else [])
    ]
    return found or ["nothing was compared"]


def _ordering(part: PartResults, measure: str) -> str:
    """Best first; what is not resolved is told."""
    assert part.comparison is not None
    names, pairs = _arm_names(part), part.comparison["pairs"]
    is_loss = measure == "nll"
    scale, digits = (1, 4) if is_loss else (100, 2)
    arms = sorted(part.comparison["arms"], key=lambda arm: arm[measure] * (1 if is_loss else -1))
    order = ", ".join(f"{names[arm['name']]} {scale * arm[measure]:.{digits}f}" for arm in arms)
    open_pairs = [
        f"{names[pair['first']]} and {names[pair['second']]}"
        for pair in pairs
        if pair[measure]["verdict"] != "resolved"
    ]
    resolved = "every difference is resolved" if len(pairs) > 1 else "the difference is resolved"
    if open_pairs:
        resolved = f"not resolved: {'; '.join(open_pairs)}"
    seeds = "; or ".join(sorted({pair["seeds"] for pair in pairs}))
    return f"{part.name}, {_title(measure)}, best first: {order}; {resolved} ({seeds})"


def _unfinished(results: StudyResults) -> Iterator[Block]:
    if missing := [name for part in results.parts for name in part.missing]:
        yield Paragraph(f"Not finished, and so not in here: {', '.join(missing)}.")


def _compared(part: PartResults) -> Iterator[Block]:
    facts = part.facts
    arm = part.arms[0].facts
    seeds = ", ".join(map(str, facts["seeds"]))
    alike = [one for one in part.arms if not one.facts.get("deepened")]
    yield Paragraph(
        f"{len(alike)} models of {arm['num_layers']} layers, width {arm['d_model']}, on "
        f"{facts['data']}; seeds {seeds}. {MATCHED[facts['match']]}"
    )
    for other in part.arms:
        if other.facts.get("deepened"):
            yield Paragraph(
                f"Besides, {other.name} has {other.facts['num_layers']} layers, so that a token "
                f"costs what it costs in {other.facts['deepened']}: a control with more parameters."
            )
    schedules = {one.name: parse(one.facts["schedule"]) for one in part.arms}
    yield Drawing(f"{part.name}-schedules", "The schedules", draw(schedules, arm["macs"]))


def _results(part: PartResults) -> Iterator[Block]:
    yield _results_table(part)
    if part.comparison is not None:
        yield _pairs_table(part)
        names = _arm_names(part)
        warnings = [
            *(one for one in part.comparison["warnings"] if LEFT_OUT not in one),
            *(
                f"{names[one['first']]} and {names[one['second']]}: {warning}"
                for one in part.comparison["pairs"]
                for warning in one["warnings"]
            ),
        ]
        if warnings:
            yield Findings([f"Take care: {warning}." for warning in warnings])
    for figure in (charts.hops(part), charts.curves(part), charts.against_cost(part)):
        if figure is not None:
            yield figure


def _results_table(part: PartResults) -> Table:
    """The paper's layout: a row for each model, a column for each measure."""
    columns = ["model", "seeds", "parameters", "MFLOP/token"]
    measured = {name for arm in part.arms for run in arm.runs for name in run.results}
    hops = [
        one["hops"]
        for found in (arm.measured("hops") for arm in part.arms[:1])
        for one in (found[0]["accuracy_by_hop"] if found else [])
    ]
    columns += ["held-out NLL"] if "nll" in measured else []
    columns += ["bits/byte"] if _has_bytes(part) else []
    columns += [f"{number} hop{'s' * (number > 1)}" for number in hops]
    columns += ["CORE", "Manip."] if "core" in measured else []
    columns += ["later gain, nats"] if "transport" in measured else []
    columns += ["training, s"]
    rows = [_results_row(part, arm, measured, hops) for arm in part.arms]
    counts = {len(arm.runs) for arm in part.arms}
    over = "seeds (Student's t)" if counts != {1} else "documents, windows or sequences"
    alone = " and, where a model has one, over documents, windows or sequences"
    note = f"Intervals are of 95 %, over {over}{alone if 1 in counts and len(counts) > 1 else ''}."
    return Table("Results", columns, rows, note)


def _results_row(
    part: PartResults, arm: ArmResults, measured: set[str], hops: list[int]
) -> list[str]:
    row = [
        arm.name,
        str(len(arm.runs)),
        f"{arm.facts['parameters']:,}",
        f"{arm.facts['flops_per_token'] / 1e6:,.1f}",
    ]
    if "nll" in measured:
        row.append(_over_runs([one["nll"] for one in arm.measured("nll")], 4))
    if _has_bytes(part):
        row.append(_over_runs([one["bits_per_byte"] for one in arm.measured("nll")], 4))
    for index in range(len(hops)):
        asked = [one["accuracy_by_hop"][index]["accuracy"] for one in arm.measured("hops")]
        row.append(_over_runs(asked, 3))
    if "core" in measured:
        row += [
            _over_runs([_scaled(one, name) for one in arm.measured("core")], 2)
            for name in ("core_v1", "manipulation_v1")
        ]
    if "transport" in measured:
        later = [
            {
                "value": one["later_gain"],
                "lower": one["later_gain_interval"][0],
                "upper": one["later_gain_interval"][1],
            }
            for one in arm.measured("transport")
            if len(one["target_gain"]) > 1
        ]
        row.append(_over_runs(later, 4))
    times = [run.seconds for run in arm.runs if run.seconds is not None]
    row.append(f"{sum(times) / len(times):,.0f}" if times else "")
    return row


def _has_bytes(part: PartResults) -> bool:
    found = [one for arm in part.arms for one in arm.measured("nll")]
    return bool(found) and all(one["bits_per_byte"] is not None for one in found)


def _scaled(core: dict[str, Any], name: str) -> dict[str, float] | None:
    """CORE is printed times 100; it has no number where tasks were left out."""
    if core[name] is None:
        return None
    low, high = core[f"{name}_interval"]
    return {"value": 100 * core[name], "lower": 100 * low, "upper": 100 * high}


def _over_runs(found: Sequence[dict[str, Any] | None], digits: int) -> str:
    known = [one for one in found if one is not None]
    if not known:
        return ""
    value, low, high = over_runs(known)
    return f"{value:.{digits}f} [{low:.{digits}f}, {high:.{digits}f}]"


def _pairs_table(part: PartResults) -> Table:
    assert part.comparison is not None
    names = _arm_names(part)
    rows = []
    for pair in part.comparison["pairs"]:
        for name, one in _measures(pair):
            rows.append(
                [
                    f"{names[pair['first']]} minus {names[pair['second']]}",
                    _title(name),
                    f"{one['difference']:+.4f}",
                    f"{one['lower']:+.4f} to {one['upper']:+.4f}",
                    one["verdict"],
                ]
            )
    columns = ["models", "measure", "difference", "95 % interval", "verdict"]
    seeds = sorted({pair["seeds"] for pair in part.comparison["pairs"]})
    note = f"{'; or '.join(seeds).capitalize()}. Resolved: zero is outside."
    return Table("Differences", columns, rows, note)


def _measures(pair: dict[str, Any]) -> Iterator[tuple[str, dict[str, Any]]]:
    for name, one in pair.items():
        if isinstance(one, dict) and "verdict" in one:
            yield name, one


def _title(measure: str) -> str:
    kind, _, version = measure.partition("_")
    if kind == "hops":
        return f"accuracy at {version} hops"
    if kind == "manipulation":
        return f"Manip. ({version})"
    return MEASURES[kind] + (f" ({version})" if version else "")


def _arm_names(part: PartResults) -> dict[str, str]:
    """From the comparison's names, which are notation, to the study's."""
    by_path = {run.path.name: arm.name for arm in part.arms for run in arm.runs}
    found = part.comparison["arms"] if part.comparison else []
    return {one["name"]: by_path[one["runs"][0].rpartition("/")[2]] for one in found}


def _transport(part: PartResults) -> Iterator[Block]:
    """The first seed of each model that loops a mixer, beside the first one before training."""
    found = {}
    for arm in part.arms:
        measured = arm.measured("transport")
        if measured and len(measured[0]["marginal_itr"]) > 1:
            found[arm.name] = measured[0]
    if not found:
        return
    yield Paragraph(
        "For one layer at a time, the mixer's passes get their context back one by one, and each "
        "step moves the prediction. ITR counts the directions of that path, the effect says how "
        "far it moves; only the gain says whether the move helps. A number near the rounding floor "
        "of its type says nothing. ITR is not a score of capability."
    )
    shown = dict(found)
    first = next(iter(found.values()))
    if first.get("control") is not None:
        shown[f"{next(iter(found))} {CONTROL}"] = first["control"]
    for figure in (passes_figure(shown), layers_figure(shown)):
        yield figure.renamed(f"{part.name}-{figure.name}")
    for figure in transport_figures(found)[1:]:
        yield figure.renamed(f"{part.name}-{figure.name}")
    columns = [
        "model",
        "ITR",
        "marginal ITR, later passes",
        "rounding",
        "later share",
        "later gain",
    ]
    columns += ["pairs above .5", "pairs with a gain"]
    rows = [
        [
            name,
            _with_interval(one["itr"], one["itr_interval"], ".3f"),
            " ".join(f"{value:.3f}" for value in one["marginal_itr"][1:]),
            f"{max(one['noise_floor']['marginal_itr'][1:]):.0e}",
            _with_interval(one["later_share"], one["later_share_interval"], ".1%"),
            _with_interval(one["later_gain"], one["later_gain_interval"], "+.4f"),
            f"{one['pairs_novel']} of {one['pairs_total']}",
            f"{one['pairs_positive']} of {one['pairs_total']}",
        ]
        for name, one in shown.items()
    ]
    note = f"The first seed of each model; intervals over windows; {first['compute_dtype']}."
    yield Table("Transport", columns, rows, note)


def _with_interval(value: float | None, ends: list[float | None], how: str) -> str:
    if value is None or None in ends or any(math.isnan(end or 0.0) for end in ends):
        return ""
    low, high = (format(end, how) for end in ends)
    return f"{format(value, how)} [{low}, {high}]"


def _prefill(found: dict[str, Any]) -> list[Block]:
    cases = found["cases"]
    loops = list(cases[0]["milliseconds"])
    rows = [
        [
            case["size"],
            str(case["batch"]),
            *(f"{case['milliseconds'][loop][0]:,.0f}" for loop in loops),
            f"{case['mixer_over_full']:.2f} [{case['mixer_over_full_quartiles'][0]:.2f}, "
            f"{case['mixer_over_full_quartiles'][1]:.2f}]",
            f"{case['flop_limit']:.2f}",
        ]
        for case in cases
    ]
    columns = ["size", "prompts", *(f"{loop}, ms" for loop in loops), "mixer over full", "by work"]
    note = f"{cases[0]['length']:,} tokens; medians and quartiles. The paper, on a GPU: "
    return [charts.prefill(cases), Table("Prefill", columns, rows, note + paper.PREFILL + ".")]


def _paper() -> list[Block]:
    rows = []
    for size, by_loop in paper.HELD_OUT_NLL.items():
        for loop, nll in by_loop.items():
            core, transport = paper.CORE[size, loop], paper.TRANSPORT.get((size, loop))
            rows.append(
                [
                    size,
                    loop,
                    f"{nll:.3f}",
                    f"{core.core_mean:.2f}",
                    f"{core.manipulation_mean:.2f}",
                    "" if transport is None else f"{transport.itr:.3f}",
                    "" if transport is None else f"{transport.later_gain:+.3f}",
                ]
            )
    columns = ["size", "loop", "held-out NLL", "CORE", "Manip.", "ITR", "later gain, nats"]
    return [
        Paragraph(
            "None of these is ours. They are the paper's (arXiv 2608.18230): 52 billion tokens, "
            "one run per model, no intervals. Set them beside a study of the same recipe only."
        ),
        Table("The paper's", columns, rows),
    ]


def _provenance(results: StudyResults) -> Iterator[Block]:
    rows = []
    for part in results.parts:
        for arm in part.arms:
            for run in arm.runs:
                for what, one in run.results.items():
                    facts = one["provenance"]
                    rows.append(
                        [
                            f"{part.name}/{run.path.name}",
                            what,
                            str(run.seed),
                            str(facts.get("implementation")),
                            str(facts.get("compute_dtype")),
                            str(facts.get("checkpoint_sha256"))[:10],
                            str(facts.get("data"))[:10],
                            (facts.get("commit") or "")[:10] + "+" * bool(facts.get("dirty")),
                            facts["created"],
                        ]
                    )
    columns = ["run", "result", "seed", "operators", "type", "weights", "data", "commit", "made"]
    yield Table("Results", columns, rows)
    for where, versions in sorted(set(_machines(results))):
        yield Paragraph(f"Machine: {where}. {versions}.")


def _machines(results: StudyResults) -> Iterator[tuple[str, str]]:
    """Where results were made, as each of them says."""
    for part in results.parts:
        for run in (run for arm in part.arms for run in arm.runs):
            for one in run.results.values():
                facts = one["provenance"]
                where, versions = facts["machine"], facts["versions"]
                yield (
                    f"{where['processor']}, {where['cores']} cores, {where['system']}",
                    ", ".join(f"{name} {version}" for name, version in versions.items()),
                )
