"""Load a finished or running run for analysis: records, tables, the trained network."""

from __future__ import annotations

import logging
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any, NamedTuple

from feddrop.errors import RunError, clean
from feddrop.storage import tables
from feddrop.storage.devices import DeviceTable
from feddrop.storage.files import is_folder
from feddrop.storage.folder import RunFolder
from feddrop.storage.records import RoundRecord
from feddrop.storage.sealed import DamagedError

if TYPE_CHECKING:
    from pandas import DataFrame
    from torch import Tensor, nn

    from feddrop.config import RunConfig
    from feddrop.data import Preprocessing
    from feddrop.methods.method import Method
    from feddrop.storage.checkpoints import Checkpoint


log = logging.getLogger("feddrop")

_NORMALISED = (
    "the loaded network takes normalised inputs, as in training. For raw inputs, load it with with_preprocessing=True; "
    "with_preprocessing=False leaves out this line."
)


@dataclass(frozen=True, slots=True, kw_only=True, repr=False)
class LoadedRun:
    """The content of a run folder, as :func:`load_run` read it; the run may still be in progress.

    Attributes:
        folder: the run folder.
        settings: the configuration as written in ``config.toml``, section by section. :attr:`config` is the same,
            validated.
        about: facts about the run and its machine, from ``run.json``; empty if the folder has no such file.
        rounds: one record per finished round, in ascending order.
        devices: the table of all devices in all rounds, read when it is used.
    """

    folder: Path
    settings: Mapping[str, Any]
    about: Mapping[str, Any]
    rounds: tuple[RoundRecord, ...]
    devices: DeviceTable

    def __repr__(self) -> str:
        return f"LoadedRun({str(self.folder)!r}, {len(self.rounds)} rounds)"

    @property
    def name(self) -> str:
        """The name of the folder."""
        return self.folder.resolve().name

    @property
    def config(self) -> RunConfig:
        """The configuration, validated."""
        return RunFolder(self.folder).config()

    def to_pandas(self, *, devices: bool = False) -> DataFrame:
        """Return the rounds as a pandas table; with ``devices``, one row per device per round, not one per round."""
        return tables.to_pandas(self.devices if devices else self.rounds)

    def model(
        self,
        model: nn.Module | Callable[[int], nn.Module] | None = None,
        *,
        best: bool = False,
        with_preprocessing: bool | None = None,
        strict: bool = False,
        rate: float | None = None,
        draw: int = 0,
        method: Callable[[Any], Any] | None = None,
        verify: bool = True,
    ) -> nn.Module:
        """Return the trained network or a sub-model in evaluation mode, as :func:`load_model` does."""
        return load_model(
            self.folder,
            model,
            best=best,
            with_preprocessing=with_preprocessing,
            strict=strict,
            rate=rate,
            draw=draw,
            method=method,
            verify=verify,
        )


def load_run(folder: str | Path, *, verify: bool = True) -> LoadedRun:
    """Read a run folder and verify that it holds what was written.

    A last round that is not saved in full (the run was killed, or is still writing) is skipped.

    Args:
        folder: the folder that ``feddrop run --out DIR`` or ``feddrop.run(config, out)`` wrote.
        verify: whether changed or missing lines of metrics and files of devices are a RunError.

    Example:
        >>> import feddrop, tempfile
        >>> config = feddrop.RunConfig.from_toml("rounds = 1", ["data.train_limit=60", "data.devices=2"])
        >>> folder = tempfile.mkdtemp()
        >>> _ = feddrop.run(config, folder)
        >>> [len(record.devices) for record in feddrop.load_run(folder).rounds]
        [2]
    """
    run = RunFolder(folder)
    if not is_folder(run.path):
        raise RunError(f"{clean(run.path)} does not exist. Give a run folder, as written by `feddrop run --out DIR`.")
    about, settings = run.about(), run.settings()
    rounds, devices = run.saved(verify=verify)
    return LoadedRun(folder=run.path, settings=settings, about=about, rounds=tuple(rounds), devices=devices)


def load_model(
    folder: str | Path,
    model: nn.Module | Callable[[int], nn.Module] | None = None,
    *,
    best: bool = False,
    with_preprocessing: bool | None = None,
    strict: bool = False,
    rate: float | None = None,
    draw: int = 0,
    method: Callable[[Any], Any] | None = None,
    verify: bool = True,
) -> nn.Module:
    """Return the network that a run trained, or a device's sub-model, in evaluation mode; ``train()`` trains it on.

    Args:
        folder: the run folder.
        model: for a run with a custom network, that network or a function from a seed to it. It is not modified.
        best: return the network of the round with the best test result, not of the last round.
        with_preprocessing: return a network that takes raw inputs, as they were given to :func:`feddrop.from_arrays`:
            it transposes, resizes and normalises them as the run did. By default, the network takes normalised inputs,
            and a line in the log says so if the run normalised them; False leaves that line out.
        strict: raise if the checkpoint of the last round is damaged or missing; by default, a FeddropWarning names it
            and the earlier round that is used.
        rate: dropout rate γ of a device: return its sub-model. At the unit level it is smaller, at
            the weight level it has zeros; FjORD gives its widest width for the rate, FedDST and PruneFL their one
            sparse network, and FedAvg the full one.
        draw: which random subnet, for methods that draw them.
        method: for a sub-model of a run with a custom method, that method.
        verify: whether a changed ``run.json``, and changed or missing lines of metrics and files of devices, are a
            RunError.

    Raises:
        RunError: no checkpoint is intact, it belongs to another network, or another file of the run was changed.

    Example:
        >>> import feddrop
        >>> config = feddrop.RunConfig.from_toml("data = { devices = 2, train_limit = 60 }", ["rounds=1"])
        >>> _ = feddrop.run(config, "runs/one")
        >>> feddrop.load_model("runs/one").conv1
        Conv2d(1, 6, kernel_size=(5, 5), stride=(1, 1))
    """
    from feddrop import models
    from feddrop.subnets import parameters

    run = RunFolder(folder)
    config, about = verified(run) if verify else (run.config(), run.about())
    checkpoint = run.checkpoint(best=best, strict=strict)
    values = checkpoint.groups.get("params", {})
    network = _build_network(config, about, run.path) if model is None else models.copy_model(model, config.seed)
    if {name: tuple(value.shape) for name, value in values.items()} != parameters.shapes(network):
        raise RunError(f"the checkpoint in {clean(run.path)} belongs to another network. Pass the one it trained.")
    parameters.load_into(network, dict(values))
    if rate is not None:
        network = _sub_model(config, about, network, checkpoint, rate, draw, method)
    if with_preprocessing:
        network = models.Preprocessed(network, _preprocessing(about, run.path))
    elif with_preprocessing is None and _normalised(about):
        log.warning("%s", _NORMALISED)
    return network.eval()


def verified(run: RunFolder) -> tuple[RunConfig, dict[str, Any]]:
    """Return the configuration and ``run.json`` of a run; RunError if these, its metrics or devices were changed."""
    config, about = run.config(), run.about()
    run.saved()
    return config, about


def _sub_model(
    config: RunConfig,
    about: Mapping[str, Any],
    network: nn.Module,
    checkpoint: Checkpoint,
    rate: float,
    draw: int,
    method: Callable[[Any], Any] | None,
) -> nn.Module:
    """Return the sub-model of a device at a given rate."""
    from feddrop.methods.sizes import sub_model
    from feddrop.subnets import parameters

    made = _method(config, about, network, method)
    groups = checkpoint.groups
    params = {name: groups["params"][name] for name in parameters.shapes(network)}  # in the network's order
    return sub_model(made, dict(groups.get("state", {})), params, checkpoint.round, rate, config.seed, draw)


def _method(
    config: RunConfig, about: Mapping[str, Any], network: nn.Module, method: Callable[[Any], Any] | None = None
) -> Method:
    """Build the method of a run without its data."""
    import torch

    from feddrop.config.methods import CustomMethod
    from feddrop.methods import build_method
    from feddrop.methods.method import Setup

    shapes, given = about.get("shapes") or {}, config.given_rate
    kind = torch.int64 if shapes.get("vocabulary") else torch.float32
    setup = Setup(
        model=network,
        example=tuple(torch.zeros(1, *shape, dtype=kind) for shape in shapes.get("input_shapes", ())),
        rounds=config.rounds,
        train=config.train,
        rates=None if isinstance(given, str) else given if isinstance(given, tuple) else (given,),
        server=config.server,
        seed=config.seed,
    )
    if method is None and isinstance(config.method, CustomMethod):
        name = clean(config.method.factory, 60)
        raise RunError(
            f"the sub-models of this run follow from its custom method, {name}, which is not imported when a run is "
            "read. Import it yourself and pass it: load_model(folder, rate=..., method=...)."
        )
    made: Method = method(setup) if method else build_method(config.method, setup)
    return made


class Rebuilt(NamedTuple):
    """What the server of a run held after a round: its method with its state, and the full network."""

    config: RunConfig
    method: Method
    state: dict[str, Tensor]
    params: dict[str, Tensor]


def rebuilt(folder: str | Path, round_: int) -> Rebuilt:
    """Return what the server held after a round, without data; for round 0 and methods without state, always.

    A method whose plan depends on its state or on the network needs the checkpoint of that round; those of the last two
    rounds and of the best one are kept.

    Raises:
        RunError: the run has a custom network or method, or the round's checkpoint is not kept.
    """
    from feddrop.config import FedAvg, FedDrop, FedRolex, FjORD, HeteroFL
    from feddrop.storage.checkpoints import read_checkpoint
    from feddrop.subnets import parameters

    run = RunFolder(folder)
    config, about = verified(run)
    if custom := [name for name in about.get("custom") or [] if name in ("network", "method")]:
        raise RunError(f"this run has a custom {' and '.join(custom)}, which is not imported when a run is read.")
    network = _build_network(config, about, run.path)
    params, method = parameters.from_model(network), _method(config, about, network)
    state = method.init(params)
    chosen = config.method
    by_seed = isinstance(chosen, FedAvg | FedRolex | FjORD | HeteroFL) or (
        isinstance(chosen, FedDrop) and chosen.draw == "uniform"
    )
    if round_ and (state or not by_seed):
        try:
            groups = read_checkpoint(run.path / "checkpoints", round_).groups
        except DamagedError:
            raise RunError(
                f"the subnets of round {round_ + 1} follow from the state after round {round_}, whose checkpoint is "
                "not kept. Choose the last round."
            ) from None
        params = {name: groups["params"][name] for name in params}
        state = dict(groups.get("state", {}))
    return Rebuilt(config, method, state, params)


def export(folder: str | Path, path: str | Path, *, devices: bool = False) -> Path:
    """Write the rounds of a run as a table, and return its path.

    Args:
        folder: the run folder.
        path: the file; its extension, ``.parquet`` or ``.csv``, selects the format.
        devices: write one row per device per round, not one per round.
    """
    run = load_run(folder)
    return tables.write(run.devices if devices else run.rounds, Path(path))


def _preprocessing(about: Mapping[str, Any], folder: Path) -> list[Preprocessing | None]:
    """Return what was done to every input of the run's data."""
    from feddrop.data import Preprocessing

    try:
        return [entry and Preprocessing.from_json(entry) for entry in about["preprocessing"]]
    except (KeyError, TypeError, ValueError):
        raise RunError(f"run.json of {clean(folder)} lacks the preprocessing of its data. Load it without.") from None


def _normalised(about: Mapping[str, Any]) -> bool:
    """Return whether an input of the run's data was normalised; nothing in ``run.json`` is trusted."""
    steps = about.get("preprocessing")
    return isinstance(steps, list) and any(isinstance(step, dict) and step.get("mean") for step in steps)


def _build_network(config: RunConfig, about: Mapping[str, Any], folder: Path) -> nn.Module:
    """Build the network that the configuration names, for the data shapes in ``run.json``; not a custom one."""
    from feddrop import models

    if "network" in (about.get("custom") or []):
        name = clean(about.get("network"), 60)
        raise RunError(f"{clean(folder)} trained a custom network ({name}). Pass it: load_model(folder, model).")
    try:
        shapes = about["shapes"]
        known = models.Shapes(
            input_shapes=tuple(tuple(map(int, shape)) for shape in shapes["input_shapes"]),
            target_shape=tuple(map(int, shapes["target_shape"])),
            num_classes=int(shapes["num_classes"]),
            vocabulary=int(shapes["vocabulary"]),
        )
    except (KeyError, TypeError, ValueError):
        raise RunError(f"run.json of {clean(folder)} lacks the shapes of its data. Pass the network.") from None
    return models.build_model(config.model, known, config.seed)
