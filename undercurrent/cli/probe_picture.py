"""The figures of a probe as a picture: ROC curve, and score against truth."""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING, Any

from undercurrent.cli.verbs import UsageError
from undercurrent.errors import MissingDependencyError

if TYPE_CHECKING:
    from undercurrent.core.training import Evaluation

__all__ = ["check_picture", "draw"]

_SUFFIXES = (".png", ".svg", ".pdf")


def check_picture(path: Path | None) -> None:
    """Refuses a picture that could not be drawn, before anything is trained.

    Raises:
        UsageError: another suffix.
        MissingDependencyError: matplotlib is not installed.
    """
    if path is None:
        return
    if path.suffix.lower() not in _SUFFIXES:
        raise UsageError(f"a picture ends in {', '.join(_SUFFIXES)}, got {str(path)!r}")
    _load_figure()


def draw(found: Evaluation, path: Path, *, title: str) -> None:
    """Writes the picture; its kind is that of the suffix."""
    figure = _load_figure()(figsize=(9.6, 4.4), layout="constrained")
    figure.suptitle(title)
    has_bins = bool(found.bins)
    axes: Any = figure.subplots(1, 2 if has_bins else 1, squeeze=False)[0]
    roc, auc = axes[0], found.auc
    roc.plot([0, 1], [0, 1], color="0.7", linewidth=1)
    roc.step(found.roc.false_positive_rates, found.roc.true_positive_rates, where="post", color="C0")
    roc.plot([found.false_positives.rate], [found.true_positives.rate], "o", color="C3", label="threshold")
    roc.set(
        xlabel="false alarms",
        ylabel="found",
        title=f"ROC, area {auc.value:.3f} ({auc.low:.3f} to {auc.high:.3f}), n = {found.count}",
    )
    roc.legend(loc="lower right")
    if has_bins:
        error = found.calibration_error
        assert error is not None, "bins are of scores that are chances"
        x = [item.mean_score for item in found.bins]
        y = [item.positives.rate for item in found.bins]
        bounds = [item.positives.interval for item in found.bins]
        spread = [[max(0.0, v - low) for v, (low, _) in zip(y, bounds, strict=True)]]
        spread.append([max(0.0, high - v) for v, (_, high) in zip(y, bounds, strict=True)])
        axes[1].plot([0, 1], [0, 1], color="0.7", linewidth=1)
        axes[1].errorbar(x, y, yerr=spread, fmt="o", color="C0", capsize=3)
        axes[1].set(
            xlabel="score",
            ylabel="share of positives",
            title=f"calibration error {error.value:.3f} ({error.low:.3f} to {error.high:.3f})",
        )
    for axis in axes:
        axis.set(xlim=(-0.02, 1.02), ylim=(-0.02, 1.02), aspect="equal")
    figure.savefig(path, dpi=150)


def _load_figure() -> Any:
    try:
        from matplotlib.figure import Figure
    except ModuleNotFoundError as error:
        raise MissingDependencyError(
            f"a picture needs {error.name}, which is not installed; run: pip install 'undercurrent[train]', or leave"
            " the picture out with --no-picture",
            name=error.name,
        ) from None
    return Figure
