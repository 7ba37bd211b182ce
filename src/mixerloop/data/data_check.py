"""Checks the files of prepared data in the background, while training reads them already.

Training reads windows of a shard in any order, so a shard cannot be hashed on the way. A thread
hashes one file after another instead, at a small share of a core. The trainer waits for the thread,
which then runs at full speed, before it writes its first checkpoint.
"""

import hashlib
import threading
import time
from collections.abc import Callable, Sequence

from mixerloop.files import SealedFile

BLOCK_BYTES = 2**22
SHARE = 0.1
"""Share of a core that the thread uses until the trainer waits for the result."""


class DataCheck:
    """Hashes files in the background; the first damaged or missing file ends the check."""

    def __init__(self, files: Sequence[SealedFile]) -> None:
        self.files = files
        self.num_checked = 0
        self.damage: ValueError | None = None
        """A file whose content is not what was prepared."""
        self.unreadable: OSError | ValueError | None = None
        """A file that could not be read: nothing is known about its content."""
        self._hurry, self._closed = threading.Event(), threading.Event()
        self._thread = threading.Thread(target=self._run, name="data-check", daemon=True)
        self._thread.start()

    @property
    def is_complete(self) -> bool:
        """Whether every file was hashed and is as it was prepared."""
        return self.num_checked == len(self.files)

    def finish(self, *, stopped: Callable[[], bool]) -> None:
        """Hash the remaining files at full speed; raises if a file is damaged or unreadable.

        Once `stopped` is true this returns, whether the check is complete or not.
        """
        self._hurry.set()
        while self._thread.is_alive() and not stopped():
            self._thread.join(0.1)
        if problem := self.damage or self.unreadable:
            raise problem

    def close(self) -> None:
        """Stop the thread; files that were not hashed yet stay unchecked."""
        self._closed.set()
        self._hurry.set()
        self._thread.join()

    def content_sha256(self) -> str:
        """Identity of what was read: the hash over the hashes of all files, in order."""
        assert self.is_complete
        lines = "".join(f"{file.path.name} {file.sha256}\n" for file in self.files)
        return hashlib.sha256(lines.encode()).hexdigest()

    def _run(self) -> None:
        for file in self.files:
            try:
                file.check_size()
                digest = self._sha256(file)
            except (OSError, ValueError) as error:
                if file.path.is_file() and isinstance(error, ValueError):
                    self.damage = error
                else:
                    self.unreadable = error
                return
            if digest is None:
                return
            if digest != file.sha256:
                self.damage = file.damaged()
                return
            self.num_checked += 1

    def _sha256(self, file: SealedFile) -> str | None:
        """The hash of a file; None if the check was closed before its end."""
        digest, block = hashlib.sha256(), memoryview(bytearray(BLOCK_BYTES))
        with file.path.open("rb", buffering=0) as content:
            started = time.thread_time()
            while size := content.readinto(block):
                digest.update(block[:size])
                if self._closed.is_set():
                    return None
                spent = time.thread_time() - started
                self._hurry.wait(spent * (1 / SHARE - 1))
                started = time.thread_time()
        return digest.hexdigest()
