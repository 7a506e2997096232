"""Fingerprints of the user's objects: plain values that are equal if, and only if, two objects do the same.

A fingerprint is a mapping of plain values with a ``name``. Functions are identified by their bytecode, constants,
defaults, captured values and the globals that they read; instances by their class and state; objects of installed
packages by name. An object whose state is not plain (a generator, an open file) is marked ``stable: False`` with a
reason: it cannot be compared.
"""

from __future__ import annotations

import dataclasses
import dis
import enum
import functools
import hashlib
import logging
import re
import sys
import sysconfig
import types
import zlib
from collections.abc import Iterable, Mapping, Sequence
from pathlib import Path, PurePath
from typing import Any

import numpy as np
import torch
from torch import Tensor, nn

Fingerprint = dict[str, Any]

_DEEPEST = 12
_MOST_LAYERS = 400
_LONGEST = 160
_PLAIN = (bool, int, float, complex, str, bytes, type(None), type(...), range, slice, enum.Enum, PurePath, re.Pattern)
_NAMED = (torch.dtype, torch.device, torch.Size, torch.layout, np.dtype, logging.Logger)
_PACKAGES = ("feddrop", "torch", "numpy", "builtins", *sys.stdlib_module_names)
_STATELESS = ("abc", "typing", "collections.abc", "contextlib")
_GENERATED = ("__init__", "__repr__", "__eq__", "__hash__", "__replace__", "__setattr__", "__delattr__")
_HOOKS = ("_forward_hooks", "_forward_pre_hooks")
_INSTALLED = tuple({sysconfig.get_path("purelib"), sysconfig.get_path("platlib")})


class _UnstableError(Exception):
    """An object cannot be compared with others; the message says why."""


def fingerprint(given: Any) -> Fingerprint:
    """Return the fingerprint of a function, a class or an object.

    Example:
        >>> from functools import partial
        >>> fingerprint(partial(round, ndigits=2))
        {'name': 'builtins:round', 'arguments': {'ndigits': '2'}}
    """
    try:
        return _Reader().top(given)
    except _UnstableError as error:
        return {"name": qualified_name(given), "stable": False, "why": str(error)}


def network_fingerprint(network: nn.Module) -> Fingerprint:
    """Return the fingerprint of a network: layers, tensors, attributes and code, but not the values of its weights."""
    found: Fingerprint = {"name": qualified_name(network)}
    reader, layers, attributes, code = _Reader(), dict[str, str](), list[Any](), set[str]()
    try:
        for name, module in network.named_modules():
            layers[name or "network"] = _head(module)
            attributes.append(reader.attributes(module))
            code |= {reader.text(type(module))}
    except _UnstableError as error:
        return found | {"stable": False, "why": str(error)}
    tensors = {
        name: f"{p.dtype} {list(p.shape)}{'' if p.requires_grad else ' frozen'}"
        for name, p in network.named_parameters(remove_duplicate=False)
    }
    tensors |= {name: _buffer(tensor) for name, tensor in network.named_buffers()}
    shown = layers if len(layers) <= _MOST_LAYERS else {"digest": _digest(layers)}
    found |= {"layers": shown, "tensors": _digest(tensors), "attributes": _digest(attributes)}
    return found | {"code": _digest(sorted(code))}


def qualified_name(given: Any) -> str:
    """Return ``"module:qualname"`` of a function, a class or the class of an object."""
    while isinstance(given, functools.partial):
        given = given.func
    given = given if hasattr(given, "__qualname__") else type(given)
    return f"{getattr(given, '__module__', None) or 'builtins'}:{given.__qualname__}"


def data_crc32(parts: Iterable[Any]) -> int:
    """Return a checksum of the values, shapes and types of arrays."""
    crc = 0
    for part in parts:
        array = np.ascontiguousarray(part)
        crc = zlib.crc32(array.data, zlib.crc32(f"{array.dtype.str} {array.shape}".encode(), crc))
    return crc


def _head(module: nn.Module) -> str:
    """Return a module without those inside it: its class and its plain attributes."""
    if _is_library(type(module).__module__):
        return f"{type(module).__name__}({module.extra_repr()})"
    plain = (f"{key}={value!r}" for key, value in sorted(vars(module).items()) if _is_setting(key, value))
    return f"{type(module).__name__}({', '.join([*filter(None, [module.extra_repr()]), *plain])})"


def _is_setting(key: str, value: Any) -> bool:
    return key not in vars(_EMPTY) and isinstance(value, bool | int | float | str)


def _buffer(tensor: Tensor) -> str:
    """Describe a buffer; masks and indices by their values, since they are neither learned nor drawn."""
    values = "" if tensor.is_floating_point() or tensor.numel() < 2 else f" {data_crc32([tensor.cpu().numpy()])}"
    return f"{tensor.dtype} {list(tensor.shape)}{values}"


def _digest(value: Any) -> str:
    return hashlib.blake2b(repr(value).encode(), digest_size=8).hexdigest()


def _is_library(module: str | None) -> bool:
    """Return whether a module belongs to Python or to an installed package, which its name identifies."""
    root = (module or "builtins").partition(".")[0]
    if root in _PACKAGES:
        return True
    file = getattr(sys.modules.get(root), "__file__", None)
    return bool(file) and any(Path(str(file)).is_relative_to(place) for place in _INSTALLED)


class _Reader:
    """Reads one object; each object inside it is read once, and cycles end."""

    def __init__(self) -> None:
        self._open: set[int] = set()
        self._read: dict[int, tuple[Any, str]] = {}  # also keeps the objects, and so their ids

    def top(self, given: Any) -> Fingerprint:
        """Return a fingerprint with arguments, captured values and globals by name, so that differences have names."""
        if isinstance(given, functools.partial):
            inner = self.top(given.func)
            values = {str(n): _short(self.text(value)) for n, value in enumerate(given.args)}
            values |= {name: _short(self.text(value)) for name, value in sorted(given.keywords.items())}
            return inner | {"arguments": inner.get("arguments", {}) | values}
        given = _undecorated(given)
        found: Fingerprint = {"name": qualified_name(given)}
        if isinstance(given, types.FunctionType) and not _is_library(given.__module__):
            return found | self.function(given)
        if isinstance(given, types.FunctionType | types.BuiltinFunctionType | type | types.MethodType):
            text = self.text(given)
            return found if text == found["name"] else found | {"code": _digest(text)}
        return found | {"state": self.state(given, 0)} | self._code_of(type(given))

    def _code_of(self, cls: type) -> Fingerprint:
        return {} if _is_library(cls.__module__) else {"code": _digest(self.text(cls))}

    def function(self, given: types.FunctionType, depth: int = 0) -> Fingerprint:
        """Return the parts of a function written by the user."""
        captured = dict(zip(given.__code__.co_freevars, given.__closure__ or (), strict=True))
        parts: dict[str, dict[str, Any]] = {
            "defaults": {str(n): v for n, v in enumerate(given.__defaults__ or ())} | (given.__kwdefaults__ or {}),
            "captured": {name: _content(cell) for name, cell in captured.items()},
            "globals": {name: given.__globals__[name] for name in _globals(given)},
        }
        found: Fingerprint = {"code": _digest(_code(given.__code__, given.__doc__))}
        for part, values in parts.items():
            if values:
                found[part] = {
                    str(name): _short(self.text(value, depth + 1, str(name))) for name, value in values.items()
                }
        return found

    def text(self, value: Any, depth: int = 0, name: str = "") -> str:
        """Return a value as text: the same for equal values, in every process."""
        value = _undecorated(value)
        if isinstance(value, _PLAIN):
            return repr(value)
        if isinstance(value, _NAMED):
            return f"{type(value).__name__} {getattr(value, 'name', value)}"
        if isinstance(value, types.ModuleType):
            return f"module {value.__name__}{_source(value)}"
        if isinstance(value, nn.Parameter):
            return f"parameter {value.dtype} {list(value.shape)}"
        if isinstance(value, Tensor | np.ndarray | np.generic):
            return _array_text(value)
        if depth > _DEEPEST:
            raise _UnstableError(f"{name or 'it'} is nested too deeply")
        if id(value) in self._read:
            return self._read[id(value)][1]
        if id(value) in self._open:
            return f"again {qualified_name(value)}"
        self._open.add(id(value))
        self._read[id(value)] = value, (found := self._nested(value, depth, name))
        return found

    def _nested(self, value: Any, depth: int, name: str) -> str:
        if isinstance(value, Mapping):
            items = sorted((self.text(k, depth + 1), self.text(v, depth + 1, str(k))) for k, v in value.items())
            return f"{type(value).__name__} {items}"
        if isinstance(value, set | frozenset):
            return f"{type(value).__name__} {sorted(self.text(entry, depth + 1, name) for entry in value)}"
        if isinstance(value, list | tuple):
            return f"{type(value).__name__} {[self.text(entry, depth + 1, name) for entry in value]}"
        if isinstance(value, functools.partial):
            inner = (value.func, value.args, value.keywords)
            return f"partial {[self.text(part, depth + 1, name) for part in inner]}"
        if isinstance(value, types.MethodType):
            return f"{self.text(value.__func__, depth + 1)} of {self.text(value.__self__, depth + 1, name)}"
        if isinstance(value, types.FunctionType):
            known = _is_library(value.__module__)
            return qualified_name(value) if known else f"{qualified_name(value)} {self.function(value, depth)}"
        if isinstance(value, types.BuiltinFunctionType) and not isinstance(
            value.__self__, types.ModuleType | type | None
        ):
            return f"{value.__name__} of {self.text(value.__self__, depth + 1, name)}"
        if isinstance(value, type):
            return self._class(value, depth)
        if isinstance(value, types.BuiltinFunctionType) or type(value).__module__ in ("typing", "types"):
            return qualified_name(value)
        return f"{self.text(type(value), depth + 1)} {self.state(value, depth, name)}"

    def _class(self, cls: type, depth: int) -> str:
        """Return a class as text; one written by the user with its functions and attributes."""
        if _is_library(cls.__module__):
            return qualified_name(cls)
        if issubclass(cls, enum.Enum):
            return f"{qualified_name(cls)} {[repr(one) for one in cls]}"
        if issubclass(cls, tuple) and hasattr(cls, "_fields"):
            return f"{qualified_name(cls)} {cls._fields}"
        found = {
            key: self.text(_unwrapped(value), depth + 1, f"{cls.__qualname__}.{key}")
            for key, value in vars(cls).items()
            if _is_written(cls, key, value)
        }
        bases = [self.text(base, depth + 1) for base in cls.__bases__]
        return f"{qualified_name(cls)} {bases} {sorted(found.items())}"

    def state(self, value: Any, depth: int, name: str = "") -> dict[str, str]:
        """Return the state of an instance, attribute by attribute."""
        if isinstance(value, nn.Module):  # a loss or metric: its tensors are settings, such as class weights
            tensors = {key: _array_text(tensor) for key, tensor in value.state_dict().items()}
            parts = dict(value.named_modules())
            found = {f"{n}.{k}".lstrip("."): v for n, one in parts.items() for k, v in self.attributes(one).items()}
            return {"layers": _short(repr(value))} | found | tensors
        if dataclasses.is_dataclass(value):
            fields = {item.name: getattr(value, item.name, None) for item in dataclasses.fields(value)}
        elif all(
            base is object
            or base.__module__ in _STATELESS
            or not _is_library(base.__module__)
            or base.__module__.startswith("feddrop.")
            for base in type(value).__mro__
        ):
            slots = [slot for cls in type(value).__mro__ for slot in _slots(cls)]
            fields = dict(getattr(value, "__dict__", {})) | {s: getattr(value, s) for s in slots if hasattr(value, s)}
        else:
            what = f"a {type(value).__module__}.{type(value).__qualname__}"
            raise _UnstableError(
                f"{name} is {what}, whose state is unknown" if name else f"{what} has an unknown state"
            )
        return {key: _short(self.text(entry, depth + 1, key)) for key, entry in sorted(fields.items())}

    def attributes(self, module: nn.Module) -> dict[str, str]:
        """Return the attributes of a module that are neither tensors nor modules, and its hooks."""
        library, found = _is_library(type(module).__module__), {}
        for key, value in sorted(vars(module).items()):
            if key in vars(_EMPTY) or key == "_flat_weight_refs":
                continue
            try:
                found[key] = _short(self.text(value, 1, key))
            except _UnstableError:
                if not library:
                    raise
        hooks = [self.text(hook, 1) for kind in _HOOKS for hook in getattr(module, kind).values()]
        return found | ({"hooks": _digest(hooks)} if hooks else {})


_EMPTY = nn.Module()


def _source(module: types.ModuleType) -> str:
    """Return a digest of a module that the user wrote; empty for libraries."""
    file = getattr(module, "__file__", None)
    if _is_library(module.__name__) or not file:
        return ""
    try:
        return f" {_digest(Path(file).read_bytes())}"
    except OSError:
        return ""


def _undecorated(given: Any) -> Any:
    """Return the user's function inside a library's decorator, such as ``torch.no_grad()``."""
    while hasattr(given, "__wrapped__") and _is_library(
        given.__globals__.get("__name__") if isinstance(given, types.FunctionType) else type(given).__module__
    ):
        given = given.__wrapped__
    return given


def _short(text: str) -> str:
    """Return a text of any length as one that fits a page; the end of a long one becomes a digest."""
    return text if len(text) <= _LONGEST else f"{text[:60]}… {_digest(text)}"


def _unwrapped(value: Any) -> Any:
    """Return the functions of a class attribute: those of a property, a static or class method."""
    if isinstance(value, staticmethod | classmethod):
        return value.__func__
    if isinstance(value, property):
        return [value.fget, value.fset, value.fdel]
    return value.func if isinstance(value, functools.cached_property) else value


def _is_written(cls: type, key: str, value: Any) -> bool:
    """Return whether an attribute of a class was written by the user, not generated."""
    if isinstance(value, types.MemberDescriptorType | types.GetSetDescriptorType) or key == "_abc_impl":
        return False
    if dataclasses.is_dataclass(cls) and key in _GENERATED:
        return False
    return not (key.startswith("__") and key.endswith("__")) or isinstance(value, types.FunctionType | staticmethod)


def _slots(cls: type) -> Sequence[str]:
    slots = vars(cls).get("__slots__", ())
    return [slots] if isinstance(slots, str) else [s for s in slots if s not in ("__dict__", "__weakref__")]


def _array_text(value: Any) -> str:
    array = value.detach().cpu().float() if isinstance(value, Tensor) and value.dtype is torch.bfloat16 else value
    array = array.detach().cpu().numpy() if isinstance(array, Tensor) else np.asarray(array)
    if array.dtype.hasobject:
        raise _UnstableError("it holds an array of objects")
    return repr(array.item()) if array.ndim == 0 else f"array {array.dtype} {array.shape} {data_crc32([array])}"


def _content(cell: Any) -> Any:
    try:
        return cell.cell_contents
    except ValueError:  # not yet assigned
        return None


def _code(code: types.CodeType, doc: str | None = None) -> tuple[Any, ...]:
    """Return what a code object does: instructions, names and constants, without docstring and line numbers."""
    constants = [
        _code(one) if isinstance(one, types.CodeType) else sorted(map(repr, one)) if isinstance(one, frozenset) else one
        for one in code.co_consts
    ]
    kept = [None if doc is not None and one == doc else one for one in constants]
    return code.co_code.hex(), repr(kept), code.co_names, code.co_argcount, code.co_flags & 0x0C


def _globals(given: types.FunctionType) -> list[str]:
    """Return the global names that a function reads; none if a library's decorator made it."""
    known = given.__globals__
    if _is_library(str(known.get("__name__"))):
        return []
    return sorted(name for name in _loaded(given.__code__) if name in known)


def _loaded(code: types.CodeType) -> set[str]:
    """Return the global names in a code object and those inside it."""
    found = {str(one.argval) for one in dis.get_instructions(code) if one.opname in ("LOAD_GLOBAL", "LOAD_NAME")}
    return found.union(*(_loaded(one) for one in code.co_consts if isinstance(one, types.CodeType)))
