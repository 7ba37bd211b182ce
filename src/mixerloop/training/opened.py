"""What a session establishes once of its config: first without the data, then with it.

A new run and a resumed run are opened by the same functions, and the trainer is given the result.
The weights are not part of it: a session always reads them from the run's newest checkpoint, which
is what makes a resumed run the same run.
"""

from collections.abc import Sequence
from dataclasses import dataclass
from functools import cached_property

import numpy as np

from mixerloop.config import DataConfig, RunConfig, TrainConfig
from mixerloop.data.batches import Batches
from mixerloop.data.prepared import Prepared, open_prepared
from mixerloop.data.windows import Windows
from mixerloop.model.accounting import training_flops_per_token
from mixerloop.model.initialization import meta_model
from mixerloop.model.looped_lm import LoopedLM
from mixerloop.notation import notation
from mixerloop.training.budget import Budget, budget_of
from mixerloop.training.depth import Depths, depths_of
from mixerloop.training.freezing import TrainedWeights, trained_weights
from mixerloop.training.memory import check_batch_fits
from mixerloop.training.objectives.objective import Objective, objective_of
from mixerloop.training.parallel import Ranks


@dataclass(frozen=True, kw_only=True)
class Recipe:
    """The model, depths, objective and trained weights of a config, which need no data."""

    config: RunConfig
    model: LoopedLM
    """On the device meta: the modules and shapes of the model, without weights."""
    depths: Depths
    objective: Objective
    weights: TrainedWeights

    @property
    def data(self) -> DataConfig:
        """The section `[data]`."""
        return self.config.for_training()[0]

    @property
    def train(self) -> TrainConfig:
        """The section `[train]`."""
        return self.config.for_training()[1]

    def flops_per_token(self, context: int) -> tuple[int, ...]:
        """Operations of a token in a window of `context` tokens, for each depth."""
        return tuple(
            training_flops_per_token(self.model, context=context, work=self.objective.work(depth))
            for depth in self.depths.depths
        )

    def shares_of_tokens(self, flops_per_token: Sequence[float]) -> tuple[float, ...]:
        """The expected share of the tokens that each depth trains."""
        shares = np.array(self.depths.weights)
        if self.depths.shares and self.train.flops is not None:  # they are shares of FLOPs
            shares = shares / np.array(flops_per_token)
        return tuple((shares / shares.sum()).tolist())

    def expected_flops_per_token(self, context: int) -> float:
        """Operations of a token, as the mean over the tokens of the run."""
        flops = self.flops_per_token(context)
        if len(flops) == 1:
            return flops[0]
        return float(np.dot(flops, self.shares_of_tokens(flops)))


def recipe_of(config: RunConfig) -> Recipe:
    """Read what a config trains; raises if its parts do not fit each other."""
    _, train = config.for_training()
    model = meta_model(config.model)
    depths, objective = depths_of(config.model, train), objective_of(train.objective)
    if depths.per_sequence and train.parallel == "fsdp":
        raise ValueError(
            "train.parallel = fsdp gathers weights on all ranks at once, and with "
            "train.depth_per = sequence ranks run different schedules; use ddp"
        )
    for depth in depths.depths:
        objective.check(depth)
        try:
            if depth.schedule != model.schedule:
                model.check_rules(depth.schedule)
        except ValueError as error:
            key = "schedule_at" if depths.shares else "depth"
            raise ValueError(f"train.{key}: {notation(depth.schedule)}: {error}") from None
    weights = trained_weights(model, depths.depths, freeze=train.freeze)
    return Recipe(config=config, model=model, depths=depths, objective=objective, weights=weights)


@dataclass(frozen=True, kw_only=True)
class Opened:
    """A recipe with its data: all that a trainer needs besides the run's checkpoint."""

    recipe: Recipe
    ranks: Ranks
    prepared: Prepared
    held_out: Windows
    batches: Batches
    flops_of_depths: tuple[int, ...]
    """Operations of a token, for each depth."""
    budget: Budget

    @property
    def context(self) -> int:
        """Tokens of a training window."""
        return self.batches.windows.context

    @cached_property
    def tokens_per_step(self) -> int:
        """Tokens of one update, over all ranks."""
        return self.recipe.train.global_batch * self.context

    @property
    def flops_per_token(self) -> float:
        """Operations of a token, as the mean over the depths of the run."""
        return self.recipe.expected_flops_per_token(self.context)

    def flops_of_steps(self, counts: np.ndarray) -> int:
        """Operations of steps that have drawn each depth so often."""
        tokens_per_draw = self.tokens_per_step // self.recipe.depths.draws_per_step
        drawn = zip(counts.tolist(), self.flops_of_depths, strict=True)
        return sum(count * flops for count, flops in drawn) * tokens_per_draw


def open_run(config: RunConfig | Recipe, *, ranks: Ranks | None = None) -> Opened:
    """Open the data of a config; raises if the batch or the budget does not fit it."""
    ranks = Ranks() if ranks is None else ranks
    recipe = config if isinstance(config, Recipe) else recipe_of(config)
    train = recipe.train
    prepared, windows, held_out = open_data(recipe.config)
    batches = Batches(
        windows=windows,
        seed=train.seed,
        global_batch=train.global_batch,
        rank=ranks.rank,
        num_ranks=ranks.num_ranks,
    )
    check_batch_fits(recipe.config, windows, depths=recipe.depths, ranks=ranks)
    flops = recipe.flops_per_token(windows.context)
    budget = budget_of(
        train,
        tokens_per_step=train.global_batch * windows.context,
        flops_per_token=recipe.expected_flops_per_token(windows.context),
        depths=recipe.depths,
        flops_of_depths=flops,
    )
    if budget.starts:
        recipe.depths.starts[:] = budget.starts
    return Opened(
        recipe=recipe,
        ranks=ranks,
        prepared=prepared,
        held_out=held_out,
        batches=batches,
        flops_of_depths=flops,
        budget=budget,
    )


def open_data(config: RunConfig) -> tuple[Prepared, Windows, Windows]:
    """The data with its training and held-out windows; rejects ids outside the vocabulary."""
    data, _ = config.for_training()
    prepared = open_prepared(data.path)
    train = prepared.windows("train", data.context)
    held_out = prepared.windows("held_out", data.context)
    if train.vocab_size > config.model.vocab_size:
        raise ValueError(
            f"{data.path}: {train.vocab_size:,} token ids do not fit the model's vocabulary of "
            f"{config.model.vocab_size:,}; set model.vocab_size"
        )
    return prepared, train, held_out
