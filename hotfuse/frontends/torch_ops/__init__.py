"""Importers of ATen operators, one file per family. Importing this package fills `IMPORTERS` and `COMPOSITES`."""

from hotfuse.frontends.torch_ops import (  # noqa: F401
    attention,
    composite,
    contraction,
    convert,
    elementwise,
    indexing,
    movement,
    normalization,
    reduction,
    source,
    window,
)
