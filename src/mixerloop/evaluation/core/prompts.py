"""The text of a prompt: the shots, then the question, concatenated.

White space is part of the data. It is stripped only where the protocol requires it.
"""

import random
from collections.abc import Sequence
from typing import TypeVar

from mixerloop.evaluation.core.tasks import Example, LanguageModeling, MultipleChoice

T = TypeVar("T")
SHUFFLE_SEED = 1337
SHOTS_SEED = 1234
BETWEEN = "\n\n"


def shuffled(examples: Sequence[T]) -> list[T]:
    """Shuffle examples; their numbers follow this order, and a limit takes the first of them."""
    order = list(examples)
    random.Random(SHUFFLE_SEED).shuffle(order)  # noqa: S311 - the protocol's generator
    return order


def shots_of(index: int, *, num_examples: int, num_shots: int) -> list[int]:
    """The shots of example `index`, in their order, drawn from all other examples."""
    generator = random.Random(SHOTS_SEED + index)  # noqa: S311
    drawn = generator.sample(range(num_examples - 1), num_shots)
    return [shot + (shot >= index) for shot in drawn]


def prompts(example: Example, *, shots: Sequence[Example], delimiter: str) -> tuple[str, ...]:
    """One text per option; for language modelling, the text without and with its continuation."""
    before = "".join(answered(shot, delimiter) + BETWEEN for shot in shots)
    if isinstance(example, LanguageModeling):
        whole = before + answered(example, delimiter)
        return whole.removesuffix(example.continuation).rstrip(), whole
    if isinstance(example, MultipleChoice):
        return tuple(f"{before}{example.query}{delimiter}{choice}" for choice in example.choices)
    end = delimiter + example.continuation
    return tuple(f"{before}{context}{end}" for context in example.context_options)


def answered(example: Example, delimiter: str) -> str:
    """The text of an example with its right answer, as shown in a shot."""
    if isinstance(example, LanguageModeling):
        return f"{example.context.strip()}{delimiter}{example.continuation}"
    if isinstance(example, MultipleChoice):
        return f"{example.query}{delimiter}{example.choices[example.gold]}"
    return f"{example.context_options[example.gold]}{delimiter}{example.continuation}"
