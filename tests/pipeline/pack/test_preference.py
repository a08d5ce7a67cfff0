"""From preference pairs to shards that TRL's DPOTrainer trains on: the same tokens as its own, all accounted for."""

import json
from collections.abc import Callable, Iterator
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import datasets
import packtrain
import pyarrow.parquet as pq
import pytest
import torch
from packtrain.pipeline.dataset.open import open_dataset
from packtrain.pipeline.dataset.verify import verify
from packtrain.pipeline.pack.shard import ShardTask
from packtrain.schemas.errors import ConfigError, InputError, IntegrityError
from packtrain.schemas.manifest import Manifest
from packtrain.schemas.rows import PREFERENCE
from transformers import AutoTokenizer, LlamaConfig, LlamaForCausalLM

from tests.support.unnamed import unnamed

pytestmark = pytest.mark.filterwarnings("ignore::FutureWarning")

Row = dict[str, Any]
ReadRows = Callable[..., list[Row]]
Configure = Callable[..., Row]
IDS = ("prompt_ids", "chosen_ids", "rejected_ids")
WORDS = ("the", "mules", "left", "valley", "before", "sun", "was", "up", "nobody", "had", "told", "them", "how", "far")


@pytest.fixture(autouse=True, scope="module")
def quiet() -> Iterator[None]:
    datasets.disable_progress_bars()
    yield
    datasets.enable_progress_bars()


def words(first: int, count: int) -> str:
    return " ".join(WORDS[(first + 3 * i) % len(WORDS)] for i in range(count))


def text_pairs(count: int) -> list[Row]:
    return [
        {"prompt": f"{i}: {words(i, 3)}\n", "chosen": words(i, 2 + i % 7), "rejected": words(i + 1, 1 + i % 5)}
        for i in range(count)
    ]


def chat_pairs(count: int) -> list[Row]:
    def said(role: str, content: str) -> Row:
        return {"role": role, "content": content}

    return [
        {
            "prompt": [said("user", words(i, 4)), said("assistant", words(i, 2)), said("user", words(i + 2, 3))],
            "chosen": [said("assistant", words(i, 3 + i % 6))],
            "rejected": [said("assistant", words(i + 1, 2 + i % 4))],
        }
        for i in range(count)
    ]


def write(path: Path, rows: list[Row]) -> str:
    path.write_text("".join(json.dumps(row) + "\n" for row in rows))
    return str(path)


@pytest.fixture
def configure(make_tokenizer: Callable[..., Path], new_cache: Callable[[Path], Path], tmp_path: Path) -> Configure:
    """Makes a configuration: `configure(texts=[...], chats=[...], out="out", **changes)`."""
    tokenizer = make_tokenizer("tiny")
    cache = new_cache(tokenizer)

    def make(out: str = "out", changes: Row | None = None, **rows: list[Row]) -> Row:
        sources = [
            {"name": name, "format": "preference", "path": write(tmp_path / f"{name}.jsonl", some)}
            for name, some in rows.items()
        ]
        return {
            "out": str(tmp_path / out),
            "cache": str(cache),
            "tokenizer": {"path": str(tokenizer)},
            "sources": sources,
            "run": {"workers": 1, "report": False},
            **(changes or {}),
        }

    return make


def trl_rows(rows: list[Row], tokenizer: Any) -> list[Row]:
    """What TRL's own trainer makes of the rows."""
    from trl import DPOConfig, DPOTrainer

    config = DPOConfig(output_dir="unused", max_length=None, report_to="none", use_cpu=True, bf16=False)
    with unnamed():
        made = DPOTrainer._prepare_dataset(
            SimpleNamespace(_tokenizer=tokenizer), datasets.Dataset.from_list(rows), tokenizer, config, "train"
        )
    return [{name: row[name] for name in IDS} for row in made]


def by_line(rows: list[Row], folder: Path) -> dict[str, Row]:
    """Rows by the id of their example."""
    names = dict(pq.read_table(folder / "documents.parquet", columns=["doc_id", "id"]).to_pandas().values)
    return {names[row["doc_ids"][0]]: {name: row[name] for name in IDS} for row in rows}


def compare(ours: list[Row], theirs: list[Row], prefixes: list[bool]) -> None:
    """The same sequences; the same prompts, where the prompt alone is what both begin with; else none shorter."""
    for our, their, is_prefix in zip(ours, theirs, prefixes, strict=True):
        for name in IDS[1:]:
            assert our["prompt_ids"] + our[name] == their["prompt_ids"] + their[name]
        assert len(our["prompt_ids"]) >= len(their["prompt_ids"])
        if is_prefix:
            assert our == their


# --- the same as TRL's own ---


def test_the_tokens_are_trls(configure: Configure, read_rows: ReadRows, tmp_path: Path) -> None:
    texts, chats = text_pairs(40), chat_pairs(40)
    texts += [{"prompt": "behind t", "chosen": "he last", "rejected": "he houses<|im_end|>"}]
    texts += [{"prompt": "it ends in a space ", "chosen": "the last", "rejected": "up"}]
    config = configure(texts=texts, chats=chats)
    manifest = packtrain.run(config)
    tokenizer = AutoTokenizer.from_pretrained(config["tokenizer"]["path"])
    ours = by_line(read_rows(Path(config["out"])), Path(config["out"]))
    assert len(ours) == manifest.splits["train"].rows == 82
    for name, rows, odd in (("texts", texts, 2), ("chats", chats, 0)):
        mine = [ours[f"{name}/{name}:{line + 1}"] for line in range(len(rows))]
        compare(mine, trl_rows(rows, tokenizer), [line < len(rows) - odd for line in range(len(rows))])


@pytest.mark.slow
@pytest.mark.parametrize(
    ("name", "count"),
    [("qwen3", 150), ("deepseek-coder-instruct", 75), ("olmo-gpt-neox", 75)],
)
@pytest.mark.parametrize("kind", ["messages", "texts"])
def test_real_pairs_are_trls(
    name: str,
    count: int,
    kind: str,
    realdata: Path,
    new_cache: Callable[[Path], Path],
    tmp_path: Path,
    read_rows: ReadRows,
) -> None:
    """Real pairs, some of them with tools; and as texts, where tokens merge across the prompt's end."""
    folder = realdata / "tokenizers" / name
    file = realdata / "preference/dpo_pairs.jsonl"
    rows = [json.loads(line) for line in file.read_text(encoding="utf-8").splitlines()][:count]
    if kind == "messages":
        tools = [{"type": "function", "function": {"name": "look", "description": "Looks.", "parameters": {}}}]
        for row in rows[::7]:
            row["tools"] = json.dumps(tools)
        for row in rows:
            row.setdefault("tools", None)
    else:
        ends = ("\n", " ", "", ": ")
        rows = [
            {
                "prompt": row["prompt"][-1]["content"] + ends[i % 4],
                "chosen": row["chosen"][0]["content"],
                "rejected": row["rejected"][0]["content"],
            }
            for i, row in enumerate(rows)
        ]
    manifest = packtrain.run(
        {
            "out": str(tmp_path / "out"),
            "cache": str(new_cache(folder)),
            # Two of the templates write nothing of tools.
            "tokenizer": {"path": str(folder), "allow_lost": ["tools"]},
            "sources": [{"name": "pairs", "format": "preference", "path": write(tmp_path / "pairs.jsonl", rows)}],
            "truncate": {"max_length": 1 << 20},
            "run": {"workers": 1, "report": False},
        }
    )
    total = manifest.ledger.total()
    assert (total.rows_read, total.rows_used, total.examples_packed) == (count, count, {"train": count})
    tokenizer = AutoTokenizer.from_pretrained(folder)
    found = by_line(read_rows(tmp_path / "out"), tmp_path / "out")
    ours = [found[f"pairs/pairs:{line + 1}"] for line in range(len(rows))]
    theirs = trl_rows(rows, tokenizer)
    alone = [prompt_alone(row, tokenizer) for row in rows]
    prefixes = [
        all((their["prompt_ids"] + their[name])[: len(prompt)] == prompt for name in IDS[1:])
        for their, prompt in zip(theirs, alone, strict=True)
    ]
    compare(ours, theirs, prefixes)
    share = sum(prefixes) / count
    assert share == 1 if kind == "messages" else 0.3 < share < 1


def prompt_alone(row: Row, tokenizer: Any) -> list[int]:
    """The tokens of the prompt, tokenized by itself."""
    prompt = row["prompt"]
    if isinstance(prompt, str):
        return list(tokenizer(prompt)["input_ids"])
    tools = json.loads(row["tools"]) if row.get("tools") else None
    return list(tokenizer.apply_chat_template(prompt, tools=tools, add_generation_prompt=True, return_dict=False))


# --- DPOTrainer ---


def test_three_steps_of_trl(configure: Configure, tmp_path: Path, read_rows: ReadRows) -> None:
    """The folder as it is, by the way that docs/preference.md shows: its collator's batches are our tokens."""
    from trl import DPOConfig, DPOTrainer

    config = configure(texts=text_pairs(30), chats=chat_pairs(30), changes={"truncate": {"max_length": 64}})
    packtrain.run(config)
    rows = read_rows(Path(config["out"]))
    dataset = datasets.load_from_disk(config["out"])
    assert {name: dataset[:][name] for name in IDS} == {name: [row[name] for row in rows] for name in IDS}

    page = (Path(__file__).parents[3] / "docs/preference.md").read_text(encoding="utf-8")
    names: Row = {}
    exec(page.partition("```python\n")[2].partition("\n\nrows = ")[0], names)
    assert issubclass(names["PairTrainer"], DPOTrainer)
    seen: list[Row] = []

    class Trainer(names["PairTrainer"]):  # type: ignore[misc, name-defined, valid-type]
        def compute_loss(self, model: Any, inputs: Row, *args: Any, **kwargs: Any) -> Any:
            seen.append({name: value.clone() for name, value in inputs.items()})
            return super().compute_loss(model, inputs, *args, **kwargs)

    torch.manual_seed(0)
    tokenizer = AutoTokenizer.from_pretrained(config["tokenizer"]["path"])
    shape = LlamaConfig(
        vocab_size=len(tokenizer),
        hidden_size=32,
        intermediate_size=64,
        num_hidden_layers=2,
        num_attention_heads=4,
        num_key_value_heads=2,
        max_position_embeddings=128,
    )
    args = DPOConfig(
        output_dir=str(tmp_path / "dpo"),
        max_length=None,
        per_device_train_batch_size=4,
        max_steps=3,
        learning_rate=1e-2,
        lr_scheduler_type="constant",
        logging_steps=1,
        use_cpu=True,
        bf16=False,
        report_to="none",
        save_strategy="no",
        disable_tqdm=True,
    )
    model = LlamaForCausalLM(shape)
    before = {name: one.detach().clone() for name, one in model.named_parameters()}
    reference = LlamaForCausalLM(shape)
    reference.load_state_dict(model.state_dict())
    trainer = Trainer(model, reference, args=args, train_dataset=dataset, processing_class=tokenizer)
    trainer.train()

    assert trainer.state.global_step == 3
    assert len(seen) == 3
    ours = {tuple(tuple(row[name]) for name in IDS) for row in rows}
    for inputs in seen:
        columns = (inputs[name].tolist() for name in ("input_ids", "attention_mask", "completion_mask"))
        halves = [
            (
                tuple(one for one, real, answer in zip(*row, strict=True) if real and not answer),
                tuple(one for one, answer in zip(row[0], row[2], strict=True) if answer),
            )
            for row in zip(*columns, strict=True)
        ]
        assert len(halves) == 8
        for (prompt, chosen), (same, rejected) in zip(halves[:4], halves[4:], strict=True):
            assert prompt == same
            assert (prompt, chosen, rejected) in ours
    losses = [entry["loss"] for entry in trainer.state.log_history if "loss" in entry]
    assert losses[0] == pytest.approx(0.6931, abs=1e-3), "model and reference are the same at first"
    assert len(losses) == 3
    assert losses[2] != losses[0]
    assert any(not torch.equal(one, before[name]) for name, one in model.named_parameters())


# --- the account ---


def test_the_ledger_says_what_became_of_every_token(configure: Configure, read_rows: ReadRows, tmp_path: Path) -> None:
    rows = text_pairs(12)
    rows += [rows[0], {"prompt": "Ask.", "chosen": "a", "rejected": "a"}, {"prompt": "Ask.", "chosen": "a"}]
    rows += [{"prompt": words(0, 60), "chosen": "mules", "rejected": "sun"}]
    rows += [{"prompt": "Ask. ", "chosen": words(0, 30), "rejected": words(0, 30) + " far"}]
    rows += [{"prompt": "Ask. ", "chosen": words(0, 30), "rejected": words(1, 30)}]
    whole = packtrain.run(configure("whole", texts=rows))
    total = whole.ledger.total()
    written = read_rows(tmp_path / "whole")
    counts = {name: sum(len(row[name]) for row in written) for name in IDS}
    assert (total.rows_read, total.rows_used, total.rows_rejected) == (18, 16, {"missing_key": 1, "no_preference": 1})
    assert total.examples_packed == {"train": 16}
    assert total.tokens_created == {"end_of_sequence": 32}
    assert total.tokens_encoded + 32 == total.tokens_packed == sum(counts.values())
    assert total.labels_trained == counts["chosen_ids"] + counts["rejected_ids"]
    assert total.labels_not_asked == counts["prompt_ids"]
    assert total.boundaries == 32
    assert whole.splits["train"].trained == total.labels_trained

    changes = {
        "truncate": {"max_length": 24, "max_prompt_length": 18, "max_completion_length": 16},
        "duplicates": "drop",
    }
    config = configure("cut", texts=rows, changes=changes)
    cut = packtrain.run(config)
    total = cut.ledger.total()
    assert total.examples_dropped == {"duplicate": 1, "cut_equal": 1}
    assert total.examples_packed == {"train": 14}
    kept = by_line(read_rows(tmp_path / "cut"), tmp_path / "cut")
    full = by_line(written, tmp_path / "whole")
    lost = {"max_prompt_length": 0, "max_completion_length": 0, "max_length": 0}
    for name, row in kept.items():
        prompt, chosen, rejected = (full[name][key] for key in IDS)
        answers = [chosen[:16], rejected[:16]]
        head = prompt[-18:]
        lost["max_prompt_length"] += len(prompt) - len(head)
        lost["max_completion_length"] += len(chosen) + len(rejected) - sum(map(len, answers))
        room = 24 - len(head)
        lost["max_length"] += sum(len(answer) - len(answer[:room]) for answer in answers)
        assert row == {"prompt_ids": head, "chosen_ids": answers[0][:room], "rejected_ids": answers[1][:room]}
    assert total.tokens_truncated == lost
    assert all(lost.values())
    assert total.tokens_dropped.keys() == total.examples_dropped.keys()
    assert verify(tmp_path / "cut", deep=True).sound


def test_the_end_is_kept(configure: Configure, read_rows: ReadRows, tmp_path: Path) -> None:
    """Row by row: the prompt gives way first, then what is too long alone loses its beginning."""
    rows = text_pairs(9)
    rows += [{"prompt": "Ask. ", "chosen": words(0, 30), "rejected": words(1, 25)}]
    rows += [{"prompt": "Ask. ", "chosen": words(0, 3), "rejected": words(1, 25)}]
    packtrain.run(configure("whole", texts=rows))
    truncate = {"max_length": 20, "max_completion_length": 26, "keep": "end"}
    total = packtrain.run(configure("cut", texts=rows, changes={"truncate": truncate})).ledger.total()
    full, kept = (by_line(read_rows(tmp_path / out), tmp_path / out) for out in ("whole", "cut"))
    assert len(kept) == 11
    for name, row in kept.items():
        prompt, chosen, rejected = (full[name][key] for key in IDS)
        chosen, rejected = chosen[:26], rejected[:26]
        room = max(20 - max(len(chosen), len(rejected)), 0)
        expected = prompt[max(len(prompt) - room, 0) :], chosen[-20:], rejected[-20:]
        assert tuple(row[key] for key in IDS) == expected
    without = [row for row in kept.values() if not row["prompt_ids"]]
    assert len(without) >= 2
    assert total.labels_head == 2 * len(without), "nothing predicts the first token of these completions"
    assert verify(tmp_path / "cut", deep=True).sound


def test_what_is_left_out_and_why(configure: Configure) -> None:
    """One row for each reason."""
    rows = [
        {"prompt": "Ask.", "chosen": "the mules", "rejected": "the valley"},
        {"prompt": words(0, 40), "chosen": "the mules", "rejected": "the valley"},
    ]
    cases: list[tuple[Row, Row]] = [
        ({"truncate": {"max_length": 24}}, {"cut_empty": 1}),
        ({"truncate": {"max_length": 24, "overlong": "drop"}}, {"overlong": 1}),
        ({"truncate": {"max_length": 24, "keep": "end"}}, {}),
        ({"truncate": {"max_length": 24, "max_prompt_length": 8}}, {}),
        ({"filter": {"max_tokens": 24}}, {"max_tokens": 1}),
        ({"filter": {"min_tokens": 24}}, {"min_tokens": 1}),
        ({"truncate": {"max_length": 24, "max_completion_length": 1}}, {"cut_empty": 1, "cut_equal": 1}),
    ]
    for number, (limits, dropped) in enumerate(cases):
        config = configure(f"out-{number}", texts=rows, changes=limits)
        if sum(dropped.values()) == len(rows):
            with pytest.raises(
                InputError,
                match=r"nothing is left to pack: of 2 rows, 2 gave examples; of 2 examples, all were left out \(cut_",
            ):
                packtrain.run(config)
            continue
        total = packtrain.run(config).ledger.total()
        assert total.examples_dropped == dropped, limits


def test_answers_that_a_template_makes_equal(
    configure: Configure, make_tokenizer: Callable[..., Path], tmp_path: Path
) -> None:
    template = (
        "{% for m in messages %}{{ '<|im_start|>' + m.role + '\n' + m.content | trim + '<|im_end|>\n' }}{% endfor %}"
        "{% if add_generation_prompt %}{{ '<|im_start|>assistant\n' }}{% endif %}"
    )
    rows = [{"prompt": "Ask.", "chosen": "a", "rejected": "a "}, {"prompt": "Ask.", "chosen": "a", "rejected": "b"}]
    config = configure(texts=rows)
    config["sources"][0]["style"] = "chat"
    config["tokenizer"]["chat_template"] = template
    total = packtrain.run(config).ledger.total()
    assert (total.examples_dropped, total.examples_packed) == ({"equal": 1}, {"train": 1})


def test_overlong_is_an_error_that_names_the_first(configure: Configure) -> None:
    rows = [*text_pairs(4), {"prompt": words(0, 30), "chosen": "mules", "rejected": "sun"}]
    with pytest.raises(InputError, match=r"1 pair is longer than truncate.max_length \(32\).*'texts', line 5"):
        packtrain.run(configure(texts=rows, changes={"truncate": {"max_length": 32, "overlong": "error"}}))


def test_repeats_and_holdout(configure: Configure, read_rows: ReadRows, tmp_path: Path) -> None:
    config = configure(texts=text_pairs(60), changes={"holdout": {"fraction": 0.3}})
    config["sources"][0]["repeat"] = 3
    manifest = packtrain.run(config)
    total = manifest.ledger.total()
    held = {tuple(row["doc_ids"]) for row in read_rows(tmp_path / "out", "holdout")}
    train = [tuple(row["doc_ids"]) for row in read_rows(tmp_path / "out", "train")]
    assert 5 < len(held) < 30
    assert len(train) == 3 * len(set(train)) == 3 * (60 - len(held))
    assert not held & set(train)
    assert total.examples_repeated == 2 * len(set(train))
    both = datasets.load_from_disk(str(tmp_path / "out"))
    assert (len(both["train"]), len(both["holdout"])) == (len(train), len(held))
    assert verify(tmp_path / "out", deep=True).sound


# --- once, and the same everywhere ---


def test_limits_and_seed_tokenize_nothing_again(configure: Configure, encoded: list[str]) -> None:
    changes: list[Row] = [
        {},
        {"seed": 7},
        {"truncate": {"max_length": 16}},
        {"truncate": {"max_length": 16, "keep": "end"}},
        {"truncate": {"max_prompt_length": 4, "max_completion_length": 6}},
        {"filter": {"min_tokens": 20}},
        {"duplicates": "drop"},
        {"holdout": {"fraction": 0.5}},
        {"pack": {"shuffle": False}},
    ]
    configs = [configure(f"out-{i}", texts=text_pairs(50), changes=change) for i, change in enumerate(changes)]
    hashes = {packtrain.run(config).hash for config in configs}
    assert len(encoded) == 1
    assert len(hashes) == len(changes), "each is another dataset"


def test_rows_are_permuted_by_the_seed(configure: Configure, read_rows: ReadRows, tmp_path: Path) -> None:
    orders = []
    for out, changes in (("a", {}), ("b", {"seed": 1}), ("c", {"pack": {"shuffle": False}})):
        packtrain.run(configure(out, texts=text_pairs(50), changes=changes))
        orders.append([row["doc_ids"] for row in read_rows(tmp_path / out)])
    assert orders[2] == [[i] for i in range(50)]
    assert all(sorted(order) == orders[2] for order in orders)
    assert len({str(order) for order in orders}) == 3


@pytest.mark.parametrize("form", ["arrow", "parquet"])
def test_the_same_bytes_by_any_number_of_workers_and_after_a_crash(
    configure: Configure, form: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    changes = {"output": {"format": form, "shard_bytes": 1 << 16}}
    config = configure("one", texts=text_pairs(1500), chats=chat_pairs(800), changes=changes)
    one = packtrain.run(config)
    assert len(one.splits["train"].shards) >= 3
    two = packtrain.run({**config, "out": str(tmp_path / "two"), "run": {"workers": 2, "report": False}})
    assert files(tmp_path / "two") == files(tmp_path / "one")
    assert two.hash == one.hash

    broken = {**config, "out": str(tmp_path / "broken")}
    honest, left = ShardTask.run, [2]

    def dies(task: ShardTask) -> Any:
        left[0] -= 1
        if left[0] < 0:
            raise KeyboardInterrupt
        return honest(task)

    monkeypatch.setattr(ShardTask, "run", dies)
    with pytest.raises(KeyboardInterrupt):
        packtrain.run(broken)
    assert not (tmp_path / "broken/manifest.json").exists()
    written = {path.name: path.stat().st_mtime_ns for path in (tmp_path / "broken/shards").iterdir()}
    assert len(written) == 2
    monkeypatch.undo()
    assert packtrain.run(broken).hash == one.hash
    assert files(tmp_path / "broken") == files(tmp_path / "one")
    after = {path.name: path.stat().st_mtime_ns for path in (tmp_path / "broken/shards").iterdir()}
    assert written.items() <= after.items(), "what was there is not written again"


def files(folder: Path) -> dict[str, bytes]:
    return {
        path.relative_to(folder).as_posix(): path.read_bytes()
        for path in folder.rglob("*")
        if path.is_file() and "_run" not in path.parts and path.stem != "report"  # which tells when it was made
    }


# --- what a person sees ---


def test_pairs_do_not_mix_with_others(configure: Configure, tmp_path: Path) -> None:
    config = configure(texts=text_pairs(3))
    other = write(tmp_path / "docs.jsonl", [{"text": "the mules"}])
    config["sources"].append({"name": "docs", "path": other})
    with pytest.raises(ConfigError, match=r"sources.docs is not preference data, but sources.texts is"):
        packtrain.run(config)


@pytest.mark.parametrize(
    ("change", "match"),
    [
        ({"pack": {"strategy": "bfd_split"}}, "pack.strategy: preference pairs are not packed"),
        ({"pack": {"strategy": "none"}}, "pack.strategy: preference pairs are not packed"),
        ({"pack": {"max_docs": 2}}, "pack.max_docs: preference pairs are not packed"),
        ({"pack": {"align": 8}}, "pack.align: preference pairs are not packed"),
        ({"pack": {"parallel": {"cp": 2}}}, "pack.parallel: preference pairs are not packed"),
        ({"pack": {"window_tokens": 9}}, "pack.window_tokens: preference pairs are not packed"),
        ({"mask": "assistant"}, "mask: a preference loss is over the two completions"),
        ({"keep_untrained": True}, "keep_untrained: a pair has two completions"),
        ({"truncate": {"overlong": "split"}}, "truncate.overlong: a preference pair cannot be split"),
    ],
)
def test_what_means_nothing_is_refused(configure: Configure, change: Row, match: str) -> None:
    with pytest.raises(ConfigError, match=match):
        packtrain.run(configure(texts=text_pairs(3), changes=change))


def test_a_persons_own_reader_may_give_pairs(configure: Configure, tmp_path: Path, read_rows: ReadRows) -> None:
    (tmp_path / "readers.py").write_text(
        "def pairs(row):\n"
        "    if row['number'] == 0:\n"
        "        return None\n"
        "    if row['number'] == 5:\n"
        "        return {'text': 'no pair'}\n"
        "    return {'prompt': row['question'], 'chosen': 'good ' + row['a'], 'rejected': 'bad ' + row['b']}\n"
    )
    config = configure(rows=[{"number": i, "question": f"{i}?", "a": "mules", "b": "sun"} for i in range(9)])
    config["sources"][0]["format"] = "python:readers:pairs"
    manifest = packtrain.run(config, base=tmp_path)
    total = manifest.ledger.total()
    assert (total.rows_filtered, total.rows_rejected) == ({"not_wanted": 1}, {"not_a_pair": 1})
    assert len(read_rows(tmp_path / "out")) == 7


def test_parts_of_pairs_are_not_those_of_other_runs(configure: Configure, tmp_path: Path) -> None:
    """The first example of a reader decides; the same two files, once as pairs and once as texts, in one cache."""
    (tmp_path / "readers.py").write_text("def same(row):\n    return row\n")
    config = configure(pairs=[{"prompt": "Ask.", "chosen": "a", "rejected": "b"}], texts=[{"text": "the mules"}])
    paths = [source["path"] for source in config["sources"]]
    outcomes = []
    for number, order in enumerate((paths, paths[::-1])):
        source = {"name": "rows", "format": "python:readers:same", "path": order}
        config = {**config, "out": str(tmp_path / f"out-{number}"), "sources": [source]}
        manifest = packtrain.run(config, base=tmp_path)
        total = manifest.ledger.total()
        assert total.examples_packed == {"train": 1}
        outcomes.append((manifest.preference, total.rows_rejected))
    assert outcomes == [(True, {"not_a_pair": 1}), (False, {"preference": 1})]


def test_the_commands(configure: Configure, packtrain: Any, tmp_path: Path) -> None:
    config = configure(texts=text_pairs(20))
    (tmp_path / "pairs.json").write_text(json.dumps(config))
    (tmp_path / "pairs.yaml").write_text(json.dumps(config))
    dry = packtrain("run", tmp_path / "pairs.yaml", "--dry-run")
    assert dry.code == 0
    assert "not packed: preference pairs, shuffled by seed 42" in dry.out
    done = packtrain("run", tmp_path / "pairs.yaml")
    assert done.code == 0
    assert "preference pairs are not packed: each becomes one row of prompt, chosen and rejected ids" in done.out
    assert "Preference pairs" in done.out
    assert "bound" not in done.out
    assert packtrain("verify", tmp_path / "out", "--deep").code == 0
    shown = packtrain("inspect", tmp_path / "out", "--row", 0)
    assert shown.code == 0
    row = open_dataset(tmp_path / "out").row(0).to_pylist()[0]
    source = text_pairs(20)[row["doc_ids"][0]]
    for what in (f"texts/texts:{row['doc_ids'][0] + 1}", source["chosen"], source["rejected"], source["prompt"][:-1]):
        assert what in shown.out
    assert "chosen · " in shown.out
    ids = packtrain("inspect", tmp_path / "out", "--row", 0, "--ids")
    assert all(str(one) in ids.out for one in row["rejected_ids"])
    again = packtrain("run", tmp_path / "pairs.yaml")
    assert "is already finished" in again.out


def test_the_loader_of_packed_rows_refuses_them(configure: Configure, tmp_path: Path) -> None:
    from packtrain.training import PackedLoader

    packtrain.run(configure(texts=text_pairs(5)))
    with pytest.raises(InputError, match=r"holds preference pairs, which are not packed rows; open it with datasets"):
        PackedLoader(str(tmp_path / "out"), rows_per_step=1)


def test_verify_finds_what_is_broken(configure: Configure, tmp_path: Path) -> None:
    """Each shard below is rewritten with one thing wrong, its record being made to fit."""
    import dataclasses

    import pyarrow as pa
    from packtrain.pipeline.dataset import verify as module

    packtrain.run(configure(texts=text_pairs(5)))
    honest = open_dataset(tmp_path / "out")
    (shard,) = honest.manifest.splits["train"].shards
    rows = [row for batch in honest.batches(shard) for row in batch.to_pylist()]
    breaks: list[tuple[Row, str]] = [
        ({"chosen_ids": []}, "row 2: chosen_ids is empty"),
        ({"rejected_ids": rows[2]["chosen_ids"]}, "row 2: chosen_ids and rejected_ids are the same"),
        ({"prompt_ids": [1] * 2048}, r"row 2: prompt_ids and chosen_ids are longer than max_length \(2,048\)"),
        ({"doc_ids": [1, 2]}, "row 2: does not have one doc id"),
    ]
    for change, match in breaks:
        made = [*rows[:2], {**rows[2], **change}, *rows[3:]]
        with pa.OSFile(str(tmp_path / "out" / shard.name), "wb") as sink, pa.ipc.new_stream(sink, PREFERENCE) as writer:
            writer.write_batch(pa.RecordBatch.from_pylist(made, PREFERENCE))
        found, _ = module._check_shard(honest, shard, 2048, module._RowSizes(honest, honest.manifest.splits["train"]))
        with pytest.raises(IntegrityError, match=match):
            raise IntegrityError("; ".join(map(str, found)))
        if "doc_ids" not in change:
            assert any("but the manifest says" in one.what for one in found), dataclasses.asdict(found[0])


def test_the_manifest_says_what_the_rows_are(configure: Configure) -> None:
    manifest: Manifest = packtrain.run(configure(texts=text_pairs(5)))
    assert manifest.preference
    assert list(manifest.schema) == ["prompt_ids", "chosen_ids", "rejected_ids", "doc_ids"]
    assert manifest.splits["train"].windows == ()
    assert not any(file.name.endswith("rows.arrow") for file in manifest.files)
