"""Offloading changes nothing but where activations lie, and moves most of what a forward pass keeps."""

from contextlib import nullcontext
from typing import Any, ClassVar

import pytest

torch = pytest.importorskip("torch")
pytest.importorskip("transformers")

from packtrain.training.trainer import loss as forward  # noqa: E402
from packtrain.training.trainer.loss import FusedHead, fuse_loss, offloaded  # noqa: E402

from tests.training.trainer.tiny_models import batch, loss_of, make  # noqa: E402

SMALL = 1024


class Counted(forward.save_on_cpu):  # type: ignore[misc, name-defined]  # torch is not followed
    """torch's own hooks, which count what they move."""

    moved: ClassVar[list[int]] = []

    def __init__(self, *arguments: Any, **options: Any) -> None:
        super().__init__(*arguments, **options)
        move: Any = self.pack_hook  # type: ignore[has-type]

        def pack(tensor: Any) -> Any:
            self.moved.append(tensor.nbytes)
            return move(tensor)

        self.pack_hook = pack


@pytest.fixture(autouse=True)
def moved(monkeypatch: pytest.MonkeyPatch) -> list[int]:
    """Bytes of each tensor that was moved."""
    monkeypatch.setattr(forward, "save_on_cpu", Counted)
    Counted.moved = []
    return Counted.moved


def gradients(model: Any, *, through_host: bool = False, fused: FusedHead | None = None) -> list[Any]:
    """Of every parameter."""
    model.zero_grad()
    with offloaded(model, min_bytes=SMALL) if through_host else nullcontext():
        loss = loss_of(model, fused, **batch(200))
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


@pytest.mark.parametrize("kind", ["none", "chunked"])
def test_gradients_are_equal_to_the_bit_and_nearly_everything_is_moved(kind: str, moved: list[int]) -> None:
    model = make("Llama", attention="sdpa", hidden_size=64, tie_word_embeddings=False).train()
    fused = fuse_loss(model, kind, cuda=False)
    expected = gradients(model, fused=fused)
    assert not moved
    found = gradients(model, fused=fused, through_host=True)
    assert all(torch.equal(one, other) for one, other in zip(found, expected, strict=True))
    # What several operations keep is moved for each.
    assert 0.9 * kept_bytes(model) < sum(moved)
    assert len(moved) > 20


def test_parameters_and_small_tensors_stay(moved: list[int]) -> None:
    layer, value = torch.nn.Linear(64, 64), torch.rand(8, 64)
    with offloaded(layer, min_bytes=1):
        layer(value).sum()
    assert moved == [value.nbytes]
    with offloaded(layer):
        layer(value).sum()
    assert len(moved) == 1
    # A gathered parameter of FSDP is not among the model's own.
    gathered = torch.nn.Parameter(torch.rand(64, 64))
    with offloaded(layer, min_bytes=1):
        (torch.rand(8, 64, requires_grad=True) @ gathered.T).sum()
    assert moved[1:] == [8 * 64 * 4]
