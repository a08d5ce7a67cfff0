"""Objects below a URL, through fsspec: each request is limited in time, and repeated if that may help.

All remote inputs, outputs, caches and shards are accessed here, so that errors, retries and range requests are handled
in one place. fsspec's caches of contents and listings are off: s3fs would answer from a listing that another process
has made obsolete.
"""

import logging
import os
import random
import re
import time
from collections import deque
from collections.abc import Callable, Iterator
from concurrent.futures import Future, ThreadPoolExecutor
from typing import Any, TypeVar
from urllib.parse import urlsplit

from ..errors import ConfigError, PacktrainError, StoreError
from .http_errors import cause_of, describe, http_status, is_missing, is_passing, is_refused, is_taken

ATTEMPTS = 8
"""Failures in a row after which a request is given up."""
FIRST_PAUSE, PAUSE_FACTOR, LONGEST_PAUSE = 0.2, 3.0, 20.0
"""Pauses between attempts, in seconds. Each is random, below a limit: 0.2 s at first, three times as much after each
failure, at most 20 s. Together they take about a minute at most.
"""
REQUEST_SECONDS = 60.0
"""Time limit of a request, plus one second for every mebibyte that it carries."""
CONNECT_SECONDS = 10.0
PIECE = 8 << 20
"""Bytes of one request when an object is read or sent in several."""
AHEAD = 4
"""How many such requests run at once; memory is bounded by the product."""
PART_TRIES = 4
"""Tries by the file system for one request among several, so that a fault does not cost the earlier pieces."""
_HTTP, _S3 = ("http", "https"), ("s3", "s3a")
_EXTRAS = {"s3": "'packtrain[s3]'", "s3a": "'packtrain[s3]'", "gs": "gcsfs", "gcs": "gcsfs", "az": "adlfs",
           "abfs": "adlfs", "abfss": "adlfs"}  # fmt: skip
_PASSWORD = re.compile("(?<=://)[^/@:]*:[^/@]*@")
_RANDOM = random.SystemRandom()  # independent of forks and of the user's seed
_PARENTS: list[Any] = []
"""File systems from before a fork, kept alive: on collection they would try to close on a missing event loop."""
_LOG = logging.getLogger(__name__)

Answer = TypeVar("Answer")


class RemoteError(StoreError):
    """A remote store failed; its own error is the cause."""


class RefusedError(RemoteError):
    """The store denied permission. Some stores do so for missing objects."""


class ShortError(RemoteError):
    """An object repeatedly gave the wrong number of bytes."""


class TakenError(Exception):
    """The name already exists. The object may be from this very call: a client may silently repeat a request whose
    answer was lost (aiohttp does, after an idle connection broke)."""


class CutError(Exception):
    """The answer had the wrong bytes, without an error."""


class Remote:
    """The objects below one URL. Opens nothing before its first use. Safe in threads and after a fork; pickled as its
    arguments.

    Args:
        url: any that fsspec knows.
        options: for fsspec: credentials, endpoints and the like.
        attempts: failures in a row after which a request is given up; by default `ATTEMPTS`.
        request_seconds: time limit of a request, by default `REQUEST_SECONDS`. Only asynchronous file systems (s3, gs,
            az, http) can be stopped.
        shared: use the file system that fsspec keeps for all such URLs of a process, with the credentials found first.
            For many objects of one request each: opening another for S3 takes a third of a second.
        resume: what to do after a temporary failure, for messages.

    Raises:
        ConfigError: on first use, fsspec does not know the protocol, or a package is missing for it.
    """

    def __init__(
        self,
        url: str,
        options: dict[str, Any] | None = None,
        *,
        attempts: int | None = None,
        request_seconds: float | None = None,
        shared: bool = False,
        resume: str = "run the same command again: it continues where it stopped",
    ) -> None:
        self.url, self.options, self.shared, self.resume = url, options, shared, resume
        self.attempts = ATTEMPTS if attempts is None else attempts
        self.request_seconds = REQUEST_SECONDS if request_seconds is None else request_seconds
        if self.attempts < 1:
            raise ConfigError(f"attempts={attempts}: at least one")
        self.protocol = urlsplit(url).scheme
        self.is_s3 = self.protocol in _S3
        self._knows_ranges = False
        self._opened: dict[int, tuple[int, Any, str]] = {}

    def where(self, name: str = "") -> str:
        """An object's address for messages: without passwords and signatures."""
        base = _PASSWORD.sub("", self._split(self.url)[0])
        return f"{base.rstrip('/')}/{name}" if name else base

    def ask(self, name: str, call: Callable[..., Answer], *, bytes: int = 0, parts: bool = False) -> Answer:
        """Make a request, and repeat it until it is answered.

        Args:
            name: of the object; "" for the URL itself.
            call: called with the file system, the path in it, and the time limit as a keyword for its methods.
            bytes: how many the request carries, for the time limit.
            parts: whether it makes several requests, which the file system may repeat one by one.

        Raises:
            FileNotFoundError: there is no such object.
            TakenError: the name already exists.
            RemoteError: it is not permitted, or failed `attempts` times in a row.
        """
        failures = 0
        while True:
            try:
                fs, path = self._path(name, PART_TRIES if parts else 1)
                return call(fs, path, self._limit(fs, bytes))
            except PacktrainError:
                raise
            except Exception as error:  # each file system of fsspec has its own errors
                failures += 1
                self._after(error, failures, name)

    def read(self, name: str, most: int | None = None) -> bytes:
        """A small object, whole. Raises what `ask` raises, and ShortError if a server of the web or of S3 sends more
        than `most`."""
        return self.ask(name, lambda fs, path, limit: self._get(fs, path, None, None, most, limit))

    def pieces(self, name: str, size: int, tried: Callable[[int], None] = lambda _: None) -> Iterator[bytes]:
        """The content of an object, in order; the next pieces are fetched meanwhile.

        Args:
            size: its expected bytes. Only these are read of a longer object.
            tried: called after each failure with the number of failures in a row.

        Raises:
            FileNotFoundError, RemoteError: see `ask`. ShortError if it is shorter than `size`.
        """
        fs, path = self._path(name, 1)

        def get(start: int) -> "Future[bytes]":
            end = min(start + PIECE, size)
            return pool.submit(self._get, fs, path, start, end, size, self._limit(fs, end - start))

        left, failures = deque(range(0, size, PIECE)), 0
        coming: deque[tuple[int, Future[bytes]]] = deque()
        # Connections of other file systems, such as sftp, may not be shared by threads.
        pool = ThreadPoolExecutor(AHEAD if _is_async(fs) else 1, thread_name_prefix="packtrain-pieces")
        try:
            while left or coming:
                # A server without ranges sends the whole object, which should not happen several times at once; and
                # several first requests would each open a client.
                while left and len(coming) < (AHEAD if self._knows_ranges else 1):
                    start = left.popleft()
                    coming.append((start, get(start)))
                start, future = coming.popleft()
                try:
                    data = _whole(future.result(), start, min(start + PIECE, size), size)
                except Exception as error:
                    failures += 1
                    tried(failures)
                    self._after(error, failures, name)
                    coming.appendleft((start, get(start)))
                    continue
                failures = 0
                yield data
                if len(data) > PIECE:
                    return
                self._knows_ranges = self._knows_ranges or size > PIECE
        finally:
            pool.shutdown(wait=False, cancel_futures=True)

    def filesystem(self, tries: int = 1) -> tuple[Any, str]:
        """This process's file system, and the path in it. Event loops do not survive a fork.

        Args:
            tries: of each request, by the file system itself.

        Raises:
            ConfigError: see the class.
        """
        kept = self._opened.get(tries)
        if kept is None or kept[0] != os.getpid():
            if kept is not None:
                _PARENTS.append(kept)
            try:
                from fsspec.core import url_to_fs

                fs, root = url_to_fs(self.url, skip_instance_cache=not self.shared, **self._fsspec_options())
            except ImportError as error:
                need = _EXTRAS.get(self.protocol, "what it names")
                raise ConfigError(
                    f"{self.where()}: a package is missing for {self.protocol}:// ({error}); pip install {need}"
                ) from error
            except (ValueError, TypeError) as error:
                raise ConfigError(
                    f"{self.where()} is not a URL that fsspec can read, or its options do not fit ({error}); check its "
                    "beginning, storage_options and fsspec's own configuration"
                ) from error
            fs.retries = tries  # of s3fs; others do not have it
            kept = self._opened[tries] = (os.getpid(), fs, root)
        return kept[1], kept[2]

    def __getstate__(self) -> dict[str, Any]:
        return {**self.__dict__, "_opened": {}}

    def _fsspec_options(self) -> dict[str, Any]:
        """The user's options, with our defaults."""
        given = dict(self.options or {})
        if self.protocol in _HTTP:
            import aiohttp

            limits = aiohttp.ClientTimeout(total=None, sock_connect=CONNECT_SECONDS, sock_read=self.request_seconds)
            given["client_kwargs"] = {"timeout": limits, "trust_env": True, **given.get("client_kwargs", {})}
            # A range of a compressed answer is not a range of the object.
            given["headers"] = {"Accept-Encoding": "identity", **given.get("headers", {})}
        if self.is_s3:
            # botocore's own retries would hide that a request was repeated, and so who created a name that is taken.
            config = {
                "connect_timeout": CONNECT_SECONDS,
                "read_timeout": self.request_seconds,
                "retries": {"max_attempts": 0},
            }
            given["config_kwargs"] = {**config, **given.get("config_kwargs", {})}
            given.setdefault("max_concurrency", 1)  # else every small object costs a request for its size
        if self.protocol in (*_HTTP, *_EXTRAS):  # others may refuse unknown options
            given.setdefault("use_listings_cache", False)
        return given

    def _after(self, error: Exception, failures: int, name: str) -> None:
        """Pause before the next attempt, or raise if there should be none."""
        error, original = cause_of(error), error
        where = self.where(name)
        if is_missing(error):
            raise FileNotFoundError(f"there is no {where}") from error
        if is_taken(error):
            raise TakenError(where) from error
        if is_refused(error):
            raise RefusedError(
                f"{where}: the store refuses ({describe(error)}); give credentials that may read, write and list "
                "there, by the environment or the configuration of fsspec"
            ) from error
        short = isinstance(error, CutError) or http_status(error) == 416
        if not short and not is_passing(error):
            raise RemoteError(
                f"{where} cannot be read or written: {describe(error)}; fix that, then {self.resume}"
            ) from error
        if failures < self.attempts:
            pause = _RANDOM.uniform(0, min(LONGEST_PAUSE, FIRST_PAUSE * PAUSE_FACTOR ** (failures - 1)))
            _LOG.info("%s: %s; again in %.1f s", where, describe(error), pause)
            # fsspec makes a reference cycle of an error and one of its frames. The traceback would add all callers'
            # frames to it, and keep everything they hold alive until the garbage collector runs.
            error.__traceback__ = original.__traceback__ = None
            time.sleep(pause)
            return
        if short:
            raise ShortError(
                f"{where} has the wrong length, in {failures} attempts: {describe(error)}; it was truncated, "
                f"or replaced: put it there again, then {self.resume}"
            ) from error
        raise RemoteError(
            f"{where} failed {failures} times in a row, last with: {describe(error)}; see that the store can be "
            f"reached from here and is not overloaded, then {self.resume}"
        ) from error

    def _get(
        self, fs: Any, path: str, start: int | None, end: int | None, most: int | None, limit: dict[str, float]
    ) -> bytes:
        """The bytes of a range, or of the whole object. Servers of the web and of S3 are not listened to beyond
        `most` bytes.
        """
        if self.protocol not in (*_HTTP, *_S3) or most is None:
            return bytes(fs.cat_file(path, start=start, end=end, **limit))
        from fsspec.asyn import sync

        get = _s3_bytes if self.is_s3 else _web_bytes
        return bytes(sync(fs.loop, get, fs, path, start, end, most, **limit))

    def _path(self, name: str, tries: int) -> tuple[Any, str]:
        fs, root = self.filesystem(tries)
        base, query = self._split(root)
        return fs, f"{base.rstrip('/')}/{name}{query}" if name else root

    def _split(self, address: str) -> tuple[str, str]:
        """The parts of an address before and after a name; the latter is the signature of a web address."""
        base, mark, query = address.partition("?") if self.protocol in _HTTP else (address, "", "")
        return base, mark + query

    def _limit(self, fs: Any, size: int) -> dict[str, float]:
        return {"timeout": self.request_seconds + size / 2**20} if _is_async(fs) else {}


async def _web_bytes(fs: Any, path: str, start: int | None, end: int | None, most: int) -> bytearray:
    """As fsspec's `cat_file` over HTTP, which reads whatever a server sends. Raises CutError beyond `most` bytes."""
    given = dict(fs.kwargs)
    if start is not None and end is not None:
        given["headers"] = {**given.get("headers", {}), "Range": f"bytes={start}-{end - 1}"}
    session = await fs.set_session()
    found = bytearray()
    async with session.get(fs.encode_url(path), **given) as answer:
        answer.raise_for_status()
        async for data in answer.content.iter_chunked(1 << 20):
            found += data
            if len(found) > most:
                raise CutError(f"received more than the {most:,} bytes that it may have")
    return found


async def _s3_bytes(fs: Any, path: str, start: int | None, end: int | None, most: int) -> bytearray:
    """As s3fs's `cat_file`, which reads whatever a server sends. Raises CutError beyond `most` bytes."""
    bucket, key, version = fs.split_path(path)
    asked = {"Bucket": bucket, "Key": key} | ({"VersionId": version} if version else {})
    if start is not None and end is not None:
        asked["Range"] = f"bytes={start}-{end - 1}"
    answer = await fs._call_s3("get_object", **asked)
    found = bytearray()
    try:
        while data := await answer["Body"].read(1 << 20):
            found += data
            if len(found) > most:
                raise CutError(f"received more than the {most:,} bytes that it may have")
    finally:
        answer["Body"].close()
    return found


def _is_async(fs: Any) -> bool:
    return bool(getattr(fs, "async_impl", False))


def _whole(data: bytes, start: int, end: int, size: int) -> bytes:
    """The bytes of the range, also cut out of the whole object if the server has no ranges."""
    if len(data) == end - start or (start == 0 and len(data) == size):
        return data
    raise CutError(
        f"received {len(data):,} bytes instead of the {end - start:,} from byte {start:,} on, of an object of "
        f"{size:,} bytes"
    )
