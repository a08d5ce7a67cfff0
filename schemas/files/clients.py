"""The clients of remote places: obstore for object stores, Python's own for the web, and fsspec for the rest.

obstore's threads do not survive a fork, and a forked child would wait for them forever: it is refused.
"""

import os
import re
from base64 import b64encode
from datetime import timedelta
from http.client import HTTPResponse
from typing import Any
from urllib.parse import quote, unquote, urlsplit
from urllib.request import Request, urlopen

from ..errors import ConfigError

STORES = ("s3", "s3a", "gs", "gcs", "az", "abfs", "abfss")
"""Protocols of object stores that can be written: their server decides whether a name is free."""
WEB = ("http", "https")
CONNECT_SECONDS = 10.0
REQUEST_SECONDS = 60.0
"""After so many seconds without a byte, a request has failed."""
_LOGIN = re.compile("(?<=://)[^/@]*@")
_used_by: int | None = None
"""The process that has used obstore."""


def bucket(url: str, options: dict[str, Any], retries: int = 0) -> Any:
    """obstore's store of a URL's bucket.

    Args:
        options: obstore's configuration, such as `access_key_id`, `endpoint` and `region`.
        retries: how often it repeats a request by itself.

    Raises:
        ConfigError: obstore is missing, does not know the URL or the options, or was used before this process was
            forked.
    """
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
        store = from_url(address, **_arguments(protocol, options, retries))
    except (BaseError, ValueError, TypeError) as error:
        said = str(error).partition("\n")[0]
        raise ConfigError(f"{where} cannot be opened: {said}; check the URL and storage_options") from error
    _used_by = os.getpid()
    return store


def web(url: str, options: dict[str, Any], start: int = 0) -> HTTPResponse:
    """The answer of a web server, whose body has not been read. Close it.

    Args:
        options: `headers` to send.
        start: ask for the bytes from here on; a server may send all.

    Raises:
        OSError: the server cannot be reached, or answers with an error (HTTPError).
    """
    headers = {"Accept-Encoding": "identity", "User-Agent": "packtrain", **options.get("headers", {})}
    if start:
        headers["Range"] = f"bytes={start}-"
    parts = urlsplit(url)
    if parts.username is not None:
        login = f"{unquote(parts.username)}:{unquote(parts.password or '')}"
        headers["Authorization"] = f"Basic {b64encode(login.encode()).decode()}"
        url = parts._replace(netloc=parts.netloc.rpartition("@")[2]).geturl()
    address = quote(url, safe="%/:=&?~#+!$,;'@()*[]")  # spaces and other alphabets, as a browser sends them
    answer: HTTPResponse = urlopen(Request(address, headers=headers), timeout=REQUEST_SECONDS)
    return answer


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

            arguments = _arguments(protocol, options or {}, retries=4)
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
    return _LOGIN.sub("", url.partition("?")[0] if urlsplit(url).scheme in WEB else url)


def _arguments(protocol: str, options: dict[str, Any], retries: int) -> dict[str, Any]:
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
        "retry_config": {"max_retries": retries},
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
