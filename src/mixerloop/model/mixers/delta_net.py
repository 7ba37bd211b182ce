"""The DeltaNet mixer: a matrix memory that is corrected at every token, and never fades."""

from typing import ClassVar

from jaxtyping import Float
from torch import Tensor

from mixerloop.kinds import DeltaNetOptions
from mixerloop.model.delta_mixer import DeltaMixer
from mixerloop.model.linear_mixer import OF_HEADS, Prepared, RuleInputs, wide
from mixerloop.model.projection import Projection
from mixerloop.model.sublayer import Place, State


class DeltaNet(DeltaMixer):
    """Short convolution, delta rule with a write strength for each head, output norm."""

    gates: ClassVar = {"write_strength": OF_HEADS}

    def __init__(self, options: DeltaNetOptions, place: Place) -> None:
        super().__init__(options, place)
        self.write_proj = Projection(place.d_model, options.num_heads, form=place.form)

    def prepare(self, x: Float[Tensor, "batch seq d_model"], carried: State | None) -> Prepared:
        """Keys erase and write with one strength."""
        query, key, value, carried = self.heads(x, carried)
        write = self.largest_write * wide(self.write_proj(x)).sigmoid()
        return Prepared(RuleInputs(query, key, value, write_strength=write), carried)

    def finish(
        self, read: Float[Tensor, "batch seq heads d_value"], aside: tuple[Tensor, ...]
    ) -> Float[Tensor, "batch seq values"]:
        """Each head at unit mean square."""
        return self.output_norm(read).flatten(-2)
