"""Losses of packed pairs: those of padded batches, by published formulas; documents apart to the bit; and what others
got wrong."""

import copy
import math
from typing import Any

import pytest
import torch
from packtrain.schemas.errors import ConfigError, IntegrityError
from packtrain.training import document_logps, predicting_positions, preference_loss
from packtrain.training.attention.packed_attention import use_packed
from packtrain.training.batch import FixedShape, unpack
from packtrain.training.preference.kinds import LOSSES
from packtrain.training.preference.losses import DocumentLogps, find_pairs

from tests.support.pair_rows import PaddedHalf, Pair, padded, pair_batch, pair_row, random_pairs
from tests.training.probe.architectures import build

torch.set_num_threads(1)
ROWS = [random_pairs(3, 1), random_pairs(2, 2), random_pairs(1, 3)]
PAIRS = [pair for row in ROWS for pair in row]
BETA = 0.3
GAMMA = 0.7
LN_2 = math.log(2)


def policy(dtype: torch.dtype = torch.float64, *, seed: int = 0) -> Any:
    """A tiny model with weights so large that its documents differ; other seeds change them a little.

    In float64 it is a GPT-2: norms of models with rotary positions compute in float32 whatever the dtype.
    """
    model = build("qwen3", dtype) if dtype == torch.float32 else build("gpt2", dtype, resid_pdrop=0.0, embd_pdrop=0.0)
    model.train()
    for number, (_, weight) in enumerate(model.named_parameters()):
        if weight.ndim > 1:
            torch.nn.init.normal_(weight, std=0.1, generator=torch.Generator().manual_seed(number))
        if seed:
            noise = torch.randn(weight.shape, generator=torch.Generator().manual_seed(1000 * seed + number))
            weight.data += 0.02 * noise.to(dtype)
    return model


def packed_logps(model: Any, batch: dict[str, Any]) -> DocumentLogps:
    inputs = {name: value for name, value in batch.items() if name != "labels"}
    logits = model(**inputs, logits_to_keep=predicting_positions(batch)).logits[0]
    return document_logps(logits, batch)


def gradient(model: Any, loss: torch.Tensor) -> torch.Tensor:
    """(weights,) float64."""
    model.zero_grad()
    loss.backward()
    return torch.cat([weight.grad.flatten() for weight in model.parameters() if weight.grad is not None]).double()


# The oracle: right padding, transformers' own attention, formulas as TRL and the papers print them


def padded_logps(model: Any, half: PaddedHalf) -> tuple[torch.Tensor, torch.Tensor]:
    """(P,) sums of log-probabilities of completions, and how many tokens these have."""
    logits = model(input_ids=half.input_ids, attention_mask=half.is_token.long(), use_cache=False).logits
    per_token = logits[:, :-1].log_softmax(-1).gather(2, half.input_ids[:, 1:, None])[..., 0].double()
    mask = half.is_completion[:, 1:]
    return (per_token * mask).sum(1), mask.sum(1)


def published(kind: str, model: Any, reference: Any, pairs: list[Pair]) -> torch.Tensor:
    """The mean loss of the pairs."""
    chosen, rejected = padded(pairs)
    (log_w, size_w), (log_l, size_l) = padded_logps(model, chosen), padded_logps(model, rejected)
    with torch.no_grad():
        ref_w, ref_l = padded_logps(reference, chosen)[0], padded_logps(reference, rejected)[0]
    if kind == "dpo":
        return -torch.nn.functional.logsigmoid(BETA * ((log_w - log_l) - (ref_w - ref_l))).mean()
    if kind == "ipo":
        return (((log_w - ref_w) / size_w - (log_l - ref_l) / size_l - 1 / (2 * BETA)) ** 2).mean()
    if kind == "simpo":
        ratio = log_w / size_w - log_l / size_l
        return -torch.nn.functional.logsigmoid(BETA * (ratio - GAMMA / BETA)).mean()
    mean_w, mean_l = log_w / size_w, log_l / size_l
    log_odds = (mean_w - mean_l) - (torch.log1p(-mean_w.exp()) - torch.log1p(-mean_l.exp()))
    return (-mean_w - BETA * torch.nn.functional.logsigmoid(log_odds)).mean()


@pytest.mark.parametrize("shares", [False, True])
@pytest.mark.parametrize(("dtype", "limit"), [(torch.float32, 1e-6), (torch.float64, 1e-12)])
@pytest.mark.parametrize("kind", ["dpo", "ipo", "simpo", "orpo"])
def test_loss_and_gradients_are_those_of_padded_batches(
    kind: str, dtype: torch.dtype, limit: float, shares: bool
) -> None:
    model = policy(dtype, seed=1)
    reference = policy(dtype)
    plain = copy.deepcopy(model)
    for other in (plain, reference):
        other.set_attn_implementation("sdpa")
    expected = published(kind, plain, reference, PAIRS)
    expected_gradient = gradient(plain, expected)
    for packed in (model, reference):
        use_packed(packed)
    batch, sides = pair_batch(ROWS, shares=shares)
    with torch.no_grad():
        reference_sums = packed_logps(reference, batch).sums
    logps, counts = packed_logps(model, batch)
    assert counts.tolist() == [len(side) for pair in PAIRS for side in pair[1:]]
    result = preference_loss(kind, logps, counts, sides, reference_sums, beta=BETA, gamma=GAMMA)
    loss = result.total / result.pairs
    assert result.pairs == len(PAIRS)
    assert loss.item() == pytest.approx(expected.item(), rel=limit)
    found = gradient(model, loss)
    assert float(found.norm()) > 1e-3
    assert float((found - expected_gradient).norm() / expected_gradient.norm()) < limit


@pytest.mark.parametrize("shares", [False, True])
@pytest.mark.parametrize("dtype", [torch.float32, torch.float64])
def test_the_first_dpo_loss_is_ln_2(dtype: torch.dtype, shares: bool) -> None:
    model = policy(dtype)
    use_packed(model)
    batch, sides = pair_batch(ROWS, shares=shares)
    # The reference sees each row alone, as a pass over the rows does.
    alone = [packed_logps(model, pair_batch([row], shares=shares)[0]).sums.detach() for row in ROWS]
    result = preference_loss("dpo", *packed_logps(model, batch), sides, torch.cat(alone), beta=BETA)
    assert (result.total / result.pairs).item() == pytest.approx(LN_2, abs=1e-6)
    assert result.metrics["rewards/margin"].abs().max() < 1e-5


@pytest.mark.parametrize("shares", [False, True])
def test_another_document_moves_no_log_probability_by_a_bit(shares: bool) -> None:
    model = policy(torch.float32)
    use_packed(model)
    batch, _ = pair_batch(ROWS, shares=shares)
    changed = [list(row) for row in ROWS]
    changed[0][1] = changed[0][1]._replace(rejected=[7] * len(changed[0][1].rejected))
    with torch.no_grad():
        before = packed_logps(model, batch).sums
        after = packed_logps(model, pair_batch(changed, shares=shares)[0]).sums
    assert (before != after).nonzero().flatten().tolist() == [3]


def test_unpacked_documents_have_the_same_log_probabilities() -> None:
    model = policy()
    rows = [pair_row(row) for row in ROWS]
    batch = unpack(rows, pad_id=0)
    inputs = {name: value for name, value in batch.items() if name not in ("labels", "sides")}
    with torch.no_grad():
        unpacked = document_logps(model(**inputs).logits, batch)
        use_packed(model)
        packed = packed_logps(model, pair_batch(ROWS)[0])
    assert torch.equal(unpacked.counts, packed.counts)
    assert torch.allclose(unpacked.sums, packed.sums, rtol=1e-12)


def test_all_positions_give_what_the_predicting_ones_give() -> None:
    model = policy()
    use_packed(model)
    batch, _ = pair_batch(ROWS)
    inputs = {name: value for name, value in batch.items() if name != "labels"}
    with torch.no_grad():
        assert torch.equal(document_logps(model(**inputs).logits, batch).sums, packed_logps(model, batch).sums)


# By hand


SUMS = torch.tensor([-6.0, -9.0, -8.0, -2.0], dtype=torch.float64)
COUNTS = torch.tensor([3, 6, 2, 4])
SIDES = torch.tensor([0, 1, 0, 1], dtype=torch.int8)
REFERENCE = torch.tensor([-7.0, -9.5, -6.0, -3.0], dtype=torch.float64)


def log_sigmoid(value: float) -> float:
    return -math.log1p(math.exp(-value))


def odds(mean: float) -> float:
    return math.log(math.exp(mean) / (1 - math.exp(mean)))


EXPECTED = {
    "dpo": [-log_sigmoid(0.3 * (1 - 0.5)), -log_sigmoid(0.3 * (-2 - 1))],
    "ipo": [(1 / 3 - 0.5 / 6 - 1 / 0.6) ** 2, (-2 / 2 - 1 / 4 - 1 / 0.6) ** 2],
    "simpo": [-log_sigmoid(0.3 * (-2 + 1.5) - 0.7), -log_sigmoid(0.3 * (-4 + 0.5) - 0.7)],
    "orpo": [2 - 0.3 * log_sigmoid(odds(-2) - odds(-1.5)), 4 - 0.3 * log_sigmoid(odds(-4) - odds(-0.5))],
    "reward": [-log_sigmoid(3), -log_sigmoid(-6)],
}
REWARDS: dict[str, list[float]] = {
    "dpo": [0.15, -0.9],
    "ipo": [0.075, -0.375],
    "simpo": [-0.15, -1.05],
    "orpo": [-0.15, -1.05],
    "reward": [3, -6],
}


@pytest.mark.parametrize("kind", LOSSES)
def test_losses_and_metrics_by_hand(kind: str) -> None:
    result = preference_loss(kind, SUMS, COUNTS, SIDES, REFERENCE, beta=BETA, gamma=GAMMA)
    assert result.losses.tolist() == pytest.approx(EXPECTED[kind], rel=1e-14)
    assert result.metrics["rewards/accuracy"].tolist() == [float(margin > 0) for margin in REWARDS[kind]]
    assert result.metrics["rewards/margin"].tolist() == pytest.approx(REWARDS[kind], rel=1e-12)
    if kind == "reward":
        assert len(result.metrics) == 2
        return
    assert result.metrics["logps/chosen"].tolist() == [-6, -8]
    assert result.metrics["logps/rejected"].tolist() == [-9, -2]


@pytest.mark.parametrize("kind", LOSSES)
def test_what_is_in_no_pair_counts_nothing(kind: str) -> None:
    """Padding and rows that fill up a step have the side -1; counted as pairs, each would add ln 2 to dpo."""
    fillers = torch.tensor([0, -50.0, -3.0, 0], dtype=torch.float64)
    values = torch.cat([fillers[:1], SUMS[:2], fillers[1:3], SUMS[2:], fillers[3:]]).requires_grad_()
    counts = torch.tensor([0, 3, 6, 5, 5, 2, 4, 0])
    sides = torch.tensor([-1, 0, 1, -1, -1, 0, 1, -1], dtype=torch.int8)
    reference = torch.zeros(8, dtype=torch.float64)
    reference[[1, 2, 5, 6]] = REFERENCE
    result = preference_loss(kind, values, counts, sides, reference, beta=BETA, gamma=GAMMA)
    assert result.losses.tolist() == pytest.approx(EXPECTED[kind], rel=1e-14)
    result.total.backward()
    assert values.grad is not None
    assert (values.grad != 0).tolist() == (sides >= 0).tolist()


@pytest.mark.parametrize("kind", LOSSES)
def test_without_a_pair_the_loss_and_all_gradients_are_zero(kind: str) -> None:
    """All ranks must have all gradients, or they would wait for each other."""
    values = SUMS.clone().requires_grad_()
    result = preference_loss(kind, values, COUNTS, torch.full((4,), -1), REFERENCE)
    assert (result.pairs, result.total.item()) == (0, 0)
    result.total.backward()
    assert values.grad is not None
    assert values.grad.tolist() == [0, 0, 0, 0]


def test_fixed_shapes_change_nothing() -> None:
    """Padding has documents of its own; taken for pairs, they gave first losses of several times ln 2 elsewhere."""
    model = policy()
    use_packed(model)
    batch, sides = pair_batch(ROWS)
    fixed, fixed_sides = pair_batch(ROWS, shape=FixedShape(length=256, docs=8, longest=48, pad_id=0))
    assert len(fixed_sides) > 2 * len(sides)
    with torch.no_grad():
        plain = preference_loss("simpo", *packed_logps(model, batch), sides)
        padded_rows = preference_loss("simpo", *packed_logps(model, fixed), fixed_sides)
    assert padded_rows.pairs == plain.pairs
    assert torch.allclose(padded_rows.losses, plain.losses, rtol=1e-12)


def test_sums_are_in_float64() -> None:
    """A hundred thousand tokens: float32 keeps seven digits of their sum, and the difference of two sums fewer."""
    tokens = 100_001
    labels = torch.zeros(1, 2 * tokens, dtype=torch.int64)
    labels[0, [0, tokens]] = -100
    batch = {"labels": labels, "cu_seq_lens_q": torch.tensor([0, tokens, 2 * tokens], dtype=torch.int32)}
    chance = torch.Generator().manual_seed(0)
    logits = torch.randn((1, 2 * tokens, 3), generator=chance) * 4
    exact = -torch.nn.functional.cross_entropy(
        logits[0].double(), torch.zeros(2 * tokens, dtype=torch.int64), reduction="none"
    )
    expected = [exact[: tokens - 1].sum().item(), exact[tokens:-1].sum().item()]
    sums, counts = document_logps(logits, batch)
    assert counts.tolist() == [tokens - 1, tokens - 1]
    assert sums.dtype == torch.float64
    # The differences of single losses, in float32, average out; those of a float32 sum of 10^5 of them would not.
    assert (sums - torch.tensor(expected, dtype=torch.float64)).abs().max() < 2e-3


def test_a_completion_that_is_certain_has_finite_odds() -> None:
    values = torch.tensor([0.0, -3.0], dtype=torch.float64, requires_grad=True)
    result = preference_loss("orpo", values, torch.tensor([2, 2]), torch.tensor([0, 1]))
    result.total.backward()
    assert values.grad is not None
    assert math.isfinite(result.total.item())
    assert bool(values.grad.isfinite().all())


# What is refused


@pytest.mark.parametrize("sides", [[0, 1, 1, 0], [1, 0, 1, 0], [0, 0, 1, 1], [0, 1, 0, -1], [0, -1, 1, -1]])
def test_sides_that_are_no_pairs_are_refused(sides: list[int]) -> None:
    with pytest.raises(IntegrityError, match="the rejected one right behind it"):
        find_pairs(torch.tensor(sides))


@pytest.mark.parametrize(
    ("kind", "says"),
    [
        ("kto", "kto is not supported: it takes single answers"),
        ("tdpo", "tdpo is not supported: it weighs tokens by a reference of each token"),
        ("grpo", "it generates while it trains"),
        ("dop", "'dop' is not a loss of pairs: choose one of dpo, ipo, simpo, orpo, reward"),
    ],
)
def test_other_losses_are_refused_with_the_reason(kind: str, says: str) -> None:
    with pytest.raises(ConfigError, match=says):
        preference_loss(kind, SUMS, COUNTS, SIDES, REFERENCE)


@pytest.mark.parametrize("kind", ["ipo", "simpo", "orpo"])
def test_sums_are_not_taken_for_means(kind: str) -> None:
    with pytest.raises(ConfigError, match=f"{kind} compares log-probabilities per token: give the counts"):
        preference_loss(kind, SUMS, None, SIDES, REFERENCE)
    assert preference_loss("dpo", SUMS, None, SIDES, REFERENCE).pairs == 2


@pytest.mark.parametrize("kind", ["dpo", "ipo"])
def test_a_reference_that_is_missing_is_said(kind: str) -> None:
    with pytest.raises(ConfigError, match=f"{kind} compares with a reference"):
        preference_loss(kind, SUMS, COUNTS, SIDES)
