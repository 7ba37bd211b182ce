"""Create the folder of a new run, and check the config and data of a resumed run."""

import dataclasses
import importlib.util
import re
import uuid
from pathlib import Path
from typing import Any

from mixerloop import config as configs
from mixerloop import runs
from mixerloop.config import RunConfig, TrainConfig, check_same_run
from mixerloop.data.data_check import DataCheck
from mixerloop.data.preparation import prepare_missing
from mixerloop.data.prepared import open_prepared
from mixerloop.files import check_name, check_space, new_folder, write_file, write_sealed
from mixerloop.messages import shell_word
from mixerloop.model.initialization import fresh_model
from mixerloop.ops.gated_delta_rule import choose_form
from mixerloop.ops.precision import choose_compute_dtype
from mixerloop.progress_line import preparing_progress, says_how_to_resume, to_stderr
from mixerloop.provenance import collect_provenance
from mixerloop.training import checkpoints
from mixerloop.training.checkpoints import BYTES_PER_PARAMETER
from mixerloop.training.opened import Opened, open_run, recipe_of
from mixerloop.training.parallel import Ranks
from mixerloop.training.parent import (
    Parent,
    check_data,
    inherited_files,
    take_weights,
)
from mixerloop.training.position import Position

WANDB_PROJECT = r"[^\s/\\#?%:][^/\\#?%:\n]{0,127}"
"""The names that Weights & Biases accepts."""


def settled(config: RunConfig, *, ranks: Ranks | None = None) -> RunConfig:
    """A config with each `auto` replaced by its value on this machine, the same on every rank."""
    ranks = Ranks() if ranks is None else ranks
    _, train = config.for_training()
    device = ranks.device.type
    resolved = dataclasses.replace(
        train,
        form=choose_form(train.form, device),
        compute_dtype=choose_compute_dtype(train.compute_dtype, device),
    )
    config = dataclasses.replace(config, train=resolved)
    return ranks.from_first(configs.with_fitting_warmup(config))


def begin(
    run: Path,
    config: RunConfig,
    *,
    ranks: Ranks | None = None,
    parent: Parent | None = None,
    quiet: bool = True,
) -> Opened:
    """Create a run at step 0, with fresh weights or a parent's; only the first rank calls this.

    In `config` every `auto` is settled. The data is prepared first if it is missing and the config
    says how; `quiet` prints nothing.
    """
    ranks = Ranks() if ranks is None else ranks
    if run.exists():
        raise ValueError(
            f"{run} already exists; go on with mixerloop train --resume {shell_word(run)}, or "
            "choose another folder"
        )
    check_name(run)
    recipe = recipe_of(config)
    train = recipe.train
    record = None if parent is None else parent.record(recipe.model)
    _prepare_data(config, quiet=quiet)
    opened = open_run(recipe, ranks=ranks)
    _check_wandb(train)
    if parent is not None:
        check_data(parent, opened.prepared)
    model = fresh_model(config.model, seed=train.seed, rule=train.init, form=train.form)
    if parent is not None:
        take_weights(model, parent)
    num_parameters = sum(parameter.numel() for parameter in model.parameters())
    with new_folder(run) as folder:
        try:
            check_space(folder, (train.keep_last + 1) * num_parameters * BYTES_PER_PARAMETER)
        except ValueError as error:
            raise ValueError(f"{error}, with train.keep_last = {train.keep_last}") from None
        write_file(folder / runs.CONFIG, configs.dump(config))
        facts = {
            "id": uuid.uuid4().hex[:12],
            "seed": train.seed,
            "init": train.init,
            "forms": model.forms(),
            "compute_dtype": train.compute_dtype,
            "data": opened.prepared.fingerprint,
            "num_parameters": num_parameters,
            "flops_per_token": opened.flops_per_token,
            **({} if record is None else {"parent": dataclasses.asdict(record)}),
            "sessions": [],
        }
        write_sealed(folder / runs.PROVENANCE, collect_provenance(**facts))
        checkpoints.save(
            folder,
            model,
            None,
            Position(
                step=0,
                seconds=0.0,
                total_steps=opened.budget.steps,
                seed=train.seed,
                finished=False,
            ),
            config=config,
            files={**opened.prepared.vocabulary_files(), **inherited_files(config.model, parent)},
            parent=record,
            ranks=Ranks(),
        )
    return opened


def _prepare_data(config: RunConfig, *, quiet: bool) -> None:
    data, _ = config.for_training()
    if data.prepare is None:
        return
    progress = None if quiet else preparing_progress()
    try:
        with says_how_to_resume():
            prepared = prepare_missing(Path(data.path), data.prepare, progress=progress)
    except ValueError as error:
        raise ValueError(f"data.prepare: {error}") from None
    if prepared is not None and not quiet:
        to_stderr("\n".join([*prepared.lines, ""]))


def resumed_config(
    run: Path, *, config_file: Path | str | None, overrides: configs.Tables
) -> RunConfig:
    """The config of a resumed run; rejects a change of what the run computes."""
    provenance = provenance_of(run)
    old = configs.load(run / runs.CONFIG)
    base = old.model if "parent" in provenance else None
    new = configs.load(config_file or run / runs.CONFIG, overrides, base=base)
    _, train = new.for_training()
    _, before = old.for_training()
    for key in ("form", "compute_dtype"):
        if getattr(train, key) == "auto":
            train = dataclasses.replace(train, **{key: getattr(before, key)})
    new = dataclasses.replace(new, train=train)
    check_same_run(old, new, where=str(run))
    _check_wandb(train)
    data, _ = new.for_training()
    if open_prepared(data.path).fingerprint != provenance["data"]:
        raise ValueError(
            f"{data.path}: not the data this run was trained on, its manifest is another"
        )
    return new


def _check_wandb(train: TrainConfig) -> None:
    if train.wandb is None:
        return
    if not re.fullmatch(WANDB_PROJECT, train.wandb):
        raise ValueError(f"train.wandb = {train.wandb!r}: not the name of a project")
    if importlib.util.find_spec("wandb") is None:
        raise ValueError(
            "train.wandb is set and wandb is not installed: pip install 'mixerloop[wandb]'"
        )


def note_session(run: Path, config: RunConfig, *, ranks: Ranks, step: int) -> dict[str, Any]:
    """Record a session in the provenance: its first step, ranks, settings, code and machine.

    Returns the provenance.
    """
    provenance = provenance_of(run)
    _, train = config.for_training()
    computed = {
        key: value
        for key, value in dataclasses.asdict(train).items()
        if f"train.{key}" in configs.MAY_CHANGE
    }
    facts = {"step": step, "num_ranks": ranks.num_ranks, **computed, "device": ranks.device.type}
    provenance["sessions"] = [*provenance["sessions"], collect_provenance(**facts)]
    write_sealed(run / runs.PROVENANCE, provenance)
    write_file(run / runs.CONFIG, configs.dump(config))
    return provenance


def note_data(run: Path, provenance: dict[str, Any], check: DataCheck) -> None:
    """Record in the newest session what its data was, once every file of it was hashed."""
    provenance["sessions"][-1]["data"] = {
        "content_sha256": check.content_sha256(),
        "files": len(check.files),
        "bytes": sum(file.num_bytes for file in check.files),
    }
    write_sealed(run / runs.PROVENANCE, provenance)


def provenance_of(run: Path) -> dict[str, Any]:
    """The provenance of a trained run; rejects a file without its keys."""
    path = run / runs.PROVENANCE
    provenance = runs.read_provenance(run)
    if not {"id", "data", "sessions"} <= provenance.keys() or not isinstance(
        provenance["sessions"], list
    ):
        raise ValueError(f"{path}: not the provenance of a trained run")
    return provenance
