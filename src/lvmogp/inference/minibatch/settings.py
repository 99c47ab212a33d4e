"""When a model is fitted by minibatches, and what the options leave open of such a fit."""

from dataclasses import replace

import numpy as np

from lvmogp.errors import SettingError
from lvmogp.inference.options import AUTO, NUTS, Options, inducing_latents, is_auto, or_default
from lvmogp.kernels.covariances import Kernel
from lvmogp.model.layouts import Data
from lvmogp.tables.observations import Observations
from lvmogp.typing import HostFloat

# Sizes that suit one core as well as a GPU, and the small fit that minibatches start from.
_MOST_AT_ONCE, _MOST_ON_A_GRID = 200_000, 5_000_000
_BATCH_SIZE, _MOST_STEPS, _LEAST_STOCHASTIC_GAIN = 2_048, 20_000, 1e-4
_STOCHASTIC_INDUCING_INPUTS = 100
_START_INPUTS, _START_LATENTS, _START_ITERATIONS = 25, 16, 60


def is_stochastic(options: Options, given: Observations, *, beyond: str | None) -> bool:
    """Return whether to fit by minibatches; ``beyond`` names what was given that they know nothing of yet."""
    if given.is_streamed and options.inference not in (AUTO, "stochastic"):
        raise SettingError(
            f'an ObservationStore is fitted by minibatches; use inference="stochastic" or "auto", not '
            f"{options.inference!r}"
        )
    must = given.is_streamed or options.inference == "stochastic"
    if must and beyond is not None:
        raise SettingError(
            f"minibatches cannot take {beyond}; leave that out, or use arrays in memory with inference "
            '"auto", "collapsed", "kronecker" or "nuts"'
        )
    most = _MOST_ON_A_GRID if given.is_complete_grid else _MOST_AT_ONCE
    too_many = given.n_rows > most
    if options.inference == NUTS and too_many:
        raise SettingError(
            f'inference="nuts" looks at all observations in every step, here {given.n_rows:,}; it is limited to '
            f'{most:,}: use inference="auto"'
        )
    return must or (too_many and options.inference == AUTO and beyond is None)


def beyond_the_paper(options: Options) -> str | None:
    """Return which setting insists on more than the paper's model, if any does."""
    asked = {"shared_kernel": options.shared_kernel, "own_kernel": options.own_kernel}
    named_first = next((name for name, kernel in asked.items() if kernel is not None and not is_auto(kernel)), None)
    one_term = isinstance(options.input_kernel, str | Kernel) or len(options.input_kernel or ()) == 1
    return named_first if named_first is not None or one_term else "several input kernels"


def without_open_curves(options: Options) -> Options:
    """Return options in which shared and own curves that are left open are none, where they cannot be told apart."""
    open_ones = [name for name in ("shared_kernel", "own_kernel") if is_auto(getattr(options, name))]
    if options.input_kernel is None:  # something has to remain
        open_ones = [name for name in open_ones if name != "shared_kernel"]
    return replace(options, **dict.fromkeys(open_ones))


def step_settings(options: Options, n_observations: int) -> tuple[int, int, float]:
    """Return the size of a minibatch, the most steps, and what a trend of the bound must gain to be worth more."""
    most_steps = or_default(options.max_iter, _MOST_STEPS)
    return or_default(options.batch_size, _BATCH_SIZE), most_steps, _LEAST_STOCHASTIC_GAIN * n_observations


def inducing_numbers(options: Options, n_conditions: int, *, n_latent: int, latent_kernel: Kernel) -> tuple[int, int]:
    """Return the numbers of inducing inputs and of inducing latents of a fit by minibatches."""
    n_inputs = or_default(options.n_inducing_inputs, _STOCHASTIC_INDUCING_INPUTS)
    return n_inputs, inducing_latents(options, n_conditions, n_latent, latent_kernel)


def start_options(options: Options, data: Data, inputs: HostFloat) -> Options:
    """Return the options of the small fit that minibatches start from."""
    n_inputs, n_latents = options.n_inducing_inputs, options.n_inducing_latents
    return replace(
        options,
        inference="collapsed",
        n_inducing_inputs=min(or_default(n_inputs, _START_INPUTS), _START_INPUTS, len(np.unique(inputs, axis=0))),
        n_inducing_latents=min(or_default(n_latents, _START_LATENTS), _START_LATENTS, data.n_conditions),
        n_restarts=1,
        max_iter=_START_ITERATIONS,
    )
