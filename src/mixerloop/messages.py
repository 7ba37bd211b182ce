"""Text for people on one line."""

import os
import re
import shlex
from pathlib import Path

LINES = {ord("\n"): None, ord("\t"): None}
"""Control characters that text of several lines has."""
COLOUR = re.compile(r"(\x1b\[(?:(?:[0-4]|[39][0-7])(?:;(?!m)|(?=m)))+m)")
"""Sequences that make text bold, dim, slanted, underlined or coloured, as in tables on terminals;
none that hides text or makes it blink."""
HARMFUL = re.compile("[\x00-\x08\x0b-\x1f\x7f-\x9f\u061c\u200e\u200f\u2028-\u202e\u2066-\u2069]")
"""Controls of terminals, and of the direction of text."""


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


def shown(text: str) -> str:
    """Text of one or more lines as a terminal may print it: what `printable` leaves, and colours.

    Escapes stand for whatever else moves the cursor, hides text or reorders it.
    """
    if text.isascii() and text.translate(LINES).isprintable():
        return text
    parts = COLOUR.split(text)  # every second part is a colour
    parts[::2] = [HARMFUL.sub(lambda found: printable(found[0]), part) for part in parts[::2]]
    return "".join(parts)


def shell_word(path: Path | str) -> str:
    """A path as a word of a command that can be pasted into a shell."""
    text = f"./{path}" if str(path).startswith("-") else str(path)
    if text.isprintable():
        return shlex.quote(text)
    escaped = (
        chr(byte) if 32 <= byte < 127 and chr(byte) not in "\\'" else f"\\x{byte:02x}"
        for byte in os.fsencode(text)
    )
    return f"$'{''.join(escaped)}'"


def shortened(text: str, most: int = 80) -> str:
    """The text, or its beginning if the text is longer than `most`."""
    return text if len(text) <= most else f"{text[: most - 3]}..."
