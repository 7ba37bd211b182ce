import gzip
import json
import lzma
import subprocess
import sys

import pyarrow
import pyarrow.parquet
import pytest
import zstandard

from mixerloop.data.sources import SourceFile, climbmix, standard_library, text_files

TEXTS = ["one\ntwo", "  Ünïcödé 漢字 \n", "", "last"]
LINES = "".join(json.dumps({"text": text, "id": n}) + "\n" for n, text in enumerate(TEXTS))


def documents(path):
    return list(SourceFile(path, path.name).documents())


def write_parquet(path, texts, column="text"):
    table = pyarrow.table({column: texts})
    pyarrow.parquet.write_table(table, path, row_group_size=2)


@pytest.mark.parametrize(
    ("name", "compress"),
    [
        ("a.jsonl", lambda data: data),
        ("a.jsonl.gz", gzip.compress),
        ("a.jsonl.xz", lzma.compress),
        ("a.jsonl.zst", lambda data: zstandard.ZstdCompressor().compress(data)),
    ],
)
def test_every_compression_gives_the_same_documents(tmp_path, name, compress):
    path = tmp_path / name
    path.write_bytes(compress(LINES.encode()))
    assert documents(path) == TEXTS
    path.write_bytes(compress(LINES.encode())[:-20])
    if name != "a.jsonl":
        with pytest.raises(ValueError, match=f"{name}, after line .*: damaged or cut off"):
            documents(path)


def test_parquet_gives_its_text_column_row_group_by_row_group(tmp_path):
    path = tmp_path / "a.parquet"
    write_parquet(path, [*TEXTS, None])
    assert documents(path) == [*TEXTS, ""]
    write_parquet(path, TEXTS, column="body")
    with pytest.raises(ValueError, match=r"a\.parquet: has no column called text"):
        documents(path)
    write_parquet(path, [1, 2])
    with pytest.raises(ValueError, match=r"a\.parquet: its column text holds int64"):
        documents(path)
    path.write_bytes(path.read_bytes()[:-10])
    with pytest.raises(ValueError, match=r"a\.parquet: not a readable parquet file"):
        documents(path)


@pytest.mark.parametrize(
    ("name", "content", "message"),
    [
        ("a.txt", b"fine\xff", r"a\.txt: not UTF-8 at byte 4"),
        ("a.jsonl", b'{"text": "a"}\n{"text": "\xff"}\n', r"a\.jsonl, line 2: not UTF-8"),
        ("a.jsonl", b'{"text": "a"}\n{"text": \n', r"a\.jsonl, line 2: not JSON"),
        ("a.jsonl", b'{"body": "a"}\n', r'a\.jsonl, line 1: not an object with a "text"'),
        ("a.jsonl", b"[1]\n", r'a\.jsonl, line 1: not an object with a "text"'),
        ("a.jsonl", b'\n\n{"text": 3}\n', r'a\.jsonl, line 3: not an object with a "text"'),
        ("a.jsonl", b'{"text": "\\ud800"}\n', r"a\.jsonl, document 1: holds half of a surrogate"),
        ("a.jsonl", b'{"text": ' + b"9" * 5000 + b"}", r"a\.jsonl, line 1: not JSON"),
        ("a.jsonl", b"[" * 100_000, r"a\.jsonl, line 1: not JSON"),
        ("a.jsonl.xz", b"not xz", r"a\.jsonl\.xz, after line 0: damaged"),
        ("a.csv", b"", r"a\.csv: unknown kind of file; known: \.txt"),
    ],
)
def test_what_cannot_be_read_is_named_with_its_place(tmp_path, name, content, message):
    path = tmp_path / name
    path.write_bytes(content)
    with pytest.raises(ValueError, match=message):
        documents(path)


def test_a_text_file_is_one_document(tmp_path):
    path = tmp_path / "a.txt"
    path.write_bytes(b"\xef\xbb\xbfone\r\n\n two")
    assert documents(path) == ["one\r\n\n two"]


def test_folders_are_searched_in_a_fixed_order(tmp_path):
    for name in ("b/2.txt", "b/1.txt", "a.jsonl", "ignored.md"):
        (tmp_path / name).parent.mkdir(exist_ok=True)
        (tmp_path / name).write_text("")
    names = [file.name for file in text_files([tmp_path], []).files]
    root = tmp_path.name
    assert names == [f"{root}/a.jsonl", f"{root}/b/1.txt", f"{root}/b/2.txt"]


def test_files_that_are_not_there_or_not_told_apart_are_refused(tmp_path):
    with pytest.raises(ValueError, match="gone: there is no such file or folder"):
        text_files([tmp_path / "gone"], [])
    (tmp_path / "empty").mkdir()
    with pytest.raises(ValueError, match=r"empty: no file in it ends in \.txt"):
        text_files([tmp_path / "empty"], [])
    for folder in ("x", "y"):
        (tmp_path / folder).mkdir()
        (tmp_path / folder / "a.txt").write_text("")
    assert len(text_files([tmp_path / "x"], [tmp_path / "y"]).files) == 2
    with pytest.raises(ValueError, match=r"would both be called a\.txt"):
        text_files([tmp_path / "x" / "a.txt", tmp_path / "y" / "a.txt"], [])


def test_the_standard_library_is_real_text_without_tests():
    files = standard_library().files
    names = [file.name for file in files]
    assert len(names) > 500
    assert "argparse.py" in names
    assert "json/decoder.py" in names
    assert not any({"test", "tests", "site-packages"} & set(name.split("/")) for name in names)
    assert sum(file.path.stat().st_size for file in files) > 8_000_000


def test_climbmix_is_some_shards_and_the_held_out_one(tmp_path):
    for number in (3, 4, 6542):
        write_parquet(tmp_path / f"shard_{number:05d}.parquet", [f"text {number}"])
    files = climbmix(range(3, 5), tmp_path).files
    assert [(file.name, file.split) for file in files] == [
        ("shard_00003.parquet", "train"),
        ("shard_00004.parquet", "train"),
        ("shard_06542.parquet", "held_out"),
    ]
    with pytest.raises(ValueError, match=r"shard_00005\.parquet: missing"):
        climbmix(range(5, 6), tmp_path)
    with pytest.raises(ValueError, match="training shards are 0 to 6541; 6542 is held out"):
        climbmix(range(6541, 6543), tmp_path)


def test_any_flipped_bit_in_an_archive_is_named_or_harmless(tmp_path):
    path = tmp_path / "a.jsonl.gz"
    content = gzip.compress(LINES.encode())
    for place in range(len(content)):
        broken = bytearray(content)
        broken[place] ^= 16
        path.write_bytes(broken)
        try:
            assert documents(path) == TEXTS
        except ValueError as error:
            assert "a.jsonl.gz" in str(error)


def test_a_download_that_fails_says_so_in_one_line(tmp_path):
    """The real client, told that there is no network."""
    done = subprocess.run(
        [
            *(sys.executable, "-m", "mixerloop", "data", "prepare", "climbmix"),
            *("--shards", "0", "--vocab-size", "300", "--out", str(tmp_path / "out")),
        ],
        env={"HF_HUB_OFFLINE": "1", "HF_HOME": str(tmp_path / "cache"), "PATH": ""},
        capture_output=True,
        text=True,
        check=False,
    )
    assert done.returncode == 2
    (line,) = done.stderr.strip().splitlines()
    assert "shard_00000.parquet: cannot be downloaded from karpathy/climbmix-400b-shuffle" in line
    assert "--from" in line
    assert not (tmp_path / "out").exists()
