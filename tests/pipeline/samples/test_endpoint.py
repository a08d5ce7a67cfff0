"""The client of OpenAI-compatible servers, against `transformers serve` with a tiny model, and against a server whose
answers a test decides.
"""

import json
import os
import socket
import subprocess
import sys
import threading
import time
from collections.abc import Callable, Iterator
from contextlib import suppress
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from pathlib import Path
from typing import Any

import pytest

pytest.importorskip("torch")
pytest.importorskip("fastapi")

from packtrain.pipeline.encode.tokenizer import load_tokenizer
from packtrain.pipeline.samples import endpoint
from packtrain.pipeline.samples.endpoint import EndpointEngine, ServerError
from packtrain.pipeline.samples.samples_file import read_samples
from packtrain.pipeline.store.appended import RECORD
from packtrain.schemas.samples import SampleRequest, SampleSettings

from tests.support.small_models import TOKENIZER, write_model

Command = Callable[..., Any]
SECRET = "sk-very-secret-1234"


# A real server


@pytest.fixture(scope="module")
def served(tmp_path_factory: pytest.TempPathFactory) -> Iterator[tuple[str, Path]]:
    """(URL, model's folder) of `transformers serve`."""
    model = write_model(tmp_path_factory.mktemp("served") / "model")
    with socket.socket() as free:
        free.bind(("127.0.0.1", 0))
        port = free.getsockname()[1]
    program = str(Path(sys.executable).parent / "transformers")
    serve = [program, "serve", str(model), "--port", str(port), "--device", "cpu"]
    environment = {**os.environ, "HF_HUB_OFFLINE": "1", "OMP_NUM_THREADS": "1"}
    log = model.parent / "log"
    with log.open("wb") as sink:
        process = subprocess.Popen(serve, stdout=sink, stderr=sink, env=environment)
        try:
            for _ in range(6000):
                with socket.socket() as tried:
                    if tried.connect_ex(("127.0.0.1", port)) == 0:
                        break
                assert process.poll() is None, log.read_text()[-3000:]
                time.sleep(0.1)
            yield f"http://127.0.0.1:{port}/v1", model
        finally:
            process.kill()
            process.wait()


@pytest.mark.slow
def test_a_real_server_gives_what_the_model_gives(
    packtrain: Command, served: tuple[str, Path], tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.chdir(tmp_path)
    monkeypatch.setenv(endpoint.KEY, SECRET)
    url, model = served
    prompts = [*(f"print {row} " for row in range(5)), "the mules left\n"]
    rows = [{"id": str(row), "row": row, "prompt": prompt} for row, prompt in enumerate(prompts)]
    Path("test.jsonl").write_text("".join(f"{json.dumps(row)}\n" for row in rows))
    common = ("--data", "test.jsonl", "--temperature", 0, "--max-new-tokens", 12)
    remote = ("--tokenizer", TOKENIZER, "--endpoint", url, "--concurrency", 3)
    asked = packtrain("sample", model, *common, *remote, "--out", "asked.jsonl")
    assert asked.code == 0, asked.err
    here = packtrain("sample", model, *common, "--device", "cpu", "--out", "here.jsonl")
    assert here.code == 0, here.err
    ours, theirs = list(read_samples(Path("here.jsonl"))), list(read_samples(Path("asked.jsonl")))
    assert [one.key for one in theirs] == [(row, 0) for row in range(6)]
    assert [one.text for one in theirs] == [one.text for one in ours]
    assert [one.finish_reason for one in theirs] == [one.finish_reason for one in ours]
    for said in (asked.out, asked.err, *(path.read_text() for path in tmp_path.iterdir())):
        assert SECRET not in said
    assert url not in Path(f"asked.jsonl{RECORD}").read_text()


# A server whose answers a test decides


class Scripted:
    """A server; `answer(body)` gives a status and an object, or pieces of a body; or None to break the connection."""

    def __init__(self, answer: Callable[[dict[str, Any]], "tuple[int, Any] | None"]) -> None:
        self.bodies: list[dict[str, Any]] = []
        self.keys: set[str] = set()
        outer = self

        class Handler(BaseHTTPRequestHandler):
            def do_POST(self) -> None:
                body = json.loads(self.rfile.read(int(self.headers["Content-Length"])))
                outer.bodies.append(body)
                outer.keys.add(self.headers["Authorization"])
                found = answer(body)
                if found is None:
                    self.connection.shutdown(socket.SHUT_RDWR)
                    return
                pieces = found[1] if isinstance(found[1], Iterator) else [json.dumps(found[1]).encode()]
                self.send_response(found[0])
                self.send_header("Content-Type", "application/json")
                self.end_headers()  # the end of the connection is that of the body
                with suppress(OSError):
                    for piece in pieces:
                        self.wfile.write(piece)

            def log_message(self, *args: Any) -> None:
                """Nothing."""

        self._server = ThreadingHTTPServer(("127.0.0.1", 0), Handler)
        self.url = f"http://127.0.0.1:{self._server.server_address[1]}/v1"
        threading.Thread(target=self._server.serve_forever, args=(0.02,), daemon=True).start()

    def close(self) -> None:
        self._server.shutdown()
        self._server.server_close()


def completion(text: str, prompt: int, reason: str = "stop") -> tuple[int, Any]:
    usage = {"prompt_tokens": prompt, "completion_tokens": 2, "total_tokens": prompt + 2}
    choice = {"index": 0, "text": text, "finish_reason": reason, "logprobs": None}
    return 200, {"id": "a", "object": "text_completion", "model": "m", "choices": [choice], "usage": usage}


@pytest.fixture
def scripted() -> Iterator[Callable[..., Scripted]]:
    made: list[Scripted] = []

    def make(answer: Any) -> Scripted:
        made.append(Scripted(answer))
        return made[-1]

    yield make
    for one in made:
        one.close()


def ask(
    server: Scripted, tokenizer: Path = TOKENIZER, count: int = 4, seconds: float = 5
) -> dict[tuple[int, int], Any]:
    spec, settings = load_tokenizer(tokenizer), SampleSettings(0.7, 0.9, 5, (3,))
    engine = EndpointEngine(server.url, "m", settings, spec, ("<|im_end|>",), concurrency=3, seconds=seconds)
    requests = [SampleRequest(0, number, (1, 300, 301), number << 40) for number in range(count)]
    try:
        return {one.key: one for one in engine.answers([requests])}
    finally:
        engine.close()


def test_token_ids_are_sent_with_all_settings(scripted: Any, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv(endpoint.KEY, SECRET)
    server = scripted(lambda body: completion(str(body["seed"]), 3))
    found = ask(server)
    assert [found[0, number].text for number in range(4)] == [str((number << 40) >> 33) for number in range(4)]
    assert found[0, 0].tokens == 2
    body = server.bodies[0]
    assert body["prompt"] == [1, 300, 301]
    assert (body["model"], body["temperature"], body["top_p"], body["max_tokens"]) == ("m", 0.7, 0.9, 5)
    assert body["stop_token_ids"] == [3]
    assert server.keys == {f"Bearer {SECRET}"}


def test_a_server_that_takes_only_texts_gets_texts(scripted: Any, make_tokenizer: Any) -> None:
    def answer(body: dict[str, Any]) -> tuple[int, Any]:
        if not isinstance(body["prompt"], str):
            return 400, {"detail": "prompt must be a string."}
        assert "stop_token_ids" not in body
        return completion("ok", 3)

    server = scripted(answer)
    tokenizer = make_tokenizer("endpoint-bos", bos=True)
    assert len(ask(server, tokenizer)) == 4
    texts = [body["prompt"] for body in server.bodies if isinstance(body["prompt"], str)]
    assert not any(text.startswith("<s>") for text in texts)  # the server's tokenizer puts it there itself
    assert server.bodies[-1]["stop"] == ["<|im_end|>"]
    assert sum(isinstance(body["prompt"], list) for body in server.bodies) == 1  # asked once, then known


def test_a_second_beginning_of_sequence_is_noticed(scripted: Any) -> None:
    with pytest.raises(ServerError, match=r"counts 4 tokens in the prompt of row 0, where the tokenizer gives 3"):
        ask(scripted(lambda body: completion("ok", 4)))


def test_a_server_that_stumbles_is_asked_again(scripted: Any, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(endpoint, "_PAUSE_SECONDS", 0.01)
    faults: Iterator[Any] = iter([(503, {}), None, (429, {}), (500, {})])
    server = scripted(lambda body: next(faults, completion("ok", 3)))
    assert {one.text for one in ask(server).values()} == {"ok"}
    assert len(server.bodies) == 8


@pytest.mark.parametrize(
    ("answer", "what"),
    [
        ((401, {"error": {"message": f"Incorrect API key provided: {SECRET}"}}), "answers 401: .*OPENAI_API_KEY"),
        ((404, {"error": "no model m"}), "answers 404: .*usually ends in /v1, and the model's name"),
        ((400, {"error": "max_tokens is too large"}), "refuses the request: .*max_tokens is too large"),
        ((200, {"hello": 1}), "gave no completion"),
        ((200, {"choices": 5}), "gave no completion"),
        ((200, {"choices": [{"text": 5}]}), "gave no completion"),
        ((200, {"choices": [{"text": "a"}], "usage": {"completion_tokens": "many"}}), "gave no completion"),
        ((200, {"choices": [{"text": "a" * ((8 << 20) + 1)}]}), "gave no completion"),
        ((200, "text"), "(gave no completion|answers something else)"),
    ],
    ids=["key", "missing", "refused", "other", "choices", "number", "count", "long", "text"],
)
def test_what_is_wrong_is_said_without_the_key(
    scripted: Any, monkeypatch: pytest.MonkeyPatch, answer: Any, what: str
) -> None:
    monkeypatch.setenv(endpoint.KEY, SECRET)
    with pytest.raises(ServerError, match=what) as said:
        ask(scripted(lambda body: answer))
    assert SECRET not in str(said.value)


def test_no_server_at_all_is_said(monkeypatch: pytest.MonkeyPatch, scripted: Any) -> None:
    monkeypatch.setattr(endpoint, "_ATTEMPTS", 1)
    server = scripted(lambda body: None)
    with pytest.raises(ServerError, match=r"cannot be reached .* start it, then run the same command again"):
        ask(server)


@pytest.mark.parametrize("kind", ["long", "slow"])
def test_an_endless_answer_is_not_kept(scripted: Any, monkeypatch: pytest.MonkeyPatch, kind: str) -> None:
    """Of any length, or a byte now and then."""

    def spaces() -> Iterator[bytes]:
        while True:
            yield b" " * (1 << 20 if kind == "long" else 1)
            time.sleep(0 if kind == "long" else 0.1)

    monkeypatch.setattr(endpoint, "_LONGEST_BODY", 8 << 20)
    with pytest.raises(ServerError, match="gave an answer of more than 8 MiB or"):
        ask(scripted(lambda body: (200, spaces())), count=1, seconds=600 if kind == "long" else 1.5)
