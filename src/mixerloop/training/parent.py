"""A parent: a trained model whose weights a new run starts from, under a schedule of its own.

Weights are matched by name. The new model must have every tensor of its parent in the same shape.
Its other tensors, such as the table of a learned residual, are drawn as in a fresh model.
"""

from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass, field, replace
from pathlib import Path

from mixerloop.config import ModelConfig
from mixerloop.data.prepared import Prepared
from mixerloop.data.vocabulary import Vocabulary, check_vocabulary
from mixerloop.model.initialization import meta_model
from mixerloop.model.looped_lm import LoopedLM
from mixerloop.notation import notation
from mixerloop.parent_record import ParentRecord

Shapes = dict[str, list[int]]


@dataclass(frozen=True, kw_only=True)
class Parent:
    """A model that `mixerloop.open_parent(RUN)` has opened; its weights are read when needed."""

    folder: Path
    """The folder as it was named."""
    sha256: str
    """The fingerprint of the weights."""
    model: ModelConfig
    step: int | None
    """The updates that the weights had; None for an exported folder."""
    run_id: str | None
    """The id in the provenance of the parent's run; None if it has none."""
    vocabulary: Vocabulary | None
    """What the token ids mean; None if the files beside the weights do not say it."""
    load: Callable[[], LoopedLM]
    """Reads the weights."""
    imported: Mapping[str, bytes] = field(default_factory=dict)
    """Files that an export in the layout of an imported folder needs, by name."""

    def record(self, model: LoopedLM) -> ParentRecord:
        """What a run of a model knows of its parent; raises if the parent does not fit it."""
        return ParentRecord(
            folder=str(self.folder),
            sha256=self.sha256,
            schedule=notation(self.model.occurrences()),
            step=self.step,
            run_id=self.run_id,
            fresh=fresh_names(model, self),
        )


def take_weights(model: LoopedLM, parent: Parent) -> None:
    """Replace fresh weights by those of the parent, except the tensors that it lacks."""
    model.load_state_dict({**model.state_dict(), **parent.load().state_dict()})


def fresh_names(model: LoopedLM, parent: Parent) -> tuple[str, ...]:
    """The tensors of a model that its parent lacks; raises if the parent does not fit the model."""
    ours, theirs = _shapes(model), _shapes(meta_model(parent.model, form="torch"))
    misfits = [*_misfits(ours, theirs), *_other_layers(model.config, parent.model)]
    if misfits:
        more = f"; and {len(misfits) - 1:,} more" if len(misfits) > 1 else ""
        raise ValueError(f"{parent.folder}: does not fit the model: {misfits[0]}{more}")
    return tuple(name for name in ours if name not in theirs)


def inherited_files(config: ModelConfig, parent: Parent | None) -> Mapping[str, bytes]:
    """The files of an import that a run takes over.

    A model that differs from its parent in more than the schedule has outgrown the imported layout.
    """
    if parent is None or replace(config, schedule=parent.model.schedule) != parent.model:
        return {}
    return parent.imported


def check_data(parent: Parent, data: Prepared) -> None:
    """Reject data of another vocabulary than the parent's."""
    check_vocabulary(
        data.folder,
        data.vocabulary,
        parent.folder,
        parent.vocabulary,
        vocab_size=parent.model.vocab_size,
    )


def _shapes(model: LoopedLM) -> Shapes:
    return {name: list(tensor.shape) for name, tensor in model.state_dict().items()}


def _misfits(ours: Shapes, theirs: Shapes) -> Iterator[str]:
    """The parent's tensors that the model lacks, or has in another shape."""
    for name, shape in theirs.items():
        if name not in ours:
            yield f"{name} has the shape {shape} in the parent, and the model has no such tensor"
        elif ours[name] != shape:
            yield f"{name} has the shape {shape} in the parent and {ours[name]} in the model"


def _other_layers(config: ModelConfig, parent: ModelConfig) -> Iterator[str]:
    """Layers that the parent lacks, or has with sublayers of other kinds."""
    if config.num_layers != parent.num_layers:
        yield f"the parent has {parent.num_layers} layers and the model {config.num_layers}"
        return
    for layer, kinds in enumerate(zip(parent.layer_kinds(), config.layer_kinds(), strict=True)):
        theirs, ours = (" and ".join(pair) for pair in kinds)
        if theirs != ours:
            yield f"layer {layer} has {theirs} in the parent and {ours} in the model"
