"""Prometheus metrics of the server. Labels have a fixed set of values: no id of a user becomes one."""

from prometheus_client import CollectorRegistry, Counter, Gauge, Histogram, generate_latest

METHODS = {"GET", "POST", "HEAD"}
DURATIONS = (0.001, 0.0025, 0.005, 0.01, 0.025, 0.05, 0.1, 0.25, 0.5, 1.0, 2.5, 5.0, 10.0, 30.0)
SIZES = (1, 2, 5, 10, 20, 50, 100, 200, 500, 1000, 2000, 5000, 10000)


class Metrics:
    """Counters, gauges and histograms of one server, in a registry of their own."""

    def __init__(self) -> None:
        self.registry = CollectorRegistry()
        self.requests = Counter(
            "dygmamba_requests",
            "Requests by route and status.",
            ("route", "method", "status"),
            registry=self.registry,
        )
        self.seconds = Histogram(
            "dygmamba_request_duration_seconds",
            "Duration of requests.",
            ("route",),
            buckets=DURATIONS,
            registry=self.registry,
        )
        self.in_progress = self._gauge("requests_in_progress", "Requests that are being answered.")
        self.batch_pairs = Histogram(
            "dygmamba_batch_pairs",
            "Pairs that were scored in one call.",
            buckets=SIZES,
            registry=self.registry,
        )
        self.events = Counter("dygmamba_events", "Events by verdict.", ("verdict",), registry=self.registry)
        self.source_gaps = Counter(
            "dygmamba_source_gaps",
            "Times that events of a source may have been lost.",
            registry=self.registry,
        )
        self.queried_ids = Counter("dygmamba_queried_ids", "Ids in queries.", registry=self.registry)
        self.unknown_ids = Counter(
            "dygmamba_unknown_ids", "Ids in queries without any event.", registry=self.registry
        )
        self.unknown_share = self._gauge("unknown_id_share", "Share of unknown ids in the latest queries.")
        self.acknowledged = self._gauge(
            "acknowledged_sequence", "Sequence of the last event that is on disk."
        )
        self.applied = self._gauge("applied_sequence", "Sequence of the last event that scores can see.")
        self.lag = self._gauge(
            "event_lag_seconds", "Wall clock minus time of the newest event, for dated streams."
        )
        self.drift = self._gauge(
            "score_drift", "Population stability index of the scores of events, against validation."
        )
        self.calibration = self._gauge(
            "calibration_error",
            "Expected calibration error of the scores of the latest events and random pairs.",
        )

    def _gauge(self, name: str, text: str) -> Gauge:
        return Gauge(f"dygmamba_{name}", text, registry=self.registry)

    def count_request(self, route: str, method: str, status: int, seconds: float) -> None:
        self.requests.labels(route, method if method in METHODS else "other", str(status)).inc()
        self.seconds.labels(route).observe(seconds)

    def format(self) -> bytes:
        """Return all metrics in the text format of Prometheus."""
        return generate_latest(self.registry)
