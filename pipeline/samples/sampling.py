"""The loop: requests that the file lacks → an engine → lines of the file."""

from collections import Counter
from collections.abc import Callable, Sequence
from contextlib import closing
from dataclasses import dataclass
from functools import partial
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
class SamplePlan:
    """Which samples to draw, and how they are grouped."""

    n: int
    """Samples of each prompt."""
    seed: int
    shard: tuple[int, int] = (0, 1)
    """(i, N): this run takes the i-th of N parts, from 0."""
    together: int = 1
    """Samples of a group, which are computed together; the last group may have fewer."""

    def groups(self, prompts: Sequence[SamplePrompt]) -> list[list[tuple[SamplePrompt, int]]]:
        """(prompt, number) of the samples of this shard, in groups.

        A group is the same in any shard, so that its numbers round in the same way.
        """
        whole = [(one, number) for one in prompts for number in range(self.n)]
        groups = [whole[at : at + self.together] for at in range(0, len(whole), self.together)]
        index, count = self.shard
        return groups[index * len(groups) // count : (index + 1) * len(groups) // count]

    def request(self, prompt: SamplePrompt, number: int) -> SampleRequest:
        """What an engine is asked for a sample."""
        digest = blake3(f"{self.seed}/{prompt.row}/{number}".encode()).digest(8)
        return SampleRequest(prompt.ids, int.from_bytes(digest, "little"))


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
) -> dict[str, int]:
    """Draw the groups of samples that the file lacks. Returns all samples in the file by `finish_reason`.

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
    file, done = open_samples(out, options, wanted, plan.together)
    with closing(file):
        if done:
            observer.note(f"{out} has {done:,} of {wanted:,} samples already")
        if done < wanted:
            observer.begin("load the model", 0, "")
            engine, todo = make_engine(), groups[done // plan.together :]
            observer.begin("sample", wanted - done, "samples")
            with closing(engine.answers([plan.request(*one) for one in group] for group in todo)) as answers:
                for group in todo:
                    samples = [decode(one, next(answers)) for one in group]
                    file.append(b"".join(msgspec.json.encode(sample) + b"\n" for sample in samples))
                    tokens = sum(sample.tokens or 0 for sample in samples)
                    observer.advance(len(samples), rows=len(samples), tokens=tokens)
            observer.end()
        return dict(Counter(sample.finish_reason or "unknown" for sample in read_samples(out)))


def _sample(
    decode: Callable[[list[int]], str], stops: frozenset[int], drawn: tuple[SamplePrompt, int], made: SampleAnswer
) -> Sample:
    """The sample of an engine's answer."""
    (prompt, number), ids = drawn, made.ids
    if ids is None:
        return Sample(prompt.id, prompt.row, number, made.text or "", made.finish_reason, made.tokens)
    said = list(ids[:-1] if ids and ids[-1] in stops else ids)
    tail = list(prompt.ids[-_TAIL:])
    before, text = decode(tail), decode(tail + said)
    text = text[len(before) :] if text.startswith(before) else decode(said)
    return Sample(prompt.id, prompt.row, number, text, made.finish_reason, len(ids))
