"""Runner: a captured program at the tier that is asked for, with what it prepares from weights, whoever owns these.

    program --native form--> graph --hoist--> prepare: weights -> packed and otherwise prepared values     (when weights change)
                                              main: leaves, weights, prepared values -> results            (in every call)

Weights are handed in with every call. State: prepared weights (`PreparedWeights` says how they change), and the short ways of
calls that were answered before, by form, bounded.
"""

from __future__ import annotations

import contextlib
import functools
import operator
from collections.abc import Callable, Hashable, Mapping, Sequence
from dataclasses import replace
from typing import TYPE_CHECKING, Any

import torch

from hotfuse.config import Config
from hotfuse.errors import BadIndex, DimError
from hotfuse.frontends.torch_program import CapturedProgram
from hotfuse.frontends.torch_tensor import to_numpy, to_torch
from hotfuse.hardware.spec import host_spec
from hotfuse.ir.graph import Graph
from hotfuse.ir.ops.panels import pack
from hotfuse.ir.plan import trivial_plan
from hotfuse.ir.types import TensorType
from hotfuse.pace import Pace, breathe, going_at, make_room_for_run
from hotfuse.passes.hoist import Hoisted, hoist
from hotfuse.runtime.executor import Executor
from hotfuse.runtime.shared_values import value_keys
from hotfuse.runtime.shelf import Shelf, in_order_of_use, without_packing
from hotfuse.runtime.torch_call import as_input, run_program
from hotfuse.runtime.torch_engine import TORCH
from hotfuse.runtime.ways import Ways
from hotfuse.runtime.weights import PreparedWeights

if TYPE_CHECKING:
    from hotfuse.codegen.tile import TileProgram
    from hotfuse.runtime.build import Build
    from hotfuse.runtime.kernels import Kernel
    from hotfuse.runtime.torch_short import ShortCall

    Kernels = Mapping[TileProgram, Kernel]


class Unready(Exception):
    """What the program needs of its weights is not there; a thread makes it."""


class Runner:
    """Runs one program. `names` are the weights that it takes, in order; `renewed` says why some were last prepared anew."""

    def __init__(
        self,
        program: CapturedProgram,
        config: Config,
        made: tuple[Build, Kernels] | None = None,
        like: Runner | None = None,
    ) -> None:
        """`made` is a build of the program's graph, with its kernels; without one, `config` says what is made now. What `like`
        has prepared from weights is used here, too, where both prepare the same."""
        self.captured = program
        self.config = config
        self.native = made is not None or config.native
        if made is not None:
            self.hoisted = made[0].hoisted
            self.executor = _made_executor(*made, config)
        else:
            self.hoisted = hoist(_native_form(program.graph, config), {m.name for m in program.mutations if m.name})
            self.executor = _executor(self.hoisted, config)
        self.program = replace(program, graph=self.hoisted.main)
        self.renewed = ""
        main, sources, prepared = self.hoisted.main.weights, self.hoisted.sources, self.hoisted.prepared
        used = dict.fromkeys((*main, *sources, *(form.name for form in program.returned_weights)))
        self.names = tuple(name for name in used if name not in prepared)
        places = {name: i for i, name in enumerate((*self.names, *prepared))}
        self._sources = _picker([places[name] for name in sources])
        self._weights = _picker([places[name] for name in main])
        self.prepared: PreparedWeights | None = None
        if like is not None and like.hoisted is self.hoisted:
            self.prepared = like.prepared
        elif self.hoisted.prepare is not None:
            keys = functools.partial(value_keys, self.hoisted.prepare)
            self.prepared = PreparedWeights(_preparer(self.hoisted, self.hoisted.prepare, config), config.audit_every, keys)
        self._short: Ways[ShortCall | None] = Ways(config.max_bound_shapes)  # None: there is only the long way
        self.executor.user = self._short
        self._resting = False

    def run(self, leaves: Sequence[Any], tensors: Sequence[torch.Tensor], form: Hashable) -> Sequence[Any]:
        """The leaves of the answer to those of a call, with tensors for `names`. Calls of one `form` have leaves of the same
        types and shapes, and the same numbers; so have their weights. Raises Unready, and BadIndex or DimError where native
        code cannot answer."""
        given = tensors
        if self.prepared is not None:
            source = self.prepared.values if self.config.wait else self.prepared.ready
            values, why = source(self._sources(tensors))
            if why and why != "first use":
                self.renewed = why
            if values is None:
                raise Unready
            given = [*tensors, *values]
        weights = self._weights(given)
        short = self._short.get(form)
        if short is not None and not self._resting:
            return short(leaves, weights)
        self._resting = False
        known = dict(zip((*self.names, *self.hoisted.prepared), given, strict=True))
        answer = run_program(self.program, self.executor, leaves, known)
        if self.native and form not in self._short:
            self._learn(leaves, weights, form)
        return answer

    def _learn(self, leaves: Sequence[Any], weights: Sequence[torch.Tensor], form: Hashable) -> None:
        """Remember whether calls of a form can be answered without a detour, and how."""
        from hotfuse.runtime.torch_short import shorten

        inputs = [as_input(leaves[place]) for place in self.program.input_leaves]
        bound = self.executor.bound(tuple(map(TORCH.type_of, (*inputs, *weights))))
        self._short.put(form, bound, shorten(self.program, bound, leaves, len(weights), self.config.audit_every))

    def prepare(self, tensors: Sequence[torch.Tensor], pace: Pace) -> Sequence[torch.Tensor]:
        """What is prepared from weights, computed now if it is not there."""
        if self.prepared is None:
            return ()
        with going_at(pace):
            return self.prepared.values(self._sources(tensors))[0]

    def make_ready(self, leaves: Sequence[Any], tensors: Sequence[torch.Tensor], pace: Pace) -> None:
        """Prepare weights, bind to the shapes of a call, and answer it once, while nobody waits for it: the first run of code
        finds nothing in the caches, and no memory of its own. A program that changes something in place is not run."""
        given = [*tensors, *self.prepare(tensors, pace)]
        inputs = [as_input(leaves[place]) for place in self.program.input_leaves]
        self.executor.bound(tuple(map(TORCH.type_of, (*inputs, *self._weights(given)))))
        if self.native and not self.program.mutations:
            make_room_for_run(pace)
            known = dict(zip((*self.names, *self.hoisted.prepared), given, strict=True))
            with torch.no_grad(), contextlib.suppress(BadIndex, DimError):  # a call would have the original's answer
                run_program(self.program, self.executor, leaves, known)

    def bind_as(self, other: Runner, pace: Pace) -> None:
        """Bind to the shapes that another runner of the same program is bound to, if it takes the same weights."""
        if other.hoisted is self.hoisted:
            self.executor.bind_as(other.executor, pace)

    def rest(self) -> None:
        """Leave one of the next calls to the long way, where it can be traced."""
        self._resting = True

    def take_renewed(self) -> str:
        """Why prepared weights were last computed anew; asked once."""
        why, self.renewed = self.renewed, ""
        return why

    def outdated(self, tensors: Sequence[torch.Tensor]) -> str:
        """Why what was prepared from weights does not fit them, by all of their contents; "" if it does."""
        return "" if self.prepared is None else self.prepared.outdated(self._sources(tensors))

    def settled(self, timeout_s: float | None) -> bool:
        """Wait until no thread prepares weights; False if that takes longer than `timeout_s`."""
        return self.prepared is None or self.prepared.settled(timeout_s)

    def refresh(self) -> None:
        """Forget what was derived from weights."""
        self._short.clear()
        if self.prepared is not None:
            self.prepared.refresh()

    def forget_shapes(self) -> None:
        """Forget what was learned of the shapes of calls."""
        self._short.clear()
        self.executor.clear()

    def clear(self) -> None:
        """Free bound plans, and what was derived from weights."""
        self.refresh()
        self.executor.clear()


_FORM = operator.attrgetter("shape", "dtype")


def form_of(inputs: Sequence[Any], weights: Sequence[torch.Tensor]) -> Hashable:
    """What a plan's code depends on of inputs, whose dtypes were checked, and of weights, which nobody looked at."""
    return tuple([x.shape if isinstance(x, torch.Tensor) else (type(x), x) for x in inputs]), tuple(map(_FORM, weights))


def _picker(places: Sequence[int]) -> Callable[[Sequence[Any]], Sequence[Any]]:
    """A function from a list to its elements at these places."""
    if len(places) > 1:
        return operator.itemgetter(*places)
    return lambda values: [values[i] for i in places]


def _preparer(hoisted: Hoisted, prepare: Graph, config: Config) -> Callable[[Sequence[torch.Tensor]], list[torch.Tensor]]:
    """What is prepared from weights, on one shelf, in the order of use; each original is let go as soon as it is copied."""
    graph, packing = without_packing(prepare)
    executor = Executor(trivial_plan(graph), TORCH, config)
    order = in_order_of_use(hoisted.main, hoisted.prepared)
    types = {name: type for name in order if isinstance(type := prepare.type(name), TensorType)}
    places = [hoisted.prepared.index(name) for name in order]

    def make(weights: Sequence[torch.Tensor]) -> list[torch.Tensor]:
        for name, weight in zip(prepare.weights, weights, strict=True):
            declared, actual = prepare.type(name), TORCH.type_of(weight)
            if isinstance(declared, TensorType) and declared.is_static and actual != declared:
                raise DimError(f"weight {name} is {actual}, and what is prepared from it was made for {declared}")
        tensors = executor.run(list(weights), sharing=range(len(places)), pace=breathe)
        shelf = Shelf([types[name].nbytes for name in order])
        for number, (name, i) in enumerate(zip(order, places, strict=True)):
            how, array = packing[i], to_numpy(tensors[i])
            if how is not None:
                array = pack(array, shelf.place(number, array.dtype, types[name].sizes), **how)
            else:
                array = shelf.put(number, array)
            tensors[i] = to_torch(array)
        return tensors

    return make


def _executor(hoisted: Hoisted, config: Config) -> Executor:
    if not config.native:
        return Executor(trivial_plan(hoisted.main), TORCH, config)
    from hotfuse.runtime.native import main_executor  # who stays at tier 0 need not wait for it

    return main_executor(hoisted, TORCH, config)


def _made_executor(build: Build, kernels: Kernels, config: Config) -> Executor:
    from hotfuse.runtime.native import build_executor

    return build_executor(build.main, build, kernels, TORCH, config)


def _native_form(graph: Graph, config: Config) -> Graph:
    if not config.native:
        return graph
    from hotfuse.runtime.building import native_form

    return native_form(graph, host_spec(config.isa))
