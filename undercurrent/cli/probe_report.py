"""The figures of a probe as text."""

from __future__ import annotations

from collections.abc import Sequence
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from undercurrent.core.training import Estimate, Evaluation, Rate, RocCurve

__all__ = ["HELD_OUT_MIN", "report_lines"]

HELD_OUT_MIN = 300
"""Fewer held-out items give figures that are hardly worth quoting."""

_PLOT_COLUMNS, _PLOT_ROWS = 41, 11
_RATES = (0.01, 0.05, 0.1)


def report_lines(found: Evaluation, *, positive: str) -> list[str]:
    """What was measured, a line each; intervals are 95 %."""
    groups = f" in {found.group_count} groups" if found.group_count < found.count else ""
    lines = [
        f"{found.count} held-out texts{groups}, {found.base_rate.rate:.1%} of them {positive!r}",
        f"accuracy at {found.threshold:.4g}   {_rate(found.accuracy)}{_grouped(found.accuracy_of_groups)}",
        f"area under ROC      {_figure(found.auc)}{_grouped(found.auc_of_groups)}",
    ]
    if found.calibration_error is not None:
        floor = (
            f"; {found.calibration_error_floor:.3f} would be perfect with so few"
            if found.calibration_error_floor
            else ""
        )
        lines.append(f"calibration error   {_figure(found.calibration_error)}{floor}")
    lines += [
        f"of {positive!r} found     {_rate(found.true_positives)}",
        f"of others flagged   {_rate(found.false_positives)}",
        *(f"found at {rate:.0%} false alarms: {_hits_at(found.roc, rate):.1%}" for rate in _RATES),
    ]
    if found.count < HELD_OUT_MIN:
        lines.append(f"fewer than {HELD_OUT_MIN} held-out texts: the figures are rough")
    return [*lines, "", *_plot(found.roc)]


def _rate(rate: Rate) -> str:
    low, high = rate.interval
    return f"{rate.rate:.1%} of {rate.count} ({low:.1%} to {high:.1%})"


def _figure(estimate: Estimate) -> str:
    return f"{estimate.value:.4f} ({estimate.low:.4f} to {estimate.high:.4f}, {estimate.method})"


def _grouped(estimate: Estimate | None) -> str:
    return "" if estimate is None else f"; by groups {estimate.low:.3f} to {estimate.high:.3f}"


def _hits_at(roc: RocCurve, rate: float) -> float:
    return max(
        hits for false, hits in zip(roc.false_positive_rates, roc.true_positive_rates, strict=True) if false <= rate
    )


def _plot(roc: RocCurve) -> Sequence[str]:
    """The ROC curve in characters: false alarms to the right, hits upwards; dots are guessing."""
    rows = [[" "] * _PLOT_COLUMNS for _ in range(_PLOT_ROWS)]
    for column in range(_PLOT_COLUMNS):
        share = column / (_PLOT_COLUMNS - 1)
        rows[round(share * (_PLOT_ROWS - 1))][column] = "."
        rows[round(_hits_at(roc, share) * (_PLOT_ROWS - 1))][column] = "*"
    axis = ["100% ", *["     "] * (_PLOT_ROWS - 2), "  0% "]
    lines = [f"{label}|{''.join(row).rstrip()}" for label, row in zip(axis, reversed(rows), strict=True)]
    return ["found (upwards) against false alarms (to the right)", *lines, "     +" + "-" * _PLOT_COLUMNS]
