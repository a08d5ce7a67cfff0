"""Rows that are longer than a document may be: every part keeps the two lengths apart."""

from collections import Counter
from itertools import pairwise
from pathlib import Path
from typing import Any

import numpy as np
import packtrain
import pytest
from packtrain.pipeline.run.plan import plan
from packtrain.schemas.errors import ConfigError, InputError
from packtrain.training import PackedLoader

from tests import kit
from tests.kit import Config, Packed

LIMIT, ROW = 64, 240
SHAPES: dict[str, Config] = {
    "bfd": {},
    "tight": {"pack": {"strategy": "tight"}},
    "none": {"pack": {"strategy": "none"}},
    "drop": {"truncate": {"overlong": "drop"}},
    "split": {"truncate": {"overlong": "split", "split": {"overlap": 5}}},
    "from the end, few documents a row": {"truncate": {"keep": "end"}, "pack": {"max_docs": 3}},
    "aligned": {"pack": {"align": 48}},
    "for two devices": {"pack": {"parallel": {"cp": 2, "layout": "thd"}}},
    "for six devices": {"pack": {"parallel": {"cp": 6, "layout": "ring"}}},
    "a window a block": {"pack": {"window_tokens": 2_000}},
}


def packed(folder: Path, keys: Config, row_length: int | None = ROW) -> Packed:
    lengths = {"truncate": {"max_length": LIMIT}, "pack": {"row_length": row_length}, "mask": "all"}
    return kit.packed(kit.configure(folder, "texts", "chats", **kit.merged(lengths, keys)))


def own_lengths(row: Config) -> list[int]:
    """Tokens of the pieces of a row, without padding."""
    lengths: list[int] = row["seq_lengths_unpadded" if "seq_lengths_unpadded" in row else "seq_lengths"]
    return lengths


def contents(made: Packed) -> Counter[tuple[int, ...]]:
    """The tokens of every piece, without padding."""
    out = Counter[tuple[int, ...]]()
    for row in made.rows():
        ends = np.cumsum(row["seq_lengths"]).tolist()
        for begin, own in zip([0, *ends], own_lengths(row), strict=False):
            out[tuple(row["input_ids"][begin : begin + own])] += 1
    return out


@pytest.mark.parametrize("shape", SHAPES)
def test_rows_are_filled_and_documents_stay_within_their_limit(shape: str, tmp_path: Path) -> None:
    keys = SHAPES[shape]
    made = packed(tmp_path, keys)
    rows, certificates = made.rows(), made.record["splits"]["train"]["windows"]
    longest = max(max(own_lengths(row)) for row in rows)
    if shape == "aligned":  # rows show its padding as a part of a piece
        assert longest == made.manifest.longest_padded == 96
    else:
        assert longest == LIMIT or (shape == "drop" and longest < LIMIT)
    assert all(len(row["input_ids"]) <= ROW for row in rows)
    assert shape == "none" or max(len(row["input_ids"]) for row in rows) > 2 * LIMIT
    tokens = sum(one["tokens"] for one in certificates)
    assert -(-tokens // ROW) <= sum(one["bound"] for one in certificates) <= len(rows)
    assert kit.cli("verify", "--deep", str(made.folder)).code == 0
    manifest = made.manifest
    assert (manifest.max_length, manifest.row_length, manifest.longest_piece) == (LIMIT, ROW, LIMIT)
    # The limit alone decides what is left of a document, so rows of that length hold the same pieces.
    if not keys.get("pack"):
        short = packed(tmp_path / "short", keys, None)
        assert contents(made) == contents(short)
        assert len(rows) < len(short.rows())
        ours, theirs = (one.ledger.copy() for one in (made, short))
        assert ours == theirs


@pytest.mark.parametrize("strategy", ["bfd_split", "wrapped"])
def test_strategies_that_cut_cut_at_rows_and_say_so(strategy: str, tmp_path: Path) -> None:
    made = packed(tmp_path / "a", {"pack": {"strategy": strategy}})
    note = f"pack.strategy {strategy} cuts documents where rows end, every {ROW} tokens (pack.row_length); "
    assert [one for one in made.notes if one == f"{note}truncate.max_length {LIMIT} limits none of them"]
    same = packed(tmp_path / "b", {"pack": {"strategy": strategy}, "truncate": {"max_length": ROW}}, None)
    assert made.digest() == same.digest()
    assert max(max(row["seq_lengths"]) for row in made.rows()) == ROW
    assert made.manifest.longest_piece == ROW
    assert not [one for one in same.notes if "row_length" in one]


def test_the_default_is_the_limit_of_a_document(tmp_path: Path) -> None:
    default, named = (packed(tmp_path / str(length), {}, length) for length in (None, LIMIT))
    assert default.manifest.hash == named.manifest.hash


@pytest.mark.parametrize(
    ("keys", "words"),
    [
        ({"pack": {"row_length": 63}}, r"pack.row_length \(63\) is less than truncate.max_length \(64\), but a row"),
        ({"pack": {"row_length": 1}}, "pack.row_length"),
        ({"pack": {"row_length": 100, "align": 8}}, r"pack.row_length \(100\) must be a multiple of 8.*take 96 or 104"),
    ],
)
def test_what_is_refused(keys: Config, words: str, tmp_path: Path) -> None:
    with pytest.raises(ConfigError, match=words):
        packed(tmp_path, keys)


def test_a_row_shorter_than_the_default_limit_is_refused(tmp_path: Path) -> None:
    config = kit.configure(tmp_path, "texts", pack={"row_length": 512})
    del config["truncate"]
    with pytest.raises(ConfigError, match=r"\(512\) is less than truncate.max_length \(2048, the default\)"):
        kit.packed(config)


def test_pairs_that_are_not_packed_have_no_rows_to_fill(tmp_path: Path) -> None:
    config = kit.configure(tmp_path, "choices", pack={"row_length": 512, "strategy": "none"})
    with pytest.raises(ConfigError, match=r"pack\.row_length"):
        kit.packed(config)


def test_verify_finds_a_piece_that_is_too_long(tmp_path: Path) -> None:
    made = packed(tmp_path, {"truncate": {"max_length": 100}})
    file = made.folder / "manifest.json"
    manifest = type(made.manifest).read(file.read_bytes(), "it")
    manifest.plan["config"]["truncate"]["max_length"] = LIMIT
    file.write_bytes(manifest.to_bytes())
    done = kit.cli("verify", "--deep", str(made.folder))
    assert done.code == 1
    assert f"a piece is longer than max_length ({LIMIT})" in done.out


@pytest.mark.parametrize("shape", ["bfd", "for two devices", "for six devices", "aligned"])
def test_fixed_shapes_pad_with_documents_of_that_limit(shape: str, tmp_path: Path) -> None:
    made = packed(tmp_path, SHAPES[shape])
    longest, shapes = made.manifest.longest_padded, set()
    assert LIMIT <= longest < ROW
    for fixed, plain in zip(
        *(PackedLoader(made.folder, rows_per_step=2, static_shapes=static, prefetch=0) for static in (True, False)),
        strict=True,
    ):
        bounds, before = fixed["cu_seq_lens_q"].tolist(), plain["cu_seq_lens_q"].tolist()
        lengths = [end - begin for begin, end in pairwise(bounds)]
        assert max(lengths) <= fixed["max_length_q"] == longest
        assert not any(length % made.manifest.pack.alignment.document for length in lengths)
        assert fixed["position_ids"][0].tolist() == [place for length in lengths for place in range(length)]
        shapes.add((tuple(fixed["input_ids"].shape), len(bounds)))
        real = [length for length in lengths if length]
        assert not Counter(end - begin for begin, end in pairwise(before)) - Counter(real)
        assert int((fixed["labels"] != -100).sum()) == int((plain["labels"] != -100).sum())
    assert len(shapes) == 1
    assert next(iter(shapes))[0] == (1, 2 * ROW)


def test_a_model_limits_documents_and_not_rows(tmp_path: Path) -> None:
    from packtrain.training.models.limits import check_fits
    from packtrain.training.packed_rows import PackedRows
    from transformers import LlamaConfig, LlamaForCausalLM

    def model(positions: int) -> LlamaForCausalLM:
        sizes: dict[str, Any] = {"hidden_size": 8, "intermediate_size": 8, "num_hidden_layers": 1}
        heads = {"num_attention_heads": 1, "num_key_value_heads": 1}
        return LlamaForCausalLM(LlamaConfig(vocab_size=4096, max_position_embeddings=positions, **sizes, **heads))

    rows = PackedRows(packed(tmp_path / "a", {}).folder, "train")
    for padded in (False, True):
        check_fits(model(LIMIT), "data", rows, padded=padded)
        with pytest.raises(InputError, match=f"of {LIMIT} tokens, .* Pack with truncate.max_length: {LIMIT - 1},"):
            check_fits(model(LIMIT - 1), "data", rows, padded=padded)
    rows = PackedRows(packed(tmp_path / "b", {"pack": {"strategy": "wrapped"}}).folder, "train")
    with pytest.raises(InputError, match=f"Pack with pack.row_length: {LIMIT},"):
        check_fits(model(LIMIT), "data", rows)


def test_exports_fill_rows(tmp_path: Path) -> None:
    config = kit.configure(
        tmp_path, "texts", truncate={"max_length": LIMIT, "overlong": "drop"}, pack={"row_length": ROW},
        tokenizer={"path": str(kit.tokenizer(tmp_path / "tok", eos=True))},
    )  # fmt: skip
    made, out = kit.packed(config), tmp_path / "olmo"
    done = kit.cli("export", str(made.folder), "--out", str(out), "--to", "olmo-core", "--eos-id", "3")
    assert done.code == 0, done
    tokens = np.concatenate([np.fromfile(file, np.uint32) for file in sorted((out / "train").glob("*.npy"))])
    assert len(tokens) == ROW * len(made.rows())


def test_a_plan_compares_limits_in_these_rows(tmp_path: Path) -> None:
    keys = {"truncate": {"max_length": LIMIT}, "pack": {"row_length": ROW}, "mask": "all"}
    choice = plan(kit.configure(tmp_path, "texts", **keys), [32, 128, 480], base=tmp_path).choice
    assert choice is not None
    assert [(one.max_length, one.row_length) for one in choice.points] == [(32, ROW), (64, ROW), (128, ROW), (480, 480)]
    assert (choice.key, choice.max_length, choice.row_length) == ("max_length", LIMIT, ROW)
    for point in choice.points[:3]:
        keys["truncate"] = {"max_length": point.max_length}
        made = kit.packed(kit.configure(tmp_path / str(point.max_length), "texts", **keys))
        assert point.rows == len(made.rows())


def test_a_plan_says_what_longer_rows_would_bring(tmp_path: Path) -> None:
    ids = [{"input_ids": [5] * 60} for _ in range(600)]  # of rows of 100, each holds one
    kit.write(tmp_path / "ids.jsonl", ids)
    keys = {"truncate": {"max_length": 64}, "mask": "all"}
    config = kit.configure(tmp_path, kit.source("ids"), **keys, pack={"row_length": 100})
    choice = plan(config, base=tmp_path).choice
    assert choice is not None
    assert choice.longer_rows is not None
    assert (choice.longer_rows.row_length, choice.longer_rows.rows) == (800, 47)  # 13 documents a row
    done = kit.cli("plan", str(kit.saved(config)))
    words = "With max_length 64, rows of 800 (pack.row_length) would be 95.7 % full, in place of 60 %."
    assert words in " ".join(done.out.split())
    # Full rows need no longer ones, and rows of a document's length are compared by lengths alone.
    for row_length in (240, None):
        config = kit.configure(tmp_path, kit.source("ids"), **keys, pack={"row_length": row_length})
        choice = plan(config, base=tmp_path).choice
        assert choice is not None
        assert choice.longer_rows is None


def test_pack_dataset_keeps_them_apart() -> None:
    import datasets

    lengths = [90, 30, 50, 64, 65, 10]
    data = datasets.Dataset.from_dict({"input_ids": [[number] * length for number, length in enumerate(lengths)]})
    out = packtrain.pack_dataset(data, ROW, max_length=LIMIT)
    assert sorted(length for row in out["seq_lengths"] for length in row) == sorted(min(n, LIMIT) for n in lengths)
    assert len(out) == 2
    with pytest.raises(ConfigError, match="row_length: 32 is less than max_length 64"):
        packtrain.pack_dataset(data, 32, max_length=LIMIT)
    for strategy in ("bfd_split", "wrapped"):
        with pytest.raises(ConfigError, match=f"max_length: {strategy} cuts documents where rows end"):
            packtrain.pack_dataset(data, ROW, strategy, max_length=LIMIT)
