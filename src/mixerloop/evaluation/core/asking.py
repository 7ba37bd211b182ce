"""Ask a model the examples of a task."""

from collections.abc import Sequence
from dataclasses import dataclass

from mixerloop.evaluation.core.answers import Answer, answer
from mixerloop.evaluation.core.bundle import Bundle
from mixerloop.evaluation.core.prompts import prompts, shots_of, shuffled
from mixerloop.evaluation.core.questions import Encode, Question, question
from mixerloop.evaluation.core.tasks import Example, Task
from mixerloop.evaluation.scorer import Scorer

BLOCK_EXAMPLES = 512
LEAST_CONTEXT = 2
LEAST_EXAMPLES = 2  # of one example there is no interval


@dataclass(frozen=True)
class AskedTask:
    """A task with the examples that are asked, in the order that numbers them."""

    task: Task
    examples: list[Example]
    limited: bool
    """Whether the task has more."""


def asked(bundle: Bundle, task: Task, *, limit: int | None) -> AskedTask:
    """The first examples of a task after the shuffle; the shots are drawn from these too."""
    examples = shuffled(bundle.examples(task))
    chosen = examples[:limit]
    least = max(LEAST_EXAMPLES, task.num_shots + 1)
    if len(chosen) < least:
        raise ValueError(
            f"{task.label}: {len(chosen)} examples are too few for an interval and for "
            f"{task.num_shots} others to show before each; take {least} or more"
        )
    return AskedTask(task, chosen, limited=len(chosen) < len(examples))


def questions(
    asking: AskedTask, numbers: Sequence[int], *, encode: Encode, context: int
) -> list[Question]:
    """Some examples of a task as token ids."""
    task, examples = asking.task, asking.examples
    texts = []
    for number in numbers:
        shots = shots_of(number, num_examples=len(examples), num_shots=task.num_shots)
        texts.append(
            prompts(
                examples[number],
                shots=[examples[shot] for shot in shots],
                delimiter=task.delimiter,
            )
        )
    encoded = iter(encode([text for of_example in texts for text in of_example]))
    return [
        question(task.kind, [next(encoded) for _ in of_example], context=context)
        for of_example in texts
    ]


def answers(
    asking: AskedTask, numbers: Sequence[int], *, scorer: Scorer, encode: Encode, context: int
) -> list[Answer]:
    """A model's answers to some examples of a task."""
    tokens = questions(asking, numbers, encode=encode, context=context)
    scores = scorer.score([one.candidates for one in tokens])
    return [
        answer(number, asking.examples[number], one, of_one)
        for number, one, of_one in zip(numbers, tokens, scores, strict=True)
    ]


def blocks(num_examples: int) -> list[range]:
    """The examples that are answered and kept together."""
    starts = range(0, num_examples, BLOCK_EXAMPLES)
    return [range(start, min(start + BLOCK_EXAMPLES, num_examples)) for start in starts]
