"""Turn the examples of a task into questions, and score a model's answers."""

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
LEAST_EXAMPLES = 2  # a single example gives no interval


@dataclass(frozen=True)
class AskedTask:
    """A task with the examples to answer, in the order of their numbers."""

    task: Task
    examples: list[Example]
    limited: bool
    """Whether the task has more examples than these."""


def asked(bundle: Bundle, task: Task, *, limit: int | None) -> AskedTask:
    """Take the first examples of a task after the shuffle; shots are drawn from them too."""
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
    """Encode the prompts of some examples of a task."""
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
    """Score some examples of a task, and decide on an answer to each."""
    encoded = questions(asking, numbers, encode=encode, context=context)
    scores = scorer.score([of_example.candidates for of_example in encoded])
    return [
        answer(number, asking.examples[number], of_example, option_scores)
        for number, of_example, option_scores in zip(numbers, encoded, scores, strict=True)
    ]


def blocks(num_examples: int) -> list[range]:
    """Divide examples into blocks; the answers of a block are saved together."""
    starts = range(0, num_examples, BLOCK_EXAMPLES)
    return [range(start, min(start + BLOCK_EXAMPLES, num_examples)) for start in starts]
