"""An accelerator that is none: tensors that say they are on a GPU while the CPU computes them.

Inside `FakeDevice()` a tensor that is moved to "cuda" behaves as on a GPU in what matters for where
numbers lie: it does not meet tensors of the CPU in one operation, beyond the exceptions that CUDA
makes (a single number in an elementwise operation, indices into a tensor of the device), it has no
`numpy()`, and what comes back from it is counted. Speed, rounding and memory of a GPU are not here.
No GPU is needed, and none is used. Read next: `tests/search/test_device.py`.
"""

from collections.abc import Callable, Iterator
from typing import Any

import torch
from torch import Tensor
from torch.utils._python_dispatch import TorchDispatchMode

DEVICE = torch.device("cuda:0")

_aten = torch.ops.aten

#: Operations in which one tensor goes from one device to the other.
_COPIES = (_aten._to_copy.default, _aten.copy_.default)
#: Operations that index a tensor; the indices may lie on the CPU.
_INDEXED = (_aten.index.Tensor, _aten.index_put.default, _aten.index_put_.default)
#: Not elementwise by their tag, though a single number of the CPU may take part on a GPU, too.
_TAKES_NUMBER = (*_INDEXED, _aten.masked_fill.Tensor, _aten.masked_fill_.Tensor)


class DeviceTensor(Tensor):
    """A tensor of the fake device; `held` has its numbers.

    The library's own code believes that it is on "meta", the one device whose gradients it computes
    in the calling thread; Python reads `device`.
    """

    held: Tensor

    @staticmethod
    def __new__(cls, held: Tensor) -> "DeviceTensor":
        new: DeviceTensor = Tensor._make_wrapper_subclass(
            cls,
            held.size(),
            strides=held.stride(),
            storage_offset=held.storage_offset(),
            dtype=held.dtype,
            device="meta",
        )
        new.held = held
        return new

    @property
    def device(self) -> torch.device:
        return DEVICE

    # The library would make a tensor of "meta" of a list, which has no numbers.
    def __getitem__(self, index: Any) -> Tensor:
        return super().__getitem__(_as_tensors(index))

    def __setitem__(self, index: Any, value: Any) -> None:
        super().__setitem__(_as_tensors(index), value)

    def tolist(self) -> Any:
        return self.cpu().tolist()

    def numpy(self, **_: Any) -> Any:
        raise TypeError("can't convert cuda:0 device type tensor to numpy.")

    def __repr__(self, **_: Any) -> str:
        return f"DeviceTensor({self.held!r})"

    @classmethod
    def __torch_dispatch__(
        cls, func: Any, types: Any, args: tuple[Any, ...] = (), kwargs: Any = None
    ) -> Any:
        raise RuntimeError(f"{func}: a tensor of the fake device was used outside FakeDevice().")


class FakeDevice(TorchDispatchMode):
    """The device for the time of a `with` statement.

    Attributes:
        copies: Elements of each copy from the device to the CPU, in order.
    """

    def __init__(self) -> None:
        super().__init__()
        self.copies: list[int] = []
        # With a mode of this kind the library does not look for a real GPU.
        self._mode_key = torch._C._TorchDispatchModeKey.FAKE

    def __enter__(self) -> "FakeDevice":
        self._lifts = torch._C._only_lift_cpu_tensors()
        torch._C._set_only_lift_cpu_tensors(True)
        super().__enter__()
        return self

    def __exit__(self, *error: Any) -> None:
        super().__exit__(*error)
        torch._C._set_only_lift_cpu_tensors(self._lifts)

    def __torch_dispatch__(
        self, func: Any, types: Any, args: tuple[Any, ...] = (), kwargs: Any = None
    ) -> Any:
        given: dict[str, Any] = dict(kwargs or {})
        there = DeviceTensor in types
        goes_there = there
        if given.get("device") is not None:
            goes_there = torch.device(given["device"]).type in (DEVICE.type, "meta")
            given["device"] = torch.device("cpu")
        elif func is _aten.copy_.default:
            goes_there = isinstance(args[0], DeviceTensor)
        if not there and not goes_there:
            return func(*args, **given)
        tensors = list(_tensors_in([args, list(given.values())]))
        if func not in _COPIES:
            _refuse_mixed(func, args, tensors)
        result = func(*_each(_held, args), **{key: _each(_held, v) for key, v in given.items()})
        if there and not goes_there:
            self.copies.append(tensors[-1].numel())
        elif there and not any(True for _ in _tensors_in([result])):
            self.copies.append(1)  # A number: item(), bool(), equal().
        if not goes_there:
            return result
        # Operations in place return what they were given.
        known = {id(t.held): t for t in tensors if isinstance(t, DeviceTensor)}

        def wrap(value: Any) -> Any:
            if not isinstance(value, Tensor):
                return value
            return known[id(value)] if id(value) in known else DeviceTensor(value)

        return _each(wrap, result)


def _held(value: Any) -> Any:
    return value.held if isinstance(value, DeviceTensor) else value


def _each(change: Callable[[Any], Any], value: Any) -> Any:
    """Return a value with every part of lists and tuples inside it changed."""
    if isinstance(value, list | tuple):
        return type(value)([_each(change, part) for part in value])
    return change(value)


def _tensors_in(value: Any) -> Iterator[Tensor]:
    if isinstance(value, Tensor):
        yield value
    elif isinstance(value, list | tuple):
        for part in value:
            yield from _tensors_in(part)


def _as_tensors(index: Any) -> Any:
    """Return an index with a tensor in place of each list."""
    if isinstance(index, tuple):
        return tuple(_as_tensors(part) for part in index)
    if not isinstance(index, list):
        return index
    # An empty list is no row; its tensor would be one of floats, which indexes nothing.
    return torch.tensor(index) if index else torch.tensor(index, dtype=torch.long)


def _refuse_mixed(func: Any, args: tuple[Any, ...], tensors: list[Tensor]) -> None:
    """Raise what CUDA raises where tensors of both devices meet."""
    if not any(isinstance(t, DeviceTensor) for t in tensors):
        return
    if func in _INDEXED and isinstance(args[0], DeviceTensor):
        tensors = [args[0], *(a for a in args[2:] if isinstance(a, Tensor))]
    takes_number = torch.Tag.pointwise in func.tags or func in _TAKES_NUMBER
    for tensor in tensors:
        if not isinstance(tensor, DeviceTensor) and not (takes_number and tensor.dim() == 0):
            raise RuntimeError(
                f"{func}: expected all tensors on the same device, got one of shape "
                f"{tuple(tensor.shape)} on the CPU and one on {DEVICE}."
            )
