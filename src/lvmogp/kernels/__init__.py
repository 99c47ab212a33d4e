"""Covariance functions, and what is expected of them where latents are uncertain."""

from lvmogp.kernels.covariances import (
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

__all__ = ["RBF", "Constant", "Kernel", "Linear", "Matern12", "Matern32", "Matern52", "Periodic", "RationalQuadratic"]
