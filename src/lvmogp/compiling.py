"""The one way in which functions are compiled.

On a CPU every program runs on one thread: XLA's thread pool costs more than it gives at the sizes of
predictions. Compiled functions are made once, at module level, and never called from one another.
"""

from collections.abc import Callable
from typing import Any, TypeVar, cast

import equinox as eqx

ONE_THREAD = {"xla_cpu_multi_thread_eigen": False}
_Function = TypeVar("_Function", bound=Callable[..., Any])


def compiled(function: _Function) -> _Function:
    """The function as a compiled program, one for each shape of its arguments."""
    compile_function: Any = eqx.filter_jit  # its own signature leaves out the options that it passes on
    return cast(_Function, compile_function(function, compiler_options=ONE_THREAD))
