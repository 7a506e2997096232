"""Figure 2: the Dirichlet(0.1) partition, one circle per device and class."""

from __future__ import annotations

from typing import Any

import numpy as np

from feddrop import data
from feddrop.config import RunConfig
from feddrop.report import partition_figure
from feddrop.seeds import derive
from reproduction.framework.experiment import Experiment, Lookup, Page
from reproduction.framework.scales import ALPHA, DEVICES, Scale


def runs(_: Scale) -> list[RunConfig]:
    """Return no runs: nothing is trained."""
    return []


def measure(scale: Scale) -> dict[str, Any]:
    """Count the samples of each class per device in the non-IID runs of the first seed."""
    dataset = data.load_dataset(scale.settings["underfitting"].data)
    labels = dataset.train_y.numpy()
    parts = data.partition(
        labels, devices=DEVICES, how="dirichlet", alpha=ALPHA, seed=derive(scale.seeds[0], "partition")
    )
    counts = data.class_counts(labels, parts, dataset.num_classes)
    return {"data": dataset.name, "classes": list(dataset.class_names), "counts": counts.tolist()}


def make(_: Scale, __: Lookup, facts: dict[str, Any]) -> Page:
    """Draw the partition."""
    sizes = [sum(row) for row in facts["counts"]]
    text = (
        f"{facts['data']}: {len(facts['classes'])} classes on {DEVICES} devices, one Dirichlet({ALPHA:g}) draw per "
        f"class, first seed; devices hold {min(sizes):,} to {max(sizes):,} samples.\n\n![The Dirichlet "
        "partition](partition.png)\n"
    )
    return Page(text=text, figures={"partition.png": partition_figure(np.array(facts["counts"]), facts["classes"])})


EXPERIMENT = Experiment("partition", "The Dirichlet partition", "Fig. 2", runs, make, measure)
