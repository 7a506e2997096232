"""Figure 2: the Dirichlet(0.1) partition, a circle a device and class."""

from __future__ import annotations

from feddrop import data
from feddrop.config import RunConfig
from feddrop.paper.experiment import Experiment, Lookup, Page
from feddrop.paper.scales import ALPHA, DEVICES, Scale
from feddrop.report import partition_figure
from feddrop.seeds import derive


def runs(_: Scale) -> list[RunConfig]:
    """Nothing is trained."""
    return []


def make(scale: Scale, _: Lookup) -> Page:
    """Draw the partition that the non-IID runs of the first seed train on."""
    dataset = data.load(scale.settings["underfitting"].data)
    labels = dataset.train_y.numpy()
    parts = data.partition(
        labels, devices=DEVICES, how="dirichlet", alpha=ALPHA, seed=derive(scale.seeds[0], "partition")
    )
    counts = data.class_counts(labels, parts, dataset.num_classes)
    sizes = counts.sum(axis=1)
    text = (
        f"{dataset.name}: {dataset.num_classes} classes on {DEVICES} devices, one Dirichlet({ALPHA:g}) draw a class; "
        f"devices hold {sizes.min():,} to {sizes.max():,} samples.\n\n![The Dirichlet partition](partition.png)\n"
    )
    return Page(text=text, figures={"partition.png": partition_figure(counts, dataset.class_names)})


EXPERIMENT = Experiment("partition", "The Dirichlet partition", "Fig. 2", runs, make)
