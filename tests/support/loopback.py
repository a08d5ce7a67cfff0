"""A small object store on loopback that does what object stores do on bad days.

It answers GET and HEAD with ranges, over plain HTTP or as an S3 endpoint whose buckets are the folders.
"""

import gzip
import re
import socket
import struct
import threading
import time
from collections import Counter, deque
from dataclasses import dataclass, field
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from pathlib import Path
from types import TracebackType
from urllib.parse import unquote, urlsplit

RANGE = re.compile(r"bytes=(\d+)-(\d*)")
STATUS = {"404": 404, "403": 403, "400": 400, "500": 500, "503": 503, "429": 429}
CODES = {404: "NoSuchKey", 403: "AccessDenied", 400: "InvalidRequest", 500: "InternalError", 503: "SlowDown"}


@dataclass
class Asked:
    """A request, and how it was answered."""

    method: str
    path: str
    begin: int
    end: int
    """Of the bytes, where it had a range; else 0 and -1."""
    fault: str


@dataclass
class Store:
    """Serves a folder. Faults come in turn, or always the same; each is one of:

    a status: `404`, `403`, `400`, `429`, `500`, `503`; `cut`: the connection ends in the middle of the body; `reset`:
    so, with a reset; `flip`: one bit is wrong; `short`: the body ends early and nothing says so; `hang`: half the body,
    then silence; `whole`: the range is ignored; `gzip`: it is one of the compressed file, for clients that take that;
    `ok`: none.
    """

    root: Path
    latency: float = 0.0
    """Seconds before every answer."""
    most_in_a_row: int | None = None
    """After so many faults one after another a range is answered well. By default there is no end to bad luck."""
    asked: list[Asked] = field(default_factory=list)

    def __post_init__(self) -> None:
        self.faults: deque[str] = deque()
        self.always: str | None = None
        self.released = threading.Event()
        self._lock = threading.Lock()
        self._in_a_row: Counter[tuple[str, int]] = Counter()
        store = self

        class Handler(_Handler):
            owner = store

        self._server = _Server(("127.0.0.1", 0), Handler)
        self._thread = threading.Thread(target=self._server.serve_forever, args=(0.02,), daemon=True)

    @property
    def address(self) -> str:
        """`http://127.0.0.1:port`"""
        return f"http://127.0.0.1:{self._server.server_address[1]}"

    def __enter__(self) -> "Store":
        self._thread.start()
        return self

    def __exit__(self, kind: type[BaseException] | None, error: BaseException | None, at: TracebackType | None) -> None:
        self.released.set()
        self._server.shutdown()
        self._server.server_close()

    def note(self, method: str, path: str, begin: int, end: int) -> str:
        """What this request gets."""
        with self._lock:
            if self.faults:
                fault = self.faults.popleft()
            elif self.always:
                fault = self.always
            else:
                fault = "ok"
            if self._in_a_row[path, begin] == self.most_in_a_row:
                fault = "ok"
            self._in_a_row[path, begin] = 0 if fault == "ok" else self._in_a_row[path, begin] + 1
            self.asked.append(Asked(method, path, begin, end, fault))
        return fault


class _Server(ThreadingHTTPServer):
    daemon_threads = True
    request_queue_size = 128

    def handle_error(self, request: object, client_address: object) -> None:
        """Do not print anything when a client disconnects."""


class _Handler(BaseHTTPRequestHandler):
    owner: Store
    protocol_version = "HTTP/1.1"
    disable_nagle_algorithm = True

    def do_GET(self) -> None:
        self._answer(body=True)

    def do_HEAD(self) -> None:
        self._answer(body=False)

    def log_message(self, format: str, *args: object) -> None:
        """Nothing."""

    def _answer(self, body: bool) -> None:
        name = unquote(urlsplit(self.path).path).lstrip("/")
        path = self.owner.root / name
        size = path.stat().st_size if path.is_file() else 0
        found = RANGE.fullmatch(self.headers.get("Range", ""))
        begin = int(found[1]) if found else 0
        end = min(int(found[2]) + 1 if found[2] else size, size) if found else size
        fault = self.owner.note(self.command, name, begin, end if found else -1)
        time.sleep(self.owner.latency)
        if fault in STATUS:
            return self._refuse(STATUS[fault], body)
        if not path.is_file():
            return self._refuse(404, body)
        if found and begin >= size:
            return self._refuse(416, body)
        if fault == "whole":
            found, begin, end = None, 0, size
        with path.open("rb") as file:
            file.seek(begin)
            data = bytearray(file.read(end - begin)) if body else bytearray()
        length = end - begin
        packed = fault == "gzip" and "gzip" in self.headers.get("Accept-Encoding", "")
        if packed:
            data = bytearray(gzip.compress(path.read_bytes())[begin:end])
            length = len(data)
        if fault == "short":
            length = len(data) // 2
            del data[length:]
        self.send_response(206 if found else 200)
        self.send_header("Content-Length", str(length))
        self.send_header("Accept-Ranges", "bytes")
        if packed:
            self.send_header("Content-Encoding", "gzip")
        self.send_header("ETag", '"0"')
        self.send_header("Last-Modified", self.date_time_string(0))
        if found:
            self.send_header("Content-Range", f"bytes {begin}-{end - 1}/{size}")
        self.end_headers()
        if not body:
            return None
        if fault == "flip" and data:
            data[len(data) // 2] ^= 4
        if fault in ("cut", "reset", "hang"):
            self.wfile.write(data[: len(data) // 2])
            self.wfile.flush()
            if fault == "hang":
                self.owner.released.wait(60)
            if fault == "reset":  # closing with unsent data thrown away sends RST
                self.connection.setsockopt(socket.SOL_SOCKET, socket.SO_LINGER, struct.pack("ii", 1, 0))
                self.connection.close()
            self.close_connection = True
            return None
        self.wfile.write(data)
        return None

    def _refuse(self, status: int, body: bool) -> None:
        code = CODES.get(status, "InvalidRange" if status == 416 else "Error")
        text = f'<?xml version="1.0"?><Error><Code>{code}</Code><Message>{code}</Message></Error>'.encode()
        self.send_response(status)
        self.send_header("Content-Type", "application/xml")
        self.send_header("Content-Length", str(len(text)))
        self.end_headers()
        if body:
            self.wfile.write(text)
