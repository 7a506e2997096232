"""A run as people analyse it: typed records, tables, the trained network."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any

from feddrop.errors import RunError, clean
from feddrop.storage import tables
from feddrop.storage.files import is_folder
from feddrop.storage.folder import RunFolder
from feddrop.storage.records import RoundRecord

if TYPE_CHECKING:
    from pandas import DataFrame
    from torch import nn

    from feddrop.config import RunConfig


@dataclass(frozen=True, slots=True, kw_only=True, repr=False)
class LoadedRun:
    """A run folder that was read, finished or under way.

    Attributes:
        folder: where it is.
        settings: its configuration as it is written, section by section; see :attr:`config`.
        about: facts about the run and its machine (``run.json``); empty if the folder has none.
        rounds: a record a round, rising.
    """

    folder: Path
    settings: Mapping[str, Any]
    about: Mapping[str, Any]
    rounds: tuple[RoundRecord, ...]

    def __repr__(self) -> str:
        return f"LoadedRun({str(self.folder)!r}, {len(self.rounds)} rounds)"

    @property
    def name(self) -> str:
        """The name of the folder."""
        return self.folder.resolve().name

    @property
    def config(self) -> RunConfig:
        """The configuration, read and checked."""
        return RunFolder(self.folder).config()

    def to_pandas(self, *, devices: bool = False) -> DataFrame:
        """Return the rounds as a pandas table.

        Args:
            devices: a row a device and round, instead of a row a round.
        """
        return tables.to_pandas(self.rounds, devices=devices)

    def model(self, model: nn.Module | Callable[[int], nn.Module] | None = None, *, best: bool = False) -> nn.Module:
        """Return the trained network; see :func:`load_model`."""
        return load_model(self.folder, model, best=best)


def load_run(folder: str | Path) -> LoadedRun:
    """Read a run folder.

    A last line of metrics that was cut off in the middle (the run was killed, or is still writing) is left out.

    Args:
        folder: what ``feddrop run --out DIR`` or ``feddrop.run(config, out)`` wrote.

    Raises:
        RunError: something is missing or malformed; the message says what, where, and what to do.

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
        raise RunError(f"{clean(run.path)} is not a folder. Give the folder that `feddrop run --out DIR` wrote.")
    return LoadedRun(folder=run.path, settings=run.settings(), about=run.about(), rounds=tuple(run.records()))


def load_model(
    folder: str | Path, model: nn.Module | Callable[[int], nn.Module] | None = None, *, best: bool = False
) -> nn.Module:
    """Return the network that a run trained.

    Args:
        folder: the run folder.
        model: the network, or a function of the seed that makes it, where it was your own; it is not changed.
        best: the network of the round with the best test result, instead of the last round's.

    Raises:
        RunError: no checkpoint is whole, or the network is another one.

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
    config, about = run.config(), run.about()
    values = run.checkpoint(best=best).groups.get("params", {})
    if model is not None:
        network = models.copy_model(model, config.seed)
    elif "network" in (about.get("custom") or []):
        raise RunError(
            f"{clean(run.path)} trained a network of your own ({clean(about.get('network'), 60)}). Give it: "
            "feddrop.load_model(folder, model)."
        )
    else:
        network = _build(config, about, run.path)
    if {name: tuple(value.shape) for name, value in values.items()} != parameters.shapes(network):
        raise RunError(f"the checkpoint in {clean(run.path)} belongs to another network. Give the one it trained.")
    parameters.load_into(network, dict(values))
    return network


def export(folder: str | Path, path: str | Path, *, devices: bool = False) -> Path:
    """Write the rounds of a run as a table for other programs.

    Args:
        folder: the run folder.
        path: where; its ending says how: ``.parquet`` or ``.csv``.
        devices: a row a device and round, instead of a row a round.

    Returns:
        The path.
    """
    return tables.write(load_run(folder).rounds, Path(path), devices=devices)


def _build(config: RunConfig, about: Mapping[str, Any], folder: Path) -> nn.Module:
    """Build a network of the package's own again."""
    from feddrop import models

    try:
        shapes = about["shapes"]
        known = models.Shapes(
            input_shapes=tuple(tuple(map(int, shape)) for shape in shapes["input_shapes"]),
            target_shape=tuple(map(int, shapes["target_shape"])),
            num_classes=int(shapes["num_classes"]),
            vocabulary=int(shapes["vocabulary"]),
        )
    except (KeyError, TypeError, ValueError):
        raise RunError(f"run.json of {clean(folder)} does not tell its data's shapes. Give the network.") from None
    return models.build_model(config.model, known, config.seed)
