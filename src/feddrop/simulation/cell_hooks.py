"""The scheme, channel, outcome and objective of a cell: those that the configuration names, or the user's."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from functools import cached_property
from typing import Any

from feddrop.allocation import Objective, Scheme
from feddrop.config import Radio
from feddrop.config.radio import IMPORTANCE
from feddrop.errors import RunError
from feddrop.radio.named import function_named, objective_named
from feddrop.radio.outcome import OutcomeFunction
from feddrop.radio.plan import SchemeFunction
from feddrop.schemes import OUTCOME_TABLE, SCHEME_TABLE, channel_of, is_function
from feddrop.simulation.custom import CustomObjects
from feddrop.subnets.parameters import Params

ObjectiveOf = Callable[[Params], Objective]
"""Computes an objective from a network."""


@dataclass(frozen=True)
class CellHooks:
    """The functions that a cell calls in every round. Custom objects take precedence over names in the section."""

    radio: Radio  # the section
    custom: CustomObjects  # the user's objects
    importance: ObjectiveOf | None = None  # computes V(s) from a network, for the objective ``"importance"``

    @cached_property
    def scheme(self) -> SchemeFunction | Scheme | None:
        """A function, or an object with ``solve``; None for a scheme of the allocator, by name."""
        radio, given = self.radio, self.custom.scheme
        if given is None and is_function(radio.scheme):
            given = function_named("radio.scheme", radio.scheme, radio.scheme_settings, SCHEME_TABLE)
            given = given() if isinstance(given, type) else given
        return given  # type: ignore[return-value]

    @cached_property
    def channel(self) -> Any:
        """A channel, or a function from the section's fading to one; None for that fading."""
        radio, given = self.radio, self.custom.channel
        if given is None and radio.channel:
            given = channel_of(radio)
        return given

    @cached_property
    def outcome(self) -> OutcomeFunction:
        """The function that decides which updates are lost."""
        radio, given = self.radio, self.custom.outcome
        if given is None:
            given = function_named("radio.outcome", radio.outcome, radio.outcome_settings, OUTCOME_TABLE)
        return given

    def objective(self, params: Params | None) -> Objective | None:
        """Return what the exact scheme minimises; None for the paper's."""
        if self.radio.objective == "inverse":
            return None
        if self.radio.objective == IMPORTANCE:
            if self.importance is None or params is None:
                raise RunError("the objective 'importance' needs the network of a run. Use another radio.objective.")
            return self.importance(params)
        return self._named_objective

    @cached_property
    def _named_objective(self) -> Objective:
        return objective_named(self.radio.objective)
