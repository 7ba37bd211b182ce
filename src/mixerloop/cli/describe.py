"""`mixerloop describe`: the cost of a size under each schedule, beside the paper's figures."""

from dataclasses import dataclass, field
from pathlib import Path
from typing import Annotated

import tyro

from mixerloop.files import json_text, write_file
from mixerloop.ownership import check_replaceable, drop_link

HELP = """Parameters, compute, state and activations of a size under each schedule.

examples:
  mixerloop describe 15m
  mixerloop describe 110m --schedule "12x(A2 F)" --schedule "4x(A F) 2x(4x(A F)) 4x(A F)"
  mixerloop describe nano-hops
  mixerloop describe RUN --json
  mixerloop describe 15m --picture loops.svg
"""
PICTURES = (".svg", ".png")


@dataclass(frozen=True, kw_only=True)
class Describe:
    """The options of `mixerloop describe`."""

    size: tyro.conf.Positional[str]
    """A preset such as nano or 15m, a config of mixerloop configs, a config file ending in .toml, a
    run, or an exported folder."""
    schedule: Annotated[list[str], tyro.conf.UseAppendAction] = field(default_factory=list)
    """A schedule to add to the five named loops; may be repeated."""
    picture: Path | None = None
    """Also draw the schedules into this file, which ends in .svg or .png."""
    overwrite: bool = False
    """Replace an existing picture."""
    json: bool = False
    """Print JSON for programs."""

    def run(self) -> None:
        """Count parameters, compute and memory, and print a table or JSON."""
        from mixerloop.description import describe, description_text

        if self.picture is not None and self.picture.suffix not in PICTURES:
            raise ValueError(f"{self.picture}: a picture ends in {' or '.join(PICTURES)}")
        described = describe(self.size, schedules=self.schedule)
        if self.picture is not None:
            _write_picture(self.picture, described.picture(), overwrite=self.overwrite)
        if self.json:
            print(json_text(described.to_json()), end="")
            return
        if Path(self.size).is_dir():
            print(f"{self.size} runs {described.schedule}")
        print(description_text(described))


def _write_picture(path: Path, svg: str, *, overwrite: bool) -> None:
    """Write a picture in the format of its ending; an identical picture may exist."""
    content = svg.encode()
    if path.suffix == ".png":
        from mixerloop.reports.drawing import png_of

        content = png_of(svg)
    check_replaceable(
        path,
        lambda file: file.read_bytes() == content,
        overwrite=overwrite,
        otherwise="exists and is another picture",
    )
    drop_link(path)
    write_file(path, content)
