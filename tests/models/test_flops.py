"""FLOPs are counted by operation, forward and backward, in any network; what has no formula is named."""

from __future__ import annotations

import numpy as np
import pytest
import torch
from torch import Tensor, nn
from torch.nn import functional as f
from torch.utils.checkpoint import checkpoint
from torch.utils.flop_counter import FlopCounterMode, flop_registry, register_flop_formula

from feddrop.errors import ConfigError
from feddrop.models import alexnet, lenet
from feddrop.models.flops import Work, count_flops, forward_flops
from feddrop.subnets.trace import trace
from feddrop.subnets.units import shrink
from support.unit_oracle import Call, choose, pieces_of, random_network, resnet


def by_torch(model: nn.Module, *inputs: Tensor) -> tuple[int, int]:
    """The slow twin: torch's own counter around a real forward and backward pass."""
    with FlopCounterMode(display=False) as forward:
        out = model(*inputs)
    with FlopCounterMode(display=False) as backward:
        (out[0] if isinstance(out, tuple) else out).sum().backward()
    return forward.get_total_flops(), backward.get_total_flops()


class Recurrent(nn.Module):
    def __init__(self, kind: type[nn.Module] = nn.LSTM) -> None:
        super().__init__()
        self.rnn, self.out = kind(6, 32, batch_first=True), nn.Linear(32, 3)

    def forward(self, x: Tensor) -> Tensor:
        return self.out(self.rnn(x)[0][:, -1])


class Raw(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.w, self.out = nn.Parameter(torch.randn(24, 32)), nn.Linear(32, 6)

    def forward(self, x: Tensor) -> Tensor:
        return self.out(torch.relu_(x @ self.w))


class With(nn.Module):
    """Any function of a module and its input, with parameters."""

    def __init__(self, function, **parameters: Tensor) -> None:
        super().__init__()
        self.function = function
        for name, value in parameters.items():
            setattr(self, name, nn.Parameter(value))

    def forward(self, x: Tensor) -> Tensor:
        return self.function(self, x)


class Attention(nn.Module):
    """Two heads of four; the scores by one fused operation, or written out."""

    def __init__(self, how: str) -> None:
        super().__init__()
        self.how, self.q, self.k, self.v, self.o = how, *(nn.Linear(8, 8) for _ in range(4))

    def forward(self, x: Tensor) -> Tensor:
        q, k, v = (layer(x).unflatten(-1, (-1, 4)).transpose(1, 2) for layer in (self.q, self.k, self.v))
        if self.how == "fused":
            h = f.scaled_dot_product_attention(q, k, v)
        elif self.how == "einsum":
            h = torch.einsum("bhlm,bhmd->bhld", torch.einsum("bhld,bhmd->bhlm", q, k).softmax(-1), v)
        else:
            h = (q @ k.mT).softmax(-1) @ v
        return self.o(h.transpose(1, 2).flatten(2))


def test_recurrent_layers():
    flops = count_flops(Recurrent(), (20, 6))
    assert flops.full.forward == 194_752
    # 20 steps of four gates, from 6 inputs and 32 states; the output layer. No gradient of the input or first state.
    assert flops.by_weight == {
        "rnn.weight_ih_l0": Work(20 * 2 * 6 * 128, 20 * 2 * 6 * 128),
        "rnn.weight_hh_l0": Work(20 * 2 * 32 * 128, (20 + 19) * 2 * 32 * 128),
        "out.weight": Work(192, 2 * 192),
    }
    gru = count_flops(Recurrent(nn.GRU), (20, 6))
    assert gru.full.forward == 20 * 2 * (6 + 32) * 96 + 192
    assert not flops.uncounted
    assert not gru.uncounted


def test_raw_products_of_weights():
    flops = count_flops(Raw(), (24,))
    assert flops.full == Work(1920, 2 * 24 * 32 + 2 * 384)  # the input's gradient is not needed
    assert flops.by_weight["w"] == Work(1536, 1536)
    assert count_flops(With(lambda self, x: x @ self.w, w=torch.randn(5)), (3, 5)).by_weight["w"] == Work(30, 30)


@pytest.mark.parametrize("how", ["fused", "einsum", "plain"])
def test_attention(how):
    flops = count_flops(Attention(how), (10, 8))
    layer = 10 * 2 * 8 * 8
    assert [flops.by_weight[f"{name}.weight"] for name in "qkv"] == [Work(layer, layer)] * 3
    assert flops.by_weight["o.weight"] == Work(layer, 2 * layer)
    product = 2 * (2 * 10 * 10 * 4)  # two heads
    # Backward, each product has two; the fused one works the scores out again.
    assert flops.rest == Work(2 * product, (5 if how == "fused" else 4) * product)
    assert not flops.uncounted


def test_torchs_own_transformer_and_token_ids():
    class Tokens(nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.embed = nn.Embedding(50, 8)
            self.layer = nn.TransformerEncoderLayer(8, 2, 16, batch_first=True)

        def forward(self, ids: Tensor, scale: Tensor) -> Tensor:
            return f.linear(self.layer(self.embed(ids)) * scale[:, None], self.embed.weight)

    model = Tokens().eval()
    example = torch.randint(50, (4, 10)), torch.rand(4, 1)
    flops = count_flops(model, example)
    assert flops.by_weight["layer.self_attn.in_proj_weight"].forward == 10 * 2 * 8 * 24
    assert flops.by_weight["layer.linear1.weight"] == Work(10 * 2 * 8 * 16, 2 * 10 * 2 * 8 * 16)
    assert flops.by_weight["embed.weight"].forward == 10 * 2 * 8 * 50  # looking up costs nothing, the output layer does
    assert not flops.uncounted
    assert flops.full == count_flops(model, tuple(part[:1] for part in example)).full
    assert flops.full == count_flops(model, tuple(part.numpy() for part in example)).full


@pytest.mark.parametrize(
    ("model", "shape"),
    [
        (lenet(), (3, 32, 32)),
        (alexnet(channels=(4,) * 5, hidden=(8, 8)), (3, 32, 32)),
        (resnet(), (3, 16, 16)),
        (Recurrent(nn.GRU), (7, 6)),
        (Raw(), (24,)),
        (Attention("plain"), (10, 8)),
        (nn.Sequential(nn.Conv1d(3, 4, 3, dilation=2), nn.ConvTranspose1d(4, 5, 3, stride=2), nn.Flatten()), (3, 9)),
        (nn.Sequential(nn.Conv3d(1, 4, 3, stride=2), nn.ReLU(), nn.Conv3d(4, 2, 1)), (1, 7, 7, 7)),
    ],
)
def test_counts_are_those_of_torchs_counter(model, shape):
    model = model.eval()
    assert tuple(count_flops(model, shape).full) == by_torch(model, torch.zeros(1, *shape))


def test_training_costs_three_times_forward_but_for_the_inputs_gradient():
    work = count_flops(lenet(), (3, 32, 32))
    assert work.full.forward == forward_flops(lenet(), (3, 32, 32)) == 1_318_560
    assert work.full.training == 3 * 1_318_560 - 705_600
    frozen = lenet()
    frozen.conv1.requires_grad_(False)
    frozen.conv2.requires_grad_(False)
    assert count_flops(frozen, (3, 32, 32)).full.backward == 2 * (20_160 + 16_800) + 96_000
    assert count_flops(frozen.requires_grad_(False), (3, 32, 32)).full.backward == 0


def test_grouped_convolutions_cost_as_much_backward_as_forward():
    model = nn.Sequential(nn.Conv2d(4, 8, 3, groups=4), nn.ConvTranspose2d(8, 6, 3, groups=2))
    first, second = 2 * 8 * 16 * 9, 2 * 8 * 16 * 3 * 9
    assert count_flops(model, (4, 6, 6)).by_weight == {
        "0.weight": Work(first, first),
        "1.weight": Work(second, 2 * second),
    }


@pytest.mark.parametrize("seed", range(0, 80, 5))
def test_a_subnets_work_is_that_of_the_smaller_network(seed):
    model, shape = random_network(seed)
    graph = trace(model, shape)
    pieces = pieces_of(model, graph, kept := choose(graph, seed))
    small = count_flops(shrink(model, graph, {group: len(index) for group, index in kept.items()}), shape)
    predicted = count_flops(model, shape).of({name: piece.size for name, piece in pieces.items()})
    assert predicted == pytest.approx(small.full)
    assert small.full.forward < count_flops(model, shape).full.forward


def test_subnets_of_single_weights():
    flops = count_flops(lenet(), (3, 32, 32))
    half = flops.of({"conv1.weight": 225, "conv1.bias": 6, "fc1.weight": 24_000, "elsewhere": 1})
    assert half.forward == 1_318_560 - 705_600 / 2 - 48_000
    assert flops.of({}) == flops.full


def test_weights_in_another_form_are_still_the_weights():
    normed = nn.utils.parametrizations.weight_norm(nn.Linear(5, 7))
    masked = With(lambda self, x: f.linear(x, self.w * self.mask), w=torch.randn(7, 5))
    masked.register_buffer("mask", torch.ones(7, 5))
    cast = With(lambda self, x: f.linear(x.double(), self.w.double()), w=torch.randn(7, 5))
    for model, name in ((normed, "parametrizations.weight.original1"), (masked, "w"), (cast, "w")):
        flops = count_flops(model, (5,))
        assert flops.by_weight[name] == Work(70, 70)
        assert flops.rest == Work(0, 0)


def test_two_weights_multiplied_belong_to_neither():
    model = With(lambda self, x: x @ (self.a @ self.b), a=torch.randn(6, 2), b=torch.randn(2, 4))
    inner, outer = 2 * 6 * 2 * 4, 2 * 6 * 4
    assert count_flops(model, (6,)).rest == Work(inner + outer, 2 * inner + outer)


def test_work_done_again_is_counted_again():
    layer = nn.Sequential(nn.Linear(4, 8), nn.Tanh(), nn.Linear(8, 4))
    model = With(lambda self, x: checkpoint(self.layer, x, use_reentrant=False))
    model.layer = layer
    plain, again = count_flops(layer, (4,)).full, count_flops(model, (4,)).full
    assert again.forward == plain.forward
    assert again.backward > plain.backward


def test_what_has_no_formula_is_named():
    @torch.library.custom_op("feddrop_tests::double_mm", mutates_args=())
    def double_mm(x: Tensor, w: Tensor) -> Tensor:
        return 2 * x @ w

    double_mm.register_autograd(lambda _, grad: (grad, None))
    model = Call(lambda x: torch.fft.rfft(double_mm(x, torch.eye(6))).abs().softmax(1))
    flops = count_flops(nn.Sequential(nn.Linear(6, 6), model), (6,))
    assert {"feddrop_tests.double_mm", "aten._fft_r2c"} <= set(flops.uncounted)
    assert "double_mm (1x)" in flops.note()
    assert count_flops(lenet(), (3, 32, 32)).note() == ""
    packet = torch.ops.feddrop_tests.double_mm
    register_flop_formula(packet)(lambda x, w, *_, **__: 2 * x[0] * x[1] * w[1])
    try:
        assert count_flops(nn.Sequential(nn.Linear(6, 6), model), (6,)).rest.forward == 72
    finally:
        del flop_registry[packet]


@pytest.mark.parametrize("model", [Recurrent(), Attention("fused"), resnet()], ids=["lstm", "attention", "resnet"])
def test_counting_leaves_everything_as_it_was(model):
    shape = {Recurrent: (20, 6), Attention: (10, 8)}.get(type(model), (3, 16, 16))
    model.train()
    next(model.children()).eval()
    model.seen = model(torch.zeros(2, *shape))
    touched = []
    for p in model.parameters():
        p.register_hook(touched.append)
    before = {name: t.clone() for name, t in model.state_dict().items()}
    flags, state = [m.training for m in model.modules()], torch.get_rng_state()
    kernels = torch.backends.mkldnn.enabled, torch.backends.cudnn.enabled, torch.backends.mha.get_fastpath_enabled()
    count_flops(model, shape)
    assert kernels == (
        torch.backends.mkldnn.enabled,
        torch.backends.cudnn.enabled,
        torch.backends.mha.get_fastpath_enabled(),
    )
    assert [m.training for m in model.modules()] == flags
    assert torch.equal(torch.get_rng_state(), state)
    assert all(torch.equal(t, before[name]) for name, t in model.state_dict().items())
    assert not touched
    assert all(p.grad is None for p in model.parameters())


def test_examples_that_do_not_fit():
    with pytest.raises(ConfigError, match=r"does not accept samples of shape \(1, 32, 32\)"):
        count_flops(lenet(), (1, 32, 32))
    with pytest.raises(ConfigError, match=r"does not accept samples of shape \(2,\)"):
        count_flops(nn.Linear(3, 1), torch.zeros(1, 2))
    for odd in (torch.zeros(0, 3), torch.tensor(3.0), (torch.zeros(1, 3), 4), "abc"):
        with pytest.raises(ConfigError, match="example"):
            count_flops(nn.Linear(3, 1), odd)
    assert count_flops(nn.Linear(3, 1), (np.int64(3),)).full == Work(6, 6)


def test_integers_for_a_network_without_an_embedding_are_explained():
    tokens = torch.arange(6).reshape(1, 6)
    with pytest.raises(ConfigError, match=r"Integers are read as tokens, .*; pass features as floats"):
        count_flops(nn.Linear(6, 3), tokens)
    with pytest.raises(ConfigError, match="Change the network, or the data"):
        count_flops(nn.Sequential(nn.Embedding(3, 2), nn.Linear(9, 3)), tokens % 3)
