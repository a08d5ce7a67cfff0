"""The loop of `packtrain sample`: requests whose samples the file lacks → an engine → lines of the file."""

from collections import Counter
from collections.abc import Callable, Generator, Sequence
from contextlib import closing
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import msgspec

from ...schemas.fingerprint import hash_to_bytes
from ...schemas.models.samples import Sample, SampleAnswer, SampleEngine, SampleRequest, SampleSettings
from ...stages.tokenize.engines import reference_tokenizer
from ..observer import Observer
from .prompts import PromptSet, SamplePrompt
from .samples_file import open_samples, read_samples

_CONTEXT_TOKENS = 8
"""Tokens of the prompt that are decoded before an answer: some decoders treat the first token of a text specially."""


@dataclass(frozen=True, slots=True)
class SamplePlan:
    """Which samples to draw, and how they are grouped."""

    n: int
    """Samples of each prompt."""
    seed: int
    """Other seeds draw other samples."""
    shard: tuple[int, int] = (0, 1)
    """(i, N): this run takes the i-th of N parts, from 0."""
    group_size: int = 1
    """Samples of a group, which are computed together; the last group may have fewer."""

    def groups(self, prompts: Sequence[SamplePrompt]) -> list[list[tuple[SamplePrompt, int]]]:
        """(prompt, which sample of it, from 0) of the samples of this shard, in groups.

        All samples are grouped before they are divided: a group is the same in any shard, so that its numbers round in
        the same way.
        """
        samples = [(prompt, number) for prompt in prompts for number in range(self.n)]
        groups = [samples[start : start + self.group_size] for start in range(0, len(samples), self.group_size)]
        # Of 10 groups, 4 shards take 0-1, 2-4, 5-6 and 7-9.
        index, count = self.shard
        first = index * len(groups) // count
        end = (index + 1) * len(groups) // count
        return groups[first:end]

    def request(self, prompt: SamplePrompt, number: int) -> SampleRequest:
        """The request for one sample: the prompt's tokens, and a seed.

        Args:
            number: which sample of the prompt, from 0.
        """
        # A hash of its own for each sample: a sample is the same whichever were drawn before it.
        digest = hash_to_bytes(f"{self.seed}/{prompt.row}/{number}".encode(), 8)
        return SampleRequest(prompt.token_ids, int.from_bytes(digest, "little"))


def shard_file(out: Path, shard: tuple[int, int]) -> Path:
    """The file of one shard: `samples.2-of-4.jsonl`. Concatenated in the order of their names, they are the whole."""
    index, count = shard
    if count == 1:
        return out
    digits = len(str(count - 1))
    return out.with_name(f"{out.stem}.{index:0{digits}d}-of-{count}{out.suffix}")


def draw_samples(
    prompts: PromptSet,
    plan: SamplePlan,
    settings: SampleSettings,
    options: dict[str, Any],
    out: Path,
    make_engine: Callable[[], SampleEngine],
    observer: Observer,
) -> dict[str, int]:
    """Draw the groups of samples that the file lacks. Returns the number of samples in the file by `finish_reason`.

    Args:
        options: everything that decides the samples, recorded beside the file: with other options, it is not continued.
        make_engine: called only if there is something to draw.

    Raises:
        OutputError: another command made the file, or it holds more samples than this one draws.
        BusyError: another process is writing it.
        StoreError: it cannot be written.
    """
    groups = plan.groups(prompts.prompts)
    total = sum(len(group) for group in groups)
    decode = reference_tokenizer(prompts.tokenizer.json).decode
    stop_ids = frozenset(settings.stop_ids)
    file, finished = open_samples(out, options, total, plan.group_size)
    with closing(file):
        if finished:
            observer.note(f"{out} has {finished:,} of {total:,} samples already")
        if finished < total:
            observer.begin("load the model", total=0, unit="")  # 0: it is unknown how much work it is
            engine = make_engine()
            observer.begin("sample", total=total - finished, unit="samples")
            # The file holds whole groups, unless it is complete.
            missing_groups = groups[finished // plan.group_size :]
            with closing(_draw(engine, plan, missing_groups, decode, stop_ids)) as drawn_groups:
                for samples in drawn_groups:
                    # Only whole groups are appended, so that the next run begins with a whole one.
                    file.append(b"".join(msgspec.json.encode(sample) + b"\n" for sample in samples))
                    tokens = sum(sample.tokens or 0 for sample in samples)
                    observer.advance(len(samples), rows=len(samples), tokens=tokens)
            observer.end()
        # Read from the file: samples of earlier runs count, too.
        return dict(Counter(sample.finish_reason or "unknown" for sample in read_samples(out)))


def _draw(
    engine: SampleEngine,
    plan: SamplePlan,
    groups: Sequence[Sequence[tuple[SamplePrompt, int]]],
    decode: Callable[[list[int]], str],
    stop_ids: frozenset[int],
) -> Generator[list[Sample], None, None]:
    """The samples of each group. Closing it ends the engine's work.

    Args:
        groups: (prompt, which sample of it, from 0) of each sample, as `SamplePlan.groups` gives them.
        decode: turns token ids into text.
        stop_ids: tokens that end an answer.
    """
    requests = ([plan.request(prompt, number) for prompt, number in group] for group in groups)
    with closing(engine.answers(requests)) as answers:
        for group in groups:
            # Answers come one a request, in the order of the requests.
            yield [_sample(prompt, number, next(answers), decode, stop_ids) for prompt, number in group]


def _sample(
    prompt: SamplePrompt,
    number: int,
    answer: SampleAnswer,
    decode: Callable[[list[int]], str],
    stop_ids: frozenset[int],
) -> Sample:
    """The sample of an engine's answer, with its tokens decoded to text.

    Args:
        number: which sample of the prompt, from 0.
        stop_ids: tokens that end an answer; one at its end is left out of the text.
    """
    token_ids = answer.token_ids
    if token_ids is None:  # a server gives text
        return Sample(
            prompt.id,
            prompt.row,
            number,
            text=answer.text or "",
            finish_reason=answer.finish_reason,
            tokens=answer.tokens,
        )
    text_ids = list(token_ids)
    if text_ids and text_ids[-1] in stop_ids:
        text_ids.pop()
    # Decoded behind the end of the prompt, as a decoder that drops the space before a text's first word would drop the
    # answer's: "Answer:" and "Answer: 4" give " 4".
    context_ids = list(prompt.token_ids[-_CONTEXT_TOKENS:])
    context = decode(context_ids)
    with_context = decode(context_ids + text_ids)
    text = with_context[len(context) :]
    # The first token of the answer may change how the prompt ends, as if it completes a character: then there is no
    # difference to take.
    if not with_context.startswith(context):
        text = decode(text_ids)
    # The number of tokens includes the stop token, which the text lacks.
    return Sample(prompt.id, prompt.row, number, text=text, finish_reason=answer.finish_reason, tokens=len(token_ids))
