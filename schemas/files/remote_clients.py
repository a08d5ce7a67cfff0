"""The clients of remote places: obstore for object stores, fsspec for all others but the web; see `remote.py`."""

import os
from datetime import timedelta
from typing import Any
from urllib.parse import urlsplit

from ..errors import ConfigError
from ..escape import without_secrets
from .web import REQUEST_SECONDS

STORE_PROTOCOLS = ("s3", "s3a", "gs", "gcs", "az", "abfs", "abfss")
"""Protocols of object stores that can be written: their server decides whether a name is free."""
CONNECT_SECONDS = 10.0
"""Without a connection for so long, a request to an object store has failed."""
FIRST_PAUSE_SECONDS = 0.2
"""Before the second attempt of a request. Each further pause is longer by `PAUSE_FACTOR`."""
PAUSE_FACTOR = 3.0
_OBSTORE_RETRIES = 3
"""How often obstore repeats a request by itself, so that a fault does not cost the earlier parts of an upload."""
_obstore_process: int | None = None
"""The process (its id) that has used obstore, or a parent that did; None if none has. obstore's threads do not survive
a fork: a child would wait for them forever."""


def is_bucket_usable() -> bool:
    """Whether a bucket that was opened before can be used: not in a child process that was forked since."""
    return _obstore_process == os.getpid()


def open_bucket(url: str, options: dict[str, Any]) -> Any:
    """obstore's store of a URL's bucket; see `Remote`.

    Raises:
        ConfigError: the options are unknown, obstore is missing, or this process was forked from one that has used it.
    """
    global _obstore_process
    where = without_secrets(url)
    if _obstore_process not in (None, os.getpid()):
        raise ConfigError(
            f"{where}: this process was forked from one that had used an object store, whose client does not survive "
            'that; start processes by "spawn" or "forkserver", as in DataLoader(..., multiprocessing_context="spawn")'
        )
    try:
        from obstore.exceptions import BaseError
        from obstore.store import from_url
    except ImportError as error:
        raise ConfigError(f"{where}: obstore is missing; pip install 'packtrain[s3]'") from error
    protocol, _, bucket_and_path = url.partition("://")
    bucket_name = bucket_and_path.partition("/")[0]
    # fsspec knows Google Cloud by both names, obstore by one.
    address = f"{'gs' if protocol == 'gcs' else protocol}://{bucket_name}"
    try:
        store = from_url(address, **_arguments(protocol, options))
    except (BaseError, ValueError, TypeError) as error:
        first_line = str(error).partition("\n")[0]
        raise ConfigError(f"{where} cannot be opened: {first_line}; check the URL and storage_options") from error
    _obstore_process = os.getpid()
    return store


def filesystem(url: str, options: dict[str, Any] | None = None) -> tuple[Any, str]:
    """fsspec's file system of a URL, and the path in it: for searching, in which places differ, and for reading what is
    neither in an object store nor on the web.

    Raises:
        ConfigError: the protocol or the options are unknown, or a package is missing.
    """
    protocol = urlsplit(url).scheme
    where = without_secrets(url)
    try:
        if protocol in STORE_PROTOCOLS:
            open_bucket(url, options or {})  # for its checks
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


def _arguments(protocol: str, options: dict[str, Any]) -> dict[str, Any]:
    """obstore's arguments: the user's options, and our limits, where the options set none."""
    limits = {
        "allow_http": True,  # for an endpoint that says so
        "connect_timeout": timedelta(seconds=CONNECT_SECONDS),
        # Between two pieces of an answer.
        "read_timeout": timedelta(seconds=REQUEST_SECONDS),
        # An hour for a whole answer, which may be a large file over a slow line: it ends what a server drips without an
        # end.
        "timeout": timedelta(seconds=60 * REQUEST_SECONDS),
    }
    # Few and short: `Remote` repeats requests itself.
    retries = {
        "max_retries": _OBSTORE_RETRIES,
        # From the first attempt on. A request that failed by silence has used all of this time, so obstore does not
        # repeat it, and `Remote` does.
        "retry_timeout": timedelta(seconds=REQUEST_SECONDS),
        "backoff": {"init_backoff": timedelta(seconds=FIRST_PAUSE_SECONDS), "base": PAUSE_FACTOR},
    }
    return {
        **_aws_profile(protocol, options),
        **options,
        "client_options": {**limits, **options.get("client_options", {})},
        "retry_config": {**retries, **options.get("retry_config", {})},
    }


def _aws_profile(protocol: str, options: dict[str, Any]) -> dict[str, Any]:
    """The option that takes credentials from `~/.aws`, which boto3 reads. Empty if the options or the environment have
    credentials, or boto3 finds none: obstore itself looks into the environment, and asks the machine in a cloud.
    """
    in_options = {"access_key_id", "skip_signature", "credential_provider", "config"} & set(options)
    in_environment = {"AWS_ACCESS_KEY_ID", "AWS_SKIP_SIGNATURE"} & set(os.environ)
    if protocol not in ("s3", "s3a") or in_options or in_environment:
        return {}
    try:
        import boto3
        from obstore.auth.boto3 import Boto3CredentialProvider
    except ImportError:
        return {}
    session = boto3.Session()
    return {"credential_provider": Boto3CredentialProvider(session)} if session.get_credentials() else {}
