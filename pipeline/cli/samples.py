"""Answers of a model: `sample` draws them, `eval-apps` runs those that are programs."""

import math
from collections.abc import Callable
from dataclasses import dataclass, replace
from functools import partial
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any, Literal

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
"""The largest limit that --timeout may give a test."""


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
    from ..samples.prompts import read_prompts
    from ..samples.sampling import SamplePlan, draw_samples, shard_file
    from ..store.appended import check_place

    # Mistakes in options first, then in files, and what takes minutes last.
    _check_sampling(temperature, top_p, endpoint, tokenizer)
    tokenizer_folder = tokenizer or Path(model)
    # The configuration of a run with these options: it checks --shard, and has the tokenizer's options of --set.
    config, base_folder = load_run(
        config=None, settings=settings, inputs=[data], tokenizer=tokenizer_folder, out=str(out), shard=shard
    )
    part = parse_shard(config.run.shard or "0/1")  # (i, N); without --shard, part 0 of 1, which is the whole
    file = shard_file(out, part)
    check_place(file)
    if tokenizer is None:
        _require_tokenizer(tokenizer_folder)

    sampling = SampleSettings(temperature, top_p, max_new_tokens)
    with show_progress() as observer:
        if endpoint is not None:
            prompts = read_prompts(Path(data), config.tokenizer, base_folder)
            engine = _served_engine(endpoint, model, prompts, sampling)
        else:
            # Looked for before the prompts are read: a mistake in the model is found at once.
            local_model = _find_model(Path(model), base, batch)
            prompts = read_prompts(Path(data), config.tokenizer, base_folder)
            engine = _local_engine(local_model, dtype, prompts, sampling, observer)
        # What decides the samples: a file that was begun with other settings is not continued.
        identity = {
            **engine.identity,
            "prompts": prompts.hash,
            "n": n,
            "temperature": temperature,
            "top_p": top_p,
            "seed": seed,
            "max_new_tokens": max_new_tokens,
            "shard": shard or "0/1",
        }
        plan = SamplePlan(n, seed, part, engine.group_size)
        # Why samples ended, such as `stop` → how many of them.
        reasons = draw_samples(
            prompts,
            plan,
            settings=engine.sampling,
            options=identity,
            out=file,
            make_engine=engine.make,
            observer=observer,
        )
    counts = ", ".join(f"{escape_line(reason)} {number:,}" for reason, number in sorted(reasons.items()))
    counts_by_reason = f" ({counts})" if counts else ""
    print_line(f"{file}: {plural(sum(reasons.values()), 'sample')}{counts_by_reason}")


def _check_sampling(temperature: float, top_p: float, endpoint: str | None, tokenizer: Path | None) -> None:
    """Refuse numbers that the types of the options let pass: NaN, infinity, and a probability that leaves no token.
    Refuse a server without --tokenizer, too.

    Raises:
        ConfigError: names the option.
    """
    if not math.isfinite(temperature):
        raise ConfigError(f"--temperature {temperature}: give 0 or a number above it")
    if not math.isfinite(top_p) or top_p == 0:
        raise ConfigError(f"--top-p {top_p}: give a number above 0")
    if endpoint is not None and not endpoint.startswith(("http://", "https://")):
        raise ConfigError(f"--endpoint {endpoint}: give a URL such as http://localhost:8000/v1")
    # Prompts go there as token ids, and a server has no way to ask for its tokenizer.
    if endpoint is not None and tokenizer is None:
        raise ConfigError("--endpoint: give --tokenizer, the folder of the served model's tokenizer")


def _require_tokenizer(model: Path) -> None:
    """Refuse a model's folder without a tokenizer: transformers would not say what is missing. A path that is no folder
    passes here, and is refused by `_find_model`.

    Raises:
        ConfigError: names the option that gives one.
    """
    if model.is_dir() and not any(file.name.startswith(_TOKENIZER_FILES) for file in model.iterdir()):
        raise ConfigError(f"MODEL: {model} holds no tokenizer; add --tokenizer, the folder of the trained model's")


@dataclass(frozen=True, slots=True)
class _EngineChoice:
    """What draws the samples, not made yet."""

    make: "Callable[[], SampleEngine]"
    """Makes it, which may take a minute: called only if a sample is missing."""
    sampling: "SampleSettings"
    group_size: int
    """Samples that are computed together."""
    identity: dict[str, Any]
    """The settings of the engine that the samples depend on."""


def _served_engine(endpoint: str, model: str, prompts: "PromptSet", sampling: "SampleSettings") -> _EngineChoice:
    """A server that draws the samples.

    Args:
        model: as the server calls it.
        sampling: the settings without `stop_ids`, which are added here.
    """
    from ..samples.endpoint import EndpointEngine

    sampling = replace(sampling, stop_ids=prompts.stop_ids)
    return _EngineChoice(
        make=partial(EndpointEngine, endpoint, model, sampling),
        sampling=sampling,
        group_size=1,  # a server computes answers together as it likes
        identity={"engine": "endpoint", "model": model},
    )


def _local_engine(
    model: "_LocalModel", dtype: str, prompts: "PromptSet", sampling: "SampleSettings", observer: "Observer"
) -> _EngineChoice:
    """A model of this machine that draws the samples.

    Args:
        sampling: the settings without `stop_ids`, which are added here.

    Raises:
        ConfigError: the prompts do not fit the model.
    """
    _check_fit(prompts, sampling.max_new_tokens, model.folder)
    sampling = replace(sampling, stop_ids=_stop_ids(prompts, model.folder, observer))
    return _EngineChoice(
        make=partial(_load_engine, model, dtype, sampling),
        sampling=sampling,
        group_size=model.sequences,
        # `batch` is among them, because the padding of sequences that are computed together changes the last bits of
        # their logits.
        identity={
            "engine": "generate",
            "model": model.folder.digest,
            "dtype": dtype,
            "batch": model.sequences,
        },
    )


@dataclass(frozen=True, slots=True)
class _LocalModel:
    """A model of this machine, checked but not loaded."""

    folder: "ModelFolder"
    device: "torch.device"
    sequences: int
    """How many sequences it draws at once."""


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
    if batch is None:  # SEQUENCES: kind of device, such as "cuda" → sequences at once; as on a CPU for all others
        batch = SEQUENCES.get(device.type, SEQUENCES["cpu"])
    return _LocalModel(find_model(model, base), device, batch)


def _load_engine(model: _LocalModel, dtype: str, settings: "SampleSettings") -> "SampleEngine":
    """Load a model that generates samples, which may take a minute."""
    from ...training.models.generate import GenerateEngine, load_for_generation

    return GenerateEngine(load_for_generation(model.folder, dtype=dtype, device=model.device), settings)


def _check_fit(prompts: "PromptSet", max_new_tokens: int, model: "ModelFolder") -> None:
    """Refuse prompts that do not fit a model.

    Raises:
        ConfigError: the tokenizer has ids, or a prompt and its answer have positions, that the model does not have.
    """
    if prompts.vocabulary_size > model.vocabulary:
        raise ConfigError(
            f"--tokenizer: it has {prompts.vocabulary_size:,} token ids, but the model has embeddings for "
            f"{model.vocabulary:,}; give the model's own tokenizer"
        )
    # Without this, the last samples would fail after hours, or be drawn from positions that were never trained. There
    # is a longest prompt: `read_prompts` refuses data without any. A model that names no positions has `None`.
    longest = max(len(prompt.token_ids) for prompt in prompts.prompts)
    if model.positions is not None and longest + max_new_tokens > model.positions:
        raise ConfigError(
            f"--max-new-tokens {max_new_tokens}: the model has {model.positions:,} positions, and the longest "
            f"prompt {longest:,} tokens; lower it, or leave out long prompts"
        )


def _stop_ids(prompts: "PromptSet", model: "ModelFolder", observer: "Observer") -> tuple[int, ...]:
    """The tokens that end an answer: those of the template and the tokenizer, then the model's own, each once."""
    stop_ids = list(prompts.stop_ids)
    for token_id in model.stop_ids:
        # An id beyond the embeddings cannot be drawn.
        if token_id < model.vocabulary and token_id not in stop_ids:
            stop_ids.append(token_id)
    if not stop_ids:
        observer.note(
            "neither the template, the tokenizer nor the model says what ends an answer; all run to their limit"
        )
    return tuple(stop_ids)


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

    # Programs come from a samples file or, with --references, from the data itself. With both or with neither, it would
    # not be clear which to run.
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
