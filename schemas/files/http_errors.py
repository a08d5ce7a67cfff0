"""Classifies errors of remote stores: a missing file, a temporary fault, or a permanent one.

Every client library has its own errors; they have the HTTP status in common. These are pure functions that import none
of the libraries.
"""


def cause_of(error: Exception) -> Exception:
    """The real error: over HTTP, fsspec reports every failed look-up as a missing file, and the cause says what
    happened."""
    cause = error.__cause__
    if not isinstance(error, FileNotFoundError) or not isinstance(cause, Exception):
        return error
    return cause if type(cause).__module__.startswith("aiohttp") or isinstance(cause, TimeoutError) else error


def is_missing(error: BaseException) -> bool:
    """Whether the store says that there is no such file."""
    return isinstance(error, FileNotFoundError) or http_status(error) in (404, 410)


def is_unknown_upload(error: BaseException) -> bool:
    """Whether S3 no longer knows an upload in parts: it was completed or ended, and the answer was lost."""
    answer = getattr(error.__cause__, "response", None)
    return isinstance(answer, dict) and answer.get("Error", {}).get("Code") == "NoSuchUpload"


def is_taken(error: BaseException) -> bool:
    """Whether a conditional put was refused because the name exists.

    s3fs raises FileExistsError for it only if the answer names the failed condition, which not all stores do.
    """
    return isinstance(error, FileExistsError) or http_status(error) == 412


def is_refused(error: BaseException) -> bool:
    """Whether the store denied permission."""
    return isinstance(error, PermissionError) or http_status(error) in (401, 403)


def is_passing(error: BaseException) -> bool:
    """Whether the same request may succeed later. Unknown errors count as temporary, because attempts are limited."""
    if isinstance(error, (TimeoutError, ConnectionError)):
        return True
    status = http_status(error)
    if status is not None and 400 <= status < 500:
        # A body shorter than announced, which some stores send if a connection breaks.
        short = status == 400 and any(word in str(error) for word in ("IncompleteBody", "RequestTimeout"))
        return status in (408, 409, 425, 429) or short or "throttl" in str(error).lower()
    return "Credentials" not in type(error).__name__ and not isinstance(
        error, (IsADirectoryError, NotADirectoryError, NotImplementedError, ImportError, TypeError, AttributeError)
    )


def http_status(error: BaseException) -> int | None:
    """The HTTP status, wherever the client library keeps it.

    Only causes of botocore are checked: aiohttp gives a truncated body a cause with a `code` of 400.
    """
    for holder in (error, getattr(error, "response", None)):
        for key in ("status", "status_code", "code"):
            value = getattr(holder, key, None)
            if isinstance(value, (int, str)) and str(value).isdecimal() and 100 <= int(value) < 600:
                return int(value)
    cause: BaseException | None = error
    while cause is not None:
        answer = getattr(cause, "response", None)
        if isinstance(answer, dict):
            value = answer.get("ResponseMetadata", {}).get("HTTPStatusCode")
            return value if isinstance(value, int) else None
        cause = cause.__cause__
    return None


def describe(error: BaseException) -> str:
    """An error in a few words, without the signature of an address that the client library may have included."""
    text = " ".join(str(error).split("?", 1)[0].split())
    return f"{type(error).__name__}: {text[:300]}" if text else type(error).__name__
