"""Prometheus metrics of the server. Labels have a fixed set of values: no id of a user becomes one."""

from functools import partial

from prometheus_client import CollectorRegistry, Counter, Gauge, Histogram, generate_latest

METHODS = {"GET", "POST", "HEAD"}
DURATIONS = (0.001, 0.0025, 0.005, 0.01, 0.025, 0.05, 0.1, 0.25, 0.5, 1.0, 2.5, 5.0, 10.0, 30.0)
SIZES = (1, 2, 5, 10, 20, 50, 100, 200, 500, 1000, 2000, 5000, 10000)


class Metrics:
    """Counters, gauges and histograms of one server, in a registry of their own."""

    def __init__(self) -> None:
        self.registry = CollectorRegistry()
        counter = partial(Counter, namespace="dygmamba", registry=self.registry)
        gauge = partial(Gauge, namespace="dygmamba", registry=self.registry)
        histogram = partial(Histogram, namespace="dygmamba", registry=self.registry)
        self.requests = counter("requests", "Requests by route and status.", ("route", "method", "status"))
        self.seconds = histogram(
            "request_duration_seconds", "Duration of requests.", ("route",), buckets=DURATIONS
        )
        self.in_progress = gauge("requests_in_progress", "Requests that are being answered.")
        self.batch_pairs = histogram("batch_pairs", "Pairs that were scored in one call.", buckets=SIZES)
        self.events = counter("events", "Events by verdict.", ("verdict",))
        self.source_gaps = counter("source_gaps", "Times that events of a source may have been lost.")
        self.queried_ids = counter("queried_ids", "Ids in queries.")
        self.unknown_ids = counter("unknown_ids", "Ids in queries without any event.")
        self.unknown_share = gauge("unknown_id_share", "Share of unknown ids in the latest queries.")
        self.acknowledged = gauge("acknowledged_sequence", "Sequence of the last event that is on disk.")
        self.applied = gauge("applied_sequence", "Sequence of the last event that scores can see.")
        self.lag = gauge("event_lag_seconds", "Wall clock minus time of the newest event, for dated streams.")
        self.drift = gauge(
            "score_drift", "Population stability index of the scores of events, against validation."
        )
        error = "Expected calibration error of the scores of the latest events and random pairs."
        self.calibration = gauge("calibration_error", error)

    def count_request(self, route: str, method: str, status: int, seconds: float) -> None:
        self.requests.labels(route, method if method in METHODS else "other", str(status)).inc()
        self.seconds.labels(route).observe(seconds)

    def format(self) -> bytes:
        """Return all metrics in the text format of Prometheus."""
        return generate_latest(self.registry)
