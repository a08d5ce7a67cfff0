"""The loop: requests that the file lacks → an engine → lines of the file."""

import re
from collections.abc import Callable, Iterable, Iterator, Sequence
from dataclasses import dataclass
from hashlib import blake2b
from pathlib import Path
from typing import Any

from ...schemas.errors import ConfigError
from ...schemas.samples import Sample, SampleAnswer, SampleEngine, SampleRequest, SampleSettings
from ...schemas.units import plural
from ...stages.tokenize.engines import reference_tokenizer
from ..observer import Observer
from .prompts import PromptSet, SamplePrompt
from .samples_file import SamplesFile

_SHARD = re.compile("([0-9]{1,9})/([0-9]{1,9})")
_TAIL = 8
"""Tokens of the prompt that are decoded before an answer: some decoders treat the first token of a text specially."""


@dataclass(frozen=True, slots=True)
class SampleCounts:
    """What a run of `packtrain sample` did."""

    samples: int
    """Samples in the file."""
    made: int
    """Of these, by this run."""
    tokens: int
    """New tokens of all samples, where the engine says how many."""
    reasons: dict[str, int]
    """All samples in the file by `finish_reason`."""


@dataclass(frozen=True, slots=True)
class SamplePlan:
    """Which samples to draw, and how they are grouped."""

    n: int
    """Samples of each prompt."""
    seed: int
    shard: tuple[int, int] = (0, 1)
    """(i, N): this run takes the i-th of N parts, from 0."""
    together: int = 0
    """Most samples that are computed together; 0: the engine decides."""

    def groups(self, prompts: Sequence[SamplePrompt]) -> list[list[tuple[SamplePrompt, SampleRequest]]]:
        """The requests of this shard, in groups of whole rows, or of a part of one row with many samples.

        A group is the same in any shard, so that its numbers round in the same way.
        """
        size = max(1, self.together // self.n)
        rows = [prompts[at : at + size] for at in range(0, len(prompts), size)]
        index, count = self.shard
        out = []
        for some in rows[index * len(rows) // count : (index + 1) * len(rows) // count]:
            requests = [(one, self._request(one, number)) for one in some for number in range(self.n)]
            most = self.together or len(requests)
            out += [requests[at : at + most] for at in range(0, len(requests), most)]
        return out

    def _request(self, prompt: SamplePrompt, number: int) -> SampleRequest:
        digest = blake2b(f"{self.seed}/{prompt.row}/{number}".encode(), digest_size=8).digest()
        return SampleRequest(prompt.row, number, prompt.ids, int.from_bytes(digest, "little"))


def parse_shard(text: str | None) -> tuple[int, int]:
    """`I/N` as (I, N); (0, 1) for None.

    Raises:
        ConfigError: it is not such a pair.
    """
    if text is None:
        return 0, 1
    found = _SHARD.fullmatch(text)
    if found is None or int(found[1]) >= int(found[2]):
        raise ConfigError(f"--shard {text}: give I/N, with I from 0 to N-1, such as 0/4")
    return int(found[1]), int(found[2])


def shard_file(out: Path, shard: tuple[int, int]) -> Path:
    """The file of one shard: `samples.2-of-4.jsonl`. In the order of their names, they are the whole file."""
    index, count = shard
    if count == 1:
        return out
    return out.with_name(f"{out.stem}.{index:0{len(str(count - 1))}d}-of-{count}{out.suffix}")


def check_lengths(prompts: Sequence[SamplePrompt], max_new_tokens: int, positions: int | None) -> None:
    """Refuse prompts that leave no room for an answer.

    Args:
        positions: most tokens that the model takes; None if unknown.

    Raises:
        ConfigError: names the longest prompt.
    """
    if positions is None:
        return
    longest = max(prompts, key=lambda one: len(one.ids))
    over = sum(len(one.ids) + max_new_tokens > positions for one in prompts)
    if over:
        raise ConfigError(
            f"--max-new-tokens {max_new_tokens}: with the prompt, {plural(over, 'row')} would be longer than the "
            f"model's {positions:,} positions; the longest prompt, of row {longest.row}, has {len(longest.ids):,} "
            "tokens. Lower it, or leave out long rows with --set sources.0.where"
        )


def draw_samples(
    found: PromptSet,
    plan: SamplePlan,
    settings: SampleSettings,
    options: dict[str, Any],
    out: Path,
    make_engine: Callable[[], SampleEngine],
    observer: Observer,
) -> SampleCounts:
    """Draw the groups of samples that the file lacks.

    Args:
        options: what else decides the samples, recorded beside the file.
        make_engine: called only if there is something to draw.

    Raises:
        OutputError: the file is another command's; see `SamplesFile`.
        StoreError: it cannot be written.
    """
    groups = plan.groups(found.prompts)
    wanted = {request.key: prompt for group in groups for prompt, request in group}
    decode = _Decoder(found.tokenizer.json, settings)
    with SamplesFile(out, options, [[request.key for _, request in group] for group in groups]) as file:
        before = file.reasons.total()
        if 0 < before < len(wanted):
            observer.note(f"{out} has {before:,} of {len(wanted):,} samples; going on with the others")
        todo = [[request for _, request in group] for group in groups[file.groups_done :]]
        if todo:
            observer.begin("load the model", 0, "")
            engine = make_engine()
            observer.begin("sample", len(wanted) - before, "samples")
            try:
                for answers in _in_order(todo, engine.answers(iter(todo))):
                    samples = [decode(wanted[answer.key], answer) for answer in answers]
                    file.append(samples)
                    tokens = sum(sample.tokens or 0 for sample in samples)
                    observer.advance(len(samples), rows=len(samples), tokens=tokens)
            finally:
                engine.close()
            observer.end()
        held = file.reasons.total()
        return SampleCounts(held, held - before, file.tokens, dict(sorted(file.reasons.items())))


def _in_order(
    groups: Sequence[Sequence[SampleRequest]], answers: Iterable[SampleAnswer]
) -> Iterator[list[SampleAnswer]]:
    """The answers of each group, in order, as soon as all of them are there."""
    held: dict[tuple[int, int], SampleAnswer] = {}
    at = 0
    for answer in answers:
        held[answer.key] = answer
        while at < len(groups) and all(request.key in held for request in groups[at]):
            yield [held.pop(request.key) for request in groups[at]]
            at += 1


class _Decoder:
    """Turns an engine's answers into samples."""

    def __init__(self, tokenizer_json: str, settings: SampleSettings) -> None:
        self._decode = reference_tokenizer(tokenizer_json).decode
        self._stops = set(settings.stop_ids)

    def __call__(self, prompt: SamplePrompt, answer: SampleAnswer) -> Sample:
        (row, number), ids = answer.key, answer.ids
        if ids is None:
            assert answer.text is not None
            return Sample(prompt.id, row, number, answer.text, answer.finish_reason, answer.tokens)
        said = list(ids[:-1] if ids and ids[-1] in self._stops else ids)
        tail = list(prompt.ids[-_TAIL:])
        before, text = self._decode(tail), self._decode(tail + said)
        text = text[len(before) :] if text.startswith(before) else self._decode(said)
        return Sample(prompt.id, row, number, text, answer.finish_reason, len(ids))
