"""Train a small vision transformer on handwritten digits.

An ordinary Hugging Face script but for the name of the package in the import line. The 1,797 digits of 8 x 8 pixels
come with scikit-learn, so nothing is downloaded.
"""

from __future__ import annotations

import time
from pathlib import Path
from typing import Any

import numpy as np
import torch
from sklearn.datasets import load_digits
from sklearn.model_selection import train_test_split

from openmind_compat import (
    AutoModelForImageClassification,
    EvalPrediction,
    TrainingArguments,
    ViTConfig,
    ViTForImageClassification,
    set_seed,
)
from openmind_compat.demo.recording import RecordingTrainer


def make_examples(images: np.ndarray, labels: np.ndarray) -> list[dict[str, Any]]:
    """One dictionary per digit, pixels scaled from 0..16 to -1..1, as the default collator takes them."""
    pixels = torch.tensor(images, dtype=torch.float32).unsqueeze(1) / 8.0 - 1.0
    return [{"pixel_values": image, "labels": int(label)} for image, label in zip(pixels, labels, strict=True)]


def compute_accuracy(prediction: EvalPrediction) -> dict[str, float]:
    return {"accuracy": float((prediction.predictions.argmax(axis=-1) == prediction.label_ids).mean())}


def train(
    output_dir: Path,
    framework: str,
    mode: int = 0,
    steps: int = 200,
    layers: int = 2,
    width: int = 96,
    batch_size: int = 32,
) -> dict[str, Any]:
    """Train, evaluate before and after, save; return what the summary and the picture are made from."""
    set_seed(42)

    digits = load_digits()
    train_images, eval_images, train_labels, eval_labels = train_test_split(
        digits.images, digits.target, test_size=352, random_state=42, stratify=digits.target
    )
    # Whole batches only: a smaller last batch would be a second shape, and in GRAPH mode a second compilation.
    whole = len(eval_images) // batch_size * batch_size

    model = ViTForImageClassification(
        ViTConfig(
            image_size=8,
            patch_size=2,
            num_channels=1,
            num_labels=10,
            hidden_size=width,
            intermediate_size=width * 4,
            num_hidden_layers=layers,
            num_attention_heads=max(2, width // 24),
            hidden_dropout_prob=0.0,
            attention_probs_dropout_prob=0.0,
            initializer_range=0.1,
        )
    )

    arguments = TrainingArguments(
        output_dir=str(output_dir),
        framework=framework,
        mode=mode,
        max_steps=steps,
        per_device_train_batch_size=batch_size,
        per_device_eval_batch_size=batch_size,
        dataloader_drop_last=True,
        dataloader_num_workers=0,
        dataloader_pin_memory=False,
        optim="adamw_torch",
        learning_rate=5e-4,
        adam_beta2=0.99,
        lr_scheduler_type="cosine",
        warmup_ratio=0.1,
        weight_decay=0.05,
        max_grad_norm=1.0,
        logging_steps=max(1, steps // 20),
        eval_strategy="steps",
        eval_steps=max(1, steps // 4),
        save_strategy="steps",
        save_steps=steps,
        save_total_limit=None,
        save_on_each_node=False,
        report_to="none",
        seed=42,
    )

    trainer = RecordingTrainer(
        model=model,
        args=arguments,
        train_dataset=make_examples(train_images, train_labels),
        eval_dataset=make_examples(eval_images[:whole], eval_labels[:whole]),
        compute_metrics=compute_accuracy,
    )

    started = time.perf_counter()
    before = trainer.evaluate()
    trainer.train()
    after = trainer.evaluate()
    seconds = time.perf_counter() - started

    # What was saved is a plain transformers checkpoint: load it again and let it read some digits.
    checkpoint = output_dir / f"checkpoint-{steps}"
    saved_model = AutoModelForImageClassification.from_pretrained(checkpoint)
    shown = make_examples(eval_images[:12], eval_labels[:12])
    with torch.no_grad():
        read = saved_model(pixel_values=torch.stack([example["pixel_values"] for example in shown])).logits.argmax(-1)

    return {
        "task": "image",
        "framework": framework,
        "step_losses": trainer.step_losses,
        "step_seconds": trainer.step_seconds,
        "log_history": trainer.state.log_history,
        "eval_loss": [before["eval_loss"], after["eval_loss"]],
        "metric": "accuracy",
        "metric_values": [before["eval_accuracy"], after["eval_accuracy"]],
        "seconds": seconds,
        "checkpoint": str(checkpoint),
        "sample": f"digits {eval_labels[:12].tolist()} read as {read.tolist()}",
        "parameters": model.num_parameters(),
    }
