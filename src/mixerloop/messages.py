"""Text for people on one line."""

import re


def one_line(text: object, *, most: int = 1000) -> str:
    """A message on one line, at most `most` characters of it, without control characters.

    Line breaks become spaces. Control characters and whatever else a terminal would not print,
    such as the escape sequences in the name of a file, are shown as `repr` shows them.
    """
    joined = re.sub(r"\s*[\r\n]\s*", " ", str(text).strip())
    return shortened(printable(joined), most=most)


def printable(text: str) -> str:
    """The text with escapes in place of characters that no terminal prints, as `repr` has them."""
    if text.isprintable():
        return text
    return "".join(
        one if one.isprintable() else one.encode("unicode_escape").decode("ascii") for one in text
    )


def shortened(text: str, most: int = 80) -> str:
    """The text, or its beginning if the text is longer than `most`."""
    return text if len(text) <= most else f"{text[: most - 3]}..."
