"""FedDST, federated dynamic sparse training: one sparse network for all devices, whose mask follows what they learn.

The global mask covers every weight, output layer included; biases and norms are kept whole, and kept weights are not
rescaled. Devices train the masked network. Every few rounds each of them moves its mask: it prunes its smallest weights
and grows as many where its gradient is largest; the server then prunes the union of their masks back to the sparsity.
``docs/feddst.md`` tells what was chosen where the paper is silent. With sparsity 0 this is federated averaging.
"""

from __future__ import annotations

import math
from collections.abc import Iterable, Iterator, Mapping
from dataclasses import dataclass

import numpy as np
import numpy.typing as npt
import torch
from torch import Tensor, nn

from feddrop import params
from feddrop.aggregation import HoldersMean
from feddrop.errors import ConfigError, FrameError, one_of
from feddrop.method import Assignment, Batches, Method, State, Update
from feddrop.params import Params
from feddrop.seeds import derive
from feddrop.subnets.frames import Masks
from feddrop.subnets.masks import check_rate, kept_count
from feddrop.subnets.piece import Piece, Subnet, from_device_shape, whole
from feddrop.training import Loss, TrainConfig, train

LAYER_SPARSITIES = ("erk", "er", "uniform")

Mask = npt.NDArray[np.bool_]
Floats = npt.NDArray[np.float32]


@dataclass(frozen=True, slots=True, kw_only=True)
class FeddstConfig:
    """FedDST's own settings.

    Attributes:
        layer_sparsity: how the sparsity is spread over layers: ``"erk"`` and ``"er"`` (Erdős-Rényi, with and without
            the kernel) leave small layers denser than large ones; ``"uniform"`` treats all alike.
        alpha: share of a layer's active weights that a device moves in the first readjustment.
        readjust_every: rounds from one readjustment to the next, ΔR.
        readjust_until: share of the rounds after which the mask stays.
        as_released: do as the published code does, not the published algorithm: ``alpha`` does not decay, growth may
            pick (and so zero) weights that are active, a softmax stands before the loss, and ``"erk"`` and ``"er"``
            scale sparsities in place of densities.
    """

    layer_sparsity: str = "erk"
    alpha: float = 0.01
    readjust_every: int = 10
    readjust_until: float = 0.5
    as_released: bool = False

    def __post_init__(self) -> None:
        one_of("feddst.layer_sparsity", self.layer_sparsity, LAYER_SPARSITIES)
        for name in ("alpha", "readjust_until"):
            if not 0.0 <= getattr(self, name) <= 1.0:
                raise ConfigError(f"feddst.{name} is {getattr(self, name)!r}; it must be a number in [0, 1].")
        if self.readjust_every < 1:
            raise ConfigError(f"feddst.readjust_every is {self.readjust_every!r}; it must be at least 1.")

    def readjusts(self, round_: int, rounds: int) -> bool:
        """Return whether devices move their masks in a round."""
        return round_ % self.readjust_every == 0 and round_ <= self._last(rounds)

    def alpha_at(self, round_: int, rounds: int) -> float:
        """Return the share of active weights that is moved: α/2 · (1 + cos(π(t-1)/R_end))."""
        if self.as_released:
            return self.alpha
        return self.alpha / 2.0 * (1.0 + math.cos(math.pi * (round_ - 1) / self._last(rounds)))

    def _last(self, rounds: int) -> int:
        return math.floor(self.readjust_until * rounds + 1e-9)


def feddst(
    model: nn.Module,
    input_shape: tuple[int, ...],  # noqa: ARG001 -- every method is built alike
    *,
    settings: FeddstConfig,
    train_config: TrainConfig,
    rounds: int,
    sparsity: float,
    loss: Loss = nn.functional.cross_entropy,
) -> Method:
    """Build FedDST for a network.

    Args:
        model: the network; used as a template, and as the place where devices train.
        input_shape: shape of one sample; not needed here.
        settings: FedDST's own settings.
        train_config: local SGD.
        rounds: rounds in all.
        sparsity: share of the weights that is zero, S; every device must be given this rate.
        loss: ``(outputs, targets) -> mean loss``.
    """
    check_rate(sparsity, "sparsity")
    shapes = params.shapes(model)
    weights = {name: tuple(p.shape) for name, p in model.named_parameters() if p.ndim >= 2}
    sparsities = layer_sparsities(weights, sparsity, settings.layer_sparsity, as_released=settings.as_released)
    kept = {name: kept_count(math.prod(shape), 1.0 - sparsities[name]) for name, shape in weights.items()}

    def objective(outputs: Tensor, targets: Tensor) -> Tensor:
        return loss(outputs.softmax(1) if settings.as_released else outputs, targets)

    def masks_in(state: State) -> Masks:
        return {name: state[f"mask/{name}"].numpy().astype(bool) for name in weights}

    def init(start: Params) -> State:
        masks = {name: largest(np.abs(start[name].numpy()), kept[name]) for name in weights}
        return _state(masks, informed=[])

    def plan(state: State, _: Params, round_: int, rates: Mapping[int, float], seed: int) -> list[Assignment]:
        masks, informed = masks_in(state), set(state["informed"].tolist())
        for device, rate in rates.items():
            if rate != sparsity:
                raise ConfigError(
                    f"rate of device {device} is {rate}, but FedDST has one mask for all devices, of sparsity "
                    f"{sparsity}. Give all devices the same rate."
                )
        return [
            Assignment(
                round=round_,
                device=device,
                seed=derive(seed, "device", round_, device),
                rate=rate,
                masks=masks,
                remembered=device in informed,
                readjusts=settings.readjusts(round_, rounds),
            )
            for device, rate in sorted(rates.items())
        ]

    def pieces_of(masks: Masks) -> Subnet:
        return {name: _piece(masks[name]) if name in weights else whole(shape) for name, shape in shapes.items()}

    def cut(assignment: Assignment) -> Subnet:
        if assignment.masks is None:
            raise FrameError(f"device {assignment.device} was sent no mask, and remembers none.")
        return pieces_of(assignment.masks)

    def local(pieces: Subnet, values: Params, assignment: Assignment, batches: Batches) -> Update:
        params.load_into(model, values)
        seen = _Remembering(batches)
        lr = train_config.lr_at(assignment.round, rounds)
        mean_loss = train(model, pieces, seen, train_config, lr=lr, loss=objective)
        trained = params.from_model(model)  # before the gradient's forward pass, which moves norm statistics
        masks: Masks | None = None
        if assignment.masks is not None and settings.readjusts(assignment.round, rounds):
            alpha = settings.alpha_at(assignment.round, rounds)
            masks = moved_masks(trained, assignment.masks, _gradients(model, seen.last, objective), alpha)
            pieces = pieces_of(masks)
        return Update(
            device=assignment.device,
            samples=batches.samples,
            loss=mean_loss,
            subnet=pieces,
            values={name: from_device_shape(trained[name] - values[name], piece) for name, piece in pieces.items()},
            masks=masks,
        )

    def moved_masks(trained: Params, masks: Masks, gradients: Params, alpha: float) -> Masks:
        """Readjust every layer that is not dense; ``trained`` gets the values that go with the new masks."""
        moved = dict(masks)
        for name, size in kept.items():
            if size == masks[name].size:
                continue
            survivors = kept_count(masks[name].size, (1.0 - sparsities[name]) * (1.0 - alpha))
            w, g = trained[name].numpy(), gradients[name].numpy()
            if not (np.isfinite(w).all() and np.isfinite(g).all()):
                raise FrameError(f"{name} holds a weight or gradient that is not finite. Lower the learning rate.")
            moved[name], w[...] = readjust(
                w, masks[name], g, survivors=survivors, kept=size, anywhere=settings.as_released
            )
        return moved

    def merge(state: State, before: Params, updates: Iterable[Update]) -> tuple[Params, State]:
        masks, informed = masks_in(state), set(state["informed"].tolist())
        before = _masked(before, masks)
        mean = HoldersMean(before)
        readjusted = False
        for update in updates:
            for name, piece in update.subnet.items():
                mean.add(name, update.values[name], piece, update.samples)
            readjusted |= update.masks is not None
            informed.add(update.device)  # it answered, so it has the mask that it was sent
        after = mean.added_to(before)
        if readjusted:
            new = {name: prune(after[name].numpy(), mean.held[name].numpy(), kept[name]) for name in weights}
            if any((new[name] != masks[name]).any() for name in weights):
                masks, informed = new, set()
        return _masked(after, masks), _state(masks, informed)

    return Method(init=init, plan=plan, cut=cut, local=local, merge=merge)


def layer_sparsities(
    shapes: Mapping[str, tuple[int, ...]], sparsity: float, how: str, *, as_released: bool = False
) -> dict[str, float]:
    """Spread a sparsity over layers, so that its mean over all weights is what was asked for.

    ``"erk"``: the density 1 - s_l is proportional to (n_in + n_out + kernel sides) / (n_in · n_out · kernel size);
    ``"er"`` leaves the kernel out of both. A layer whose density would exceed 1 is dense; the others make up for it.

    Args:
        shapes: shapes of the weights, ``[out, in, *kernel]``.
        sparsity: mean share of zeros, S.
        how: ``"erk"``, ``"er"`` or ``"uniform"``.
        as_released: scale 1 - (that ratio) to the mean S in place of the ratio itself, so layers come out nearly alike.
    """
    if how == "uniform":
        return dict.fromkeys(shapes, sparsity)
    sizes = {name: math.prod(shape) for name, shape in shapes.items()}
    ratios = {}
    for name, shape in shapes.items():
        sides = shape if how == "erk" else shape[:2]
        ratios[name] = sum(sides) / math.prod(sides)
    if as_released:
        raw = {name: max(0.0, 1.0 - ratio) for name, ratio in ratios.items()}
        factor = sparsity * sum(sizes.values()) / max(1e-9, sum(raw[name] * sizes[name] for name in raw))
        return {name: min(1.0, factor * value) for name, value in raw.items()}
    densities = dict.fromkeys(shapes, 1.0)
    left = dict(sizes)
    while left:
        budget = (1.0 - sparsity) * sum(sizes.values()) - sum(sizes[name] for name in sizes if name not in left)
        factor = budget / sum(ratios[name] * size for name, size in left.items())
        full = [name for name in left if factor * ratios[name] > 1.0]
        if not full:
            densities |= {name: factor * ratios[name] for name in left}
            break
        for name in full:
            del left[name]
    return {name: 1.0 - density for name, density in densities.items()}


def largest(scores: Floats, count: int, then: Floats | None = None) -> Mask:
    """Mark the ``count`` largest scores; ties go to the larger ``then``, and after that to the lower position."""
    flat = scores.reshape(-1)
    if count <= 0 or count >= flat.size:
        return np.full(scores.shape, count > 0)
    threshold = np.partition(flat, flat.size - count)[flat.size - count]
    chosen: Mask = flat > threshold
    tied, room = np.flatnonzero(flat == threshold), count - int(chosen.sum())
    if then is not None:
        tied = tied[largest(then.reshape(-1)[tied], room)]
    chosen[tied[:room]] = True
    return chosen.reshape(scores.shape)


def readjust(
    weight: Floats, mask: Mask, gradient: Floats, *, survivors: int, kept: int, anywhere: bool = False
) -> tuple[Mask, Floats]:
    """Move a layer's mask, as a device does: prune the smallest weights, grow where the gradient is largest.

    Args:
        weight: trained weights.
        mask: where they are active.
        gradient: of the last minibatch, over all weights.
        survivors: active weights left by pruning.
        kept: active weights after growth.
        anywhere: whether growth may pick weights that survived, which are then zeroed (the published code).

    Returns:
        The new mask, and the weights with zeros where they are grown or not active.
    """
    stays = largest(np.where(mask, np.abs(weight), np.float32(-1)), survivors) & mask
    slope = np.abs(gradient) if anywhere else np.where(stays, np.float32(-1), np.abs(gradient))
    grown = largest(slope, kept - int(stays.sum()))
    return stays | grown, np.where(stays & ~grown, weight, np.float32(0))


def prune(weight: Floats, held: Floats, kept: int) -> Mask:
    """Prune the union of the devices' masks by magnitude, as the server does.

    Weights that were only grown are all zero: among them, those that most samples voted for come first.

    Args:
        weight: averaged weights.
        held: samples of the devices whose mask holds a weight.
        kept: active weights left.
    """
    union = held > 0
    return largest(np.where(union, np.abs(weight), np.float32(-1)), kept, held) & union


class _Remembering:
    """Minibatches, of which the last one stays at hand."""

    def __init__(self, batches: Batches) -> None:
        self._batches, self.samples = batches, batches.samples
        self.last: tuple[Tensor, Tensor]

    def __iter__(self) -> Iterator[tuple[Tensor, Tensor]]:
        for batch in self._batches:
            self.last = batch
            yield batch


def _gradients(model: nn.Module, batch: tuple[Tensor, Tensor], loss: Loss) -> Params:
    """Return the gradient of a minibatch's loss in every weight, active or not."""
    named = {name: p for name, p in model.named_parameters() if p.ndim >= 2}
    learned = [p for p in named.values() if p.requires_grad]
    found = iter(torch.autograd.grad(loss(model(batch[0]), batch[1]), learned, allow_unused=True))
    gradients = {name: next(found) if p.requires_grad else None for name, p in named.items()}
    return {name: torch.zeros(named[name].shape) if g is None else g.cpu() for name, g in gradients.items()}


def _piece(mask: Mask) -> Piece:
    index = None if mask.all() else np.flatnonzero(mask)
    return Piece(shape=mask.shape, index=index, sub_shape=mask.shape)


def _masked(whole_: Params, masks: Masks) -> Params:
    zero = torch.zeros(())
    return {
        name: torch.where(torch.from_numpy(masks[name]), w, zero) if name in masks else w for name, w in whole_.items()
    }


def _state(masks: Masks, informed: Iterable[int]) -> State:
    """What is remembered: the mask, and the devices that know it."""
    state = {f"mask/{name}": torch.from_numpy(mask.astype(np.uint8)) for name, mask in masks.items()}
    return state | {"informed": torch.tensor(sorted(informed), dtype=torch.int64)}
