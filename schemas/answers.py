"""What an error of a store far away means: no such file, a fault that may pass, or one that will not.

Every client library has errors of its own; what they have in common is the status of an HTTP answer. Pure functions,
which import none of those libraries.
"""

import asyncio


def is_missing(error: BaseException) -> bool:
    """Whether the store says that there is no such file."""
    return isinstance(error, FileNotFoundError) or http_status(error) in (404, 410)


def is_taken(error: BaseException) -> bool:
    """Whether a conditional put was refused because the name exists.

    s3fs makes a FileExistsError of it only where the answer says which condition failed, which not all stores do.
    """
    return isinstance(error, FileExistsError) or http_status(error) == 412


def is_refused(error: BaseException) -> bool:
    """Whether the store says that this person may not do that."""
    return isinstance(error, PermissionError) or http_status(error) in (401, 403)


def is_passing(error: BaseException) -> bool:
    """Whether the same request may succeed later. What is unknown counts as passing: attempts are few."""
    if isinstance(error, (asyncio.TimeoutError, ConnectionError)):
        return True
    status = http_status(error)
    if status is not None and 400 <= status < 500:
        # A body that came shorter than announced, as some stores answer where a connection broke.
        short = status == 400 and any(word in str(error) for word in ("IncompleteBody", "RequestTimeout"))
        return status in (408, 409, 425, 429) or short or "throttl" in str(error).lower()
    return "Credentials" not in type(error).__name__ and not isinstance(
        error, (IsADirectoryError, NotADirectoryError, NotImplementedError, ImportError, TypeError, AttributeError)
    )


def http_status(error: BaseException) -> int | None:
    """The answer's status, wherever a client library keeps it.

    Of the causes only botocore's are looked at: aiohttp gives a body that was cut a cause with a `code` of 400.
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
    """An error in a few words. Client libraries put addresses into theirs, so a signature is cut off."""
    text = " ".join(str(error).split("?", 1)[0].split())
    return f"{type(error).__name__}: {text[:300]}" if text else type(error).__name__
