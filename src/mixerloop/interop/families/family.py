"""What a family of pretrained models is: how its config and its tensors correspond to ours.

A family says which of its tensors, one below the other, are each of our tensors. Import, export and
the checks for missing and unused tensors all read that one list.
"""

from collections.abc import Callable, Collection, Mapping
from dataclasses import dataclass, field
from difflib import get_close_matches
from typing import Any

from mixerloop.config import ModelConfig
from mixerloop.notation import resolve
from mixerloop.parsing import suggest
from mixerloop.schedule import repeated_unit

WITHOUT_MEANING = {
    *("model_type", "architectures", "auto_map", "dtype", "torch_dtype", "transformers_version"),
    *("bos_token_id", "eos_token_id", "pad_token_id", "use_cache", "return_dict", "_name_or_path"),
    *("initializer_range", "max_position_embeddings", "output_hidden_states", "output_attentions"),
    *("chunk_size_feed_forward", "problem_type", "id2label", "label2id", "tokenizer_class"),
    *("transformers.js_config", "_attn_implementation_autoset", "name_or_path"),
}
"""Keys of any config.json that have no effect on what a model computes here."""
Source = Mapping[str, Any]
"""A config.json."""


@dataclass(frozen=True)
class Piece:
    """Rows of one of our tensors: a tensor of the family, or zeros that the family leaves out."""

    name: str | None
    """Their name; None for zeros."""
    rows: int
    """How many rows of our tensor these are."""
    shape: tuple[int, ...] | None = None
    """Their shape, where it is another than that of the rows."""


Pieces = dict[str, tuple[Piece, ...]]
"""Our tensors by name, each as the pieces that stand below each other in it."""


@dataclass(frozen=True, kw_only=True)
class Family:
    """A type of pretrained model."""

    model_type: str
    read: Callable[["Keys"], dict[str, Any]]
    """Our `[model]` table from the keys of a config.json."""
    pieces: Callable[[ModelConfig, Source], Pieces]
    """The correspondence of tensors, for our config of a model and its config.json."""
    write_schedule: Callable[[ModelConfig, Source], dict[str, Any]]
    """The keys of a config.json that say the schedule of our model; raises if none can."""
    unused: Collection[str] = field(default_factory=tuple)
    """Tensors that a model computes without here; they are kept for an export."""

    def model_config(
        self, given: Source, *, schedule: str | None, ignore: Collection[str]
    ) -> ModelConfig:
        """Our config from a config.json; a key that is neither read nor without effect raises."""
        for key in ignore:
            if key not in given:
                raise ValueError(f"ignored key {key} is not there; {suggest(key, tuple(given))}")
        keys = Keys({key: value for key, value in given.items() if key not in ignore})
        table = self.read(keys)
        keys.finish()
        if schedule is not None:
            table["schedule"] = schedule
            norm = table.get("pass_norm", {}).get("unit")
            if norm == "stack" and _repeats_no_stack(schedule, table["num_layers"]):
                del table["pass_norm"]  # between passes of the stack, which are not made
        return ModelConfig.from_table(table)


def _repeats_no_stack(schedule: str, num_layers: int) -> bool:
    """Whether a schedule repeats mixers, ffns or blocks, each by itself."""
    try:
        return repeated_unit(resolve(schedule, num_layers)) in ("mixer", "ffn", "block")
    except ValueError:  # neither; or no schedule, which the config rejects
        return False


class Keys:
    """The keys of a config.json, each of which must be read, or known to have no effect."""

    def __init__(self, given: Source) -> None:
        self._given, self._read = dict(given), set(WITHOUT_MEANING)

    def has(self, key: str) -> bool:
        """Whether a key is there, be its value null."""
        return key in self._given

    def drop(self, key: str) -> None:
        """Take a key away, so that it has no effect."""
        self._given.pop(key, None)

    def take(self, key: str, default: Any = None) -> Any:
        """The value of a key, or the default where it is missing or null."""
        self._read.add(key)
        value = self._given.get(key)
        return default if value is None else value

    def size(self, key: str, *, least: int = 1) -> int:
        """The value of a key that must be a whole number."""
        value = self.take(key)
        if value is None:
            raise ValueError(f"{key} is missing")
        if not isinstance(value, int) or isinstance(value, bool):
            raise ValueError(f"{key} = {value!r}: not a whole number")
        if value < least:
            raise ValueError(f"{key} must be at least {least}, got {value}")
        return value

    def number(self, key: str, default: float | None = None) -> float:
        """The value of a key that must be a number."""
        value = self.take(key, default)
        if value is None:
            raise ValueError(f"{key} is missing")
        if not isinstance(value, int | float) or isinstance(value, bool):
            raise ValueError(f"{key} = {value!r}: not a number")
        return float(value)

    def flag(self, key: str, default: bool) -> bool:
        """The value of a key that must be true or false."""
        value = self.take(key, default)
        if not isinstance(value, bool):
            raise ValueError(f"{key} = {value!r}: not true or false")
        return value

    def must_be(self, key: str, *values: Any) -> None:
        """Reject a value that our models do not have; a missing key is accepted."""
        value = self.take(key, values[0])
        if value not in values:
            known = " or ".join(map(repr, values))
            raise ValueError(f"{key} = {value!r}: our models have {known}")

    def ignore(self, *keys: str) -> None:
        """Accept keys that have no effect on the model."""
        self._read.update(keys)

    def finish(self) -> None:
        """Reject keys that nothing has read."""
        self.must_be("is_encoder_decoder", False)
        for key in self._given:
            if key not in self._read:
                near = get_close_matches(key, self._read, n=1)
                meant = f", did you mean {near[0]}?" if near else ""
                raise ValueError(
                    f"unknown key {key}{meant} (a key without effect on the model can be ignored: "
                    f"--ignore-keys {key})"
                )


def whole(name: str, rows: int) -> tuple[Piece, ...]:
    """A tensor of ours that is one of theirs."""
    return (Piece(name, rows),)


def stacked(
    prefix: str, names: Collection[str], rows: Collection[int], suffix: str
) -> tuple[Piece, ...]:
    """A tensor of ours that is several of theirs, one below the other."""
    return tuple(
        Piece(f"{prefix}{name}{suffix}", num) for name, num in zip(names, rows, strict=True)
    )
