"""The one place where the training step asks which device it is on."""

from mindspore import context


def runs_on_cpu() -> bool:
    """Whether MindSpore's device is the CPU, which lacks the overflow kernels and has slow reductions."""
    return context.get_context("device_target") == "CPU"
