"""A server that speaks OpenAI's completions: vLLM, SGLang, llama.cpp, `transformers serve`.

Prompts are sent as token ids where the server takes them, else as text. A text is tokenized once more by the server, so
its count of prompt tokens is compared with ours: a second beginning-of-sequence token would show, and is refused.
"""

import http.client
import os
import re
import time
import urllib.error
import urllib.request
from collections import deque
from collections.abc import Iterable, Iterator, Sequence
from concurrent.futures import Future, ThreadPoolExecutor
from typing import Annotated, Any

import msgspec

from ...schemas.errors import PacktrainError
from ...schemas.escape import escape_line
from ...schemas.jsontext import decode_note
from ...schemas.samples import SampleAnswer, SampleRequest, SampleSettings
from ...stages.tokenize.engines import reference_tokenizer
from ..encode.tokenizer import TokenizerSpec

KEY = "OPENAI_API_KEY"
"""The environment variable with the server's key, if it wants one."""
_PASSWORD = re.compile("(?<=://)[^/@]*@")
_ATTEMPTS = 8
"""Attempts for one request, with pauses that grow; a server that restarts is waited for."""
_REFUSED = (400, 415, 422)
_AHEAD = 8
"""Requests for each that runs at once, so that one long answer does not hold up the others."""
_PAUSE_SECONDS, _LONGEST_PAUSE = 0.5, 8.0
_LONGEST_BODY, _LONGEST_ERROR = 64 << 20, 4096
"""Bytes of an answer that are read."""
_LONGEST = 8 << 20
"""Characters of an answer. In a samples file, a line has room for eight times as many bytes."""


class ServerError(PacktrainError, RuntimeError):
    """The server refused a request, or did not answer."""


class _RefusedError(ServerError):
    """The server does not take the request; it may take one of another form."""


class _Choice(msgspec.Struct):
    text: Annotated[str, msgspec.Meta(max_length=_LONGEST)]
    finish_reason: str | None = None


class _Usage(msgspec.Struct):
    prompt_tokens: int | None = None
    completion_tokens: int | None = None


class _Completion(msgspec.Struct):
    """What is used of an answer."""

    choices: Annotated[list[_Choice], msgspec.Meta(min_length=1)]
    usage: _Usage | None = None


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
        self._ahead = _AHEAD * concurrency
        self._prefix = tuple(tokenizer.prefix_ids)
        self._decode = reference_tokenizer(tokenizer.json).decode
        self._common: dict[str, Any] = {
            "model": model,
            "temperature": settings.temperature,
            "max_tokens": settings.max_new_tokens,
        }
        if settings.top_p < 1:
            self._common["top_p"] = settings.top_p
        self._ends: dict[str, Any] = {"stop_token_ids": list(settings.stop_ids), "skip_special_tokens": True}
        self._words: dict[str, Any] = {"stop": list(stop)[:4]} if stop else {}  # OpenAI's limit
        self._takes_ids = True

    def answers(self, groups: Iterable[Sequence[SampleRequest]]) -> Iterator[SampleAnswer]:
        """See `SampleEngine`.

        Raises:
            ServerError: the server refuses, cannot be reached, or tokenizes otherwise.
        """
        todo = (request for group in groups for request in group)
        for first in todo:  # finds how to ask
            try:
                yield self._ask(first)
            except _RefusedError:
                self._takes_ids = False
                yield self._ask(first)
            break
        waiting: deque[Future[SampleAnswer]] = deque()
        for request in todo:
            waiting.append(self._pool.submit(self._ask, request))
            if len(waiting) == self._ahead:
                yield waiting.popleft().result()
        while waiting:
            yield waiting.popleft().result()

    def close(self) -> None:
        """See `SampleEngine`."""
        self._pool.shutdown(wait=False, cancel_futures=True)

    def _ask(self, request: SampleRequest) -> SampleAnswer:
        if self._takes_ids:
            form = {"prompt": list(request.ids), **self._ends}
        else:
            form = {"prompt": self._text(request.ids), **self._words}
        data = self._post(msgspec.json.encode({**self._common, "seed": request.seed >> 33, "stream": False, **form}))
        try:
            made = decode_note(data, _Completion)
        except ValueError:
            raise ServerError(
                f"{self._shown} gave no completion; is it an OpenAI-compatible server of completions?"
            ) from None
        choice, usage = made.choices[0], made.usage or _Usage()
        if usage.prompt_tokens not in (None, len(request.ids)):
            raise ServerError(
                f"{self._shown} counts {usage.prompt_tokens:,} tokens in the prompt of row {request.row}, where the "
                f"tokenizer gives {len(request.ids):,}: it has another tokenizer, or adds tokens of its own; give "
                "--tokenizer of the served model, or a server that takes token ids, such as vLLM"
            )
        return SampleAnswer(request.key, choice.finish_reason, text=choice.text, tokens=usage.completion_tokens)

    def _post(self, body: bytes) -> bytes:
        """What the server answers. A server that stumbles is asked again.

        Raises:
            ServerError: it refuses, or does not answer.
        """
        headers = {"Content-Type": "application/json", "Authorization": f"Bearer {self._key or 'none'}"}
        request = urllib.request.Request(self._url, body, headers)
        for attempt in range(_ATTEMPTS + 1):
            try:
                with urllib.request.urlopen(request, timeout=self._seconds) as response:
                    return self._read(response)
            except urllib.error.HTTPError as error:
                status, said = error.code, self._clean(error.read(_LONGEST_ERROR).decode("utf-8", "replace"))
                if status in _REFUSED:
                    raise _RefusedError(f"{self._shown} refuses the request: {said}") from None
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
        data, until = bytearray(), time.monotonic() + self._seconds
        while part := response.read1(1 << 16):
            data += part
            if len(data) > _LONGEST_BODY or time.monotonic() > until:
                raise ServerError(
                    f"{self._shown} gave an answer of more than {_LONGEST_BODY >> 20} MiB or {self._seconds:.0f} s; "
                    "lower --max-new-tokens, or raise --timeout"
                )
        return bytes(data)

    def _text(self, ids: Sequence[int]) -> str:
        """The text that the server's tokenizer turns into these ids, with what it puts before every text."""
        own = self._prefix
        bare = ids[len(own) :] if own and tuple(ids[: len(own)]) == own else ids
        return str(self._decode(list(bare), skip_special_tokens=False))

    def _clean(self, text: str) -> str:
        """What a server or an error says, in one short line, without the key."""
        said = escape_line(" ".join(text.split()))[:300]
        return said.replace(self._key, "…") if self._key else said


def _advice(status: int) -> str:
    if status in (401, 403):
        return f"; put the server's key into the environment variable {KEY}"
    if status == 404:
        return "; check --endpoint, which usually ends in /v1, and the model's name"
    return ""
