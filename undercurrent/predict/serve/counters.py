"""What a server has done, as text that Prometheus scrapes. Used on the event loop alone."""

from __future__ import annotations

from bisect import bisect_left
from collections import Counter
from collections.abc import Iterator, Mapping

__all__ = ["METRICS_TYPE", "ServeCounters"]

METRICS_TYPE = "text/plain; version=0.0.4; charset=utf-8"
BOUNDS_S = (0.005, 0.01, 0.025, 0.05, 0.1, 0.25, 0.5, 1.0, 2.5, 5.0, 10.0, 30.0)

_NAME = "undercurrent_predict_http"


class ServeCounters:
    """Answers by endpoint and status, and how long they took. Endpoints are those of the app, so that they are few."""

    def __init__(self) -> None:
        self._answers: Counter[tuple[str, int]] = Counter()
        self._buckets: dict[str, list[int]] = {}
        self._seconds: dict[str, float] = {}

    def count(self, endpoint: str, status: int, seconds: float) -> None:
        """Counts one answer; status 499 is a client that left before it."""
        self._answers[endpoint, status] += 1
        self._buckets.setdefault(endpoint, [0] * (len(BOUNDS_S) + 1))[bisect_left(BOUNDS_S, seconds)] += 1
        self._seconds[endpoint] = self._seconds.get(endpoint, 0.0) + seconds

    def text(self, gauges: Mapping[str, tuple[str, float]]) -> str:
        """Everything; `gauges` are help and value by the end of the name."""
        return "".join(f"{line}\n" for line in self._lines(gauges))

    def _lines(self, gauges: Mapping[str, tuple[str, float]]) -> Iterator[str]:
        yield f"# HELP {_NAME}_requests_total Answers, by endpoint and status; 499: the client left."
        yield f"# TYPE {_NAME}_requests_total counter"
        for (endpoint, status), count in sorted(self._answers.items()):
            yield f'{_NAME}_requests_total{{endpoint="{endpoint}",status="{status}"}} {count}'
        yield f"# HELP {_NAME}_seconds From a request's head to the end of its answer."
        yield f"# TYPE {_NAME}_seconds histogram"
        for endpoint, buckets in sorted(self._buckets.items()):
            label, total = f'endpoint="{endpoint}"', 0
            for bound, count in zip((*map(str, BOUNDS_S), "+Inf"), buckets, strict=True):
                total += count
                yield f'{_NAME}_seconds_bucket{{{label},le="{bound}"}} {total}'
            yield f"{_NAME}_seconds_sum{{{label}}} {self._seconds[endpoint]!r}"
            yield f"{_NAME}_seconds_count{{{label}}} {total}"
        for name, (text, value) in gauges.items():
            yield f"# HELP {_NAME}_{name} {text}"
            yield f"# TYPE {_NAME}_{name} gauge"
            yield f"{_NAME}_{name} {value:g}"
