"""What a client is told when it gets no decision: problem details, with a code for programs.

See: RFC 9457. `code` and the members of batches are extensions of it.
"""

from __future__ import annotations

from collections.abc import Mapping
from http import HTTPStatus
from typing import Any

import msgspec
from starlette.responses import Response

__all__ = ["PROBLEM_TYPE", "Problem"]

PROBLEM_TYPE = "application/problem+json"


class Problem(Exception):
    """Ends a request with an answer. `detail` goes to the client: it holds nothing of the server's inside."""

    def __init__(
        self,
        status: int,
        code: str,
        detail: str,
        *,
        headers: Mapping[str, str] | None = None,
        more: Mapping[str, Any] | None = None,
    ) -> None:
        super().__init__(detail)
        self.status = status
        self.code = code
        self.detail = detail
        self.headers = dict(headers or {})
        self.more = dict(more or {})

    def response(self) -> Response:
        """The answer."""
        content = {
            "title": HTTPStatus(self.status).phrase,
            "status": self.status,
            "code": self.code,
            "detail": self.detail,
            **self.more,
        }
        return Response(
            msgspec.json.encode(content), status_code=self.status, headers=self.headers, media_type=PROBLEM_TYPE
        )
