"""Windows: the same bytes are written however much is held in memory, and no window needs another one."""

import json
import random
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
import packtrain
import pyarrow as pa
import pytest
from packtrain.pipeline.inputs import scan as sources_module
from packtrain.pipeline.inputs.blocks import Block
from packtrain.pipeline.pack import copies, outcomes, table, window_plan
from packtrain.pipeline.pack import pack as packing
from packtrain.pipeline.pack.windows import compose
from packtrain.pipeline.run.memory import encoding_need, packing_need
from packtrain.pipeline.run.repair import repair
from packtrain.pipeline.run.worker_count import count_workers
from packtrain.schemas.config.config import RunConfig
from packtrain.schemas.config.run_section import RunSection
from packtrain.schemas.errors import ConfigError, InputError
from packtrain.schemas.manifest import Manifest

Config = dict[str, Any]
WORDS = ("mules", "left", "the", "valley", "before", "sun", "was", "up", "nobody", "told", "them", "how", "far")


@pytest.fixture(autouse=True)
def small_blocks(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(sources_module, "BLOCK_BYTES", 3000)


@pytest.fixture
def small_lots(monkeypatch: pytest.MonkeyPatch) -> Callable[[], None]:
    """Have little in memory from now on: chunks of a few parts, digests by ranges, layouts in pieces."""

    def shrink() -> None:
        monkeypatch.setattr(table, "SLICE", 37)
        monkeypatch.setattr(copies, "SLICE", 37)
        monkeypatch.setattr(copies, "AT_ONCE", 20)
        monkeypatch.setattr(outcomes, "SPLIT_TOKENS", 500)
        monkeypatch.setattr(window_plan, "PIECES_AT_ONCE", 20)

    return shrink


def words(number: int, most: int = 40) -> str:
    chance = random.Random(number)
    return " ".join(chance.choice(WORDS) for _ in range(chance.randrange(1, most)))


@pytest.fixture
def base(tmp_path: Path, make_tokenizer: Callable[..., Path], new_cache: Callable[[Path], Path]) -> Config:
    """Conversations, pairs and texts, some of which say the same."""
    chats = [
        {"messages": [{"role": "user", "content": words(n)}, {"role": "assistant", "content": words(n + 1)}]}
        for n in range(90)
    ]
    texts = [{"text": "\n\n".join(words(n * 3 + i, 60) for i in range(1 + n % 5))} for n in range(90)]
    pairs = [{"prompt": words(n) + "\n", "completion": words(n + 1)} for n in range(120)]
    for name, rows in (("chats", chats + chats[:15]), ("texts", texts[:50] + texts[30:]), ("pairs", pairs)):
        (tmp_path / f"{name}.jsonl").write_text("".join(json.dumps(row) + "\n" for row in rows))
    tokenizer = make_tokenizer("tiny")
    return {
        "out": str(tmp_path / "out"),
        "cache": str(new_cache(tokenizer)),
        "tokenizer": {"path": str(tokenizer), "engine": "tokenizers"},
        "sources": [
            {"name": "chats", "format": "messages", "path": str(tmp_path / "chats.jsonl")},
            {"name": "pairs", "format": "prompt_completion", "path": str(tmp_path / "pairs.jsonl")},
            {"name": "texts", "format": "text", "path": str(tmp_path / "texts.jsonl")},
        ],
        "truncate": {"max_length": 96},
        "holdout": {"fraction": 0.2},
        "run": {"workers": 1, "report": False},
    }


def weighted(config: Config, **changes: Config) -> list[Config]:
    return [{**source, **changes.get(source["name"], {})} for source in config["sources"]]


CHANGES: dict[str, Config] = {
    "one window": {},
    "windows": {"pack": {"window_tokens": 2500}},
    "each part a window": {"pack": {"window_tokens": 1}, "holdout": {"fraction": 0}},
    "duplicates": {"duplicates": "drop", "pack": {"window_tokens": 2500}},
    "cut by the strategy": {"pack": {"strategy": "bfd_split", "window_tokens": 2500}, "mask": "assistant"},
    "wrapped": {"pack": {"strategy": "wrapped", "window_tokens": 2500}, "duplicates": "drop"},
    "split": {"truncate": {"max_length": 64, "overlong": "split", "split": {"overlap": 3}}, "mask": "assistant"},
    "aligned": {"pack": {"align": 8, "window_tokens": 2500}},
    "everything at once": {
        "pack": {"window_tokens": 2500},
        "truncate": {"max_length": 64, "overlong": "split"},
        "duplicates": "drop",
        "weights": {"chats": {"weight": 3.0}, "pairs": {"weight": 1.0}, "texts": {"weight": 1.5, "repeat": 2}},
    },
}


QUICK = ("everything at once", *list(CHANGES)[::3])


@pytest.mark.parametrize("name", [pytest.param(one, marks=() if one in QUICK else pytest.mark.slow) for one in CHANGES])
def test_what_is_in_memory_at_once_does_not_matter(
    name: str, base: Config, tmp_path: Path, small_lots: Callable[[], None]
) -> None:
    changes = dict(CHANGES[name])
    config = {**base, "sources": weighted(base, **changes.pop("weights", {})), **changes}
    whole = packtrain.run(config)
    small_lots()
    bounded = packtrain.run({**config, "out": str(tmp_path / "bounded")})
    assert bounded.hash == whole.hash
    several = "window" in name or "window_tokens" in changes.get("pack", {})
    assert (len(whole.splits["train"].windows) > 2) == (several and name != "one window")
    layouts = pa.ipc.open_file(tmp_path / "bounded/_run/layout/train-00000-pieces.arrow").num_record_batches
    assert layouts > 1 or name in ("each part a window", "everything at once")


def test_tight_has_fewer_rows_in_windows_with_everything(base: Config, tmp_path: Path) -> None:
    """The same bytes with other workers and after a repair, and no more rows than best-fit-decreasing in any window."""
    weights: dict[str, Config] = {"chats": {"weight": 3.0}, "pairs": {"weight": 1.0}, "texts": {"weight": 1.5}}
    config = {**base, "sources": weighted(base, **weights), "truncate": {"max_length": 240, "overlong": "split"}}
    pack = {"window_tokens": 9000, "align": 4, "max_docs": 3}

    def of(name: str, strategy: str, workers: int) -> Manifest:
        changes = {"out": str(tmp_path / name), "pack": {**pack, "strategy": strategy}}
        return packtrain.run({**config, **changes, "run": {"workers": workers, "report": False}})

    plain, tight = of("plain", "bfd", 1), of("tight", "tight", 1)
    assert of("again", "tight", 2).hash == tight.hash != plain.hash
    assert Manifest.from_json(json.loads((tmp_path / "tight/manifest.json").read_bytes())) == tight
    rows = {"bfd": 0, "tight": 0}
    assert len(plain.splits) == 2
    for split in plain.splits:
        windows = list(zip(plain.splits[split].windows, tight.splits[split].windows, strict=True))
        for before, after in windows:
            assert (before.tokens, before.pieces) == (after.tokens, after.pieces)
            assert before.bound == after.bound <= after.rows <= before.rows
            rows["bfd"], rows["tight"] = rows["bfd"] + before.rows, rows["tight"] + after.rows
        assert max(shard.max_docs for shard in tight.splits[split].shards) <= 3
    assert len(tight.splits["train"].windows) > 1
    assert rows["tight"] < rows["bfd"]
    (tmp_path / "tight" / tight.splits["train"].shards[1].name).unlink()
    assert repair(tmp_path / "tight").sound


def test_examples_that_are_too_long_are_counted_over_all_lots(
    base: Config, tmp_path: Path, small_lots: Callable[[], None]
) -> None:
    config = {**base, "truncate": {"max_length": 48, "overlong": "error"}}
    with pytest.raises(InputError) as whole:
        packtrain.run(config)
    small_lots()
    with pytest.raises(InputError) as bounded:
        packtrain.run({**config, "out": str(tmp_path / "bounded")})
    assert str(bounded.value) == str(whole.value)
    assert not (tmp_path / "bounded").exists() or not any((tmp_path / "bounded").glob("_run/plan.json"))


def test_shards_are_written_before_the_last_window_is_planned(
    base: Config, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    there: list[int] = []
    plan_window = window_plan.plan_window

    def counted(*arguments: Any, **keys: Any) -> Any:
        there.append(len(list((tmp_path / "out/train/shards").glob("*.arrow"))))
        return plan_window(*arguments, **keys)

    monkeypatch.setattr(packing, "plan_window", counted)
    packtrain.run({**base, "pack": {"window_tokens": 2500}})
    assert len(there) > 4
    assert there[:4] == [0, 1, 2, 3]


def test_windows_are_composed_as_they_always_were() -> None:
    totals = np.array([5, 5, 0, 5, 5, 9, 5, 5], np.int64)
    composed = [window.tolist() for window in compose(totals, [0, 0, 0, 0, 0, 1, 1, 1], 12, 42)]
    assert composed == COMPOSED
    assert [window.tolist() for window in compose(totals, [0] * 8, 39, 42)] == [list(range(8))]


COMPOSED = [[4, 6], [1, 2, 7], [3], [5], [0]]


# --- memory ---


def configured(**pack: Any) -> RunConfig:
    return RunConfig.model_validate(
        {
            "out": "unused",
            "tokenizer": {"path": "unused"},
            "sources": [{"name": "s", "format": "text", "path": "unused"}],
            "pack": pack,
        }
    )


def test_memory_depends_on_the_window_and_not_on_the_input() -> None:
    one = packing_need(16_000_000, 8_000_000_000, 2_000, configured(), pairs=False)
    hundred = packing_need(1_600_000_000, 800_000_000_000, 200_000, configured(), pairs=False)
    assert hundred.driver < 1.7 * one.driver  # a little for each of a hundred times as many parts
    small = configured(window_tokens=400_000_000)
    narrow = packing_need(1_600_000_000, 800_000_000_000, 200_000, small, pairs=False)
    assert narrow.driver < hundred.driver - 700e6


def test_too_little_memory_is_refused_with_what_would_do() -> None:
    need = packing_need(16_000_000, 8_000_000_000, 2_000, configured(), pairs=False)
    with pytest.raises(ConfigError, match=r"run\.memory .* is too small .*pack\.window_tokens") as refused:
        count_workers(RunSection(memory=1 << 30), need)
    enough = int(str(refused.value).partition("at least ")[2].partition(" MiB")[0].replace(",", ""))
    assert count_workers(RunSection(memory=enough << 20, workers=8), need) == 1
    with pytest.raises(ConfigError):
        count_workers(RunSection(memory=(enough - 1) << 20), need)


def test_a_long_row_needs_larger_workers() -> None:
    @dataclass
    class Task:
        block: Block

        def at(self, row: int) -> str:
            return f"a.jsonl, row {row + 1}"

    def block(size: int, lines: int) -> Task:
        return Task(Block(0, size, 7, lines, ""))

    many = encoding_need([block(4 << 20, 3000)] * 10, "tokenizers")
    long = encoding_need([block(4 << 20, 3000), block(200 << 20, 1)], "tokenizers")
    assert count_workers(RunSection(memory=8 << 30, workers=8), many) == 8
    with pytest.raises(ConfigError, match=r"a\.jsonl, row 8 has about 200 MiB.*max_row_bytes"):
        count_workers(RunSection(memory=8 << 30, workers=8), long)
    assert long.worker > 30 * (200 << 20)
    assert encoding_need([block(200 << 20, 1)], "fastokens").worker < long.worker / 3
