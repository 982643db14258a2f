"""TrainingArguments: transformers' own, plus what choosing and setting up MindSpore needs."""

from openmind_compat.arguments.training_args import Seq2SeqTrainingArguments, TrainingArguments

__all__ = ["Seq2SeqTrainingArguments", "TrainingArguments"]
