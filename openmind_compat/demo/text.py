"""Train a small language model on the documentation that ships inside Python.

This is an ordinary Hugging Face script; the only thing that is ours is the name of the package in the import line.
Nothing is downloaded: the text is `pydoc_data.topics` (what `help("assert")` prints), the tokenizer is trained on it,
and the model is made from a configuration.
"""

from __future__ import annotations

import math
import re
import time
from pathlib import Path
from pydoc_data.topics import topics
from typing import Any

from datasets import Dataset
from tokenizers import Tokenizer, decoders, models, pre_tokenizers, trainers

from openmind_compat import (
    AutoModelForCausalLM,
    AutoTokenizer,
    DataCollatorForLanguageModeling,
    LlamaConfig,
    LlamaForCausalLM,
    PreTrainedTokenizerFast,
    TrainingArguments,
    set_seed,
)
from openmind_compat.demo.recording import RecordingTrainer

END_OF_TEXT = "<|endoftext|>"


def split_documentation(every: int = 8) -> tuple[list[str], list[str]]:
    """Return the training documents and the held-out ones: each `every`-th topic is held out.

    Many topics quote each other in full, so a paragraph that occurs in a held-out topic is dropped from the others.
    """
    names = sorted(topics)
    held_out = set(names[::every])
    seen: set[str] = set()

    def unseen_paragraphs(name: str) -> str:
        # One line per paragraph: where a terminal's width broke the lines is not worth learning.
        paragraphs = [" ".join(paragraph.split()) for paragraph in re.split(r"\n\s*\n", topics[name])]
        fresh = [paragraph for paragraph in dict.fromkeys(paragraphs) if paragraph and paragraph not in seen]
        seen.update(fresh)
        return "\n".join(fresh)

    evaluation = [unseen_paragraphs(name) for name in names if name in held_out]
    training = [unseen_paragraphs(name) for name in names if name not in held_out]
    return [text for text in training if text], [text for text in evaluation if text]


def train_tokenizer(texts: list[str], vocab_size: int) -> PreTrainedTokenizerFast:
    """Train a byte-level BPE tokenizer, the kind GPT-2 and Llama 3 use."""
    tokenizer = Tokenizer(models.BPE())
    tokenizer.pre_tokenizer = pre_tokenizers.ByteLevel(add_prefix_space=False)
    tokenizer.decoder = decoders.ByteLevel()
    trainer = trainers.BpeTrainer(
        vocab_size=vocab_size,
        special_tokens=[END_OF_TEXT],
        initial_alphabet=pre_tokenizers.ByteLevel.alphabet(),
        show_progress=False,
    )
    tokenizer.train_from_iterator(texts, trainer)
    return PreTrainedTokenizerFast(
        tokenizer_object=tokenizer,
        bos_token=END_OF_TEXT,
        eos_token=END_OF_TEXT,
        pad_token=END_OF_TEXT,
    )


def make_blocks(tokenizer: PreTrainedTokenizerFast, texts: list[str], length: int) -> Dataset:
    """Join the documents and cut them into blocks of one length, so that every batch has the same shape."""
    ids: list[int] = []
    for encoded in tokenizer(texts)["input_ids"]:
        ids += [*encoded, tokenizer.eos_token_id]
    return Dataset.from_dict({"input_ids": [ids[i : i + length] for i in range(0, len(ids) - length + 1, length)]})


def train(
    output_dir: Path,
    framework: str,
    mode: int = 0,
    steps: int = 400,
    layers: int = 2,
    width: int = 192,
    batch_size: int = 8,
    length: int = 64,
) -> dict[str, Any]:
    """Train, evaluate before and after, save; return what the summary and the picture are made from."""
    set_seed(42)

    training_texts, held_out_texts = split_documentation()
    tokenizer = train_tokenizer(training_texts, vocab_size=1024)
    train_dataset = make_blocks(tokenizer, training_texts, length)
    eval_dataset = make_blocks(tokenizer, held_out_texts, length)
    # Whole batches only: a smaller last batch would be a second shape, and in GRAPH mode a second compilation.
    eval_dataset = eval_dataset.select(range(len(eval_dataset) // batch_size * batch_size))

    model = LlamaForCausalLM(
        LlamaConfig(
            vocab_size=len(tokenizer),
            hidden_size=width,
            intermediate_size=width * 5 // 2,
            num_hidden_layers=layers,
            num_attention_heads=max(2, width // 48),
            max_position_embeddings=length,
            tie_word_embeddings=True,
            initializer_range=0.05,
            use_cache=False,
            bos_token_id=tokenizer.bos_token_id,
            eos_token_id=tokenizer.eos_token_id,
            pad_token_id=tokenizer.pad_token_id,
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
        # Gentle enough that rounding stays rounding. At 3e-3, with the default adam_beta2, a change of 1e-7 in the
        # first weights becomes one of 1e-3 in the loss, on one engine alone, and curves are no longer comparable.
        learning_rate=2e-3,
        adam_beta2=0.99,
        lr_scheduler_type="cosine",
        warmup_ratio=0.1,
        weight_decay=0.1,
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
        train_dataset=train_dataset,
        eval_dataset=eval_dataset,
        processing_class=tokenizer,
        data_collator=DataCollatorForLanguageModeling(tokenizer, mlm=False),
    )

    started = time.perf_counter()
    before = trainer.evaluate()
    trainer.train()
    after = trainer.evaluate()
    seconds = time.perf_counter() - started

    # What was saved is a plain transformers checkpoint: load it again and let it continue a sentence.
    checkpoint = output_dir / f"checkpoint-{steps}"
    saved_model = AutoModelForCausalLM.from_pretrained(checkpoint)
    saved_tokenizer = AutoTokenizer.from_pretrained(checkpoint)
    prompt = saved_tokenizer("The statement is", return_tensors="pt", return_token_type_ids=False)
    room = max(1, min(24, length - prompt["input_ids"].shape[1]))
    sample = saved_model.generate(**prompt, max_new_tokens=room, do_sample=False, repetition_penalty=1.2)

    return {
        "task": "text",
        "framework": framework,
        "step_losses": trainer.step_losses,
        "step_seconds": trainer.step_seconds,
        "log_history": trainer.state.log_history,
        "eval_loss": [before["eval_loss"], after["eval_loss"]],
        "metric": "perplexity",
        "metric_values": [math.exp(before["eval_loss"]), math.exp(after["eval_loss"])],
        "seconds": seconds,
        "checkpoint": str(checkpoint),
        "sample": saved_tokenizer.decode(sample[0], skip_special_tokens=True),
        "parameters": model.num_parameters(),
    }
