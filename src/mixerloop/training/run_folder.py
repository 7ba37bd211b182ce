"""Begin a run, or take one up again."""

import dataclasses
from pathlib import Path

from mixerloop import config as configs
from mixerloop import runs
from mixerloop.config import RunConfig
from mixerloop.data.batches import fingerprint
from mixerloop.model.accounting import training_flops_per_token
from mixerloop.model.initialization import fresh_model
from mixerloop.training import checkpoint
from mixerloop.training.budget import budget_of
from mixerloop.training.distributed import Ranks
from mixerloop.training.position import Position
from mixerloop.training.trainer import BYTES_PER_PARAMETER, open_data

MAY_CHANGE = {
    *("data.path", "train.micro_batch", "train.recompute", "train.compile", "train.device"),
    *("train.parallel", "train.checkpoint_every", "train.keep_last", "train.keep_every"),
    *("train.tensorboard", "train.wandb"),
}
"""How and where a run is computed and kept; everything else decides what it computes."""


def begin(run: Path, config: RunConfig, *, ranks: Ranks) -> None:
    """Make a run of fresh weights at step 0; only the first rank writes."""
    if not ranks.is_first:
        return
    data, train = config.for_training()
    if run.exists():
        raise ValueError(
            f"{run} already exists; go on with mixerloop train --resume {run}, or choose another "
            "--out"
        )
    windows, _ = open_data(config)
    model = fresh_model(
        config.model, seed=train.seed, rule=train.init, implementation=train.implementation
    )
    budget = budget_of(
        train,
        tokens_per_step=train.global_batch * windows.context,
        flops_per_token=training_flops_per_token(model),
    )
    tokenizer = Path(data.path) / runs.TOKENIZER
    num_parameters = sum(parameter.numel() for parameter in model.parameters())
    with runs.new_folder(run) as folder:
        runs.check_space(folder, (train.keep_last + 1) * num_parameters * BYTES_PER_PARAMETER)
        runs.write_file(folder / runs.CONFIG, configs.dump(config))
        facts = {
            "seed": train.seed,
            "init": train.init,
            "implementation": model.implementation,
            "compute_dtype": train.compute_dtype,
            "data": fingerprint(Path(data.path)),
            "num_parameters": num_parameters,
            "flops_per_token": training_flops_per_token(model),
            "sessions": [],
        }
        runs.write_file(folder / runs.PROVENANCE, runs.to_json(runs.provenance(**facts)))
        checkpoint.save(
            folder,
            model,
            None,
            Position(
                step=0, seconds=0.0, total_steps=budget.steps, seed=train.seed, finished=False
            ),
            config=config,
            tokenizer=tokenizer if tokenizer.is_file() else None,
            ranks=Ranks(),
        )


def resumed_config(run: Path, *, config_file: Path | None, overrides: configs.Tables) -> RunConfig:
    """The config to go on with, which may differ from the run's only in how it is computed."""
    old = configs.load(run / runs.CONFIG)
    new = configs.load(run / runs.CONFIG if config_file is None else config_file, overrides)
    changed = configs.differences(old, new)
    for key, (before, after) in changed.items():
        if key not in MAY_CHANGE:
            raise ValueError(
                f"{run}: {key} is {_said(before)} in this run, not {_said(after)}; it decides what "
                "is computed, so start a new run to change it"
            )
    data, _ = new.for_training()
    trained_on = runs.read_json(run / runs.PROVENANCE).get("data")
    if fingerprint(Path(data.path)) != trained_on:
        raise ValueError(f"{data.path}: not the data this run was trained on, though it lies there")
    return new


def note_session(run: Path, config: RunConfig, *, ranks: Ranks, step: int) -> None:
    """Record who takes a run up, from which step, and with what."""
    provenance = runs.read_json(run / runs.PROVENANCE)
    _, train = config.for_training()
    computed = {
        key: value
        for key, value in dataclasses.asdict(train).items()
        if f"train.{key}" in MAY_CHANGE
    }
    facts = {"step": step, "num_ranks": ranks.num_ranks, **computed, "device": ranks.device.type}
    provenance["sessions"] = [*provenance["sessions"], runs.provenance(**facts)]
    runs.write_file(run / runs.PROVENANCE, runs.to_json(provenance))
    runs.write_file(run / runs.CONFIG, configs.dump(config))


def _said(value: object) -> str:
    return "not set" if value is None else str(value)
