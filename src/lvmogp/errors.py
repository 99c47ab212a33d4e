"""The errors and warnings that users of the library meet."""


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


class ForkedProcessError(LVMOGPError):
    """A process forked from one that had computed already, which cannot compute itself."""


class LVMOGPWarning(UserWarning):
    """Something the user should know; the work went on."""


class ConvergenceWarning(LVMOGPWarning):
    """An optimisation stopped before it converged."""
