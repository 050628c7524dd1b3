"""The operator table, one file per family. Importing this package fills `hotfuse.ir.op.OPS`."""

from hotfuse.ir.ops import (  # noqa: F401
    attention,
    contraction,
    control,
    convert,
    elementwise,
    image,
    indexing,
    movement,
    normalization,
    recurrent,
    reduction,
    scan,
    signal,
    sizes,
    window,
)
