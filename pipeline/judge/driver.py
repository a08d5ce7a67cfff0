"""`packtrain eval-apps` from top to bottom: check everything, run what is missing, write numbers and page."""

import os
from collections.abc import Sequence
from dataclasses import dataclass, field, replace
from pathlib import Path

from ...schemas.errors import ConfigError, OutputError, PacktrainError, StoreError
from ...schemas.jsontext import indented_json
from ..observer import Observer, Silent
from ..samples.samples_file import read_samples
from ..store.local import LocalStore, hash_file
from .attempts import attempts_of_references, attempts_of_samples, check_ks, drawn_from
from .calibration import References, find_calibration, other_options, read_finished, references
from .evaluation import CALIBRATION, PAGE, SUMMARY, Evaluation, check_out, evaluate
from .judging import Judging
from .page import evaluation_page
from .problem_file import open_problems
from .sandbox.open import open_sandbox
from .summary import Results, Summary, summarise, summary_json


@dataclass(frozen=True, slots=True)
class EvaluationRequest:
    """What a person asked for."""

    data: Path
    out: Path
    samples: Path | None = None
    """None: run the data's own programs only, which needs `calibrate`."""
    judging: Judging = field(default_factory=Judging)
    sandbox: str = "auto"
    jobs: int | None = None
    """Programs at once; None for one per core."""
    ks: tuple[int, ...] | None = None
    calibrate: bool = False
    calibration: Path | None = None
    """A finished calibration."""
    compare: Path | None = None
    """A finished evaluation to compare with."""


def run_evaluation(request: EvaluationRequest, observer: Observer | None = None) -> Summary:
    """Evaluate, or continue to.

    Raises:
        ConfigError, InputError, OutputError: something is wrong with the options or files; nothing was written.
        SandboxError, StoreError: the machine failed; the same call continues.
    """
    observer = observer or Silent()
    if request.samples is None and not request.calibrate:
        raise ConfigError("give a samples file, or --calibrate to run the data's own programs")
    if request.calibrate and request.calibration is not None:
        raise ConfigError("--calibrate runs the references and --calibration reads such a run; give one of them")
    if request.calibration is not None:
        request = replace(request, calibration=find_calibration(request.calibration))
    with open_problems(request.data) as problems:
        path = request.samples
        samples = attempts_of_samples(read_samples(path), path, problems) if path is not None else None
        ks = check_ks(request.ks, samples) if samples is not None else ()
        own = attempts_of_references(problems) if request.calibrate else None
        other = calibrated = None
        page = ""
        if request.compare is not None:
            other = read_finished(request.compare, "--compare", problems)
        if request.calibration is not None:
            calibrated = references(read_finished(request.calibration, "--calibration", problems).values(), problems)
            page = str(request.calibration / PAGE)
        main = Evaluation(
            request.out,
            problems,
            samples if samples is not None else own or [],
            hash_file(request.samples).hash if request.samples is not None else None,
            request.judging,
            open_sandbox(request.sandbox),
            request.jobs or len(os.sched_getaffinity(0)),
        )
        check_out(main)
        notes = _notes(request, main)
        for note in (main.sandbox.note, *notes):
            if note is not None:
                observer.note(note)
        if request.samples is None:
            return _references_only(main, observer)
        if own is not None:
            below = replace(main, out=request.out / CALIBRATION, attempts=own, samples_hash=None)
            check_out(below)
            _references_only(below, observer)
            calibrated = references(read_finished(below.out, "--calibrate", problems).values(), problems)
            page = f"{CALIBRATION}/{PAGE}"
        results = evaluate(main, observer)
        title = request.samples.name
        name = str(request.compare) if request.compare is not None else ""
        summary = summarise(main, results, ks, title, calibrated, other, name, notes, page)
        _write(main, summary, results)
        return summary


def _references_only(evaluation: Evaluation, observer: Observer) -> Summary:
    """Run the data's own programs, and write down what became of them."""
    results = evaluate(evaluation, observer)
    found: dict[int, References] = references(results.values(), evaluation.problems)
    summary = summarise(evaluation, results, (), "the data's own programs", found)
    _write(evaluation, summary, results)
    return summary


def _notes(request: EvaluationRequest, main: Evaluation) -> Sequence[str]:
    """What makes the numbers, a comparison or a calibration less than exact."""
    notes = []
    drawn = drawn_from(request.samples) if request.samples is not None else None
    if drawn is not None and drawn != main.problems.hash:
        notes.append(
            f"{request.samples} was drawn from another file than --data {request.data}: rows and ids agree, questions "
            "may not; if it is not the same test set, give the file that the samples were drawn from"
        )
    for option, folder in (("--compare", request.compare), ("--calibration", request.calibration)):
        if folder is not None and (differ := other_options(folder, option, main.identity())):
            notes.append(f"{option} {folder} was judged with other options: {differ} as here")
    return notes


def _write(evaluation: Evaluation, summary: Summary, results: Results) -> None:
    """The page, then the summary, which is the last file of a finished evaluation."""
    from ..report.draw.shell import render

    store = LocalStore(evaluation.out)
    page = evaluation_page(summary, results, evaluation.attempts, evaluation.problems)
    try:
        store.replace_bytes(PAGE, render(page))
        store.replace_bytes(SUMMARY, indented_json(summary_json(summary), 2) + b"\n")
    except StoreError:
        raise  # says what to do, and whose fault it is
    except (PacktrainError, OSError) as error:
        raise OutputError(
            f"{evaluation.out} cannot be written ({error}); the results are in it: fix that, and run the same command "
            "again"
        ) from error
