"""From results to a report: the compared models, the findings, and the source of every number."""

from collections.abc import Callable, Iterable, Iterator, Sequence

from mixerloop import paper
from mixerloop.evaluation.comparison_result import Comparison
from mixerloop.measures import score_named
from mixerloop.notation import parse
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
    Family,
    crossing_findings,
    families,
    over_budgets,
    tuning,
    tuning_warnings,
)
from mixerloop.reports.kept_gain import kept_gain
from mixerloop.reports.provenance_section import provenance
from mixerloop.reports.results_section import arm_names, results
from mixerloop.reports.routing_section import routing
from mixerloop.reports.schedule_diagram import draw
from mixerloop.reports.study_results import (
    ArmResults,
    PartResults,
    PrefillTimes,
    StudyResults,
)
from mixerloop.reports.transport_section import transport
from mixerloop.study_folder import PlannedArm, PlannedParent, by_value

PartSection = Callable[[PartResults], Iterable[Element]]
"""A section about one part of a study; no elements, no section."""
PART_SECTIONS: dict[str, PartSection] = {}
"""By title, in the order of the page."""


FAMILY_SECTIONS: dict[str, Callable[[Family], Iterable[Element]]] = {
    "by size and budget": over_budgets,
    "tuning": tuning,
}
"""Sections about a part of the study file in all its sizes and budgets, before those of each."""


def register_section(title: str, section: PartSection) -> None:
    """Add a section to the report of every part."""
    if title in PART_SECTIONS:
        raise ValueError(f"the report has a section '{title}' already")
    PART_SECTIONS[title] = section


def build_report(study: StudyResults) -> Report:
    """A report with findings, results, transport, prefill, the paper's figures and provenance."""
    sections = [Section("What was found", [Findings(findings(study)), *_unfinished(study)])]
    for family in families(study.parts):
        for title, section in FAMILY_SECTIONS.items():
            if elements := list(section(family)):
                sections.append(Section(f"{family.name}: {title}", elements))
        for part in family.parts:
            for title, section in PART_SECTIONS.items():
                if part.arms and (elements := list(section(part))):
                    sections.append(Section(f"{part.name}: {title}", elements))
    for number, (of, times) in enumerate(study.prefills.items(), start=1):
        sections.append(Section(f"{of}prefill".capitalize(), _prefill(times, number)))
    sections.append(Section("The paper's figures", _paper()))
    sections.append(Section("Where every number is from", list(provenance(study))))
    return Report(study.title, study.about, with_distinct_names(sections))


def findings(study: StudyResults) -> list[str]:
    """One sentence per measure and prefill case, made from numbers and verdicts alone."""
    sentences = []
    for family in families(study.parts):
        for part in family.parts:
            if part.comparison is not None:
                sentences += [
                    _ordering(part, part.comparison, name) for name in _scores(part.comparison)
                ]
        sentences += [*crossing_findings(family), *tuning_warnings(family)]
    for of, case in ((of, case) for of, times in study.prefills.items() for case in times.cases):
        low, high = case.mixer_over_full_quartiles
        prompts = "one prompt" if case.batch == 1 else f"{case.batch} prompts at once"
        sentences.append(
            f"{of}prefill: at {case.size} the mixer loop reads {prompts} "
            f"{case.mixer_over_full:.2f} [{low:.2f}, {high:.2f}] times as fast as the full loop"
        )
    return sentences or ["nothing was compared"]


def _scores(comparison: Comparison) -> list[str]:
    return list(comparison.pairs[0].measures)


def _ordering(part: PartResults, comparison: Comparison, name: str) -> str:
    """The models by a score, best first, and which pairs are resolved or not, the shorter list."""
    names, pairs = arm_names(part), comparison.pairs
    score = score_named(name)
    arms = sorted(comparison.arms, key=lambda arm: arm.scores[name], reverse=score.higher_is_better)
    order = ", ".join(
        f"{names[arm.name]} {score.scale * arm.scores[name]:.{score.digits}f}" for arm in arms
    )
    by_verdict: dict[str, list[str]] = {}
    for pair in pairs:
        both = f"{names[pair.first]} and {names[pair.second]}"
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
    return f"{part.name}, {score.title}, best first: {order}; {judged} ({seeds})"


def _unfinished(study: StudyResults) -> Iterator[Element]:
    if missing := [name for part in study.parts for name in part.missing]:
        yield Paragraph(f"Not finished, and so not in here: {', '.join(missing)}.")


def _compared(part: PartResults) -> Iterator[Element]:
    plan = part.plan
    alike = [arm.plan for arm in part.arms if arm.plan.deepened is None]
    sizes = sorted({(arm.num_layers, arm.d_model) for arm in alike})
    size = " or ".join(
        f"{layers} {'layer' if layers == 1 else 'layers'}, width {width}" for layers, width in sizes
    )
    models = f"{len(alike)} models of {size}" if len(alike) > 1 else f"One model of {size}"
    known = sorted(seed for seed in plan.seeds if seed is not None)
    seeds = ", ".join(map(str, known)) or "unknown"
    if alike:
        counts = {arm.parameters for arm in alike}
        some = f"They have {min(counts):,} to {max(counts):,} parameters. "
        equal = f"Each has {max(counts):,} parameters. " if len(counts) == 1 else some
        on = " ".join(word for word in plan.data.split() if not word.startswith("{"))
        yield Paragraph(f"{models}, on {on}; seeds {seeds}. {equal}{_matched(part)}")
    if plan.parent is not None:
        yield Paragraph(_start(plan.parent, [arm.plan for arm in part.arms]))
    for arm in part.arms:
        if arm.plan.deepened is not None:
            yield Paragraph(
                f"Besides, {arm.name} has {arm.plan.num_layers} layers, so that a token "
                f"costs what it costs in {arm.plan.deepened}: a control with more parameters."
            )
    by_cost: dict[tuple[int, int], list[ArmResults]] = {}
    for arm in part.arms:
        by_cost.setdefault((arm.plan.macs["mixer"], arm.plan.macs["ffn"]), []).append(arm)
    for number, ((mixer, ffn), arms) in enumerate(by_cost.items(), start=1):
        schedules = {arm.name: parse(arm.plan.schedule) for arm in arms}
        name = f"{part.name}-schedules" + (f"-{number}" if len(by_cost) > 1 else "")
        # A drawing has one scale of costs, so models with other costs get a drawing of their own.
        yield Drawing(name, "The schedules", draw(schedules, {"mixer": mixer, "ffn": ffn}))


def _matched(part: PartResults) -> str:
    """What is equal in the training of a part's models, and what differs besides the schedule."""
    arms = {arm.name: arm.plan for arm in part.arms}
    if part.plan.match == "as they are":
        return "The runs are shown as they are; nothing says that they are matched."
    if not all(arm.amounts for arm in arms.values()):
        return "An older version made the plan, which does not say what each model was given."
    keys = {key: {name: arm.differs[key] for name, arm in arms.items()} for key in _keys(part)}
    tokens = [arm.amounts["tokens"] for arm in arms.values() if "tokens" in arm.amounts]
    costs = {arm.flops_per_token for arm in arms.values()}
    if part.plan.match == "seconds":
        equal = "All models are trained for the same time, on whatever machine each ran on."
    elif part.plan.match == "flops":
        flops = [arm.amounts["flops"] for arm in arms.values()]
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


def _keys(part: PartResults) -> list[str]:
    """The keys of data and training in which the models on the page differ."""
    keys = dict.fromkeys(key for arm in part.arms for key in arm.plan.differs)
    return [key for key in keys if len({arm.plan.differs.get(key) for arm in part.arms}) > 1]


def _start(parent: PlannedParent, arms: Sequence[PlannedArm]) -> str:
    """Where the weights of models with a parent come from."""
    step = "" if parent.step is None else f" at step {parent.step:,}"
    fresh = "".join(f" In {arm.name} {', '.join(arm.fresh)} is new." for arm in arms if arm.fresh)
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
register_section("share of the full loop's gain", kept_gain)
register_section("what each pass does", transport)
register_section("which experts each pass chooses", routing)
