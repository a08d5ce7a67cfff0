"""The loop: requests that the file lacks → an engine → lines of the file."""

from collections import Counter
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from functools import partial
from itertools import islice
from pathlib import Path
from typing import Any

import msgspec
from blake3 import blake3

from ...schemas.samples import Sample, SampleAnswer, SampleEngine, SampleRequest, SampleSettings
from ...stages.tokenize.engines import reference_tokenizer
from ..observer import Observer
from .prompts import PromptSet, SamplePrompt
from .samples_file import open_samples, read_samples

_TAIL = 8
"""Tokens of the prompt that are decoded before an answer: some decoders treat the first token of a text specially."""


@dataclass(frozen=True, slots=True)
class SampleCounts:
    """What a run of `packtrain sample` did."""

    samples: int
    """Samples in the file."""
    made: int
    """Of these, by this run."""
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
    together: int = 1
    """Most samples that are computed together."""

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
            out += [requests[at : at + self.together] for at in range(0, len(requests), self.together)]
        return out

    def _request(self, prompt: SamplePrompt, number: int) -> SampleRequest:
        digest = blake3(f"{self.seed}/{prompt.row}/{number}".encode()).digest(8)
        return SampleRequest(prompt.row, number, prompt.ids, int.from_bytes(digest, "little"))


def shard_file(out: Path, shard: tuple[int, int]) -> Path:
    """The file of one shard: `samples.2-of-4.jsonl`. In the order of their names, they are the whole file."""
    index, count = shard
    if count == 1:
        return out
    return out.with_name(f"{out.stem}.{index:0{len(str(count - 1))}d}-of-{count}{out.suffix}")


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
        OutputError: the file is another command's; see `open_samples`.
        StoreError: it cannot be written.
    """
    groups = plan.groups(found.prompts)
    wanted = sum(map(len, groups))
    decode = partial(_sample, reference_tokenizer(found.tokenizer.json).decode, frozenset(settings.stop_ids))
    file, done = open_samples(out, options, [*map(len, groups)])
    with file:
        todo = groups[done:]
        left = sum(map(len, todo))
        if 0 < left < wanted:
            observer.note(f"{out} has {wanted - left:,} of {wanted:,} samples; going on with the others")
        if todo:
            observer.begin("load the model", 0, "")
            engine = make_engine()
            observer.begin("sample", left, "samples")
            try:
                answers = engine.answers([request for _, request in group] for group in todo)
                for group in todo:
                    prompts = [prompt for prompt, _ in group]
                    samples = list(map(decode, prompts, islice(answers, len(group))))
                    file.append(b"".join(msgspec.json.encode(sample) + b"\n" for sample in samples))
                    tokens = sum(sample.tokens or 0 for sample in samples)
                    observer.advance(len(samples), rows=len(samples), tokens=tokens)
            finally:
                engine.close()
            observer.end()
        reasons = Counter(sample.finish_reason or "unknown" for sample in read_samples(out))
        return SampleCounts(wanted, left, dict(sorted(reasons.items())))


def _sample(
    decode: Callable[[list[int]], str], stops: frozenset[int], prompt: SamplePrompt, made: SampleAnswer
) -> Sample:
    """The sample of an engine's answer."""
    (row, number), ids = made.key, made.ids
    if ids is None:
        return Sample(prompt.id, row, number, made.text or "", made.finish_reason, made.tokens)
    said = list(ids[:-1] if ids and ids[-1] in stops else ids)
    tail = list(prompt.ids[-_TAIL:])
    before, text = decode(tail), decode(tail + said)
    text = text[len(before) :] if text.startswith(before) else decode(said)
    return Sample(prompt.id, row, number, text, made.finish_reason, len(ids))
