"""Find which dimensions follow the same units: a union-find, filled while a network runs.

:class:`Coupling` intercepts a forward pass at the level of ATen, where ``F.relu(x)``, ``x.relu()`` and ``nn.ReLU()(x)``
are the same operation and element-wise operations carry a tag. At first every dimension of every parameter has separate
units; the rule of each operation (:mod:`feddrop.subnets.rules`, or a custom one by :func:`register_rule`) joins the
dimensions that must be cut together. Units used by an operation that mixes them, or that has no rule, are kept whole,
and the reason is recorded. Modules with a rule (:mod:`feddrop.subnets.modules`) are taken as one operation.
"""

from __future__ import annotations

import inspect
import math
import re
from collections.abc import Callable, Iterable, Sequence
from functools import lru_cache
from typing import Any, Literal, NamedTuple

import torch
from torch import Tensor, nn
from torch.nn.modules.batchnorm import _NormBase
from torch.utils._python_dispatch import TorchDispatchMode

from feddrop.errors import ConfigError
from feddrop.subnets.probe import tensors_in

# The result is still the same weight: a view of it, or the weight times a number.
_VIEW = re.compile("_reshape_copy|_unsafe_view|alias|detach|expand|permute|squeeze|t|transpose|unsqueeze|view")
_LINEAR = re.compile("_to_copy|clone|div|mul|neg")

# Why units are kept, where that may be natural.
OUTPUT = "its units are the network's output"
EMBEDDING = "its units are the width of an embedding"
SINGLE = "it has one unit"

Kind = Literal["conv", "linear"]
View = tuple[int, int]
"""A view and one of the dimensions it was given: the number of the call in a forward pass, and the dimension."""


class Units:
    """Units that are cut together: a node of a union-find.

    Attributes:
        count: number of units, valid at the root; the size of every dimension that follows them is a multiple of it.
        whole: why all units must be kept, valid at the root; empty if they can be cut.
        role: of this node, if it is a dimension of a weight: "in" if the dimension is summed over.
        outer: of this node: how often all units of its parent are repeated along the dimension: after a view merged a
            fixed dimension with a following dimension of units, in packed projections and in the gates of an LSTM.
        view: the view that made this the first of several dimensions; see :attr:`Coupling.packed`.
    """

    __slots__ = ("count", "outer", "parent", "role", "view", "whole")

    def __init__(self, count: int, *, parent: Units | None = None, outer: int = 1, view: View | None = None) -> None:
        self.parent = parent
        self.count = count
        self.whole = ""
        self.role: Literal["in", "out"] | None = None
        self.outer = outer
        self.view = view

    def root(self) -> Units:
        """Return the root of all joined nodes."""
        node = self
        while node.parent is not None:
            node = node.parent
        return node

    def repeats(self) -> int:
        """Return how often all units of the root are repeated along the dimension."""
        return self.outer * self.parent.repeats() if self.parent else 1


Dims = tuple[Units | None, ...]
"""The units that each dimension of a tensor follows; None for a fixed size (1 is always fixed)."""


class Call(NamedTuple):
    """One operation called by a network."""

    op: str  # name of the operation: ``"convolution"`` for ATen's, ``"library::name"`` for others
    given: dict[str, Any]  # its arguments by name
    inputs: list[Tensor]  # the tensors among them, in order
    outs: list[Tensor]  # the tensors it returned


Rule = Callable[["Coupling", Call], Sequence[Units | None]]
"""Joins the dimensions that an operation couples and returns the units of its first result's dimensions."""

ModuleRule = Callable[["Coupling", nn.Module, dict[str, Any], Any], None]
"""Joins the dimensions that a module couples, given its arguments by name, and sets those of what it returned."""

MODULE_RULES: dict[type[nn.Module], tuple[Callable[[Any], bool], ModuleRule]] = {}
"""By the exact type of a module: whether the rule covers it, and the rule."""
_CUSTOM: list[tuple[re.Pattern[str], Rule]] = []
BUILT_IN: list[tuple[re.Pattern[str], Rule]] = []


def register_rule(operations: str, rule: Rule) -> None:
    """Register how units pass through a custom operation, or override a built-in rule.

    Args:
        operations: name of the operation, as a regular expression: ``"convolution"`` for ATen's, ``"library::name"``
            for others (``torch.library.custom_op``).
        rule: ``(coupling, call) -> dims``: returns the units of each dimension of the first result. It joins dimensions
            that must be cut together with :meth:`Coupling.same`, and keeps whole units that cannot be cut with
            :meth:`Coupling.keep`. :func:`feddrop.subnets.rules.elementwise` is the rule for element-wise operations.

    Example:
        >>> from feddrop.subnets.rules import elementwise
        >>> register_rule("my_library::swish", elementwise)
    """
    try:
        _CUSTOM.insert(0, (re.compile(operations), rule))
    except re.error as error:
        raise ConfigError(f"the operation {operations!r} is not a regular expression: {error}.") from None
    rule_of.cache_clear()


@lru_cache(maxsize=1024)
def rule_of(op: str) -> Rule | None:
    """Return the rule of an operation: the latest custom one, or the built-in one."""
    return next((rule for pattern, rule in (*_CUSTOM, *BUILT_IN) if pattern.fullmatch(op)), None)


class Coupling(TorchDispatchMode):  # type: ignore[no-untyped-call]
    """Intercepts a forward pass and joins the units that it couples.

    Attributes:
        path: names of the modules being run, innermost last; maintained by the caller.
        tensors: shape and dimensions of every parameter and floating-point buffer.
        norms: the same for the shape that each norm module stores as an attribute.
        made: kind of every weight that is summed over, and the units it produces, in forward order.
        users: for each of these weights, the modules whose forward uses it.
        returned: the units of the network's output; set by the caller.
        packed: the views, by number, that split off how often units are repeated, as in ``[N, L, 3, heads, size]``.
        unpacked: the views whose first dimension was taken apart, so that they must be in ``packed``.
    """

    @classmethod
    def _should_skip_dynamo(cls) -> bool:
        return False  # PyTorch's default imports its compiler, which takes a second

    def __init__(self, model: nn.Module, path: list[str], packed: frozenset[View] = frozenset()) -> None:
        super().__init__()  # type: ignore[no-untyped-call]
        self.path = path
        self.tensors: dict[str, tuple[tuple[int, ...], Dims]] = {}
        self.norms: dict[str, tuple[tuple[int, ...], Dims]] = {}
        self.made: dict[str, tuple[Kind, Units | None]] = {}
        self.users: dict[str, tuple[str, ...]] = {}
        self.returned: set[Units] = set()
        self.packed, self.unpacked, self.views = packed, set[View](), 0
        self._inside = False  # a module with a rule
        self._names: dict[int, str] = {}  # of parameters, buffers and their views, by id
        self._seen: dict[int, tuple[Tensor, Dims]] = {}  # holds the tensor, so that its id is not reused
        self._op = ""
        for name, tensor in (*model.named_parameters(), *model.named_buffers()):
            if tensor.is_floating_point():
                self.tensors[name] = tuple(tensor.shape), _fresh(tensor.shape)
                self._names[id(tensor)] = name
                self._seen[id(tensor)] = tensor, self.tensors[name][1]
        for name, module in model.named_modules():
            if isinstance(module, _NormBase | nn.GroupNorm | nn.LayerNorm):
                module.register_forward_pre_hook(self._meet_norm(name))
            covered, rule = MODULE_RULES.get(type(module), (None, None))
            if covered and rule and covered(module):
                module.register_forward_pre_hook(self._enter)
                module.register_forward_hook(self._leave(rule), with_kwargs=True, prepend=True)

    def dims(self, tensor: Tensor) -> Dims:
        """Return the units that each dimension of a tensor follows; all None for inputs and constants."""
        return self._seen[id(tensor)][1] if id(tensor) in self._seen else (None,) * tensor.ndim

    def is_own(self, tensor: Tensor) -> bool:
        """Return whether a tensor is a parameter or buffer of the network, or a view of one."""
        return id(tensor) in self._names

    def join(self, these: Sequence[Units | None], those: Sequence[Units | None]) -> None:
        """Let the dimensions of two tensors follow the same units, pair by pair."""
        for this, that in zip(these, those, strict=True):
            self.same(this, that)

    def same(self, this: Units | None, that: Units | None) -> None:
        """Let two dimensions follow the same units; if one is fixed, keep all units of the other."""
        if this is None or that is None:
            self.keep((this, that), f"{self.where()} ties it to a fixed size")
        elif not self._repeat_alike(this, that):
            self.keep((this, that))
        elif (a := this.root()) is not (b := that.root()):
            # With p and q positions per unit, the finest common unit has lcm(p, q), so the number of units is the gcd.
            a.count = math.gcd(a.count, b.count)
            a.whole = a.whole or b.whole
            b.parent = a

    def _repeat_alike(self, this: Units, that: Units) -> bool:
        """Let two dimensions repeat their units equally often; return False if they cannot."""
        few, many = sorted((this, that), key=Units.repeats)
        ratio, rest = divmod(many.repeats(), few.repeats())
        return ratio == 1 or (few.root() is not many.root() and not rest and self.repeat(few, ratio))

    def repeat(self, units: Units, times: int) -> bool:
        """Take what were units as repetitions of fewer units; return False if their number is not a multiple."""
        old = units.root()
        if old.count % times:
            return False
        old.parent, old.outer = Units(old.count // times), times
        old.parent.whole = old.whole
        return True

    def coarsen(self, units: Units | None, count: int) -> None:
        """Coarsen units so that each consists of complete ``1/count`` parts of the dimension."""
        if units and units.repeats() > 1:
            self.keep([units])
        elif units:
            units.root().count = math.gcd(units.root().count, count)

    def keep(self, dims: Iterable[Units | None], why: str = "") -> None:
        """Keep all of these units; the first reason is recorded."""
        for units in dims:
            if units:
                units.root().whole = units.root().whole or why or f"{self.where()} mixes its units, or is unknown"

    def produce(
        self, weight: Tensor, fan_in: Units | None, fan_out: Units | None, kind: Kind, *, first: bool = True
    ) -> None:
        """Record that a weight sums over its fan-in and produces the units of its fan-out.

        ``first`` is false if another weight of the module was recorded for the same units.
        """
        if not self.is_own(weight):  # a weight computed from others
            self.keep((fan_in, fan_out))
            return
        name = self._names[id(weight)]
        if first:
            self.made[name] = kind, fan_out
        self.users[name] = tuple(dict.fromkeys((*self.users.get(name, ()), self.path[-1])))
        for units, role in ((fan_in, "in"), (fan_out, "out")):
            if units and units.role not in (None, role):
                self.keep([units])  # a weight used both ways, as in a tied autoencoder
            elif units:
                units.role = "in" if role == "in" else "out"

    def where(self) -> str:
        """Describe the current operation and its module."""
        return f"the operation {self._op!r} in {place(self.path)}"

    def follow(self, tensor: Tensor, dims: Dims) -> None:
        """Set the units that each dimension of a tensor follows."""
        self._seen[id(tensor)] = tensor, dims

    def _enter(self, module: nn.Module, _: Any) -> None:
        self._op, self._inside = type(module).__name__, True

    def _leave(self, rule: ModuleRule) -> Callable[..., None]:
        def hook(module: nn.Module, args: tuple[Any, ...], kwargs: dict[str, Any], out: Any) -> None:
            self._inside = False
            names = list(inspect.signature(module.forward).parameters)
            rule(self, module, dict(zip(names, args, strict=False)) | kwargs, out)

        return hook

    def _meet_norm(self, name: str) -> Callable[[nn.Module, tuple[Any, ...]], None]:
        def hook(module: nn.Module, args: tuple[Any, ...]) -> None:
            if not args:
                return
            dims, shape = self.dims(args[0]), args[0].shape
            rank = len(module.normalized_shape) if isinstance(module, nn.LayerNorm) else 0
            where = slice(-rank, None) if rank else slice(1, 2)
            self._op = type(module).__name__
            self.norms.setdefault(name, (tuple(shape[where]), _fresh(shape[where])))
            self.join(self.norms[name][1], dims[where])

        return hook

    def __torch_dispatch__(self, func: Any, _types: Any, args: tuple[Any, ...] = (), kwargs: Any = None) -> Any:
        out = func(*args, **(kwargs or {}))
        if self._inside:
            return out
        given = dict(zip((a.name for a in func._schema.arguments), args, strict=False)) | (kwargs or {})
        inputs, outs = list(tensors_in(given)), list(tensors_in(out))
        if outs and any(any(self.dims(t)) for t in inputs):
            self._op = func.overloadpacket.__name__ if func.namespace == "aten" else func._schema.name
            call = Call(self._op, given, inputs, outs)
            rule = rule_of("elementwise" if torch.Tag.pointwise in func.tags else self._op) or unknown
            dims = tuple(rule(self, call))
            still = _VIEW.fullmatch(self._op) or (_LINEAR.fullmatch(self._op) and len(inputs) == 1)
            if still and self.is_own(inputs[0]):
                self._names[id(outs[0])] = self._names[id(inputs[0])]
            for result in outs:
                fits = result.ndim == len(dims) and all(
                    size == same for size, same, units in zip(result.shape, outs[0].shape, dims, strict=True) if units
                )
                self.follow(result, dims if fits else (None,) * result.ndim)
        return out


def unknown(coupling: Coupling, call: Call) -> Dims:
    """Keep whole all units that an operation without a rule uses."""
    for t in call.inputs:
        coupling.keep(coupling.dims(t))
        for units in coupling.dims(t) if coupling.is_own(t) else ():
            if units:
                units.role = units.role or "in"  # the operation reads this weight
    return (None,) * call.outs[0].ndim


def place(path: list[str]) -> str:
    """Describe the module being run."""
    return f"layer {path[-1]!r}" if path[-1] else "the network's forward"


def _fresh(shape: Iterable[int]) -> Dims:
    return tuple(Units(size) if size > 1 else None for size in shape)
