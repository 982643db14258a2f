"""Evaluation and prediction of the Trainer on MindSpore against torch."""

from __future__ import annotations

import numpy as np
import pytest
import tiny
import torch
import transformers

import openmind_compat

SETTINGS = [
    (transformers.Trainer, transformers.TrainingArguments, {}),
    (openmind_compat.Trainer, openmind_compat.TrainingArguments, {"mode": tiny.PYNATIVE}),
]


def accuracy(prediction):
    predictions = prediction.predictions
    logits = predictions[0] if isinstance(predictions, tuple) else predictions
    return {"accuracy": float((logits.argmax(-1) == prediction.label_ids).mean()), "sum": float(np.abs(logits).sum())}


def both(model, rows, trainer=None, **options):
    """An untrained Trainer of each kind on the same weights."""
    return [tiny.make(cls, args, model, None, rows, trainer, **extra, **options) for cls, args, extra in SETTINGS]


def assert_same_output(a, b, bound=1e-4):
    """`predict`'s results: values, shapes, nesting."""
    if isinstance(a, (tuple, list)):
        assert type(a) is type(b) and len(a) == len(b)
        for x, y in zip(a, b):
            assert_same_output(x, y, bound)
    elif a is None:
        assert b is None
    else:
        assert a.shape == b.shape and a.dtype == b.dtype
        np.testing.assert_allclose(a, b, atol=bound, rtol=bound)


def assert_same_prediction(reference, ours, rows, **options):
    expected, got = reference.predict(rows, **options), ours.predict(rows, **options)
    assert_same_output(expected.predictions, got.predictions)
    assert_same_output(expected.label_ids, got.label_ids)
    tiny.assert_same_metrics(expected.metrics, got.metrics)


@pytest.fixture(scope="module", params=["bert-seq", "bert-token", "llama", "t5", "vit"])
def trainers(request):
    """Last batch smaller than the rest: 20 rows in batches of 8."""
    model, rows = tiny.FAMILIES[request.param]()
    return *both(model, rows[:20]), rows


def test_evaluate(trainers):
    reference, ours, _ = trainers
    tiny.assert_same_metrics(reference.evaluate(), ours.evaluate())


def test_predict(trainers):
    reference, ours, rows = trainers
    assert_same_prediction(reference, ours, rows[20:32])


def test_predict_without_labels(trainers):
    reference, ours, rows = trainers
    rows = [{name: value for name, value in row.items() if name != "labels"} for row in rows[20:32]]
    if "decoder_start_token_id" in vars(reference.model.config) and reference.model.config.is_encoder_decoder:
        rows = [{**row, "decoder_input_ids": row["input_ids"][:4]} for row in rows]
    assert_same_prediction(reference, ours, rows)


def test_metrics_and_preprocessed_logits_during_training():
    model, rows = tiny.bert_seq()
    pair = tiny.run_both(
        model,
        rows[:32],
        rows[32:],
        trainer=lambda model: {
            "compute_metrics": accuracy,
            "preprocess_logits_for_metrics": lambda logits, labels: logits.softmax(-1) * (1 + labels[:, None]),
        },
        max_steps=4,
        eval_strategy="steps",
        eval_steps=2,
        per_device_eval_batch_size=5,
    )
    tiny.assert_same_pair(pair)
    assert {"eval_accuracy", "eval_sum"} <= pair.logs.evals[0].keys()


def test_loss_only_and_metrics_in_batches():
    model, rows = tiny.bert_seq()
    reference, ours = both(model, rows[:20], prediction_loss_only=True)
    tiny.assert_same_metrics(reference.evaluate(), ours.evaluate())
    assert ours.predict(rows[:8]).predictions is None


def test_what_metrics_may_ask_for():
    def metrics(prediction):
        return {"inputs": float(prediction.inputs.sum()), "losses": float(prediction.losses.sum())}

    model, rows = tiny.bert_seq()
    reference, ours = both(model, rows[:20], {"compute_metrics": metrics}, include_for_metrics=["inputs", "loss"])
    tiny.assert_same_metrics(reference.evaluate(), ours.evaluate())


def test_metrics_batch_by_batch():
    def gathering():
        seen = []

        def metrics(prediction, compute_result):
            seen.append(float(prediction.predictions.sum()))
            return {"sum": sum(seen)} if compute_result else {}

        return metrics

    model, rows = tiny.bert_seq()
    reference, ours = [
        tiny.make(cls, args, model, None, rows[:20], {"compute_metrics": gathering()}, batch_eval_metrics=True, **extra)
        for cls, args, extra in SETTINGS
    ]
    tiny.assert_same_metrics(reference.evaluate(), ours.evaluate())


def test_several_outputs_and_ignored_ones():
    model, rows = tiny.bert_seq(output_hidden_states=True, output_attentions=True, attn_implementation="eager")
    reference, ours = both(model, rows[:20], {"compute_metrics": accuracy})
    expected = reference.predict(rows[:12])
    assert isinstance(expected.predictions, tuple)
    assert_same_prediction(reference, ours, rows[:12])
    assert_same_prediction(reference, ours, rows[:12], ignore_keys=["hidden_states"])
    assert_same_prediction(reference, ours, rows[:12], ignore_keys=["hidden_states", "attentions"])


def test_several_evaluation_sets():
    model, rows = tiny.bag()
    sets = {"small": rows[:6], "large": rows[6:]}
    pair = tiny.run_both(
        model, rows, sets, trainer=lambda model: {"compute_metrics": accuracy}, max_steps=4, eval_strategy="epoch"
    )
    tiny.assert_same_pair(pair)
    assert {name for metrics in pair.logs.evals for name in metrics} >= {"eval_small_loss", "eval_large_accuracy"}


def test_evaluation_does_not_disturb_training():
    """The mode of the modules, and the gradients of a group, are as before an evaluation."""

    class Evaluates(transformers.TrainerCallback):
        def on_substep_end(self, args, state, control, **kwargs):
            self.trainer.evaluate()

    def trainer(model):
        return {"callbacks": [Evaluates()]}

    def subclass(base):
        class Known(base):
            def train(self, *args, **kwargs):
                for callback in self.callback_handler.callbacks:
                    callback.trainer = self
                return super().train(*args, **kwargs)

        return Known

    model, rows = tiny.bag()
    pair = tiny.run_both(
        model, rows, rows[:8], trainer=trainer, subclass=subclass, gradient_accumulation_steps=3, max_steps=3
    )
    tiny.assert_same_pair(pair)


def test_own_prediction_step():
    """One that runs the model itself, in torch, sees the weights of the moment."""

    def subclass(base):
        class Own(base):
            def prediction_step(self, model, inputs, prediction_loss_only, ignore_keys=None):
                with torch.no_grad():
                    outputs = model(**self._prepare_inputs(inputs))
                return outputs["loss"], outputs["logits"], inputs["labels"]

        return Own

    model, rows = tiny.bag()
    pair = tiny.run_both(model, rows, rows[:8], subclass=subclass, max_steps=4, eval_strategy="steps", eval_steps=1)
    tiny.assert_same_pair(pair)


def test_best_model_and_early_stopping(tmp_path):
    """Large steps, so that the loss soon rises; the weights of the best evaluation come back."""
    model, rows = tiny.bag()
    results = []
    for name, (cls, args, extra) in zip(("torch", "mindspore"), SETTINGS):
        results += tiny.run(
            cls,
            args,
            tiny.bag()[0],
            rows[:24],
            rows[24:],
            trainer={"callbacks": [transformers.EarlyStoppingCallback(early_stopping_patience=2)]},
            output_dir=str(tmp_path / name),
            learning_rate=0.05,
            max_steps=40,
            eval_strategy="steps",
            eval_steps=2,
            save_strategy="steps",
            save_steps=2,
            load_best_model_at_end=True,
            metric_for_best_model="eval_loss",
            **extra,
        )
    reference, reference_logs, ours, logs = results
    tiny.assert_same_run(reference_logs, logs)
    assert ours.state.global_step == reference.state.global_step < 40
    assert ours.state.best_global_step == reference.state.best_global_step < ours.state.global_step
    tiny.assert_same_weights(reference.model, ours.model)
    assert ours.evaluate()["eval_loss"] == pytest.approx(ours.state.best_metric, rel=1e-5)


def test_evaluation_in_graph_mode():
    model, rows = tiny.bert_seq()
    reference, ours = [
        tiny.make(cls, args, model, None, rows[:24], {"compute_metrics": accuracy}, **({"mode": 0} if extra else {}))
        for cls, args, extra in SETTINGS
    ]
    tiny.assert_same_metrics(reference.evaluate(), ours.evaluate())
