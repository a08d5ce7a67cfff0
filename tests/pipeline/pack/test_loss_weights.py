"""Loss weights from the rows to the shards: of messages, examples and sources, and divided by trained tokens."""

import json
import random
from collections import Counter
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import Any

import pyarrow as pa
import pyarrow.parquet as pq
import pytest
from packtrain.pipeline.dataset.open import open_dataset
from packtrain.pipeline.dataset.packed_documents import PackedDocuments
from packtrain.pipeline.dataset.verify import verify
from packtrain.pipeline.dataset.weight_check import check_weights, differing_sum
from packtrain.pipeline.export.export import export
from packtrain.pipeline.run.driver import run
from packtrain.pipeline.run.repair import repair
from packtrain.pipeline.stream.stream import LiveWindows
from packtrain.schemas.errors import ConfigError, InputError
from packtrain.schemas.rows import IGNORE_INDEX, WEIGHTS, packed_schema

ReadRows = Callable[..., list[dict[str, Any]]]
Row = dict[str, Any]


def _chat(*turns: tuple[str, Any]) -> list[Row]:
    out: list[Row] = []
    for number, (said, weight) in enumerate(turns):
        out.append({"role": "user", "content": f"q {number}"})
        out.append({"role": "assistant", "content": said} | ({} if weight is None else {"weight": weight}))
    return out


class Weighed:
    """Runs over a few files of rows, and what comes out of them."""

    def __init__(self, folder: Path, tokenizer: Path, read_rows: ReadRows, new_cache: Callable[[Path], Path]) -> None:
        self.folder, self._tokenizer, self._read = folder, tokenizer, read_rows
        self._cache = new_cache(tokenizer)

    def write(self, name: str, rows: list[Row]) -> Row:
        """A source of these rows."""
        (self.folder / f"{name}.jsonl").write_text("".join(json.dumps(row) + "\n" for row in rows))
        return {"name": name, "path": str(self.folder / f"{name}.jsonl")}

    def config(self, name: str, sources: list[Row], **keys: Any) -> Row:
        """A configuration that packs them."""
        return {
            "out": str(self.folder / name),
            "cache": str(self._cache),
            "tokenizer": {"path": str(self._tokenizer), "engine": "tokenizers"},
            "sources": sources,
            "truncate": {"max_length": 32},
            "run": {"workers": 1, "report": False},
            **keys,
        }

    def rows(self, name: str, sources: list[Row], **keys: Any) -> list[Row]:
        """The packed rows, of a dataset that verifies."""
        run(self.config(name, sources, **keys))
        found = verify(self.folder / name)
        assert found.sound, found.findings
        return self._read(self.folder / name)

    def pieces(self, rows: list[Row]) -> list[tuple[int, int, list[int], list[int], list[float]]]:
        """(doc id, start, ids, labels, weights) of every piece."""
        out = []
        for row in rows:
            begin = 0
            for doc_id, start, length in zip(row["doc_ids"], row["doc_starts"], row["seq_lengths"], strict=True):
                here = slice(begin, begin + length)
                out.append((doc_id, start, row["input_ids"][here], row["labels"][here], row[WEIGHTS][here]))
                begin += length
        return out

    def ids(self, name: str) -> dict[int, str]:
        """The example id of every document."""
        documents = PackedDocuments(open_dataset(self.folder / name))
        every = sorted({one for row in self._read(self.folder / name) for one in row["doc_ids"]})
        return {doc_id: found[0] for doc_id, found in documents.named(every).items()}


@pytest.fixture
def weighed(tmp_path: Path, tiny_tokenizer: Path, read_rows: ReadRows, new_cache: Callable[[Path], Path]) -> Weighed:
    """Runs in a folder of the test."""
    return Weighed(tmp_path, tiny_tokenizer, read_rows, new_cache)


def test_message_times_example_times_source(weighed: Weighed) -> None:
    ids = weighed.write("ids", [{"input_ids": [5, 6, 7, 8], "labels": [-100, 6, -100, 8], "w": 0.25}])
    two = weighed.write("two", [{"input_ids": [9, 10, 11], "w": None}, {"input_ids": [12, 13], "w": 0}])
    sources = [ids | {"keys": {"weight": "w"}, "loss_weight": 2.0}, two | {"keys": {"weight": "w"}}]
    (row,) = weighed.rows("out", sources, pack={"shuffle": False}, keep_untrained=True)
    assert row["input_ids"] == [5, 6, 7, 8, 9, 10, 11, 12, 13]
    assert row["labels"] == [-100, 6, -100, 8, -100, 10, 11, -100, -100]
    assert row[WEIGHTS] == [0, 0.5, 0, 0.5, 0, 1, 1, 0, 0]
    ledger = open_dataset(weighed.folder / "out").manifest.ledger
    assert [one.weight_trained for one in ledger.sources.values()] == [1.0, 2.0]


def test_turns_weigh_what_their_messages_say(weighed: Weighed) -> None:
    chats = weighed.write("chats", [{"messages": _chat(("a b", 0.5), ("c", None), ("d", 3), ("e", 0))}])
    rows = weighed.rows("out", [chats], mask="assistant", truncate={"max_length": 256})
    (piece,) = weighed.pieces(rows)
    found = [weight for label, weight in zip(piece[3], piece[4], strict=True) if label != IGNORE_INDEX]
    turns = sorted(set(found), key=found.index)
    assert turns == [0.5, 1.0, 3.0]
    assert found == sorted(found)  # the turns lie in this order, each in one stretch
    for weight, label in zip(piece[4], piece[3], strict=True):
        assert (weight > 0) == (label != IGNORE_INDEX)
    everything = weighed.rows("all", [chats], mask="all", truncate={"max_length": 256})
    (piece,) = weighed.pieces(everything)
    assert piece[4].count(0.5) > found.count(0.5) - 1  # the header between two messages has the smaller weight
    assert piece[4][-1] == 0


def test_a_dataset_of_ones_has_no_column(weighed: Weighed) -> None:
    chats = [{"messages": _chat(("a", 1), ("b", None))}, {"messages": _chat(("c", 0), ("d", 1.0))}]
    plain = [{"messages": _chat(("a", None), ("b", None))}, {"messages": _chat(("c", 0), ("d", None))}]
    ones, bare = weighed.write("chats", chats), weighed.write("bare", plain) | {"name": "chats"}
    first = run(weighed.config("one", [ones | {"loss_weight": 1}], mask="assistant"))
    other = run(weighed.config("two", [bare], mask="assistant"))
    assert WEIGHTS not in first.schema
    assert [shard.hash for shard in first.splits["train"].shards] == [s.hash for s in other.splits["train"].shards]
    assert "loss" not in other.plan["config"]
    assert "loss_weight" not in other.plan["config"]["sources"][0]
    always = weighed.rows("three", [bare], mask="assistant", loss={"column": "always"})
    assert {weight for row in always for weight in row[WEIGHTS]} == {0, 1}


def test_weights_of_what_is_not_trained_make_no_column(weighed: Weighed) -> None:
    chats = weighed.write("chats", [{"messages": _chat(("a", 0.5), ("b", None))}])
    assert WEIGHTS not in run(weighed.config("out", [chats])).schema  # completion trains only the last turn


def test_bad_weights_are_rejected_and_the_ledger_closes(weighed: Weighed) -> None:
    bad = [-1, "1", True, 1e7, 1e-9, 10**400, [1], {}]
    rows = [{"input_ids": [1, 2, 3], "w": one} for one in bad]
    rows += [{"input_ids": [1, 2, 3], "w": 0.5}, {"input_ids": [1, 2, 3]}]
    chats = [{"messages": _chat(("a", one))} for one in bad] + [{"messages": _chat(("a", 2))}]
    sources = [weighed.write("ids", rows) | {"keys": {"weight": "w"}}, weighed.write("chats", chats)]
    weighed.rows("out", sources)
    ledger = open_dataset(weighed.folder / "out").manifest.ledger
    assert ledger.sources["ids"].rows_rejected == {"weight": len(bad), "missing_key": 1}
    assert ledger.sources["chats"].rows_rejected == {"weight": len(bad)}
    reasons = [json.loads(line)["detail"] for line in (weighed.folder / "out/rejects.jsonl").read_text().splitlines()]
    assert "`w` is -1: a weight is 0 (not trained), or a number from 1e-06 to 1,000,000" in reasons
    assert all("missing" in one or "the row has no" in one or "a weight is 0" in one for one in reasons)


def test_a_stop_in_a_header_weighs_as_the_header_or_as_the_turn_that_it_ends(
    weighed: Weighed, make_tokenizer: Callable[..., Path]
) -> None:
    """`<|im_start|>` before a user message of half the weight: a part of its header, unless it is trained as a stop."""
    template = "{% for m in messages %}{{ '<|im_start|>' + m.role + '\n' + m.content }}{% endfor %}"
    template += "{% if add_generation_prompt %}{{ '<|im_start|>assistant\n' }}{% endif %}"
    folder = make_tokenizer("masks")
    added = json.loads((folder / "tokenizer.json").read_text())["added_tokens"]
    stop = next(one["id"] for one in added if one["content"] == "<|im_start|>")
    said = [("user", "q", 1), ("assistant", "a", 4), ("user", "r", 0.5), ("assistant", "b", 2)]
    messages = [{"role": role, "content": content, "weight": weight} for role, content, weight in said]
    chats = weighed.write("chats", [{"messages": messages}])
    found = {}
    for name, mask in {
        "all": {"policy": "all"},
        "auto_all": {"policy": "all", "stop": "auto"},
        "auto": {"policy": "assistant", "stop": "auto"},
    }.items():
        tokenizer = {"path": str(folder), "engine": "tokenizers", "chat_template": template}
        (row,) = weighed.rows(name, [chats], mask=mask, tokenizer=tokenizer, truncate={"max_length": 128})
        found[name] = [w for one, w in zip(row["labels"], row[WEIGHTS], strict=True) if one == stop]
    assert found == {"all": [1, 0.5, 0.5], "auto_all": [1, 0.5, 0.5], "auto": [4]}


STRATEGIES: dict[str, Row] = {
    "bfd": {},
    "tight": {"pack": {"strategy": "tight", "max_docs": 3}},
    "none": {"pack": {"strategy": "none"}},
    "wrapped": {"pack": {"strategy": "wrapped"}},
    "bfd_split": {"pack": {"strategy": "bfd_split"}},
    "split": {"truncate": {"max_length": 32, "overlong": "split", "split": {"at": "tokens", "overlap": 2}}},
    "windows": {"pack": {"window_tokens": 64}, "output": {"shard_bytes": 2**16}},
    "aligned": {"pack": {"align": 8}},
    "dropped": {"truncate": {"max_length": 32, "overlong": "drop"}},
    "holdout": {"holdout": {"fraction": 0.3}},
}


@pytest.mark.parametrize("strategy", STRATEGIES)
def test_every_document_weighs_the_same_in_each_row(weighed: Weighed, strategy: str) -> None:
    chance = random.Random(strategy)
    given = [chance.choice([0.5, 1, 4]) for _ in range(60)]
    rows = []
    for weight in given:
        ids = [chance.randrange(300) for _ in range(chance.randrange(2, 90))]
        rows.append({"input_ids": ids, "labels": [one if chance.random() < 0.6 else -100 for one in ids], "w": weight})
    chats = [{"messages": _chat(*[("x " * chance.randrange(1, 9), None)] * chance.randrange(1, 4))} for _ in range(20)]
    sources = [
        weighed.write("ids", rows) | {"keys": {"weight": "w"}, "loss_weight": 3.0, "repeat": 2},
        weighed.write("chats", chats) | {"expand": "per_turn"},
    ]
    made = weighed.rows("out", sources, loss={"normalize": "document"}, **STRATEGIES[strategy])
    names, pieces = weighed.ids("out"), Counter[str]()
    for doc_id, _, _, own, weights in weighed.pieces(made):
        unit = names[doc_id]
        assert [weight > 0 for weight in weights] == [label != IGNORE_INDEX for label in own]
        each = [weight for weight in weights if weight]
        if not each:
            continue
        pieces[unit] += 1
        line = int(unit.rpartition(":")[2].partition("/")[0])
        assert sum(each) == pytest.approx(3.0 * given[line - 1] if unit.startswith("ids") else 1.0, rel=1e-6), unit
        assert len(set(each)) == 1
    assert len(pieces) > 30
    assert all(count >= 2 for unit, count in pieces.items() if unit.startswith("ids")), "each has two copies"


@pytest.mark.parametrize("strategy", ["bfd_split", "tight"])
def test_a_stream_gives_the_weights_of_a_run(weighed: Weighed, strategy: str) -> None:
    chance = random.Random(5)
    rows = [
        {"input_ids": [chance.randrange(300) for _ in range(chance.randrange(2, 60))], "w": chance.choice([0.5, 2])}
        for _ in range(80)
    ]
    sources = [weighed.write("ids", rows) | {"keys": {"weight": "w"}, "loss_weight": 3.0}]
    keys: Row = {"loss": {"normalize": "document"}, "pack": {"strategy": strategy}}
    config = weighed.config("out", sources, **keys)
    whole = weighed.pieces(weighed.rows("out", sources, **keys))
    live = LiveWindows(config, workers=0)
    streamed = []
    total = 0.0
    for window in live.walk(0, 0, 1):
        streamed += weighed.pieces(window.lay_out(0, window.rows).to_pylist())
        total += window.ledger.sources["ids"].weight_trained
    live.close()
    plain = [tuple(map(repr, one[1:])) for one in whole]
    assert sorted(plain) == sorted(tuple(map(repr, one[1:])) for one in streamed)
    ledger = open_dataset(weighed.folder / "out").manifest.ledger
    assert total == pytest.approx(ledger.sources["ids"].weight_trained, rel=1e-6)


def test_a_stream_that_meets_a_weight_says_what_to_set(weighed: Weighed) -> None:
    chats = weighed.write("chats", [{"messages": _chat(("a", 0.5))}])
    live = LiveWindows(weighed.config("out", [chats]), workers=0)
    with pytest.raises(InputError, match=r"set loss: \{column: always\}"):
        next(live.walk(0, 0, 1))
    live.close()
    live = LiveWindows(weighed.config("out", [chats], loss={"column": "always"}), workers=0)
    (window,) = live.walk(0, 0, 1)
    assert WEIGHTS in window.lay_out(0, window.rows).schema.names
    live.close()


def test_pairs_have_no_weights(weighed: Weighed) -> None:
    pairs = weighed.write("pairs", [{"prompt": "a", "chosen": " b", "rejected": " c"}]) | {"format": "preference"}
    with pytest.raises(ConfigError, match="loss_weight: a preference loss has no weights"):
        run(weighed.config("out", [pairs | {"loss_weight": 2.0}]))
    with pytest.raises(ConfigError, match="loss: a preference loss has no weights"):
        run(weighed.config("out", [pairs], loss={"normalize": "document"}))
    with pytest.raises(ConfigError, match=r"keys\.weight: format preference takes"):
        run(weighed.config("out", [pairs | {"keys": {"weight": "w"}}]))


@pytest.mark.parametrize("workers", [1, 2])
def test_equal_texts_of_other_weight_are_other_examples(weighed: Weighed, workers: int) -> None:
    rows = [{"text": "the same", "w": weight} for weight in (1, 0.5, 1, 0.5)]
    source = weighed.write("texts", rows) | {"keys": {"weight": "w"}}
    keys: Row = {"duplicates": "drop", "run": {"workers": workers, "report": False}}
    made = weighed.rows(f"out{workers}", [source], **keys)
    assert sorted(max(piece[4]) for piece in weighed.pieces(made)) == [0.5, 1.0]


def test_exports_carry_the_weights_or_ask_first(weighed: Weighed) -> None:
    source = weighed.write("ids", [{"input_ids": [5, 6, 7], "w": 0.5}, {"input_ids": [8, 9], "w": 2}])
    weighed.rows("out", [source | {"keys": {"weight": "w"}}])
    with pytest.raises(ConfigError, match="--drop-weights"):
        export(weighed.folder / "out", weighed.folder / "no", "megatron")
    assert not (weighed.folder / "no").exists()
    made = export(weighed.folder / "out", weighed.folder / "megatron", "megatron", drop_weights=True)
    assert WEIGHTS in made.not_carried
    made = export(weighed.folder / "out", weighed.folder / "trl", "trl")
    assert made.not_carried == ()
    (file,) = (weighed.folder / "trl/data").glob("*.parquet")
    (row,) = pq.read_table(file).to_pylist()
    assert row[WEIGHTS] == weighed.rows("again", [source | {"keys": {"weight": "w"}}])[0][WEIGHTS]
    mds = export(weighed.folder / "out", weighed.folder / "mds", "mds")
    assert mds.not_carried == ()
    index = json.loads((weighed.folder / "mds/train/index.json").read_text())
    assert "ndarray:float32" in index["shards"][0]["column_encodings"]


def test_verify_finds_weights_that_were_changed(weighed: Weighed) -> None:
    source = weighed.write("ids", [{"input_ids": [5, 6, 7], "w": 0.5}])
    (row,) = weighed.rows("out", [source | {"keys": {"weight": "w"}}])
    for changed, what in (
        ([0, 0.5, 0], "a trained token has no loss weight"),
        ([1, 0.5, 0.5], "a token without a label has a loss weight"),
        ([0, 0.5, float("nan")], "a loss weight is negative or not finite"),
        ([0, 0.5], "loss_weights has another length than labels"),
    ):
        batch = pa.RecordBatch.from_pylist([row | {WEIGHTS: changed}], packed_schema(weights=True))
        assert next(check_weights(batch), (0, ""))[1] == what
    ledger = open_dataset(weighed.folder / "out").manifest.ledger
    assert differing_sum(ledger, 1.0) is None
    assert "add up to 1, but those of the shards to 1.5" in str(differing_sum(ledger, 1.5))


@pytest.mark.parametrize("strategy", ["bfd_split", "tight"])
def test_shares_and_repairs_give_the_same_bytes(weighed: Weighed, strategy: str) -> None:
    chats = [{"messages": _chat(("a b c", 0.5), ("d " * (n % 9), 2), ("e", None))} for n in range(40)]
    source = weighed.write("chats", chats) | {"expand": "per_turn", "repeat": 2}
    keys: Row = {"loss": {"normalize": "document"}, "pack": {"strategy": strategy}, "output": {"shard_bytes": 2**16}}
    weighed.rows("one", [source], **keys)
    whole = open_dataset(weighed.folder / "one").manifest
    config = weighed.config("two", [source], **keys)
    shares = [config | {"run": {"workers": 1, "report": False, "shard": f"{share}/2"}} for share in range(2)]
    with ThreadPoolExecutor(2) as pool:
        list(pool.map(run, shares))
    assert open_dataset(weighed.folder / "two").manifest.hash == whole.hash
    shard = weighed.folder / "one" / whole.splits["train"].shards[0].name
    before = shard.read_bytes()
    shard.unlink()
    repair(weighed.folder / "one")
    assert shard.read_bytes() == before


def test_inspect_shows_weights(weighed: Weighed, packtrain: Callable[..., Any]) -> None:
    chats = weighed.write("chats", [{"messages": _chat(("a b", 0.5), ("c", None)), "w": 4}])
    weighed.rows("out", [chats | {"keys": {"weight": "w"}}], mask="assistant", truncate={"max_length": 256})
    out = weighed.folder / "out"
    shown = packtrain("inspect", out, "--row", 0).out
    assert "×2 ⟦a b" in shown
    assert "×4 ⟦c" in shown
    (document,) = json.loads(packtrain("inspect", out, "--row", 0, "--json").out)["documents"]
    spans = [(one["trained"], one["weight"]) for one in document["spans"]]
    assert spans == [(False, 0), (True, 2), (False, 0), (True, 4), (False, 0)]
    assert document["weight"] == sum(one["weight"] * len(one["ids"]) for one in document["spans"])
    told = packtrain("inspect", out, "--id", next(iter(weighed.ids("out").values()))).out
    assert "assistant, weight 0.5" in told
    assert "weight of the row: 4" in told
    assert f"loss weights add up to {document['weight']:.4g}" in " ".join(told.split())
