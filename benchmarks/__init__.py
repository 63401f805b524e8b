"""Benchmarks: one module per question, each beside its floor in the same run.

Run them with `python -m undercurrent.benchmarks`.
"""
