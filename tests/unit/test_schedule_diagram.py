import xml.etree.ElementTree as ET
from pathlib import Path

import pytest

from mixerloop.config import preset
from mixerloop.model.accounting import account_model
from mixerloop.reports.schedule_diagram import WIDTH, draw
from mixerloop.schedule import LOOPS, full_loop, mixer_loop

SVG = "{http://www.w3.org/2000/svg}"
PICTURE = Path(__file__).parents[2] / "docs" / "images" / "loops.svg"


def boxes(svg, sublayer):
    return [r for r in ET.fromstring(svg).iter(f"{SVG}rect") if r.get("class") == sublayer][1:]


@pytest.mark.parametrize("name", LOOPS)
def test_every_occurrence_is_drawn_once_with_its_address(name):
    schedule = LOOPS[name](3, 4)
    svg = draw({name: schedule}, {"mixer": 1, "ffn": 2})
    drawn = [box.findtext(f"{SVG}title") for s in ("mixer", "ffn") for box in boxes(svg, s)]
    assert sorted(str(title) for title in drawn) == sorted(map(str, schedule))


def test_length_is_compute():
    svg = draw({"a": mixer_loop(2, 3), "b": full_loop(2, 3)}, {"mixer": 1, "ffn": 2})
    ends = [float(box.get("x") or 0) + float(box.get("width") or 0) for box in boxes(svg, "ffn")]
    assert max(ends) == pytest.approx(WIDTH, abs=1)
    assert ends[1] == pytest.approx(WIDTH * (3 + 2) / (3 * (1 + 2)), abs=1)


def test_names_are_escaped():
    ET.fromstring(draw({"<b>": full_loop(2, 2)}, {"mixer": 1, "ffn": 1}))


def test_the_readme_picture_is_the_one_the_code_draws():
    """`make picture` draws it again."""
    account = account_model(preset("15m"))
    loops = {name: LOOPS[name](6, 4) for name in ("no_loop", "mixer_loop", "full_loop")}
    assert PICTURE.read_text() == draw(loops, account.projection_macs())
