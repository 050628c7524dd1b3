"""Which torch function computes each IR operator, one file per family. Importing this package fills `table.EAGER`."""

from hotfuse.runtime.torch_eager import elementwise, indexing, movement, numeric  # noqa: F401
