"""The demo, very short: it trains, evaluates, saves, draws, and says by its exit code whether the loss fell."""

from __future__ import annotations

import json
import os
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest

TEXT = ["--steps", "12", "--layers", "1", "--width", "64", "--batch-size", "8", "--length", "32"]
IMAGE = ["--task", "image", "--steps", "40", "--layers", "1", "--width", "48", "--batch-size", "16"]


def run_demo(folder: Path, *options: str) -> subprocess.CompletedProcess[str]:
    # A process of its own, in an empty folder, as a user runs it; that also shows what is written beside the output.
    environment = {**os.environ, "PYTHONPATH": str(Path(__file__).resolve().parent.parent)}
    environment.pop("OPENMIND_FRAMEWORK", None)
    # Two threads on a busy machine wait for each other; a model this small is faster with one.
    environment["OMP_NUM_THREADS"] = "1"
    return subprocess.run(
        [sys.executable, "-m", "openmind_compat.demo", *options],
        cwd=folder,
        env=environment,
        capture_output=True,
        text=True,
        timeout=180,
    )


def check_output(
    folder: Path, done: subprocess.CompletedProcess[str], run_name: str, steps: int
) -> list[dict[str, Any]]:
    assert done.returncode == 0, done.stdout + done.stderr
    assert sorted(path.name for path in folder.iterdir()) == ["out"]
    assert (folder / "out" / "loss.png").read_bytes().startswith(b"\x89PNG\r\n\x1a\n")
    checkpoint = folder / "out" / run_name / f"checkpoint-{steps}"
    for name in ("model.safetensors", "config.json", "optimizer.pt", "scheduler.pt", "trainer_state.json"):
        assert (checkpoint / name).is_file()
    runs = json.loads((folder / "out" / "results.json").read_text())
    for run in runs:
        before, after = run["eval_loss"]
        assert after < before
        assert len(run["step_losses"]) == steps
    assert "evaluation loss" in done.stdout and str(Path("out") / "loss.png") in done.stdout
    return runs


def test_text_on_both_engines_gives_one_curve(tmp_path: Path) -> None:
    pytest.importorskip("mindspore")
    done = run_demo(tmp_path, "--compare", "--output", "out", *TEXT)
    runs = check_output(tmp_path, done, "text-ms", 12)
    assert [run["framework"] for run in runs] == ["ms", "pt"]
    assert (tmp_path / "out" / "text-pt" / "checkpoint-12").is_dir()
    ours, reference = (run["step_losses"] for run in runs)
    assert ours == pytest.approx(reference, rel=1e-4)
    assert runs[0]["metric_values"] == pytest.approx(runs[1]["metric_values"], rel=1e-3)
    assert "largest relative difference" in done.stdout


def test_image_on_torch(tmp_path: Path) -> None:
    done = run_demo(tmp_path, "--framework", "pt", "--output", "out", *IMAGE)
    (run,) = check_output(tmp_path, done, "image-pt", 40)
    assert run["metric"] == "accuracy" and 0.0 <= run["metric_values"][1] <= 1.0


def test_exit_code_says_that_the_loss_did_not_fall(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    import openmind_compat.demo as demo
    import openmind_compat.demo.text as text

    result = {
        "task": "text",
        "framework": "pt",
        "step_losses": [2.0, 2.5],
        "step_seconds": [0.1],
        "log_history": [{"step": 2, "eval_loss": 2.5}],
        "eval_loss": [2.0, 2.5],
        "metric": "perplexity",
        "metric_values": [7.4, 12.2],
        "seconds": 1.0,
        "checkpoint": "checkpoint-2",
        "sample": "",
        "parameters": 1,
    }
    monkeypatch.setattr(text, "train", lambda **_: result)
    assert demo.main(["--framework", "pt", "--output", str(tmp_path)]) == 1


def test_unusable_options_are_refused(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    from openmind_compat.demo import main

    assert main(["--steps", "0", "--output", str(tmp_path)]) == 2
    assert "--steps" in capsys.readouterr().err


def test_no_paragraph_is_in_both_splits() -> None:
    from openmind_compat.demo.text import split_documentation

    training, evaluation = ({line for text in texts for line in text.split("\n")} for texts in split_documentation())
    assert training and evaluation
    assert not training & evaluation
