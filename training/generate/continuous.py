"""transformers' continuous batching: a sequence that ends makes room for the next one at once.

Which sequences share a forward pass depends on when others end, so rounding may differ from run to run, and a resumed
file can differ in the rare token that rounding decides. The numbers behind the draws are those of `draws`.
"""

from collections.abc import Iterable, Iterator, Sequence
from typing import Any

import torch
from transformers.generation.continuous_batching.cb_logits_processors import ContinuousBatchingLogitsProcessor

from ...schemas.errors import PacktrainError
from ...schemas.samples import SampleAnswer, SampleRequest, SampleSettings
from .draws import choose, draw_numbers, vocabulary_keys

_AHEAD = 4
"""Requests that wait, for each that is computed."""
_PAGE = 256


class GenerationError(PacktrainError, RuntimeError):
    """The engine failed while it generated."""


class ContinuousEngine:
    """Answers requests as places become free.

    Args:
        model: transformers.PreTrainedModel.
        batch: most sequences at once.
        longest: tokens of the longest prompt.
    """

    def __init__(self, model: Any, settings: SampleSettings, *, batch: int, longest: int) -> None:
        from transformers import ContinuousBatchingConfig, GenerationConfig

        self._settings, self._batch = settings, batch
        config = GenerationConfig(do_sample=False, max_new_tokens=settings.max_new_tokens, eos_token_id=-1)
        # On a GPU the cache takes what is free; elsewhere transformers would take most of the machine's memory.
        blocks = batch * (-(-(longest + settings.max_new_tokens) // _PAGE) + 1)
        self._manager = model.init_continuous_batching(
            generation_config=config,
            continuous_batching_config=ContinuousBatchingConfig(
                max_requests_per_batch=batch,
                num_blocks=None if model.device.type == "cuda" else blocks,
                max_memory_percent=0.8,
            ),
        )
        if settings.temperature:
            # Made before CUDA graphs are captured.
            vocabulary_keys(model.config.get_text_config().vocab_size, str(model.device))
            processors = self._manager.logit_processor
            processors.logits_processor.append(_PagedChoosing(settings))
            processors.tensors_required += 1
            processors.do_processing = True
            processors._retrieve_processors_kwargs()

    def answers(self, groups: Iterable[Sequence[SampleRequest]]) -> Iterator[SampleAnswer]:
        """See `SampleEngine`.

        Raises:
            GenerationError: transformers' loop failed.
        """
        todo = (request for group in groups for request in group)
        waiting: dict[str, SampleRequest] = {}
        self._manager.start()
        try:
            while True:
                while len(waiting) < self._batch * _AHEAD and (request := next(todo, None)) is not None:
                    name = f"{request.row}/{request.sample}"
                    seeded = {"seed": request.seed, "begin": len(request.ids)} if self._settings.temperature else {}
                    waiting[name] = request
                    self._manager.add_request(
                        list(request.ids), name, eos_token_id=list(self._settings.stop_ids) or None, **seeded
                    )
                if not waiting:
                    return
                result = self._manager.get_result(timeout=1)
                if result is None:
                    if not self._manager.is_running():
                        cause = self._manager.background_thread_status.fatal_error
                        raise GenerationError(
                            f"transformers' continuous batching stopped: {cause}; try --engine batches"
                        )
                    continue
                if result.error is not None:
                    raise GenerationError(f"transformers could not generate: {result.error}; try --engine batches")
                if result.is_finished():
                    yield self._answer(waiting.pop(result.request_id), tuple(result.generated_tokens))
        finally:
            self._manager.stop(block=True, hard_stop=bool(waiting))

    def close(self) -> None:
        """See `SampleEngine`."""
        self._manager.destroy()

    def _answer(self, request: SampleRequest, tokens: tuple[int, ...]) -> SampleAnswer:
        ended = bool(tokens) and tokens[-1] in self._settings.stop_ids
        return SampleAnswer(request.key, "stop" if ended else "length", tokens)


class _PagedChoosing(ContinuousBatchingLogitsProcessor):  # type: ignore[misc]  # transformers is not followed
    """Leaves one token in each row of scores: the one drawn with the number of the row's request and step."""

    supported_kwargs = {"seed": int, "begin": int}  # noqa: RUF012 - transformers' own declaration
    ignored_kwargs = ()

    def __init__(self, settings: SampleSettings) -> None:
        self._settings = settings

    def fill_defaults(self, int32_tensor: torch.Tensor) -> None:
        """See transformers."""
        int32_tensor.zero_()

    def prepare_tensor_args(self, requests_with_new_token: list[Any]) -> torch.Tensor:
        """(B,) the numbers, as int32."""
        states = [one.state for one in requests_with_new_token]
        given = [one.logit_processor_kwargs for one in states]
        # The place in the sequence, because asynchronous batching does not know the token before yet.
        steps = [one.position_offset - kwargs["begin"] for one, kwargs in zip(states, given, strict=True)]
        return torch.from_numpy(draw_numbers([kwargs["seed"] for kwargs in given], steps))

    def __call__(self, scores: torch.Tensor, tensor_arg: torch.Tensor) -> torch.Tensor:
        """Scores of which one in each row is not −∞."""
        tokens = choose(scores, tensor_arg[: scores.shape[0]], self._settings)
        return torch.full_like(scores, -torch.inf).scatter_(1, tokens[:, None], 0.0)
