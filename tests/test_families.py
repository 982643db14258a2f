"""Each model family trains on MindSpore as transformers' Trainer trains it on torch: the same losses, step by step.

Weight decay, warm-up and clipping are on. Accumulation 1 runs in GRAPH mode, accumulation 4 in PYNATIVE, so that each
family passes through both.
"""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest
from tiny import FAMILIES, GRAPH, PYNATIVE, Pair, assert_same_pair, run_both

STEPS = 32


def accuracy(prediction: Any) -> dict[str, float]:
    """Share of right answers among those that count; the numbers depend on every logit."""
    logits = prediction.predictions[0] if isinstance(prediction.predictions, tuple) else prediction.predictions
    labels = prediction.label_ids
    counted = labels != -100
    return {
        "accuracy": float((logits.argmax(-1) == labels)[counted].mean()),
        "spread": float(np.abs(logits).mean()),
    }


def train(family: str, mode: int, accumulation: int) -> Pair:
    model, rows = FAMILIES[family]()
    return run_both(
        model,
        rows,
        rows[:20],  # a full batch of evaluation and short ones
        mode=mode,
        trainer=lambda model: {"compute_metrics": accuracy},
        max_steps=STEPS,
        gradient_accumulation_steps=accumulation,
        weight_decay=0.05,
        warmup_steps=5,
        max_grad_norm=0.5,
        lr_scheduler_type="cosine",
        eval_strategy="steps",
        eval_steps=STEPS // 2,
    )


@pytest.mark.parametrize(("mode", "accumulation"), [(GRAPH, 1), (PYNATIVE, 4)], ids=["graph", "pynative-accumulated"])
@pytest.mark.parametrize("family", FAMILIES)
def test_a_family_trains_as_on_torch(family: str, mode: int, accumulation: int) -> None:
    pair = train(family, mode, accumulation)
    logs, reference = pair.logs, pair.reference_logs
    assert len(logs.loss) == STEPS
    assert_same_pair(pair, loss=1e-4, grad_norm=1e-3, evals=1e-4, weights=1e-4)
    # The comparison means something: the weights moved, clipping cut, and the schedule rose and fell.
    assert abs(reference.loss[-1] - reference.loss[0]) > 1e-3
    assert max(reference.grad_norm) > 0.5
    assert reference.lr[0] < max(reference.lr) > reference.lr[-1]
    assert len(logs.evals) == 2 and "eval_accuracy" in logs.evals[0]
