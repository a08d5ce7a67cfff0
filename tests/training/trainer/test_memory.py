"""Offloading changes nothing but where activations lie, and moves most of what a forward pass keeps."""

from typing import Any

import pytest

torch = pytest.importorskip("torch")
pytest.importorskip("transformers")

from packtrain.training.trainer.heads import use_fused_loss  # noqa: E402
from packtrain.training.trainer.memory import Moved, offloaded  # noqa: E402

from tests.training.trainer.tiny_models import batch, make  # noqa: E402

SMALL = 1024


def gradients(model: Any, moved: list[Moved] | None = None) -> list[Any]:
    """Of every parameter; with `moved`, through the host."""
    model.zero_grad()
    inputs = batch(200)
    if moved is None:
        loss = model(**inputs).loss
    else:
        with offloaded(model, min_bytes=SMALL, from_cpu=True) as found:
            loss = model(**inputs).loss
        moved.append(found)
    loss.backward()
    return [parameter.grad.clone() for parameter in model.parameters()]


def kept_bytes(model: Any) -> int:
    """Of all memory that a forward pass keeps, counted once, parameters apart."""
    kept: dict[int, Any] = {}

    def pack(tensor: Any) -> Any:
        kept[tensor.untyped_storage().data_ptr()] = tensor.untyped_storage()
        return tensor

    with torch.autograd.graph.saved_tensors_hooks(pack, lambda tensor: tensor):
        loss = model(**batch(200)).loss
    for parameter in model.parameters():
        kept.pop(parameter.untyped_storage().data_ptr(), None)
    del loss
    return sum(storage.nbytes() for storage in kept.values())


@pytest.mark.parametrize("fused", [False, True])
def test_gradients_are_equal_to_the_bit_and_nearly_everything_is_moved(fused: bool) -> None:
    model = make("Llama", attention="sdpa", hidden_size=64, tie_word_embeddings=False).train()
    if fused:
        use_fused_loss(model, "chunked")
    expected, moved = gradients(model), list[Moved]()
    assert all(torch.equal(one, other) for one, other in zip(gradients(model, moved), expected, strict=True))
    kept = kept_bytes(model)
    # A transposed view of what was copied is copied again: a few.
    assert 0.9 * kept < moved[0].bytes < 1.1 * kept
    assert moved[0].tensors > 20


def test_memory_that_is_given_away_and_used_again_is_not_mistaken_for_what_it_was() -> None:
    """Every activation has one shape; as each goes to the host, the next takes its place."""
    start = torch.rand(64, 64, requires_grad=True)

    def chain() -> Any:
        value = start
        for _ in range(50):
            value = torch.sin(value * 1.7)
        return value.sum()

    expected = torch.autograd.grad(chain(), start)[0]
    with offloaded(torch.nn.Linear(1, 1), min_bytes=1, from_cpu=True) as moved:
        loss = chain()
    assert torch.equal(torch.autograd.grad(loss, start)[0], expected)
    assert moved.tensors >= 50


def test_parameters_and_small_tensors_stay() -> None:
    layer, value = torch.nn.Linear(64, 64), torch.rand(8, 64)
    with offloaded(layer, min_bytes=1, from_cpu=True) as moved:
        layer(value).sum()
    assert moved.bytes == value.numel() * 4
    with offloaded(layer, from_cpu=True) as moved:
        layer(value).sum()
    assert moved.bytes == 0
    # A gathered parameter of FSDP is not among the model's own.
    gathered = torch.nn.Parameter(torch.rand(64, 64))
    with offloaded(layer, min_bytes=1, from_cpu=True) as moved:
        (torch.rand(8, 64, requires_grad=True) @ gathered.T).sum()
    assert moved.bytes == 8 * 64 * 4


def test_on_the_host_nothing_is_moved_by_default() -> None:
    model = make("Llama")
    with offloaded(model, min_bytes=1) as moved:
        model(**batch()).loss.backward()
    assert moved.bytes == 0


def test_beside_checkpointing_there_is_little_left_to_move() -> None:
    """Which is why the two are refused together."""
    model = make("Llama", attention="sdpa", num_hidden_layers=6).train()
    use_fused_loss(model, "chunked")
    moved: list[Moved] = []
    expected = gradients(model, moved)
    model.activation_checkpointing_enable({"use_reentrant": False})
    found = gradients(model, moved)
    assert all(torch.equal(one, other) for one, other in zip(found, expected, strict=True))
    print(f"moved: {moved[0].bytes:,} alone, {moved[1].bytes:,} beside checkpointing")
    assert moved[1].bytes < 0.15 * moved[0].bytes


@pytest.mark.slow
@pytest.mark.parametrize("backend", ["eager", "aot_eager"])
def test_compiled(backend: str) -> None:
    model = make("Llama", attention="sdpa").train()
    expected, moved = gradients(model), list[Moved]()
    torch._dynamo.reset()
    compiled = torch.compile(model, backend=backend)
    for one, other in zip(gradients(compiled, moved), expected, strict=True):
        assert torch.allclose(one, other, atol=1e-6)
    assert moved[0].bytes > 100_000
