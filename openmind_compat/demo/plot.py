"""Draw the loss curves of one run, or of the same run on two engines."""

from __future__ import annotations

from pathlib import Path
from typing import Any

NAMES = {"ms": "MindSpore", "pt": "PyTorch"}


def relative_differences(run: dict[str, Any], reference: dict[str, Any]) -> list[float]:
    """Per step, how far the loss of `run` is from the loss of `reference`, relative to the latter."""
    pairs = zip(run["step_losses"], reference["step_losses"], strict=True)
    return [abs(ours - theirs) / abs(theirs) for ours, theirs in pairs]


def draw_losses(runs: list[dict[str, Any]], path: Path) -> None:
    """Write `path`: training and evaluation loss of each run, and the difference per step when there are two."""
    # The object interface with its own canvas: importing pyplot would pick a backend for the whole process.
    from matplotlib.backends.backend_agg import FigureCanvasAgg
    from matplotlib.figure import Figure

    figure = Figure(figsize=(8, 6 if len(runs) > 1 else 4.5), layout="constrained")
    FigureCanvasAgg(figure)
    if len(runs) > 1:
        losses, differences = figure.subplots(2, 1, sharex=True, height_ratios=[3, 1])
    else:
        losses, differences = figure.subplots(), None

    # The reference is drawn first, wide and pale, so that the second curve stays visible on top of it.
    ordered = sorted(runs, key=lambda run: run["framework"] != "pt") if len(runs) > 1 else runs
    for position, run in enumerate(ordered):
        below = len(ordered) > 1 and position == 0
        name = NAMES.get(run["framework"], run["framework"])
        color = "tab:orange" if run["framework"] == "pt" else "tab:blue"
        style = {"color": color, "linewidth": 5 if below else 1.3, "alpha": 0.35 if below else 1.0}
        steps = range(1, len(run["step_losses"]) + 1)
        losses.plot(steps, run["step_losses"], label=f"{name}, training", **style)
        # A dictionary, since the last step is evaluated twice: by the schedule, and once more after training.
        evaluations = {log["step"]: log["eval_loss"] for log in run["log_history"] if "eval_loss" in log}
        style.update(marker="o", markersize=10 if below else 4, linestyle="--")
        losses.plot(list(evaluations), list(evaluations.values()), label=f"{name}, evaluation", **style)
    losses.set_ylabel("loss")
    losses.grid(alpha=0.3)
    losses.legend()
    losses.set_title(f"openmind-compat demo, {runs[0]['task']}")

    if differences is not None:
        values = relative_differences(runs[0], runs[1])
        # Equal losses have no place on a logarithmic axis: show them at its lower end.
        differences.semilogy(range(1, len(values) + 1), [max(value, 1e-9) for value in values], color="tab:gray")
        differences.set_ylabel("relative\ndifference")
        differences.grid(alpha=0.3)
        differences.set_xlabel("step")
    else:
        losses.set_xlabel("step")
    figure.savefig(path, dpi=120)
