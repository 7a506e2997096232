"""A run folder as arrays, figures, and one self-contained HTML page. Matplotlib is loaded when something is drawn."""

from feddrop.report.compare import write_comparison
from feddrop.report.load import load_run
from feddrop.report.maps import binding_figure, map_figure
from feddrop.report.page import write_report
from feddrop.report.partition import partition_figure
from feddrop.report.plots import (
    accuracy_figure,
    bytes_figure,
    device_figure,
    limit_figure,
    loss_figure,
    traffic_figure,
)
from feddrop.report.runlog import RunLog

__all__ = [
    "RunLog",
    "accuracy_figure",
    "binding_figure",
    "bytes_figure",
    "device_figure",
    "limit_figure",
    "load_run",
    "loss_figure",
    "map_figure",
    "partition_figure",
    "traffic_figure",
    "write_comparison",
    "write_report",
]
