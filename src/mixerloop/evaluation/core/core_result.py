"""CORE as a result: accuracies, centered scores and their means, with intervals over examples."""

from dataclasses import dataclass, field

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
    """Fingerprint of the tokenizer."""
    bundle: str
    """Fingerprint of the evaluation bundle."""
    context: int
    """The largest number of tokens of a prompt."""
    limit: int | None
    """The number of examples of each task; None for all examples."""
    plain: bool
    """Whether every sequence is scored whole, without shared prefixes."""
    corrections: str | None = None
    """Fingerprint of the corrected answers; None for the answers of the bundle."""


@dataclass(frozen=True, kw_only=True)
class TaskScore:
    """The scores of one task, by both versions of the random baselines."""

    accuracy: Estimate
    baseline_v1: float
    baseline_v2: float
    centered_v1: float
    centered_v2: float
    examples: int
    cropped_share: float
    """The share of examples whose prompt lost its beginning."""
    guess: Guess
    tokens_plain: int
    """Tokens to process if every sequence were scored whole."""
    tokens_processed: int
    seconds: float

    def baseline(self, version: Version) -> float:
        """The random baseline by a version of the baselines."""
        return {"v1": self.baseline_v1, "v2": self.baseline_v2}[version]


@dataclass(frozen=True, kw_only=True)
class CoreFigures:
    """The scores of all tasks; a mean is None unless all of its tasks were answered."""

    core_v1: Estimate | None
    """The mean centered score, by the first version of the random baselines: the paper's."""
    manipulation_v1: Estimate | None
    guess_core_v1: Guess | None
    """The CORE score that guessing would have."""
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
        """The CORE score of guessing by a version of the baselines."""
        return {"v1": self.guess_core_v1, "v2": self.guess_core_v2}[version]


@dataclass(frozen=True, kw_only=True)
class CoreResult(CoreFigures, Result):
    """The tasks of CORE, answered by one subject."""

    decisions_differing: int | None
    """Decisions that differ if every sequence is scored whole; None if not measured."""
    settings: CoreSettings
    corrected: dict[str, int] = field(default_factory=dict)
    """Examples whose answer was corrected, by task."""
