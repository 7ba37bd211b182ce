"""What the models of a part are trained with: what must be equal, and what differs."""

from collections.abc import Iterable, Mapping

from mixerloop import config as configs
from mixerloop.config import BUDGETS, RunConfig
from mixerloop.studies.comparing import ASIDE
from mixerloop.study_folder import Match
from mixerloop.training.budget import budget_of

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
    aside = set.intersection(*(configs.may_change(one.model) for one in by_model.values()))
    aside |= ASIDE | {f"train.{name}" for name in BUDGETS}
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
