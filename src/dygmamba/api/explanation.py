"""The explanation of a score in one call, apart from predictions, which need no report.

`dygmamba.open(run).explain(...)` offers the same.
"""

from dygmamba.api.requests.prediction import ExplainRequest
from dygmamba.api.run import open as open_run
from dygmamba.explain.explanation import Explanation
from dygmamba.report.explanation_document import build_explanation_document as build_explanation_document
from dygmamba.report.explanation_document import write_explanation


def run_explanation(request: ExplainRequest) -> Explanation:
    """Explain the score of a pair, or of a node; with `out`, also as a page or a picture."""
    reading = dict(request.reading)
    times = {name: reading.pop(name) for name in ("time_unit", "time_format") if name in reading}
    run = open_run(request.run, device=request.device, data_dir=request.data_dir, **times)
    run = run if request.events is None else run.observe(request.events, **reading)
    explanation = run.explain(request.query, request.at, orders=request.orders, columns=request.columns)
    if request.out is not None:
        write_explanation(explanation, request.out, request.top)
    return explanation
