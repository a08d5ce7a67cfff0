"""A small web server on loopback that does what servers do on bad days: it answers GET and HEAD with ranges."""

import gzip
import re
import threading
import time
from collections import Counter, deque
from dataclasses import dataclass, field
from http.server import BaseHTTPRequestHandler
from pathlib import Path
from types import TracebackType
from urllib.parse import unquote, urlsplit

from tests.support.faulty import Server, reset

RANGE = re.compile(r"bytes=(\d+)-(\d*)")


@dataclass(frozen=True)
class Asked:
    """A request, and how it was answered."""

    path: str
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

        self._server = Server(("127.0.0.1", 0), Handler)
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

    def note(self, path: str, begin: int) -> str:
        """What a request gets for the bytes from `begin` on."""
        with self._lock:
            fault = self.faults.popleft() if self.faults else self.always or "ok"
            if self._in_a_row[path, begin] == self.most_in_a_row:
                fault = "ok"
            self._in_a_row[path, begin] = 0 if fault == "ok" else self._in_a_row[path, begin] + 1
            self.asked.append(Asked(path, fault))
        return fault


class _Handler(BaseHTTPRequestHandler):
    owner: Store
    protocol_version = "HTTP/1.1"
    disable_nagle_algorithm = True

    def log_message(self, format: str, *args: object) -> None:
        """Nothing."""

    def _answer(self) -> None:
        name = unquote(urlsplit(self.path).path).lstrip("/")
        path = self.owner.root / name
        size = path.stat().st_size if path.is_file() else 0
        found = RANGE.fullmatch(self.headers.get("Range", ""))
        begin = int(found[1]) if found else 0
        end = min(int(found[2]) + 1 if found[2] else size, size) if found else size
        fault = self.owner.note(name, begin)
        time.sleep(self.owner.latency)
        if fault.isdigit():
            return self._send(int(fault), b"no")
        if not path.is_file():
            return self._send(404, b"no")
        if found and begin >= size:
            return self._send(416, b"no")
        headers = {"Accept-Ranges": "bytes", "ETag": '"0"', "Last-Modified": self.date_time_string(0)}
        if fault == "whole":
            found, begin, end = None, 0, size
        if found:
            headers["Content-Range"] = f"bytes {begin}-{end - 1}/{size}"
        whole = path.read_bytes()
        if fault == "gzip" and "gzip" in self.headers.get("Accept-Encoding", ""):
            headers["Content-Encoding"], whole = "gzip", gzip.compress(whole)
        data = bytearray(whole[begin:end])
        if fault == "short":
            del data[len(data) // 2 :]
        if fault == "flip" and data:
            data[len(data) // 2] ^= 4
        return self._send(206 if found else 200, bytes(data), headers, fault)

    do_GET = do_HEAD = _answer  # noqa: N815 - as http.server wants them

    def _send(self, status: int, data: bytes, headers: dict[str, str] | None = None, fault: str = "ok") -> None:
        self.send_response(status)
        for name, value in {"Content-Length": str(len(data)), **(headers or {})}.items():
            self.send_header(name, value)
        self.end_headers()
        if self.command == "HEAD":
            return
        if fault not in ("cut", "reset", "hang"):
            self.wfile.write(data)
            return
        self.wfile.write(data[: len(data) // 2])
        self.wfile.flush()
        if fault == "hang":
            self.owner.released.wait(60)
        if fault == "reset":
            reset(self)
        self.close_connection = True
