import pytest
import torch
from torch import nn
from torch.utils.flop_counter import FlopCounterMode

from feddrop.config import Model
from feddrop.config.model import NORMS
from feddrop.errors import ConfigError
from feddrop.models import MODELS, Shapes, alexnet, build_model, count_parameters, lenet, resnet18
from feddrop.models.flops import forward_flops, layer_flops


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
    model = build_model("lenet", Shapes.of((1, 28, 20), 7), seed=3)
    p = dict(model.named_parameters())
    x = torch.randn(4, 1, 28, 20, generator=torch.Generator().manual_seed(0))
    f = nn.functional
    h = f.max_pool2d(f.conv2d(x, p["conv1.weight"], p["conv1.bias"]).tanh(), 2)
    h = f.max_pool2d(f.conv2d(h, p["conv2.weight"], p["conv2.bias"]).tanh(), 2).flatten(1)
    h = f.linear(h, p["fc1.weight"], p["fc1.bias"]).tanh()
    h = f.linear(h, p["fc2.weight"], p["fc2.bias"]).tanh()
    assert torch.equal(model(x), f.linear(h, p["fc3.weight"], p["fc3.bias"]))


def test_alexnet_computes_what_the_textbook_says():
    model = build_model(Model(name="alexnet", width=0.05), Shapes.of((3, 17, 24), 7), seed=3)
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
    one = build_model("lenet", Shapes.of((1, 32, 32), 10), seed=5)
    assert torch.equal(torch.get_rng_state(), state)
    torch.manual_seed(2)
    same = build_model("lenet", Shapes.of((1, 32, 32), 10), seed=5)
    other = build_model("lenet", Shapes.of((1, 32, 32), 10), seed=6)
    for a, b, c in zip(one.parameters(), same.parameters(), other.parameters(), strict=True):
        assert torch.equal(a, b)
        assert not torch.equal(a, c)


def test_he_keeps_the_size_of_the_signal():
    """How far the outputs of samples lie apart: through AlexNet, torch's first weights shrink it a thousandfold."""
    x = torch.randn(8, 3, 32, 32, generator=torch.Generator().manual_seed(0))

    def quarter(init="torch"):
        return build_model(Model(name="alexnet", width=0.25, init=init), Shapes.of((3, 32, 32), 100), seed=3)

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
    half = build_model(Model(name="lenet", width=0.5), Shapes.of((3, 32, 32), 10), seed=0)
    assert (half.conv1.out_channels, half.conv2.out_channels) == (3, 8)
    assert (half.fc1.in_features, half.fc1.out_features, half.fc2.out_features) == (200, 60, 42)
    assert half.fc3.out_features == 10
    least = build_model(Model(name="alexnet", width=1e-6), Shapes.of((3, 8, 8), 10), seed=0)
    assert [p.shape[0] for n, p in least.named_parameters() if n.endswith("weight")] == [1] * 7 + [10]


@pytest.mark.parametrize(("factory", "side"), [(lenet, 16), (alexnet, 8)])
def test_smallest_input(factory, side):
    narrow = {"channels": (2,) * (2 if factory is lenet else 5), "hidden": (3, 3), "num_classes": 4}
    assert factory(input_shape=(2, side, side), **narrow)(torch.zeros(1, 2, side, side)).shape == (1, 4)
    with pytest.raises(ConfigError, match=rf"\(1, {side}, {side}\)"):
        factory(input_shape=(2, side, side - 1), **narrow)


def test_bad_arguments_are_refused():
    with pytest.raises(ConfigError, match="Did you mean 'lenet'"):
        build_model("lenet5", Shapes.of((3, 32, 32), 10), seed=0)
    for width in (0.0, -1.0, float("nan"), float("inf")):
        with pytest.raises(ConfigError, match="width"):
            build_model(Model(name="lenet", width=width), Shapes.of((3, 32, 32), 10), seed=0)
    with pytest.raises(ConfigError, match="num_classes is 0"):
        lenet(num_classes=0)
    with pytest.raises(ConfigError, match=r"channels is \(6,\); it must be 2"):
        lenet(channels=(6,))
    with pytest.raises(ConfigError, match=r"hidden is \(120, 0\)"):
        lenet(hidden=(120, 0))
    with pytest.raises(ConfigError, match=r"input_shape is \(64,\)"):
        alexnet(input_shape=(64,))


# --- networks for other data

TEXT = Shapes(input_shapes=((12,),), target_shape=(12,), num_classes=7, vocabulary=9)
LABELLED_TEXT = Shapes(input_shapes=((12,),), num_classes=3, vocabulary=9)
TABLE = Shapes(input_shapes=((5,),), target_shape=(2,))
PICTURES = Shapes.of((3, 16, 16), 10)
FIT = {"lenet": PICTURES, "alexnet": PICTURES, "resnet18": PICTURES, "mlp": TABLE, "lstm": TEXT, "transformer": TEXT}


def batch(shapes: Shapes, size: int = 4) -> torch.Tensor:
    generator = torch.Generator().manual_seed(0)
    if shapes.vocabulary:
        return torch.randint(0, shapes.vocabulary, (size, *shapes.input_shapes[0]), generator=generator)
    return torch.randn(size, *shapes.input_shapes[0], generator=generator)


@pytest.mark.parametrize("name", MODELS)
def test_every_network_of_the_table(name):
    """Same weights from the same seed, right shapes, gradients everywhere, and a width that scales."""
    shapes = FIT[name]
    narrow = Model(name=name, width=0.125)
    one, same, other = (build_model(narrow, shapes, seed=seed) for seed in (5, 5, 6))
    for a, b in zip(one.parameters(), same.parameters(), strict=True):
        assert torch.equal(a, b)
    assert any(not torch.equal(a, c) for a, c in zip(one.parameters(), other.parameters(), strict=True))
    outputs = one(batch(shapes))
    assert outputs.shape == (
        4,
        shapes.num_classes or shapes.target_shape[0],
        *(shapes.target_shape if name in ("lstm", "transformer") else ()),
    )
    outputs.square().sum().backward()
    assert all(p.grad is not None and p.grad.isfinite().all() for p in one.parameters())
    assert count_parameters(build_model(name, shapes, seed=0)) > 4 * count_parameters(one)


def test_resnet18_computes_what_the_textbook_says():
    model = build_model(Model(name="resnet18", width=0.125), Shapes.of((3, 16, 12), 7), seed=3).eval()
    for index, buffer in enumerate(model.buffers()):
        if buffer.is_floating_point():
            buffer.copy_(torch.rand(buffer.shape, generator=torch.Generator().manual_seed(index)) + 0.5)
    p = dict(model.named_parameters()) | dict(model.named_buffers())
    f = nn.functional

    def norm(x, name):
        at = {kind: p[f"{name}.{kind}"] for kind in ("running_mean", "running_var", "weight", "bias")}
        mean, var, scale, shift = (value[None, :, None, None] for value in at.values())
        return (x - mean) / (var + 1e-5).sqrt() * scale + shift

    h = x = torch.randn(2, 3, 16, 12, generator=torch.Generator().manual_seed(0))
    h = f.conv2d(x, p["conv1.weight"], padding=1)
    h = norm(h, "norm1").relu()
    for stage in (1, 2, 3, 4):
        for block in (0, 1):
            at, stride = f"stage{stage}.{block}", 2 if stage > 1 and block == 0 else 1
            inner = norm(f.conv2d(h, p[f"{at}.conv1.weight"], stride=stride, padding=1), f"{at}.norm1").relu()
            inner = norm(f.conv2d(inner, p[f"{at}.conv2.weight"], padding=1), f"{at}.norm2")
            short = norm(f.conv2d(h, p[f"{at}.short.0.weight"], stride=2), f"{at}.short.1") if stride == 2 else h
            h = (inner + short).relu()
    h = f.linear(h.mean((2, 3)), p["fc.weight"], p["fc.bias"])
    assert torch.allclose(model(x), h, atol=1e-5)
    assert count_parameters(resnet18()) == 11_220_132  # torchvision's, with a 3 x 3 stem and 100 classes


@pytest.mark.parametrize("norm", NORMS)
def test_norms_of_resnet18(norm):
    model = build_model(Model(name="resnet18", width=0.125, norm=norm), PICTURES, seed=0)
    floats = [buffer for buffer in model.buffers() if buffer.is_floating_point()]
    assert bool(floats) == (norm == "batch")
    x = batch(PICTURES, 6)
    train, test, half = model.train()(x), model.eval()(x), model.eval()(x[:3])
    assert torch.equal(train, test) == (norm != "batch")  # static: the batch at hand counts in testing too
    assert torch.allclose(test[:3], half, atol=1e-5) == (norm != "static")


@pytest.mark.parametrize(("channels", "groups"), [(64, 16), (16, 4), (512, 32), (3, 1), (10, 2), (7, 1)])
def test_groups_divide_the_channels(channels, groups):
    layer = resnet18(channels=(channels,) * 4, norm="group").norm1
    assert (layer.num_groups, layer.num_channels) == (groups, channels)


def test_lstm_computes_what_the_textbook_says():
    model = build_model(Model(name="lstm", width=0.1, layers=2), TEXT, seed=3)
    p = dict(model.named_parameters())
    tokens = batch(TEXT)
    inputs = p["embedding.weight"][tokens]
    for layer in (0, 1):
        h = c = torch.zeros(4, model.lstm.hidden_size)
        states = []
        for step in range(12):
            gates = inputs[:, step] @ p[f"lstm.weight_ih_l{layer}"].T + p[f"lstm.bias_ih_l{layer}"]
            gates = gates + h @ p[f"lstm.weight_hh_l{layer}"].T + p[f"lstm.bias_hh_l{layer}"]
            i, f, g, o = gates.chunk(4, 1)
            c = f.sigmoid() * c + i.sigmoid() * g.tanh()
            h = o.sigmoid() * c.tanh()
            states.append(h)
        inputs = torch.stack(states, 1)
    expected = inputs @ p["fc.weight"].T + p["fc.bias"]
    assert torch.allclose(model(tokens), expected.transpose(1, 2), atol=1e-6)


def test_transformer_computes_what_the_textbook_says():
    """Against loops over heads and positions."""
    model = build_model(Model(name="transformer", width=0.125), TEXT, seed=3)
    p = dict(model.named_parameters())
    tokens = batch(TEXT, 2)

    def linear(x, name):
        return x @ p[f"{name}.weight"].T + p[f"{name}.bias"]

    def norm(x, name):
        x = (x - x.mean(-1, keepdim=True)) / (x.var(-1, keepdim=True, correction=0) + 1e-5).sqrt()
        return x * p[f"{name}.weight"] + p[f"{name}.bias"]

    for sample, found in zip(tokens, model(tokens), strict=True):
        x = p["embedding.weight"][sample] + p["position.weight"]
        for block in ("blocks.0", "blocks.1"):
            n = norm(x, f"{block}.norm1")
            q, k, v = (linear(n, f"{block}.attention.{part}") for part in "qkv")
            heads = []
            for head in range(4):
                own = slice(4 * head, 4 * head + 4)
                rows = []
                for at in range(12):
                    score = torch.stack([(q[at, own] @ k[past, own]) / 4**0.5 for past in range(at + 1)])
                    rows.append(score.softmax(0) @ v[: at + 1, own])
                heads.append(torch.stack(rows))
            x = x + linear(torch.cat(heads, 1), f"{block}.attention.o")
            n = linear(norm(x, f"{block}.norm2"), f"{block}.up")
            x = x + linear(n * (1 + torch.erf(n / 2**0.5)) / 2, f"{block}.down")
        assert torch.allclose(linear(norm(x, "norm"), "fc").T, found, atol=1e-5)


@pytest.mark.parametrize("name", ["lstm", "transformer"])
def test_no_network_for_tokens_looks_ahead(name):
    model = build_model(name, TEXT, seed=0)
    tokens = batch(TEXT, 1)
    changed = tokens.clone()
    changed[0, 6:] = (changed[0, 6:] + 1) % 9
    before, after = model(tokens), model(changed)
    assert torch.allclose(before[..., :6], after[..., :6], atol=1e-6)
    assert not torch.allclose(before[..., 6], after[..., 6], atol=1e-4)
    last = build_model(name, LABELLED_TEXT, seed=0)
    assert last(tokens).shape == (1, 3)


def test_heads_can_be_left_out():
    """With narrower layers the attention has fewer heads of the same size, and the rest of the network goes on."""
    model = build_model("transformer", TEXT, seed=0)
    attention = model.blocks[0].attention
    kept = torch.cat([torch.arange(32), torch.arange(64, 128)])  # heads 0, 2 and 3
    x = torch.randn(2, 12, 128)
    silent = attention.v.weight.detach().clone(), attention.v.bias.detach().clone()
    with torch.no_grad():
        attention.v.weight[32:64], attention.v.bias[32:64] = 0, 0
        expected = attention(x)
        attention.v.weight.copy_(silent[0])
        for layer in (attention.q, attention.k, attention.v):
            layer.weight, layer.bias = nn.Parameter(layer.weight[kept]), nn.Parameter(layer.bias[kept])
        attention.o.weight = nn.Parameter(attention.o.weight[:, kept])
    assert torch.allclose(attention(x), expected, atol=1e-5)


@pytest.mark.parametrize(
    ("config", "data", "message"),
    [
        ("lenet", TEXT, "lenet takes images, but a sample is tokens. Use lstm or transformer"),
        ("lstm", PICTURES, r"lstm takes tokens, but a sample is numbers of shape \(3, 16, 16\). Use lenet"),
        ("mlp", Shapes(input_shapes=((5,), (5,)), num_classes=2), "takes one input, but a sample has 2.*model=net"),
        ("mlp", Shapes(input_shapes=((5,),), target_shape=(2, 2)), r"numbers of shape \(2, 2\)"),
        ("mlp", Shapes(input_shapes=((5,),)), r"numbers of shape \(\)"),
        (
            "lenet",
            Shapes(input_shapes=((3, 32, 32),), target_shape=(32, 32), num_classes=3),
            r"a class for each of \(32, 32\)",
        ),
        ("resnet18", Shapes.of((3, 7, 8), 10), r"at least \(1, 8, 8\)"),
        ("alexnet", TABLE, r"takes images, but a sample is numbers of shape \(5,\). Use mlp"),
        (Model(name="resnet18", norm="static"), Shapes.of((3, 15, 16), 10), r"at least \(1, 16, 16\)"),
    ],
)
def test_a_network_for_other_data_is_refused(config, data, message):
    with pytest.raises(ConfigError, match=message):
        build_model(config, data, seed=0)


@pytest.mark.parametrize(
    ("settings", "message"),
    [
        ({"norm": "group"}, "model.norm is 'group', which has no effect with model.name = 'lenet'"),
        ({"name": "lstm", "init": "he"}, "model.init is 'he', which has no effect with model.name = 'lstm'"),
        ({"layers": 3}, "model.layers is 3, which has no effect with model.name = 'lenet'"),
        ({"name": "mlp", "layers": -1}, "model.layers is -1"),
        ({"name": "mlp", "layers": 10**9}, "model.layers is 1000000000"),
        ({"name": "resnet"}, "Did you mean 'resnet18'"),
        ({"norm": "layer"}, "model.norm is 'layer'"),
    ],
)
def test_settings_that_a_network_lacks_are_refused(settings, message):
    with pytest.raises(ConfigError, match=message):
        Model(**settings)


@pytest.mark.parametrize("name", MODELS)
def test_a_width_beyond_memory_is_an_error_that_names_the_limit(name):
    with pytest.raises(ConfigError, match=r"at most 2,147,483,648 are allowed\. Lower model\.width"):
        build_model(Model(name=name, width=30_000.0), FIT[name], seed=0)
