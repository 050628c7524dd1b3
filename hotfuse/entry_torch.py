"""What `hotfuse.compile` and `torch.compile(backend="hotfuse")` do. It imports little: whoever compiles a module calls it next,
and waits for that."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import TYPE_CHECKING, Any

import hotfuse.hardware.machine  # noqa: F401  (which a Config asks for the memory that there is)
from hotfuse.config import Config
from hotfuse.pace import Pace, imports
from hotfuse.runtime.torch_module import compile_model

if TYPE_CHECKING:
    from hotfuse.runtime.torch_class import ServedClass
    from hotfuse.runtime.torch_classes import ClassTable
    from hotfuse.runtime.torch_family import Family


def compile_torch(model: Any, config: Config | None, options: Mapping[str, Any]) -> Any:
    return compile_model(model, config, options, adapt)


def dynamo_backend(gm: Any, example_inputs: Sequence[Any], options: Mapping[str, Any] | None = None, **others: Any) -> Any:
    """Dynamo's entry point."""
    from hotfuse.runtime.torch_backend import hotfuse

    return hotfuse(gm, example_inputs, options, adapt, **others)


class _Adapting:
    """Has the calls of a captured class answered by kernels, once there are some."""

    def __call__(self, family: Family, name: str, table: ClassTable, served: ServedClass) -> None:
        from hotfuse.adaptive.class_subject import ClassSubject
        from hotfuse.adaptive.subject import rules_of

        family.adopt(ClassSubject(name, family, table, served, rules_of(family.config, served.runner.captured.graph)))

    def import_ahead(self, pace: Pace) -> None:
        with imports(pace):
            import hotfuse.adaptive.class_subject  # noqa: F401
            from hotfuse.adaptive.ahead import import_ahead

        import_ahead(pace)


adapt = _Adapting()
