"""Check the spelling of the Markdown files: British English, and the words of docs/words.txt.

    python docs/spelling.py README.md docs

Code, addresses and words with digits are not checked. The dictionary is the American one of spylls.
A British word is right if the dictionary has its American spelling, which itself is rejected.
"""

import re
import sys
from collections.abc import Iterable, Iterator
from pathlib import Path

from spylls.hunspell import Dictionary

WORDS = Path(__file__).with_name("words.txt")
NOT_PROSE = (
    re.compile(r"^( *)```.*?^\1```", re.DOTALL | re.MULTILINE),  # fenced code
    re.compile(r"``.+?``|`[^`]+`", re.DOTALL),
    re.compile(r"(?<=\])\([^)]*\)"),  # where a link leads
    re.compile(r"https?://\S+"),
    re.compile(r"[\w./-]+\.[a-z]{2,5}\b"),  # a file
    re.compile(r"^::: .*$", re.MULTILINE),  # a name of the reference
)
WORD = re.compile(r"(?<![\w@])[A-Za-z]+(?:'[A-Za-z]+)*(?![\w@])")
AMERICAN = re.compile(
    r".*[^s]iz(?:e[sd]?|ing|ations?)|analyz.*|(?:behavi|col|fav|hon|neighb)or.*|centers?|centered",
    re.IGNORECASE,
)
NOT_AMERICAN = {"size", "sizes", "sized", "prize", "prizes", "seize", "seizes"}
TO_AMERICAN = (
    (r"is(e[sd]?|ers?|ing|ations?)$", r"iz\1"),
    (r"ys(e[sd]?|ers?|ing)$", r"yz\1"),
    (r"our", "or"),
    (r"ll(ed|ers?|ing)$", r"l\1"),
    (r"tre(s?)$", r"ter\1"),
    (r"tred$", "tered"),
)


def main() -> None:
    """Print each unknown word with its place; exit with 1 if there is any."""
    known = read_words()
    dictionary = Dictionary.from_files("en_US")
    verdicts: dict[str, bool] = {}
    wrong = 0
    for path in markdown_files(map(Path, sys.argv[1:])):
        for line, word in words_of(path.read_text(encoding="utf-8")):
            if word not in verdicts:
                verdicts[word] = is_right(word, known, dictionary)
            if not verdicts[word]:
                print(f"{path}:{line}: {word}")
                wrong += 1
    if wrong:
        sys.exit(f"{wrong} unknown words; mend them, or add them to {WORDS.name}, which is sorted")


def read_words() -> set[str]:
    """The words of the project, which the dictionary lacks."""
    return set(WORDS.read_text(encoding="utf-8").split())


def markdown_files(places: Iterable[Path]) -> Iterator[Path]:
    """Markdown files, and those of folders."""
    for place in places:
        yield from sorted(place.rglob("*.md")) if place.is_dir() else [place]


def words_of(text: str) -> Iterator[tuple[int, str]]:
    """The words of a Markdown text that are prose, each with the number of its line."""
    for pattern in NOT_PROSE:
        text = pattern.sub(lambda match: "\n" * match[0].count("\n") + " ", text)
    for number, line in enumerate(text.splitlines(), start=1):
        for match in WORD.finditer(line):
            yield number, re.sub(r"'s$", "", match[0])


def is_right(word: str, known: set[str], dictionary: Dictionary) -> bool:
    """Whether a word is of the project, or in the dictionary and not American."""
    if word in known or word[:1].lower() + word[1:] in known or len(word) == 1:
        return True
    if AMERICAN.fullmatch(word) and word.lower() not in NOT_AMERICAN:
        return False
    american = [re.sub(british, theirs, word) for british, theirs in TO_AMERICAN]
    return any(dictionary.lookup(spelling) for spelling in (word, *american))


if __name__ == "__main__":
    main()
