"""The pages: links lead somewhere, commands exist, tutorials run, and the site needs no network."""

import importlib.util
import os
import re
import shlex
import subprocess
import sys
from pathlib import Path
from urllib.parse import unquote

import pytest
import yaml

import mixerloop as package
import needs
from command_line import environment, mixerloop
from mixerloop.cli.main import Verb
from mixerloop.cli.options import parse

ROOT = Path(__file__).parents[2]
DOCS = ROOT / "docs"
PAGES = {path.relative_to(DOCS).as_posix(): path.read_text() for path in DOCS.rglob("*.md")}
FILES = {f"docs/{name}": text for name, text in PAGES.items()} | {
    name: (ROOT / name).read_text() for name in ("README.md", "CONTRIBUTING.md", "CHANGELOG.md")
}
HISTORY = ("CHANGELOG.md", "docs/log.md")  # they may name files that are gone
TUTORIALS = sorted(name for name in PAGES if name.startswith("tutorials/") and "index" not in name)
CODE = re.compile(r"^( *)```.*?^\1```", re.DOTALL | re.MULTILINE)
FENCED = re.compile(r"^```(\w+)\n(.*?)^```", re.DOTALL | re.MULTILINE)
INLINE = re.compile(r"`([^`]+)`")
PICTURE = re.compile(r"!\[(.*?)\]\((.*?)\)", re.DOTALL)
LINK = re.compile(r"(?<!!)\[(?:[^\[\]]|\[[^\]]*\]\([^)]*\))*\]\(([^)\s]+)\)")
LOCAL = re.compile(r"(?:tests|benchmarks|src|docs)/[\w./-]+")
PLACEHOLDERS = {"SOURCE": "stdlib", "N": "1"}
FEWEST_WORDS = 5  # of the text that stands for a picture
FEWER = (  # as little training as shows that a tutorial works
    (r"--train\.steps \d+", "--train.steps 4"),
    (r"--until \d+", "--until 2"),
    (r"(?m)^steps = \d+", "steps = 4"),
    (r"(?m)^tokens = [\d_]+", "tokens = 20_000"),
    (r"(?m)^warmup_steps = \d+", "warmup_steps = 1"),
    (r"seeds = \[1, 2, 3\]", "seeds = [1]"),
)
PHONE = 390
WIDE_PAGES = ("index.html", "results/regime.html", "transport.html", "checks.html")


def prose(text):
    """A page without its code, in which brackets are no links."""
    return INLINE.sub("``", CODE.sub("", text))


def anchors(text):
    """The names of the headings of a page, as GitHub and the site make them."""
    headings = re.findall(r"^#+ (.*)$", CODE.sub("", text), re.MULTILINE)
    plain = [re.sub(r"[^\w\s-]", "", heading.lower()).strip() for heading in headings]
    return {heading.replace(" ", "-") for heading in plain}


@pytest.mark.parametrize("name", FILES)
def test_links_lead_to_files_and_headings(name):
    for target in LINK.findall(prose(FILES[name])) + [to for _, to in PICTURE.findall(FILES[name])]:
        if target.startswith(("https://", "http://")):
            continue
        path, _, anchor = unquote(target).partition("#")
        file = (ROOT / name).parent / path if path else ROOT / name
        assert file.exists(), target
        if anchor:
            assert anchor in anchors(file.read_text()), target


@pytest.mark.parametrize("name", sorted(FILES.keys() - HISTORY))
def test_files_of_the_repository_that_a_page_names_exist(name):
    for code in INLINE.findall(CODE.sub("", FILES[name])):
        if LOCAL.fullmatch(code) and "NAME" not in code:
            assert (ROOT / code).exists(), code


@pytest.mark.parametrize("name", FILES)
def test_pictures_have_a_text_that_says_what_they_show(name):
    for text, _ in PICTURE.findall(CODE.sub("", FILES[name])):
        assert len(text.split()) >= FEWEST_WORDS, text


def pages_in(nav):
    for item in nav:
        for entry in item.values() if isinstance(item, dict) else [item]:
            yield from [entry] if isinstance(entry, str) else pages_in(entry)


def test_every_page_is_in_the_navigation():
    nav = yaml.safe_load((ROOT / "mkdocs.yml").read_text())["nav"]
    assert sorted(pages_in(nav)) == sorted(PAGES)


@pytest.mark.parametrize("folder", ["", "results/", "decisions/", "tutorials/"])
def test_the_front_page_of_a_folder_links_to_every_page_in_it(folder):
    linked = {target.partition("#")[0] for target in LINK.findall(PAGES[f"{folder}index.md"])}
    here = {path.name for path in (DOCS / folder).glob("*.md")} - {"index.md"}
    assert here <= linked


def test_the_reference_has_every_public_name():
    named = re.findall(r"^::: mixerloop\.(\w+)$", PAGES["reference.md"], re.MULTILINE)
    assert sorted(named) == sorted(set(package.__all__) - {"__version__"})


def commands(text):
    """The words after `mixerloop` of each command in a page; brackets of usage are left out."""
    for language, block in FENCED.findall(text):
        for line in block.replace("\\\n", " ").splitlines() if language == "sh" else ():
            if re.match(r"(?:\w+=\S+ )*mixerloop |torchrun .*-m mixerloop ", line):
                words = shlex.split(line, comments=True)
                words = [word.strip("[]") for word in words[words.index("mixerloop") + 1 :]]
                end = words.index(">") if ">" in words else len(words)
                yield [PLACEHOLDERS.get(word, word) for word in words[:end]]


@pytest.mark.parametrize("name", FILES)
def test_the_verbs_and_options_of_commands_exist(name):
    for words in commands(FILES[name]):
        if "--section.key" not in words:  # stands for any key of a config
            parse(Verb, words, about="")


def test_there_are_commands_in_the_pages():
    assert sum(len(list(commands(text))) for text in FILES.values()) > 80


@pytest.mark.parametrize("name", ["schedules.md", "generate.md"])
def test_the_python_of_a_page_runs(name):
    (example,) = [block for language, block in FENCED.findall(PAGES[name]) if language == "python"]
    exec(example, {})


@pytest.mark.parametrize(
    ("name", "command"),
    [
        ("tutorials/first-model.md", ["describe", "nano-hops"]),
        ("schedules.md", ["describe", "110m", "--schedule", "12x(A2 F)"]),
    ],
)
def test_a_table_of_costs_is_what_the_command_prints(name, command):
    (table,) = [block for _, block in FENCED.findall(PAGES[name]) if "runs runs" in block]
    assert mixerloop(*command).stdout.startswith(table)


# --- spelling -----------------------------------------------------------------------------------


@pytest.fixture(scope="module")
def spelling():
    spec = importlib.util.spec_from_file_location("spelling", DOCS / "spelling.py")
    assert spec is not None
    assert spec.loader is not None
    module = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(module)
    return module


def test_the_word_list_is_sorted_and_each_word_is_used(spelling):
    words = (DOCS / "words.txt").read_text().split()
    assert words == sorted(set(words), key=lambda word: (word.lower(), word))
    used = {word for text in FILES.values() for _, word in spelling.words_of(text)}
    used |= {word[:1].lower() + word[1:] for word in used}
    assert set(words) <= used


def test_spelling_is_british_and_code_is_not_checked(tmp_path):
    (tmp_path / "page.md").write_text(
        "We normalise `teh` behaviour, labelled [here](teh.md):\n"
        "normalize teh colors\n```\nteh\n```\n"
    )
    done = subprocess.run(
        [sys.executable, DOCS / "spelling.py", "page.md"],
        cwd=tmp_path,
        capture_output=True,
        text=True,
    )
    assert done.returncode == 1
    assert done.stdout == "page.md:2: normalize\npage.md:2: teh\npage.md:2: colors\n"


# --- tutorials ----------------------------------------------------------------------------------


def fewer(text):
    for pattern, replacement in FEWER:
        text = re.sub(pattern, replacement, text)
    return text


def running_mean():
    """The mixer of docs/extending.md as add-a-mixer.md has it saved: without its last two lines."""
    section = PAGES["extending.md"].partition("\n## A mixer\n")[2]
    return FENCED.search(section)[2].partition("\nhybrid = ")[0]  # pyright: ignore[reportOptionalSubscript]


@pytest.mark.slow
@pytest.mark.parametrize("name", TUTORIALS)
def test_the_commands_of_a_tutorial_run(name, tmp_path):
    script = ["set -euo pipefail"]
    (tmp_path / "running_mean.py").write_text(running_mean())
    for language, block in FENCED.findall(PAGES[name]):
        if language == "toml":
            file = re.match(r"# (\w+\.toml)\n", block)
            assert file is not None, "the first line names the file"
            (tmp_path / file[1]).write_text(fewer(block))
        elif language == "sh":
            script.append(fewer(block))
    variables = environment(tmp_path)
    variables["PATH"] = f"{Path(sys.executable).parent}:{variables['PATH']}"
    done = subprocess.run(
        ["bash", "-c", "\n".join(script)],
        cwd=tmp_path,
        env=variables,
        capture_output=True,
        text=True,
    )
    assert done.returncode == 0, done.stdout + done.stderr


# --- the site -----------------------------------------------------------------------------------


@pytest.fixture(scope="module")
def site(tmp_path_factory):
    needs.package("mkdocs").or_skip()
    place = tmp_path_factory.mktemp("site")
    done = subprocess.run(
        [sys.executable, "-m", "mkdocs", "build", "--strict", "--quiet", "--site-dir", place],
        cwd=ROOT,
        env=os.environ | {"NO_MKDOCS_2_WARNING": "1"},
        capture_output=True,
        text=True,
    )
    assert done.returncode == 0, done.stderr
    assert done.stdout + done.stderr == ""
    return place


@pytest.mark.slow
def test_the_site_is_built_without_a_warning(site):
    assert {path.relative_to(site).as_posix() for path in site.rglob("*.html")} >= {
        f"{name.removesuffix('.md')}.html" for name in PAGES
    }
    assert not list(site.rglob("*.py"))


@pytest.fixture
def quiet(opened):
    """A function that opens a page and waits until it loads nothing."""

    def quiet(file, **options):
        page, heard = opened(file, **options)
        page.wait_for_load_state("networkidle")
        return page, heard

    return quiet


@pytest.mark.slow
def test_a_search_from_disk_finds_the_page(site, quiet):
    page, heard = quiet(site / "index.html")
    page.locator(".md-search__input").click()
    page.keyboard.type("marginal ITR")
    first = page.locator(".md-search-result__link").first
    first.wait_for()
    assert "/transport.html" in first.get_attribute("href")
    first.click()
    page.wait_for_url("**/transport.html*")
    assert page.locator("h1").inner_text().startswith("Transport")
    assert heard == []


@pytest.mark.slow
def test_a_phone_need_not_scroll_sideways(site, quiet):
    for number, name in enumerate(WIDE_PAGES):
        scheme, colours = [("light", "default"), ("dark", "slate")][number % 2]
        page, heard = quiet(site / name, width=PHONE, scheme=scheme)
        assert page.evaluate("document.documentElement.scrollWidth") <= PHONE, name
        assert page.locator("body").get_attribute("data-md-color-scheme") == colours
        pictures = page.locator("article img")
        assert pictures.evaluate_all("all => all.every(one => one.naturalWidth)"), name
        assert heard == []


@pytest.mark.slow
def test_a_reader_can_switch_to_the_dark_page(site, quiet):
    page, heard = quiet(site / "index.html")
    body = page.locator("body")
    seen = []
    for _ in range(3):
        page.locator("label.md-header__button[for^=__palette]:not([hidden])").click()
        seen.append(body.get_attribute("data-md-color-scheme"))
    assert set(seen) == {"default", "slate"}
    assert heard == []
