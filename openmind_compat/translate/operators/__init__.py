"""The entries of the operator table, by kind. Importing this package fills the table."""

from openmind_compat.translate.operators import (  # noqa: F401
    attention,
    elementwise,
    indexing,
    linear,
    losses,
    normalization,
    pooling,
    random,
    reductions,
    views,
)
