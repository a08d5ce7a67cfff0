"""Objects below a URL: of S3, Google Cloud and Azure, which are read and written, of the web, and of other places that
fsspec knows, which are only read.

All remote inputs, outputs, caches and shards are accessed here. Every request is limited in time, repeated if that may
help, and a broken download continues where it broke.
"""

import logging
import os
import random
import re
import time
from collections.abc import Callable, Iterator
from datetime import timedelta
from pathlib import Path
from typing import Any, TypeVar
from urllib.error import HTTPError
from urllib.parse import urlsplit

from blake3 import blake3

from ..errors import ConfigError, IntegrityError, PacktrainError, StoreError
from ..escape import without_secrets
from .web import REQUEST_SECONDS, WEB, EndlessAnswerError, open_web

STORES = ("s3", "s3a", "gs", "gcs", "az", "abfs", "abfss")
"""Protocols of object stores that can be written: their server decides whether a name is free."""
CONNECT_SECONDS = 10.0
"""Without a connection for so long, a request to an object store has failed."""
ATTEMPTS = 8
"""Failures in a row after which a request is given up."""
FIRST_PAUSE, PAUSE_FACTOR, LONGEST_PAUSE = 0.2, 3.0, 20.0
"""Pauses between attempts are random, below a limit in seconds that grows by the factor. Together: at most a minute."""
PIECE = 1 << 20
"""Bytes that are read at once."""
LARGEST = 1 << 30
"""Most bytes of an object that is read whole: a manifest of a billion rows has a tenth of it."""
_RETRIES = 3
"""How often obstore repeats a request by itself, so that a fault does not cost the earlier parts of an upload."""
_STATUS = re.compile(r"status code: (\d{3})")
_RANDOM = random.SystemRandom()  # independent of forks and of the user's seed
_LOG = logging.getLogger(__name__)
_used_by: int | None = None
"""The process that has used obstore, whose threads do not survive a fork: a child would wait for them forever."""

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
        attempts: failures in a row after which a request is given up; by default `ATTEMPTS`.
        resume: what to do after a temporary failure, for messages.
    """

    def __init__(
        self,
        url: str,
        options: dict[str, Any] | None = None,
        *,
        attempts: int | None = None,
        resume: str = "run the same command again: it continues where it stopped",
    ) -> None:
        self.url, self.options, self.resume = url, options or {}, resume
        self.attempts = ATTEMPTS if attempts is None else attempts
        self.protocol = urlsplit(url).scheme
        self._opened: Any = None

    def __getstate__(self) -> dict[str, Any]:
        return {**self.__dict__, "_opened": None}

    def where(self, name: str = "") -> str:
        """An object's address for messages: without passwords and signatures."""
        base = shown(self.url)
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
            if self.protocol not in WEB:
                return dict(self.request("head", name))
            with self.ask(name, lambda: open_web(self.address(name), self.options.get("headers"))) as answer:
                size, headers = answer.length, answer.headers
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
                self._after(error, failures, name)

    def request(self, verb: str, name: str, *arguments: Any, **options: Any) -> Any:
        """What one of obstore's functions gives for an object; for object stores. Raises what `ask` raises."""

        def call() -> Any:
            bucket = self.bucket()
            import obstore  # only for object stores

            return getattr(obstore, verb)(bucket, self.key(name), *arguments, **options)

        return self.ask(name, call)

    def read(self, name: str) -> bytes:
        """An object of at most `LARGEST` bytes, whole. Raises what `pieces` raises."""
        return b"".join(self.pieces(name, most=LARGEST))

    def pieces(self, name: str, size: int | None = None, most: int | None = None) -> Iterator[bytes]:
        """The content of an object, in order.

        Args:
            size: its expected bytes, if they are known. Only these are read of a longer object.
            most: if it has more bytes, it is given up.

        Raises:
            ConfigError, FileNotFoundError, RemoteError: see `ask`; also if it is shorter than `size` or longer than
                `most`.
        """
        done = failures = 0
        while size is None or done < size:
            try:
                for data in self._stream(name, done):
                    piece = data if size is None else data[: size - done]
                    done, failures = done + len(piece), 0
                    if most is not None and done > most:
                        raise RemoteError(
                            f"{self.where(name)}: received more than the {most:,} bytes that it may have; remove it"
                        )
                    yield piece
                    if done == size:
                        return
                if size is None:
                    return
                raise ConnectionError(f"received {done:,} bytes instead of {size:,}")
            except PacktrainError:
                raise
            except Exception as error:
                failures += 1
                self._after(error, failures, name)

    def download(self, name: str, path: Path, size: int, hash: str | None) -> None:
        """Write an object into an existing file.

        Args:
            hash: BLAKE3 of the content, if it is known.

        Raises:
            FileNotFoundError, RemoteError: see `pieces`.
            IntegrityError: the content has another hash, in each of `attempts` downloads.
            OSError: the file cannot be written.
        """
        found = ""
        for attempt in range(1, self.attempts + 1):
            digest = blake3()
            with path.open("r+b") as file:
                for data in self.pieces(name, size):
                    digest.update(data)
                    file.write(data)
            found = digest.hexdigest()
            if hash in (None, found):
                return
            _LOG.warning("%s arrived damaged, in attempt %d of %d", self.where(name), attempt, self.attempts)
        raise IntegrityError(
            f"{self.where(name)} is damaged: its {size:,} bytes should have the BLAKE3 {hash}, but after "
            f"{self.attempts} attempts the last download had {found}; delete it there, and {self.resume}, or copy the "
            "dataset there again"
        )

    def _stream(self, name: str, start: int) -> Iterator[bytes]:
        """The content of an object from a byte on."""
        if self.protocol in STORES:
            bucket = self.bucket()
            import obstore

            options = {"range": {"offset": start}} if start else None
            yield from map(bytes, obstore.get(bucket, self.key(name), options=options).stream(min_chunk_size=PIECE))
        elif self.protocol in WEB:
            with open_web(self.address(name), self.options.get("headers"), start=start) as body:
                if start and body.status == 200:  # the server has no ranges
                    while start and (data := body.read1(min(start, PIECE))):
                        start -= len(data)
                while data := body.read1(PIECE):
                    yield data
                if body.length:
                    raise ConnectionError(f"the answer ended {body.length:,} bytes too early")
        else:
            fs, root = filesystem(self.url, self.options)
            with fs.open(f"{root.rstrip('/')}/{name}" if name else root, "rb") as file:
                file.seek(start)
                while data := file.read(PIECE):
                    yield data

    def bucket(self) -> Any:
        """obstore's store of the bucket; for object stores."""
        if self._opened is None or _used_by != os.getpid():
            self._opened = bucket(self.url, self.options)
        return self._opened

    def key(self, name: str) -> str:
        """The key of an object in its bucket; for object stores."""
        root = self.url.partition("://")[2].partition("/")[2].strip("/")
        return f"{root}/{name}".strip("/")

    def _after(self, error: Exception, failures: int, name: str) -> None:
        """Pause before the next attempt, or raise if there should be none."""
        where, status = self.where(name), _status(error)
        ended = "NoSuchUpload" in str(error)  # when the end of an upload is repeated, because the answer was lost
        if not ended and (isinstance(error, FileNotFoundError) or status in (404, 410)):
            raise FileNotFoundError(f"there is no {where}") from error
        if type(error).__name__ == "AlreadyExistsError" or status == 412:
            raise TakenError(where) from error
        if isinstance(error, PermissionError) or status in (401, 403):
            raise RemoteError(
                f"{where}: the store refuses ({describe(error)}); give credentials that may read, write and list "
                "there, by the environment or the options of the storage"
            ) from error
        if not ended and not _passes(error, status):
            said = f"{where} cannot be read or written: {describe(error)}; fix that, then {self.resume}"
            raise RemoteError(said) from error
        if failures < self.attempts:
            pause = _RANDOM.uniform(0, min(LONGEST_PAUSE, FIRST_PAUSE * PAUSE_FACTOR ** (failures - 1)))
            _LOG.info("%s: %s; again in %.1f s", where, describe(error), pause)
            error.__traceback__ = None  # it would keep what all callers hold alive
            time.sleep(pause)
            return
        raise RemoteError(
            f"{where} failed {failures} times in a row, last with: {describe(error)}; see that the store can be "
            f"reached from here and that the object is whole, else put it there again, then {self.resume}"
        ) from error


def describe(error: BaseException) -> str:
    """An error in a few words, without the signature of an address that the client may have included."""
    text = " ".join(str(error).partition("Debug source:")[0].split("?", 1)[0].split())
    return f"{type(error).__name__}: {text[:300]}" if text else type(error).__name__


def _status(error: BaseException) -> int | None:
    """The HTTP status of an error, wherever its client keeps it."""
    if isinstance(error, HTTPError):
        return error.code
    found = _STATUS.search(str(error))
    return int(found[1]) if found else None


def _passes(error: BaseException, status: int | None) -> bool:
    """Whether the same request may succeed later. Unknown errors count as temporary, because attempts are limited."""
    if status is not None and 400 <= status < 500:
        # A body shorter than announced, which some stores send if a connection breaks.
        short = status == 400 and any(word in str(error) for word in ("IncompleteBody", "RequestTimeout"))
        return status in (408, 409, 416, 425, 429) or short  # 416: it is shorter than it was
    permanent = (IsADirectoryError, NotADirectoryError, NotImplementedError, ImportError, TypeError, AttributeError)
    return (
        not isinstance(error, (*permanent, ValueError, EndlessAnswerError))
        and type(error).__name__ != "NotSupportedError"
    )


def bucket(url: str, options: dict[str, Any]) -> Any:
    """obstore's store of a URL's bucket; see `Remote`."""
    global _used_by
    where = shown(url)
    if _used_by not in (None, os.getpid()):
        raise ConfigError(
            f"{where}: this process was forked from one that had used an object store, whose client does not survive "
            'that; start processes by "spawn" or "forkserver", as in DataLoader(..., multiprocessing_context="spawn")'
        )
    try:
        from obstore.exceptions import BaseError
        from obstore.store import from_url
    except ImportError as error:
        raise ConfigError(f"{where}: obstore is missing; pip install 'packtrain[s3]'") from error
    protocol, _, rest = url.partition("://")
    address = f"{'gs' if protocol == 'gcs' else protocol}://{rest.partition('/')[0]}"
    try:
        store = from_url(address, **_arguments(protocol, options))
    except (BaseError, ValueError, TypeError) as error:
        said = str(error).partition("\n")[0]
        raise ConfigError(f"{where} cannot be opened: {said}; check the URL and storage_options") from error
    _used_by = os.getpid()
    return store


def filesystem(url: str, options: dict[str, Any] | None = None) -> tuple[Any, str]:
    """fsspec's file system of a URL, and the path in it: for searching, which differs from place to place.

    Raises:
        ConfigError: the protocol or the options are unknown, or a package is missing.
    """
    protocol, where = urlsplit(url).scheme, shown(url)
    try:
        if protocol in STORES:
            bucket(url, options or {})
            from obstore.fsspec import FsspecStore

            arguments = _arguments(protocol, options or {})
            return FsspecStore(protocol, skip_instance_cache=True, **arguments), url.partition("://")[2].rstrip("/")
        from fsspec.core import url_to_fs

        fs, path = url_to_fs(url, **(options or {}))
        return fs, path
    except ImportError as error:
        raise ConfigError(f"{where}: a package is missing for {protocol}:// ({error})") from error
    except (ValueError, TypeError) as error:
        raise ConfigError(
            f"{where} is not a URL that fsspec can read, or its options do not fit ({error}); check its beginning, "
            "storage_options and fsspec's own configuration"
        ) from error


def shown(url: str) -> str:
    """A URL for messages: without user and password, and without the signature of a web address."""
    return without_secrets(url)


def _arguments(protocol: str, options: dict[str, Any]) -> dict[str, Any]:
    """obstore's arguments: the user's options, and our limits."""
    limits = {
        "allow_http": True,  # for an endpoint that says so
        "connect_timeout": timedelta(seconds=CONNECT_SECONDS),
        "read_timeout": timedelta(seconds=REQUEST_SECONDS),
        "timeout": timedelta(seconds=60 * REQUEST_SECONDS),
    }
    return {
        **_profile(protocol, options),
        **options,
        "client_options": {**limits, **options.get("client_options", {})},
        "retry_config": {
            "max_retries": _RETRIES,
            "retry_timeout": timedelta(seconds=REQUEST_SECONDS),  # not after a silence
            "backoff": {"init_backoff": timedelta(seconds=FIRST_PAUSE), "base": PAUSE_FACTOR},
        },
    }


def _profile(protocol: str, options: dict[str, Any]) -> dict[str, Any]:
    """The credentials of `~/.aws`, which boto3 reads; obstore finds those of the environment and of machines."""
    given = {"access_key_id", "skip_signature", "credential_provider", "config"} & set(options)
    if protocol not in ("s3", "s3a") or given or {"AWS_ACCESS_KEY_ID", "AWS_SKIP_SIGNATURE"} & set(os.environ):
        return {}
    try:
        import boto3
        from obstore.auth.boto3 import Boto3CredentialProvider
    except ImportError:
        return {}
    session = boto3.Session()
    return {"credential_provider": Boto3CredentialProvider(session)} if session.get_credentials() else {}
