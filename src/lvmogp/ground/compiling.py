"""The one way in which functions are compiled.

Compiled functions are made once, at module level, and never called from one another.

There is one program for each shape of a function's arguments, and JAX keeps thousands of them. Each holds megabytes and
some fifty of the 65 000 mappings of memory that a process may have, beyond which the compiler crashes; so a process
that meets ever new shapes forgets all programs whenever it has made many.
"""

import functools
import os
from collections.abc import Callable
from typing import Any, TypeVar, cast

import equinox as eqx
import jax

from lvmogp.ground.programs import Keeper, forget_programs, is_own

# XLA's thread pool costs more than it gives on small problems, and at the sizes of predictions.
_ONE_THREAD = {"xla_cpu_multi_thread_eigen": False}
# Higher levels of optimisation, and the newer of two ways in which XLA writes loops for a CPU, take a third of the time
# to compile; bounds are no quicker for them.
_LESS_OPTIMISED = {"xla_backend_optimization_level": 1}
_OLDER_LOOPS = {"xla_cpu_use_fusion_emitters": False}
# A fit with predictions of all kinds makes fifteen, beside some thirty single operations that JAX compiles for itself.
MOST_PROGRAMS = 150
_Function = TypeVar("_Function", bound=Callable[..., Any])


class _Tally:
    # Programs made since all were last forgotten, and how often that was.
    n_made = 0
    n_forgotten = 0


def compiler_options(*, one_thread: bool) -> dict[str, Any]:
    """What the compiler is told, but for what the user tells it by ``XLA_FLAGS``; on accelerators nothing."""
    if jax.default_backend() != "cpu":
        return {}
    wanted = {**_LESS_OPTIMISED, **(_OLDER_LOOPS if _has_older_loops() else {}), **(_ONE_THREAD if one_thread else {})}
    flags = os.environ.get("XLA_FLAGS", "")
    return {name: value for name, value in wanted.items() if name not in flags}


@functools.cache
def _has_older_loops() -> bool:
    # Newer versions of XLA have one way only, and refuse an option that they do not know.
    compile_function = cast(Any, jax).jit  # whose types are partly open
    try:
        compile_function(lambda: 0, compiler_options=_OLDER_LOOPS).lower().compile()
    except RuntimeError:
        return False
    return True


def programs_made() -> int:
    """Programs of this library made since all were last forgotten."""
    return _Tally.n_made


def times_forgotten() -> int:
    """How often all programs were forgotten."""
    return _Tally.n_forgotten


def count_program() -> None:
    """Note that a program is made."""
    _Tally.n_made += 1


def counted(function: _Function) -> _Function:
    """The function as it is handed to the compiler, which runs it once for each program."""
    return cast(_Function, _counted(function))


@functools.cache  # one for each function, so that its programs are shared by all modules that compile it
def _counted(function: Callable[..., Any]) -> Callable[..., Any]:
    @functools.wraps(function)
    def traced(*args: Any, **kwargs: Any) -> Any:
        count_program()
        return function(*args, **kwargs)

    return traced


def compiled(function: _Function) -> _Function:
    """The function as a compiled program, one for each shape of its arguments; our own outlive the process."""
    on_one_thread = functools.partial(compiler_options, one_thread=True)

    @functools.cache
    def plain() -> Callable[..., Any]:
        # Made when first called: until then nobody need know what it will run on.
        compile_function: Any = eqx.filter_jit  # its own signature leaves out the options that it passes on
        return compile_function(counted(function), compiler_options=on_one_thread())

    keeper = Keeper(function, on_one_thread, count_program) if is_own(function) else None

    @functools.wraps(function)
    def call(*args: Any, **kwargs: Any) -> Any:
        kept = None if keeper is None else keeper.call(args, kwargs)
        return plain()(*args, **kwargs) if kept is None else kept()

    return cast(_Function, call)


def forget_many_programs() -> None:
    """Forget all compiled programs if there are many.

    To be called before work begins. Work that goes on in other threads keeps the programs that it is using.
    """
    if _Tally.n_made > MOST_PROGRAMS:
        forget_all_programs()


def forget_all_programs() -> None:
    """Forget all compiled programs; they are compiled anew when next needed."""
    _Tally.n_made = 0
    _Tally.n_forgotten += 1
    forget_programs()
    jax.clear_caches()
