"""CORE as a result: accuracies, centered scores and their means, with intervals over examples."""

from dataclasses import dataclass

from mixerloop.evaluation.core.metric import Guess, Version
from mixerloop.results import Estimate, Result


@dataclass(frozen=True, kw_only=True)
class CoreSettings:
    """Everything that the answers of a model depend on."""

    checkpoint: str
    """Fingerprint of the weights."""
    schedule: str
    compute_dtype: str
    forms: dict[str, str]
    """The form of each operator."""
    device: str
    tokenizer: str
    """Fingerprint."""
    bundle: str
    """Fingerprint."""
    context: int
    """Tokens a prompt may have."""
    limit: int | None
    """Examples of each task; None for all."""
    plain: bool
    """Whether every sequence is scored whole."""


@dataclass(frozen=True, kw_only=True)
class TaskScore:
    """One task."""

    accuracy: Estimate
    baseline_v1: float
    baseline_v2: float
    centered_v1: float
    centered_v2: float
    examples: int
    cropped_share: float
    """Examples whose prompt lost its beginning."""
    guess: Guess
    tokens_plain: int
    """Tokens to feed if every sequence were scored whole."""
    tokens_processed: int
    seconds: float

    def baseline(self, version: Version) -> float:
        """The random baseline of a version."""
        return {"v1": self.baseline_v1, "v2": self.baseline_v2}[version]


@dataclass(frozen=True, kw_only=True)
class CoreFigures:
    """All tasks; the means are None unless every task they need was asked."""

    core_v1: Estimate | None
    """The mean centered score, by the first version of the random baselines: the paper's."""
    manipulation_v1: Estimate | None
    guess_core_v1: Guess | None
    """CORE of guessing."""
    core_v2: Estimate | None
    manipulation_v2: Estimate | None
    guess_core_v2: Guess | None
    comparable: bool
    """Whether the result may stand beside published results."""
    not_comparable_because: tuple[str, ...]
    tokens_plain: int
    tokens_processed: int
    tasks: dict[str, TaskScore]

    def core(self, version: Version) -> Estimate | None:
        """The mean centered score by a version of the baselines."""
        return {"v1": self.core_v1, "v2": self.core_v2}[version]

    def manipulation(self, version: Version) -> Estimate | None:
        """The mean over the manipulation subset by a version of the baselines."""
        return {"v1": self.manipulation_v1, "v2": self.manipulation_v2}[version]

    def guess_core(self, version: Version) -> Guess | None:
        """CORE of guessing by a version of the baselines."""
        return {"v1": self.guess_core_v1, "v2": self.guess_core_v2}[version]


@dataclass(frozen=True, kw_only=True)
class CoreResult(CoreFigures, Result):
    """The tasks of CORE, answered by one subject."""

    decisions_differing: int | None
    """With every sequence scored whole; None where that was not measured."""
    settings: CoreSettings
