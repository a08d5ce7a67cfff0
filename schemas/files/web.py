"""Requests to web servers, none of which can make a reader wait or read without end.

Python's client limits the time between two bytes, but not how many answers "100 Continue", trailers, bytes of a
redirect or single bytes a server may send. Here status line, headers, trailers and body share one clock, which only
bytes of the body extend.
"""

import ssl
import time
from base64 import b64encode
from collections.abc import Mapping
from functools import partial
from http.client import HTTPConnection, HTTPException, HTTPResponse, HTTPSConnection
from io import BufferedReader, RawIOBase
from typing import Any
from urllib.parse import quote, unquote, urlsplit
from urllib.request import HTTPHandler, HTTPRedirectHandler, HTTPSHandler, Request, build_opener

WEB_PROTOCOLS = ("http", "https")
REQUEST_SECONDS = 60.0
"""Without a connection, or without a byte, for so long, a request has failed."""
MAX_OBJECT_BYTES = 1 << 50
"""Most bytes that a server may say an object has: a petabyte."""
_MIN_BYTES_PER_SECOND = 1_000
"""Of a body, on average; a slower answer is given up."""
_MAX_STATUS_LINES = 8
"""Answers such as "100 Continue", with the one that counts; servers send one of them at most."""
_MAX_TRAILERS = 100
"""Lines after a body: as many as Python's client takes as headers."""
_MAX_READ_BYTES = 1 << 20
"""Most bytes of a body that is read by `read()`, such as a redirect's."""
_BUFFER_BYTES = 1 << 16
"""Of the reader of a socket; also the longest part of a trailer line that is read at once."""


class EndlessAnswerError(HTTPException):
    """A server goes on where an answer would end, or says what cannot be. Asking it again would not help."""


class Clock:
    """The time that one request may take, from now on.

    Args:
        seconds: until the body begins, by default `REQUEST_SECONDS`. Each `_MIN_BYTES_PER_SECOND` bytes of the body add
            a second.
        fixed: whether nothing adds to `seconds`, and silence is no failure: for servers that compute an answer.
    """

    def __init__(self, seconds: float | None = None, *, fixed: bool = False) -> None:
        self._end = time.monotonic() + (REQUEST_SECONDS if seconds is None else seconds)
        self._fixed = fixed

    def timeout(self) -> float:
        """Seconds to wait for the next byte.

        Raises:
            TimeoutError: the time is over.
        """
        seconds_left = self._end - time.monotonic()
        if seconds_left <= 0:
            raise TimeoutError("the answer takes too long")
        return seconds_left if self._fixed else min(seconds_left, REQUEST_SECONDS)

    def received(self, count: int) -> None:
        """Count bytes of the body."""
        if not self._fixed:
            self._end += count / _MIN_BYTES_PER_SECOND


class _TimedSocket(RawIOBase):
    """Reads a socket as long as the clock allows. Each read has the time that is left then as its limit."""

    def __init__(self, connection: Any, clock: Clock) -> None:
        self._connection = connection
        self._file = connection.makefile("rb", buffering=0)
        self._clock = clock

    def readable(self) -> bool:
        return True

    def readinto(self, buffer: Any) -> int | None:
        """Read what has come, as `BufferedReader` asks for it; raises TimeoutError if the clock has run out."""
        self._connection.settimeout(self._clock.timeout())
        count: int | None = self._file.readinto(buffer)
        return count

    def close(self) -> None:
        self._file.close()
        super().close()


class _Response(HTTPResponse):
    """The answer to one request, read by Python's own client, which calls these methods. Each gives up where a server
    could go on for ever: Python's own have no such end.

    The caller of `open_web` reads the body by `read1`, piece by piece.

    Args:
        connection: the socket.
        clock: of the request.
    """

    def __init__(self, connection: Any, *arguments: Any, clock: Clock, **options: Any) -> None:
        super().__init__(connection, *arguments, **options)
        # In place of Python's own reader of the socket, which limits each read alone.
        self.fp.close()
        self.fp = BufferedReader(_TimedSocket(connection, clock), _BUFFER_BYTES)
        self._clock = clock
        self._status_lines = 0

    def begin(self) -> None:
        """Read the status line and the headers, and refuse a length that no object has."""
        super().begin()
        if self.length is not None and self.length > MAX_OBJECT_BYTES:
            raise EndlessAnswerError(f"it says that the object has {str(self.length)[:30]} bytes")

    def read(self, amt: int | None = None) -> bytes:
        """Read `amt` bytes, or the whole body, which must be short: urllib reads that of a redirect."""
        if amt is not None:
            return super().read(amt)
        data = super().read(_MAX_READ_BYTES + 1)  # one more shows that there are too many
        if len(data) > _MAX_READ_BYTES:
            raise EndlessAnswerError(f"it sends more than {_MAX_READ_BYTES:,} bytes where few are usual")
        return data

    def read1(self, n: int = -1) -> bytes:
        """Read at most `n` bytes of the body, those that have come. Only these add to the time of the request."""
        data = super().read1(n)
        self._clock.received(len(data))
        return data

    def _read_status(self) -> Any:
        """Read a status line. `begin` asks for others as long as it gets "100 Continue"."""
        self._status_lines += 1
        if self._status_lines > _MAX_STATUS_LINES:
            raise EndlessAnswerError('it sends "100 Continue" without end')
        return super()._read_status()  # type: ignore[misc]  # typeshed leaves it out

    def _read_and_discard_trailer(self) -> None:
        """Read the lines behind a chunked body, up to an empty one."""
        for _ in range(_MAX_TRAILERS):
            if self.fp.readline(_BUFFER_BYTES) in (b"\r\n", b"\n", b""):
                return
        raise EndlessAnswerError("it sends trailers without end")


class _PlainHandler(HTTPHandler):
    """Opens http:// for urllib, with answers that have this clock."""

    def __init__(self, clock: Clock) -> None:
        super().__init__()
        self._response_class = partial(_Response, clock=clock)

    def http_open(self, req: Request) -> HTTPResponse:
        return self.do_open(_connection_maker(HTTPConnection, self._response_class), req)


class _SecureHandler(HTTPSHandler):
    """Opens https:// for urllib, with answers that have this clock."""

    def __init__(self, clock: Clock) -> None:
        super().__init__()
        self._response_class = partial(_Response, clock=clock)

    def https_open(self, req: Request) -> HTTPResponse:
        context = ssl.create_default_context()
        return self.do_open(_connection_maker(HTTPSConnection, self._response_class), req, context=context)


def _connection_maker(connection_class: Any, response_class: Any) -> Any:
    """What urllib calls in place of a class of connections, so that answers are of a class of ours, with a clock."""

    def make_connection(*arguments: Any, **options: Any) -> Any:
        connection = connection_class(*arguments, **options)
        connection.response_class = response_class
        return connection

    return make_connection


class _Redirects(HTTPRedirectHandler):
    """Follows redirects; the user's headers, such as a token, go to the same host only, never from https to http."""

    def redirect_request(self, req: Request, *args: Any) -> Request | None:
        """The request for where an answer redirects to; None if it is not followed."""
        request = super().redirect_request(req, *args)
        if request is None:
            return None
        loses_encryption = req.type == "https" and request.type == "http"
        if request.host != req.host or loses_encryption:
            harmless = ("Accept-encoding", "Range", "User-agent")  # as `Request` spells them
            request.headers = {name: value for name, value in request.headers.items() if name in harmless}
        return request


def open_web(
    url: str,
    headers: Mapping[str, str] | None = None,
    *,
    start: int = 0,
    data: bytes | None = None,
    clock: Clock | None = None,
) -> HTTPResponse:
    """The answer of a web server, whose body has not been read. Read it by `read1`, and close it.

    Args:
        headers: to send besides the usual ones; not to other hosts.
        start: the first byte to ask for; a server without ranges sends all bytes, with status 200.
        data: the body of a POST; None for a GET.
        clock: of the request; by default a new one.

    Raises:
        OSError: the server cannot be reached, is too slow, or answers with an error (HTTPError).
        EndlessAnswerError: its answer has no end; reading the body may raise it, too.
    """
    clock = clock or Clock()
    # "identity": a compressed body would have another length, and could unpack to any.
    all_headers = {"Accept-Encoding": "identity", "User-Agent": "packtrain", **(headers or {})}
    if start:
        all_headers["Range"] = f"bytes={start}-"
    url_without_login, login = _split_login(url)
    if login:
        all_headers["Authorization"] = f"Basic {b64encode(login.encode()).decode()}"
    # Spaces and other alphabets, as a browser sends them.
    address = quote(url_without_login, safe="%/:=&?~#+!$,;'@()*[]")
    # A new opener for each request: its handlers hold the clock, which threads must not share.
    opener = build_opener(_PlainHandler(clock), _SecureHandler(clock), _Redirects)
    response: HTTPResponse = opener.open(Request(address, data, all_headers), timeout=REQUEST_SECONDS)
    return response


def _split_login(url: str) -> tuple[str, str]:
    """`https://user:password@host/path` as `https://host/path` and `user:password`; "" if the URL has no user."""
    parts = urlsplit(url)
    if parts.username is None:
        return url, ""
    login = f"{unquote(parts.username)}:{unquote(parts.password or '')}"
    return parts._replace(netloc=parts.netloc.rpartition("@")[2]).geturl(), login
