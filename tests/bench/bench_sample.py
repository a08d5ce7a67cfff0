"""How fast samples are drawn: `packtrain sample`'s engines beside plain `model.generate`, in one run.

The same random model, prompts, batch and number of new tokens for all; nothing ends an answer, so that each makes the
same number of tokens. Plain `generate` samples with torch's generator, with and without `do_sample`. Then the whole
command, with a file, in a process of its own; and what gathering a sharded checkpoint needs of memory and time, beside
accelerate's `merge_fsdp_weights`.

    python tests/bench/bench_sample.py [--hidden 256] [--layers 4] [--new 32] [--quick]
"""

import argparse
import json
import subprocess
import sys
import tempfile
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

import torch
from packtrain.schemas.samples import SampleRequest, SampleSettings
from packtrain.training.generate.batches import BatchEngine
from packtrain.training.generate.continuous import ContinuousEngine
from packtrain.training.generate.loading import load_for_generation
from packtrain.training.generate.model_place import find_model
from transformers import GenerationConfig

sys.path.append(str(Path(__file__).parents[2]))
from tests.support.small_models import TOKENIZER, write_model, write_sharded

ROWS, N, PROMPT = 8, 4, 96
GATHER = """
import re, sys, time
from pathlib import Path
import accelerate.utils, torch, torch.distributed.checkpoint, transformers.models.llama.modeling_llama
from packtrain.training.generate.export import export_checkpoint
status = lambda name: int(re.search(name + r":\\s+(\\d+) kB", Path("/proc/self/status").read_text())[1]) / 1024
Path("/proc/self/clear_refs").write_text("5")  # forget the highest memory so far
before, began = status("VmRSS"), time.perf_counter()
if sys.argv[1] == "packtrain":
    export_checkpoint(Path(sys.argv[2]), Path(sys.argv[3]), file_bytes=int(sys.argv[4]))
else:
    accelerate.utils.merge_fsdp_weights(str(Path(sys.argv[2], "pytorch_model_fsdp_0")), sys.argv[3])
print(status("VmHWM") - before, time.perf_counter() - began)
"""


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--hidden", type=int, default=256)
    parser.add_argument("--layers", type=int, default=4)
    parser.add_argument("--new", type=int, default=32)
    parser.add_argument("--quick", action="store_true", help="a tiny model, once")
    options = parser.parse_args()
    if options.quick:
        options.hidden, options.layers, options.new = 32, 2, 8
    with tempfile.TemporaryDirectory() as text:
        folder = Path(text)
        model = write_model(
            folder / "model",
            vocabulary=32_000,
            hidden_size=options.hidden,
            intermediate_size=4 * options.hidden,
            num_hidden_layers=options.layers,
            num_attention_heads=8,
            num_key_value_heads=4,
            eos_token_id=None,
            bos_token_id=None,
        )
        engines(model, options.new, 1 if options.quick else 4)
        command(model, folder, options.new)
        large: dict[str, Any] = (
            {} if options.quick else {"hidden_size": 1024, "intermediate_size": 4096, "num_hidden_layers": 8}
        )
        gathering(write_model(folder / "large", vocabulary=32_000, **large), folder)


def engines(folder: Path, new: int, times: int) -> None:
    """Tokens a second of each engine, the best of some."""
    place = find_model(folder)
    model = load_for_generation(place, dtype="float32", device="cpu")
    size = sum(weight.numel() for weight in model.parameters())
    print(f"{size / 1e6:.0f} M parameters, {torch.get_num_threads()} threads, {ROWS} prompts of {PROMPT} tokens, "
          f"{N} samples of {new} tokens each\n")  # fmt: skip
    requests = [
        SampleRequest(row, number, tuple((row * 7 + at * 3) % 3000 + 5 for at in range(PROMPT)), 99 * row + number)
        for row in range(ROWS)
        for number in range(N)
    ]
    ids = torch.tensor([one.ids for one in requests])

    def plain(**how: Any) -> Callable[[], None]:
        config = GenerationConfig(max_new_tokens=new, pad_token_id=0, **how)

        def run() -> None:
            torch.manual_seed(0)
            assert model.generate(ids, generation_config=config).shape == (len(ids), PROMPT + new)

        return run

    def batches(**how: Any) -> Callable[[], None]:
        engine = BatchEngine(model, SampleSettings(max_new_tokens=new, **how))
        return lambda: check(list(engine.answers([requests])), new)

    def continuous() -> None:
        own = load_for_generation(place, dtype="float32", device="cpu")
        engine = ContinuousEngine(own, SampleSettings(0.8, 1.0, new), batch=len(ids), longest=PROMPT)
        began = time.perf_counter()
        check(list(engine.answers([requests])), new)
        seconds.append(time.perf_counter() - began)
        engine.close()

    seconds: list[float] = []
    cases = {
        "`model.generate`, greedy": plain(do_sample=False),
        "`model.generate`, temperature 0.8": plain(do_sample=True, temperature=0.8, top_k=0),
        "`model.generate`, temperature 0.8, top-p 0.95": plain(do_sample=True, temperature=0.8, top_k=0, top_p=0.95),
        "batches, temperature 0": batches(temperature=0.0),
        "batches, temperature 0.8": batches(temperature=0.8),
        "batches, temperature 0.8, top-p 0.95": batches(temperature=0.8, top_p=0.95),
    }
    found: dict[str, list[float]] = {name: [] for name in cases}
    for _ in range(times):  # in turn, because the machine's speed changes
        for name, run in cases.items():
            began = time.perf_counter()
            run()
            found[name].append(time.perf_counter() - began)
        continuous()
    found["continuous, temperature 0.8"] = seconds
    print("| engine | tokens/s | of plain sampling |\n| :-- | --: | --: |")
    peer = min(found["`model.generate`, temperature 0.8"])
    for name, took in found.items():
        print(f"| {name} | {len(ids) * new / min(took):,.0f} | {peer / min(took):.2f} x |")


def check(answers: list[Any], new: int) -> None:
    """All tokens were made."""
    assert sum(len(one.ids) for one in answers) == ROWS * N * new


def command(model: Path, folder: Path, new: int) -> None:
    """The whole command, from the start of Python to the sorted file."""
    rows = [{"id": str(row), "row": row, "prompt": f"print {row}\n" * 12} for row in range(ROWS)]
    (folder / "prompts.jsonl").write_text("".join(f"{json.dumps(row)}\n" for row in rows))
    line = [sys.executable, "-m", "packtrain.pipeline.cli", "sample", str(model), "--tokenizer", str(TOKENIZER),
            "--data", str(folder / "prompts.jsonl"), "-n", str(N), "--max-new-tokens", str(new),
            "--batch", str(ROWS * N), "--out", str(folder / "samples.jsonl"), "--json"]  # fmt: skip
    for what in ("the whole command", "the same command again"):
        began = time.perf_counter()
        done = subprocess.run(line, capture_output=True, text=True, check=True)
        said = json.loads(done.stdout)
        print(f"\n{what}: {time.perf_counter() - began:.1f} s, {said['made']} of {said['samples']} samples drawn")


def gathering(model: Path, folder: Path) -> None:
    """Memory beyond the imports, and time, of gathering a sharded checkpoint."""
    checkpoint = write_sharded(model, folder / "checkpoint-1")
    size = sum(path.stat().st_size for path in model.glob("*.safetensors"))
    print(f"\nGathering {size / 2**20:,.0f} MiB of weights:\n")
    print("| what | MiB of memory, beyond the start | s |\n| :-- | --: | --: |")
    for name, most in (("packtrain", 16 << 20), ("packtrain", 64 << 20), ("packtrain", 1 << 30), ("accelerate", 0)):
        out = folder / f"out-{name}-{most}"
        done = subprocess.run(
            [sys.executable, "-c", GATHER, name, str(checkpoint), str(out), str(most)],
            capture_output=True, text=True, check=True,
        )  # fmt: skip
        memory, seconds = done.stdout.split()[-2:]
        shown = (
            f"export-model, files of {most >> 20:,} MiB" if name == "packtrain" else "accelerate's merge_fsdp_weights"
        )
        print(f"| {shown} | {float(memory):,.0f} | {float(seconds):.1f} |")


if __name__ == "__main__":
    main()
