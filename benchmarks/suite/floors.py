"""The least that a bound with its gradient must do: operations and bytes, by formula.

Counted are the products that no way of writing the bound avoids, a multiplication and an addition as two operations
and an exponential as one; the gradient of a product is two products more. Bytes are those of the outputs and of the
features, read once for the value and once for the gradient.
"""

from typing import Any

_WITH_GRADIENT = 3
_BYTES = 8


def grid_floor(n_inputs: int, n_conditions: int, m_x: int, m_h: int, n_latent: int = 2) -> dict[str, float]:
    """Of a complete grid: O(N M_X² + N D M_X + D M_H² + M_X³ + M_H³)."""
    products = 2 * n_inputs * m_x**2 + n_inputs * n_conditions * m_x + n_conditions * m_x * m_h
    pairs = n_conditions * m_h * (m_h + 1) / 2 * (2 * n_latent + 1)  # ⟨k k⟩ of each pair of inducing latents
    small = m_x**3 + m_h**3
    return _floor(products + pairs + small, n_inputs * n_conditions + n_inputs * m_x + n_conditions * m_h)


def long_floor(n: int, n_conditions: int, m_x: int, m_h: int, n_latent: int = 2) -> dict[str, float]:
    """Of rows: O(n M_X² + D (M_X² + M_H²) min(M_X, M_H) + M_X³ + M_H³), explicit with a Kronecker covariance."""
    products = 1.5 * n * m_x**2 + n_conditions * m_x * m_h * min(m_x, m_h) + 2 * n_conditions * m_h**3
    pairs = n_conditions * m_h * (m_h + 1) / 2 * (2 * n_latent + 1)
    return _floor(products + pairs + m_x**3 + m_h**3, n * (m_x + 1) + n_conditions * (m_x**2 + m_h**2))


def independent_floor(n_inputs: int, n_conditions: int, m_x: int) -> dict[str, float]:
    """Of a sparse GP with independent outputs on a grid: O(N M_X² + N D M_X + D M_X² + M_X³)."""
    products = 2 * n_inputs * m_x**2 + n_inputs * n_conditions * m_x + n_conditions * m_x**2 + m_x**3
    return _floor(products, n_inputs * n_conditions + n_inputs * m_x)


def _floor(multiplications: float, numbers: float) -> dict[str, float]:
    return {"operations": 2 * _WITH_GRADIENT * multiplications, "bytes": 2 * _BYTES * numbers}


def least_seconds(floor: dict[str, float], machine: dict[str, Any]) -> float:
    """What the operations and the bytes take one thread of a machine at its own rates, the longer of the two."""
    return max(floor["operations"] / machine["gflops_one_thread"], floor["bytes"] / machine["gb_per_second"]) / 1e9
