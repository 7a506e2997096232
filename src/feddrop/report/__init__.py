"""A run as arrays, figures and one self-contained HTML page. Matplotlib is imported only to draw."""

from feddrop.report.compare import write_comparison
from feddrop.report.curves import accuracy_figure, loss_figure, metric_figure
from feddrop.report.groups import Group, grouped
from feddrop.report.maps import binding_figure, map_figure
from feddrop.report.notebook import read_log
from feddrop.report.page import write_report
from feddrop.report.partition import partition_figure
from feddrop.report.plots import bytes_figure, device_figure, limit_figure, participation_figure, traffic_figure
from feddrop.report.runlog import RunLog
from feddrop.report.timeline import timeline_figure

__all__ = [
    "Group", "RunLog", "accuracy_figure", "binding_figure", "bytes_figure", "device_figure", "grouped",
    "limit_figure", "loss_figure", "map_figure", "metric_figure", "participation_figure", "partition_figure",
    "read_log", "timeline_figure", "traffic_figure", "write_comparison", "write_report",
]  # fmt: skip
