"""Where every number of a report is from."""

from collections.abc import Iterator
from typing import Any

from mixerloop.reports.blocks import Block, Paragraph, Table
from mixerloop.reports.study_results import StudyResults

COLUMNS = ["of", "result", "seed", "operators", "type", "weights", "data", "commit", "made"]


def provenance(results: StudyResults) -> Iterator[Block]:
    """A row for every result, and the machines they were made on."""
    births = list(_births(results))
    rows = [
        [
            *(of, what, str(facts.get("seed", "")), str(facts.get("form", ""))),
            str(facts.get("compute_dtype", "")),
            str(facts.get("checkpoint_sha256", ""))[:10],
            str(facts.get("data", ""))[:10],
            (facts.get("commit") or "")[:10] + "+" * bool(facts.get("dirty")),
            str(facts.get("created", "")),
        ]
        for of, what, facts in births
    ]
    note = "A + behind a commit: files had been changed since. Differences come from the results."
    yield Table("Results", COLUMNS, rows, note)
    for where in sorted({_machine(facts) for _, _, facts in births if "machine" in facts}):
        yield Paragraph(where)


def _births(results: StudyResults) -> Iterator[tuple[str, str, dict[str, Any]]]:
    """Of what, which result, and what it says of itself."""
    for part in results.parts:
        for run in (run for arm in part.arms for run in arm.runs):
            of = f"{part.name}/{run.path.name}"
            if run.provenance:
                yield of, "training", run.provenance
            for what, result in run.results.items():
                yield of, what, result["provenance"] | {"seed": run.seed}
    for of, prefill in results.prefills.items():
        yield f"{of}the machine", "prefill", prefill["provenance"]


def _machine(facts: dict[str, Any]) -> str:
    machine, versions = facts["machine"], facts["versions"]
    names = ", ".join(f"{name} {version}" for name, version in versions.items())
    return f"{machine['processor']}, {machine['cores']} cores, {machine['system']}: {names}."
