"""Files that are written without loss and sealed by hashes."""

import errno
import json
import os
import signal
import threading
from pathlib import Path

import pytest

from mixerloop import config as configs
from mixerloop.data.tokenizer_files import open_tokenizer
from mixerloop.files import (
    check_space,
    file_sha256,
    locked,
    naming,
    new_folder,
    read_json,
    read_sealed,
    readable_size,
    write_file,
    write_sealed,
)
from mixerloop.interop.conversion import import_run
from mixerloop.studies.study import read_study

VALUE = {"name": "nll", "value": 1.25, "interval": [1.0, 1.5], "none": None, "text": "é\n"}


def test_a_sealed_file_reads_back_as_it_was_written(tmp_path):
    write_sealed(tmp_path / "x.json", VALUE)
    assert read_sealed(tmp_path / "x.json") == VALUE


def test_no_flipped_bit_of_a_sealed_file_passes(tmp_path):
    path = tmp_path / "x.json"
    write_sealed(path, VALUE)
    whole = path.read_bytes()
    for place in range(len(whole)):
        for bit in range(8):
            damaged = bytearray(whole)
            damaged[place] ^= 1 << bit
            path.write_bytes(damaged)
            with pytest.raises(ValueError, match=r"x\.json: "):
                read_sealed(path)


@pytest.mark.parametrize("content", [{}, [], None, {"value": 1}, {"sha256": None}, "text"])
def test_json_without_a_seal_is_rejected(tmp_path, content):
    (tmp_path / "x.json").write_text(json.dumps(content))
    with pytest.raises(ValueError, match=r"x\.json: damaged"):
        read_sealed(tmp_path / "x.json")


@pytest.mark.parametrize(
    ("num_bytes", "text"),
    [
        (0, "0 bytes"),
        (4096, "4,096 bytes"),
        (123_456, "121 KiB"),
        (12_345, "12.1 KiB"),
        (200 * 2**20, "200 MiB"),
        (20 * 2**30, "20.0 GiB"),
    ],
)
def test_sizes_are_readable(num_bytes, text):
    assert readable_size(num_bytes) == text


def test_errors_in_a_new_folder_name_the_path_that_the_user_gave(tmp_path):
    with pytest.raises(OSError, match="No space") as full, new_folder(tmp_path / "out") as new:
        raise OSError(errno.ENOSPC, "No space left on device", str(new / "a"))
    assert full.value.filename == str(tmp_path / "out/a")
    with pytest.raises(OSError, match="No space") as full, new_folder(tmp_path / "out"):
        raise OSError(errno.ENOSPC, "No space left on device")
    assert full.value.filename == str(tmp_path / "out")
    with (
        pytest.raises(ValueError, match=rf"^{tmp_path}/out/b: wrong$"),
        new_folder(tmp_path / "out") as new,
    ):
        raise ValueError(f"{new / 'b'}: wrong")
    assert not list(tmp_path.iterdir())


def test_the_error_of_a_full_disk_names_the_file():
    full = pytest.raises(OSError, match="No space left on device: '/dev/full/x'")
    with full, naming(Path("/dev/full/x")), Path("/dev/full").open("wb", buffering=0) as file:
        file.write(b"x")


def test_the_space_of_a_folder_that_does_not_exist_yet_is_checked(tmp_path):
    check_space(tmp_path / "a/b", 1)
    with pytest.raises(ValueError, match="a/b: the disk is too full"):
        check_space(tmp_path / "a/b", 2**60)


def test_a_sealed_file_that_is_replaced_while_it_is_read_is_never_called_damaged(tmp_path):
    path = tmp_path / "sealed.json"
    write_sealed(path, {"number": 0})
    ended = threading.Event()

    def replace_again_and_again():
        number = 0
        while not ended.is_set():
            number += 1
            temporary = tmp_path / "next.json"
            write_sealed(temporary, {"number": number})
            temporary.replace(path)

    writer = threading.Thread(target=replace_again_and_again)
    writer.start()
    try:
        for _ in range(2000):
            assert read_sealed(path).keys() == {"number"}
    finally:
        ended.set()
        writer.join()


def test_an_error_without_a_number_keeps_its_message():
    with pytest.raises(OSError, match="not a model of this library"), naming(Path("x")):
        raise OSError("not a model of this library")


def import_beside(path):
    """Import the folder of a transformers config."""
    import_run(path.parent, path.parent / "run")


@pytest.mark.parametrize(
    ("name", "read"),
    [
        ("x.json", read_json),
        ("x.json", file_sha256),
        ("mine.toml", configs.load),
        ("mine.toml", read_study),
        ("tokenizer.model", open_tokenizer),
        ("tokenizer.json", open_tokenizer),
        ("words", open_tokenizer),
        ("config.json", import_beside),
        ("lock", lambda path: locked(path.parent).__enter__()),
    ],
)
def test_a_file_that_never_ends_is_named_at_once(tmp_path, name, read):
    def too_late(*_):
        pytest.fail("waits for a FIFO")

    before = signal.signal(signal.SIGALRM, too_late)
    os.mkfifo(tmp_path / name)
    signal.alarm(10)
    try:
        with pytest.raises(ValueError, match=rf"{name}: not a file"):
            read(tmp_path / name)
    finally:
        signal.alarm(0)
        signal.signal(signal.SIGALRM, before)


def test_a_link_that_leads_back_to_itself_is_not_replaced(tmp_path):
    link = tmp_path / "link"
    link.symlink_to(link)
    with pytest.raises(ValueError, match="leads back to itself"):
        write_file(link, "text")
    assert link.is_symlink()
