"""What can be known before the data are read: names, files and the number of devices; ``preflight.py`` calls it."""

from __future__ import annotations

import os
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING

from feddrop.config import CustomMethod, RunConfig
from feddrop.errors import named_object
from feddrop.simulation.custom import CustomObjects
from feddrop.simulation.participation import Roster
from feddrop.simulation.schemes import PlannedBy, read_rates

if TYPE_CHECKING:
    from feddrop.simulation.preparation import Prepared


@dataclass(frozen=True, slots=True)
class Known:
    """A run whose number of devices is known; as in :class:`~feddrop.simulation.preparation.Prepared`."""

    config: RunConfig
    custom: CustomObjects
    samples: Sequence[object]
    roster: Roster


def known_devices(config: RunConfig, custom: CustomObjects) -> Known | None:
    """Return what is known of a run if its number of devices is: unless the owners of the samples decide it."""
    given = custom.samples if custom.samples is not None else custom.parts
    if given is None and config.data.partition == "owner":
        return None
    try:
        count = config.data.devices if given is None else len(given)
    except TypeError:  # the partition reports it
        return None
    return Known(config, custom, range(count), Roster(config.participation, count, config.seed))


def files_exist(config: RunConfig) -> Iterator[str]:
    """The files that settings name exist; data sets say themselves where to get them."""
    for key, path in config.files().items():
        if key not in ("data.path", "rate") and not os.access(path, os.R_OK):
            why = "cannot be read" if path.exists() else "does not exist"
            yield f"{key} is {str(path)!r}, which {why}. Relative names start from the configuration's folder."


def import_names(config: RunConfig, custom: CustomObjects) -> None:
    """Import what settings name as ``"package.module:object"``, unless an object replaces it."""
    if isinstance(config.method, CustomMethod) and custom.method is None:
        named_object(config.method.factory, "method.name")
    if ":" in config.train.loss and custom.loss is None:
        named_object(config.train.loss, "train.loss")
    for name in ("scheme", "channel", "outcome", "objective") if config.radio is not None else ():
        value = getattr(config.radio, name)
        if ":" in value and getattr(custom, "scheme" if name == "objective" else name) is None:
            named_object(value, f"radio.{name}")


def method_is_possible(run: Known | Prepared) -> Iterator[str]:
    """The method can work in so many rounds with so many devices."""
    if run.custom.method is None:
        yield from run.config.method.impossible(run.config.rounds, len(run.samples))


def lists_have_an_entry_per_device(run: Known | Prepared) -> Iterator[str]:
    """Lists of rates, path losses and distances have one entry per device; wrong rates are raised."""
    config, devices = run.config, len(run.samples)
    radio = config.radio if not isinstance(run.custom.scheme, PlannedBy) else None
    if run.custom.scheme is None and (radio is None or radio.scheme == "fixed"):
        read_rates(config.given_rate, devices)
    for name in ("path_loss", "distances_m") if radio is not None else ():
        values = getattr(radio, name)
        if isinstance(values, tuple) and values and len(values) != devices:
            yield f"radio.{name} has {len(values)} values for {devices} devices; give one per device."
