"""The data of the paper's five experiments, one problem per repeat."""

from pathlib import Path
from typing import NamedTuple

import numpy as np

from lvmogp.simulate import BRAKING_NOISE, FRICTIONS, SPEEDS, braking_distance
from lvmogp.simulate import braking as simulated_braking
from lvmogp.typing import HostFloat, HostInt
from paper.datasets import servo as servo_table
from paper.datasets import sml2010 as sml2010_table
from paper.synthetic import synthetic_grid, synthetic_uneven

_SERVO_TRAINING = 117  # 70 % of 167
_SENSORS_KEPT = 0.05
_NEW_TYRES = 10


class LabelledRows(NamedTuple):
    """Observations in long form; conditions are numbers from zero."""

    inputs: HostFloat
    outputs: HostFloat
    conditions: HostInt


class PaperProblem(NamedTuple):
    """Training and test rows of one repeat.

    ``added`` holds the few observations of conditions that come after the training; they are among the
    ``n_conditions``. ``observed_test`` says whether the test outputs are observations, with their noise, or values
    of the function. ``factors`` numbers what is known of each condition (the servos' motor and screw).
    """

    train: LabelledRows
    test: LabelledRows
    n_conditions: int
    observed_test: bool
    is_grid: bool = False
    added: LabelledRows | None = None
    factors: HostInt | None = None
    truth: HostFloat | None = None

    @property
    def all_observations(self) -> LabelledRows:
        """Training rows and added rows together, for methods that cannot add a condition later."""
        if self.added is None:
            return self.train
        return LabelledRows(*(np.concatenate(pair) for pair in zip(self.train, self.added, strict=True)))


def braking(repeat: int, data_dir: Path | None = None) -> PaperProblem:
    """Ten tyres with five experiments each; then ten new ones with a single experiment each, tested at all speeds."""
    del data_dir  # simulated
    rng = np.random.default_rng(repeat)
    data = simulated_braking(rng)
    n_trained = len(data.friction)
    speeds = np.linspace(*SPEEDS, 100)
    draws = [(rng.uniform(*FRICTIONS), rng.uniform(*SPEEDS), rng.standard_normal()) for _ in range(_NEW_TYRES)]
    friction, added_speed, noise = np.transpose(draws)
    added_distance = braking_distance(added_speed, friction) + BRAKING_NOISE * noise
    new = n_trained + np.arange(_NEW_TYRES)
    return PaperProblem(
        train=LabelledRows(data.speed[:, None], data.distance, data.condition),
        added=LabelledRows(added_speed[:, None], added_distance, new),
        test=LabelledRows(
            np.tile(speeds, _NEW_TYRES)[:, None],
            np.concatenate([braking_distance(speeds, mu) for mu in friction]),
            np.repeat(new, len(speeds)),
        ),
        n_conditions=n_trained + _NEW_TYRES,
        observed_test=False,
        truth=1 / data.friction,
    )


def synthetic(repeat: int, data_dir: Path | None = None) -> PaperProblem:
    """50 inputs under 40 conditions, all observed; tested at 50 other inputs against noise-free values."""
    del data_dir
    data = synthetic_grid(repeat)
    return PaperProblem(
        train=_rows_of_grid(data.train_inputs, data.train_outputs),
        test=_rows_of_grid(data.test_inputs, data.test_values),
        n_conditions=data.train_outputs.shape[1],
        observed_test=False,
        is_grid=True,
    )


def synthetic_missing(repeat: int, data_dir: Path | None = None, *, n_groups: int = 10) -> PaperProblem:
    """Conditions with 0 to 200 points each; tested at 50 fresh inputs of each condition against noise-free values."""
    del data_dir
    data = synthetic_uneven(repeat, n_groups=n_groups)
    return PaperProblem(
        train=LabelledRows(data.train_inputs, data.train_outputs, data.train_conditions),
        test=LabelledRows(data.test_inputs, data.test_values, data.test_conditions),
        n_conditions=int(data.test_conditions[-1]) + 1,
        observed_test=False,
    )


def servo(repeat: int, data_dir: Path | None = None) -> PaperProblem:
    """Rise time of 25 linkages of motor and screw over two gains; a random 70 % train, the rest test."""
    table = servo_table(data_dir)
    motor = np.asarray([ord(name) - ord("A") for name in table["motor"]])
    screw = np.asarray([ord(name) - ord("A") for name in table["screw"]])
    rows = LabelledRows(table[["pgain", "vgain"]].to_numpy(), table["rise_time"].to_numpy(), 5 * motor + screw)
    order = np.random.RandomState(repeat).permutation(len(table))
    return PaperProblem(
        train=_chosen(rows, order[:_SERVO_TRAINING]),
        test=_chosen(rows, order[_SERVO_TRAINING:]),
        n_conditions=25,
        observed_test=True,
        factors=np.stack(np.divmod(np.arange(25), 5), axis=1),
    )


def sensors(repeat: int, data_dir: Path | None = None, *, every: int = 1) -> PaperProblem:
    """18 sensors of a house over a month, each of zero mean and unit variance; 95 % of the entries are removed.

    ``every`` thins the moments out.
    """
    table = sml2010_table(data_dir).iloc[::every]
    values = table.to_numpy()
    values = (values - values.mean(axis=0)) / values.std(axis=0)
    rows = _rows_of_grid(table.index.to_numpy()[:, None], values)
    order = np.random.RandomState(repeat).permutation(values.size)
    n_kept = round(_SENSORS_KEPT * values.size)
    return PaperProblem(
        train=_chosen(rows, np.sort(order[:n_kept])),
        test=_chosen(rows, np.sort(order[n_kept:])),
        n_conditions=values.shape[1],
        observed_test=True,
    )


def _rows_of_grid(inputs: HostFloat, outputs: HostFloat) -> LabelledRows:
    n_inputs, n_conditions = outputs.shape
    return LabelledRows(
        np.repeat(inputs, n_conditions, axis=0), outputs.reshape(-1), np.tile(np.arange(n_conditions), n_inputs)
    )


def _chosen(rows: LabelledRows, places: HostInt) -> LabelledRows:
    return LabelledRows(rows.inputs[places], rows.outputs[places], rows.conditions[places])
