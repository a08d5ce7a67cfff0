"""Answers of a model: `sample` draws them, `eval-apps` runs those that are programs."""

import math
from collections.abc import Callable
from dataclasses import dataclass, replace
from functools import partial
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Literal

import typer

from ...schemas.errors import ConfigError
from ...schemas.escape import escape_line
from ...schemas.units import plural
from .options import Count, Set, load_run
from .output import print_line, print_lines, show_progress, training_extra

if TYPE_CHECKING:
    import torch

    from ...schemas.models.samples import SampleEngine, SampleSettings
    from ...training.models.generate import ModelFolder
    from ..observer import Observer
    from ..samples.prompts import PromptSet

_TOKENIZER_FILES = ("tokenizer", "vocab", "spiece", "tekken")
"""How names of a tokenizer's files begin."""
_MAX_TEST_SECONDS = 3600
"""That one test may take."""


def sample(
    model: str,
    data: Annotated[str, typer.Option()],
    out: Annotated[Path, typer.Option("--out", "-o")],
    tokenizer: Path | None = None,
    n: Annotated[int, typer.Option("-n", "--samples", min=1)] = 1,
    temperature: Annotated[float, typer.Option(min=0)] = 0.8,
    top_p: Annotated[float, typer.Option(min=0, max=1)] = 1.0,
    max_new_tokens: Count = 1024,
    seed: int = 0,
    shard: str | None = None,
    batch: Annotated[int | None, typer.Option(min=1)] = None,
    dtype: Literal["auto", "float32", "bfloat16", "float16"] = "auto",
    base: Path | None = None,
    endpoint: str | None = None,
    settings: Set = None,
) -> None:
    """Draw samples of a model's answers, in a file that a stopped run resumes.

    Args:
        model (MODEL): a model's folder, or an adapter's; with --endpoint, the model's name there.
        data (PATH): what packtrain prep --prompt-only wrote.
        out: the samples file, one JSON object a line; resumed if it is there.
        tokenizer: the tokenizer's folder; by default MODEL.
        n: samples of each prompt.
        temperature: 0 takes the most probable token every time.
        top_p: draw from the likeliest tokens with this probability.
        max_new_tokens: maximum number of tokens in an answer.
        seed: other seeds draw other samples.
        shard (I/N): part I of N, from 0, into a file of its own, for several machines.
        batch: sequences at once; by default 64 on CUDA, else 16.
        dtype: float32, bfloat16 or float16; by default that of the weights.
        base: the model under an adapter; by default what the folder says.
        endpoint (URL): ask an OpenAI-compatible server, such as http://host:8000/v1.
    """
    from ...schemas.models.samples import SampleSettings
    from ..execute.executor import parse_shard
    from ..samples.endpoint import EndpointEngine
    from ..samples.prompts import read_prompts
    from ..samples.sampling import SamplePlan, draw_samples, shard_file
    from ..store.appended import check_place

    _check_sampling(temperature, top_p, endpoint, tokenizer)
    folder = tokenizer or Path(model)
    config, place = load_run(None, settings, [data], folder, str(out), shard=shard)
    part = parse_shard(config.run.shard or "0/1")
    out = shard_file(out, part)
    check_place(out)
    if tokenizer is None:
        _require_tokenizer(folder)

    with show_progress() as observer:
        # Looked for before the prompts are read: a mistake in the model is found at once, and reading takes minutes.
        local_model = None if endpoint is not None else _find_model(Path(model), base, batch)
        prompts = read_prompts(Path(data), config.tokenizer, place)
        sampling = SampleSettings(temperature, top_p, max_new_tokens, prompts.stop_ids)
        make_engine: Callable[[], SampleEngine]  # called only if a sample is missing
        if local_model is not None:
            sampling = _settings_of_model(prompts, sampling, local_model.folder, observer)
            make_engine = partial(_load_engine, local_model, dtype, sampling)
            group_size = local_model.sequences
            # With the number of sequences: how they are padded together changes the last bits of their logits.
            engine = {
                "engine": "generate",
                "model": local_model.folder.digest,
                "dtype": dtype,
                "batch": local_model.sequences,
            }
        else:
            make_engine = partial(EndpointEngine, endpoint or "", model, sampling)
            group_size = 1  # a server computes answers together as it likes
            engine = {"engine": "endpoint", "model": model}
        # What decides the samples: a file that was begun with other settings is not continued.
        identity = {
            **engine,
            "prompts": prompts.hash,
            "n": n,
            "temperature": temperature,
            "top_p": top_p,
            "seed": seed,
            "max_new_tokens": max_new_tokens,
            "shard": shard or "0/1",
        }
        plan = SamplePlan(n, seed, part, group_size)
        reasons = draw_samples(prompts, plan, sampling, identity, out, make_engine, observer)
    counts = ", ".join(f"{escape_line(reason)} {number:,}" for reason, number in sorted(reasons.items()))
    in_words = f" ({counts})" if counts else ""
    print_line(f"{out}: {plural(sum(reasons.values()), 'sample')}{in_words}")


def _check_sampling(temperature: float, top_p: float, endpoint: str | None, tokenizer: Path | None) -> None:
    """Refuse what the types of options let pass: NaN, infinity, and probabilities that leave no token; and a server
    whose tokenizer is not known.

    Raises:
        ConfigError: names the option.
    """
    for name, value in (("--temperature", temperature), ("--top-p", top_p)):
        if not math.isfinite(value) or (name == "--top-p" and value == 0):
            raise ConfigError(f"{name} {value}: give a number above 0")
    if endpoint is not None and not endpoint.startswith(("http://", "https://")):
        raise ConfigError(f"--endpoint {endpoint}: give a URL such as http://localhost:8000/v1")
    # Prompts go there as token ids, and a server has no way to ask for its tokenizer.
    if endpoint is not None and tokenizer is None:
        raise ConfigError("--endpoint: give --tokenizer, the folder of the served model's tokenizer")


def _require_tokenizer(model: Path) -> None:
    """Refuse a model's folder without a tokenizer, of which transformers would not say what is missing. What is no
    folder is refused where the model is looked for.

    Raises:
        ConfigError: names the option that gives one.
    """
    if model.is_dir() and not any(file.name.startswith(_TOKENIZER_FILES) for file in model.iterdir()):
        raise ConfigError(f"MODEL: {model} holds no tokenizer; add --tokenizer, the folder of the trained model's")


@dataclass(frozen=True, slots=True)
class _LocalModel:
    """A model of this machine, checked but not loaded."""

    folder: "ModelFolder"
    device: "torch.device"
    sequences: int
    """Drawn at once."""


def _find_model(model: Path, base: Path | None, batch: int | None) -> _LocalModel:
    """Find a model, and how it can be run here.

    Args:
        base: the model under an adapter.
        batch: sequences at once; None for what the device can do.

    Raises:
        ConfigError: it is a sharded checkpoint, or cannot be used; or torch is not installed.
    """
    with training_extra():
        from ...training.models.generate import SEQUENCES, find_model
        from ...training.models.model import default_device
        from ...training.models.sharded import find_shards
    # transformers cannot load it, and does not say what to do.
    if find_shards(model) is not None:
        raise ConfigError(
            f"{model} is a sharded checkpoint; packtrain export {model} --to model --out FOLDER makes a model of it"
        )
    device = default_device()
    return _LocalModel(find_model(model, base), device, batch or SEQUENCES.get(device.type, SEQUENCES["cpu"]))


def _load_engine(model: _LocalModel, dtype: str, settings: "SampleSettings") -> "SampleEngine":
    """Load a model that generates samples, which may take a minute."""
    from ...training.models.generate import GenerateEngine, load_for_generation

    return GenerateEngine(load_for_generation(model.folder, dtype=dtype, device=model.device), settings)


def _settings_of_model(
    prompts: "PromptSet", settings: "SampleSettings", model: "ModelFolder", observer: "Observer"
) -> "SampleSettings":
    """The settings with the model's own tokens that end an answer, beside those of the prompts; before, it is checked
    that the prompts fit the model.

    Raises:
        ConfigError: the tokenizer has ids, or a prompt and its answer have positions, that the model does not have.
    """
    if prompts.vocabulary_size > model.vocabulary:
        raise ConfigError(
            f"--tokenizer: it has {prompts.vocabulary_size:,} token ids, but the model has embeddings for "
            f"{model.vocabulary:,}; give the model's own tokenizer"
        )
    # Without this, the last samples would fail after hours, or be drawn from positions that were never trained.
    longest = max(len(prompt.token_ids) for prompt in prompts.prompts)
    if model.positions is not None and longest + settings.max_new_tokens > model.positions:
        raise ConfigError(
            f"--max-new-tokens {settings.max_new_tokens}: the model has {model.positions:,} positions, and the longest "
            f"prompt {longest:,} tokens; lower it, or leave out long prompts"
        )
    # The template's, the tokenizer's and the model's, each once. Ids beyond the embeddings cannot be drawn.
    stops = tuple(dict.fromkeys((*settings.stop_ids, *(id for id in model.stop_ids if id < model.vocabulary))))
    if not stops:
        observer.note(
            "neither the template, the tokenizer nor the model says what ends an answer; all run to their limit"
        )
    return replace(settings, stop_ids=stops)


def eval_apps(
    data: Annotated[Path, typer.Option()],
    out: Annotated[Path, typer.Option("--out", "-o")],
    samples: Annotated[Path | None, typer.Argument(show_default=False)] = None,
    timeout: float = 10.0,
    jobs: Annotated[int | None, typer.Option(min=1)] = None,
    unsafe: bool = False,
    references: bool = False,
    compare: Path | None = None,
) -> None:
    """Run a model's programs against the tests of APPS problems, in a sandbox, and give pass@k by difficulty.

    Args:
        samples (SAMPLES): what `packtrain sample` wrote, or JSON lines with id, row, sample and text.
        data: APPS rows with their tests: the data that the samples were made from.
        out (DIR): folder for results; the same command continues there.
        timeout (SECONDS): CPU time of one test; twice as much by the clock.
        jobs: programs at once; by default one per core.
        unsafe: run programs WITHOUT a sandbox, with all rights of this user.
        references: run the data's own solutions in place of samples, to calibrate.
        compare (DIR): the --out of another evaluation of the same data: do they differ?
    """
    from ..judge.evaluation import run_evaluation
    from ..judge.sandbox import ProgramLimits
    from ..judge.summary import describe_summary, score_table

    if (samples is None) is not references:
        raise ConfigError("give a samples file, or --references to run the data's own programs; one of them")
    if not 0 < timeout <= _MAX_TEST_SECONDS:
        raise ConfigError(f"--timeout: give more than 0 and at most {_MAX_TEST_SECONDS:,} seconds")
    # Twice the CPU time by the clock: on a busy machine a correct program must not fail for having to wait.
    limits = ProgramLimits(wall_seconds=2 * timeout, cpu_seconds=timeout)
    with show_progress() as observer:
        summary = run_evaluation(
            data, out, samples, limits=limits, unsafe=unsafe, jobs=jobs, compare=compare, observer=observer
        )
    files = f"{out}: report.html shows some failures; results.jsonl has every sample, summary.json these numbers"
    print_lines([score_table(summary), *describe_summary(summary), files])
