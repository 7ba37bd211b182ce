"""What shows before training to be wrong in the rows of a plan; what models are trained with."""

import dataclasses
import os
from collections.abc import Iterable, Mapping, Sequence
from pathlib import Path

from mixerloop import config as configs
from mixerloop.config import BUDGETS, RunConfig, check_fits
from mixerloop.data.preparation import TaskPreparation
from mixerloop.data.prepared import Prepared
from mixerloop.data.task_folder import TaskFolder
from mixerloop.data.tasks.registry import task_of
from mixerloop.studies.comparing import ASIDE
from mixerloop.studies.measuring import check_measure
from mixerloop.studies.study import PartSettings, StudyFile, folder_key, preparation_of
from mixerloop.studies.table import Row, Table
from mixerloop.studies.variants import sweeps_of
from mixerloop.study_folder import DATA, Match, TransportSettings
from mixerloop.training.budget import budget_of

NAME_BYTES = 200
"""The most bytes of the names of a part, an arm and a seed together. A file system allows 255 for
one name; figures and unfinished files are named after these with some bytes more."""
FLOPS_AGREE = 0.05
"""The largest relative difference of equal compute: of `layers_for_flops_of` and of budgets in
FLOPs, which are spent in whole steps."""
BUDGET_FOR: dict[Match, tuple[str, ...]] = {
    "parameters+tokens": ("steps", "tokens"),
    "flops": ("flops",),
    "seconds": ("seconds",),
}
"""The kinds of budget that give all models the same amount of the matched quantity."""
QUANTITY: dict[Match, str] = {
    "parameters+tokens": "tokens",
    "flops": "flops",
    "seconds": "seconds",
}
"""The key of `amounts` that is equal for all models."""


def check_plan(file: StudyFile, rows: Sequence[Row]) -> None:
    """Reject names, budgets and measures that are wrong in any of a study's rows."""
    _check_names(file, rows)
    parts = Table(tuple(rows)).by("part").values()
    for part in parts:
        models = [arm.first for arm in part.by("arm").values()]
        _check_matched(file, models)
        for row in models:
            data = _known_data(file, row)
            if data is not None:
                with file.at(f"{file.place_of(row.family)}.arms", f"'{row.arm}': "):
                    check_fits("its task", data.vocab_size, row.vocab_size)
            check_measures(file, row, row.measure, data)
    for part in file.study.parts:
        taken = {name for row in rows if row.family == part.name for name in row.measure}
        for name in part.measure:
            if name not in taken:
                reason = f"{name}: no arm repeats what this measures"
                raise file.refused(f"{file.place_of(part.name)}.measure", reason)
    _check_budgets(file, [part.first for part in parts])


def _check_names(file: StudyFile, rows: Sequence[Row]) -> None:
    """Reject two things of one name, and names that a file system does not hold."""
    owners, names = dict[str, Row](), set[str]()
    for row in rows:
        here, name = file.place_of(row.family), folder_key(row.run)
        owner = owners.setdefault(folder_key(row.part), row)
        if _part_of(owner) != _part_of(row):
            raise file.refused(
                f"{here}.name",
                f"'{row.part}' would be a folder of part '{owner.family}' and of part "
                f"'{row.family}'; rename a part or a size",
            )
        if name in names:
            raise file.refused(f"{here}.arms", f"two cells are called '{row.run}'")
        names.add(name)
        size = len(os.fsencode(f"{row.part}{row.arm}{row.seed}"))
        if size > NAME_BYTES:
            raise file.refused(
                f"{here}.arms",
                f"the names of '{row.run}' have {size} bytes, and file names have room for "
                f"{NAME_BYTES}; give the arm a shorter name",
            )


def _part_of(row: Row) -> tuple[str, str | None, int | None, bool]:
    return row.family, row.size, row.tokens, row.is_tuning


def _check_matched(file: StudyFile, models: Sequence[Row]) -> None:
    """Reject models that are not given the same amount of what their part matches."""
    first, part = models[0], file.part(models[0].family)
    here = file.place_of(part.name)
    for row in models:
        with file.at(f"{here}.match" if row is first else f"{here}.arms", f"'{row.arm}': "):
            check_budget(part.match, row.with_config())
        if row.context != first.context and "nll" in part.measure:
            raise file.refused(
                f"{here}.arms",
                f"'{row.arm}' reads windows of {row.context} tokens and '{first.arm}' of "
                f"{first.context}: their NLL cannot be compared",
            )
    if all(row.context is not None for row in models):  # else the data is rejected when opened
        with file.at(f"{here}.arms"):
            given = [(row.arm, each) for row in models for each in _possible_amounts(part, row)]
            check_equal(part.match, given)


def _possible_amounts(part: PartSettings, row: Row) -> list[dict[str, float]]:
    """The amounts of a row, or those with each value that tuning may choose for it."""
    config = row.with_config()
    _, train = config.for_training()
    keys = [
        {sweep.key.removeprefix("train."): value}
        for sweep in sweeps_of(part, row.size)
        for value in sweep.values
        if row.waits_for_tuning and sweep.arm.title == row.arm and sweep.key.startswith("train.")
    ]
    tried = [dataclasses.replace(config, train=dataclasses.replace(train, **key)) for key in keys]
    context, flops = row.context, row.flops_per_token
    return [amounts(one, context=context, flops_per_token=flops) for one in tried or [config]]


def _check_budgets(file: StudyFile, of_parts: Sequence[Row]) -> None:
    """Reject budgets in tokens that are less than a step, or the same number of steps."""
    trained = dict[tuple[str, str | None, bool, float], int]()
    for row in of_parts:
        tokens = row.amounts.get("tokens")
        if row.tokens is None or tokens is None:
            continue
        _, train = row.with_config().for_training()
        step = train.global_batch * (row.context or 1)
        key = "tune_tokens" if row.is_tuning else "tokens"
        with file.at(f"{file.place_of(row.family)}.{key}"):
            if row.tokens < step:
                raise ValueError(f"{row.tokens:,} tokens are less than a step of {step:,}")
            other = trained.setdefault((row.family, row.size, row.is_tuning, tokens), row.tokens)
            if other != row.tokens:
                raise ValueError(
                    f"{other:,} and {row.tokens:,} tokens are both {tokens:,} in whole steps"
                )


def _known_data(file: StudyFile, row: Row) -> Prepared | None:
    """The data of a row as far as the study file says it: a synthetic task."""
    preparation = preparation_of(file.part(row.family))
    if not isinstance(preparation, TaskPreparation):
        return None
    settings = preparation.settings
    return TaskFolder(Path(DATA) / row.family, task_of(settings), settings)


def check_measures(
    file: StudyFile, row: Row, measures: Iterable[str], data: Prepared | None
) -> None:
    """Reject measures that cannot be taken of a row after its training."""
    here = file.place_of(row.family)
    for measure in measures:
        try:
            check_measure(measure, data, row.with_config(), row)
        except ValueError as error:
            named = [key for key in dataclasses.asdict(row.transport) if key in str(error)]
            is_named = named and row.transport != TransportSettings()
            place = f"{here}.transport.{named[0]}" if is_named else f"{here}.measure"
            raise file.refused(place, f"'{row.arm}', {measure}: {error}") from None


def amounts(config: RunConfig, *, context: int | None, flops_per_token: float) -> dict[str, float]:
    """The tokens and FLOPs of a training in whole steps, or its seconds; none without a context."""
    if context is None:
        return {}
    _, train = config.for_training()
    tokens_per_step = train.global_batch * context
    budget = budget_of(train, tokens_per_step=tokens_per_step, flops_per_token=flops_per_token)
    if budget.steps is None:
        return {"seconds": train.seconds or 0.0}
    tokens = budget.steps * tokens_per_step
    return {"tokens": tokens, "flops": tokens * flops_per_token}


def check_budget(match: Match, config: RunConfig) -> None:
    """Reject a kind of budget that does not give all models the same amount."""
    _, train = config.for_training()
    budget = next(name for name in BUDGETS if getattr(train, name) is not None)
    if budget not in BUDGET_FOR[match]:
        needed = " or ".join(BUDGET_FOR[match])
        raise ValueError(f"'{match}' needs a budget in {needed}, and train has {budget}")


def check_equal(match: Match, given: Iterable[tuple[str, Mapping[str, float]]]) -> None:
    """Reject a model whose amount of the matched quantity is not that of the first model.

    Parameters are equal unless an arm overrides a size, which the report says.
    """
    quantity = QUANTITY[match]
    agree = FLOPS_AGREE if match == "flops" else 0.0
    first: tuple[str, float] | None = None
    for title, of_model in given:
        amount = of_model[quantity]
        if first is None:
            first = title, amount
        elif abs(amount / first[1] - 1) > agree:
            raise ValueError(
                f"'{title}' is trained with {amount:,.10g} {quantity} and '{first[0]}' with "
                f"{first[1]:,.10g}, in whole steps; match = '{match}' needs equal {quantity}"
            )


def differences(by_model: Mapping[str, RunConfig]) -> dict[str, dict[str, str]]:
    """The keys of data and training in which models differ, with the value of each model.

    Left out are the seed, budgets, and keys that do not change what is learned.
    """
    first = next(iter(by_model.values()))
    aside = configs.MAY_CHANGE | ASIDE | {f"train.{name}" for name in BUDGETS}
    changed = {title: configs.differences(first, one) for title, one in by_model.items()}
    common = {
        key: old
        for changes in changed.values()
        for key, (old, _) in changes.items()
        if not key.startswith("model.") and key not in aside
    }
    return {
        title: {
            key: configs.said(changes[key][1] if key in changes else old)
            for key, old in common.items()
        }
        for title, changes in changed.items()
    }
