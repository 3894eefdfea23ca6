"""The fake device refuses what a GPU refuses, allows what it allows, and counts what leaves it."""

import pytest
import torch
from torch.testing import assert_close

from tests.fake_device import DEVICE, DeviceTensor, FakeDevice

ROWS = torch.arange(6.0).reshape(2, 3)


def test_what_is_computed_there_is_what_the_cpu_computes() -> None:
    with FakeDevice() as fake:
        there = ROWS.to(DEVICE)
        assert isinstance(there, DeviceTensor)
        assert there.device == DEVICE
        made = torch.tensor([1.0, 2.0, 3.0], device=DEVICE) + torch.ones(3, device=DEVICE)
        got = torch.softmax(there @ made, dim=0)
        assert not fake.copies
        assert_close(got.cpu(), torch.softmax(ROWS @ torch.tensor([2.0, 3.0, 4.0]), dim=0))


def test_gradients_flow_there() -> None:
    with FakeDevice():
        there = ROWS.to(DEVICE).requires_grad_(True)
        (grad,) = torch.autograd.grad((there.square() * 3).sum(), there)
        assert_close(grad.cpu(), 6 * ROWS)


def test_a_layer_moves_there_whole() -> None:
    layer = torch.nn.Linear(3, 2)
    want = layer(ROWS).detach()
    with FakeDevice():
        layer.to(DEVICE)
        assert all(p.device == DEVICE for p in layer.parameters())
        assert_close(layer(ROWS.to(DEVICE)).detach().cpu(), want)
        with pytest.raises(RuntimeError, match="same device"):
            layer(ROWS)


@pytest.mark.parametrize(
    "mix",
    [
        lambda there, here: there + here,
        lambda there, here: here @ there.T,
        lambda there, here: torch.cat([there, here]),
        lambda there, here: torch.where(here > 1, there, 0.0),
        lambda there, here: there.gather(1, torch.zeros(2, 1, dtype=torch.long)),
        lambda there, here: here.add_(there),
        lambda there, here: here * there.sum(),
        lambda there, here: here[there[:, 0] > 0],
        lambda there, here: here[:, torch.tensor([0, 2], device=DEVICE)],
        lambda there, here: here.index_put_((torch.tensor([0]),), there[:1]),
        lambda there, here: there.index_put_((torch.tensor([0]),), here[:1]),
        lambda there, here: there.scatter_(1, torch.zeros_like(there).long(), here),
        lambda there, here: there @ here.sum().expand(3),
    ],
)  # fmt: skip
def test_devices_do_not_mix(mix) -> None:
    with FakeDevice(), pytest.raises(RuntimeError, match="same device"):
        mix(ROWS.to(DEVICE), ROWS.clone())


def test_what_a_gpu_allows_is_allowed() -> None:
    with FakeDevice() as fake:
        there = ROWS.to(DEVICE)
        assert_close((there * torch.tensor(2.0)).cpu(), ROWS * 2)
        assert_close(there[torch.tensor([1])].cpu(), ROWS[[1]])
        assert_close(there[[1, 0]].cpu(), ROWS[[1, 0]])
        changed = there.clone()
        changed[torch.tensor([0])] = there[1:]
        changed[1] = torch.zeros(3)
        changed[:, [2]] = 9.0
        assert_close(changed.cpu(), torch.tensor([[3.0, 4.0, 9.0], [0.0, 0.0, 9.0]]))
        here = torch.zeros(2, 3)
        fake.copies.clear()
        here.copy_(there)
        assert_close(here, ROWS)
        assert fake.copies == [6]


def test_what_leaves_the_device_is_counted() -> None:
    with FakeDevice() as fake:
        there = ROWS.to(DEVICE)
        there.cpu()
        there[0].tolist()
        assert there.sum().item() == 15.0
        assert bool((there >= 0).all())
        assert torch.equal(there, there.clone())
        assert fake.copies == [6, 3, 1, 1, 1]


def test_it_is_no_array_and_nothing_outside() -> None:
    with FakeDevice():
        there = ROWS.to(DEVICE)
        with pytest.raises(TypeError, match="numpy"):
            there.numpy()
    with pytest.raises(RuntimeError, match="outside"):
        there + 1
