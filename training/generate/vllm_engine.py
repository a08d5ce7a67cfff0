"""vLLM in this process, where it is installed. It decides what it computes together, and seeds each request itself."""

from collections.abc import Iterable, Iterator, Sequence
from typing import Any

from ...schemas.errors import ConfigError
from ...schemas.samples import SampleAnswer, SampleRequest, SampleSettings
from .model_place import ModelPlace

_AT_ONCE = 4096
"""Requests handed over at once; their answers come back together."""


class VllmEngine:
    """Answers requests with `vllm.LLM`.

    Raises:
        ConfigError: vLLM is not installed.
    """

    def __init__(self, place: ModelPlace, settings: SampleSettings, *, dtype: str, positions: int) -> None:
        try:
            from vllm import LLM
        except ImportError as error:
            raise ConfigError(
                f"--engine vllm: vLLM cannot be imported ({error}); pip install 'packtrain[vllm]', or "
                "give another engine"
            ) from None
        self._settings, self._adapter = settings, place.adapter
        self._model: Any = LLM(
            model=str(place.folder), dtype=dtype, max_model_len=positions, skip_tokenizer_init=True,
            generation_config="vllm", enable_lora=place.adapter is not None, enable_prefix_caching=True,
        )  # fmt: skip

    def answers(self, groups: Iterable[Sequence[SampleRequest]]) -> Iterator[SampleAnswer]:
        """See `SampleEngine`."""
        waiting: list[SampleRequest] = []
        for group in groups:
            waiting += group
            if len(waiting) >= _AT_ONCE:
                yield from self._together(waiting)
                waiting = []
        if waiting:
            yield from self._together(waiting)

    def close(self) -> None:
        """See `SampleEngine`."""
        self._model = None

    def _together(self, requests: Sequence[SampleRequest]) -> Iterator[SampleAnswer]:
        from vllm import SamplingParams
        from vllm.lora.request import LoRARequest

        settings = self._settings
        common = {
            "temperature": settings.temperature, "top_p": settings.top_p, "max_tokens": settings.max_new_tokens,
            "stop_token_ids": list(settings.stop_ids), "ignore_eos": True, "detokenize": False,
        }  # fmt: skip
        made = self._model.generate(
            [{"prompt_token_ids": list(one.ids)} for one in requests],
            [SamplingParams(seed=one.seed >> 1, **common) for one in requests],
            use_tqdm=False,
            lora_request=None if self._adapter is None else LoRARequest("adapter", 1, str(self._adapter)),
        )
        for request, output in zip(requests, made, strict=True):
            (one,) = output.outputs
            yield SampleAnswer(request.key, one.finish_reason, tuple(one.token_ids))
