"""Decisions over HTTP: an ASGI application around a `predict.Router` it is given.

    from undercurrent.predict import Router
    from undercurrent.predict.serve import DecisionApp
    app = DecisionApp(Router())          # any ASGI server runs it: uvicorn my_module:app

`ServeLimits` bounds what it takes on. Needs the extra `serve`.
"""

from undercurrent.predict.serve.limits import ServeLimits

__all__ = ["DecisionApp", "ServeLimits"]

try:
    from undercurrent.predict.serve.app import DecisionApp
except ModuleNotFoundError as _error:
    if (_error.name or "").partition(".")[0] not in ("starlette", "anyio"):
        raise
    from undercurrent.errors import MissingDependencyError

    raise MissingDependencyError(
        f"serving decisions needs {_error.name}, which is not installed; run: pip install 'undercurrent[serve]'",
        name=_error.name,
    ) from _error
