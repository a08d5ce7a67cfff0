"""What a GPU shows and a CPU cannot: speed, memory, and how exact the CUDA kernels are. Prints a table, and JSON.

    python tests/gpu/measure.py --json measured.json      # about 5 minutes on one card of the H200's class, no network
    python tests/gpu/measure.py --tiny                    # a dry run on a CPU, of numbers without meaning

The model has random weights. A step is a forward and a backward pass, without an optimizer. MFU counts 6 FLOPs a weight
and token, without attention, of `--peak` FLOP/s.
"""

import argparse
import json
import time
from collections.abc import Callable
from typing import Any

import numpy as np
import torch
from packtrain.schemas.dataset.row_batch import Row
from packtrain.schemas.errors import PacktrainError
from packtrain.schemas.rows import IGNORE_INDEX
from packtrain.training.attention.isolation_probe import probe
from packtrain.training.attention.kernels import HALF, flash, per_document, why_not_flash
from packtrain.training.attention.packed_attention import use_packed
from packtrain.training.attention.probe_setup import to_device
from packtrain.training.batch import flatten, unpack
from packtrain.training.targets import find_targets
from packtrain.training.trainer.heads import fuse_loss
from packtrain.training.trainer.loss import Forward
from transformers import AutoConfig, AutoModelForCausalLM

LARGE = {
    "vocab_size": 151_936, "hidden_size": 2048, "intermediate_size": 6144, "num_hidden_layers": 28,
    "num_attention_heads": 16, "num_key_value_heads": 8, "head_dim": 128, "max_position_embeddings": 8192,
}  # fmt: skip
"""Some 1.7 billion weights."""
SMALL = {
    "vocab_size": 512, "hidden_size": 64, "intermediate_size": 128, "num_hidden_layers": 2,
    "num_attention_heads": 4, "num_key_value_heads": 2, "head_dim": 16, "max_position_embeddings": 8192,
}  # fmt: skip
Result = dict[str, Any]


def build(sizes: dict[str, Any], device: torch.device, dtype: torch.dtype) -> Any:
    torch.manual_seed(0)
    config = AutoConfig.for_model("qwen3", **sizes)
    with device:
        return AutoModelForCausalLM.from_config(config, dtype=dtype).train()


def row_of(length: int, vocabulary: int) -> Row:
    """Random documents whose lengths are as unequal as those of conversations, in one full row."""
    generator = np.random.default_rng(0)
    lengths: list[int] = []
    while (left := length - sum(lengths)) > 0:
        lengths.append(min(left, max(2, int(generator.lognormal(np.log(length / 20), 1)))))
    ids = generator.integers(3, vocabulary, length).astype(np.int32)
    positions = np.concatenate([np.arange(one, dtype=np.int32) for one in lengths])
    labels = np.where((positions == 0) | (generator.random(length) < 0.3), IGNORE_INDEX, ids).astype(np.int32)
    return Row(ids, labels, positions, np.array(lengths, np.int32))


def timed(
    step: Callable[[], Any], tokens: int, weights: int, device: torch.device, *, peak: float, times: int
) -> Result:
    """Figures of a step, after two steps that are not counted."""
    cuda = device.type == "cuda"
    for _ in range(2):
        step()
    if cuda:
        torch.cuda.synchronize()
        torch.cuda.reset_peak_memory_stats()
    began = time.perf_counter()
    for _ in range(times):
        step()
    if cuda:
        torch.cuda.synchronize()
    rate = tokens * times / (time.perf_counter() - began)
    memory = torch.cuda.max_memory_allocated() / 2**30 if cuda else None
    return {"tokens_per_second": rate, "mfu": 6 * weights * rate / peak, "peak_memory_gib": memory}


def speed(
    sizes: dict[str, Any],
    length: int,
    device: torch.device,
    *,
    peak: float,
    times: int,
    compilation: tuple[bool, ...] = (False, True),
) -> list[Result]:
    """Packed and unpacked, each loss kernel, compiled and not. Tokens are those of documents, without padding."""
    rows = []
    row = row_of(length, sizes["vocab_size"])
    units = torch.tensor(float(find_targets(flatten([row])).units), device=device)
    for layout, kernel, compiled in [
        ("unpacked", "none", False),
        *(("packed", kernel, compiled) for compiled in compilation for kernel in ("none", "chunked", "liger")),
    ]:
        result: Result = {"layout": layout, "loss_kernel": kernel, "compiled": compiled}
        rows.append(result)
        model = build(sizes, device, torch.bfloat16)
        try:
            torch.compiler.reset()
            use_packed(model, "sdpa" if layout == "unpacked" else "packed_varlen")
            batch = to_device(flatten([row]) if layout == "packed" else unpack([row], 0), device)
            fused = fuse_loss(model, kernel, cuda=device.type == "cuda")
            forward = Forward(model, fused=fused)
            called = (
                torch.compile(model, backend="inductor" if device.type == "cuda" else "eager") if compiled else model
            )
            wanted = find_targets(flatten([row])).to(device)

            def step(
                model: Any = model, called: Any = called, batch: Any = batch, forward: Any = forward,
                wanted: Any = wanted, layout: str = layout,
            ) -> None:  # fmt: skip
                loss = (
                    forward.loss(called, batch, wanted, units, share=1) if layout == "packed" else called(**batch).loss
                )
                loss.backward()
                model.zero_grad(set_to_none=True)

            weights = sum(weight.numel() for weight in model.parameters())
            result |= timed(step, length, weights, device, peak=peak, times=times)
        except (PacktrainError, torch.OutOfMemoryError, AttributeError) as error:
            result["not_measured"] = " ".join(str(error).split())[:160]
        del model
    return rows


def off(actual: torch.Tensor, expected: torch.Tensor) -> float:
    return float((actual.detach().double() - expected.double()).norm() / expected.double().norm().clamp_min(1e-12))


def gradients(device: torch.device) -> list[Result]:
    """Of every parameter of a small model in bf16, by each loss kernel, against float32 on the CPU, in eager mode."""
    row = row_of(512, SMALL["vocab_size"])
    found: dict[str, dict[str, torch.Tensor]] = {}
    rows: list[Result] = []
    for name, dtype, kernel in [
        ("exact", torch.float32, "none"),
        ("none", torch.bfloat16, "none"),
        ("chunked", torch.bfloat16, "chunked"),
        ("liger", torch.bfloat16, "liger"),
    ]:
        place = torch.device("cpu") if name == "exact" else device
        try:
            model = build(SMALL, torch.device("cpu"), torch.bfloat16).to(place, dtype)
            use_packed(model, "packed_varlen")
            forward = Forward(model, fused=fuse_loss(model, kernel, cuda=place.type == "cuda"))
            wanted = find_targets(flatten([row])).to(place)
            batch = to_device(flatten([row]), place)
            forward.loss(model, batch, wanted, torch.tensor(wanted.units, device=place), share=1).backward()
        except PacktrainError as error:
            rows.append({"loss_kernel": name, "not_measured": str(error)[:160]})
            continue
        found[name] = {key: weight.grad.cpu() for key, weight in model.named_parameters()}
        if name != "exact":
            errors = {key: off(gradient, found["exact"][key]) for key, gradient in found[name].items()}
            worst = max(errors, key=lambda key: errors[key])
            head = errors.get("lm_head.weight", errors["model.embed_tokens.weight"])
            rows.append({"loss_kernel": name, "worst": errors[worst], "parameter": worst, "head": head})
    return rows


def kernels(device: torch.device) -> list[Result]:
    """FlashAttention against the loop in float32: windows shorter and longer than documents, groups, odd widths."""
    rows: list[Result] = []
    lengths = [1, 127, 3, 300, 129, 64]
    cu = torch.tensor(np.cumsum([0, *lengths]), dtype=torch.int32, device=device)
    for heads, groups, width in ((8, 8, 64), (8, 2, 128), (6, 1, 64), (4, 2, 20), (4, 2, 256)):
        for window in (None, 1, 33, 1000):
            for dtype in HALF:
                result: Result = {"shape": f"{heads}/{groups}x{width}", "window": window, "dtype": str(dtype)[6:]}
                rows.append(result)
                if reason := why_not_flash(device):
                    result["not_measured"] = reason
                    continue
                torch.manual_seed(0)
                q, k, v = (
                    torch.randn(sum(lengths), count, width, device=device, dtype=dtype)
                    for count in (heads, groups, groups)
                )
                exact = [tensor.float().requires_grad_() for tensor in (q, k, v)]
                for tensor in (q, k, v):
                    tensor.requires_grad_()
                out = flash(q, k, v, cu, max(lengths), scale=width**-0.5, window=window)
                expected = per_document(exact[0], exact[1], exact[2], cu, scale=width**-0.5, window=window)
                out.float().pow(2).sum().backward()
                expected.pow(2).sum().backward()
                pairs = zip((q, k, v), exact, strict=True)
                result["forward"] = off(out, expected)
                # A window of one token has no gradient of queries and keys.
                result["backward"] = max(off(a.grad, b.grad) for a, b in pairs if float(b.grad.norm()) > 1e-3)
    return rows


def isolation(device: torch.device) -> list[Result]:
    """The probe on a small model in bf16, with a real batch."""
    model = build(SMALL, device, torch.bfloat16)
    applied = use_packed(model, "packed_varlen")
    report = probe(model, batch=flatten([row_of(512, SMALL["vocab_size"])]))
    return [{"kernel": applied.kernel, "isolated": report.isolated, **{one.name: one.value for one in report.checks}}]


def table(title: str, rows: list[Result]) -> str:
    """Markdown."""
    keys = list(dict.fromkeys(key for row in rows for key in row))
    lines = [f"**{title}**", "", f"| {' | '.join(keys)} |", f"|{'---|' * len(keys)}"]
    for row in rows:
        cells = [f"{row[key]:.3g}" if isinstance(row.get(key), float) else str(row.get(key, "")) for key in keys]
        lines.append(f"| {' | '.join(cells)} |")
    return "\n".join([*lines, ""])


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--tiny", action="store_true", help="a tiny model on a CPU")
    parser.add_argument("--length", type=int, default=16_384, help="tokens of a row")
    parser.add_argument("--peak", type=float, default=989e12, help="FLOP/s of the card in bf16")
    parser.add_argument("--json", help="where results are written")
    options = parser.parse_args()
    if not options.tiny and not torch.cuda.is_available():
        parser.error("there is no CUDA device; --tiny is a dry run on a CPU")
    device = torch.device("cpu" if options.tiny else "cuda:0")
    sizes = SMALL if options.tiny else LARGE
    length, times = (128, 1) if options.tiny else (options.length, 8)
    sections = {
        "Speed": speed({**sizes, "max_position_embeddings": length}, length, device, peak=options.peak, times=times),
        "Gradients against float32": gradients(device),
        "FlashAttention against the loop": kernels(device),
        "Isolation": isolation(device),
    }
    card = "CPU" if options.tiny else torch.cuda.get_device_name(device)
    print(f"{card}, torch {torch.__version__}, rows of {length:,} tokens\n")
    for title, rows in sections.items():
        print(table(title, rows))
    if options.json:
        with open(options.json, "w", encoding="utf-8") as file:  # noqa: PTH123
            json.dump({"card": card, "torch": torch.__version__, "length": length, **sections}, file, indent=1)


if __name__ == "__main__":
    main()
