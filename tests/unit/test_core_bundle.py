"""The bundle, however it is packed, and what is refused."""

import io
import os
import shutil
import tarfile
import zipfile
from pathlib import Path

import pytest

import needs
from mixerloop import paper
from mixerloop.evaluation.core import bundle as bundles
from mixerloop.evaluation.core.bundle import CORRECTED, VARIABLE, Bundle, find_bundle
from mixerloop.evaluation.core.metric import all_centered, core, guess

HERE = Path(__file__).parents[1] / "data" / "core_bundle"


@pytest.fixture
def folder(tmp_path):
    return Path(shutil.copytree(HERE, tmp_path / "bundle"))


def zipped(folder, path, *, inside="eval_bundle/"):
    with zipfile.ZipFile(path, "w") as archive:
        for file in sorted(folder.rglob("*")):
            archive.write(file, inside + file.relative_to(folder).as_posix())
    return path


def tarred(folder, path):
    with tarfile.open(path, "w:xz") as archive:
        archive.add(folder, "eval_bundle")
    return path


def test_folder_zip_and_tar_are_the_same_bundle(folder, tmp_path):
    packed = [
        folder,
        zipped(folder, tmp_path / "a.zip"),
        zipped(folder, tmp_path / "flat.zip", inside=""),
        tarred(folder, tmp_path / "a.tar.xz"),
    ]
    opened = [Bundle(path) for path in packed]
    (fingerprint,) = {one.fingerprint() for one in opened}
    for one in opened:
        assert [task.label for task in one.tasks] == ["colours", "pronouns", "endings"]
        assert [len(one.examples(task)) for task in one.tasks] == [8, 8, 8]
        assert one.baselines_v1 == {"colours": 0.25, "pronouns": 0.5, "endings": 0.0}
    (folder / "eval_data/made/endings.jsonl").write_text('{"context": "a", "continuation": "b"}\n')
    changed = Bundle(folder).fingerprint()
    assert changed != fingerprint
    baselines = folder / "eval_meta_data.csv"
    baselines.write_text(baselines.read_text().replace("25", "26"))
    assert Bundle(folder).fingerprint() not in (changed, fingerprint)


def test_tasks_are_chosen_by_label_in_the_bundles_order(folder):
    bundle = Bundle(folder)
    assert [task.label for task in bundle.choose(("endings", "colours"))] == ["colours", "endings"]
    with pytest.raises(ValueError, match=r"no task 'color' in .*; did you mean colours"):
        bundle.choose(("color",))


def test_a_missing_task_file_is_named_when_it_is_needed(folder):
    (folder / "eval_data/made/endings.jsonl").unlink()
    bundle = Bundle(folder)
    assert len(bundle.choose(("colours",))) == 1
    with pytest.raises(ValueError, match=r"no eval_data/made/endings\.jsonl in this bundle"):
        bundle.choose(())


@pytest.mark.parametrize(
    ("row", "named"),
    [
        ("endings,made,much", "eval_meta_data.csv, line 4: no label with a random baseline"),
        ("other,made,0", "eval_meta_data.csv has no random baseline of endings"),
        ("endings,made,100", "eval_meta_data.csv has no random baseline of endings"),
    ],
)
def test_a_missing_or_broken_baseline_is_named(folder, row, named):
    path = folder / "eval_meta_data.csv"
    path.write_text(path.read_text().replace("endings,made,0", row))
    with pytest.raises(ValueError, match=named):
        Bundle(folder)


def test_a_dataset_outside_the_bundle_is_refused(folder):
    path = folder / "core.yaml"
    path.write_text(path.read_text().replace("made/endings", "../../secret"))
    bundle = Bundle(folder)
    with pytest.raises(ValueError, match=r"endings: '../../secret.jsonl' lies outside the bundle"):
        bundle.choose(())


@pytest.mark.parametrize(
    "name", ["../evil.jsonl", "/etc/evil.jsonl", "eval_bundle/../../evil", "..\\evil", "C:/evil"]
)
def test_an_archive_that_leaves_its_folder_is_refused(folder, tmp_path, name):
    with zipfile.ZipFile(zipped(folder, tmp_path / "a.zip"), "a") as archive:
        archive.writestr(name, "evil")
    with pytest.raises(ValueError, match=r"a\.zip: holds .*, which is no file inside it"):
        Bundle(tmp_path / "a.zip")
    with tarfile.open(tmp_path / "a.tar", "w") as archive:
        archive.add(folder, "eval_bundle")
        archive.addfile(tarfile.TarInfo(name), io.BytesIO())
    with pytest.raises(ValueError, match=r"a\.tar: holds .*, which is no file inside it"):
        Bundle(tmp_path / "a.tar")
    assert {path.name for path in tmp_path.iterdir()} == {"bundle", "a.zip", "a.tar"}


def test_links_in_an_archive_are_refused(folder, tmp_path):
    with tarfile.open(tmp_path / "a.tar", "w") as archive:
        archive.add(folder, "eval_bundle")
        link = tarfile.TarInfo("eval_bundle/link.jsonl")
        link.type, link.linkname = tarfile.SYMTYPE, "/etc/passwd"
        archive.addfile(link)
    with pytest.raises(ValueError, match=r"holds 'eval_bundle/link\.jsonl'"):
        Bundle(tmp_path / "a.tar")
    with zipfile.ZipFile(zipped(folder, tmp_path / "a.zip"), "a") as archive:
        info = zipfile.ZipInfo("eval_bundle/link.jsonl")
        info.external_attr = 0o120777 << 16
        archive.writestr(info, "/etc/passwd")
    with pytest.raises(ValueError, match=r"holds 'eval_bundle/link\.jsonl'"):
        Bundle(tmp_path / "a.zip")


def test_an_archive_that_unpacks_to_too_much_is_refused(folder, tmp_path, monkeypatch):
    monkeypatch.setattr(bundles, "MOST_BYTES", 1000)
    with pytest.raises(ValueError, match="unpacks to more than"):
        Bundle(zipped(folder, tmp_path / "a.zip"))


@pytest.mark.parametrize("content", [b"", b"PK\x03\x04 cut off", b"\xfd7zXZ\x00 cut off"])
def test_what_is_no_archive_is_refused(tmp_path, content):
    path = tmp_path / "broken.zip"
    path.write_bytes(content)
    with pytest.raises(ValueError, match=r"broken\.zip: cannot be unpacked"):
        Bundle(path)


def test_a_cut_off_archive_is_refused(folder, tmp_path):
    path = tarred(folder, tmp_path / "a.tar.xz")
    path.write_bytes(path.read_bytes()[:-200])
    with pytest.raises(ValueError, match=r"a\.tar\.xz: cannot be unpacked"):
        Bundle(path)


def test_a_folder_or_archive_without_tasks_is_refused(tmp_path):
    with pytest.raises(ValueError, match=r"no core\.yaml in this folder"):
        Bundle(tmp_path)
    with zipfile.ZipFile(tmp_path / "a.zip", "w") as archive:
        archive.writestr("readme.txt", "hello")
    with pytest.raises(ValueError, match=r"no core\.yaml in this archive"):
        Bundle(tmp_path / "a.zip")
    with pytest.raises(ValueError, match=r"none\.zip: there is no such bundle"):
        Bundle(tmp_path / "none.zip")


@pytest.fixture
def elsewhere(monkeypatch, tmp_path):
    """No bundle in the environment, and a cache of the test's own."""
    monkeypatch.delenv(VARIABLE, raising=False)
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path / "cache"))
    return tmp_path


def test_the_bundle_that_is_given_goes_before_the_environments(folder, elsewhere, monkeypatch):
    monkeypatch.setenv(VARIABLE, str(folder))
    assert find_bundle(None).path == folder
    other = zipped(folder, elsewhere / "b.zip")
    assert find_bundle(other).path == other


def test_the_public_bundle_is_downloaded_once_and_kept_only_if_it_is_one(folder, elsewhere):
    fetched = []

    def download(url, to):
        fetched.append(url)
        zipped(folder, to)

    for _ in range(2):
        assert len(find_bundle(None, download=download).tasks) == 3
    assert fetched == [bundles.PUBLIC]
    bundles.cache().unlink()

    def astray(url, to):
        to.write_bytes(b"no bundle")

    with pytest.raises(ValueError, match="cannot be unpacked"):
        find_bundle(None, download=astray)
    assert list(bundles.cache().parent.iterdir()) == []


def test_without_a_network_the_fix_is_named(elsewhere):
    def unreachable(url, to):
        raise OSError("no route to host")

    with pytest.raises(ValueError, match="name a file or folder: bundle, or "):
        find_bundle(None, download=unreachable)
    assert list(bundles.cache().parent.iterdir()) == []


# --- the real one --------------------------------------------------------------------------------


@pytest.fixture(scope="module")
def real():
    needs.BUNDLE.or_skip()
    return Bundle(Path(os.environ[VARIABLE]))


@pytest.mark.slow
@pytest.mark.data
def test_the_real_bundle_has_the_22_tasks_of_the_table(real):
    labels = [task.label for task in real.tasks]
    assert len(labels) == 22
    assert set(labels) == {*paper.CORE_UPPER, *paper.CORE_MANIPULATION}
    assert sum(len(real.examples(task)) for task in real.tasks) == 91_037


@pytest.mark.data
def test_the_second_baselines_are_the_first_with_three_corrections(real):
    corrected = {label: percent / 100 for label, percent in CORRECTED.items()}
    assert real.baselines_v2 == real.baselines_v1 | corrected


@pytest.mark.data
def test_always_saying_invalid_scores_43_on_cs_algorithms(real):
    (task,) = real.choose(("bigbench_cs_algorithms",))
    assert guess(real.examples(task)).majority == pytest.approx(0.43, abs=0.005)


@pytest.mark.data
def test_the_traps_are_in_the_real_data(real):
    (piqa,), (arc,), (hard,) = (
        real.choose((label,)) for label in ("piqa", "arc_easy", "arc_challenge")
    )
    begins = [
        one
        for one in real.examples(piqa)
        if one.choices[0].startswith(one.choices[1]) or one.choices[1].startswith(one.choices[0])
    ]
    assert len(begins) == 5
    ties = [
        one
        for task in (arc, hard)
        for one in real.examples(task)
        if len(set(one.choices)) < len(one.choices)
    ]
    assert len(ties) == 11
    (language,) = real.choose(("bigbench_language_identification",))
    assert all(one.query.endswith(" ") for one in real.examples(language))


@pytest.mark.data
def test_the_accuracies_printed_for_gpt2_give_its_printed_core(real):
    """The bundle carries a table of somebody's GPT-2; the metric must agree with it."""
    content = real._read("openai-community-gpt2.csv")
    rows = [line.split(",") for line in content.decode().splitlines()[1:]]
    printed = {row[0].strip(): row[1:] for row in rows}
    (_, mean) = printed.pop("CORE")
    accuracies = {label: float(accuracy) for label, (accuracy, _) in printed.items()}
    found = all_centered(accuracies, real.baselines_v1)
    for label, (_, score) in printed.items():
        assert found[label] == pytest.approx(float(score), abs=2e-6)
    assert core(found) == pytest.approx(float(mean), abs=1e-6)
