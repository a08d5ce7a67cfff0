"""The embedded engine: transformers' `generate`, one batch after another, with each sequence's own numbers."""

from collections.abc import Iterable, Iterator, Sequence
from typing import Any

import torch

from ...schemas.errors import ConfigError
from ...schemas.samples import SampleAnswer, SampleRequest, SampleSettings
from .draws import choose, draw_numbers


class BatchEngine:
    """Answers the requests of a group in one padded batch.

    Args:
        model: transformers.PreTrainedModel.
    """

    def __init__(self, model: Any, settings: SampleSettings) -> None:
        self._model = model
        self._settings = settings
        stops = list(settings.stop_ids)
        self._padding = stops[0] if stops else 0

    def answers(self, groups: Iterable[Sequence[SampleRequest]]) -> Iterator[SampleAnswer]:
        """See `SampleEngine`."""
        for group in groups:
            yield from self._batch(group)

    def close(self) -> None:
        """See `SampleEngine`."""
        self._model = None

    def _batch(self, group: Sequence[SampleRequest]) -> list[SampleAnswer]:
        from transformers import GenerationConfig

        settings, model = self._settings, self._model
        width = max(len(one.ids) for one in group)
        ids = torch.full((len(group), width), self._padding, dtype=torch.long)
        mask = torch.zeros_like(ids)
        for row, one in enumerate(group):  # padded on the left, so that all answers begin at one place
            ids[row, width - len(one.ids) :] = torch.tensor(one.ids)
            mask[row, width - len(one.ids) :] = 1
        config = GenerationConfig(
            do_sample=False,
            max_new_tokens=settings.max_new_tokens,
            eos_token_id=list(settings.stop_ids) or None,
            pad_token_id=self._padding,
        )
        choosing = _Choosing([one.seed for one in group], width, settings)
        try:
            with torch.inference_mode():
                made = model.generate(
                    ids.to(model.device),
                    attention_mask=mask.to(model.device),
                    generation_config=config,
                    logits_processor=[choosing] if settings.temperature else [],
                )
        except torch.OutOfMemoryError as error:
            raise ConfigError(
                f"memory ran out with {len(group):,} sequences of up to {width + settings.max_new_tokens:,} tokens; "
                "lower --batch or --max-new-tokens, then run the same command with another --out"
            ) from error
        new = made[:, width:].tolist()
        return [self._answer(one, tokens) for one, tokens in zip(group, new, strict=True)]

    def _answer(self, request: SampleRequest, tokens: list[int]) -> SampleAnswer:
        stops = self._settings.stop_ids
        end = next((at for at, token in enumerate(tokens) if token in stops), None)
        if end is None:
            return SampleAnswer(request.key, "length", tuple(tokens))
        return SampleAnswer(request.key, "stop", tuple(tokens[: end + 1]))


class _Choosing:
    """A logits processor that leaves one token in each row: the one drawn with the row's own number."""

    def __init__(self, seeds: list[int], width: int, settings: SampleSettings) -> None:
        self._seeds = seeds
        self._width = width
        self._settings = settings

    def __call__(self, input_ids: torch.Tensor, scores: torch.Tensor) -> torch.Tensor:
        step = input_ids.shape[1] - self._width
        numbers = draw_numbers(self._seeds, [step] * len(self._seeds))
        tokens = choose(scores, torch.from_numpy(numbers).to(scores.device), self._settings)
        return torch.full_like(scores, -torch.inf).scatter_(1, tokens[:, None], 0.0)
