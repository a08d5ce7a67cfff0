"""Objects behind a URL, through fsspec: one request at a time, in bounded time, tried again where that may help.

None of fsspec's caches of contents or listings has a part in it: s3fs answers from a listing that it remembers, and
that another process has made untrue since.
"""

import os
import random
import re
import time
from collections.abc import Callable, Iterator
from concurrent.futures import Future, ThreadPoolExecutor
from typing import Any, TypeVar
from urllib.parse import urlsplit

from ..schemas.answers import describe, is_missing, is_passing, is_refused, is_taken
from ..schemas.errors import ConfigError, StoreError

ATTEMPTS = 8
"""Failures in a row after which a request is given up."""
FIRST_PAUSE, PAUSE_FACTOR, LONGEST_PAUSE = 0.2, 3.0, 20.0
"""Seconds: the pause after the first failure is random below 0.2 s, after the next below 0.6 s, and so on; nearly a
minute in all at the most."""
REQUEST_SECONDS = 60.0
"""After which a request counts as failed; one that carries much has a second more for every mebibyte."""
CONNECT_SECONDS = 10.0
PIECE = 8 << 20
"""Bytes of one request when an object is read, or sent, in several."""
AHEAD = 4
"""Such requests at once: memory is bounded by their product."""
_PART_TRIES = 4
"""Of one piece of an upload, by the file system itself: a fault should not cost the pieces before it."""
_EXTRAS = {"s3": "'packtrain[s3]'", "s3a": "'packtrain[s3]'", "gs": "gcsfs", "gcs": "gcsfs", "az": "adlfs",
           "abfs": "adlfs", "abfss": "adlfs"}  # fmt: skip
_PASSWORD = re.compile("(?<=://)[^/@:]*:[^/@]*@")
_RANDOM = random.SystemRandom()  # shared neither with forks nor with what a person has seeded
_PARENTS: list[Any] = []
"""File systems from before a fork. Were they collected, they would try to close on an event loop that is gone."""

Answer = TypeVar("Answer")


class TakenError(Exception):
    """There is something under the name already. It may be what this very call put: a client may repeat a request
    whose answer was lost, and say nothing of it (aiohttp does, where an idle connection broke)."""


class Objects:
    """The objects below one URL. Safe in threads and after a fork; pickles as the URL.

    Raises:
        ConfigError: fsspec does not know the protocol, or a package is missing for it. When it is first used.
    """

    def __init__(self, url: str) -> None:
        self.url = url.rstrip("/")
        self._opened: dict[int, tuple[int, Any, str]] = {}

    @property
    def protocol(self) -> str:
        """Such as `s3`."""
        return urlsplit(self.url).scheme

    @property
    def is_s3(self) -> bool:
        """Whether it speaks the protocol of S3."""
        return self.protocol in ("s3", "s3a")

    def where(self, name: str) -> str:
        """An object's address for messages, without passwords."""
        base = _PASSWORD.sub("", self.url)
        return f"{base}/{name}" if name else base

    def ask(self, name: str, call: Callable[..., Answer], *, bytes: int = 0, parts: bool = False) -> Answer:
        """Make a request until it is answered.

        Args:
            name: of the object; "" for all of them.
            call: is given the file system, the path in it, and the time limit as a keyword for its methods.
            bytes: that the request carries, for the time limit.
            parts: it is an upload of several requests, which the file system may repeat one by one.

        Raises:
            FileNotFoundError: there is no such object.
            TakenError: the condition that the name be free was not met.
            StoreError: it is not permitted, or failed `ATTEMPTS` times.
        """
        for failures in range(1, ATTEMPTS + 1):
            fs, root = self._open(_PART_TRIES if parts else 1)
            limit = {"timeout": REQUEST_SECONDS + bytes / 2**20} if getattr(fs, "async_impl", False) else {}
            try:
                return call(fs, f"{root}/{name}" if name else root, limit)
            except Exception as error:  # each file system of fsspec has errors of its own
                where = self.where(name)
                if is_missing(error):
                    raise FileNotFoundError(f"there is no {where}") from error
                if is_taken(error):
                    raise TakenError(where) from error
                if is_refused(error):
                    raise StoreError(
                        f"{where}: the store refuses ({describe(error)}); give credentials that may read, write and "
                        "list there, by the environment or the configuration of fsspec"
                    ) from error
                if not is_passing(error):
                    raise StoreError(
                        f"{where}: the store answers {describe(error)}; mend that, and run the same command again"
                    ) from error
                if failures == ATTEMPTS:
                    raise StoreError(
                        f"{where} failed {failures} times in a row, last with: {describe(error)}; see that the store "
                        "can be reached from here and is not overloaded, then run the same command again: it goes on "
                        "where it stopped"
                    ) from error
                # fsspec makes a cycle of an error and a frame of its own; by the traceback all callers' would hang on.
                error.__traceback__ = None
            time.sleep(_RANDOM.uniform(0, min(LONGEST_PAUSE, FIRST_PAUSE * PAUSE_FACTOR ** (failures - 1))))
        raise AssertionError("the last attempt returns or raises")

    def pieces(self, name: str, size: int) -> Iterator[bytes]:
        """What an object holds, in its order; the next ones are on their way meanwhile.

        Raises:
            FileNotFoundError, StoreError: see `ask`. Also where it is shorter than `size`.
        """

        def piece(start: int) -> bytes:
            end = min(start + PIECE, size)

            def call(fs: Any, path: str, limit: dict[str, float]) -> bytes:
                data: bytes = fs.cat_file(path, start=start, end=end, **limit)
                if len(data) != end - start:
                    raise ConnectionError(f"{len(data):,} bytes came where {end - start:,} were asked for")
                return data

            return self.ask(name, call, bytes=end - start)

        starts = iter(range(0, size, PIECE))
        if size <= PIECE:
            yield from map(piece, starts)
            return
        coming: list[Future[bytes]] = []
        with ThreadPoolExecutor(AHEAD, thread_name_prefix="packtrain-pieces") as pool:
            try:
                for start in starts:
                    coming.append(pool.submit(piece, start))
                    if len(coming) == AHEAD:
                        yield coming.pop(0).result()
                while coming:
                    yield coming.pop(0).result()
            finally:
                for future in coming:
                    future.cancel()

    def __getstate__(self) -> str:
        return self.url

    def __setstate__(self, url: str) -> None:
        self.__init__(url)  # type: ignore[misc]

    def _open(self, tries: int) -> tuple[Any, str]:
        """The file system, and the path in it. One of this process's own: event loops do not outlive a fork."""
        kept = self._opened.get(tries)
        if kept is None or kept[0] != os.getpid():
            if kept is not None:
                _PARENTS.append(kept)
            options: dict[str, Any] = {"use_listings_cache": False, "skip_instance_cache": True}
            if self.is_s3:
                # botocore's own attempts would hide which request was repeated, and so whose a name is that is taken.
                options["config_kwargs"] = {
                    "connect_timeout": CONNECT_SECONDS,
                    "read_timeout": REQUEST_SECONDS,
                    "retries": {"max_attempts": 0},
                }
                options["max_concurrency"] = 1  # else every small object is asked for its size before it is read
            try:
                from fsspec.core import url_to_fs

                fs, root = url_to_fs(self.url, **options)
            except ImportError as error:
                need = _EXTRAS.get(self.protocol, "what it names")
                raise ConfigError(
                    f"{self.where('')}: a package is missing for {self.protocol}:// ({error}); pip install {need}"
                ) from None
            except (ValueError, TypeError) as error:
                raise ConfigError(
                    f"{self.where('')} is no URL that fsspec can use: {error}; check its beginning, and fsspec's own "
                    "configuration"
                ) from None
            fs.retries = tries  # of s3fs; others have none of this name
            kept = os.getpid(), fs, root.rstrip("/")
            self._opened[tries] = kept
        return kept[1], kept[2]
