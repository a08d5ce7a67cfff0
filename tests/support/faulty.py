"""An S3 server on loopback that has bad days: a proxy in front of moto's.

No checksum or signature is looked at: moto answers as S3 does otherwise, conditional puts included.
"""

import logging
import random
import re
import socket
import struct
import threading
import time
from collections import Counter, deque
from collections.abc import Callable
from dataclasses import dataclass, field
from http.client import HTTPConnection, HTTPResponse
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from types import TracebackType
from typing import Any

BUCKET = "mules"
STATUS = {
    "500": "InternalError",
    "503": "SlowDown",
    "403": "AccessDenied",
    "429": "TooManyRequests",
    "501": "NotImplemented",
}
MOST_IN_A_ROW = 3
"""Random faults in a row on one method and path, so that chance alone never exhausts a client's attempts."""
_CONDITION = re.compile(rb"<Condition>.*?</Condition>")


@dataclass
class Asked:
    """A request, and how it was answered."""

    method: str
    path: str
    """With its query."""
    condition: bool
    """Whether it was a put that asks for a free name."""
    bytes: int
    """Of its body."""
    fault: str


@dataclass
class Faulty:
    """The server. Faults come in turn, or at random at a rate, on requests that `wanted` says; each is one of:

    a status: `403`, `429`, `500`, `501`, `503`, and the request is not carried out; `reset`: so, and the connection
    ends; `lost`: it is carried out, and the connection ends in place of the answer; `cut`: the answer ends in the
    middle of its body; `hang`: nothing comes for a minute; `ok`: none.
    """

    latency: float = 0.0
    """Seconds before every answer."""
    rate: float = 0.0
    """Share of requests on which a fault of `kinds` comes, but at most `MOST_IN_A_ROW` times for one request."""
    kinds: tuple[str, ...] = ("503", "reset", "lost", "cut")
    seed: int = 0
    terse: bool = False
    """A refusal does not say which condition was not met, as some stores do."""
    stale: bool = False
    """Repeat the first listing of a folder, whatever has been put since."""
    asked: list[Asked] = field(default_factory=list)

    def __post_init__(self) -> None:
        from moto.server import ThreadedMotoServer

        logging.getLogger("werkzeug").setLevel(logging.ERROR)
        self.faults: deque[str] = deque()
        self.always: str | None = None
        self.wanted: Callable[[Asked], bool] = lambda asked: True
        self.released = threading.Event()
        self.lists: dict[str, tuple[int, list[tuple[str, str]], bytes]] = {}
        self._random = random.Random(self.seed)
        self._in_a_row: Counter[tuple[str, str]] = Counter()
        self._client: Any = None
        self._lock = threading.Lock()
        self._moto: Any = ThreadedMotoServer(ip_address="127.0.0.1", port=0, verbose=False)
        owner = self

        class Handler(_Handler):
            faulty = owner

        self._server = Server(("127.0.0.1", 0), Handler)
        self._thread = threading.Thread(target=self._server.serve_forever, args=(0.02,), daemon=True)

    @property
    def address(self) -> str:
        """`http://127.0.0.1:port`"""
        return f"http://127.0.0.1:{self._server.server_address[1]}"

    @property
    def behind(self) -> tuple[str, int]:
        """Host and port of the server that has no faults."""
        host, port = self._moto.get_host_and_port()
        return str(host), int(port)

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
        self._moto.start()
        self._thread.start()
        self.client().create_bucket(Bucket=BUCKET)
        return self

    def __exit__(self, kind: type[BaseException] | None, error: BaseException | None, at: TracebackType | None) -> None:
        self.released.set()
        self._server.shutdown()
        self._server.server_close()
        self._moto.stop()

    def client(self) -> Any:
        """boto3's client of the server behind: sees no fault. One for all threads, because making it takes long."""
        import boto3

        if self._client is not None:
            return self._client
        host, port = self.behind
        self._client = boto3.client(
            "s3",
            endpoint_url=f"http://{host}:{port}",
            aws_access_key_id="key",
            aws_secret_access_key="secret",
            region_name="us-east-1",
        )
        return self._client

    def keys(self, prefix: str = "") -> dict[str, int]:
        """What the bucket holds, and the bytes of each."""
        pages = self.client().get_paginator("list_objects_v2").paginate(Bucket=BUCKET, Prefix=prefix)
        return {one["Key"]: one["Size"] for page in pages for one in page.get("Contents", [])}

    def get(self, key: str) -> bytes:
        """An object's content."""
        data: bytes = self.client().get_object(Bucket=BUCKET, Key=key)["Body"].read()
        return data

    def calm(self) -> None:
        """No more faults, and nothing remembered."""
        self.faults.clear()
        self.always, self.wanted, self.rate, self.latency = None, lambda asked: True, 0.0, 0.0
        self.terse = self.stale = False
        self.asked.clear()
        self.lists.clear()
        self._in_a_row.clear()

    def note(self, asked: Asked) -> str:
        """What this request gets."""
        request = asked.method, asked.path
        with self._lock:
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


class _Handler(BaseHTTPRequestHandler):
    faulty: Faulty
    protocol_version = "HTTP/1.1"
    disable_nagle_algorithm = True

    def log_message(self, format: str, *args: object) -> None:
        """Nothing."""

    def _answer(self) -> None:
        owner = self.faulty
        body = self._body()
        asked = Asked(self.command, self.path, self.headers.get("If-None-Match") == "*", len(body), "ok")
        fault = owner.note(asked)
        time.sleep(owner.latency)
        if fault in STATUS:
            return self._refuse(int(fault))
        if fault == "hang":
            owner.released.wait(60)
        if fault in ("reset", "hang"):
            return reset(self)
        listing = self.command == "GET" and "list-type" in self.path
        if listing and owner.stale and self.path in owner.lists:
            return self._send(*owner.lists[self.path], fault)
        status, headers, data = self._forward(body)
        if listing:
            owner.lists[self.path] = (status, headers, data)
        if fault == "lost":
            return reset(self)
        return self._send(status, headers, data, fault)

    do_GET = do_PUT = do_POST = do_DELETE = do_HEAD = _answer  # noqa: N815 - as http.server wants them

    def _body(self) -> bytes:
        if "chunked" not in self.headers.get("Transfer-Encoding", ""):
            return self.rfile.read(int(self.headers.get("Content-Length") or 0))
        out = b""
        while count := int(self.rfile.readline().split(b";")[0], 16):
            out += self.rfile.read(count)
            self.rfile.readline()
        self.rfile.readline()
        return out

    def _forward(self, body: bytes) -> tuple[int, list[tuple[str, str]], bytes]:
        drop = {"connection", "transfer-encoding", "expect", "content-length"}
        headers = {name: value for name, value in self.headers.items() if name.lower() not in drop}
        connection = HTTPConnection(*self.faulty.behind, timeout=60)
        try:
            connection.request(self.command, self.path, body, {**headers, "Content-Length": str(len(body))})
            answer: HTTPResponse = connection.getresponse()
            data = answer.read()
        finally:
            connection.close()
        if self.faulty.terse and answer.status == 412:
            data = _CONDITION.sub(b"", data)
        kept = [(name, value) for name, value in answer.getheaders() if name.lower() not in drop]
        if self.command == "HEAD":
            kept.append(("Content-Length", answer.getheader("Content-Length") or "0"))
        else:
            kept.append(("Content-Length", str(len(data))))
        return answer.status, kept, data

    def _send(self, status: int, headers: list[tuple[str, str]], data: bytes, fault: str) -> None:
        self.send_response_only(status)
        for name, value in headers:
            self.send_header(name, value)
        self.end_headers()
        if self.command == "HEAD":
            return None
        if fault == "cut":
            self.wfile.write(data[: len(data) // 2])
            self.wfile.flush()
            return reset(self)
        self.wfile.write(data)
        return None

    def _refuse(self, status: int) -> None:
        code = STATUS[str(status)]
        text = f'<?xml version="1.0"?><Error><Code>{code}</Code><Message>{code}</Message></Error>'.encode()
        self._send(status, [("Content-Type", "application/xml"), ("Content-Length", str(len(text)))], text, "ok")


def reset(handler: BaseHTTPRequestHandler) -> None:
    """End the connection. Closing with unsent data thrown away sends RST."""
    handler.connection.setsockopt(socket.SOL_SOCKET, socket.SO_LINGER, struct.pack("ii", 1, 0))
    handler.connection.close()
    handler.close_connection = True
