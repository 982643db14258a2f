"""From a graph of ATen operators to a MindSpore Cell, by one table of operators."""

from openmind_compat.translate.cell import GraphCell, translate
from openmind_compat.translate.errors import MissingOperatorError
from openmind_compat.translate.registry import OPERATORS

__all__ = ["OPERATORS", "GraphCell", "MissingOperatorError", "translate"]
