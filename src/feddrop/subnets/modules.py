"""Rules for modules that are taken as one operation: recurrent layers and ``nn.MultiheadAttention``.

Their kernels differ between machines, and their code fixes the layout of packed weights. Importing this module
registers the rules.
"""

from __future__ import annotations

import math
from typing import Any

import torch
from torch import Tensor, nn
from torch.nn import functional

from feddrop.subnets.coupling import MODULE_RULES, Coupling, Dims, Units
from feddrop.subnets.probe import tensors_in


def _recurrent(coupling: Coupling, module: nn.Module, given: dict[str, Any], out: Any) -> None:
    """Couple the hidden units of all layers, directions and gates, so that one ``hidden_size`` describes them.

    The rows of a weight are its gates, each with all hidden units; the output of two directions has them twice.
    """
    assert isinstance(module, nn.RNNBase)  # noqa: S101 -- for mypy
    x = coupling.dims(_data(given["input"]))
    coupling.keep(x[:-1])
    recurring = module.get_parameter("weight_hh_l0")
    below, hidden = x[-1], coupling.dims(recurring)[1]
    gates = recurring.shape[0] // module.hidden_size
    for number, names in enumerate(module._all_weights):
        (rows, reads), (_, again) = (coupling.dims(getattr(module, name)) for name in names[:2])
        for name in names:
            coupling.same(coupling.dims(getattr(module, name))[0], _repeated(hidden, gates))
        layer = number // (2 if module.bidirectional else 1)
        coupling.same(reads, _repeated(hidden, 2 if module.bidirectional else 1) if layer else below)
        coupling.same(again, hidden)
        coupling.produce(getattr(module, names[0]), reads, rows, "linear", first=not number)
        coupling.produce(getattr(module, names[1]), again, rows, "linear", first=False)
    for state in tensors_in(given.get("hx")):
        coupling.same(coupling.dims(state)[-1], hidden)
    result, states = out
    units = _repeated(hidden, 2 if module.bidirectional else 1)
    for tensor, last in ((_data(result), units), *((state, hidden) for state in tensors_in(states))):
        coupling.follow(tensor, (*(None for _ in tensor.shape[1:]), last))


def _data(sequence: Any) -> Tensor:
    """Return the values of a tensor or of a packed sequence."""
    found: Tensor = sequence if isinstance(sequence, Tensor) else sequence[0]
    return found


def _repeated(units: Units | None, times: int) -> Units | None:
    return units if units is None or times == 1 else Units(units.count, parent=units, outer=times)


def _attention(coupling: Coupling, module: nn.Module, given: dict[str, Any], out: Any) -> None:
    """Couple the heads of queries, keys, values and of the output layer; a unit is a head."""
    assert isinstance(module, nn.MultiheadAttention)  # noqa: S101 -- for mypy
    read, made = module.out_proj.weight, coupling.dims(module.out_proj.weight)
    heads = made[1]
    coupling.coarsen(heads, module.num_heads)
    inputs = [coupling.dims(given[name]) for name in ("query", "key", "value")]
    packed = module.in_proj_weight is not None
    weights = [module.in_proj_weight] if packed else [module.q_proj_weight, module.k_proj_weight, module.v_proj_weight]
    for weight, sources in zip(weights, [inputs] if packed else [[dims] for dims in inputs], strict=True):
        rows, columns = coupling.dims(weight)
        coupling.same(rows, _repeated(heads, 3 if packed else 1))
        for source in sources:
            coupling.keep(source[:-1])
            coupling.same(columns, source[-1])
        coupling.produce(weight, columns, rows, "linear")
    if module.in_proj_bias is not None:
        coupling.same(coupling.dims(module.in_proj_bias)[0], _repeated(heads, 3))
        coupling.same(coupling.dims(module.out_proj.bias)[0], made[0])
    mask = given.get("attn_mask")
    if mask is not None and mask.ndim == 3:  # one per sample and head
        coupling.same(heads, None)
    coupling.produce(read, heads, made[0], "linear")
    values, scores = out
    coupling.follow(values, (*(None for _ in values.shape[1:]), made[0]))
    if scores is not None and not given.get("average_attn_weights", True):
        dims: Dims = (None,) * scores.ndim
        coupling.follow(scores, (*dims[:-3], heads, *dims[-2:]))


class CutAttention(nn.MultiheadAttention):
    """``nn.MultiheadAttention`` with fewer heads than its width holds, which torch's module does not allow.

    Attributes:
        factor: factor on queries, keys and values.
    """

    factor = 1.0

    def forward(
        self,
        query: Tensor,
        key: Tensor,
        value: Tensor,
        key_padding_mask: Tensor | None = None,
        need_weights: bool = True,
        attn_mask: Tensor | None = None,
        average_attn_weights: bool = True,
        is_causal: bool = False,  # noqa: ARG002 -- only a hint that attn_mask is causal
    ) -> tuple[Tensor, Tensor | None]:
        """Compute what torch's module computes, for the heads that are left."""
        single = query.dim() == 2
        swapped = not single and not self.batch_first
        inputs = [t.unsqueeze(0) if single else t.transpose(0, 1) if swapped else t for t in (query, key, value)]
        packed = self.in_proj_weight is not None
        weights = (
            self.in_proj_weight.chunk(3) if packed else (self.q_proj_weight, self.k_proj_weight, self.v_proj_weight)
        )
        biases = [None] * 3 if self.in_proj_bias is None else self.in_proj_bias.chunk(3)
        q, k, v = (
            (functional.linear(x, w, b) * self.factor).unflatten(-1, (-1, self.head_dim)).transpose(1, 2)  # type: ignore[no-untyped-call]
            for x, w, b in zip(inputs, weights, biases, strict=True)
        )
        scores = q @ k.transpose(-2, -1) / math.sqrt(self.head_dim)
        if key_padding_mask is not None:
            padding = key_padding_mask.unsqueeze(0) if single else key_padding_mask
            scores = scores + _additive(padding, scores)[:, None, None, :]
        if attn_mask is not None:
            scores = scores + _additive(attn_mask, scores)
        attention = scores.softmax(-1)
        mixed = functional.dropout(attention, self.dropout, self.training) @ v
        result = self.out_proj(mixed.transpose(1, 2).flatten(2))
        result = result.squeeze(0) if single else result.transpose(0, 1) if swapped else result
        if not need_weights:
            return result, None
        attention = attention.mean(1) if average_attn_weights else attention
        return result, attention.squeeze(0) if single else attention


def _additive(mask: Tensor, like: Tensor) -> Tensor:
    """Return a mask that is added to scores; where a boolean one is true, keys are not read."""
    return like.new_zeros(mask.shape).masked_fill(mask, -math.inf) if mask.dtype == torch.bool else mask


for _kind in (nn.LSTM, nn.GRU, nn.RNN):
    MODULE_RULES[_kind] = (lambda module: not module.proj_size), _recurrent
for _other in (nn.MultiheadAttention, CutAttention):
    MODULE_RULES[_other] = (lambda module: module.bias_k is None and not module.add_zero_attn), _attention
