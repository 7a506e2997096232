"""A second torch device on the CPU, so that tensors on the wrong device are errors, as with CUDA.

Importing this module registers the device ``"sim"`` (torch's PrivateUse1 backend, in Python). A tensor there holds a
CPU tensor that nothing else can see: operations that mix devices raise, and so does ``numpy()``. A view that is not
contiguous is a copy, so writing to it has no effect.
"""

from __future__ import annotations

from typing import Any

import torch
from torch.utils import backend_registration
from torch.utils._pytree import tree_flatten, tree_map, tree_unflatten

NAME = "sim"
backend_registration._setup_privateuseone_for_python_backend(NAME)
CALLS: list[str] = []
"""Operations that ran on the device."""
MOVED = {"to": 0, "from": 0}
"""Bytes copied to the device and from it."""
_HELD: dict[int, torch.Tensor] = {}
"""The CPU tensor of every tensor on the device, by the address of its empty storage."""


def on_device(tensor: object) -> bool:
    """Return whether an object is a tensor on the device."""
    return isinstance(tensor, torch.Tensor) and tensor.device.type == NAME


def held(tensor: torch.Tensor) -> torch.Tensor:
    """Return the CPU tensor inside."""
    return _HELD[tensor.untyped_storage()._cdata]


def placed(value: Any) -> Any:
    """Return a tensor on the device that holds a CPU tensor; other values as they are."""
    if not isinstance(value, torch.Tensor) or on_device(value):
        return value
    found = torch._C._acc.create_empty_tensor(value.shape, value.dtype)
    _HELD[found.untyped_storage()._cdata] = value.contiguous()  # torch takes it to be, and cuts views accordingly
    return found


def _fallback(op: Any, *args: Any, **kwargs: Any) -> Any:
    """Run an operation on the CPU tensors inside; a CPU tensor among several is an error, unless it is a number."""
    name = str(op)
    if name in ("aten._to_copy.default", "aten._copy_from.default", "aten.copy_.default"):
        return _copied(name, *args, **kwargs)
    flat, spec = tree_flatten((args, kwargs))
    for one in flat:
        if isinstance(one, torch.Tensor) and not on_device(one) and one.ndim:
            raise RuntimeError(f"Expected all tensors to be on the same device, but {name} got {one.device} and sim.")
    CALLS.append(name)
    plain = [held(one) if on_device(one) else "cpu" if isinstance(one, torch.device) else one for one in flat]
    inside, more = tree_unflatten(plain, spec)
    found = op(*inside, **more)
    same = {id(value): one for value, one in zip(plain, flat, strict=True) if on_device(one)}
    return tree_map(lambda one: same[id(one)] if id(one) in same else placed(one), found)


def _copied(name: str, first: Any, second: Any = None, *_: Any, **more: Any) -> Any:
    """Copy between devices."""
    if name == "aten._to_copy.default":
        where, inner = more.pop("device", None), held(first) if on_device(first) else first
        more.pop("non_blocking", None)
        found = torch.ops.aten._to_copy.default(inner, **more)
        stays = on_device(first) if where is None else torch.device(where).type == NAME
        _count(found, on_device(first), stays)
        return placed(found) if stays else found
    target, source = (first, second) if name == "aten.copy_.default" else (second, first)
    _count(target, on_device(source), on_device(target))
    (held(target) if on_device(target) else target).copy_(held(source) if on_device(source) else source)
    return target


def _count(moved: torch.Tensor, was: bool, is_: bool) -> None:
    """Count the bytes of a copy from one device to another."""
    if was != is_:
        MOVED["to" if is_ else "from"] += moved.nbytes


_LIBRARY = torch.library.Library("_", "IMPL")
_LIBRARY.fallback(_fallback, "PrivateUse1")


def _convolution(*args: Any) -> Any:
    return _fallback(torch.ops.aten.convolution.default, *args)


def _convolution_backward(grad: Any, x: Any, weight: Any, *rest: Any) -> Any:
    *how, mask = rest
    return _fallback(torch.ops.aten.convolution_backward.default, grad, x, weight, [grad.shape[1]], *how, mask)


_ATEN = torch.library.Library("aten", "IMPL")
_ATEN.impl("convolution_overrideable", _convolution, "PrivateUse1")
_ATEN.impl("convolution_backward_overrideable", _convolution_backward, "PrivateUse1")
for _name in ("abs", "slice_backward", "select_backward"):  # torch's own write through views or resize their output
    _op = getattr(torch.ops.aten, _name).default
    _ATEN.impl(_name, lambda *args, _op=_op: _fallback(_op, *args), "PrivateUse1")
