"""The intermediate representation. Importing this package fills the operator table."""

import hotfuse.ir.ops  # noqa: F401
