"""The errors and warnings that users of the library meet."""

import inspect
import os
import warnings

_PACKAGE = os.path.dirname(__file__) + os.sep


class LVMOGPError(ValueError):
    """Base of all errors raised on purpose: what was expected, what came, what to do."""


class DataError(LVMOGPError):
    """Data that cannot be modelled as they are."""


class SettingError(LVMOGPError):
    """A setting of the estimator that cannot be honoured."""


class UnknownConditionError(LVMOGPError):
    """A condition that the model has never seen."""


class ModelFileError(LVMOGPError):
    """A model file that is damaged, foreign or of an unknown version."""


class NumericalError(LVMOGPError):
    """A matrix that could not be factorised with any reasonable jitter."""


class LVMOGPWarning(UserWarning):
    """Something the user should know; the work went on."""


class ConvergenceWarning(LVMOGPWarning):
    """An optimisation stopped before it converged."""


def warn(message: str, category: type[Warning] = LVMOGPWarning) -> None:
    """Warn at the line of the user's code that called the library, however deep inside of it the warning arises."""
    frame = user = inspect.currentframe()
    while frame is not None:  # what called the outermost of our own frames
        if frame.f_code.co_filename.startswith(_PACKAGE) and frame.f_back is not None:
            user = frame.f_back
        frame = frame.f_back
    assert user is not None  # every Python that we support has frames
    registry = user.f_globals.setdefault("__warningregistry__", {})
    name = user.f_globals.get("__name__")
    warnings.warn_explicit(message, category, user.f_code.co_filename, user.f_lineno, name, registry)
