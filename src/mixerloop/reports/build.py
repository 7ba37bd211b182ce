"""From results to a report: the compared models, the findings, and the source of every number."""

from collections.abc import Callable, Iterable, Iterator, Mapping

from mixerloop import paper
from mixerloop.evaluation.comparison_result import Comparison
from mixerloop.measures import score_named
from mixerloop.notation import parse
from mixerloop.parent_record import ParentRecord
from mixerloop.reports import charts
from mixerloop.reports.elements import (
    Drawing,
    Element,
    Findings,
    Paragraph,
    Report,
    Section,
    Table,
    with_distinct_names,
)
from mixerloop.reports.family_section import (
    crossing_findings,
    over_budgets,
    tuning,
    tuning_warnings,
)
from mixerloop.reports.kept_gain import kept_gain
from mixerloop.reports.provenance_section import provenance
from mixerloop.reports.results_section import loss_parts, results
from mixerloop.reports.routing_section import routing
from mixerloop.reports.schedule_diagram import draw
from mixerloop.reports.study_results import PrefillTimes, StudyResults
from mixerloop.reports.transport_section import transport
from mixerloop.studies.table import Row, by_value
from mixerloop.studies.table import Table as StudyTable

TableSection = Callable[[StudyTable], Iterable[Element]]
"""A section about some rows of a study; no elements, no section."""
PART_SECTIONS: dict[str, TableSection] = {}
"""Sections about each part, by title, in the order of the page."""

FAMILY_SECTIONS: dict[str, TableSection] = {
    "by size and budget": over_budgets,
    "tuning": tuning,
}
"""Sections about a part of the study file in all its sizes and budgets, before those of each."""


def register_section(title: str, section: TableSection) -> None:
    """Add a section to the report of every part."""
    if title in PART_SECTIONS:
        raise ValueError(f"the report has a section '{title}' already")
    PART_SECTIONS[title] = section


def build_report(study: StudyResults) -> Report:
    """A report with findings, results, transport, prefill, the paper's figures and provenance."""
    sections = [Section("What was found", [Findings(findings(study)), *_unfinished(study)])]
    for name, family in study.table.by("family").items():
        for title, section in FAMILY_SECTIONS.items():
            if elements := list(section(family)):
                sections.append(Section(f"{name}: {title}", elements))
        for name, part in family.where(is_tuning=False).by("part").items():
            for title, section in PART_SECTIONS.items():
                if part.arms and (elements := list(section(part))):
                    sections.append(Section(f"{name}: {title}", elements))
    for number, (of, times) in enumerate(study.prefills.items(), start=1):
        sections.append(Section(f"{of}prefill".capitalize(), _prefill(times, number)))
    sections.append(Section("The paper's figures", _paper()))
    sections.append(Section("Where every number is from", list(provenance(study))))
    return Report(study.title, study.about, with_distinct_names(sections))


def findings(study: StudyResults) -> list[str]:
    """One sentence per measure and prefill case, made from numbers and verdicts alone."""
    sentences = []
    for family in study.table.by("family").values():
        for name, part in family.where(is_tuning=False).by("part").items():
            if (compared := part.comparison) is not None:
                measures = compared.pairs[0].measures
                sentences += [_ordering(name, compared, measure) for measure in measures]
        sentences += [*crossing_findings(family), *tuning_warnings(family)]
    for of, case in ((of, case) for of, times in study.prefills.items() for case in times.cases):
        low, high = case.mixer_over_full_quartiles
        prompts = "one prompt" if case.batch == 1 else f"{case.batch} prompts at once"
        sentences.append(
            f"{of}prefill: at {case.size} the mixer loop reads {prompts} "
            f"{case.mixer_over_full:.2f} [{low:.2f}, {high:.2f}] times as fast as the full loop"
        )
    return sentences or ["nothing was compared"]


def _ordering(part: str, comparison: Comparison, name: str) -> str:
    """The models by a score, best first, and which pairs are resolved or not, the shorter list."""
    pairs = comparison.pairs
    score = score_named(name)
    arms = sorted(comparison.arms, key=lambda arm: arm.scores[name], reverse=score.higher_is_better)
    order = ", ".join(
        f"{arm.name} {score.scale * arm.scores[name]:.{score.digits}f}" for arm in arms
    )
    by_verdict: dict[str, list[str]] = {}
    for pair in pairs:
        both = f"{pair.first} and {pair.second}"
        by_verdict.setdefault(pair.measures[name].verdict, []).append(both)
    longest = max(by_verdict, key=lambda verdict: len(by_verdict[verdict]))
    verdicts = [
        f"{verdict}: {', '.join(of)}" for verdict, of in by_verdict.items() if verdict != longest
    ]
    if verdicts:
        verdicts.append(f"all others {longest}")
    elif longest != "resolved":
        verdicts = [longest]
    all_resolved = "every difference is resolved" if len(pairs) > 1 else "resolved"
    seeds = "; or ".join(sorted({pair.seeds for pair in pairs}))
    judged = "; ".join(verdicts) or all_resolved
    return f"{part}, {score.title}, best first: {order}; {judged} ({seeds})"


def _unfinished(study: StudyResults) -> Iterator[Element]:
    if missing := study.table.missing:
        yield Paragraph(f"Not finished, and so not in here: {', '.join(missing)}.")


def _compared(part: StudyTable) -> Iterator[Element]:
    models_shown = {name: arm.first for name, arm in part.arms.items()}
    alike = [row for row in models_shown.values() if row.deepened is None]
    sizes = sorted({(row.num_layers, row.d_model) for row in alike})
    size = " or ".join(
        f"{layers} {'layer' if layers == 1 else 'layers'}, width {width}" for layers, width in sizes
    )
    models = f"{len(alike)} models of {size}" if len(alike) > 1 else f"One model of {size}"
    known = sorted({row.seed for row in part if row.seed is not None})
    seeds = ", ".join(map(str, known)) or "unknown"
    if alike:
        counts = {row.parameters for row in alike}
        some = f"They have {min(counts):,} to {max(counts):,} parameters. "
        equal = f"Each has {max(counts):,} parameters. " if len(counts) == 1 else some
        on = " ".join(word for word in part.first.data.split() if not word.startswith("{"))
        matched = _matched(models_shown)
        yield Paragraph(f"{models}, on {on}; seeds {seeds}. {equal}{matched}")
    if part.first.parent is not None:
        yield Paragraph(_start(part.first.parent, models_shown))
    for name, row in models_shown.items():
        if row.deepened is not None:
            yield Paragraph(
                f"Besides, {name} has {row.num_layers} layers, so that a token "
                f"costs what it costs in {row.deepened}: a control with more parameters."
            )
    by_cost: dict[tuple[int, int], list[Row]] = {}
    for row in models_shown.values():
        by_cost.setdefault((row.macs["mixer"], row.macs["ffn"]), []).append(row)
    for number, ((mixer, ffn), rows) in enumerate(by_cost.items(), start=1):
        schedules = {row.arm: parse(row.schedule) for row in rows}
        name = f"{part.first.part}-schedules" + (f"-{number}" if len(by_cost) > 1 else "")
        # A drawing has one scale of costs, so models with other costs get a drawing of their own.
        yield Drawing(name, "The schedules", draw(schedules, {"mixer": mixer, "ffn": ffn}))


def _matched(rows: Mapping[str, Row]) -> str:
    """What is equal in the training of a part's models, and what differs besides the schedule."""
    match = next(iter(rows.values())).match
    if match == "as they are":
        return "The runs are shown as they are; nothing says that they are matched."
    if not all(row.amounts for row in rows.values()):
        return "An older version made the plan, which does not say what each model was given."
    keys = {
        key: {name: row.differs.get(key, "") for name, row in rows.items()} for key in _keys(rows)
    }
    tokens = [row.amounts["tokens"] for row in rows.values() if "tokens" in row.amounts]
    costs = {row.flops_per_token for row in rows.values()}
    if match == "seconds":
        equal = "All models are trained for the same time, on whatever machine each ran on."
    elif match == "flops":
        flops = [row.amounts["flops"] for row in rows.values()]
        spread = max(flops) / min(flops) - 1
        other = "; they differ in the tokens they see" * (len(set(tokens)) > 1)
        equal = f"All models are trained with the same compute, to {spread:.1%}{other}."
    else:
        order = "" if any(key.startswith("data.") for key in keys) else " in the same order"
        other = ", at different costs" * (len(costs) > 1)
        equal = f"Models of one seed see the same {tokens[0]:,} tokens{order}{other}."
    if not keys:
        return equal
    differ = "; ".join(f"{key}: {by_value(values)}" for key, values in keys.items())
    return f"{equal} Besides the schedule they differ in {differ}."


def _keys(rows: Mapping[str, Row]) -> list[str]:
    """The keys of data and training in which the models on the page differ."""
    keys = dict.fromkeys(key for row in rows.values() for key in row.differs)
    return [key for key in keys if len({row.differs.get(key) for row in rows.values()}) > 1]


def _start(parent: ParentRecord, rows: Mapping[str, Row]) -> str:
    """Where the weights of models with a parent come from."""
    step = "" if parent.step is None else f" at step {parent.step:,}"
    fresh = "".join(
        f" In {name} {', '.join(row.parent.fresh)} is new."
        for name, row in rows.items()
        if row.parent is not None and row.parent.fresh
    )
    return (
        f"All models start from the weights of {parent.folder}{step} ({parent.sha256[:10]}), "
        f"which were trained under {parent.schedule}.{fresh}"
    )


def _prefill(times: PrefillTimes, number: int) -> list[Element]:
    cases = times.cases
    loops = list(cases[0].milliseconds)
    rows = [
        [
            case.size,
            str(case.batch),
            *(f"{case.milliseconds[loop][0]:,.0f}" for loop in loops),
            f"{case.mixer_over_full:.2f} [{case.mixer_over_full_quartiles[0]:.2f}, "
            f"{case.mixer_over_full_quartiles[1]:.2f}]",
            f"{case.flop_limit:.2f}",
        ]
        for case in cases
    ]
    columns = ["size", "prompts", *(f"{loop}, ms" for loop in loops), "mixer over full", "by work"]
    busy, device = (times.provenance.get(key) for key in ("busy_cores", "device"))
    note = (
        f"{cases[0].length:,} tokens{'' if device is None else f', on {device}'}; medians, and "
        "the quartiles of the ratio round by round. "
        + (
            ""
            if not isinstance(busy, int | float)
            else f"Meanwhile other work took {busy:.1f} cores. "
        )
        + f"The paper, on a GPU: {paper.PREFILL}."
    )
    figure = charts.prefill(cases)
    name = figure.name if number == 1 else f"{figure.name}-{number}"
    return [figure.renamed(name), Table("Prefill", columns, rows, note)]


def _paper() -> list[Element]:
    rows = []
    for size, by_loop in paper.HELD_OUT_NLL.items():
        for loop, nll in by_loop.items():
            core, passes = paper.CORE[size, loop], paper.TRANSPORT.get((size, loop))
            rows.append(
                [
                    size,
                    loop,
                    f"{nll:.3f}",
                    f"{core.core_mean:.2f}",
                    f"{core.manipulation_mean:.2f}",
                    "" if passes is None else f"{passes.itr:.3f}",
                    "" if passes is None else f"{passes.later_gain:+.3f}",
                ]
            )
    columns = ["size", "loop", "held-out NLL", "CORE", "Manip.", "ITR", "later gain, nats"]
    return [
        Paragraph(
            "None of these is ours. They are the paper's (arXiv 2608.18230): 52 billion tokens, "
            "one run per model, no intervals, CORE and transport in bfloat16. Set them beside a "
            "study of the same recipe and precision only."
        ),
        Table("The paper's", columns, rows),
    ]


register_section("compared", _compared)
register_section("results", results)
register_section("what training minimised", loss_parts)
register_section("share of the full loop's gain", kept_gain)
register_section("what each pass does", transport)
register_section("which experts each pass chooses", routing)
