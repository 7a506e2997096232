"""Which dimensions follow the same units: one rule per kind of ATen operation.

:class:`Coupling` watches a forward pass at the level of ATen, where ``F.relu(x)``, ``x.relu()`` and ``nn.ReLU()(x)``
are one and the same operation, and element-wise operations carry a tag. Every dimension of every parameter starts as
units of its own; each operation joins, in a union-find, the dimensions that must be cut together. An operation that
works across units, or has no rule, marks them as faulty.
"""

from __future__ import annotations

import math
import re
from collections.abc import Callable, Iterable
from typing import Any, Literal

import torch
from torch import Tensor, nn
from torch.nn.modules.batchnorm import _NormBase
from torch.utils._python_dispatch import TorchDispatchMode

from feddrop.subnets.probe import tensors_in

# Element by element, like everything that ATen tags as pointwise, but without the tag.
_POINTWISE = re.compile(
    r"_prelu_kernel|alias|bernoulli_?|copy_|detach|hardswish_?|leaky_relu_?|lift_fresh|log_sigmoid_forward|"
    r"native_dropout|\w+_like"
)
# A weight stays a weight: another view of it, or itself times a number.
_VIEW = re.compile("_reshape_copy|_unsafe_view|alias|detach|expand|permute|squeeze|t|transpose|unsqueeze|view")
_LINEAR = re.compile("_to_copy|clone|div|mul|neg")
_REDUCTION = re.compile(
    "all|amax|amin|any|argmax|argmin|linalg_vector_norm|logsumexp|max|mean|min|norm|prod|std|sum|var|var_mean"
)
# Pooling, resizing and padding work on the last 1, 2 or 3 dimensions, as their names say.
_SPATIAL = re.compile(r"(?:\w*pool|_?upsample_\w+|reflection_pad|replication_pad)([123])d\w*")

Kind = Literal["conv", "linear"]


class Units:
    """Units that are cut together: a node of a union-find. All but ``role`` counts at the root only.

    Attributes:
        count: number of units; the size of every dimension that follows them is a multiple of it.
        whole: why all must be kept, if so.
        fault: what prevents a cut, if anything.
        role: of this very node, where it is a dimension of a weight: "in" if it is summed over.
    """

    __slots__ = ("count", "fault", "parent", "role", "whole")

    def __init__(self, count: int) -> None:
        self.parent: Units | None = None
        self.count = count
        self.whole = ""
        self.fault = ""
        self.role: Literal["in", "out"] | None = None

    def root(self) -> Units:
        """Return the node that speaks for all that are joined."""
        node = self
        while node.parent is not None:
            node = node.parent
        return node


Dims = tuple[Units | None, ...]
"""The units that each dimension of a tensor follows; None where its size is fixed (1 is always fixed)."""


class Coupling(TorchDispatchMode):  # type: ignore[no-untyped-call]
    """Watches a forward pass and joins the units that it couples.

    Attributes:
        path: names of the modules being run, innermost last; kept by the caller.
        tensors: shape and dimensions of every parameter and floating-point buffer.
        norms: the same for the shape that each norm module carries as an attribute, parameters or not.
        made: kind of every weight that is summed over, and the units it produces, in forward order.
    """

    @classmethod
    def _should_skip_dynamo(cls) -> bool:
        return False  # PyTorch's default imports its whole compiler: a second, for nothing

    def __init__(self, model: nn.Module, path: list[str]) -> None:
        super().__init__()  # type: ignore[no-untyped-call]
        self.path = path
        self.tensors: dict[str, tuple[tuple[int, ...], Dims]] = {}
        self.norms: dict[str, tuple[tuple[int, ...], Dims]] = {}
        self.made: dict[str, tuple[Kind, Units | None]] = {}
        self._names: dict[int, str] = {}  # of parameters, buffers and their views, by id
        self._seen: dict[int, tuple[Tensor, Dims]] = {}  # holds the tensor, so that its id stays its own
        self._op = ""
        for name, tensor in (*model.named_parameters(), *model.named_buffers()):
            if tensor.is_floating_point():
                self.tensors[name] = tuple(tensor.shape), _fresh(tensor.shape)
                self._names[id(tensor)] = name
                self._seen[id(tensor)] = tensor, self.tensors[name][1]
        for name, module in model.named_modules():
            if isinstance(module, _NormBase | nn.GroupNorm | nn.LayerNorm):
                module.register_forward_pre_hook(self._meet_norm(name))

    def dims(self, tensor: Tensor) -> Dims:
        """Return the units each dimension of a tensor follows; none for the input and for constants."""
        return self._seen[id(tensor)][1] if id(tensor) in self._seen else (None,) * tensor.ndim

    def _meet_norm(self, name: str) -> Callable[[nn.Module, tuple[Any, ...]], None]:
        def hook(module: nn.Module, args: tuple[Any, ...]) -> None:
            if not args:
                return
            dims, shape = self.dims(args[0]), args[0].shape
            rank = len(module.normalized_shape) if isinstance(module, nn.LayerNorm) else 0
            where = slice(-rank, None) if rank else slice(1, 2)
            self._op = type(module).__name__
            self.norms.setdefault(name, (tuple(shape[where]), _fresh(shape[where])))
            self._join(self.norms[name][1], dims[where])

        return hook

    def __torch_dispatch__(self, func: Any, _types: Any, args: tuple[Any, ...] = (), kwargs: Any = None) -> Any:
        out = func(*args, **(kwargs or {}))
        given = dict(zip((a.name for a in func._schema.arguments), args, strict=False)) | (kwargs or {})
        inputs, outs = list(tensors_in(given)), list(tensors_in(out))
        if outs and any(any(self.dims(t)) for t in inputs):
            self._op = func.overloadpacket.__name__ if func.namespace == "aten" else str(func)
            if torch.Tag.pointwise in func.tags or _POINTWISE.fullmatch(self._op):
                dims = self._broadcast(inputs, outs[0])
            else:
                dims = self._rule(given, inputs, outs)
            still = _VIEW.fullmatch(self._op) or (_LINEAR.fullmatch(self._op) and len(inputs) == 1)
            if still and id(inputs[0]) in self._names:
                self._names[id(outs[0])] = self._names[id(inputs[0])]
            for result in outs:
                fits = result.ndim == len(dims) and all(
                    size == same for size, same, units in zip(result.shape, outs[0].shape, dims, strict=True) if units
                )
                self._seen[id(result)] = result, dims if fits else (None,) * result.ndim
        return out

    def _rule(self, given: dict[str, Any], inputs: list[Tensor], outs: list[Tensor]) -> Dims:
        """Join what an operation couples and return what the dimensions of its first result follow."""
        first, out = inputs[0], outs[0]
        dims, rank = self.dims(first), first.ndim
        match self._op:
            case "convolution":
                return self._convolution(given)
            case "mm" | "addmm":
                return self._matmul(inputs, out)
            case "view" | "_unsafe_view" | "_reshape_copy" | "squeeze" | "unsqueeze":
                return self._reshape(first, out)
            case "expand":
                return self._broadcast(inputs, out)
            case "permute":
                return tuple(dims[d] for d in given["dims"])
            case "t" | "transpose":
                order = list(range(rank))
                if rank > 1:
                    a, b = given.get("dim0", 0), given.get("dim1", 1)
                    order[a], order[b] = order[b], order[a]
                return tuple(dims[d] for d in order)
            case op if "batch_norm" in op:  # one per backend
                return self._normalise(given, dims, slice(1, 2))
            case "native_layer_norm":
                return self._normalise(given, dims, slice(-len(given["normalized_shape"]), None))
            case "native_group_norm":
                # The statistics of a norm group stay what they were if it is kept or dropped whole.
                if given["group"] > 1:
                    self._coarsen(dims[1], given["group"])
                return self._normalise(given, dims, slice(1, 2))
            case "_softmax" | "_log_softmax" | "cumsum" | "cumprod" | "logcumsumexp" | "flip" | "roll":
                self._fault(dims[d] for d in _across(given, rank))
                return dims
            case "select":
                self._fault([dims[given["dim"]]])
                return tuple(units for d, units in enumerate(dims) if d != given["dim"] % rank)
            case "slice" | "split" | "split_with_sizes" | "constant_pad_nd":
                changed = {d for d in range(rank) if any(t.shape[d] != first.shape[d] for t in outs)}
                changed |= {rank - 1 - k // 2 for k, size in enumerate(given.get("pad", ())) if size}
                self._fault(dims[d] for d in changed)
                return tuple(None if d in changed else units for d, units in enumerate(dims))
            case "cat":
                across = given.get("dim", 0) % rank
                for part in map(self.dims, inputs):
                    self._fault([part[across]])
                    self._join(dims[:across] + dims[across + 1 :], part[:across] + part[across + 1 :])
                return tuple(None if d == across else units for d, units in enumerate(dims))
            case op if _REDUCTION.fullmatch(op):
                gone = _across(given, rank)
                self._fault(dims[d] for d in gone)
                if out.ndim == rank:
                    return tuple(None if d in gone else units for d, units in enumerate(dims))
                return tuple(units for d, units in enumerate(dims) if d not in gone)
            case op if found := _SPATIAL.fullmatch(op):
                kept = rank - int(found[1])
                self._fault(dims[kept:])
                return dims[:kept] + (None,) * (rank - kept)
            case _:
                for t in inputs:
                    self._fault(self.dims(t))
                    for units in self.dims(t) if id(t) in self._names else ():
                        if units:
                            units.role = units.role or "in"  # whatever it does with this weight, it reads it
                return (None,) * out.ndim

    def _broadcast(self, inputs: list[Tensor], out: Tensor) -> Dims:
        result: list[Units | None] = []
        for d in range(-out.ndim, 0):
            aligned = [self.dims(t)[d] for t in inputs if t.ndim >= -d and t.shape[d] == out.shape[d] > 1]
            for other in aligned[1:]:
                self._same(aligned[0], other)
            result.append(aligned[0] if aligned else None)
        return tuple(result)

    def _convolution(self, given: dict[str, Any]) -> Dims:
        x, w = self.dims(given["input"]), self.dims(given["weight"])
        fan_in, fan_out = (w[0], w[1]) if given["transposed"] else (w[1], w[0])
        self._fault(x[2:])
        if given["groups"] == 1:
            self._same(x[1], fan_in)
        elif given["transposed"]:
            self._fault((x[1], fan_in, fan_out))
        else:
            # A convolution group reads all of its own channels, so it is kept or dropped whole.
            self._coarsen(x[1], given["groups"])
            self._coarsen(fan_out, given["groups"])
            self._same(x[1], fan_out)
        if given["bias"] is not None:
            self._join((fan_out,), self.dims(given["bias"]))
        self._produce(given["weight"], fan_in, fan_out, "conv")
        return (x[0], fan_out, *(None for _ in x[2:]))

    def _matmul(self, inputs: list[Tensor], out: Tensor) -> Dims:
        left, right = inputs[-2:]
        (a, inner), (same, b) = self.dims(left), self.dims(right)
        match id(left) in self._names, id(right) in self._names:
            case False, True:
                self._produce(right, same, b, "linear")
            case True, False:
                self._produce(left, inner, a, "linear")
            case _:  # a product of activations, or of weights
                self._fault((a, inner, same, b))
        self._same(inner, same)
        if len(inputs) == 3:  # addmm: a bias, or anything that broadcasts to the result
            for d, units in enumerate(reversed(self.dims(inputs[0])), start=1):
                if inputs[0].shape[-d] == out.shape[-d] > 1:
                    self._same((a, b)[-d], units)
        return (a, b)

    def _reshape(self, source: Tensor, out: Tensor) -> Dims:
        """Match the shortest runs of dimensions with equal products; units lead a run or cannot be followed."""
        dims = self.dims(source)
        result: list[Units | None] = [None] * out.ndim
        old = [d for d, size in enumerate(source.shape) if size > 1]
        new = [d for d, size in enumerate(out.shape) if size > 1]
        while old and new:
            run, lead = [old.pop(0)], new.pop(0)
            p, q, split = source.shape[run[0]], out.shape[lead], False
            while p != q:
                if p < q:
                    run.append(old.pop(0))
                    p *= source.shape[run[-1]]
                else:
                    q *= out.shape[new.pop(0)]
                    split = True
            self._fault(dims[d] for d in run[1:])
            if split:
                self._coarsen(dims[run[0]], out.shape[lead])
            result[lead] = dims[run[0]]
        return tuple(result)

    def _normalise(self, given: dict[str, Any], dims: Dims, where: slice) -> Dims:
        for key in ("weight", "bias", "running_mean", "running_var"):
            if given.get(key) is not None:
                self._join(dims[where], self.dims(given[key]))
        return dims

    def _produce(self, weight: Tensor, fan_in: Units | None, fan_out: Units | None, kind: Kind) -> None:
        """Note that a weight sums over its fan-in and produces the units of its fan-out."""
        if id(weight) not in self._names:  # a weight computed from others
            self._fault((fan_in, fan_out))
            return
        self.made[self._names[id(weight)]] = kind, fan_out
        for units, role in ((fan_in, "in"), (fan_out, "out")):
            if units and units.role not in (None, role):
                self._fault([units])  # a weight used both ways, as in a tied autoencoder
            elif units:
                units.role = "in" if role == "in" else "out"

    def _join(self, these: Dims, those: Dims) -> None:
        for this, that in zip(these, those, strict=True):
            self._same(this, that)

    def _same(self, this: Units | None, that: Units | None) -> None:
        """Let two dimensions of one size follow the same units; with a fixed one, all are kept."""
        if this is None or that is None:
            for units in (this, that):
                if units:
                    units.root().whole = units.root().whole or f"{self._where()} ties it to a fixed size"
            return
        a, b = this.root(), that.root()
        if a is not b:
            # With p and q positions a unit, the finest common unit has lcm(p, q): the number of units is the gcd.
            a.count = math.gcd(a.count, b.count)
            a.whole, a.fault = a.whole or b.whole, a.fault or b.fault
            b.parent = a

    def _coarsen(self, units: Units | None, count: int) -> None:
        """Allow only units that are made of whole ``1/count`` parts of the dimension."""
        if units:
            units.root().count = math.gcd(units.root().count, count)

    def _fault(self, dims: Iterable[Units | None]) -> None:
        for units in dims:
            if units:
                units.root().fault = units.root().fault or self._where()

    def _where(self) -> str:
        return f"the operation {self._op!r} in {place(self.path)}"


def place(path: list[str]) -> str:
    """Say which module is being run."""
    return f"layer {path[-1]!r}" if path[-1] else "the network's own forward"


def _fresh(shape: Iterable[int]) -> Dims:
    return tuple(Units(size) if size > 1 else None for size in shape)


def _across(given: dict[str, Any], rank: int) -> set[int]:
    """Return the dimensions that an operation works across; all if it names none."""
    dims = given.get("dim", given.get("dims"))
    dims = [dims] if isinstance(dims, int) else dims
    return {d % rank for d in dims} if dims else set(range(rank))
