"""The registry of experiments: one module per table or figure of the paper."""

from reproduction.experiments import (
    accuracy,
    allocator,
    bias,
    converge,
    deadline,
    dynamic,
    energy,
    explain,
    large,
    law,
    norms,
    objective,
    partition,
    power,
    remark,
    theorem,
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
    allocator.EXPERIMENT,
    power.EXPERIMENT,
    weak.EXPERIMENT,
    objective.EXPERIMENT,
    remark.EXPERIMENT,
    law.EXPERIMENT,
    bias.EXPERIMENT,
    theorem.EXPERIMENT,
    large.EXPERIMENT,
    norms.EXPERIMENT,
    explain.EXPERIMENT,
)
