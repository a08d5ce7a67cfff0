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
from ...schemas.models.samples import SampleAnswer, SampleRequest, SampleSettings

KEY_VARIABLE = "OPENAI_API_KEY"
"""The environment variable with the server's key, if it wants one."""
_TIMEOUT_SECONDS = 1800.0
"""Limit of a request, from its start to its last byte."""
_CONCURRENT_REQUESTS = 64
"""Requests that the server has at once."""
_QUEUED_REQUESTS = 512
"""Requests in the queue, whether they wait, run or are answered. Answers are taken in order, so that with a shorter
queue a single long answer would leave the server without work.
"""
_MAX_BODY_BYTES = 1 << 20
"""Bytes of an answer that are read, besides those for its tokens."""
_MAX_TOKEN_BYTES = 1 << 10
"""Bytes of an answer that are read for each token that was asked for."""
_MAX_ERROR_BYTES = 4096
"""Bytes of an error's message that are read."""


class ServerError(PacktrainError, RuntimeError):
    """The server refused a request, or did not answer."""


class _Choice(msgspec.Struct):
    """One of the answers to a prompt. Only one is asked for."""

    text: str
    finish_reason: Annotated[str, msgspec.Meta(max_length=40)] | None = None


class _Usage(msgspec.Struct):
    """What the server counted; `completion_tokens` are those of the answer."""

    completion_tokens: Annotated[int, msgspec.Meta(ge=0)] | None = None


class _Completion(msgspec.Struct):
    """The fields of an answer that are read."""

    choices: Annotated[list[_Choice], msgspec.Meta(min_length=1)]
    usage: _Usage | None = None


class EndpointEngine:
    """Asks a server for each answer. What the server computes together is its own affair.

    Args:
        url: such as `http://localhost:8000/v1`.
        model: the name by which the server knows the model.
    """

    def __init__(self, url: str, model: str, settings: SampleSettings) -> None:
        self._key = os.environ.get(KEY_VARIABLE, "")
        self._url = f"{url.rstrip('/')}/completions"
        self._shown_url = without_secrets(url)
        self._max_answer_bytes = _MAX_BODY_BYTES + _MAX_TOKEN_BYTES * settings.max_new_tokens
        self._common_fields: dict[str, Any] = {
            "model": model,
            "temperature": settings.temperature,
            "top_p": settings.top_p,
            "max_tokens": settings.max_new_tokens,
            "stop_token_ids": list(settings.stop_ids),
            "stream": False,
        }

    def answers(self, groups: Iterable[Sequence[SampleRequest]]) -> Generator[SampleAnswer, None, None]:
        """Answer all requests, in their order. Groups mean nothing here, because the server forms its own.

        Raises:
            ServerError: the server refuses, or cannot be reached.
        """
        pool = ThreadPoolExecutor(_CONCURRENT_REQUESTS, thread_name_prefix="packtrain-sample")
        queue = deque[Future[SampleAnswer]]()  # in the order of the requests
        try:
            for group in groups:
                for request in group:
                    queue.append(pool.submit(self._ask, request))
                    if len(queue) == _QUEUED_REQUESTS:
                        yield queue.popleft().result()
            while queue:
                yield queue.popleft().result()
        finally:
            # Not waited for: after a failure, the command ends without the answers that are still on their way.
            pool.shutdown(wait=False, cancel_futures=True)

    def _ask(self, request: SampleRequest) -> SampleAnswer:
        """The server's answer to one request; runs in a thread of the pool.

        Raises:
            ServerError: it refuses, cannot be reached, or gives something else than a completion.
        """
        body = {
            **self._common_fields,
            # Token ids, not text: a server that tokenized the prompt itself could get other tokens than training has.
            "prompt": list(request.token_ids),
            # The upper 31 of its 64 bits: any server takes such a number for a seed.
            "seed": request.seed >> 33,
        }
        try:
            completion = decode_note(self._post(msgspec.json.encode(body)), _Completion)
        except ValueError:
            raise ServerError(
                f"{self._shown_url} gave no completion; is it an OpenAI-compatible server of completions?"
            ) from None
        choice = completion.choices[0]
        tokens = completion.usage.completion_tokens if completion.usage else None
        return SampleAnswer(choice.finish_reason, text=choice.text, tokens=tokens)

    def _post(self, body: bytes) -> bytes:
        """What the server answers.

        Raises:
            ServerError: it refuses, or cannot be reached.
        """
        try:
            headers = {"Content-Type": "application/json", "Authorization": f"Bearer {self._key or 'none'}"}
            # A fixed time, which a long body does not extend: a server that computes an answer is silent for long, and
            # may take this time in all.
            clock = Clock(_TIMEOUT_SECONDS, fixed=True)
            with open_web(self._url, headers, data=body, clock=clock) as response:
                return self._read(response)
        except urllib.error.HTTPError as error:
            message = error.read(_MAX_ERROR_BYTES).decode("utf-8", "replace")
            problem = f"answers {error.code}: {self._clean(message)}"
        except TimeoutError:
            problem = f"gave no whole answer within {_TIMEOUT_SECONDS:,.0f} s"
        except (OSError, http.client.HTTPException) as error:
            problem = f"cannot be reached ({self._clean(str(error))})"
        raise ServerError(
            f"{self._shown_url} {problem}; check that it runs and takes token ids (vLLM, SGLang), --endpoint, which "
            f"usually ends in /v1, the model's name and the key in {KEY_VARIABLE}. The same command continues where it "
            "stopped"
        )

    def _read(self, response: Any) -> bytes:
        """The body of an answer, which may not be endless.

        Raises:
            ServerError: it is too long.
            OSError, HTTPException: it takes too long, or ends early.
        """
        body = bytearray()
        while chunk := response.read1(1 << 16):
            body += chunk
            if len(body) > self._max_answer_bytes:
                raise ServerError(
                    f"{self._shown_url} gave an answer of more than {self._max_answer_bytes:,} bytes; check it, or "
                    "lower --max-new-tokens"
                )
        return bytes(body)

    def _clean(self, text: str) -> str:
        """The message of a server or an error, in one short line, without the key."""
        without_key = text.replace(self._key, "…") if self._key else text
        return escape_line(" ".join(without_key.split()))[:300]
