"""What the server counts, for Prometheus."""

import prometheus_client as prometheus

_SECONDS = (0.005, 0.01, 0.02, 0.05, 0.1, 0.2, 0.5, 1, 2, 5, 10, 20, 60)
_SENTENCES = (1, 2, 4, 8, 16, 32, 64, 128)


class Metrics:
    """The counters and histograms of one server, in a registry of their own."""

    def __init__(self) -> None:
        self.registry = registry = prometheus.CollectorRegistry()
        prometheus.ProcessCollector(registry=registry)
        self.requests = prometheus.Counter(
            "t2t_requests", "Requests answered.", ["route", "status"], registry=registry
        )
        self.latency = prometheus.Histogram(
            *("t2t_request_seconds", "Time from a request to its answer.", ["route"]),
            buckets=_SECONDS,
            registry=registry,
        )
        self.queue = prometheus.Gauge(
            "t2t_queue_sentences", "Sentences that wait for a worker.", registry=registry
        )
        self.batches = prometheus.Histogram(
            *("t2t_batch_sentences", "Sentences translated together.", ["signature"]),
            buckets=_SENTENCES,
            registry=registry,
        )
        self.batch_time = prometheus.Histogram(
            *("t2t_batch_seconds", "Time of a worker for a batch.", ["signature"]),
            buckets=_SECONDS,
            registry=registry,
        )
        self.sentences = prometheus.Counter(
            "t2t_sentences", "Sentences translated.", ["signature"], registry=registry
        )
        self.pieces = prometheus.Counter(
            *("t2t_target_pieces", "Pieces of the best translations, EOS included."),
            registry=registry,
        )
        self.version = prometheus.Gauge(
            "t2t_model_version", "The version that is served.", registry=registry
        )

    def batch(self, signature: str, sentences: int, seconds: float, pieces: int | None) -> None:
        """Count a batch."""
        self.batches.labels(signature).observe(sentences)
        self.batch_time.labels(signature).observe(seconds)
        self.sentences.labels(signature).inc(sentences)
        self.pieces.inc(pieces or 0)

    def text(self) -> bytes:
        """Return all values in Prometheus's text format."""
        return prometheus.generate_latest(self.registry)
