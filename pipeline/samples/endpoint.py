"""A server that speaks OpenAI's completions and takes token ids as prompts, as vLLM and SGLang do."""

import http.client
import os
import urllib.error
from collections import deque
from collections.abc import Generator, Iterable, Sequence
from concurrent.futures import Future, ThreadPoolExecutor
from typing import Annotated, Any

import msgspec

from ...schemas.errors import PacktrainError
from ...schemas.escape import escape_line, without_secrets
from ...schemas.files.web import Clock, open_web
from ...schemas.jsontext import decode_note
from ...schemas.samples import SampleAnswer, SampleRequest, SampleSettings

KEY = "OPENAI_API_KEY"
"""The environment variable with the server's key, if it wants one."""
_SECONDS = 1800.0
"""Time limit of a request, from its start to its last byte."""
_AT_ONCE, _AHEAD = 64, 512
"""Requests that run at once; and that are waiting or done, so that one long answer does not hold up the others."""
_LONGEST_BODY, _LONGEST_TOKEN, _LONGEST_ERROR = 1 << 20, 1 << 10, 4096
"""Bytes of an answer that are read, besides those for each token; and of an error."""


class ServerError(PacktrainError, RuntimeError):
    """The server refused a request, or did not answer."""


class _Choice(msgspec.Struct):
    text: str
    finish_reason: Annotated[str, msgspec.Meta(max_length=40)] | None = None


class _Usage(msgspec.Struct):
    completion_tokens: Annotated[int, msgspec.Meta(ge=0)] | None = None


class _Completion(msgspec.Struct):
    """What is used of an answer."""

    choices: Annotated[list[_Choice], msgspec.Meta(min_length=1)]
    usage: _Usage | None = None


class EndpointEngine:
    """Asks a server for each answer. What the server computes together is its own affair.

    Args:
        url: such as `http://localhost:8000/v1`.
        model: as the server calls it.
    """

    def __init__(self, url: str, model: str, settings: SampleSettings) -> None:
        self._key = os.environ.get(KEY, "")
        self._shown = without_secrets(url)
        self._longest = _LONGEST_BODY + _LONGEST_TOKEN * settings.max_new_tokens
        self._url = f"{url.rstrip('/')}/completions"
        self._common: dict[str, Any] = {
            "model": model,
            "temperature": settings.temperature,
            "top_p": settings.top_p,
            "max_tokens": settings.max_new_tokens,
            "stop_token_ids": list(settings.stop_ids),
            "stream": False,
        }

    def answers(self, groups: Iterable[Sequence[SampleRequest]]) -> Generator[SampleAnswer, None, None]:
        """See `SampleEngine`.

        Raises:
            ServerError: the server refuses, or cannot be reached.
        """
        pool = ThreadPoolExecutor(_AT_ONCE, thread_name_prefix="packtrain-sample")
        waiting = deque[Future[SampleAnswer]]()
        try:
            for request in (one for group in groups for one in group):
                waiting.append(pool.submit(self._ask, request))
                if len(waiting) == _AHEAD:
                    yield waiting.popleft().result()
            while waiting:
                yield waiting.popleft().result()
        finally:
            pool.shutdown(wait=False, cancel_futures=True)

    def _ask(self, request: SampleRequest) -> SampleAnswer:
        body = {**self._common, "prompt": list(request.ids), "seed": request.seed >> 33}
        try:
            made = decode_note(self._post(msgspec.json.encode(body)), _Completion)
        except ValueError:
            raise ServerError(
                f"{self._shown} gave no completion; is it an OpenAI-compatible server of completions?"
            ) from None
        choice, usage = made.choices[0], made.usage or _Usage()
        return SampleAnswer(choice.finish_reason, text=choice.text, tokens=usage.completion_tokens)

    def _post(self, body: bytes) -> bytes:
        """What the server answers.

        Raises:
            ServerError: it refuses, or cannot be reached.
        """
        try:
            headers = {"Content-Type": "application/json", "Authorization": f"Bearer {self._key or 'none'}"}
            with open_web(self._url, headers, data=body, clock=Clock(_SECONDS, fixed=True)) as response:
                return self._read(response)
        except urllib.error.HTTPError as error:
            said = f"answers {error.code}: {self._clean(error.read(_LONGEST_ERROR).decode('utf-8', 'replace'))}"
        except TimeoutError:
            said = f"gave no whole answer within {_SECONDS:,.0f} s"
        except (OSError, http.client.HTTPException) as error:
            said = f"cannot be reached ({self._clean(str(error))})"
        raise ServerError(
            f"{self._shown} {said}; check that it runs and takes token ids (vLLM, SGLang), --endpoint, which usually "
            f"ends in /v1, the model's name and the key in {KEY}. The same command continues where it stopped"
        )

    def _read(self, response: Any) -> bytes:
        """The body of an answer, which may not be endless.

        Raises:
            ServerError: it is too long.
            OSError, HTTPException: it takes too long, or ends early.
        """
        data = bytearray()
        while part := response.read1(1 << 16):
            data += part
            if len(data) > self._longest:
                raise ServerError(
                    f"{self._shown} gave an answer of more than {self._longest:,} bytes; check it, or lower "
                    "--max-new-tokens"
                )
        return bytes(data)

    def _clean(self, text: str) -> str:
        """What a server or an error says, in one short line, without the key."""
        plain = text.replace(self._key, "…") if self._key else text
        return escape_line(" ".join(plain.split()))[:300]
