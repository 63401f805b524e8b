"""The OpenAPI document holds, whatever is generated from it."""

from __future__ import annotations

import schemathesis
from asgi_client import ask
from hypothesis import HealthCheck, Phase, settings
from predict_checkpoints import WordCheckpoint
from schemathesis.specs.openapi.checks import positive_data_acceptance

from undercurrent.predict import Router
from undercurrent.predict.serve import DecisionApp, ServeLimits

# Nothing that is generated reaches the budget of a model.
WORDS = WordCheckpoint(max_len=10_000)
APP = DecisionApp(Router({"english": WORDS, "multilingual": WORDS}), limits=ServeLimits())
SCHEMA = schemathesis.openapi.from_asgi("/openapi.json", APP)


@SCHEMA.parametrize()
@settings(
    max_examples=15,
    deadline=None,
    derandomize=True,
    database=None,
    phases=[Phase.explicit, Phase.generate],
    suppress_health_check=list(HealthCheck),
)
def test_what_is_generated_is_answered_as_the_document_says(case: schemathesis.Case) -> None:
    # What the document cannot say, such as that labels differ, is refused with 422.
    case.call_and_validate(excluded_checks=[positive_data_acceptance])


def test_document_names_every_limit_it_can() -> None:
    document = ask(APP, "GET", "/openapi.json").json
    schemas = document["components"]["schemas"]
    assert schemas["Questions"]["maxProperties"] == 64
    assert schemas["BatchBody"]["properties"]["requests"]["maxItems"] == 256
    assert set(document["paths"]) == set(APP._endpoints)
