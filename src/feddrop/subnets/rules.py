"""Rules for how units pass through ATen's operations, one per kind. Importing this module registers them."""

from __future__ import annotations

import math
import re
from collections.abc import Callable
from typing import Any

from torch import Tensor

from feddrop.subnets.coupling import BUILT_IN, EMBEDDING, Call, Coupling, Dims, Rule, Units

# Pooling, resizing and padding change the last 1, 2 or 3 dimensions, as their names say.
_SPATIAL = re.compile(r"(?:\w*pool|_?upsample_\w+|reflection_pad|replication_pad)([123])d\w*")


def built_in(operations: str) -> Callable[[Rule], Rule]:
    """Return a decorator that registers a function as the default rule of some operations."""

    def add(rule: Rule) -> Rule:
        BUILT_IN.append((re.compile(operations), rule))
        return rule

    return add


# All operations that ATen tags as pointwise, and pointwise ones without the tag.
@built_in(
    r"elementwise|_prelu_kernel|_to_copy|alias|bernoulli_?|copy_|detach|expand|hardswish_?|leaky_relu_?|lift_fresh|"
    r"log_sigmoid_forward|native_dropout|\w+_like"
)
def elementwise(coupling: Coupling, call: Call) -> Dims:
    """Join the dimensions that broadcasting aligns."""
    out = call.outs[0]
    result: list[Units | None] = []
    for d in range(-out.ndim, 0):
        aligned = [coupling.dims(t)[d] for t in call.inputs if t.ndim >= -d and t.shape[d] == out.shape[d] > 1]
        for other in aligned[1:]:
            coupling.same(aligned[0], other)
        result.append(aligned[0] if aligned else None)
    return tuple(result)


@built_in("convolution")
def _convolution(coupling: Coupling, call: Call) -> Dims:
    given = call.given
    x, w = coupling.dims(given["input"]), coupling.dims(given["weight"])
    fan_in, fan_out = (w[0], w[1]) if given["transposed"] else (w[1], w[0])
    coupling.keep(x[2:])
    if given["groups"] == 1:
        coupling.same(x[1], fan_in)
    elif given["transposed"]:
        coupling.keep((x[1], fan_in, fan_out))
    else:
        # A convolution group reads all of its channels, so it is kept or dropped as a whole.
        coupling.coarsen(x[1], given["groups"])
        coupling.coarsen(fan_out, given["groups"])
        coupling.same(x[1], fan_out)
    if given["bias"] is not None:
        coupling.join((fan_out,), coupling.dims(given["bias"]))
    coupling.produce(given["weight"], fan_in, fan_out, "conv")
    return (x[0], fan_out, *(None for _ in x[2:]))


@built_in("mm|addmm|bmm|baddbmm")
def _product(coupling: Coupling, call: Call) -> Dims:
    left, right = call.inputs[-2:]
    (*batch, a, inner), (*others, same, b) = coupling.dims(left), coupling.dims(right)
    match coupling.is_own(left), coupling.is_own(right):
        case False, True:
            coupling.produce(right, same, b, "linear")
        case True, False:
            coupling.produce(left, inner, a, "linear")
        case False, False if left.ndim == 3:  # one product per head or per sample
            coupling.keep((inner, same))
        case _:  # a product of activations across samples, or of weights
            coupling.keep((a, inner, same, b))
    coupling.same(inner, same)
    coupling.join(batch, others)
    result = (*batch, a, b)
    if len(call.inputs) == 3:  # a bias, or anything that broadcasts to the result
        bias = call.inputs[0]
        for d, units in enumerate(reversed(coupling.dims(bias)), start=1):
            if bias.shape[-d] == call.outs[0].shape[-d] > 1:
                coupling.same(result[-d], units)
    return result


@built_in(r"_scaled_dot_product_\w*attention\w*")
def _attention(coupling: Coupling, call: Call) -> Dims:
    """Cut heads, ``[N, heads, L, size]``; grouped queries together with the key and value head they share."""
    q, k, v = (coupling.dims(call.given[name]) for name in ("query", "key", "value"))
    coupling.keep((q[-1], k[-1], *q[2:-1], *k[2:-1], *v[2:-1]))
    coupling.join(q[:2], k[:2])
    coupling.join(q[:2], v[:2])
    mask = call.given.get("attn_mask", call.given.get("attn_bias"))
    if mask is not None:
        coupling.keep(coupling.dims(mask))
        if mask.ndim == 4 and mask.shape[1] > 1:
            coupling.same(q[1], None)
    return (*q[:-1], v[-1])


@built_in("embedding")
def _embedding(coupling: Coupling, call: Call) -> Dims:
    """Look up rows of a table. Its width is kept, since all blocks of a network add to it."""
    weight = call.given["weight"]
    coupling.keep(coupling.dims(weight), EMBEDDING)
    return (*(None for _ in call.given["indices"].shape), coupling.dims(weight)[1])


@built_in("view|_unsafe_view|_reshape_copy|squeeze|unsqueeze")
def _reshape(coupling: Coupling, call: Call) -> Dims:
    """Match the shortest runs of dimensions with equal products."""
    source, out = call.inputs[0], call.outs[0]
    coupling.views += 1
    result: list[Units | None] = [None] * out.ndim
    old = [d for d, size in enumerate(source.shape) if size > 1]
    new = [d for d, size in enumerate(out.shape) if size > 1]
    while old and new:
        run, to = [old.pop(0)], [new.pop(0)]
        p, q = source.shape[run[0]], out.shape[to[0]]
        while p != q:
            if p < q:
                run.append(old.pop(0))
                p *= source.shape[run[-1]]
            else:
                to.append(new.pop(0))
                q *= out.shape[to[-1]]
        at, units = _regrouped(coupling, source, run, [out.shape[d] for d in to])
        if units:
            result[to[at]] = units
    return tuple(result)


def _regrouped(coupling: Coupling, source: Tensor, run: list[int], sizes: list[int]) -> tuple[int, Units | None]:
    """Follow units through one run of dimensions that becomes dimensions of these sizes.

    The units must come first, or after fixed dimensions only. A fixed dimension before them repeats all of them, and
    must be split off again before they are used: so a batch and its heads are merged for a product and split after it.
    In a view that unpacks a projection, as to ``[3, heads, size]``, the first new dimension repeats the units.

    Returns:
        The new dimension that follows the units, and the units; 0 and None if none does.
    """
    dims = [coupling.dims(source)[d] for d in run]
    first = next((i for i, units in enumerate(dims) if units), None)
    if first is None:
        return 0, None
    units = dims[first]
    assert units is not None  # noqa: S101 -- for mypy
    coupling.keep(dims[first + 1 :])
    view = (coupling.views, run[0])
    if view in coupling.packed:
        coupling.repeat(units, sizes[0])
    fixed = math.prod(source.shape[d] for d in run[:first])
    outer = fixed * units.repeats()
    base = units if units.repeats() == 1 else units.root()
    if len(sizes) == 1:
        return 0, units if fixed == 1 else Units(units.count, parent=units, outer=fixed)
    at = next((i for i in range(len(sizes)) if math.prod(sizes[:i]) == outer), None)
    if at is None:
        coupling.keep([units])
        return 0, None
    if at < len(sizes) - 1:
        coupling.coarsen(base, sizes[at])
    return at, base if at or coupling.is_own(source) else Units(units.count, parent=base, view=view)


@built_in("permute")
def _permute(coupling: Coupling, call: Call) -> Dims:
    dims = coupling.dims(call.inputs[0])
    return tuple(dims[d] for d in call.given["dims"])


@built_in("t|transpose")
def _transpose(coupling: Coupling, call: Call) -> Dims:
    dims = list(coupling.dims(call.inputs[0]))
    if len(dims) > 1:
        a, b = call.given.get("dim0", 0), call.given.get("dim1", 1)
        dims[a], dims[b] = dims[b], dims[a]
    return tuple(dims)


@built_in(r"\w*batch_norm\w*")  # one per backend
def _batch_norm(coupling: Coupling, call: Call) -> Dims:
    return _normalise(coupling, call, slice(1, 2))


@built_in("native_layer_norm")
def _layer_norm(coupling: Coupling, call: Call) -> Dims:
    return _normalise(coupling, call, slice(-len(call.given["normalized_shape"]), None))


@built_in("native_group_norm")
def _group_norm(coupling: Coupling, call: Call) -> Dims:
    # The statistics of a norm group do not change if it is kept or dropped as a whole.
    if call.given["group"] > 1:
        coupling.coarsen(coupling.dims(call.inputs[0])[1], call.given["group"])
    return _normalise(coupling, call, slice(1, 2))


def _normalise(coupling: Coupling, call: Call, where: slice) -> Dims:
    dims = coupling.dims(call.inputs[0])
    for key in ("weight", "bias", "running_mean", "running_var"):
        if call.given.get(key) is not None:
            coupling.join(dims[where], coupling.dims(call.given[key]))
    return dims


@built_in("_softmax|_safe_softmax|_log_softmax|cumsum|cumprod|logcumsumexp|flip|roll")
def _along(coupling: Coupling, call: Call) -> Dims:
    dims = coupling.dims(call.inputs[0])
    coupling.keep(dims[d] for d in _across(call.given, len(dims)))
    return dims


@built_in("select|unbind")
def _select(coupling: Coupling, call: Call) -> Dims:
    dims, gone = coupling.dims(call.inputs[0]), call.given.get("dim", 0)
    if (units := dims[gone]) and units.view:
        coupling.unpacked.add(units.view)
    coupling.keep([dims[gone]])
    return tuple(units for d, units in enumerate(dims) if d != gone % len(dims))


@built_in("split|split_with_sizes")
def _split(coupling: Coupling, call: Call) -> Dims:
    """Take units that are split into equal parts, as by ``chunk``, as repetitions; each part has all of them."""
    dims, across, parts = coupling.dims(call.inputs[0]), call.given.get("dim", 0), len(call.outs)
    units = dims[across]
    equal = len({part.shape[across] for part in call.outs}) == 1
    if units is None or not equal or units.repeats() > 1 or not coupling.repeat(units, parts):
        return tuple(_part(coupling, call))
    return tuple(units.root() if d == across % len(dims) else other for d, other in enumerate(dims))


@built_in("slice|constant_pad_nd")
def _part(coupling: Coupling, call: Call) -> Dims:
    first = call.inputs[0]
    dims, rank = coupling.dims(first), first.ndim
    changed = {d for d in range(rank) if any(t.shape[d] != first.shape[d] for t in call.outs)}
    changed |= {rank - 1 - k // 2 for k, size in enumerate(call.given.get("pad", ())) if size}
    coupling.keep(dims[d] for d in changed)
    return tuple(None if d in changed else units for d, units in enumerate(dims))


@built_in("cat")
def _cat(coupling: Coupling, call: Call) -> Dims:
    dims = coupling.dims(call.inputs[0])
    across = call.given.get("dim", 0) % len(dims)
    for part in map(coupling.dims, call.inputs):
        coupling.keep([part[across]])
        coupling.join(dims[:across] + dims[across + 1 :], part[:across] + part[across + 1 :])
    return tuple(None if d == across else units for d, units in enumerate(dims))


@built_in("all|amax|amin|any|argmax|argmin|linalg_vector_norm|logsumexp|max|mean|min|norm|prod|std|sum|var|var_mean")
def _reduction(coupling: Coupling, call: Call) -> Dims:
    dims = coupling.dims(call.inputs[0])
    gone = _across(call.given, len(dims))
    coupling.keep(dims[d] for d in gone)
    if call.outs[0].ndim == len(dims):
        return tuple(None if d in gone else units for d, units in enumerate(dims))
    return tuple(units for d, units in enumerate(dims) if d not in gone)


@built_in(_SPATIAL.pattern)
def _spatial(coupling: Coupling, call: Call) -> Dims:
    found = _SPATIAL.fullmatch(call.op)
    dims = coupling.dims(call.inputs[0])
    kept = len(dims) - int(found[1]) if found else 0
    coupling.keep(dims[kept:])
    return dims[:kept] + (None,) * (len(dims) - kept)


def _across(given: dict[str, Any], rank: int) -> set[int]:
    """Return the dimensions that an operation reduces or mixes; all if it names none."""
    dims = given.get("dim", given.get("dims"))
    dims = [dims] if isinstance(dims, int) else dims
    return {d % rank for d in dims} if dims else set(range(rank))
