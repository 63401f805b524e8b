"""Hooks for `undercurrent.predict`, to install as they are or to start from.

    >>> from undercurrent.examples.hooks.redact import RedactionHook
    >>> from undercurrent.examples.hooks.cache import CacheHook
    >>> hooks = [RedactionHook(), CacheHook()]

Each module says in its first lines which failure policy its hook has, and why.
"""
