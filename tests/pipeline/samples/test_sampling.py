"""The loop: groups that do not depend on shards, and files that resume, with an engine that answers by rule."""

from collections import Counter
from collections.abc import Generator, Iterable, Sequence
from dataclasses import replace
from pathlib import Path

import pytest
from hypothesis import given
from hypothesis import strategies as st
from packtrain.pipeline.encode.spec import TokenizerSpec
from packtrain.pipeline.encode.tokenizer import load_tokenizer
from packtrain.pipeline.observer import Observer
from packtrain.pipeline.samples.prompts import PromptSet, SamplePrompt
from packtrain.pipeline.samples.samples_file import read_samples
from packtrain.pipeline.samples.sampling import SamplePlan, draw_samples
from packtrain.schemas.models.samples import SampleAnswer, SampleRequest, SampleSettings

SETTINGS = SampleSettings(max_new_tokens=5, stop_ids=(3,))


class Echo:
    """Answers with some tokens that the seed gives, and stops where the test says."""

    def __init__(self, stop_after: int = 1 << 30) -> None:
        self.groups: list[list[int]] = []
        self._left = stop_after
        self.closed = False

    def answers(self, groups: Iterable[Sequence[SampleRequest]]) -> Generator[SampleAnswer, None, None]:
        try:
            for group in groups:
                self.groups.append([one.seed for one in group])
                for one in group:
                    if not self._left:
                        raise KeyboardInterrupt
                    self._left -= 1
                    letters = tuple(300 + (one.seed >> shift) % 90 for shift in range(0, 24, 8))
                    stops = one.seed % 2 == 0
                    yield SampleAnswer("stop" if stops else "length", (*letters, 3) if stops else letters)
        finally:
            self.closed = True


@pytest.fixture(scope="module")
def spec(tiny_tokenizer: Path) -> TokenizerSpec:
    return load_tokenizer(tiny_tokenizer)


def prompt_set(spec: TokenizerSpec, rows: int) -> PromptSet:
    prompts = [SamplePrompt(f"p{row}", row, (300 + row, 310)) for row in range(rows)]
    return PromptSet(prompts, spec, (3,), 3200)


def draw(found: PromptSet, out: Path, plan: SamplePlan, engine: Echo) -> dict[str, int]:
    counts = draw_samples(found, plan, SETTINGS, {"n": plan.n}, out, lambda: engine, Observer())
    assert engine.closed or not engine.groups
    return counts


@given(
    rows=st.integers(1, 6),
    n=st.integers(1, 3),
    group_size=st.integers(1, 7),
    kills=st.lists(st.integers(0, 8), max_size=3),
)
def test_stopped_anywhere_it_ends_with_the_same_file(
    tmp_path_factory: pytest.TempPathFactory,
    spec: TokenizerSpec,
    rows: int,
    n: int,
    group_size: int,
    kills: list[int],
) -> None:
    folder = tmp_path_factory.mktemp("loop")
    found, plan = prompt_set(spec, rows), SamplePlan(n, 4, group_size=group_size)
    whole, stopped = folder / "whole.jsonl", folder / "stopped.jsonl"
    undisturbed = Echo()
    draw(found, whole, plan, undisturbed)
    for kill in kills:
        try:
            draw(found, stopped, plan, Echo(kill))
        except KeyboardInterrupt:
            continue
    last = Echo()
    draw(found, stopped, plan, last)
    assert stopped.read_bytes() == whole.read_bytes()
    samples = list(read_samples(whole))
    assert [one.key for one in samples] == [(row, number) for row in range(rows) for number in range(n)]
    assert {one.id for one in samples if one.row == 0} == {"p0"}
    # A group is computed whole again, or not at all, so that it rounds in the same way.
    assert all(group in undisturbed.groups for group in last.groups)
    again = Echo()
    draw(found, stopped, plan, again)
    assert again.groups == []


@given(rows=st.integers(1, 9), shards=st.integers(1, 5), group_size=st.integers(1, 9))
def test_shards_are_the_whole_in_order(rows: int, shards: int, group_size: int) -> None:
    prompts = [SamplePrompt("", row, (1,)) for row in range(rows)]
    plan = SamplePlan(2, 9, (0, 1), group_size)
    whole = plan.groups(prompts)
    parts = [replace(plan, shard=(index, shards)).groups(prompts) for index in range(shards)]
    assert [group for part in parts for group in part] == whole
    assert {len(group) for group in whole[:-1]} <= {group_size}
    seeds = [plan.request(*one).seed for group in whole for one in group]
    assert len(set(seeds)) == len(seeds) == 2 * rows


def test_seeds_are_of_the_seed_the_row_and_the_number_alone() -> None:
    first = SamplePlan(1, 9).request(SamplePrompt("a", 5, (1,)), 0)
    same = SamplePlan(2, 9, (1, 2), group_size=2).request(SamplePrompt("c", 5, (2, 3)), 0)
    other = SamplePlan(1, 10).request(SamplePrompt("a", 5, (1,)), 0)
    assert first.seed == same.seed != other.seed


def test_reasons_are_of_the_whole_file(tmp_path: Path, spec: TokenizerSpec) -> None:
    found, plan = prompt_set(spec, 5), SamplePlan(2, 1)
    whole = draw(found, tmp_path / "whole.jsonl", plan, Echo())
    assert whole == Counter(one.finish_reason for one in read_samples(tmp_path / "whole.jsonl"))
    assert sum(whole.values()) == 10
    with pytest.raises(KeyboardInterrupt):
        draw(found, tmp_path / "s.jsonl", plan, Echo(4))
    last = Echo()
    assert draw(found, tmp_path / "s.jsonl", plan, last) == whole
    assert len(last.groups) == 6
