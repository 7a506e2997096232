"""All claims as one JSON file for ``feddrop explore``: verdicts, comparisons, points, and the runs of every point."""

from __future__ import annotations

import json
import math
from collections.abc import Mapping, Sequence
from typing import Any

from feddrop.comparison import Answer
from feddrop.config import RunConfig, from_table
from reproduction.framework.experiment import Experiment
from reproduction.framework.judged import Judged
from reproduction.framework.scales import Scale
from reproduction.framework.store import Store, key_of
from reproduction.framework.stored import words_of
from reproduction.framework.traced import runs_of


def as_json(judged: Sequence[Judged], experiments: Sequence[Experiment], scale: Scale, store: Store) -> str:
    """Return the claims, the experiments with their finished runs, and a few words on every run."""
    stored = store.all()
    runs = {key: _described(from_table(RunConfig, one.config)) for key, one in stored.items()}
    table: Mapping[str, Any] = {
        "scale": scale.name,
        "claims": [_claim(one) for one in judged],
        "experiments": {
            one.name: {
                "title": one.title,
                "where": one.where,
                "runs": [key for key in dict.fromkeys(map(key_of, one.runs(scale))) if key in stored],
            }
            for one in experiments
        },
        "runs": runs,
    }
    return json.dumps(table, separators=(",", ":"), allow_nan=False) + "\n"


def _described(config: RunConfig) -> str:
    network, seed, method, cell = words_of(config)
    return ", ".join(filter(None, (network, f"seed {seed}", method, cell)))


def _claim(one: Judged) -> dict[str, Any]:
    claim = one.claim
    return {
        **{"name": claim.name, "text": claim.text, "where": claim.where, "by": list(claim.by), "ours": claim.ours},
        **{"outcome": one.outcome, "shown": one.shown, "tally": one.tally, "note": one.note},
        "answers": [_answer(answer) for answer in one.answers],
    }


def _answer(answer: Answer) -> dict[str, Any]:
    asked = answer.comparison
    bounds = asked.bounds or (False,) * len(asked.differences)
    return {
        **{"label": asked.label, "unit": asked.unit, "digits": asked.digits, "says": answer.says, "why": answer.why},
        **{name: _known(getattr(answer, name)) for name in ("mean", "error", "margin")},
        "tolerance": asked.tolerance,
        "points": [
            {"value": _known(value), "bound": bound, "runs": list(runs_of(value))}
            for value, bound in zip(asked.differences, bounds, strict=True)
        ],
    }


def _known(value: float) -> float | None:
    return float(f"{value:.6g}") if math.isfinite(value) else None
