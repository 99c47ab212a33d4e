"""The least that a bound with its gradient must do: operations and bytes, by formula.

Counted are the products that no way of writing the bound that we know of avoids, a multiplication and an addition as
two operations and an exponential as one. The gradient of a product is two products more, one more where one factor is
data.
Bytes are those of the outputs and of the features, read once for the value and once for the gradient.
"""

from typing import Any

_OF_DATA, _OF_PARAMETERS = 2, 3
_BYTES = 8


def grid_floor(n_inputs: int, n_conditions: int, m_x: int, m_h: int, n_latent: int = 2) -> dict[str, float]:
    """Of a complete grid: O(N D min(M_X, M_H) + N M_X² + D M_H² + M_X³ + M_H³)."""
    outputs = n_inputs * n_conditions * min(m_x, m_h)  # V_X Y V_Hᵀ from its narrower side
    features = 2 * n_inputs * m_x**2 + min(n_inputs, n_conditions) * m_x * m_h
    return _floor(
        outputs,
        features + _pairs(n_conditions, m_h, n_latent) + m_x**3 + m_h**3,
        n_inputs * n_conditions + n_inputs * m_x + n_conditions * m_h,
    )


def long_floor(n: int, n_conditions: int, m_x: int, m_h: int, n_latent: int = 2) -> dict[str, float]:
    """Of rows: O(n M_X² + D (M_X² + M_H²) min(M_X, M_H) + M_X³ + M_H³), explicit with a Kronecker covariance."""
    features = 1.5 * n * m_x**2 + n_conditions * m_x * m_h * min(m_x, m_h) + 2 * n_conditions * m_h**3
    return _floor(
        n * m_x,
        features + _pairs(n_conditions, m_h, n_latent) + m_x**3 + m_h**3,
        n * (m_x + 1) + n_conditions * (m_x**2 + m_h**2),
    )


def independent_floor(n_inputs: int, n_conditions: int, m_x: int) -> dict[str, float]:
    """Of a sparse GP with independent outputs on a grid: O(N D M_X + N M_X² + D M_X² + M_X³)."""
    return _floor(
        n_inputs * n_conditions * m_x,
        2 * n_inputs * m_x**2 + n_conditions * m_x**2 + m_x**3,
        n_inputs * n_conditions + n_inputs * m_x,
    )


def _pairs(n_conditions: int, m_h: int, n_latent: int) -> float:
    # ⟨k k⟩ of each pair of inducing latents under each condition
    return n_conditions * m_h * (m_h + 1) / 2 * (2 * n_latent + 1)


def _floor(with_data: float, with_parameters: float, numbers: float) -> dict[str, float]:
    operations = 2 * (_OF_DATA * with_data + _OF_PARAMETERS * with_parameters)
    return {"operations": operations, "bytes": 2 * _BYTES * numbers}


def least_seconds(floor: dict[str, float], machine: dict[str, Any]) -> float:
    """What the operations and the bytes take one thread of a machine at its own rates, the longer of the two."""
    return max(floor["operations"] / machine["gflops_one_thread"], floor["bytes"] / machine["gb_per_second"]) / 1e9
