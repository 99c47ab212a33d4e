"""Gaussian processes for data from many conditions, with new conditions learnt from a few points."""

from lvmogp.__about__ import __version__
from lvmogp.errors import (
    ConvergenceWarning,
    DataError,
    LVMOGPError,
    LVMOGPWarning,
    ModelFileError,
    NumericalError,
    SettingError,
    UnknownConditionError,
)
from lvmogp.estimator import LVMOGPRegressor
from lvmogp.kernels import (
    RBF,
    Constant,
    Kernel,
    Linear,
    Matern12,
    Matern32,
    Matern52,
    Periodic,
    RationalQuadratic,
)

__all__ = [
    "RBF",
    "Constant",
    "ConvergenceWarning",
    "DataError",
    "Kernel",
    "LVMOGPError",
    "LVMOGPRegressor",
    "LVMOGPWarning",
    "Linear",
    "Matern12",
    "Matern32",
    "Matern52",
    "ModelFileError",
    "NumericalError",
    "Periodic",
    "RationalQuadratic",
    "SettingError",
    "UnknownConditionError",
    "__version__",
]
