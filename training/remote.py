"""Files of an object store or web server, through fsspec: what may pass is tried again, what will not is said at once.

Files are read by ranges, some at once: a fault costs one range, memory stays bounded, and latency is paid in parallel.
None of fsspec's caches of contents or listings has a part in it.
"""

import logging
import os
import random
import re
import time
from collections import deque
from collections.abc import Callable
from concurrent.futures import Future, ThreadPoolExecutor
from importlib import import_module
from typing import Any
from urllib.parse import urlsplit

from ..schemas.answers import describe, http_status, is_missing, is_passing, is_refused
from ..schemas.errors import ConfigError, InputError, IntegrityError, StoreError
from .part import Part

PIECE = 8 << 20
"""Bytes of one request."""
AHEAD = 4
"""Requests at once."""
FIRST_PAUSE, PAUSE_FACTOR, LONGEST_PAUSE = 0.1, 4.0, 30.0
"""Seconds: the pause after the first failure is random below 0.1 s, after the next below 0.4 s, and so on."""
_PASSWORD = re.compile("(?<=://)[^/@:]*:[^/@]*@")
_LOG = logging.getLogger(__name__)
_PARENTS: list[Any] = []
"""File systems from before a fork. Were they collected, they would try to close on an event loop that is gone."""
_RANDOM = random.SystemRandom()  # neither shared with forks, nor a part of what the person has seeded


class CutError(Exception):
    """A range has other than the bytes that were asked for, though nothing complained."""


class Remote:
    """The files below one URL. Safe in threads and after a fork; pickles as its arguments.

    Args:
        where: a URL that fsspec knows.
        options: for fsspec: credentials, endpoints and the like.
        attempts: failures in a row, without a byte between them, after which it gives up.
        request_seconds: after which a request counts as failed. Only asynchronous file systems, as those of s3, gs,
            az and http are, can be stopped.

    Raises:
        ConfigError: fsspec does not know the protocol, or a package is missing for it.
    """

    def __init__(
        self, where: str, options: dict[str, Any] | None = None, *, attempts: int = 6, request_seconds: float = 60.0
    ) -> None:
        if attempts < 1:
            raise ConfigError(f"attempts={attempts}: at least one")
        self.where, self.options, self.attempts, self.request_seconds = where, options, attempts, request_seconds
        self._knows_ranges = False
        self._opened: tuple[int, Any, str] | None = None
        self._open()

    def url(self, name: str) -> str:
        """A file's address for messages: without passwords and signatures."""
        base = _PASSWORD.sub("", self._split(self.where)[0])
        return f"{base.rstrip('/')}/{name}"

    def read(self, name: str) -> bytes:
        """A small file, whole.

        Raises:
            FileNotFoundError: there is none.
            InputError: it may not be read.
            StoreError: the store did not answer, or with failures only.
        """
        failures = 0
        while True:
            fs, path = self._path(name)
            try:
                return bytes(fs.cat_file(path, **self._timeout(fs)))
            except Exception as error:
                if is_missing(error):
                    raise FileNotFoundError(f"there is no {self.url(name)}") from error
                failures += 1
                self._after(error, failures, name)

    def download(self, name: str, part: Part, sha256: str, note: Callable[[int], None] = lambda _: None) -> None:
        """Fill a part of the cache with a file.

        Args:
            note: is told how often it was tried.

        Raises:
            InputError: there is no such file, or it may not be read.
            IntegrityError: it has another content than it should.
            StoreError: the store did not answer, or with failures only; or the cache's disk is full.
        """
        for attempt in range(1, self.attempts + 1):
            part.restart()
            note(attempt)
            self._copy(name, part, attempt, note)
            if part.sha256 == sha256:
                return
            _LOG.warning("%s came damaged, in attempt %d of %d", self.url(name), attempt, self.attempts)
        raise IntegrityError(
            f"{self.url(name)}: its {part.size:,} bytes should have the SHA-256 {sha256}, but what came in "
            f"{self.attempts} attempts last had {part.sha256}; the file is damaged, or has been replaced since its "
            "manifest was written: copy the dataset there again"
        )

    def __getstate__(self) -> tuple[str, dict[str, Any] | None, int, float]:
        return self.where, self.options, self.attempts, self.request_seconds

    def __setstate__(self, state: tuple[str, dict[str, Any] | None, int, float]) -> None:
        where, options, attempts, request_seconds = state
        self.__init__(where, options, attempts=attempts, request_seconds=request_seconds)  # type: ignore[misc]

    def _copy(self, name: str, part: Part, attempt: int, note: Callable[[int], None]) -> None:
        """Append all ranges in their order, while the next ones are on their way."""
        fs, path = self._path(name)
        size, failures = part.size, 0

        def ask(start: int) -> "Future[bytes]":
            return pool.submit(fs.cat_file, path, start=start, end=min(start + PIECE, size), **self._timeout(fs))

        left = deque(range(0, size, PIECE))
        coming: deque[tuple[int, Future[bytes]]] = deque()
        # Connections of other file systems, such as sftp, may not be shared by threads.
        pool = ThreadPoolExecutor(AHEAD if _is_async(fs) else 1, thread_name_prefix="packtrain-ranges")
        try:
            while left or coming:
                # A server that knows no ranges gives the whole file, which should not come several times at once.
                while left and len(coming) < (AHEAD if self._knows_ranges else 1):
                    start = left.popleft()
                    coming.append((start, ask(start)))
                start, future = coming.popleft()
                try:
                    data = _whole(future.result(), start, min(start + PIECE, size), size)
                except Exception as error:
                    failures += 1
                    note(attempt + failures)
                    self._after(error, failures, name)
                    coming.appendleft((start, ask(start)))
                    continue
                failures = 0
                part.write(data)
                if len(data) > PIECE:
                    return
                self._knows_ranges = self._knows_ranges or size > PIECE
        finally:
            pool.shutdown(wait=False, cancel_futures=True)

    def _after(self, error: Exception, failures: int, name: str) -> None:
        """Pause before the next attempt; or raise, when there is no sense in one."""
        url = self.url(name)
        if is_missing(error):
            raise InputError(
                f"there is no {url}; the dataset was moved, or not copied whole: name where it is now"
            ) from error
        if is_refused(error):
            raise InputError(
                f"{url} may not be read ({describe(error)}); give credentials in storage_options or the environment. "
                "Some stores say this of a file that is not there"
            ) from error
        short = isinstance(error, CutError) or http_status(error) == 416
        if not short and not is_passing(error):
            raise StoreError(f"{url} cannot be read: {describe(error)}; mend that, then resume") from error
        if failures < self.attempts:
            pause = _RANDOM.uniform(0, min(LONGEST_PAUSE, FIRST_PAUSE * PAUSE_FACTOR ** (failures - 1)))
            _LOG.info("%s: %s; again in %.1f s", url, describe(error), pause)
            # fsspec makes a cycle of an error and a frame of its own. By the traceback, the frames of all callers would
            # hang on it, and what they hold would be held until the garbage collector comes.
            error.__traceback__ = None
            time.sleep(pause)
            return
        if short:
            raise IntegrityError(
                f"{url} has another length than its manifest says, in {failures} attempts: {describe(error)}; the "
                "file was cut, or replaced: copy the dataset there again"
            ) from error
        raise StoreError(
            f"{url} failed {failures} times in a row, last with: {describe(error)}; see that the store can be "
            "reached from here and is not overloaded, then resume"
        ) from error

    def _path(self, name: str) -> tuple[Any, str]:
        fs, root = self._open()
        base, query = self._split(root)
        return fs, f"{base.rstrip('/')}/{name}{query}"

    def _split(self, address: str) -> tuple[str, str]:
        """What a name is put behind, and what comes after it: the signature of a web address."""
        if urlsplit(self.where).scheme not in ("http", "https"):
            return address, ""
        base, mark, query = address.partition("?")
        return base, mark + query

    def _open(self) -> tuple[Any, str]:
        """The file system, and the path in it. One of this process's own: event loops do not outlive a fork."""
        if self._opened is None or self._opened[0] != os.getpid():
            if self._opened is not None:
                _PARENTS.append(self._opened)
            options = dict(self.options or {})
            protocol = urlsplit(self.where).scheme
            if protocol in ("http", "https"):  # a range of a compressed answer would be no range of the file
                options["headers"] = {"Accept-Encoding": "identity", **options.get("headers", {})}
            try:
                found = import_module("fsspec.core").url_to_fs(self.where, skip_instance_cache=True, **options)
            except ImportError as error:
                raise ConfigError(
                    f"{self.url('')}: a package is missing for {protocol}:// ({error}); install it"
                ) from error
            except (ValueError, TypeError) as error:
                raise ConfigError(
                    f"{self.url('')} or its storage_options cannot be used: {error}; check both"
                ) from error
            self._opened = (os.getpid(), *found)
        return self._opened[1], self._opened[2]

    def _timeout(self, fs: Any) -> dict[str, float]:
        return {"timeout": self.request_seconds} if _is_async(fs) else {}


def _is_async(fs: Any) -> bool:
    return bool(getattr(fs, "async_impl", False))


def _whole(data: bytes, start: int, end: int, size: int) -> bytes:
    """The bytes, if they are those of the range, or the whole file from a server that knows no ranges."""
    if len(data) == end - start or (start == 0 and len(data) == size):
        return data
    raise CutError(
        f"{len(data):,} bytes came where the {end - start:,} from {start:,} on were asked for; it should have "
        f"{size:,} in all"
    )
