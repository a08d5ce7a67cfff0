"""The client of OpenAI-compatible servers: against one that computes what it is asked for with a tiny model, and one
whose answers a test decides.
"""

import json
import socket
import threading
import time
from collections.abc import Callable, Iterator
from contextlib import suppress
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from pathlib import Path
from typing import Any

import pytest
from packtrain.pipeline.samples import endpoint
from packtrain.pipeline.samples.endpoint import EndpointEngine, ServerError
from packtrain.pipeline.samples.samples_file import read_samples
from packtrain.pipeline.store.appended import RECORD_SUFFIX
from packtrain.schemas.models.samples import SampleAnswer, SampleRequest, SampleSettings

Command = Callable[..., Any]
SECRET = "sk-very-secret-1234"


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


def completion(text: str, tokens: int = 2, reason: str = "stop") -> tuple[int, Any]:
    choice = {"index": 0, "text": text, "finish_reason": reason, "logprobs": None}
    usage = {"prompt_tokens": 3, "completion_tokens": tokens, "total_tokens": tokens + 3}
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


def ask(server: Scripted, count: int = 4) -> list[SampleAnswer]:
    engine = EndpointEngine(server.url, "m", SampleSettings(0.7, 0.9, 5, (3,)))
    return list(engine.answers([[SampleRequest((1, 300, 301), number << 40) for number in range(count)]]))


@pytest.mark.slow
def test_a_server_gives_what_the_model_gives(
    packtrain: Command, scripted: Any, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    torch = pytest.importorskip("torch")
    from tokenizers import Tokenizer
    from transformers import AutoModelForCausalLM

    from tests.support.small_models import TOKENIZER, write_model

    monkeypatch.chdir(tmp_path)
    monkeypatch.setenv(endpoint.KEY_VARIABLE, SECRET)
    folder = write_model(tmp_path / "model")
    model, tokenizer = AutoModelForCausalLM.from_pretrained(folder), Tokenizer.from_file(f"{TOKENIZER}/tokenizer.json")
    one_at_a_time = threading.Lock()

    def answer(body: dict[str, Any]) -> tuple[int, Any]:
        with one_at_a_time, torch.inference_mode():
            asked = torch.tensor([body["prompt"]])
            ends = body["stop_token_ids"]
            made = model.generate(
                asked, attention_mask=torch.ones_like(asked), do_sample=False, max_new_tokens=body["max_tokens"],
                eos_token_id=ends, pad_token_id=ends[0],
            )[0].tolist()  # fmt: skip
        new = made[len(body["prompt"]) :]
        stops = new[-1] in ends
        before, whole = (tokenizer.decode(ids) for ids in (body["prompt"], made[:-1] if stops else made))
        return completion(whole[len(before) :], len(new), "stop" if stops else "length")

    server = scripted(answer)
    prompts = [*(f"print {row} " for row in range(5)), "the mules left\n"]
    rows = [{"id": str(row), "row": row, "prompt": prompt} for row, prompt in enumerate(prompts)]
    Path("test.jsonl").write_text("".join(f"{json.dumps(row)}\n" for row in rows))
    common = ("--data", "test.jsonl", "--temperature", 0, "--max-new-tokens", 12)
    asked = packtrain(
        "sample", "m", *common, "--tokenizer", TOKENIZER, "--endpoint", server.url, "--out", "asked.jsonl"
    )
    assert asked.code == 0, asked.err
    here = packtrain("sample", folder, *common, "--out", "here.jsonl")
    assert here.code == 0, here.err
    assert list(read_samples(Path("asked.jsonl"))) == list(read_samples(Path("here.jsonl")))
    for said in (asked.out, asked.err, *(path.read_text() for path in tmp_path.glob("*.js*"))):
        assert SECRET not in said
    assert server.url not in Path(f"asked.jsonl{RECORD_SUFFIX}").read_text()


def test_token_ids_are_sent_with_all_settings(scripted: Any, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv(endpoint.KEY_VARIABLE, SECRET)
    server = scripted(lambda body: completion(str(body["seed"])))
    found = ask(server)
    assert [one.text for one in found] == [str((number << 40) >> 33) for number in range(4)]
    assert found[0].tokens == 2
    body = server.bodies[0]
    assert body["prompt"] == [1, 300, 301]
    assert (body["model"], body["temperature"], body["top_p"], body["max_tokens"]) == ("m", 0.7, 0.9, 5)
    assert body["stop_token_ids"] == [3]
    assert server.keys == {f"Bearer {SECRET}"}


@pytest.mark.parametrize(
    ("answer", "what"),
    [
        ((401, {"error": {"message": f"Incorrect API key provided: {SECRET}"}}), "answers 401: .*OPENAI_API_KEY"),
        ((401, {"error": "x" * 280 + SECRET}), 'answers 401: .*xx…"'),
        ((404, {"error": "no model m"}), "answers 404: .*usually ends in /v1, the model's name"),
        ((400, {"error": "max_tokens is too large"}), "answers 400: .*max_tokens is too large"),
        (None, r"cannot be reached .*The same command continues"),
        ((200, {"hello": 1}), "gave no completion"),
        ((200, {"choices": [{"text": 5}]}), "gave no completion"),
        ((200, {"choices": [{"text": "a"}], "usage": {"completion_tokens": "many"}}), "gave no completion"),
        ((200, {"choices": [{"text": "a"}], "usage": {"completion_tokens": -1}}), "gave no completion"),
        ((200, {"choices": [{"text": "a", "finish_reason": "r" * 1_000}]}), "gave no completion"),
        ((200, "text"), "gave no completion"),
    ],
    ids=["key", "late", "missing", "refused", "broken", "other", "number", "count", "negative", "reason", "text"],
)
def test_what_is_wrong_is_said_without_the_key(
    scripted: Any, monkeypatch: pytest.MonkeyPatch, answer: Any, what: str
) -> None:
    monkeypatch.setenv(endpoint.KEY_VARIABLE, SECRET)
    with pytest.raises(ServerError, match=what) as said:
        ask(scripted(lambda body: answer))
    assert SECRET not in str(said.value)


@pytest.mark.parametrize("kind", ["long", "slow"])
def test_an_endless_answer_is_not_kept(scripted: Any, monkeypatch: pytest.MonkeyPatch, kind: str) -> None:
    """Of any length, or a byte now and then."""

    def spaces() -> Iterator[bytes]:
        while True:
            yield b" " * (1 << 20 if kind == "long" else 1)
            time.sleep(0 if kind == "long" else 0.1)

    monkeypatch.setattr(endpoint, "_TIMEOUT_SECONDS", 600 if kind == "long" else 1.5)
    what = "an answer of more than 1,053,696 bytes" if kind == "long" else "no whole answer within 2 s"
    with pytest.raises(ServerError, match=f"gave {what}"):
        ask(scripted(lambda body: (200, spaces())), count=1)
