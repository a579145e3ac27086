"""Dates, time spans and labels as text; free of torch, so that the command line can start at once."""

from dygmamba.data.events.times import format_date as format_date
from dygmamba.data.events.times import format_duration as format_duration
from dygmamba.data.events.times import format_rough_duration as format_rough_duration
from dygmamba.data.events.times import looks_like_epoch_seconds as looks_like_epoch_seconds
from dygmamba.report.lists import build_dataset_list as build_dataset_list
from dygmamba.report.lists import build_model_document as build_model_document
from dygmamba.report.lists import build_model_list as build_model_list
from dygmamba.report.lists import build_run_list as build_run_list
from dygmamba.report.results import build_results_document as build_results_document
from dygmamba.tasks.metric_names import format_metric as format_metric
from dygmamba.tasks.metric_names import get_metric_title as get_metric_title
from dygmamba.tasks.metric_names import list_metrics as list_metrics
