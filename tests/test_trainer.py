"""The Trainer on MindSpore against transformers' Trainer on torch: the loss, what goes into it, and what is refused.

Where the mode makes no difference PYNATIVE is used, which compiles nothing.
"""

from __future__ import annotations

import logging

import pytest
import tiny
import torch
import transformers
from torch.nn import functional
from transformers import DataCollatorForLanguageModeling, DataCollatorForSeq2Seq, DataCollatorWithPadding

import openmind_compat
from openmind_compat.log import get_logger

MODES = [tiny.GRAPH, tiny.PYNATIVE]
ids = {tiny.GRAPH: "graph", tiny.PYNATIVE: "pynative"}.get

BAG, ROWS = tiny.bag()
EVALUATED = dict(eval_strategy="steps", eval_steps=3)
SHORT = dict(max_steps=6, **EVALUATED)


@pytest.fixture
def warnings_of_the_package():
    """Messages of the package's logger, which does not hand them on to pytest's."""
    messages = []
    handler = logging.Handler()
    handler.emit = lambda record: messages.append(record.getMessage())
    logger = get_logger()
    logger.addHandler(handler)
    yield messages
    logger.removeHandler(handler)


# -- compute_loss ----------------------------------------------------------------------------------------------------


def weighted_loss(trainer, model, inputs):
    """A script's loss: takes the labels out of the batch, weighs classes by a tensor that the Trainer holds."""
    labels = inputs.pop("labels")
    outputs = model(**inputs)
    return functional.cross_entropy(outputs["logits"], labels, weight=trainer.class_weights), outputs


def with_class_weights(compute_loss):
    """A subclass of a Trainer with class weights and this `compute_loss`."""

    def subclass(base):
        def __init__(self, *args, **kwargs):
            super(cls, self).__init__(*args, **kwargs)
            self.class_weights = torch.tensor([0.2, 1.0, 3.0])
            self.model_accepts_loss_kwargs = False  # as transformers advises for a loss that ignores num_items

        cls = type("Weighted", (base,), {"__init__": __init__, "compute_loss": compute_loss})
        return cls

    return subclass


def named_argument(self, model, inputs, return_outputs=False, num_items_in_batch=None):
    loss, outputs = weighted_loss(self, model, inputs)
    return (loss, outputs) if return_outputs else loss


def any_keyword(self, model, inputs, return_outputs=False, **kwargs):
    return named_argument(self, model, inputs, return_outputs)


def before_num_items(self, model, inputs, return_outputs=False):
    return named_argument(self, model, inputs, return_outputs)


def model_and_inputs(self, model, inputs):
    return weighted_loss(self, model, inputs)[0]


@pytest.fixture(scope="module")
def weighted_reference():
    """transformers itself takes the first two signatures only; all four compute the same."""
    trainer = with_class_weights(named_argument)(transformers.Trainer)
    model, rows = tiny.bag()
    return tiny.run(trainer, transformers.TrainingArguments, model, rows, rows[:12], **SHORT, **ACCUMULATED)


ACCUMULATED = dict(gradient_accumulation_steps=2)


@pytest.mark.parametrize("compute_loss", [named_argument, any_keyword, before_num_items])
def test_compute_loss_of_every_signature(compute_loss, weighted_reference):
    reference, reference_logs = weighted_reference
    trainer = with_class_weights(compute_loss)(openmind_compat.Trainer)
    ours, logs = tiny.run(
        trainer, openmind_compat.TrainingArguments, *tiny.bag(), ROWS[:12], mode=1, **SHORT, **ACCUMULATED
    )
    tiny.assert_same_run(reference_logs, logs)
    tiny.assert_same_weights(reference.model, ours.model)


def test_compute_loss_that_takes_model_and_inputs_only(weighted_reference):
    reference, reference_logs = weighted_reference
    trainer = with_class_weights(model_and_inputs)(openmind_compat.Trainer)
    # Without `return_outputs` there is no evaluation, on torch neither.
    ours, logs = tiny.run(trainer, openmind_compat.TrainingArguments, *tiny.bag(), mode=1, max_steps=6, **ACCUMULATED)
    assert tiny.relative(reference_logs.loss, logs.loss) < 1e-4
    tiny.assert_same_weights(reference.model, ours.model)


def test_compute_loss_through_super_in_graph_mode():
    def subclass(base):
        class Penalised(base):
            def compute_loss(self, model, inputs, return_outputs=False, num_items_in_batch=None):
                loss, outputs = super().compute_loss(model, inputs, True, num_items_in_batch=num_items_in_batch)
                loss = loss + 1e-2 * sum(p.square().sum() for p in model.parameters() if p.dim() > 1)
                return (loss, outputs) if return_outputs else loss

        return Penalised

    pair = tiny.run_both(BAG, ROWS, ROWS[:12], mode=tiny.GRAPH, subclass=subclass, **SHORT)
    tiny.assert_same_pair(pair)


@pytest.mark.parametrize("accumulation", [1, 4])
def test_compute_loss_func(accumulation):
    def summed(outputs, labels, num_items_in_batch=None):
        loss = functional.cross_entropy(outputs["logits"], labels, reduction="sum")
        return loss / (len(labels) if num_items_in_batch is None else num_items_in_batch)

    pair = tiny.run_both(
        BAG,
        ROWS[:43],
        ROWS[:10],
        trainer=lambda model: {"compute_loss_func": summed},
        num_train_epochs=2,
        gradient_accumulation_steps=accumulation,
        eval_strategy="epoch",
    )
    tiny.assert_same_pair(pair)


@pytest.mark.parametrize("family", ["bert-seq", "bert-mlm", "gpt2"])
def test_label_smoothing(family):
    model, rows = tiny.FAMILIES[family]()
    pair = tiny.run_both(model, rows, rows[:10], label_smoothing_factor=0.1, **SHORT)
    tiny.assert_same_pair(pair)


def test_model_without_config_that_returns_tuples_in_graph_mode():
    model, rows = tiny.bag(outputs="tuple")
    pair = tiny.run_both(model, rows, rows[:10], mode=tiny.GRAPH, **SHORT)
    tiny.assert_same_pair(pair)


def test_model_that_changes_its_buffers():
    model, rows = tiny.bag(norm=True)
    pair = tiny.run_both(model, rows, rows[:10], optim="sgd", learning_rate=0.1, **SHORT)
    tiny.assert_same_pair(pair)
    assert pair.ours.model.norm.num_batches_tracked == 6


def test_loss_of_one_element():
    def subclass(base):
        class OneElement(base):
            def compute_loss(self, model, inputs, return_outputs=False, **kwargs):
                outputs = model(**inputs)
                return (outputs["loss"].reshape(1), outputs) if return_outputs else outputs["loss"].reshape(1)

        return OneElement

    tiny.assert_same_pair(tiny.run_both(BAG, ROWS, subclass=subclass, max_steps=4))


# -- accumulation and clipping ---------------------------------------------------------------------------------------


@pytest.mark.parametrize("accumulation", [1, 4])
@pytest.mark.parametrize("family", ["bert-mlm", "qwen2"])
def test_accumulation_with_short_groups_and_uneven_labels(family, accumulation):
    """43 examples in batches of 4: the last batch has 3, and the last group 3 batches. Qwen2 counts the labels."""
    model, rows = tiny.FAMILIES[family]()
    for i, row in enumerate(rows):
        row["labels"][2 : 2 + i % 6] = -100
    pair = tiny.run_both(
        model, rows[:43], num_train_epochs=2, gradient_accumulation_steps=accumulation, max_grad_norm=0.5
    )
    tiny.assert_same_pair(pair)
    assert len(pair.logs.loss) == (22 if accumulation == 1 else 6)


def test_accumulation_in_graph_mode():
    model, rows = tiny.llama()
    # Whole batches: every shape would be one more compilation.
    pair = tiny.run_both(model, rows[:44], mode=tiny.GRAPH, num_train_epochs=2, gradient_accumulation_steps=4)
    tiny.assert_same_pair(pair)


@pytest.mark.parametrize("limit", [0.0, None, 1e-2, 100.0])
def test_clipping(limit):
    pair = tiny.run_both(BAG, ROWS, max_grad_norm=limit, max_steps=5, optim="sgd", learning_rate=0.5)
    tiny.assert_same_pair(pair)
    assert (pair.logs.grad_norm[0] is None) == (not limit)


def test_loss_that_is_not_a_number():
    """It spoils every weight, clipped or not, so that nobody overlooks it."""

    def subclass(base):
        class Spoilt(base):
            def compute_loss(self, model, inputs, return_outputs=False, num_items_in_batch=None):
                return model(**inputs)["loss"] + (model.hidden.bias * float("nan")).sum()

        return Spoilt

    pair = tiny.run_both(BAG, ROWS, subclass=subclass, optim="sgd", max_steps=1)
    for trainer in (pair.reference, pair.ours):
        assert all(value.isnan().all() for value in trainer.model.state_dict().values())


def test_gradients_of_an_unfinished_group_are_forgotten():
    """A run that stops within an accumulation group leaves nothing behind for the next."""

    class StopWithinGroup(transformers.TrainerCallback):
        def on_substep_end(self, args, state, control, **kwargs):
            control.should_training_stop = state.global_step == 2
            return control

    def train_twice(package, **mode):
        options = dict(max_steps=4, gradient_accumulation_steps=3, **mode)
        trainer = tiny.make(package.Trainer, package.TrainingArguments, tiny.bag()[0], ROWS, **options)
        stop = StopWithinGroup()
        trainer.add_callback(stop)
        trainer.train()
        trainer.remove_callback(stop)
        logs = tiny.record(trainer)
        trainer.train()
        return trainer, logs

    reference, reference_logs = train_twice(transformers)
    ours, logs = train_twice(openmind_compat, mode=tiny.PYNATIVE)
    tiny.assert_same_run(reference_logs, logs)
    tiny.assert_same_weights(reference.model, ours.model)


# -- dropout ---------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("mode", MODES, ids=ids)
def test_dropout_is_active_in_training_only(mode):
    model, rows = tiny.bag(dropout=0.5)
    same_batch = [rows[0]] * 16

    def run():
        return tiny.run(
            openmind_compat.Trainer,
            openmind_compat.TrainingArguments,
            tiny.bag(dropout=0.5)[0],
            same_batch,
            rows[:8],
            mode=mode,
            max_steps=4,
            learning_rate=0.0,
            eval_strategy="steps",
            eval_steps=2,
        )

    trainer, logs = run()
    assert len(set(logs.loss)) == 4, "every step draws anew"
    without = tiny.run(
        transformers.Trainer,
        transformers.TrainingArguments,
        tiny.bag(dropout=0.5)[0],
        same_batch,
        rows[:8],
        max_steps=4,
        learning_rate=0.0,
        eval_strategy="steps",
        eval_steps=2,
    )[1]
    for a, b in zip(without.evals, logs.evals):
        tiny.assert_same_metrics(a, b)
    assert run()[1].loss == logs.loss, "the same seed draws the same"


def test_dropout_differs_between_seeds():
    losses = [
        tiny.run(
            openmind_compat.Trainer,
            openmind_compat.TrainingArguments,
            tiny.bag(dropout=0.5)[0],
            [ROWS[0]] * 8,
            mode=1,
            max_steps=2,
            seed=seed,
        )[1].loss
        for seed in (1, 2)
    ]
    assert losses[0] != losses[1]


# -- data ------------------------------------------------------------------------------------------------------------


@pytest.fixture(scope="module")
def tokenizer():
    from tokenizers import Tokenizer, models, pre_tokenizers

    words = ["[PAD]", "[UNK]", "[MASK]", "[CLS]", "[SEP]", *(f"w{i}" for i in range(tiny.VOCABULARY - 5))]
    backend = Tokenizer(models.WordLevel({word: i for i, word in enumerate(words)}, unk_token="[UNK]"))
    backend.pre_tokenizer = pre_tokenizers.Whitespace()
    special = dict(pad_token="[PAD]", unk_token="[UNK]", mask_token="[MASK]", cls_token="[CLS]", sep_token="[SEP]")
    return transformers.PreTrainedTokenizerFast(tokenizer_object=backend, **special)


def sentences(n=36):
    generator = torch.Generator().manual_seed(4)
    lengths = torch.randint(2, 7, (n,), generator=generator).tolist()
    words = [torch.randint(0, tiny.VOCABULARY - 5, (length,), generator=generator).tolist() for length in lengths]
    return [" ".join(f"w{i}" for i in sentence) for sentence in words]


def test_padding_to_the_longest_of_a_batch(tokenizer):
    """BatchEncoding batches, whose length differs, from a `datasets.Dataset` with a column the model does not take."""
    import datasets

    text = sentences()
    rows = datasets.Dataset.from_dict({"text": text, "label": [len(t) % 2 for t in text]})
    rows = rows.map(lambda row: tokenizer(row["text"]), load_from_cache_file=False)
    pair = tiny.run_both(
        tiny.bert_seq()[0],
        rows,
        rows.select(range(10)),
        trainer=lambda model: {"data_collator": DataCollatorWithPadding(tokenizer), "processing_class": tokenizer},
        **SHORT,
    )
    tiny.assert_same_pair(pair)


def test_group_by_length(tokenizer):
    rows = [{**tokenizer(text), "labels": len(text) % 2} for text in sentences()]
    pair = tiny.run_both(
        BAG,
        rows,
        trainer=lambda model: {"data_collator": DataCollatorWithPadding(tokenizer)},
        group_by_length=True,
        remove_unused_columns=True,
        max_steps=6,
    )
    tiny.assert_same_pair(pair)


def test_masking_in_the_collator(tokenizer):
    """The masks are drawn from torch's random numbers: nothing else may draw any."""
    rows = [tokenizer(text, padding="max_length", max_length=8) for text in sentences()]
    pair = tiny.run_both(
        tiny.bert_mlm()[0],
        rows,
        rows[:10],
        trainer=lambda model: {"data_collator": DataCollatorForLanguageModeling(tokenizer, mlm_probability=0.4)},
        **SHORT,
    )
    tiny.assert_same_pair(pair)


def test_causal_collator_with_accumulation(tokenizer):
    rows = [tokenizer(text, padding="max_length", max_length=8) for text in sentences()]
    pair = tiny.run_both(
        tiny.llama()[0],
        rows,
        trainer=lambda model: {"data_collator": DataCollatorForLanguageModeling(tokenizer, mlm=False)},
        max_steps=4,
        gradient_accumulation_steps=2,
    )
    tiny.assert_same_pair(pair)


def test_iterable_dataset():
    import datasets

    def generate():
        for row in ROWS:
            yield {name: value.tolist() for name, value in row.items()}

    pair = tiny.run_both(BAG, datasets.IterableDataset.from_generator(generate), max_steps=15)
    tiny.assert_same_pair(pair)


class Measured(torch.nn.Module):
    """A regression whose batch has floats, a truth value and a small integer."""

    def __init__(self):
        super().__init__()
        self.linear = torch.nn.Linear(5, 1)

    def forward(self, x, keep, shift, labels=None):
        y = self.linear(x.float()).squeeze(-1) * keep + shift
        return {"logits": y} if labels is None else {"loss": (y - labels).square().mean(), "logits": y}


@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16, torch.float16, torch.float64])
def test_batches_of_other_types(dtype):
    generator = torch.Generator().manual_seed(3)
    rows = [
        {
            "x": torch.randn(5, generator=generator).to(dtype),
            "keep": torch.tensor(i % 3 > 0),
            "shift": torch.tensor(i % 2, dtype=torch.int32),
            "labels": torch.tensor(float(i % 5)),
        }
        for i in range(20)
    ]

    def collate(batch):
        return {name: torch.stack([row[name] for row in batch]) for name in batch[0]}

    torch.manual_seed(0)
    pair = tiny.run_both(Measured(), rows, rows[:9], trainer=lambda model: {"data_collator": collate}, **SHORT)
    tiny.assert_same_pair(pair)


# -- sequence to sequence --------------------------------------------------------------------------------------------


@pytest.fixture(scope="module")
def sequence_pair(tokenizer):
    model, rows = tiny.t5()
    rows = [{name: value.tolist() for name, value in row.items()} for row in rows]

    def token_sum(prediction):
        return {"sum": float(prediction.predictions.sum()), "width": prediction.predictions.shape[1]}

    return tiny.run_both(
        model,
        rows[:32],
        rows[32:],
        seq2seq=True,
        trainer=lambda model: {
            "data_collator": DataCollatorForSeq2Seq(tokenizer, model=model, pad_to_multiple_of=12),
            "compute_metrics": token_sum,
        },
        predict_with_generate=True,
        generation_max_length=6,
        learning_rate=0.02,
        max_steps=6,
        eval_strategy="steps",
        eval_steps=2,
    )


def test_sequence_to_sequence(sequence_pair):
    tiny.assert_same_pair(sequence_pair)
    sums = [metrics["eval_sum"] for metrics in sequence_pair.logs.evals]
    assert len(set(sums)) > 1, "generation uses the weights of the moment"


def test_generation_after_training(sequence_pair):
    rows = sequence_pair.reference.eval_dataset
    expected = sequence_pair.reference.predict(rows, max_length=5)
    predicted = sequence_pair.ours.predict(rows, max_length=5)
    assert (expected.predictions == predicted.predictions).all()
    tiny.assert_same_metrics(expected.metrics, predicted.metrics)


def test_sequence_to_sequence_classes():
    trainer, args = openmind_compat.Seq2SeqTrainer, openmind_compat.Seq2SeqTrainingArguments
    assert issubclass(trainer, (openmind_compat.Trainer)) and issubclass(trainer, transformers.Seq2SeqTrainer)
    assert issubclass(args, openmind_compat.TrainingArguments)
    assert issubclass(args, transformers.Seq2SeqTrainingArguments)


# -- what is refused, and what is said -------------------------------------------------------------------------------


def make_ours(subclass=openmind_compat.Trainer, model=None, **options):
    args = openmind_compat.TrainingArguments
    return tiny.make(subclass, args, model or tiny.bag()[0], ROWS, **{"mode": 1, "max_steps": 2, **options})


def test_own_training_step_is_refused():
    class Own(openmind_compat.Trainer):
        def training_step(self, model, inputs, num_items_in_batch=None):
            loss = self.compute_loss(model, inputs)
            loss.backward()
            return loss.detach()

    with pytest.raises(ValueError, match=r"Own\.training_step.*compute_loss.*framework='pt'"):
        make_ours(Own)
    reference = tiny.make(Own, openmind_compat.TrainingArguments, tiny.bag()[0], ROWS, framework="pt", max_steps=2)
    reference.train()


def test_training_step_that_calls_super():
    def subclass(base):
        class Counting(base):
            seen = 0

            def training_step(self, model, inputs, num_items_in_batch=None):
                self.seen += len(inputs["labels"])
                return super().training_step(model, inputs, num_items_in_batch) * 1.0

        return Counting

    pair = tiny.run_both(BAG, ROWS, subclass=subclass, max_steps=4)
    tiny.assert_same_pair(pair)
    assert pair.ours.seen == pair.reference.seen == 16


def test_unsupported_optimizer_is_refused():
    model = tiny.bag()[0]
    with pytest.raises(ValueError, match=r"RMSprop.*AdamW.*framework='pt'"):
        make_ours(model=model, trainer={"optimizers": (torch.optim.RMSprop(model.parameters()), None)})


def test_optimizer_option_without_a_translation_is_refused():
    model = tiny.bag()[0]
    with pytest.raises(ValueError, match=r"amsgrad=True.*framework='pt'"):
        make_ours(model=model, trainer={"optimizers": (torch.optim.AdamW(model.parameters(), amsgrad=True), None)})


def test_optimizer_of_another_model_is_refused():
    with pytest.raises(ValueError, match="not part of the model"):
        make_ours(trainer={"optimizers": (torch.optim.AdamW(tiny.bag()[0].parameters()), None)})


@pytest.mark.parametrize("dtype", [torch.bfloat16, torch.float16, torch.float64])
def test_model_in_another_precision_is_refused(dtype):
    with pytest.raises(ValueError, match=rf"embedding\.weight is {dtype}.*float32"):
        make_ours(model=tiny.bag()[0].to(dtype))


class WithUnknownOperators(tiny.Bag):
    def forward(self, input_ids, attention_mask, labels=None):
        outputs = super().forward(input_ids, attention_mask, labels)
        spectrum = torch.fft.fft(outputs["logits"])  # unknown 1
        values = torch.linalg.svdvals(self.hidden.weight)  # unknown 2
        return {**outputs, "loss": outputs["loss"] + spectrum.abs().sum() + values.sum()}


def test_unknown_operators_are_all_named_with_their_lines():
    with pytest.raises(NotImplementedError) as caught:
        make_ours(model=WithUnknownOperators()).train()
    message = str(caught.value)
    for operator, mark in (("aten._fft_c2c", "# unknown 1"), ("aten._linalg_svd", "# unknown 2")):
        assert operator in message and mark in message
    assert f"{__file__}:" in message and "framework='pt'" in message


def test_reading_a_value_names_the_line_and_the_remedy():
    class Reads(openmind_compat.Trainer):
        def compute_loss(self, model, inputs, return_outputs=False, num_items_in_batch=None):
            loss = model(**inputs)["loss"]
            self.log({"own": loss.item()})  # reads
            return loss

    with pytest.raises(RuntimeError, match=r"(?s)test_trainer\.py:\d+.*# reads.*framework='pt'"):
        make_ours(Reads).train()


def test_loss_that_branches_on_data_names_the_line():
    class Branches(openmind_compat.Trainer):
        def compute_loss(self, model, inputs, return_outputs=False, num_items_in_batch=None):
            loss = model(**inputs)["loss"]
            return loss * 2 if loss > 1 else loss  # branches

    with pytest.raises(RuntimeError, match=r"(?s)# branches.*framework='pt'"):
        make_ours(Branches).train()


def test_side_effects_of_the_loss_are_reported_once(warnings_of_the_package):
    class Keeps(openmind_compat.Trainer):
        def compute_loss(self, model, inputs, return_outputs=False, num_items_in_batch=None):
            loss = model(**inputs)["loss"]
            self.__dict__.setdefault("kept_losses", []).append(loss)
            self.last_logits = model(**inputs)["logits"].detach()
            return loss

    make_ours(Keeps).train()
    assert [message for message in warnings_of_the_package if "'kept_losses'" in message]
    assert len([message for message in warnings_of_the_package if "'last_logits'" in message]) == 1


def test_loss_that_depends_on_the_state_is_reported(warnings_of_the_package):
    class Anneals(openmind_compat.Trainer):
        def compute_loss(self, model, inputs, return_outputs=False, num_items_in_batch=None):
            return model(**inputs)["loss"] * (1 + self.state.global_step)

    trainer = make_ours(Anneals)
    trainer.train()
    assert [message for message in warnings_of_the_package if "state.global_step" in message]
    assert isinstance(trainer.state, transformers.TrainerState)


@pytest.mark.parametrize("problem", ["text", "vector", "constant"])
def test_loss_that_is_none(problem):
    class Wrong(openmind_compat.Trainer):
        def compute_loss(self, model, inputs, return_outputs=False, num_items_in_batch=None):
            logits = model(**inputs)["logits"]
            return {"text": "loss", "vector": logits.sum(0), "constant": inputs["labels"].float().sum()}[problem]

    with pytest.raises(RuntimeError, match="loss"):
        make_ours(Wrong).train()


# -- which Trainer it is ---------------------------------------------------------------------------------------------


def test_it_is_a_transformers_trainer():
    assert isinstance(make_ours(), transformers.Trainer)
    assert isinstance(make_ours().args, transformers.TrainingArguments)


@pytest.mark.parametrize("accumulation", [1, 2])
def test_framework_pt_is_transformers_to_the_last_bit(accumulation):
    model, rows = tiny.bert_seq(hidden_dropout_prob=0.1)
    options = dict(max_steps=4, gradient_accumulation_steps=accumulation, **EVALUATED)
    pair = tiny.run_both(model, rows, rows[:12], framework="pt", **options)
    assert pair.logs.micro == pair.reference_logs.micro
    assert pair.logs.grad_norm == pair.reference_logs.grad_norm
    assert tiny.weight_difference(pair.reference.model, pair.ours.model)[0] == 0
    assert type(pair.ours.optimizer.optimizer) is torch.optim.AdamW
    with pytest.raises(AttributeError, match="framework='pt'"):
        _ = pair.ours.engine


def test_arguments_of_transformers_train_on_torch():
    """A script may change one of the two imports only."""
    trainer = tiny.make(openmind_compat.Trainer, transformers.TrainingArguments, tiny.bag()[0], ROWS, max_steps=2)
    trainer.train()
    assert type(trainer.optimizer.optimizer) is torch.optim.AdamW
