"""An object store on loopback that has bad days: what obstore asks of S3, and the same objects for plain HTTP clients.

Objects are kept in memory. No checksum and no signature is looked at.
"""

import gzip
import random
import re
import socket
import struct
import threading
import time
from collections import Counter, deque
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from html import escape, unescape
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from itertools import count
from types import TracebackType
from urllib.parse import parse_qs, unquote, urlsplit

BUCKET = "mules"
CODES = {
    400: "InvalidRequest",
    403: "AccessDenied",
    404: "NoSuchKey",
    412: "PreconditionFailed",
    416: "InvalidRange",
    429: "TooManyRequests",
    500: "InternalError",
    501: "NotImplemented",
    503: "SlowDown",
}
MOST_IN_A_ROW = 3
"""Random faults in a row on one method and path, so that chance alone never exhausts a client's attempts."""
DATE = "Thu, 26 Nov 2026 00:00:00 GMT"
_RANGE = re.compile(r"bytes=(\d+)-(\d*)")
Answer = tuple[int, dict[str, str], bytes]
"""Status, headers and body."""


@dataclass
class Asked:
    """A request, and how it was answered."""

    method: str
    path: str
    """With its query."""
    condition: bool
    """Whether it was a put that asks for a free name."""
    fault: str


@dataclass
class Faulty:
    """The server. Faults come in turn, always the same, or at random at a rate, on requests that `wanted` says:

    a status of `CODES`, and the request is not carried out; `reset`: so, and the connection ends; `hang`: so, after a
    minute of silence; `lost`: it is carried out, and the connection ends in place of the answer; `cut`: the answer ends
    in the middle of its body; `ok`: none. Of objects that are read also `flip`: one bit is wrong; `short`: half of it
    comes and nothing says so; `whole`: the range is ignored; `gzip`: compressed, for clients that take that.
    """

    latency: float = 0.0
    """Seconds before every answer."""
    rate: float = 0.0
    """Share of requests on which a fault of `kinds` comes, but at most `MOST_IN_A_ROW` times for one request."""
    kinds: tuple[str, ...] = ("503", "reset", "lost", "cut")
    stale: bool = False
    """Repeat the first listing of a folder, whatever has been put since."""
    asked: list[Asked] = field(default_factory=list)

    def __post_init__(self) -> None:
        self.buckets: dict[str, dict[str, bytes]] = {BUCKET: {}}
        self.faults: deque[str] = deque()
        self.always: str | None = None
        self.wanted: Callable[[Asked], bool] = lambda asked: True
        self.released = threading.Event()
        self.lists: dict[str, Answer] = {}
        self.uploads: dict[str, dict[int, bytes]] = {}
        self.numbers = count()
        self.lock = threading.Lock()
        self._random = random.Random(0)
        self._in_a_row: Counter[tuple[str, str]] = Counter()
        self._server = Server(("127.0.0.1", 0), type("Handler", (_Handler,), {"owner": self}))
        self._thread = threading.Thread(target=self._server.serve_forever, args=(0.02,), daemon=True)

    @property
    def address(self) -> str:
        """`http://127.0.0.1:port`"""
        return f"http://127.0.0.1:{self._server.server_address[1]}"

    @property
    def environment(self) -> dict[str, str]:
        """What a client needs to find it."""
        return {
            "AWS_ENDPOINT_URL": self.address,
            "AWS_ACCESS_KEY_ID": "key",
            "AWS_SECRET_ACCESS_KEY": "secret",
            "AWS_DEFAULT_REGION": "us-east-1",
        }

    def __enter__(self) -> "Faulty":
        self._thread.start()
        return self

    def __exit__(self, kind: type[BaseException] | None, error: BaseException | None, at: TracebackType | None) -> None:
        self.released.set()
        self._server.shutdown()
        self._server.server_close()

    @property
    def objects(self) -> dict[str, bytes]:
        """What `BUCKET` holds, by key."""
        return self.buckets[BUCKET]

    def calm(self) -> None:
        """No more faults, and nothing remembered."""
        self.faults.clear()
        self.always = None
        self.wanted = lambda asked: True
        self.rate = 0.0
        self.latency = 0.0
        self.stale = False
        self.asked.clear()
        self.lists.clear()
        self._in_a_row.clear()

    def note(self, asked: Asked) -> str:
        """What this request gets."""
        request = asked.method, asked.path
        with self.lock:
            if self.wanted(asked):
                if self.faults:
                    asked.fault = self.faults.popleft()
                elif self.always:
                    asked.fault = self.always
                elif self._random.random() < self.rate and self._in_a_row[request] < MOST_IN_A_ROW:
                    asked.fault = self._random.choice(self.kinds)
            self._in_a_row[request] = 0 if asked.fault == "ok" else self._in_a_row[request] + 1
            self.asked.append(asked)
        return asked.fault


class Server(ThreadingHTTPServer):
    """For many clients that come and go."""

    daemon_threads = True
    request_queue_size = 256

    def handle_error(self, request: object, client_address: object) -> None:
        """Do not print anything when a client disconnects."""


class Handler(BaseHTTPRequestHandler):
    """Answers every request by `answer`, which a class below it has."""

    protocol_version = "HTTP/1.1"
    disable_nagle_algorithm = True  # else the second part of an answer waits for a confirmation, often 40 ms

    def log_message(self, format: str, *args: object) -> None:
        """Nothing."""

    def _serve(self) -> None:
        self.answer()

    do_GET = do_PUT = do_POST = do_DELETE = do_HEAD = _serve  # noqa: N815 - as http.server wants them

    def answer(self) -> None:
        """Read the request and answer it."""
        raise NotImplementedError

    def body(self) -> bytes:
        """What came with the request."""
        if "chunked" not in self.headers.get("Transfer-Encoding", ""):
            return self.rfile.read(int(self.headers.get("Content-Length") or 0))
        out = b""
        while size := int(self.rfile.readline().split(b";")[0], 16):
            out += self.rfile.read(size)
            self.rfile.readline()
        self.rfile.readline()
        return out

    def send(self, status: int, headers: Mapping[str, str], data: bytes, most: int | None = None) -> None:
        """An answer; of its body, at most so many bytes."""
        self.send_response_only(status)
        for name, value in {**headers, "Content-Length": str(len(data))}.items():
            self.send_header(name, value)
        self.end_headers()
        if self.command != "HEAD":
            self.wfile.write(data[:most])


class _Handler(Handler):
    owner: Faulty

    def answer(self) -> None:
        body = self.body()
        asked = Asked(self.command, self.path, self.headers.get("If-None-Match") == "*", "ok")
        fault = self.owner.note(asked)
        time.sleep(self.owner.latency)
        if fault.isdigit():
            self._send(_error(int(fault)))
        elif fault in ("reset", "hang"):
            self.owner.released.wait(60 if fault == "hang" else 0)
            self._reset()
        else:
            answer = self._carry_out(body, fault)
            self._reset() if fault == "lost" else self._send(answer, fault)

    def _carry_out(self, body: bytes, fault: str) -> Answer:
        split = urlsplit(self.path)
        name, _, key = unquote(split.path).lstrip("/").partition("/")
        query = {word: values[0] for word, values in parse_qs(split.query, keep_blank_values=True).items()}
        objects = self.owner.buckets.get(name)
        if objects is None:
            return _error(404, "NoSuchBucket")
        upload = self.owner.uploads.get(query.get("uploadId", ""))
        if "uploadId" in query and upload is None:
            return _error(404, "NoSuchUpload")
        with self.owner.lock:
            match self.command:
                case "GET" if "list-type" in query:
                    return self._list(objects, query)
                case "GET" | "HEAD":
                    return self._read(objects[key], fault) if key in objects else _error(404)
                case "PUT" if upload is not None:
                    upload[int(query["partNumber"])] = body
                case "PUT" if key in objects and self.headers.get("If-None-Match") == "*":
                    return _error(412)
                case "PUT":
                    objects[key] = body
                case "POST" if "uploads" in query:
                    number = str(next(self.owner.numbers))
                    self.owner.uploads[number] = {}
                    return _xml("InitiateMultipartUploadResult", f"<UploadId>{number}</UploadId>")
                case "POST" if upload is not None:
                    objects[key] = b"".join(upload[number] for number in sorted(upload))
                    del self.owner.uploads[query["uploadId"]]
                    return _xml("CompleteMultipartUploadResult", "<ETag>&quot;0&quot;</ETag>")
                case "POST" if "delete" in query:
                    keys = [unescape(match) for match in re.findall("<Key>(.*?)</Key>", body.decode())]
                    for name in keys:
                        objects.pop(name, None)
                    deleted = "".join(f"<Deleted><Key>{escape(name)}</Key></Deleted>" for name in keys)
                    return _xml("DeleteResult", deleted)
                case "DELETE" if upload is not None:
                    del self.owner.uploads[query["uploadId"]]
                case "DELETE":
                    objects.pop(key, None)
        return 200, {"ETag": '"0"'}, b""

    def _list(self, objects: dict[str, bytes], query: dict[str, str]) -> Answer:
        """All objects below a prefix, or with a delimiter those right there and the folders."""
        prefix = query.get("prefix", "")
        delimiter = query.get("delimiter")
        entries = ""
        folders = dict[str, None]()
        for key in sorted(name for name in objects if name.startswith(prefix)):
            inner, mark, _ = key[len(prefix) :].partition(delimiter) if delimiter else (key, "", "")
            if mark:
                folders[f"{prefix}{inner}{mark}"] = None
            else:
                size = f"<Size>{len(objects[key])}</Size><LastModified>2026-11-26T00:00:00.000Z</LastModified>"
                entries += f"<Contents><Key>{escape(key)}</Key>{size}<ETag>{_tag(objects[key])}</ETag></Contents>"
        entries += "".join(f"<CommonPrefixes><Prefix>{escape(name)}</Prefix></CommonPrefixes>" for name in folders)
        answer = _xml("ListBucketResult", entries)
        return self.owner.lists.setdefault(self.path, answer) if self.owner.stale else answer

    def _read(self, data: bytes, fault: str) -> Answer:
        """An object, or a range of it."""
        headers = {"Accept-Ranges": "bytes", "ETag": _tag(data), "Last-Modified": DATE}
        match = _RANGE.fullmatch(self.headers.get("Range", "")) if fault != "whole" else None
        begin = 0
        end = len(data)
        if match:
            begin = int(match[1])
            end = min(int(match[2] or end) + 1, end)  # its last byte is a part of a range
            if begin >= len(data):
                return _error(416)
            headers["Content-Range"] = f"bytes {begin}-{end - 1}/{len(data)}"
        part = bytearray(data[begin:end])
        if fault == "short":
            del part[len(part) // 2 :]
        if fault == "flip" and part:
            part[len(part) // 2] ^= 4
        if fault == "gzip" and "gzip" in self.headers.get("Accept-Encoding", ""):
            headers["Content-Encoding"] = "gzip"
            part = bytearray(gzip.compress(part))
        return 206 if match else 200, headers, bytes(part)

    def _send(self, answer: Answer, fault: str = "ok") -> None:
        status, headers, data = answer
        self.send(status, headers, data, len(data) // 2 if fault == "cut" else None)
        if fault == "cut" and self.command != "HEAD":
            self.wfile.flush()
            self._reset()

    def _reset(self) -> None:
        """End the connection. Closing with unsent data thrown away sends RST."""
        self.connection.setsockopt(socket.SOL_SOCKET, socket.SO_LINGER, struct.pack("ii", 1, 0))
        self.connection.close()
        self.close_connection = True


def _tag(data: bytes) -> str:
    return f'"{hash(data) & 0xFFFFFFFF:x}"'


def _xml(name: str, content: str) -> Answer:
    return 200, {"Content-Type": "application/xml"}, f'<?xml version="1.0"?><{name}>{content}</{name}>'.encode()


def _error(status: int, code: str = "") -> Answer:
    _, headers, data = _xml("Error", f"<Code>{code or CODES[status]}</Code><Message>no</Message>")
    return status, headers, data
