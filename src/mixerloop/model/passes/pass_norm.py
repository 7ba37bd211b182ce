"""A norm before a pass: the residual that enters a later pass, or a coda, is normalised first."""

from jaxtyping import Float
from torch import Tensor

from mixerloop.kinds import PassNormOptions
from mixerloop.model.norm import RMSNorm
from mixerloop.model.passes import Passes, PassPlace, PassRule
from mixerloop.model.sublayer import Losses
from mixerloop.schedule import Occurrence, Schedule

Residual = Float[Tensor, "batch seq d_model"]


class PassNorm(PassRule):
    """The norm of the readout, or a norm of its own."""

    def __init__(self, options: PassNormOptions, passes: Passes, place: PassPlace) -> None:
        super().__init__(passes)
        if options.unit == "coda" and options.before == "later":
            raise ValueError("pass_norm: a coda runs once, so it needs before = 'every'")
        self.is_coda = options.unit == "coda"
        self.before_first = options.before == "every"
        final = place.final_norm
        self.norm = None if options.shared else RMSNorm(place.d_model, final.eps, form=final.form)
        self._final_norm = (final,)  # in a tuple, so that its weights are not saved twice

    def check(self, schedule: Schedule) -> None:
        """Passes must be those of a loop, or a coda, which runs once."""
        if not self.is_coda:
            self.passes.check(schedule)

    def open(
        self, residual: Residual, kept: Residual | None, occurrence: Occurrence
    ) -> tuple[Residual, Residual | None]:
        """Normalise, unless this is the first pass and only later ones are to be normalised."""
        if occurrence.pass_index == 0 and not self.before_first:
            return residual, kept
        norm = self._final_norm[0] if self.norm is None else self.norm
        return norm(residual), kept

    def acts(self, occurrence: Occurrence) -> bool:
        """Only passes that are normalised use the weights."""
        is_normalised = self.before_first or occurrence.pass_index > 0
        return self.passes.opens(occurrence) and is_normalised

    def close(
        self, residual: Residual, kept: Residual | None, occurrence: Occurrence
    ) -> tuple[Residual, Losses | None]:
        """Nothing happens where a pass ends."""
        return residual, None
