"""Says what the sampling proof found in a run, and where stop tokens disagree."""

from collections import Counter
from collections.abc import Iterator, Sequence

from ...schemas.config.config import RunConfig
from ...schemas.config.mask import MaskConfig
from ...schemas.escape import escape_line
from ...schemas.units import plural
from ...stages.mask.sampling import Outcome
from ...stages.tokenize.engines import tokenizer_head
from ..execute.executor import Executor, perform
from ..inputs.blocks import InputFile
from ..store.open import Store
from .driver import Encoded
from .notes import by_mask, found
from .sampled import kinds_tried, sampled_turns
from .task import StopsTask

_SAID = {
    Outcome.PREFIX: "the text before {} is not the prompt that a model would be given",
    Outcome.PAST_STOP: "{} more after a stop token, which a model would never be asked for",
    Outcome.NEXT_HEADER: "the stop token of {} begins the next message's header, and is not trained",
    Outcome.MISSING: "{} no stop token, so the model does not learn to stop there",
}
_VERBS = {Outcome.PAST_STOP: ("has", "have"), Outcome.MISSING: ("has", "have")}


def check_sampling(config: RunConfig, files: Sequence[InputFile], encoded: Encoded) -> Iterator[str]:
    """Describe the turns that are not what a model would sample, of each mask.

    Args:
        files: the encoded files, in order.
    """
    for key, mask, some, records in by_mask(config, files, encoded):
        tried = sum((sampled_turns(record.counts, mask) for record in records), Counter[str]())
        wrong = [outcome for outcome in _SAID if tried[outcome]]
        if not wrong:
            continue
        said = []
        for outcome in wrong:
            count = tried[outcome]
            verb = f" {_VERBS[outcome][count > 1]}" if outcome in _VERBS else ""
            said.append(_SAID[outcome].format(plural(count, "turn") + verb))
        what = f"of {plural(tried.total(), 'turn')} of the assistant" + ("" if mask.prove else " in a sample")
        _, first, message = found(some, records, *kinds_tried(mask), names=wrong)
        yield f"{what}: {'; '.join(said)}. The first: {first}, message {message}. {_advice(key, mask, tried)}"


def _advice(key: str, mask: MaskConfig, found: Counter[str]) -> str:
    """What to do about each outcome.

    Args:
        key: where the configuration has the mask.
    """
    out = []
    if found[Outcome.PREFIX]:
        own = "expand=per_turn"
        out.append(f"For an example of each turn, with the prompt that a model would be given: {own}")
        if mask.policy == "assistant":
            out[0] += f" with {key}=completion"
    if found[Outcome.NEXT_HEADER]:
        out.append(f"To train a stop token in the next header: {key}.stop=auto")
    if found[Outcome.MISSING]:
        out.append("A stop that the template does not write cannot be trained: take a template that writes one")
    if not mask.prove:
        out.append("To count all turns: mask.prove=sampling")
    return ". ".join(out)


def check_stops(
    config: RunConfig, files: Sequence[InputFile], encoded: Encoded, cache: Store, executor: Executor
) -> Iterator[str]:
    """Say that the template does not end turns itself, or ends them with tokens at which a generation would not
    stop.

    Args:
        files: the encoded files, in order.
        cache: the store that workers read the specification from.
    """
    spec, masks = encoded.spec, [one for one in by_mask(config, files, encoded) if one.mask.policy != "all"]
    if spec.template is None or not masks:
        return
    (found,) = executor.map(perform, [StopsTask(cache, spec.save(cache))])
    assert isinstance(found, tuple)
    header, stops = found
    ending = [one for one in masks if one.mask.train_end] if header else []
    tokens = " or ".join(escape_line(name) for name in header)
    template = f"the chat template '{spec.template_name}'"
    what = f"{template} ends no turn of the assistant; {tokens} in the next message's header"
    for key, mask, _, _ in ending:
        under = f"{what} does, and under {key}" if len(ending) > 1 else f"{what} does, and"
        if mask.stop == "auto":
            yield f"{under} is trained there. A last turn has no header after it, and so no stop token"
        else:
            yield f"{under} is not trained there. To train it: {key}.stop=auto"
    if not stops.unnamed:
        return
    names = {token.id: token.content for token in tokenizer_head(spec.tokenizer_json).added_tokens}
    own = ", ".join(escape_line(names[id]) for id in stops.unnamed)
    others = stops.generation or (stops.eos,)
    place = "its generation_config.json names" if stops.generation else "its end-of-sequence token is"
    stop = ", ".join(escape_line(names.get(id or 0, f"id {id}")) for id in others)
    ids = ", ".join(str(id) for id in stops.unnamed)
    yield (
        f"{template} ends turns of the assistant with {own}, at which a "
        f"generation with this model would not stop: {place} {stop}. The template is believed; add {ids} to "
        "eos_token_id in the model's generation_config.json"
    )
