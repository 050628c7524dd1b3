"""Importers of ONNX operators, one file per family. Importing this package fills `IMPORTERS`."""

from hotfuse.frontends.onnx_ops import (  # noqa: F401
    attention,
    contraction,
    control,
    convert,
    elementwise,
    image,
    indexing,
    movement,
    normalization,
    quantized,
    recurrent,
    reduction,
    sequence,
    signal,
    training,
    window,
)
