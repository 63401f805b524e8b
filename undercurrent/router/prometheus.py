"""A router's totals as text that Prometheus scrapes; `docs/metrics.md` says what each metric means.

See: prometheus.io/docs, "Exposition formats" (text 0.0.4) and "Metric and label naming"; OpenMetrics 1.0.
"""

from __future__ import annotations

from collections.abc import Iterator
from typing import TYPE_CHECKING, Final

from undercurrent.router.exported import METRICS, Metric
from undercurrent.router.totals import LatencyHistogram, RouterMetrics

if TYPE_CHECKING:
    from undercurrent.router.router import Router

__all__ = ["OPENMETRICS_CONTENT_TYPE", "PROMETHEUS_CONTENT_TYPE", "openmetrics_text", "prometheus_text"]

PROMETHEUS_CONTENT_TYPE: Final = "text/plain; version=0.0.4; charset=utf-8"
"""What an HTTP answer says that holds `prometheus_text`."""
OPENMETRICS_CONTENT_TYPE: Final = "application/openmetrics-text; version=1.0.0; charset=utf-8"
"""What an HTTP answer says that holds `openmetrics_text`."""

_BOUNDS: Final = tuple(repr(bound) for bound in LatencyHistogram.bounds_s())


def prometheus_text(router: Router) -> str:
    """Everything `router.totals()` says, in Prometheus' text format 0.0.4. Any thread may call; no request is named.

    It costs a few microseconds per live binding and per line; a scraper asks every few seconds.

    >>> from undercurrent.router import Router
    >>> with Router() as router:
    ...     text = prometheus_text(router)
    >>> "undercurrent_requests_live 0" in text.splitlines()
    True
    """
    return "".join(_lines(router, is_openmetrics=False))


def openmetrics_text(router: Router) -> str:
    """The same in OpenMetrics' text format 1.0.0, for scrapers that ask for it."""
    return "".join(_lines(router, is_openmetrics=True)) + "# EOF\n"


def _lines(router: Router, *, is_openmetrics: bool) -> Iterator[str]:
    totals = router.totals()
    for metric in METRICS:
        yield from _family(metric, totals, is_openmetrics=is_openmetrics)


def _family(metric: Metric, totals: RouterMetrics, *, is_openmetrics: bool) -> Iterator[str]:
    # OpenMetrics names a counter's family without the ending that its samples have.
    family = metric.name.removesuffix("_total") if is_openmetrics else metric.name
    yield f"# HELP {family} {_escaped(metric.help)}\n# TYPE {family} {metric.type}\n"
    for values, value in metric.read(totals):
        labels = ",".join(f'{name}="{_escaped_label(text)}"' for name, text in zip(metric.labels, values, strict=True))
        if isinstance(value, LatencyHistogram):
            yield from _histogram(metric.name, labels, value)
        else:
            yield f"{metric.name}{_braced(labels)} {value!r}\n"


def _histogram(name: str, labels: str, histogram: LatencyHistogram) -> Iterator[str]:
    prefix = f"{labels}," if labels else ""
    below = 0
    for bound, count in zip((*_BOUNDS, "+Inf"), histogram.buckets, strict=True):
        below += count
        yield f'{name}_bucket{{{prefix}le="{bound}"}} {below}\n'
    yield f"{name}_sum{_braced(labels)} {histogram.sum_s!r}\n{name}_count{_braced(labels)} {below}\n"


def _braced(labels: str) -> str:
    return f"{{{labels}}}" if labels else ""


def _escaped(text: str) -> str:
    return text.replace("\\", "\\\\").replace("\n", "\\n")


def _escaped_label(text: str) -> str:
    # A lone surrogate, which a name that was made by hand may have, has no UTF-8.
    return _escaped(text.encode("utf-8", "replace").decode()).replace('"', '\\"')
