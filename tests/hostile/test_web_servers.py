"""Web servers whose answers have no end, or cannot be: every command that asks one ends soon, with a sentence."""

import contextlib
import http.server
import socket
import threading
import time
from collections.abc import Callable, Iterator
from functools import partial
from pathlib import Path
from typing import Any

import pytest
from packtrain.pipeline.demo import __path__ as demo
from packtrain.schemas.files import remote, web

from tests import kit

TOKENIZER = Path(demo[0]) / "tokenizer"
HEAD = b'HTTP/1.1 200 OK\r\nETag: "a"\r\n'


def continues(send: Callable[[bytes], None]) -> None:
    while True:
        send(b"HTTP/1.1 100 Continue\r\n\r\n")


def trailers(send: Callable[[bytes], None]) -> None:
    send(HEAD + b"Transfer-Encoding: chunked\r\n\r\n2\r\n{}\r\n0\r\n")
    while True:
        send(b"X-More: yes\r\n")


def slow_headers(send: Callable[[bytes], None]) -> None:
    send(HEAD)
    while True:
        send(b"X")
        time.sleep(0.05)


def slow_body(send: Callable[[bytes], None]) -> None:
    send(HEAD + b"Content-Length: 1000000\r\n\r\n")
    while True:
        send(b"x")
        time.sleep(0.05)


def long_redirect(send: Callable[[bytes], None]) -> None:
    send(b"HTTP/1.1 302 Found\r\nLocation: /other\r\n\r\n")
    while True:
        send(b"x" * 65536)


def circle(send: Callable[[bytes], None]) -> None:
    send(b"HTTP/1.1 302 Found\r\nLocation: /other\r\nContent-Length: 0\r\n\r\n")


def huge(send: Callable[[bytes], None]) -> None:
    send(HEAD + b"Content-Length: 99999999999999999999\r\n\r\n{")


def large(send: Callable[[bytes], None]) -> None:
    send(HEAD + b"Content-Length: 999999999999999\r\n\r\n{")


def negative(send: Callable[[bytes], None]) -> None:
    send(HEAD + b"Content-Length: -5\r\n\r\n{")


def garbage(send: Callable[[bytes], None]) -> None:
    send(bytes(range(256)) * 400)


SERVERS = (continues, trailers, slow_headers, slow_body, long_redirect, circle, huge, large, negative, garbage)


@contextlib.contextmanager
def serving(answer: Callable[[Callable[[bytes], None]], None]) -> Iterator[str]:
    """A server on loopback that answers every request in this way."""

    def talk(connection: socket.socket) -> None:
        with connection, contextlib.suppress(OSError):
            connection.settimeout(20)
            connection.recv(1 << 16)
            answer(connection.sendall)

    with socket.create_server(("127.0.0.1", 0)) as listening:

        def listen() -> None:
            with contextlib.suppress(OSError):
                while True:
                    threading.Thread(target=talk, args=(listening.accept()[0],), daemon=True).start()

        threading.Thread(target=listen, daemon=True).start()
        yield f"127.0.0.1:{listening.getsockname()[1]}"
        listening.shutdown(socket.SHUT_RDWR)


@pytest.fixture(autouse=True)
def _short(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(web, "REQUEST_SECONDS", 0.3)
    monkeypatch.setattr(remote, "MAX_ATTEMPTS", 2)
    monkeypatch.setattr(remote, "FIRST_PAUSE_SECONDS", 0.001)
    monkeypatch.setattr(remote, "MAX_PAUSE_SECONDS", 0.002)


@pytest.mark.parametrize("answer", SERVERS, ids=lambda answer: str(answer.__name__))
@pytest.mark.parametrize("command", ["prep", "verify", pytest.param("sample", marks=pytest.mark.slow)])
def test_every_answer_ends(
    answer: Callable[[Callable[[bytes], None]], None], command: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    from packtrain.pipeline.samples import endpoint

    monkeypatch.setattr(endpoint, "_TIMEOUT_SECONDS", 1.0)
    monkeypatch.setenv("PACKTRAIN_CACHE", str(tmp_path / "user"))
    (tmp_path / "p.jsonl").write_text('{"id": "a", "row": 0, "prompt": "hello"}\n')
    with serving(answer) as place:
        url = f"http://bob:SECRETPW@{place}/x.jsonl?X-Amz-Signature=SECRETSIG"
        words: dict[str, list[object]] = {
            "prep": ["prep", "--input", url, "-o", "o.jsonl"],
            "verify": ["verify", url],
            "sample": [
                *("sample", "m", "--endpoint", f"http://{place}/v1", "--tokenizer", TOKENIZER),
                *("--data", "p.jsonl", "--out", "s.jsonl"),
            ],
        }
        began = time.monotonic()
        outcome = kit.cli(*words[command], cwd=tmp_path)
    assert time.monotonic() - began < 15
    assert outcome.code in (1, 2)
    assert "Traceback" not in outcome.err
    assert "127.0.0.1" in outcome.err or answer is large
    assert "SECRET" not in outcome.err + outcome.out


def test_a_slow_body_that_goes_on_is_read(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Bytes of the body extend the clock: a download may take much longer than the silence that is allowed."""
    monkeypatch.setenv("PACKTRAIN_CACHE", str(tmp_path / "user"))
    row = b'{"text": "' + b"a" * 988 + b'"}'

    def steady(send: Callable[[bytes], None]) -> None:
        send(HEAD + f"Content-Length: {len(row)}\r\n\r\n".encode())
        for start in range(0, len(row), 100):
            send(row[start : start + 100])
            time.sleep(0.08)

    with serving(steady) as place:
        outcome = kit.cli("prep", "--input", f"http://{place}/x.jsonl", "-o", "o.jsonl", cwd=tmp_path)
    assert (outcome.code, (tmp_path / "o.jsonl").read_text().count("a" * 988)) == (0, 1)


@pytest.fixture
def plain_server(foreign: Path) -> Iterator[str]:
    """Python's own server, which lists no names, over the folder of a finished dataset."""

    class Quiet(http.server.SimpleHTTPRequestHandler):
        def log_message(self, format: str, *arguments: Any) -> None:
            pass

    handler = partial(Quiet, directory=str(foreign.parent))
    with http.server.ThreadingHTTPServer(("127.0.0.1", 0), handler) as server:
        threading.Thread(target=server.serve_forever, args=(0.02,), daemon=True).start()
        place = f"127.0.0.1:{server.server_address[1]}"
        yield f"http://bob:SECRETPW@{place}/{foreign.name}?X-Amz-Signature=SECRETSIG"
        server.shutdown()


def test_a_dataset_on_a_plain_web_server(
    foreign: Path, plain_server: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(web, "REQUEST_SECONDS", 20.0)
    commands: list[list[object]] = [
        ["verify", plain_server],
        ["verify", plain_server, "--deep"],
        ["wait", plain_server, "--timeout", "5"],
        ["diff", plain_server, foreign],
        ["inspect", plain_server, "--row", "0"],
        ["export", plain_server, "--to", "mds", "--out", tmp_path / "mds"],
    ]
    for words in commands:
        outcome = kit.cli(*words, cwd=tmp_path)
        assert outcome.code == 0, (words, outcome)
        assert "SECRET" not in outcome.out + outcome.err, words
    assert "a web server does not list its files" in kit.cli("verify", plain_server, cwd=tmp_path).out
    damaged = next((foreign / "train").rglob("*.arrow"))
    damaged.write_bytes(damaged.read_bytes()[:-1])
    outcome = kit.cli("verify", plain_server, cwd=tmp_path)
    assert outcome.code == 1
    assert f"has {damaged.stat().st_size:,} bytes" in outcome.out
