"""From a Trainer's leaf (loss, prediction) to a flat graph of ATen operators."""

from openmind_compat.capture.errors import CaptureError
from openmind_compat.capture.signature import Signature, join_inputs, split_inputs
from openmind_compat.capture.trace import CapturedGraph, capture

__all__ = ["CaptureError", "CapturedGraph", "Signature", "capture", "join_inputs", "split_inputs"]
