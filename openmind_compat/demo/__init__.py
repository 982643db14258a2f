"""`openmind-compat demo`: train a small model on real data that needs no download.

`text.py` and `image.py` are the scripts, written as any Hugging Face script is; this file reads the command line,
runs one of them, on a second engine too with `--compare`, and prints and draws what came out.
"""

from __future__ import annotations

import argparse
import importlib.util
import json
import os
import statistics
import sys
from collections.abc import Sequence
from pathlib import Path
from typing import Any, Optional

DEFAULT_OUTPUT = "openmind-demo"


def build_parser() -> argparse.ArgumentParser:
    parser = argparse.ArgumentParser(
        prog="openmind-compat demo",
        description="Train a small model on real data that needs no download, and draw its loss curve.",
    )
    parser.add_argument(
        "--task",
        choices=("text", "image"),
        default="text",
        help="text (default): a language model on Python's own documentation; "
        "image: a vision transformer on scikit-learn's digits",
    )
    parser.add_argument("--compare", action="store_true", help="run the same script on PyTorch too and compare")
    parser.add_argument(
        "--output",
        type=Path,
        default=Path(DEFAULT_OUTPUT),
        metavar="DIR",
        help=f"where everything is written (default: ./{DEFAULT_OUTPUT})",
    )
    parser.add_argument("--steps", type=int, help="optimizer steps (default: 400 for text, 200 for image)")
    parser.add_argument(
        "--framework",
        choices=("ms", "pt"),
        default=None,
        help="ms: MindSpore (default), pt: PyTorch; OPENMIND_FRAMEWORK is respected",
    )
    parser.add_argument(
        "--mode",
        type=int,
        choices=(0, 1),
        default=0,
        help="MindSpore's mode, 0: GRAPH (default), 1: PYNATIVE, much slower on a CPU",
    )
    size = parser.add_argument_group("size of the model and of a batch, for very short runs")
    size.add_argument("--layers", type=int)
    size.add_argument("--width", type=int)
    size.add_argument("--batch-size", type=int)
    size.add_argument("--length", type=int, help="tokens per example, text only")
    return parser


def missing_packages(task: str) -> list[str]:
    needed = ["matplotlib"] + (["sklearn"] if task == "image" else [])
    return [name for name in needed if importlib.util.find_spec(name) is None]


def print_comparison(run: dict[str, Any], reference: dict[str, Any]) -> None:
    """The two runs side by side, and the largest difference between their losses at one step."""
    from openmind_compat.demo.plot import NAMES, relative_differences

    rows = [("", *(NAMES[each["framework"]] for each in (run, reference)))]

    def add(title: str, form: str, *values: float) -> None:
        rows.append((title, *(format(value, form) for value in values)))

    both = (run, reference)
    add("training loss, last step", ".6f", *(each["step_losses"][-1] for each in both))
    add("evaluation loss", ".6f", *(each["eval_loss"][1] for each in both))
    add(run["metric"], ".4f", *(each["metric_values"][1] for each in both))
    add("wall time, s", ".1f", *(each["seconds"] for each in both))
    if all(len(each["step_seconds"]) > 1 for each in both):
        add("first step, s (with compilation)", ".2f", *(each["step_seconds"][0] for each in both))
        add("median step, s", ".3f", *(statistics.median(each["step_seconds"]) for each in both))
    widths = [max(len(row[column]) for row in rows) for column in range(3)]
    print()
    for title, ours, theirs in rows:
        print(f"{title:<{widths[0]}}  {ours:>{widths[1]}}  {theirs:>{widths[2]}}")
    differences = relative_differences(run, reference)
    worst = max(range(len(differences)), key=differences.__getitem__)
    print(f"largest relative difference of the loss at one step: {differences[worst]:.1e} (step {worst + 1})")


def main(argv: Optional[Sequence[str]] = None) -> int:
    """Run the demo; 0 when the loss fell, 1 when it did not, 2 when something is missing."""
    options = build_parser().parse_args(argv)
    if options.steps is not None and options.steps < 1:
        print("--steps must be at least 1", file=sys.stderr)
        return 2
    missing = missing_packages(options.task)
    if missing:
        print(f"The demo needs {', '.join(missing)}: pip install 'openmind-compat[demo]'", file=sys.stderr)
        return 2

    # After the checks above, since these bring in torch and transformers.
    if options.task == "text":
        from openmind_compat.demo.text import train
    else:
        from openmind_compat.demo.image import train
    from openmind_compat.demo.plot import draw_losses

    sizes = {
        name: getattr(options, name)
        for name in ("steps", "layers", "width", "batch_size", "length")
        if getattr(options, name) is not None and not (name == "length" and options.task == "image")
    }
    # This demo is there to show MindSpore, so it does not leave the choice to what happens to be installed.
    framework = options.framework or os.environ.get("OPENMIND_FRAMEWORK") or "ms"
    frameworks = [framework]
    if options.compare:
        frameworks.append("pt" if framework == "ms" else "ms")

    runs = []
    for name in frameworks:
        folder = options.output / f"{options.task}-{name}"
        folder.mkdir(parents=True, exist_ok=True)
        runs.append(train(output_dir=folder, framework=name, mode=options.mode, **sizes))

    picture = options.output / "loss.png"
    draw_losses(runs, picture)
    (options.output / "results.json").write_text(json.dumps(runs, indent=1))

    if options.compare:
        print_comparison(runs[0], runs[1])

    run = runs[0]
    before, after = run["eval_loss"]
    print()
    print(f"sample      {run['sample']!r}")
    print(f"checkpoint  {run['checkpoint']}")
    print(f"picture     {picture}")
    print(f"evaluation loss  {before:.4f} -> {after:.4f}")
    print(f"{run['metric']:<16} {run['metric_values'][0]:.4g} -> {run['metric_values'][1]:.4g}")
    print(f"time             {run['seconds']:.0f} s, {run['parameters']:,} parameters, {len(run['step_losses'])} steps")

    if not all(each["eval_loss"][1] < each["eval_loss"][0] for each in runs):
        print("The evaluation loss did not fall.", file=sys.stderr)
        return 1
    return 0
