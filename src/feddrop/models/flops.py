"""Count the floating-point operations of a forward and a backward pass.

One sample runs forward and backward, and every ATen operation is intercepted. A multiply-add counts as 2: matrix
products of any kind, convolutions and attention. So a layer is counted whether it is a module, a raw ``x @ self.w``, an
``einsum`` or a recurrent cell. Element-wise operations, reductions, norms, pools, copies and look-ups are not counted,
as is usual. Other operations are listed in :attr:`Flops.uncounted`; give them a formula with
``torch.utils.flop_counter.register_flop_formula``.
"""

from __future__ import annotations

import math
import re
from collections import Counter, defaultdict
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from functools import lru_cache
from typing import Any, NamedTuple

import torch
from torch import Tensor, nn
from torch.utils._python_dispatch import TorchDispatchMode
from torch.utils.flop_counter import flop_registry

from feddrop.errors import ConfigError
from feddrop.subnets import parameters
from feddrop.subnets.probe import Example, describe_example, running, tensors_in


class Work(NamedTuple):
    """FLOPs of one sample: of the forward pass, and of the backward pass (gradients of activations and of weights)."""

    forward: float
    backward: float

    @property
    def training(self) -> float:
        """Both passes."""
        return self.forward + self.backward

    @property
    def charged(self) -> float:
        """FLOPs of training as the cell bills them: the paper's 3 x forward, or what was counted if that is more."""
        return max(3.0 * self.forward, self.training)


@dataclass(frozen=True, slots=True, kw_only=True)
class Flops:
    """FLOPs of one sample in a network.

    Attributes:
        by_weight: work of products with a weight and of its gradient, by the weight's name; 0 for unused weights.
        rest: work of products of activations (attention scores), or of more than one weight.
        uncounted: operations without a formula, and how often each was called.
        sizes: number of values of every weight.
    """

    by_weight: Mapping[str, Work]
    rest: Work
    uncounted: Mapping[str, int]
    sizes: Mapping[str, int]

    @property
    def full(self) -> Work:
        """The work of the full network."""
        return self.of({})

    def of(self, kept: Mapping[str, int]) -> Work:
        """Return the work of a subnet: that of each weight in proportion to its kept values, plus the rest.

        Weights that ``kept`` does not name are kept in full.
        """
        forward, backward = self.rest
        for name, work in self.by_weight.items():
            size = self.sizes[name]
            if kept.get(name, size) == size:
                forward, backward = forward + work.forward, backward + work.backward
            else:
                forward += work.forward * kept[name] / size
                backward += work.backward * kept[name] / size
        return Work(forward, backward)

    def note(self) -> str:
        """Return one line about operations that were not counted; empty if all were."""
        if not self.uncounted:
            return ""
        named = ", ".join(f"{name} ({calls}x)" for name, calls in self.uncounted.items())
        return f"FLOPs do not include {named}: no formula is known. Add it with torch's register_flop_formula."


def count_flops(model: nn.Module, example: Example) -> Flops:
    """Count the FLOPs of one sample, forward and backward.

    A copy that shares the network's parameters runs in evaluation mode; the network itself does not change.

    Args:
        model: any network.
        example: its input: a batch ``[N, ...]``, of which the first sample is used, a tuple of such batches, or the
            shape of one sample.

    Raises:
        ConfigError: the network does not accept such samples.
    """
    with running(model, example, 1) as (copy, inputs):
        counter = _Counter(copy)
        try:
            _run_both_ways(copy, inputs, counter)
        except Exception as error:
            raise ConfigError(
                f"the network does not accept {describe_example(example)}: {error}. {_advice(copy, inputs)}"
            ) from error
    known, weights = dict(copy.named_parameters()), parameters.weights(copy)
    named = [name for name in known if name in weights or name in counter.work]
    return Flops(
        by_weight={name: Work(*counter.work[name]) for name in named},
        rest=Work(*counter.work[""]),
        uncounted=dict(counter.uncounted),
        sizes={name: known[name].numel() for name in named},
    )


def _advice(model: nn.Module, inputs: tuple[Tensor, ...]) -> str:
    """Return what to do if a network does not accept its inputs."""
    tokens = any(not one.is_floating_point() for one in inputs)
    if tokens and not any(isinstance(module, nn.Embedding) for module in model.modules()):
        return "Integers are read as tokens, for a network with an embedding; pass features as floats."
    return "Change the network, or the data."


def _run_both_ways(model: nn.Module, inputs: tuple[Tensor, ...], counter: _Counter) -> None:
    """Run a network forward and backward under the counter."""
    with torch.enable_grad(), _plain_kernels(), counter:
        outputs = [t for t in tensors_in(model(*inputs)) if t.requires_grad]
        counter.backward = 1
        if outputs:  # differentiate a scalar: for anything else torch imports its compiler, which takes a second
            total = torch.stack([t.abs().sum() if t.is_complex() else t.sum() for t in outputs]).sum()
            learned = [p for p in model.parameters() if p.requires_grad]
            torch.autograd.grad(total, learned, allow_unused=True)


def forward_flops(model: nn.Module, example: Example) -> int:
    """Return the forward FLOPs of one sample."""
    return int(count_flops(model, example).full.forward)


def layer_flops(model: nn.Module, example: Example) -> dict[str, int]:
    """Return the forward FLOPs of one sample per layer, in the network's order; 0 for unused layers."""
    layers: dict[str, int] = defaultdict(int)
    for name, work in count_flops(model, example).by_weight.items():
        layers[parameters.layer_of(name)] += int(work.forward)
    return dict(layers)


class _Counter(TorchDispatchMode):  # type: ignore[no-untyped-call]
    """Sums the FLOPs of all operations by the weight they belong to; "" for the rest.

    A forward operation belongs to the weight among its inputs: a parameter, a view of it, or a tensor computed from it
    alone (a cast, a weight norm). The operation's backward node belongs to the same weight.
    """

    @classmethod
    def _should_skip_dynamo(cls) -> bool:
        return False  # PyTorch's default imports its compiler, which takes a second

    def __init__(self, model: nn.Module) -> None:
        super().__init__()  # type: ignore[no-untyped-call]
        self.work: dict[str, list[int]] = defaultdict(lambda: [0, 0])
        self.uncounted: Counter[str] = Counter()
        self.backward = 0
        self._spans: dict[int, list[tuple[int, int, str]]] = defaultdict(list)  # by storage: from, to, weight or ""
        self._alive: list[Tensor] = []  # so that no storage is freed and reused
        self._made: list[tuple[Tensor, str]] = []  # results of the last operation
        self._node: str | None = None  # the weight, or "", whose backward node is running
        for name, parameter in model.named_parameters():
            self._own(parameter, name)
        for buffer in model.buffers():
            self._own(buffer, "")

    def __torch_dispatch__(self, func: Any, _types: Any, args: tuple[Any, ...] = (), kwargs: Any = None) -> Any:
        self._meet_nodes()
        packet = func._overloadpacket
        short = _SHORT.get(packet) if self.backward else None
        out = short(*args) if short else func(*args, **(kwargs or {}))
        formula = _FORMULAS.get(packet) or flop_registry.get(packet)
        if formula is None and self.backward and _is_light(func):
            return out
        inputs, outs = tensors_in((args, kwargs)), tensors_in(out)
        if formula is not None:
            weight = self._weight_among(inputs) if self._node is None else self._node
            self.work[weight][self.backward] += int(formula(*args, **(kwargs or {}), out_val=out))
            self._made = [(t, weight) for t in outs]
        elif _is_light(func):
            self._follow(inputs, outs)
        elif any(t.is_floating_point() or t.is_complex() for t in inputs):
            self.uncounted[str(packet)] += 1
        return out

    def _own(self, tensor: Tensor, name: str) -> None:
        start = int(tensor.storage_offset())
        self._spans[_storage(tensor)].append((start, start + tensor.numel(), name))
        self._alive.append(tensor)

    def _owner(self, tensor: Tensor) -> str | None:
        """Return the weight that a tensor belongs to; "" for a buffer, None for anything else."""
        at = tensor.storage_offset()
        spans = self._spans.get(_storage(tensor), ())
        return next((name for start, stop, name in spans if start <= at < stop), None)

    def _weight_among(self, inputs: list[Tensor]) -> str:
        owned = [(owner, t.ndim) for t in inputs if (owner := self._owner(t))]
        matrices = {owner for owner, ndim in owned if ndim > 1}  # a vector beside a matrix is its bias
        weights = matrices or {owner for owner, _ in owned}
        return weights.pop() if len(weights) == 1 else ""

    def _follow(self, inputs: list[Tensor], outs: list[Tensor]) -> None:
        """Assign results of the same size that were computed from one weight alone to that weight."""
        owners = []
        for t in inputs:
            if (owner := self._owner(t)) is None:
                return
            owners.append((t.numel(), owner))
        for out in outs:
            same = {owner for size, owner in owners if owner and size == out.numel()}
            if len(same) == 1 and self._owner(out) is None:
                self._own(out, same.pop())

    def _meet_nodes(self) -> None:
        """Register hooks on the backward nodes of the last operation that set the weight their work belongs to.

        Results get their node after the operation returns, and in-place operations replace it, so this runs just before
        the next operation.
        """
        for tensor, weight in self._made:
            if tensor.grad_fn is not None:
                tensor.grad_fn.register_prehook(lambda _, weight=weight: self._enter(weight))
                tensor.grad_fn.register_hook(lambda *_: self._enter(None))
        self._made = []

    def _enter(self, weight: str | None) -> None:
        self._node = weight


def _storage(tensor: Tensor) -> int:
    return tensor.untyped_storage().data_ptr() if tensor.layout == torch.strided else 0


@contextmanager
def _plain_kernels() -> Iterator[None]:
    """Run recurrent and transformer layers as separate products, not as one opaque kernel.

    The flags are set without ``mkldnn.flags``, which warns about TF32 on machines without it.
    """
    before = torch._C._get_mkldnn_enabled(), torch.backends.mha.get_fastpath_enabled()
    try:
        with torch.backends.cudnn.flags(enabled=False):
            torch._C._set_mkldnn_enabled(False)
            torch.backends.mha.set_fastpath_enabled(False)
            yield
    finally:
        torch._C._set_mkldnn_enabled(before[0])
        torch.backends.mha.set_fastpath_enabled(before[1])


def _convolution(*args: Any, out_val: Tensor) -> int:
    """Multiply every output value (transposed: every input value) with one slice of the weight."""
    x, w, transposed = args[0], args[1], args[6]
    return int(2 * (x if transposed else out_val).numel() * w[0].numel())


def _convolution_backward(*args: Any, **_: Any) -> int:
    """Return the forward count for each gradient that is needed: the input's and the weight's."""
    grad, x, w, transposed, asked = args[0], args[1], args[2], args[7], args[10]
    return (int(asked[0]) + int(asked[1])) * _convolution(x, w, *[None] * 4, transposed, out_val=grad)


def _product(a: int, b: int) -> Callable[..., int]:
    """Return the formula of a product of the arguments at ``a`` and ``b``, summed over all but b's last dimension."""

    def flops(*args: Any, **_: Any) -> int:
        return int(2 * args[a].numel() * (args[b].shape[-1] if args[b].ndim > 1 else 1))

    return flops


def _attention(products: Sequence[int], at: int) -> Callable[..., int]:
    """Return the formula of fused attention: matrix products of scores with queries' width, and with values'."""

    def flops(*args: Any, **_: Any) -> int:
        q, k, v = args[at : at + 3]
        scores = math.prod(q.shape[:-1]) * k.shape[-2]
        return int(2 * scores * (products[0] * q.shape[-1] + products[1] * v.shape[-1]))

    return flops


_aten = torch.ops.aten
# These override torch's, which counts a grouped convolution's gradient as an ungrouped one and lacks the others.
# The gradient of fused attention recomputes the scores, as torch counts it on other devices.
_FORMULAS: dict[Any, Callable[..., int]] = {
    _aten.convolution: _convolution,
    _aten.convolution_backward: _convolution_backward,
    _aten.mv: _product(0, 1),
    _aten.addmv: _product(1, 2),
    _aten.dot: _product(0, 1),
    _aten.vdot: _product(0, 1),
    _aten.addbmm: _product(1, 2),
    _aten._scaled_dot_product_flash_attention_for_cpu: _attention((1, 1), at=0),
    _aten._scaled_dot_product_flash_attention_for_cpu_backward: _attention((3, 2), at=1),
}


def _blank(like: Tensor, *shape: int) -> Tensor:
    return like.new_zeros(()).expand(shape)  # takes no memory


# In the backward pass only shapes matter: costly products are replaced by zeros of the right shape.
_SHORT: dict[Any, Callable[..., Any]] = {
    _aten.mm: lambda a, b, *_: _blank(a, a.shape[0], b.shape[1]),
    _aten.bmm: lambda a, b, *_: _blank(a, *a.shape[:2], b.shape[2]),
    _aten.convolution_backward: lambda grad, x, w, *rest: tuple(
        _blank(grad, *shape) if asked else None
        for shape, asked in zip((x.shape, w.shape, grad.shape[1:2]), rest[-1], strict=True)
    ),
}
# Operations with one of these words in their name have no products worth counting. Others are light only if ATen tags
# them as element-wise or as views; the remaining ones are reported as uncounted.
_LIGHT_WORDS = """
softmax logsumexp norm renorm pool pad dropout embedding loss upsample shuffle unshuffle sampler glu prelu relu elu gelu
silu mish sigmoid tanh hardswish hardsigmoid hardtanh softplus softshrink threshold sum nansum mean var std prod all any
amax amin aminmax max min argmax argmin cumsum cumprod cummax cummin logcumsumexp count trace equal unique sort argsort
topk kthvalue median mode searchsorted bucketize bincount histc isin nonzero one cat stack clone copy repeat roll flip
tril triu diag diagonal where take put index gather scatter masked select slice split unbind chunk unfold fold im2col
col2im strided view reshape expand squeeze unsqueeze permute transpose fill zero resize set lift detach alias like empty
zeros ones full arange local item assert choice bernoulli uniform normal random exponential multinomial pin
"""
_LIGHT = frozenset(_LIGHT_WORDS.split())


@lru_cache(maxsize=4096)
def _is_light(func: Any) -> bool:
    """Return whether an operation only moves, compares, sums or maps numbers."""
    if func.is_view or torch.Tag.pointwise in func.tags:
        return True
    words = re.findall(r"[a-z]+(?:2col|2im)?", func._schema.name.partition("::")[2])
    return func.namespace == "aten" and not _LIGHT.isdisjoint(words)
