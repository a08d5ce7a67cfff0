"""Objects below a URL: of S3, Google Cloud and Azure, which are read and written, of the web, and of other places that
fsspec knows, which are only read.

All remote inputs, outputs, caches and shards are accessed here. Every request is limited in time, repeated if that may
help, and a broken download continues where it broke.
"""

import logging
import random
import re
import time
from collections.abc import Callable, Iterator
from functools import partial
from pathlib import Path
from typing import Any, TypeVar
from urllib.error import HTTPError
from urllib.parse import urlsplit

from ..errors import IntegrityError, PacktrainError, StoreError
from ..escape import without_secrets
from ..fingerprint import new_hasher
from .remote_clients import (
    FIRST_PAUSE_SECONDS,
    PAUSE_FACTOR,
    STORE_PROTOCOLS,
    filesystem,
    is_bucket_usable,
    open_bucket,
)
from .web import WEB_PROTOCOLS, EndlessAnswerError, open_web

MAX_ATTEMPTS = 8
"""Failures in a row after which a request is given up."""
# Before the next attempt comes a pause of random length: at most 0.2 s after the first failure, 0.6 s after the second,
# then 1.8, 5.4, 16.2, 20 and 20 s. So many machines that failed together do not come back together.
MAX_PAUSE_SECONDS = 20.0
"""Longest pause between two attempts."""
CHUNK_BYTES = 1 << 20
"""Bytes that are read at once."""
MAX_READ_BYTES = 1 << 30
"""Most bytes of an object that `read` returns: a manifest of a billion rows has a tenth of it."""
RUN_AGAIN = "run the same command again: it continues where it stopped"
"""What messages advise after a failure, unless a caller knows better."""
_STATUS_IN_MESSAGE = re.compile(r"status code: (\d{3})")
_RANDOM = random.SystemRandom()  # independent of forks and of the user's seed
_LOG = logging.getLogger(__name__)
Answer = TypeVar("Answer")


class RemoteError(StoreError):
    """A remote store failed; its own error is the cause."""


class TakenError(Exception):
    """The name exists already, perhaps by this very call: an answer may have been lost."""


class Remote:
    """The objects below one URL. Opens nothing before its first use. Safe in threads; pickled as its arguments.

    Args:
        url: of an object or of a folder of objects.
        options: for object stores, obstore's configuration, such as `access_key_id`, `endpoint` and `region`; for the
            web, `headers`; for other places, what fsspec's file system takes.
        attempts: failures in a row after which a request is given up; by default `MAX_ATTEMPTS`.
        resume: what to do after a temporary failure, for messages.
    """

    def __init__(
        self,
        url: str,
        options: dict[str, Any] | None = None,
        *,
        attempts: int | None = None,
        resume: str = RUN_AGAIN,
    ) -> None:
        self.url = url
        self.options = options or {}
        self.attempts = MAX_ATTEMPTS if attempts is None else attempts
        self.resume = resume
        self.protocol = urlsplit(url).scheme
        self._bucket: Any = None

    def __getstate__(self) -> dict[str, Any]:
        return {**self.__dict__, "_bucket": None}  # its connections belong to this process

    def where(self, name: str = "") -> str:
        """An object's address for messages: without passwords and signatures."""
        base = without_secrets(self.url)
        return f"{base.rstrip('/')}/{name}" if name else base

    def address(self, name: str) -> str:
        """An object's address on the web, with the query of the URL, which is its signature."""
        base, mark, query = self.url.partition("?")
        return f"{base.rstrip('/')}/{name}{mark}{query}" if name else self.url

    def head(self, name: str) -> dict[str, Any] | None:
        """What a store or a web server says of an object: its `size` in bytes, its `e_tag` and `last_modified`, if it
        has them. None if there is no such object.

        Raises:
            RemoteError: see `ask`; or a web server does not say how large the object is.
        """
        try:
            if self.protocol not in WEB_PROTOCOLS:
                return dict(self.request("head", name))
            with self.ask(name, lambda: open_web(self.address(name), self.options.get("headers"))) as response:
                size = response.length
                headers = response.headers
        except FileNotFoundError:
            return None
        if size is None:
            raise RemoteError(f"{self.where(name)}: its server does not say how large it is; copy it to this machine")
        return {"size": size, "e_tag": headers.get("ETag"), "last_modified": headers.get("Last-Modified")}

    def ask(self, name: str, call: Callable[[], Answer]) -> Answer:
        """Make a request, and repeat it until it is answered.

        Args:
            name: of the object, for messages; "" for the URL itself.

        Raises:
            ConfigError: the protocol or the options are unknown, a package is missing, or the process was forked from
                one that has used obstore.
            FileNotFoundError: there is no such object.
            TakenError: the name already exists.
            RemoteError: it is not permitted, or failed `attempts` times in a row.
        """
        failures = 0
        while True:
            try:
                return call()
            except PacktrainError:
                raise
            except Exception as error:  # each client has its own errors
                failures += 1
                self._pause_or_raise(error, failures, name)

    def request(self, verb: str, name: str, *arguments: Any, **options: Any) -> Any:
        """Call one of obstore's functions, such as `head` or `put`, for an object; again after a failure that may pass.

        Args:
            verb: the function's name. obstore itself is imported only here: most users need no object store.

        Raises:
            FileNotFoundError: there is no such object.
            TakenError: the name already exists.
            RemoteError: it is not permitted, or failed `attempts` times in a row.
        """
        return self.ask(name, partial(self._request_once, verb, name, *arguments, **options))

    def _request_once(self, verb: str, name: str, *arguments: Any, **options: Any) -> Any:
        """One attempt of `request`."""
        # Asked for in each attempt: a process that was forked since the last one must not use the parent's bucket.
        bucket = self.bucket()
        import obstore  # only for object stores

        return getattr(obstore, verb)(bucket, self.key(name), *arguments, **options)

    def read(self, name: str) -> bytes:
        """All of an object of at most `MAX_READ_BYTES` bytes. Raises what `pieces` raises."""
        return b"".join(self.pieces(name, max_bytes=MAX_READ_BYTES))

    def pieces(self, name: str, size: int | None = None, max_bytes: int | None = None) -> Iterator[bytes]:
        """The content of an object, in order.

        Args:
            size: its expected bytes; only these are read of a longer object. None if they are not known: it is read to
                its end.
            max_bytes: an object with more is given up; None for no limit.

        Raises:
            ConfigError, FileNotFoundError, RemoteError: see `ask`; also if it is shorter than `size` or longer than
                `max_bytes`.
        """
        received = 0  # bytes that were given; after a failure, the next attempt asks for those behind them
        failures = 0
        while size is None or received < size:
            try:
                for chunk in self._stream(name, received):
                    piece = chunk if size is None else chunk[: size - received]
                    received += len(piece)
                    failures = 0  # only failures in a row count
                    if max_bytes is not None and received > max_bytes:
                        raise RemoteError(
                            f"{self.where(name)}: received more than the {max_bytes:,} bytes that it may have; remove "
                            "it"
                        )
                    yield piece
                    if received == size:
                        return
                if size is None:
                    return
                raise ConnectionError(f"received {received:,} bytes instead of {size:,}")
            except PacktrainError:
                raise
            except Exception as error:
                failures += 1
                self._pause_or_raise(error, failures, name)

    def download(self, name: str, path: Path, size: int, hash: str | None) -> None:
        """Write an object into an existing file.

        Args:
            path: the file.
            size: bytes of the object.
            hash: BLAKE3 of the content; None if it is not known, and the content is not compared.

        Raises:
            FileNotFoundError, RemoteError: see `pieces`.
            IntegrityError: the content has another hash, in each of `attempts` downloads.
            OSError: the file cannot be written.
        """
        actual_hash = ""
        for attempt in range(1, self.attempts + 1):
            digest = new_hasher()
            with path.open("r+b") as file:  # from its beginning, and without cutting it: a draft has its full size
                for piece in self.pieces(name, size):
                    digest.update(piece)
                    file.write(piece)
            actual_hash = digest.hexdigest()
            if hash is None or hash == actual_hash:
                return
            _LOG.warning("%s arrived damaged, in attempt %d of %d", self.where(name), attempt, self.attempts)
        raise IntegrityError(
            f"{self.where(name)} is damaged: its {size:,} bytes should have the hash {hash}, but after "
            f"{self.attempts} attempts the last download had {actual_hash}; delete it there, and {self.resume}, or "
            "copy the dataset there again"
        )

    def _stream(self, name: str, start: int) -> Iterator[bytes]:
        """The content of an object from a byte on."""
        if self.protocol in STORE_PROTOCOLS:
            return self._stream_from_store(name, start)
        if self.protocol in WEB_PROTOCOLS:
            return self._stream_from_web(name, start)
        return self._stream_from_elsewhere(name, start)

    def _stream_from_store(self, name: str, start: int) -> Iterator[bytes]:
        """The content of an object of an object store, from byte `start` on."""
        bucket = self.bucket()
        import obstore  # only for object stores

        options = {"range": {"offset": start}} if start else None
        answer = obstore.get(bucket, self.key(name), options=options)
        for chunk in answer.stream(min_chunk_size=CHUNK_BYTES):
            yield bytes(chunk)

    def _stream_from_web(self, name: str, start: int) -> Iterator[bytes]:
        """What a web server sends for an address, from byte `start` on.

        Raises:
            ConnectionError: it ends too early.
        """
        with open_web(self.address(name), self.options.get("headers"), start=start) as response:
            # A server without ranges sends everything again: status 200 in place of 206.
            to_skip = start if response.status == 200 else 0
            while to_skip and (chunk := response.read1(min(to_skip, CHUNK_BYTES))):
                to_skip -= len(chunk)
            while chunk := response.read1(CHUNK_BYTES):
                yield chunk
            # Python's client takes a connection that breaks for the end of the body.
            if response.length:
                raise ConnectionError(f"the answer ended {response.length:,} bytes too early")

    def _stream_from_elsewhere(self, name: str, start: int) -> Iterator[bytes]:
        """The content of a file that fsspec opens, from byte `start` on."""
        fs, root = filesystem(self.url, self.options)
        with fs.open(f"{root.rstrip('/')}/{name}" if name else root, "rb") as file:
            file.seek(start)
            while chunk := file.read(CHUNK_BYTES):
                yield chunk

    def bucket(self) -> Any:
        """obstore's store of the bucket; for object stores."""
        if self._bucket is None or not is_bucket_usable():
            self._bucket = open_bucket(self.url, self.options)
        return self._bucket

    def key(self, name: str) -> str:
        """The key of an object in its bucket; for object stores. Below `s3://bucket/runs/a`, `manifest.json` has the
        key `runs/a/manifest.json`.
        """
        root = self.url.partition("://")[2].partition("/")[2].strip("/")
        return f"{root}/{name}".strip("/")

    def _pause_or_raise(self, error: Exception, failures: int, name: str) -> None:
        """Pause before the next attempt, or raise if there should be none.

        Args:
            error: of the last attempt.
            failures: attempts that failed in a row, with the last one.
            name: of the object, for messages.
        """
        where = self.where(name)
        final_error = self._final_error(error, where)
        if final_error is not None:
            raise final_error from error
        if failures >= self.attempts:
            raise RemoteError(
                f"{where} failed {failures} times in a row, last with: {describe_error(error)}; see that the store can "
                f"be reached from here and that the object is whole, else put it there again, then {self.resume}"
            ) from error
        max_pause = min(MAX_PAUSE_SECONDS, FIRST_PAUSE_SECONDS * PAUSE_FACTOR ** (failures - 1))
        pause = _RANDOM.uniform(0, max_pause)
        _LOG.info("%s: %s; again in %.1f s", where, describe_error(error), pause)
        error.__traceback__ = None  # it would keep alive what the callers hold, such as mapped files
        time.sleep(pause)

    def _final_error(self, error: Exception, where: str) -> Exception | None:
        """What to raise in place of a client's error, if the same request can never succeed; else None."""
        status = _status(error)
        # The answer to the last request of an upload was lost, and obstore has repeated the request: the store has the
        # object, and does not know the upload any more. The whole put is repeated, though the status is 404.
        if "NoSuchUpload" in str(error):
            return None
        if isinstance(error, FileNotFoundError) or status in (404, 410):
            return FileNotFoundError(f"there is no {where}")
        # 412: the request's condition failed. The only condition that packtrain sets is that the name is free.
        if type(error).__name__ == "AlreadyExistsError" or status == 412:
            return TakenError(where)
        if isinstance(error, PermissionError) or status in (401, 403):
            return RemoteError(
                f"{where}: the store refuses ({describe_error(error)}); give credentials that may read, write and list "
                "there, by the environment or the options of the storage"
            )
        if not _is_temporary(error, status):
            return RemoteError(
                f"{where} cannot be read or written: {describe_error(error)}; fix that, then {self.resume}"
            )
        return None


def describe_error(error: BaseException) -> str:
    """An error in a few words, without the signature of an address that the client may have included."""
    text = " ".join(str(error).partition("Debug source:")[0].split("?", 1)[0].split())
    return f"{type(error).__name__}: {text[:300]}" if text else type(error).__name__


def _status(error: BaseException) -> int | None:
    """The HTTP status that an error is about; None if it is about none, such as a broken connection. obstore has it
    only in its message.
    """
    if isinstance(error, HTTPError):
        return error.code
    match = _STATUS_IN_MESSAGE.search(str(error))
    return int(match[1]) if match else None


def _is_temporary(error: BaseException, status: int | None) -> bool:
    """Whether the same request may succeed later. Unknown errors count as temporary, because attempts are limited."""
    if status is not None and 400 <= status < 500:
        # The store received less than was announced, because the connection broke.
        was_cut = status == 400 and any(word in str(error) for word in ("IncompleteBody", "RequestTimeout"))
        # 408: too slow; 409: a conflict; 416: the object is shorter than it was; 425: too early; 429: too many
        # requests.
        return was_cut or status in (408, 409, 416, 425, 429)
    if type(error).__name__ == "NotSupportedError":
        return False
    mistakes = (NotImplementedError, ImportError, TypeError, AttributeError, ValueError)
    return not isinstance(error, (IsADirectoryError, NotADirectoryError, EndlessAnswerError, *mistakes))
