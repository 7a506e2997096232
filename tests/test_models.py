import pytest
import torch
from torch import nn
from torch.utils.flop_counter import FlopCounterMode

from feddrop.errors import ConfigError
from feddrop.flops import forward_flops, layer_flops
from feddrop.models import ModelConfig, Shapes, alexnet, build, count_parameters, lenet


def flops_by_torch(model: nn.Module, input_shape: tuple[int, ...]) -> int:
    counter = FlopCounterMode(display=False)
    with counter, torch.no_grad():
        model(torch.zeros(1, *input_shape))
    return counter.get_total_flops()


def test_parameter_counts_are_the_papers():
    assert count_parameters(lenet()) == 69_656
    assert count_parameters(alexnet()) == 36_223_908


def test_layer_names_and_shapes():
    shapes = {name: tuple(p.shape) for name, p in lenet().named_parameters()}
    assert shapes == {
        "conv1.weight": (6, 3, 5, 5), "conv1.bias": (6,), "conv2.weight": (16, 6, 5, 5), "conv2.bias": (16,),
        "fc1.weight": (120, 400), "fc1.bias": (120,), "fc2.weight": (84, 120), "fc2.bias": (84,),
        "fc3.weight": (100, 84), "fc3.bias": (100,),
    }  # fmt: skip
    names = [name for name, _ in alexnet(channels=(2, 3, 4, 5, 6), hidden=(7, 8)).named_parameters()]
    layers = ("conv1", "conv2", "conv3", "conv4", "conv5", "fc1", "fc2", "fc3")
    assert names == [f"{layer}.{kind}" for layer in layers for kind in ("weight", "bias")]


def test_lenet_computes_what_the_textbook_says():
    """Against the network written out by hand, activation before pooling."""
    model = build("lenet", Shapes.of((1, 28, 20), 7), seed=3)
    p = dict(model.named_parameters())
    x = torch.randn(4, 1, 28, 20, generator=torch.Generator().manual_seed(0))
    f = nn.functional
    h = f.max_pool2d(f.conv2d(x, p["conv1.weight"], p["conv1.bias"]).tanh(), 2)
    h = f.max_pool2d(f.conv2d(h, p["conv2.weight"], p["conv2.bias"]).tanh(), 2).flatten(1)
    h = f.linear(h, p["fc1.weight"], p["fc1.bias"]).tanh()
    h = f.linear(h, p["fc2.weight"], p["fc2.bias"]).tanh()
    assert torch.equal(model(x), f.linear(h, p["fc3.weight"], p["fc3.bias"]))


def test_alexnet_computes_what_the_textbook_says():
    model = build(ModelConfig(name="alexnet", width=0.05), Shapes.of((3, 17, 24), 7), seed=3)
    p = dict(model.named_parameters())
    h = x = torch.randn(2, 3, 17, 24, generator=torch.Generator().manual_seed(0))
    f = nn.functional
    for i in range(1, 6):
        h = f.conv2d(h, p[f"conv{i}.weight"], p[f"conv{i}.bias"], padding=1).relu()
        h = f.max_pool2d(h, 2) if i in (1, 2, 5) else h
    h = f.linear(h.flatten(1), p["fc1.weight"], p["fc1.bias"]).relu()
    h = f.linear(h, p["fc2.weight"], p["fc2.bias"]).relu()
    assert torch.equal(model(x), f.linear(h, p["fc3.weight"], p["fc3.bias"]))


def test_flops_match_hand_counts():
    assert layer_flops(lenet(), (3, 32, 32)) == {
        "conv1": 2 * 28 * 28 * 6 * 3 * 25, "conv2": 2 * 10 * 10 * 16 * 6 * 25,
        "fc1": 2 * 400 * 120, "fc2": 2 * 120 * 84, "fc3": 2 * 84 * 100,
    }  # fmt: skip
    assert layer_flops(alexnet(), (3, 32, 32)) == {
        "conv1": 2 * 32 * 32 * 64 * 3 * 9, "conv2": 2 * 16 * 16 * 192 * 64 * 9, "conv3": 2 * 8 * 8 * 384 * 192 * 9,
        "conv4": 2 * 8 * 8 * 256 * 384 * 9, "conv5": 2 * 8 * 8 * 256 * 256 * 9,
        "fc1": 2 * 4096 * 4096, "fc2": 2 * 4096 * 4096, "fc3": 2 * 4096 * 100,
    }  # fmt: skip


class Odd(nn.Module):
    """Groups, stride, dilation, transposed and 1-d convolutions, a norm, a layer used twice, one never used."""

    def __init__(self) -> None:
        super().__init__()
        self.body = nn.Sequential(nn.Conv2d(4, 8, 3, stride=2, groups=2), nn.BatchNorm2d(8), nn.ReLU())
        self.wide = nn.Conv2d(8, 8, 3, padding=2, dilation=2)
        self.up = nn.ConvTranspose2d(8, 6, 3, stride=2, groups=2)
        self.line = nn.Conv1d(6, 5, 3)
        self.twice = nn.Linear(5, 5, bias=False)
        self.unused = nn.Linear(5, 5)
        self.drop = nn.Dropout(0.5)

    def forward(self, x):
        x = self.up(self.wide(self.body(x)))
        x = self.line(x.flatten(2)).transpose(1, 2)
        return self.drop(self.twice(self.twice(x)))


@pytest.mark.parametrize(
    ("model", "shape"),
    [(lenet(num_classes=10, input_shape=(1, 28, 28)), (1, 28, 28)), (alexnet(channels=(4,) * 5), (3, 32, 32)),
     (Odd().eval(), (4, 11, 9)), (nn.Linear(7, 3), (7,))],
)  # fmt: skip
def test_flops_match_torchs_counter(model, shape):
    assert forward_flops(model, shape) == flops_by_torch(model, shape) > 0


def test_counting_leaves_the_network_as_it_was():
    model = Odd().train()
    model.wide.eval()
    before = {name: value.clone() for name, value in model.state_dict().items()}
    modes = [module.training for module in model.modules()]
    random_state = torch.get_rng_state()
    flops = layer_flops(model, (4, 11, 9))
    assert flops["unused"] == 0
    assert list(flops) == ["body.0", "wide", "up", "line", "twice", "unused"]
    assert [module.training for module in model.modules()] == modes
    assert all(torch.equal(value, before[name]) for name, value in model.state_dict().items())
    assert torch.equal(torch.get_rng_state(), random_state)
    assert not any(module._forward_hooks for module in model.modules())


def test_counting_a_shape_the_network_refuses():
    model = lenet().train()
    with pytest.raises(ConfigError, match=r"\(1, 32, 32\)"):
        layer_flops(model, (1, 32, 32))
    assert model.training
    assert not any(module._forward_hooks for module in model.modules())


def test_build_depends_on_the_seed_alone():
    torch.manual_seed(1)
    state = torch.get_rng_state()
    one = build("lenet", Shapes.of((1, 32, 32), 10), seed=5)
    assert torch.equal(torch.get_rng_state(), state)
    torch.manual_seed(2)
    same = build("lenet", Shapes.of((1, 32, 32), 10), seed=5)
    other = build("lenet", Shapes.of((1, 32, 32), 10), seed=6)
    for a, b, c in zip(one.parameters(), same.parameters(), other.parameters(), strict=True):
        assert torch.equal(a, b)
        assert not torch.equal(a, c)


def test_he_keeps_the_size_of_the_signal():
    """How far the outputs of samples lie apart: through AlexNet, torch's first weights shrink it a thousandfold."""
    x = torch.randn(8, 3, 32, 32, generator=torch.Generator().manual_seed(0))

    def quarter(init="torch"):
        return build(ModelConfig(name="alexnet", width=0.25, init=init), Shapes.of((3, 32, 32), 100), seed=3)

    def shrinks(model):
        first, last = (model[:i](x).std(0).mean() for i in (1, len(model)))
        return float(last.detach() / first.detach())

    assert shrinks(quarter()) < 0.01
    assert 0.1 < shrinks(quarter(init="he")) < 1.0
    assert torch.equal(quarter().fc3.weight, quarter(init="he").fc3.weight)
    assert torch.equal(quarter(init="he").conv1.weight, quarter(init="he").conv1.weight)
    with pytest.raises(ConfigError, match="init"):
        quarter(init="xavier")


def test_width_scales_every_hidden_width():
    half = build(ModelConfig(name="lenet", width=0.5), Shapes.of((3, 32, 32), 10), seed=0)
    assert (half.conv1.out_channels, half.conv2.out_channels) == (3, 8)
    assert (half.fc1.in_features, half.fc1.out_features, half.fc2.out_features) == (200, 60, 42)
    assert half.fc3.out_features == 10
    least = build(ModelConfig(name="alexnet", width=1e-6), Shapes.of((3, 8, 8), 10), seed=0)
    assert [p.shape[0] for n, p in least.named_parameters() if n.endswith("weight")] == [1] * 7 + [10]


@pytest.mark.parametrize(("factory", "side"), [(lenet, 16), (alexnet, 8)])
def test_smallest_input(factory, side):
    narrow = {"channels": (2,) * (2 if factory is lenet else 5), "hidden": (3, 3), "num_classes": 4}
    assert factory(input_shape=(2, side, side), **narrow)(torch.zeros(1, 2, side, side)).shape == (1, 4)
    with pytest.raises(ConfigError, match=rf"\(2, {side}, {side}\)"):
        factory(input_shape=(2, side, side - 1), **narrow)


def test_bad_arguments_are_refused():
    with pytest.raises(ConfigError, match="Did you mean 'lenet'"):
        build("lenet5", Shapes.of((3, 32, 32), 10), seed=0)
    for width in (0.0, -1.0, float("nan"), float("inf")):
        with pytest.raises(ConfigError, match="width"):
            build(ModelConfig(name="lenet", width=width), Shapes.of((3, 32, 32), 10), seed=0)
    with pytest.raises(ConfigError, match="num_classes is 0"):
        lenet(num_classes=0)
    with pytest.raises(ConfigError, match=r"channels is \(6,\); it must be 2"):
        lenet(channels=(6,))
    with pytest.raises(ConfigError, match=r"hidden is \(120, 0\)"):
        lenet(hidden=(120, 0))
    with pytest.raises(ConfigError, match=r"input_shape is \(64,\)"):
        alexnet(input_shape=(64,))
