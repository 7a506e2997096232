"""The registry of experiments: one module per table or figure of the paper."""

from reproduction.experiments import (
    accuracy,
    converge,
    deadline,
    dynamic,
    energy,
    explain,
    law,
    norms,
    objective,
    partition,
    power,
    remark,
    weak,
)

__all__ = ["EXPERIMENTS"]

EXPERIMENTS = (
    accuracy.EXPERIMENT,
    partition.EXPERIMENT,
    converge.LATENCY,
    converge.BANDWIDTH,
    deadline.EXPERIMENT,
    dynamic.EXPERIMENT,
    energy.EXPERIMENT,
    power.EXPERIMENT,
    weak.EXPERIMENT,
    objective.EXPERIMENT,
    remark.EXPERIMENT,
    law.EXPERIMENT,
    norms.EXPERIMENT,
    explain.EXPERIMENT,
)
