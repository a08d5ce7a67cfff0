"""A server that speaks OpenAI's completions: vLLM, SGLang, llama.cpp, `transformers serve`.

Prompts are sent as token ids where the server takes them, else as text. A text is tokenized once more by the server, so
its count of prompt tokens is compared with ours: a second beginning-of-sequence token would show, and is refused.
"""

import http.client
import json
import os
import re
import time
import urllib.error
import urllib.request
from collections.abc import Iterable, Iterator, Mapping, Sequence
from concurrent.futures import FIRST_COMPLETED, Future, ThreadPoolExecutor, wait
from typing import Any, NamedTuple

from ...schemas.errors import PacktrainError
from ...schemas.escape import escape_line
from ...schemas.jsontext import parse_json
from ...schemas.samples import SampleAnswer, SampleRequest, SampleSettings
from ...stages.tokenize.engines import reference_tokenizer
from ..encode.tokenizer import TokenizerSpec

KEY = "OPENAI_API_KEY"
"""The environment variable with the server's key, if it wants one."""
_PASSWORD = re.compile("(?<=://)[^/@]*@")
_ATTEMPTS = 8
"""Attempts for one request, with pauses that grow; a server that restarts is waited for."""
_REFUSED = (400, 415, 422)
"""A request of another form may do."""
_SEED_BITS = 31
_PAUSE_SECONDS, _LONGEST_PAUSE = 0.5, 8.0
_LONGEST_BODY, _LONGEST_ERROR = 64 << 20, 4096
"""Bytes of an answer that are read."""
_LONGEST = 8 << 20
"""Characters of an answer. In a samples file, a line has room for eight times as many bytes."""


class ServerError(PacktrainError, RuntimeError):
    """The server refused a request, or did not answer."""


class EndpointEngine:
    """Asks a server for each answer. What the server computes together is its own affair.

    Args:
        url: such as `http://localhost:8000/v1`.
        model: as the server calls it.
        stop: the texts of `settings.stop_ids`.
        concurrency: requests at once.
        seconds: time limit of a request.
    """

    def __init__(
        self,
        url: str,
        model: str,
        settings: SampleSettings,
        tokenizer: TokenizerSpec,
        stop: Sequence[str],
        *,
        concurrency: int,
        seconds: float,
    ) -> None:
        self._key = os.environ.get(KEY, "")
        self._shown = _PASSWORD.sub("", url)
        self._url, self._seconds = f"{url.rstrip('/')}/completions", seconds
        self._pool = ThreadPoolExecutor(concurrency, thread_name_prefix="packtrain-sample")
        self._ahead = 2 * concurrency
        self._prefix = tuple(tokenizer.prefix_ids)
        self._decode = reference_tokenizer(tokenizer.json).decode
        common = {"model": model, "temperature": settings.temperature, "max_tokens": settings.max_new_tokens}
        if settings.top_p < 1:
            common["top_p"] = settings.top_p
        ends = {"stop_token_ids": list(settings.stop_ids), "skip_special_tokens": True}
        words = {"stop": list(stop)[:4]} if stop else {}  # OpenAI's limit
        self._forms = [
            _Form(True, {**common, **ends}),
            _Form(True, {**common, **words}),
            _Form(False, {**common, **ends, "add_special_tokens": True}),
            _Form(False, {**common, **words}),
            _Form(False, common),
        ]
        """Ways to ask, the best first; those that the server refuses are forgotten."""

    def answers(self, groups: Iterable[Sequence[SampleRequest]]) -> Iterator[SampleAnswer]:
        """See `SampleEngine`.

        Raises:
            ServerError: the server refuses, cannot be reached, or tokenizes otherwise.
        """
        todo = (request for group in groups for request in group)
        first = next(todo, None)
        if first is None:
            return
        yield self._first(first)
        waiting: set[Future[SampleAnswer]] = set()
        while True:
            while len(waiting) < self._ahead and (request := next(todo, None)) is not None:
                waiting.add(self._pool.submit(self._ask, request, self._forms[0]))
            if not waiting:
                return
            done, waiting = wait(waiting, return_when=FIRST_COMPLETED)
            for future in done:
                yield future.result()

    def close(self) -> None:
        """See `SampleEngine`."""
        self._pool.shutdown(wait=False, cancel_futures=True)

    def _first(self, request: SampleRequest) -> SampleAnswer:
        """The first answer, which also finds how to ask."""
        while True:
            try:
                return self._ask(request, self._forms[0])
            except _RefusedFormError as error:
                if len(self._forms) == 1:
                    raise ServerError(f"{self._shown} refuses the request: {error}") from error
                self._forms.pop(0)

    def _ask(self, request: SampleRequest, form: "_Form") -> SampleAnswer:
        prompt = list(request.ids) if form.ids else self._text(request.ids)
        body = {"prompt": prompt, "seed": request.seed >> (64 - _SEED_BITS), "stream": False, **form.options}
        made = self._post(json.dumps(body).encode())
        answer = _answer_in(made)
        if answer is None:
            raise ServerError(f"{self._shown} gave no completion; is it an OpenAI-compatible server of completions?")
        if answer.prompt not in (None, len(request.ids)):
            raise ServerError(
                f"{self._shown} counts {answer.prompt:,} tokens in the prompt of row {request.row}, where the "
                f"tokenizer gives {len(request.ids):,}: it has another tokenizer, or adds tokens of its own; give "
                "--tokenizer of the served model, or a server that takes token ids, such as vLLM"
            )
        return SampleAnswer(request.key, answer.finish_reason, text=answer.text, tokens=answer.tokens)

    def _post(self, body: bytes) -> Any:
        """The JSON that the server answers; None if it is none. A server that stumbles is asked again.

        Raises:
            ServerError: as said.
        """
        headers = {"Content-Type": "application/json", "Authorization": f"Bearer {self._key or 'none'}"}
        request = urllib.request.Request(self._url, body, headers)
        for attempt in range(_ATTEMPTS + 1):
            try:
                with urllib.request.urlopen(request, timeout=self._seconds) as response:
                    return _json(self._read(response))
            except urllib.error.HTTPError as error:
                status, said = error.code, self._clean(error.read(_LONGEST_ERROR).decode("utf-8", "replace"))
                if status in _REFUSED:
                    raise _RefusedFormError(said) from None
                if attempt == _ATTEMPTS or not (status in (408, 409, 429) or status >= 500):
                    raise ServerError(f"{self._shown} answers {status}: {said}{_advice(status)}") from None
            except (OSError, http.client.HTTPException) as error:
                if attempt == _ATTEMPTS:
                    raise ServerError(
                        f"{self._shown} cannot be reached ({self._clean(str(error))}), in {attempt + 1} attempts; "
                        "start it, then run the same command again: it continues where it stopped"
                    ) from None
            time.sleep(min(_PAUSE_SECONDS * 2**attempt, _LONGEST_PAUSE))
        raise AssertionError("the last attempt returns or raises")

    def _read(self, response: Any) -> bytes:
        """The body of an answer, which may not be endless.

        Raises:
            ServerError: it is too long, or takes too long.
        """
        data, until = b"", time.monotonic() + self._seconds
        while part := response.read1(1 << 16):
            data += part
            if len(data) > _LONGEST_BODY or time.monotonic() > until:
                raise ServerError(
                    f"{self._shown} gave an answer of more than {_LONGEST_BODY >> 20} MiB or {self._seconds:.0f} s; "
                    "lower --max-new-tokens, or raise --timeout"
                )
        return data

    def _text(self, ids: Sequence[int]) -> str:
        """The text that the server's tokenizer turns into these ids, with what it puts before every text."""
        own = self._prefix
        bare = ids[len(own) :] if own and tuple(ids[: len(own)]) == own else ids
        return str(self._decode(list(bare), skip_special_tokens=False))

    def _clean(self, text: str) -> str:
        """What a server or an error says, in one short line, without the key."""
        said = escape_line(" ".join(text.split()))[:300]
        return said.replace(self._key, "…") if self._key else said


class _Form:
    """One way to ask.

    Args:
        ids: send token ids.
        options: keys of the request besides.
    """

    def __init__(self, ids: bool, options: Mapping[str, Any]) -> None:
        self.ids, self.options = ids, options


class _RefusedFormError(ServerError):
    """The server does not take a request of this form."""


class _ServerAnswer(NamedTuple):
    """What is used of a completion."""

    text: str
    finish_reason: str | None
    prompt: int | None
    tokens: int | None


def _answer_in(made: Any) -> _ServerAnswer | None:
    """What a server says; None if it is no completion."""
    choices, usage = (made.get("choices"), made.get("usage")) if isinstance(made, dict) else (None, None)
    if not isinstance(choices, list) or not choices or not isinstance(choices[0], dict):
        return None
    usage = usage if isinstance(usage, dict) else {}
    text, reason = choices[0].get("text"), choices[0].get("finish_reason")
    prompt, tokens = usage.get("prompt_tokens"), usage.get("completion_tokens")
    counted = all(one is None or isinstance(one, int) for one in (prompt, tokens))
    if not isinstance(text, str) or len(text) > _LONGEST or not isinstance(reason, str | None) or not counted:
        return None
    # Half a surrogate pair, which JSON can say, is no text.
    return _ServerAnswer(text.encode("utf-8", "replace").decode(), reason, prompt, tokens)


def _json(data: bytes) -> Any:
    try:
        return parse_json(data)
    except ValueError:
        return None


def _advice(status: int) -> str:
    if status in (401, 403):
        return f"; put the server's key into the environment variable {KEY}"
    if status == 404:
        return "; check --endpoint, which usually ends in /v1, and the model's name"
    return ""
