"""Recurrent layers, attention and packed projections, cut by units, equal the full network with zeros."""

from __future__ import annotations

import random

import pytest
import torch
from torch import Tensor, nn
from torch.nn import functional as f
from torch.nn.utils.rnn import pack_padded_sequence, pad_packed_sequence

from feddrop.config import Subnets
from feddrop.models import lstm
from feddrop.subnets.blueprint import Blueprint
from feddrop.subnets.cut import cutter, kept_sizes
from feddrop.subnets.modules import CutAttention
from feddrop.subnets.trace import trace
from feddrop.subnets.units import Axis, shrink
from support.unit_oracle import assert_same

TOKENS = torch.randint(11, (3, 6), generator=torch.Generator().manual_seed(0))


class Recurrent(nn.Module):
    def __init__(self, kind: type[nn.RNNBase], **how) -> None:
        super().__init__()
        self.embed, self.rnn = nn.Embedding(11, 4), kind(4, 6, batch_first=True, **how)
        width = 6 * (2 if how.get("bidirectional") else 1)
        self.fc, self.out = nn.Linear(width, 8), nn.Linear(8, 2)

    def forward(self, ids: Tensor) -> Tensor:
        return self.out(torch.tanh(self.fc(self.rnn(self.embed(ids))[0][:, -1])))


@pytest.mark.parametrize("kind", [nn.LSTM, nn.GRU, nn.RNN])
@pytest.mark.parametrize(
    "how",
    [{}, {"num_layers": 3}, {"bidirectional": True}, {"num_layers": 2, "bidirectional": True}, {"bias": False}],
    ids=str,
)
def test_recurrent_layers_equal_the_full_ones_with_zeros(kind, how):
    torch.manual_seed(0)
    for seed in range(3):
        graph = assert_same(Recurrent(kind, **how), TOKENS, seed)
    assert graph.groups == {"rnn": 6, "fc": 8}
    assert graph.layers["rnn"] == ("rnn",)
    assert list(graph.whole) == ["out", "embed"]
    small = shrink(Recurrent(kind, **how), graph, {"rnn": 4})
    assert small.rnn.hidden_size == small.rnn.weight_hh_l0.shape[1] == 4


def test_the_gates_of_an_lstm_are_four_times_its_units():
    axes = trace(Recurrent(nn.LSTM, num_layers=2, bidirectional=True), TOKENS).axes
    rows = Axis(dim=0, group="rnn", block=1, role="out", repeats=4)
    assert axes["rnn.weight_ih_l0"] == axes["rnn.bias_hh_l1_reverse"] == (rows,)
    assert axes["rnn.weight_hh_l0"] == (rows, Axis(dim=1, group="rnn", block=1, role="in"))
    assert axes["rnn.weight_ih_l1"] == (rows, Axis(dim=1, group="rnn", block=1, role="in", repeats=2))
    assert axes["fc.weight"][1] == Axis(dim=1, group="rnn", block=1, role="in", repeats=2)


def test_units_read_by_a_recurrent_layer_and_states_that_are_handed_on():
    class Both(nn.Module):
        """Convolutions, an encoder, and a decoder that starts from its states."""

        def __init__(self) -> None:
            super().__init__()
            self.conv, self.one, self.two = nn.Conv1d(3, 5, 3, padding=1), nn.LSTM(5, 6), nn.LSTM(5, 6)
            self.out = nn.Linear(6, 2)

        def forward(self, x: Tensor) -> Tensor:
            h = f.relu(self.conv(x)).permute(2, 0, 1)
            return self.out(self.two(h, self.one(h)[1])[0][-1])

    torch.manual_seed(0)
    graph = assert_same(Both(), (3, 7))
    assert graph.groups == {"conv": 5, "one": 6}
    assert graph.layers["one"] == ("one", "two")


def test_packed_sequences_are_kept_whole():
    class Packed(Recurrent):
        def forward(self, ids: Tensor) -> Tensor:
            lengths = torch.full((len(ids),), 4)
            packed = pack_padded_sequence(self.embed(ids), lengths, batch_first=True)
            h, _ = pad_packed_sequence(self.rnn(packed)[0], batch_first=True)
            return self.out(torch.tanh(self.fc(h[:, -1])))

    torch.manual_seed(0)
    graph = assert_same(Packed(nn.GRU), TOKENS)
    assert graph.groups == {"fc": 8}
    assert "'copy_'" in graph.whole["rnn"]


def test_recurrent_layers_that_are_kept_whole_say_why():
    class Own(nn.LSTM):
        pass

    assert "'GRU' in layer 'rnn' ties it to a fixed size" in trace(Fixed(), TOKENS).whole["rnn"]
    for kind in (Own, lambda *a, **k: nn.LSTM(*a, **k, proj_size=6 - 2)):
        model = Recurrent(kind)
        if not isinstance(model.rnn, Own):
            model.fc = nn.Linear(4, 8)
        graph = assert_same(model, TOKENS)
        assert graph.groups == {"fc": 8}
        assert "'rnn" in graph.note()


class Fixed(Recurrent):
    """Its initial state has a fixed size."""

    def __init__(self) -> None:
        super().__init__(nn.GRU)

    def forward(self, ids: Tensor) -> Tensor:
        state = torch.zeros(1, len(ids), 6)
        return self.out(torch.tanh(self.fc(self.rnn(self.embed(ids), state)[0][:, -1])))


class Tokens(nn.Module):
    """A body between an embedding and an output layer."""

    def __init__(self, body: nn.Module, width: int = 12) -> None:
        super().__init__()
        self.embed, self.body, self.out = nn.Embedding(11, width), body, nn.Linear(width, 11)

    def forward(self, ids: Tensor) -> Tensor:
        return self.out(self.body(self.embed(ids))).transpose(1, 2)


class Attention(nn.Module):
    """``nn.MultiheadAttention`` called in some way."""

    def __init__(self, how: str) -> None:
        super().__init__()
        self.how = how
        sizes = {"kdim": 12, "vdim": 6} if how == "cross" else {}
        sizes = sizes | {"bias": False} if how == "no bias" else sizes
        self.attention = nn.MultiheadAttention(12, 4, batch_first=how not in ("first", "single"), **sizes)

    def forward(self, x: Tensor) -> Tensor:
        ban = torch.ones(x.shape[1], x.shape[1], dtype=torch.bool, device=x.device).triu(1)
        if self.how == "causal":
            return x + self.attention(x, x, x, attn_mask=ban, need_weights=False, is_causal=True)[0]
        if self.how == "padding":
            late = torch.arange(x.shape[1]).expand(len(x), -1) > 3
            mask = torch.zeros(ban.shape, dtype=x.dtype).masked_fill(ban, -torch.inf)
            return x + self.attention(x, x, x, key_padding_mask=late.to(x.dtype) * -9.0, attn_mask=mask)[0]
        if self.how == "cross":
            return x + self.attention(x, x.flip(1), x[..., :6])[0]
        if self.how == "scores":
            out, scores = self.attention(x, x, x, average_attn_weights=False)
            assert scores.shape == (len(x), self.attention.num_heads, x.shape[1], x.shape[1])
            return x + out
        if self.how == "single":
            return x + torch.stack([self.attention(one, one, one)[0] for one in x])
        return x + self.attention(x, x, x)[0]


@pytest.mark.parametrize("how", ["plain", "causal", "padding", "cross", "scores", "single", "first", "no bias"])
def test_heads_of_torchs_attention_equal_the_full_ones_with_zeros(how):
    torch.manual_seed(0)
    for seed in range(3):
        graph = assert_same(Tokens(Attention(how)), TOKENS, seed)
    group = "body.attention.q_proj_weight" if how == "cross" else "body.attention"
    assert graph.groups == {group: 4}
    assert graph.axes["body.attention.out_proj.weight"] == (Axis(dim=1, group=group, block=3, role="in"),)


@pytest.mark.parametrize("how", ["plain", "causal", "padding", "cross", "scores", "single", "first", "no bias"])
def test_cut_attention_with_all_heads_is_torchs(how):
    torch.manual_seed(0)
    body, x = Attention(how).double(), torch.randn(3, 6, 12).double()
    expected = body(x)
    body.attention.__class__ = CutAttention
    torch.testing.assert_close(body(x), expected)


@pytest.mark.parametrize("how", [{"add_bias_kv": True}, {"add_zero_attn": True}], ids=str)
def test_attention_with_extra_keys_is_kept_whole(how):
    class Extra(nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.attention, self.fc = nn.MultiheadAttention(12, 4, batch_first=True, **how), nn.Linear(12, 12)

        def forward(self, x: Tensor) -> Tensor:
            return f.relu(self.fc(x + self.attention(x, x, x)[0]))

    torch.manual_seed(0)
    graph = assert_same(Tokens(Extra()), TOKENS)
    assert graph.groups == {"body.fc": 12}
    assert "'body.attention" in graph.note()


@pytest.mark.parametrize("norm_first", [False, True])
def test_torchs_transformer_layers(norm_first):
    how = {"dim_feedforward": 16, "dropout": 0.0, "batch_first": True, "norm_first": norm_first}

    class Encoder(nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.layers = nn.TransformerEncoder(nn.TransformerEncoderLayer(12, 4, **how), 2)
            self.decoder = nn.TransformerDecoderLayer(12, 3, **how)

        def forward(self, x: Tensor) -> Tensor:
            late = torch.arange(x.shape[1]).expand(len(x), -1) > 3
            return self.decoder(x, self.layers(x, src_key_padding_mask=late))

    torch.manual_seed(0)
    graph = assert_same(Tokens(Encoder()), TOKENS)
    heads = {group: units for group, units in graph.groups.items() if "attn" in group}
    assert sorted(heads.values()) == [3, 3, 4, 4]
    small = shrink(Tokens(Encoder()).double(), graph, dict.fromkeys(heads, 1)).eval()
    with_gradient = small(TOKENS)
    with torch.no_grad():  # torch's fused kernels must not be used
        torch.testing.assert_close(small(TOKENS), with_gradient)


class Packed(nn.Module):
    """Queries, keys and values from one linear layer, taken apart in many ways."""

    def __init__(self, how: str, *, heads: int = 4, size: int = 3, width: int = 12) -> None:
        super().__init__()
        self.how, self.num_heads, self.size = how, heads, size
        self.qkv, self.o = nn.Linear(width, 3 * heads * size), nn.Linear(heads * size, width)

    def parts(self, x: Tensor) -> tuple[Tensor, ...]:
        packed = self.qkv(x)
        if self.how == "chunk":
            return tuple(t.unflatten(-1, (-1, self.size)).transpose(1, 2) for t in packed.chunk(3, -1))
        if self.how == "split":
            parts = packed.split(packed.shape[-1] // 3, dim=-1)
            return tuple(t.view(*x.shape[:2], self.num_heads, -1).transpose(1, 2) for t in parts)
        if self.how == "view":
            return packed.reshape(*x.shape[:2], 3, self.num_heads, -1).permute(2, 0, 3, 1, 4).unbind(0)
        if self.how == "select":
            packed = packed.view(*x.shape[:2], 3, -1, self.size).transpose(1, 3)
            return packed[:, :, 0], packed[:, :, 1], packed[:, :, 2]
        if self.how == "unflatten":
            q, k, v = packed.unflatten(-1, (3, -1)).unbind(-2)
            return tuple(t.unflatten(-1, (-1, self.size)).transpose(1, 2) for t in (q, k, v))
        packed = packed.view(*x.shape[:2], -1, 3 * self.size).transpose(1, 2)  # head by head
        return packed.chunk(3, -1)

    def forward(self, x: Tensor) -> Tensor:
        return x + self.o(f.scaled_dot_product_attention(*self.parts(x)).transpose(1, 2).flatten(2))


HOW = ["chunk", "split", "view", "select", "unflatten", "by head"]


@pytest.mark.parametrize("how", HOW)
def test_packed_projections_equal_the_full_ones_with_zeros(how):
    torch.manual_seed(0)
    for seed in range(3):
        graph = assert_same(Tokens(nn.Sequential(Packed(how), Packed(how))), TOKENS, seed)
    assert graph.groups == {"body.0.qkv": 4, "body.1.qkv": 4}
    block, repeats = (9, 1) if how == "by head" else (3, 3)
    rows = Axis(dim=0, group="body.0.qkv", block=block, role="out", repeats=repeats)
    assert graph.axes["body.0.qkv.weight"] == graph.axes["body.0.qkv.bias"] == (rows,)
    assert graph.axes["body.0.o.weight"] == (Axis(dim=1, group="body.0.qkv", block=3, role="in"),)


def test_packed_projections_with_fixed_sizes_are_kept():
    class Numbers(Packed):
        def parts(self, x: Tensor) -> tuple[Tensor, ...]:
            return tuple(t.view(*x.shape[:2], 4, 3).transpose(1, 2) for t in self.qkv(x).split(12, dim=-1))

    class Gated(nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.attention, self.up, self.down = Numbers("split"), nn.Linear(12, 20), nn.Linear(10, 12)

        def forward(self, x: Tensor) -> Tensor:
            a, b = self.up(self.attention(x)).chunk(2, -1)
            return x + self.down(f.silu(a) * b)

    torch.manual_seed(0)
    graph = assert_same(Tokens(Gated()), TOKENS)
    assert graph.groups == {"body.up": 10}
    assert graph.axes["body.up.weight"] == (Axis(dim=0, group="body.up", block=1, role="out", repeats=2),)
    assert "fewer units" in graph.whole["body.attention.qkv"]


@pytest.mark.parametrize("seed", range(10))
def test_random_mixtures_of_packed_layers(seed):
    pick = random.Random(seed)
    torch.manual_seed(seed)

    class Sequence(nn.Module):
        def __init__(self, kind: type[nn.RNNBase], two: bool) -> None:
            super().__init__()
            self.rnn = kind(12, 5, pick.choice((1, 2)), batch_first=True, bidirectional=two)
            self.fc = nn.Linear(10 if two else 5, 12)

        def forward(self, x: Tensor) -> Tensor:
            return x + self.fc(self.rnn(x)[0])

    kinds = [
        lambda: Packed(pick.choice(HOW), heads=pick.choice((2, 3, 5)), size=pick.choice((1, 2, 4))),
        lambda: Sequence(pick.choice((nn.LSTM, nn.GRU, nn.RNN)), pick.random() < 0.5),
        lambda: Attention(pick.choice(("plain", "causal", "padding", "first"))),
        lambda: nn.TransformerEncoderLayer(12, 3, 10, 0.0, batch_first=True),
    ]
    body = nn.Sequential(*(pick.choice(kinds)() for _ in range(3)))
    assert len(assert_same(Tokens(body), TOKENS, seed).groups) >= 3


@pytest.mark.parametrize(("rate", "share"), [(0.2, 0.80), (0.5, 0.51), (0.9, 0.12)])
def test_an_lstm_keeps_the_share_of_its_rate(rate, share):
    """The language model of Shakespeare: 96 characters. Only the table of its embedding is kept whole."""
    model = lstm(vocabulary=96, num_classes=96)
    blueprint, config = Blueprint(model, TOKENS), Subnets(level="unit")
    sizes, subnet = kept_sizes(blueprint, config, rate), cutter(blueprint, config)(1, rate)
    assert sizes == {name: piece.size for name, piece in subnet.items()}
    total = sum(p.numel() for p in model.parameters())
    assert sum(sizes.values()) / total == pytest.approx(share, abs=0.01)
    assert sizes["embedding.weight"] == 96 * 64
