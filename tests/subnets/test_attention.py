"""Transformers, recurrent layers, embeddings and operations of one's own at the unit level."""

from __future__ import annotations

import pickle
import random

import pytest
import torch
from torch import Tensor, nn
from torch.nn import functional as f

from feddrop.config import Subnets
from feddrop.errors import ConfigError
from feddrop.models import lstm, resnet18, transformer
from feddrop.models.flops import count_flops
from feddrop.subnets.blueprint import Blueprint
from feddrop.subnets.coupling import _CUSTOM, register_rule, rule_of
from feddrop.subnets.cut import cutter, kept_sizes, shrinker
from feddrop.subnets.rules import elementwise
from feddrop.subnets.trace import trace
from feddrop.subnets.units import Axis, shrink
from support.unit_oracle import assert_same

TOKENS = torch.randint(11, (3, 6), generator=torch.Generator().manual_seed(0))


class Attention(nn.Module):
    """Four heads of two, written in many ways."""

    def __init__(self, how: str, *, width: int = 8, heads: int = 4) -> None:
        super().__init__()
        self.how, self.size, self.heads = how, width // heads, heads
        self.q, self.k, self.v, self.o = (nn.Linear(width, width) for _ in range(4))

    def split(self, x: Tensor) -> Tensor:
        if self.how == "attribute":
            return x.view(*x.shape[:2], self.heads, -1).transpose(1, 2)
        if self.how == "number":
            return x.view(*x.shape[:2], 4, -1).transpose(1, 2)
        return x.unflatten(-1, (-1, self.size)).transpose(1, 2)

    def forward(self, x: Tensor) -> Tensor:
        q, k, v = self.split(self.q(x)), self.split(self.k(x)), self.split(self.v(x))
        if self.how == "product":
            mask = torch.ones(x.shape[1], x.shape[1], dtype=torch.bool).tril()
            scores = (q @ k.transpose(-2, -1) / self.size**0.5).masked_fill(~mask, float("-inf"))
            h = f.dropout(scores.softmax(-1), 0.0, self.training) @ v
        elif self.how == "einsum":
            scores = torch.einsum("bhld,bhmd->bhlm", q, k).softmax(-1)
            h = torch.einsum("bhlm,bhmd->bhld", scores, v)
        elif self.how == "merged":  # batch and heads in one dimension, as older code has it
            q, k, v = (t.reshape(-1, *t.shape[2:]) for t in (q, k, v))
            h = torch.baddbmm(torch.zeros(1, 1, 1).to(q), torch.bmm(q, k.mT).softmax(-1), v)
            h = h.view(len(x), -1, *h.shape[1:])
        elif self.how == "masked":
            h = f.scaled_dot_product_attention(q, k, v, attn_mask=torch.ones(x.shape[1], x.shape[1]).tril().bool())
        else:
            h = f.scaled_dot_product_attention(q, k, v, is_causal=True)
        return self.o(h.transpose(1, 2).flatten(2))


class Block(nn.Module):
    def __init__(self, attention: nn.Module, width: int = 8, feed: int = 12) -> None:
        super().__init__()
        self.norm1, self.norm2 = nn.LayerNorm(width), nn.LayerNorm(width)
        self.attention, self.up, self.down = attention, nn.Linear(width, feed), nn.Linear(feed, width)

    def forward(self, x: Tensor) -> Tensor:
        x = x + self.attention(self.norm1(x))
        return x + self.down(f.gelu(self.up(self.norm2(x))))


class Transformer(nn.Module):
    def __init__(self, attention: nn.Module, *, tied: bool = False) -> None:
        super().__init__()
        self.embed, self.place, self.block = nn.Embedding(11, 8), nn.Embedding(6, 8), Block(attention)
        self.norm, self.out = nn.LayerNorm(8), nn.Linear(8, 11)
        if tied:
            self.out.weight = self.embed.weight

    def forward(self, ids: Tensor) -> Tensor:
        x = self.embed(ids) + self.place(torch.arange(ids.shape[1]))
        return self.out(self.norm(self.block(x))).transpose(1, 2)


@pytest.mark.parametrize("how", ["fused", "masked", "product", "einsum", "merged", "attribute"])
def test_heads_and_hidden_units_are_found_however_attention_is_written(how):
    torch.manual_seed(0)
    graph = assert_same(Transformer(Attention(how)), TOKENS)
    assert graph.groups == {"block.attention.q": 4, "block.up": 12}
    heads = ("block.attention.q", "block.attention.k", "block.attention.v")
    assert graph.layers["block.attention.q"] == heads
    for layer in heads:
        assert graph.axes[f"{layer}.weight"] == (Axis(dim=0, group="block.attention.q", block=2, role="out"),)
    assert graph.axes["block.attention.o.weight"] == (Axis(dim=1, group="block.attention.q", block=2, role="in"),)
    assert graph.heads == {"block.attention": ("heads", "block.attention.q")}
    assert graph.whole["embed"] == graph.whole["place"] == "its units are the width of an embedding"
    assert set(graph.whole) == {"embed", "place", "block.attention.o", "block.down", "out"}
    small = shrink(Transformer(Attention(how)), graph, {"block.attention.q": 3})
    assert (small.block.attention.heads, small.block.attention.q.out_features) == (3, 6)


@pytest.mark.parametrize("seed", range(12))
def test_random_transformers_equal_their_masked_twins(seed):
    pick = random.Random(seed)
    torch.manual_seed(seed)
    heads, size = pick.choice((2, 3, 4, 5)), pick.choice((2, 3))
    how = pick.choice(("fused", "masked", "product", "einsum", "merged", "attribute"))
    width = heads * size
    blocks = [
        Block(Attention(how, width=width, heads=heads), width, pick.choice((2, 3, 7))) for _ in range(seed % 2 + 1)
    ]
    body = nn.Sequential(nn.Embedding(11, width), *blocks, nn.LayerNorm(width), nn.Linear(width, 11))
    graph = assert_same(body, TOKENS, seed)
    assert len(graph.groups) == 2 * len(blocks)
    assert graph.groups["1.attention.q"] == heads


def test_heads_written_as_a_number_are_kept_and_the_rest_is_cut():
    torch.manual_seed(0)
    graph = assert_same(Transformer(Attention("number")), TOKENS)
    assert graph.groups == {"block.up": 12}
    for layer in "qkv":
        assert "fewer units" in graph.whole[f"block.attention.{layer}"]
    assert "'block.attention.q', 'block.attention.k', 'block.attention.v' (the network does not" in graph.note()
    assert "'embed', 'place' (its units are the width of an embedding)" in graph.note()
    assert "'out'" not in graph.note()
    assert "'block.down'" not in graph.note()  # it is cut on the side that it reads


def test_two_heads_written_as_a_number_are_not_taken_for_smaller_ones():
    """With one head left, view(..., 2, -1) still runs: on two heads of half the size. That must be seen."""

    class Two(Attention):
        def split(self, x: Tensor) -> Tensor:
            return x.view(*x.shape[:2], 2, -1).transpose(1, 2)

    model = Transformer(Two("fused", heads=2))
    del model.block.attention.heads
    assert trace(model, TOKENS).groups == {"block.up": 12}


def test_queries_that_share_keys_and_values_are_cut_together():
    class Grouped(nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.q, self.k, self.v, self.o = nn.Linear(8, 16), nn.Linear(8, 8), nn.Linear(8, 8), nn.Linear(16, 8)

        def forward(self, x: Tensor) -> Tensor:
            q, k, v = (layer(x).unflatten(-1, (-1, 2)).transpose(1, 2) for layer in (self.q, self.k, self.v))
            return self.o(f.scaled_dot_product_attention(q, k, v, enable_gqa=True).transpose(1, 2).flatten(2))

    torch.manual_seed(0)
    graph = assert_same(Transformer(Grouped()), TOKENS)
    assert graph.groups["block.attention.q"] == 4
    assert graph.axes["block.attention.q.weight"][0].block == 4


def test_a_table_that_is_also_the_output_layer():
    torch.manual_seed(0)
    graph = assert_same(Transformer(Attention("fused"), tied=True), TOKENS)
    assert graph.groups == {"block.attention.q": 4, "block.up": 12}


class Recurrent(nn.Module):
    def __init__(self, kind: type[nn.Module]) -> None:
        super().__init__()
        self.embed, self.rnn = nn.Embedding(11, 4), kind(4, 6, batch_first=True)
        self.fc, self.out = nn.Linear(6, 8), nn.Linear(8, 2)

    def forward(self, ids: Tensor) -> Tensor:
        return self.out(torch.tanh(self.fc(self.rnn(self.embed(ids))[0][:, -1])))


def test_several_inputs():
    class Two(nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.embed, self.a, self.b, self.out = (
                nn.Embedding(11, 4),
                nn.Linear(4, 8),
                nn.Linear(3, 8),
                nn.Linear(8, 2),
            )

        def forward(self, ids: Tensor, x: Tensor) -> Tensor:
            return self.out(f.relu(self.a(self.embed(ids).mean(1)) + self.b(x)))

    graph = trace(Two(), (TOKENS, torch.zeros(3, 3)))
    assert graph.layers == {"a": ("a", "b")}


@torch.library.custom_op("feddrop_tests::tripled", mutates_args=())
def tripled(x: Tensor) -> Tensor:
    return 3 * x


tripled.register_autograd(lambda _, grad: 3 * grad)


class Own(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.a, self.b, self.c = nn.Linear(4, 6), nn.Linear(6, 8), nn.Linear(8, 2)

    def forward(self, x: Tensor) -> Tensor:
        return self.c(f.relu(self.b(tripled(self.a(x)))))


def test_rules_for_operations_of_ones_own():
    graph = trace(Own(), (4,))
    assert graph.groups == {"b": 8}
    assert "feddrop_tests::tripled" in graph.whole["a"]
    register_rule("feddrop_tests::tripled", elementwise)
    try:
        assert assert_same(Own(), (4,)).groups == {"a": 6, "b": 8}
    finally:
        _CUSTOM.pop(0)
        rule_of.cache_clear()
    with pytest.raises(ConfigError, match="regular expression"):
        register_rule("(", elementwise)


def test_the_networks_that_come_with_the_package():
    torch.manual_seed(0)
    small = transformer(vocabulary=11, num_classes=11, length=6, width=8, heads=4, feed=12, layers=2)
    graph = assert_same(small, TOKENS)
    parts = {"attention.q": 4, "up": 12}
    assert graph.groups == {f"blocks.{i}.{name}": units for i in range(2) for name, units in parts.items()}
    width = "(its units are the width of an embedding)."
    assert graph.note() == f"Kept whole at the unit level: 'embedding', 'position' {width}"
    for norm in ("batch", "group"):
        model = resnet18(num_classes=5, input_shape=(3, 8, 8), channels=(8, 8, 16, 16), norm=norm)
        graph = assert_same(model, (3, 8, 8))
        assert list(graph.whole) == ["fc"]
        assert graph.note() == ""
    graph = assert_same(lstm(vocabulary=11, num_classes=11, embedding=4, hidden=6), TOKENS)
    assert graph.groups == {"lstm": 6}
    assert graph.note() == f"Kept whole at the unit level: 'embedding' {width}"


@pytest.mark.parametrize("level", ["weight", "unit"])
def test_token_networks_are_cut_at_the_rate_that_is_asked(level):
    model = transformer(vocabulary=65, num_classes=65, length=6, width=64, heads=8, feed=256, layers=2)
    blueprint, config = Blueprint(model, TOKENS), Subnets(level=level)
    subnet, sizes = cutter(blueprint, config)(1, 0.4), kept_sizes(blueprint, config, 0.4)
    assert {name: piece.size for name, piece in subnet.items()} == sizes
    cut = {n for n, p in model.named_parameters() if p.ndim > 1 and (level == "weight" or blueprint.units.axes[n])}
    assert sum(sizes[n] for n in cut) == pytest.approx(0.6 * sum(model.get_parameter(n).numel() for n in cut), rel=0.02)
    assert ("embedding.weight" in cut) == (level == "weight")  # a table's rows are looked up whole, its entries may go
    network = shrinker(model, blueprint)(subnet)
    assert (network is model) == (level == "weight")
    assert network(TOKENS).shape == model(TOKENS).shape
    if level == "unit":  # the weights' work is the smaller network's own; attention scores are counted for all heads
        whole, own = count_flops(model, TOKENS), count_flops(network, TOKENS)
        assert own.by_weight.keys() == whole.by_weight.keys()
        predicted = whole.of(sizes).training - whole.rest.training
        assert predicted == pytest.approx(own.full.training - own.rest.training)


@pytest.mark.parametrize("kind", [nn.LSTM, nn.GRU])
def test_recurrent_networks_at_the_weight_level(kind):
    model = Recurrent(kind)
    blueprint = Blueprint(model, TOKENS)
    subnet = cutter(blueprint, Subnets())(1, 0.5)
    dropped = {name for name, piece in subnet.items() if piece.index is not None}
    assert dropped == {"embed.weight", "rnn.weight_ih_l0", "rnn.weight_hh_l0", "fc.weight", "out.weight"}
    assert {"rnn.bias_ih_l0", "rnn.bias_hh_l0"} <= set(blueprint.biases)


def test_a_network_is_traced_once(monkeypatch):
    from feddrop.subnets import blueprint as module

    calls = []
    monkeypatch.setattr(module, "trace", lambda *args: calls.append(args) or trace(*args))
    blueprint = Blueprint(Own(), (4,))
    cutter(blueprint, Subnets())(1, 0.5)
    assert not calls
    assert not blueprint.traced
    for _ in range(2):
        cutter(blueprint, Subnets(level="unit"))(1, 0.5)
        kept_sizes(blueprint, Subnets(level="unit"), 0.5)
    assert len(calls) == 1
    assert pickle.loads(pickle.dumps(blueprint)).units == blueprint.units  # workers do not trace again
    assert len(calls) == 1
    assert "feddrop_tests::tripled" in blueprint.note()
    assert "feddrop_tests::tripled" in Blueprint(Own(), (4,)).note()  # it traces if nothing has
    assert len(calls) == 2
