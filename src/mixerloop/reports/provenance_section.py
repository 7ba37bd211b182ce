"""The provenance of every number in a report."""

from collections.abc import Iterator, Mapping
from typing import Any

from mixerloop.reports.elements import Element, Paragraph, Table
from mixerloop.reports.study_results import StudyResults
from mixerloop.results import encode

COLUMNS = ["of", "result", "seed", "operators", "type", "weights", "data", "commit", "made"]
Facts = Mapping[str, Any]
"""A provenance as JSON; training and benchmarks record other facts than results do."""


def provenance(results: StudyResults) -> Iterator[Element]:
    """A row for every result, and the machines they were made on."""
    births = list(_births(results))
    rows = [
        [
            *(of, what, _text(facts, "seed"), _operators(facts)),
            *(_text(facts, "compute_dtype"), _text(facts, "checkpoint_sha256")[:10]),
            _text(facts, "data")[:10],
            _text(facts, "commit")[:10] + "+" * bool(facts.get("dirty")),
            _text(facts, "created"),
        ]
        for of, what, facts in births
    ]
    note = "A + behind a commit: files had been changed since. Differences come from the results."
    yield Table("Results", COLUMNS, rows, note)
    for where in sorted({_machine(facts) for _, _, facts in births if facts.get("machine")}):
        yield Paragraph(where)


def _births(results: StudyResults) -> Iterator[tuple[str, str, Facts]]:
    """The model, the measure, and the provenance of every result."""
    for part in results.table.filled.by("part").values():
        for row in (row for arm in part.arms.values() for row in arm):
            of = f"{row.part}/{row.place.name}"
            if row.provenance:
                yield of, "training", row.provenance
            for measure, result in row.results.items():
                yield of, measure, encode(result.provenance) | {"seed": row.seed}
    for of, prefill in results.prefills.items():
        yield f"{of}the machine", "prefill", prefill.provenance


def _text(facts: Facts, key: str) -> str:
    value = facts.get(key)
    return "" if value is None else str(value)


def _operators(facts: Facts) -> str:
    """The forms of operators that ran, without repetition."""
    forms = facts.get("forms")
    if isinstance(forms, dict):
        return ", ".join(dict.fromkeys(map(str, forms.values())))
    return _text(facts, "form")


def _machine(facts: Facts) -> str:
    machine, versions = _table(facts, "machine"), _table(facts, "versions")
    names = ", ".join(f"{name} {version}" for name, version in versions.items())
    where = f"{_text(machine, 'processor')}, {_text(machine, 'cores')} cores"
    return f"{where}, {_text(machine, 'system')}: {names}."


def _table(facts: Facts, key: str) -> Facts:
    value = facts.get(key)
    return value if isinstance(value, dict) else {}
