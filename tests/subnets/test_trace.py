"""Hidden units are found in any network, and what cannot be cut is refused by name."""

from __future__ import annotations

import re

import pytest
import torch
from torch import Tensor, nn
from torch.nn import functional as f

from feddrop.errors import SubnetError
from feddrop.subnets.trace import trace
from feddrop.subnets.units import Axis, shrink
from support.unit_oracle import Call, assert_same, resnet


def test_graph_of_a_small_network():
    model = nn.Sequential()
    model.add_module("conv", nn.Conv2d(3, 4, 3, padding=1))
    model.add_module("norm", nn.BatchNorm2d(4))
    model.add_module("flat", nn.Flatten())
    model.add_module("fc", nn.Linear(100, 6))
    model.add_module("out", nn.Linear(6, 2))
    graph = trace(model, (3, 5, 5))
    row = (Axis(dim=0, group="conv", block=1, role="out"),)
    assert graph.groups == {"conv": 4, "fc": 6}
    assert graph.axes == {
        "conv.weight": row,
        "conv.bias": row,
        "norm.weight": row,
        "norm.bias": row,
        "fc.weight": (Axis(dim=0, group="fc", block=1, role="out"), Axis(dim=1, group="conv", block=25, role="in")),
        "fc.bias": (Axis(dim=0, group="fc", block=1, role="out"),),
        "out.weight": (Axis(dim=1, group="fc", block=1, role="in"),),
        "out.bias": (),
        "norm.running_mean": row,
        "norm.running_var": row,
    }
    assert graph.layers == {"conv": ("conv",), "fc": ("fc",)}
    assert graph.kinds == {"conv": "conv", "fc": "linear", "out": "linear"}
    assert list(graph.whole) == ["out"]


def test_residual_connections_share_one_subset():
    graph = assert_same(resnet(), (3, 16, 16))
    assert graph.layers == {
        "0.0": ("0.0", "1.body.3", "2.body.3"),
        "1.body.0": ("1.body.0",),
        "2.body.0": ("2.body.0",),
        "3.body.0": ("3.body.0",),
        "3.body.3": ("3.body.3", "3.shortcut.0", "4.body.3"),
        "4.body.0": ("4.body.0",),
    }
    rows = {name: axes[0].group for name, axes in graph.axes.items() if name.endswith("running_var")}
    assert rows["1.body.4.running_var"] == rows["0.1.running_var"] == "0.0"


def test_units_go_through_a_change_of_type():
    class Mixed(nn.Module):
        def __init__(self):
            super().__init__()
            self.a, self.b, self.out = nn.Linear(5, 6), nn.Linear(6, 4).double(), nn.Linear(4, 3)

        def forward(self, x):
            return self.out(torch.relu(self.b(torch.relu(self.a(x)).double()).float()))

    assert trace(Mixed(), (5,)).groups == {"a": 6, "b": 4}


def test_units_added_to_the_input_or_output_are_kept():
    class Around(nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.a, self.b, self.c = nn.Linear(6, 6), nn.Linear(6, 6), nn.Linear(6, 6)

        def forward(self, x: Tensor) -> Tensor:
            h = x + f.relu(self.a(x))
            return self.c(f.relu(self.b(h))) + h

    graph = assert_same(Around(), (6,))
    assert graph.groups == {"b": 6}
    assert "'add'" in graph.whole["a"]
    assert set(graph.whole) == {"a", "c"}


def test_the_note_lists_hidden_layers_that_are_cut_on_the_side_they_read():
    class Ranked(nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.a, self.b, self.fc = nn.Conv2d(1, 4, 3), nn.Conv2d(4, 6, 3), nn.Linear(6, 5)

        def forward(self, x: Tensor) -> Tensor:
            ranked = self.b(f.relu(self.a(x))).softmax(1).sort(1)[0]
            return self.fc(ranked.mean((2, 3)))

    graph = trace(Ranked(), (1, 8, 8))
    assert graph.groups == {"a": 4}
    assert graph.note().startswith("Kept whole at the unit level: 'b' (the operation '_softmax'")
    assert "'fc'" not in graph.note()


class Heads(nn.Module):
    """Two outputs: a distribution and one number."""

    def __init__(self) -> None:
        super().__init__()
        self.a, self.policy, self.value = nn.Linear(8, 16), nn.Linear(16, 4), nn.Linear(16, 1)

    def forward(self, x: Tensor) -> tuple[Tensor, Tensor]:
        h = f.relu(self.a(x))
        return self.policy(h).softmax(1), self.value(h).squeeze(-1)


@pytest.mark.parametrize(
    "model",
    [
        Heads(),
        nn.Sequential(nn.Linear(8, 16), nn.ReLU(), nn.Linear(16, 5), nn.LogSoftmax(1)),
        nn.Sequential(nn.Linear(8, 16), nn.ReLU(), nn.Linear(16, 6), nn.Unflatten(1, (6, 1, 1)), nn.PixelShuffle(1)),
        nn.Sequential(nn.Linear(8, 4), nn.ReLU(), nn.Linear(4, 1), nn.ReLU(), nn.Linear(1, 8)),
    ],
    ids=["heads", "log_softmax", "shuffled", "bottleneck"],
)
def test_the_note_does_not_list_output_layers(model):
    assert trace(model, (8,)).note() == ""


def test_kept_units_keep_whatever_is_coupled_to_them():
    class Chain(nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.a, self.b, self.c, self.d = (nn.Linear(6, 6) for _ in range(4))

        def forward(self, x: Tensor) -> Tensor:
            h = self.a(x) + x
            return self.d(self.c(f.relu(self.b(h))) + h)

    graph = assert_same(Chain(), (6,))
    assert graph.groups == {"b": 6}
    assert set(graph.whole) == {"a", "c", "d"}


def test_a_module_used_twice_is_cut_on_both_sides():
    shared = nn.Linear(12, 12)
    graph = assert_same(nn.Sequential(nn.Linear(5, 12), nn.Tanh(), shared, nn.Tanh(), shared, nn.Linear(12, 3)), (5,))
    assert graph.groups == {"0": 12}
    assert {axis.role for axis in graph.axes["2.weight"]} == {"in", "out"}


ELEMENTWISE = (
    "ReLU ReLU6 LeakyReLU PReLU ELU SELU CELU GELU SiLU Mish Tanh Sigmoid LogSigmoid Hardtanh Hardswish Hardsigmoid "
    "Hardshrink Softshrink Tanhshrink Softplus Softsign Identity Dropout Dropout1d AlphaDropout"
)


@pytest.mark.parametrize("kind", [getattr(nn, name) for name in re.findall(r"\w+", ELEMENTWISE)])
def test_every_elementwise_module_is_followed(kind):
    graph = trace(nn.Sequential(nn.Linear(4, 6), kind(), nn.Linear(6, 2)), (4,))
    assert graph.groups == {"0": 6}


@pytest.mark.parametrize(
    "function",
    [
        lambda x: x.permute(0, 2, 3, 1).permute(0, 3, 1, 2),
        lambda x: x.transpose(1, 3).flip(1).transpose(-1, 1),
        lambda x: torch.cat([x, x.flip(2)], 2),
        lambda x: f.pad(x, (1, 2)),
        lambda x: f.pad(x, (1, 1, 1, 1), mode="reflect"),
        lambda x: x[:, :, 1:-1, 0].unsqueeze(2),
        lambda x: torch.softmax(x.flatten(2), -1),
        lambda x: x.amax((2, 3), keepdim=True).expand_as(x) - x,
        lambda x: x / (x.std((2, 3), keepdim=True) + 1),
        lambda x: torch.where(x > 0, x, 0.1 * x.pow(2)),
        lambda x: x.mul_(2).add_(1),
        lambda x: f.interpolate(x, scale_factor=2),
        lambda x: f.instance_norm(x),
        lambda x: sum(torch.split(x, 2, dim=3)),
        lambda x: x.reshape(x.shape[0], x.shape[1] // 2, -1) if x.shape[1] % 2 == 0 else x,
    ],
)
def test_operations_beside_the_units_are_followed(function):
    torch.manual_seed(0)
    head = (nn.Flatten(2), Call(lambda x: x.mean(2)), nn.Linear(8, 3))
    model = nn.Sequential(nn.Conv2d(3, 8, 3, padding=1), nn.Tanh(), Call(function), *head)
    if function(torch.zeros(2, 8, 6, 6)).shape[1] == 4:  # two channels to a unit from here on
        model[-1] = nn.Linear(4, 3)
        assert trace(model, (3, 6, 6)).groups == {"0": 4}
    else:
        assert_same(model, (3, 6, 6))


@pytest.mark.parametrize("rank", [1, 3])
def test_other_ranks_of_convolution_and_pooling(rank):
    conv, norm, *pools = (
        getattr(nn, f"{kind}{rank}d")
        for kind in ("Conv", "BatchNorm", "MaxPool", "AvgPool", "AdaptiveMaxPool", "ConvTranspose", "AdaptiveAvgPool")
    )
    torch.manual_seed(0)
    largest, mean, some, transposed, all_of = pools
    body = (norm(6), largest(2), mean(2, 1), some(3), transposed(6, 4, 2), nn.Upsample(scale_factor=2), all_of(1))
    model = nn.Sequential(conv(2, 6, 3, padding=1), *body, nn.Flatten(), nn.Linear(4, 3))
    assert assert_same(model, (2, *[8] * rank)).groups == {"0": 6, "5": 4}


def test_a_branch_for_training_only_must_run_with_fewer_units():
    class Branch(nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.fc, self.extra, self.out = nn.Linear(4, 8), nn.Linear(8, 2), nn.Linear(8, 2)

        def forward(self, x: Tensor) -> Tensor:
            h = self.fc(x)
            return self.out(h) + self.extra(h) if self.training else self.out(h)

    assert trace(Branch().eval(), (4,)).groups == {"fc": 8}
    with pytest.raises(SubnetError, match=r"fewer units.*'extra'"):
        trace(Branch(), (4,))


def test_linear_layers_over_sequences_and_raw_matrices():
    class Mixer(nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.conv, self.fc, self.out = nn.Conv1d(3, 8, 3, padding=1), nn.Linear(8, 6), nn.Linear(6, 2)
            self.raw = nn.Parameter(torch.randn(6, 6))

        def forward(self, x: Tensor) -> Tensor:
            if x.dim() != 3:
                raise ValueError("control flow is fine")
            h = f.max_pool1d(self.conv(x), 2).transpose(1, 2)
            return self.out(torch.tanh(self.fc(h)) @ (0.5 * self.raw)).sum(1)

    torch.manual_seed(0)
    graph = assert_same(Mixer(), (3, 8))
    assert graph.layers == {"conv": ("conv",), "fc": ("fc",), "raw": ("",)}


def test_unflatten_gives_each_channel_its_block_of_units():
    unflatten = Call(lambda x: x.view(x.size(0), -1, 2, 2))
    model = nn.Sequential(nn.Linear(5, 32), nn.ReLU(), unflatten, nn.ConvTranspose2d(8, 1, 2), nn.Flatten())
    graph = assert_same(model, (5,))
    assert graph.groups == {"0": 8}
    assert graph.axes["0.weight"] == (Axis(dim=0, group="0", block=4, role="out"),)
    graph = assert_same(nn.Sequential(nn.Linear(5, 32), unflatten, nn.Tanh(), nn.Flatten(), nn.Linear(32, 2)), (5,))
    assert graph.groups == {"0": 8}


def test_outputs_come_alone_or_in_dicts_and_tuples():
    heads = Call(lambda x: {"logits": x, "more": (x.exp(), None)})
    graph = trace(nn.Sequential(nn.Linear(4, 8), nn.Linear(8, 2), heads), (4,))
    assert graph.groups == {"0": 8}


def test_anything_goes_on_the_input_and_the_output():
    model = nn.Sequential(
        Call(lambda x: torch.fft.fft(x).abs()), nn.Linear(6, 8), nn.ReLU(), nn.Linear(8, 4), nn.LogSoftmax(1)
    )
    assert assert_same(model, (6,)).groups == {"1": 8}


class Tied(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.fc, self.hidden, self.out = nn.Linear(4, 6), nn.Linear(6, 8), nn.Linear(6, 2)

    def forward(self, x: Tensor) -> Tensor:
        return self.out(f.relu(self.hidden(self.fc(x))) @ self.hidden.weight)


class Computed(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.fc, self.out = nn.Linear(4, 6), nn.Linear(6, 2)

    def forward(self, x: Tensor) -> Tensor:
        return self.out(f.linear(x, torch.tanh(self.fc.weight)))


class Standardised(nn.Conv2d):
    def forward(self, x: Tensor) -> Tensor:
        return f.conv2d(x, self.weight - self.weight.mean((1, 2, 3), keepdim=True))


class Recurrent(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.rnn, self.fc, self.out = nn.LSTM(4, 6, batch_first=True), nn.Linear(6, 8), nn.Linear(8, 2)

    def forward(self, x: Tensor) -> Tensor:
        return self.out(self.fc(self.rnn(x.unsqueeze(1))[0]))


class Coupled(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.a, self.b, self.out = nn.Linear(4, 6), nn.Linear(4, 6), nn.Linear(6, 2)

    def forward(self, x: Tensor) -> Tensor:
        return self.out(self.a(x) + torch.softmax(self.b(x), 1))


def conv_net(function, width: int = 8) -> nn.Module:
    layers = {
        "conv": nn.Conv2d(3, 8, 3, padding=1),
        "odd": Call(function),
        "flat": nn.Flatten(),
        "fc": nn.Linear(width, 2),
    }
    model = nn.Sequential()
    for name, layer in layers.items():
        model.add_module(name, layer)
    return model


@pytest.mark.parametrize(
    ("function", "width", "units"),
    [
        (lambda x: x.permute(0, 2, 3, 1), 128, 8),  # channels last: all units, once per position
        (lambda x: x.chunk(2, 1)[0], 64, 4),
        (lambda x: torch.mul(*x.chunk(2, 1)), 64, 4),
        (lambda x: sum(x.chunk(4, 1)), 32, 2),
    ],
)
def test_units_that_repeat_are_cut_in_every_repetition(function, width, units):
    torch.manual_seed(0)
    assert assert_same(conv_net(function, width), (3, 4, 4)).groups == {"conv": units}


@pytest.mark.parametrize(
    ("model", "words"),
    [
        (conv_net(lambda x: torch.softmax(x, 1), 128), ("'conv'", "_softmax", "'odd'")),
        (conv_net(lambda x: x.cumsum(1), 128), ("'conv'", "cumsum", "'odd'")),
        (conv_net(lambda x: x.roll(1, 1), 128), ("'conv'", "roll", "'odd'")),
        (conv_net(lambda x: x[:, :4], 64), ("'conv'", "slice", "'odd'")),
        (conv_net(lambda x: x[:, 0], 16), ("'conv'", "select", "'odd'")),
        (conv_net(lambda x: x[:, [1, 0, 2, 3, 4, 5, 6, 7]], 128), ("'conv'", "index", "'odd'")),
        (conv_net(lambda x: x.mean(1), 16), ("'conv'", "mean", "'odd'")),
        (conv_net(lambda x: x - x.max(), 128), ("'conv'", "max", "'odd'")),
        (conv_net(lambda x: torch.cat([x, x], 1), 256), ("'conv'", "cat", "'odd'")),
        (conv_net(lambda x: x.split(4, 1)[0], 64), ("fewer units", "'conv'")),
        (conv_net(lambda x: x.split([3, 5], 1)[0], 48), ("'conv'", "split", "'odd'")),
        (conv_net(lambda x: f.pad(x, (0, 0, 0, 0, 1, -1)), 128), ("'conv'", "constant_pad_nd", "'odd'")),
        (conv_net(lambda x: f.channel_shuffle(x, 2), 128), ("'conv'", "channel_shuffle", "'odd'")),
        (conv_net(lambda x: f.pixel_shuffle(x, 2), 128), ("'conv'", "'odd'")),
        (conv_net(lambda x: f.glu(x, 1), 64), ("'conv'", "glu", "'odd'")),
        (conv_net(lambda x: torch.bmm(x.flatten(2), x.flatten(2).mT), 64), ("'conv'", "view", "'flat'")),
        (conv_net(lambda x: x.view(-1, 128), 128), ("fewer units", "x.shape", "'odd'", "128")),
        (conv_net(lambda x: x.view(2, 8, 16), 128), ("fewer units", "x.shape", "'odd'")),
        (Tied(), ("'fc'", "mm")),
        (Computed(), ("'fc'", "mm")),
        (nn.Sequential(Standardised(3, 4, 3), nn.Conv2d(4, 2, 1)), ("'0'", "convolution")),
        (nn.Sequential(nn.Conv2d(3, 4, 1), nn.ConvTranspose2d(4, 4, 2, groups=2), nn.Conv2d(4, 1, 1)), ("'0'", "'1'")),
        (Coupled(), ("'a'", "_softmax")),
        (nn.Sequential(nn.Conv2d(3, 4, 1), Call(lambda x: x.mT.transpose(1, 2)), nn.Conv2d(4, 2, 1)), ("'0'", "'2'")),
        (nn.Sequential(nn.Linear(4, 8), nn.RMSNorm(8), nn.Linear(8, 2)), ("'0'", "mean", "'1'")),
        (nn.Sequential(nn.Linear(4, 8), nn.Unflatten(1, (2, 4)), nn.Flatten(), nn.Linear(8, 2)), ("fewer units",)),
    ],
)
def test_what_cannot_be_cut_is_refused_by_name(model, words):
    with pytest.raises(SubnetError) as refusal:
        trace(model, (3, 4, 4) if isinstance(next(model.children()), nn.Conv2d) else (4,))
    for word in (*words, "level='weight'"):
        assert word in str(refusal.value)


@pytest.mark.parametrize(
    ("model", "shape", "words"),
    [
        (nn.Linear(4, 2), (4,), ("no hidden units", "output")),
        (nn.Sequential(nn.Linear(4, 1), nn.Linear(1, 2)), (4,), ("no hidden units", "one unit")),
        (nn.Sequential(nn.Linear(4, 8), nn.Linear(8, 2)), (5,), ("(5,)", "layer '0'")),
        (nn.ReLU(), (5,), ("no parameters",)),
        (nn.Sequential(nn.Linear(4, 8), nn.Linear(8, 2), Call(lambda x: {"x"})), (4,), ("returns no tensors", "dicts")),
    ],
)
def test_networks_without_hidden_units_say_so(model, shape, words):
    with pytest.raises(SubnetError) as refusal:
        trace(model, shape)
    assert all(word in str(refusal.value) for word in words)


def test_tracing_and_shrinking_leave_the_network_alone():
    model = nn.Sequential(nn.Conv2d(1, 4, 3), nn.BatchNorm2d(4), nn.Dropout(0.5), nn.Flatten(), nn.Linear(16, 2))
    model[1].eval()
    model.last = model(torch.ones(2, 1, 4, 4))  # a tensor with a gradient's history, which deepcopy refuses
    before = {name: tensor.clone() for name, tensor in model.state_dict().items()}
    random_state = torch.get_rng_state()
    shrink(model, trace(model, (1, 4, 4)), {"0": 2})
    for name, tensor in model.state_dict().items():
        torch.testing.assert_close(tensor, before[name], rtol=0, atol=0)
    assert torch.equal(torch.get_rng_state(), random_state)
    assert [module.training for module in model] == [True, False, True, True, True]
    assert not any(m._forward_hooks or m._forward_pre_hooks for m in model.modules())
    assert all(p.grad is None for p in model.parameters())
    assert model[0].out_channels == 4
