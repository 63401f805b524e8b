"""The example server answers prompts, and shows what it has counted of them."""

from __future__ import annotations

import threading
import urllib.error
import urllib.request
from collections.abc import Iterator

import pytest
from prometheus_client.openmetrics.parser import text_string_to_metric_families as parse_openmetrics
from prometheus_client.parser import text_string_to_metric_families as parse_prometheus

from undercurrent.examples.metrics_server import PROBES, make_server
from undercurrent.router import OPENMETRICS_CONTENT_TYPE, PROMETHEUS_CONTENT_TYPE, Router


@pytest.fixture(name="url", scope="module")
def _url() -> Iterator[str]:
    with Router(PROBES, worker_mode="thread") as router, make_server(router, port=0) as server:
        thread = threading.Thread(target=server.serve_forever)
        thread.start()
        yield f"http://127.0.0.1:{server.server_port}"
        server.shutdown()
        thread.join()


def ask(url: str, data: bytes | None = None, **headers: str) -> tuple[str, str]:
    request = urllib.request.Request(url, data=data, headers=headers)
    with urllib.request.urlopen(request, timeout=30) as answer:
        return answer.headers["Content-Type"], answer.read().decode()


def test_scraper_sees_what_a_prompt_has_caused(url: str) -> None:
    ask(url + "/", b"the sea is unfathomable today")
    content_type, text = ask(url + "/metrics")
    samples = {
        (sample.name, sample.labels.get("point"), sample.labels.get("action")): sample.value
        for family in parse_prometheus(text)
        for sample in family.samples
    }

    assert content_type == PROMETHEUS_CONTENT_TYPE
    assert samples["undercurrent_requests_ended_total", None, None] == 1
    assert samples["undercurrent_probe_records_total", "guard", None] == 5
    assert samples["undercurrent_ring_produced_total", "monitor", None] == 5


def test_scraper_that_asks_for_openmetrics_gets_it(url: str) -> None:
    content_type, text = ask(url + "/metrics", Accept=OPENMETRICS_CONTENT_TYPE)
    assert content_type == OPENMETRICS_CONTENT_TYPE
    assert list(parse_openmetrics(text))


def test_other_paths_are_not_found(url: str) -> None:
    with pytest.raises(urllib.error.HTTPError, match="404") as raised:
        ask(url + "/secrets")
    raised.value.close()
