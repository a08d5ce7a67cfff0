"""How fast training data is compared with 10,000 evaluation rows, in megabytes of text a second.

    PACKTRAIN_REALDATA=folder python tests/bench/bench_contamination.py [--mb 200] [--rounds 3]

Prints a Markdown table. Other programs may use the machine, so it also counts seconds of a core. The training data is
real chats and documents, repeated with a number in each row, so that no two blocks are equal; the evaluation rows are
GSM8K's and LeetCode's questions and answers. In the same run and on the same files: `wc -w`, a plain read, Python's
lower and split, and sets of tuples of 13 words.
"""

import argparse
import gc
import json
import os
import re
import resource
import statistics
import subprocess
import tempfile
import time
from collections.abc import Callable
from functools import partial
from pathlib import Path
from typing import TypeVar

from packtrain.pipeline.contamination.compare import compare
from packtrain.pipeline.contamination.evaluation import Evaluation, load_rows, prepare_evaluation
from packtrain.pipeline.execute.pool import Pool
from packtrain.pipeline.inputs.blocks import InputFile
from packtrain.pipeline.inputs.formats import SourceFormat, resolve_formats
from packtrain.pipeline.inputs.read import prepare_block
from packtrain.pipeline.inputs.scan_cache import scan_inputs
from packtrain.pipeline.observer import Silent
from packtrain.pipeline.store.local import LocalStore
from packtrain.schemas.config.config import DecontaminateConfig, RunConfig
from packtrain.schemas.rows import Example
from packtrain.stages.overlap.examples import search_examples
from packtrain.stages.prep import make_format

Times = dict[str, list[tuple[float, float]]]
"""(elapsed seconds, seconds of a core) of each round."""
Result = TypeVar("Result")
NGRAM = 13
ROWS = 10_000
SAMPLE_MB = 8
"""Megabytes for what is too slow for all of them."""


def main() -> None:
    """Runs the benchmark."""
    arguments = argparse.ArgumentParser()
    arguments.add_argument("--mb", type=int, default=200)
    arguments.add_argument("--rounds", type=int, default=3)
    asked = arguments.parse_args()
    real = Path(os.environ["PACKTRAIN_REALDATA"])
    with tempfile.TemporaryDirectory() as name:
        folder = Path(name)
        write_training(real, folder / "train.jsonl", asked.mb * 10**6)
        write_evaluation(real, folder / "test.jsonl")
        measure(folder, asked.rounds)


def write_training(real: Path, target: Path, size: int) -> None:
    """Chats of several turns and documents, as messages."""
    sources = ["chat/oasst_en100_paths.jsonl", "chat/sgd_dev.jsonl", "longdoc/qmsum_meeting_qa.jsonl"]
    rows = [json.loads(line)["messages"] for source in sources for line in (real / source).open()]
    peps = [json.loads(line)["text"] for line in (real / "longdoc/peps.jsonl").open()]
    rows += [[{"role": "user", "content": "Write a PEP."}, {"role": "assistant", "content": text}] for text in peps]
    written = number = 0
    with target.open("w") as file:
        while written < size:
            turns = [
                {"role": one["role"], "content": one.get("content") or "."}
                for one in rows[number % len(rows)]
                if one["role"] in ("user", "assistant")
            ]
            number += 1
            turns[0]["content"] = f"{number}: {turns[0]['content']}"
            written += file.write(json.dumps({"messages": turns}, ensure_ascii=False) + "\n")


def write_evaluation(real: Path, target: Path) -> None:
    """ROWS rows with a question and an answer."""
    with target.open("w") as file:
        turns = [json.loads(line)["messages"] for line in (real / "chat/gsm8k_train.jsonl").open()]
        rows = [{"question": one[0]["content"], "answer": one[1]["content"]} for one in turns]
        problems = [json.loads(line) for line in (real / "apps/leetcode_apps_schema.jsonl").open()]
        rows += [{"question": one["question"], "solutions": one["solutions"]} for one in problems]
        for row in rows[:ROWS]:
            file.write(json.dumps(row) + "\n")
        assert len(rows) >= ROWS


def measure(folder: Path, rounds: int) -> None:
    """Time everything in turns, so that a busy moment strikes all, and print medians."""
    train = folder / "train.jsonl"
    source = {"name": "a", "format": "messages", "path": str(train)}
    config = RunConfig.model_validate({"out": "out", "tokenizer": {"path": "none"}, "sources": [source]})
    section = DecontaminateConfig(against=(str(folder / "test.jsonl"),), ngram=NGRAM)
    questions = [json.loads(line)["question"] for line in (folder / "test.jsonl").open()]
    held = {gram for text in questions for gram in grams(text)}
    times: Times = {}
    text = few = 0.0
    for number in range(rounds):
        cache = LocalStore(folder / f"cache-{number}")
        files = scan_inputs(config.sources, folder, cache)
        formats = resolve_formats(config, folder, files)
        evaluation = timed(times, "index", partial(prepare_evaluation, section, folder, cache, cache))
        for name, executor in (("one", Pool(1)), ("two", Pool(2))):
            store = LocalStore(folder / f"cache-{number}-{name}")
            mine = prepare_evaluation(section, folder, store, store)
            run = partial(compare, config.sources, files, formats, mine, 0.0, store, executor, Silent())
            timed(times, name, run)
            executor.close()
        examples = timed(times, "examples", partial(prepared, files, formats["a"]))
        timed(times, "search", partial(searched, evaluation, cache, examples))
        timed(times, "wc", partial(subprocess.run, ["wc", "-w", str(train)], check=True, capture_output=True))
        timed(times, "read", train.read_bytes)
        contents = [said for example in examples for said in spoken(example)]
        text = sum(map(len, contents)) / 1e6
        del examples
        sample = contents[: max(1, int(len(contents) * SAMPLE_MB / text))]
        few = sum(map(len, sample)) / 1e6
        timed(times, "split", partial(split, contents))
        timed(times, "tuples", partial(in_tuples, sample, held))
    size, peak = train.stat().st_size / 1e6, resource.getrusage(resource.RUSAGE_SELF).ru_maxrss / 1024
    index = evaluation.index.bytes / 1e6
    ngrams = evaluation.counts["ngrams"]
    print(f"{text:.0f} MB of text in a file of {size:.0f} MB; {ROWS:,} evaluation rows, {ngrams:,}")
    print(f"n-grams, an index of {index:.0f} MB made in {median(times, 'index', 1):.1f} s of a core.")
    print(f"This process had {peak:.0f} MiB at most, with all examples for the peers.\n")
    print("| what | MB/s | MB in a second of a core |")
    print("|---|--:|--:|")
    for label, key, amount in (
        ("compare, two workers: read, decode, search, store hits", "two", text),
        ("compare, one worker", "one", text),
        ("of it the search", "search", text),
        ("of it rows to examples", "examples", text),
        ("`wc -w`", "wc", size),
        ("plain read", "read", size),
        ("Python: `text.lower().split()`", "split", text),
        ("Python: sets of tuples of 13 words", "tuples", few),
    ):
        of_core = "" if key == "two" else f"{amount / median(times, key, 1):,.0f}"
        print(f"| {label} | {amount / median(times, key, 0):,.0f} | {of_core} |")


def spoken(example: Example) -> list[str]:
    """The contents of an example's messages."""
    return [turn["content"] for side in (example.prompt, example.completion) if isinstance(side, list) for turn in side]


def split(texts: list[str]) -> int:
    """How many words there are, as Python splits them."""
    return sum(len(text.lower().split()) for text in texts)


def in_tuples(texts: list[str], held: set[tuple[str, ...]]) -> int:
    """How many texts have an n-gram of the evaluation rows."""
    return sum(not grams(text).isdisjoint(held) for text in texts)


def prepared(files: list[InputFile], form: SourceFormat) -> list[Example]:
    """The examples of all blocks."""
    reader = make_format(form.name, form.options)
    gc.disable()  # as a worker does
    try:
        return [
            one
            for file in files
            for block in file.blocks
            for one in prepare_block(file.path, block, reader, 1 << 24).examples
        ]
    finally:
        gc.enable()


def searched(evaluation: Evaluation, cache: LocalStore, examples: list[Example]) -> int:
    """The number of hits."""
    return len(search_examples(load_rows(cache, evaluation.index).index, examples))


def grams(text: str) -> set[tuple[str, ...]]:
    """The n-grams of a text, as most decontamination scripts make them."""
    words = re.sub(r"[^\w\s]", " ", text.lower()).split()
    return {tuple(words[at : at + NGRAM]) for at in range(len(words) - NGRAM + 1)}


def cores() -> float:
    """Seconds of a core that this process and its ended children have used."""
    of_children = resource.getrusage(resource.RUSAGE_CHILDREN)
    return time.process_time() + of_children.ru_utime + of_children.ru_stime


def timed(seconds: Times, name: str, function: Callable[[], Result]) -> Result:
    """The function's result; its time is noted."""
    began, used = time.perf_counter(), cores()
    result = function()
    seconds.setdefault(name, []).append((time.perf_counter() - began, max(cores() - used, 1e-6)))
    return result


def median(seconds: Times, name: str, which: int) -> float:
    """The median of elapsed seconds (0), or of seconds of a core (1)."""
    return statistics.median(one[which] for one in seconds[name])


if __name__ == "__main__":
    main()
