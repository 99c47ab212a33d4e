"""The choices a user leaves open, made from the data, and those a user made, checked."""

import numbers
from collections.abc import Callable, Mapping, Sequence
from dataclasses import KW_ONLY, dataclass, fields, replace
from functools import partial
from types import MappingProxyType
from typing import Any, NamedTuple

import numpy as np
from sklearn.utils import check_random_state

from lvmogp.errors import SettingError, warn
from lvmogp.inference.nuts.parameters import Priors
from lvmogp.kernels.covariances import RBF, Constant, Kernel, Linear, Matern52, Sum, named, rank
from lvmogp.model.layouts import Data, GridData
from lvmogp.model.parameters import Parameters
from lvmogp.tables.scaling import TRANSFORMS
from lvmogp.typing import Array, HostFloat

AUTO = "auto"
NUTS = "nuts"
PAPERS_MODEL: Mapping[str, str | None] = MappingProxyType(
    {"shared_kernel": None, "input_kernel": "rbf", "own_kernel": None, "latent_kernel": "rbf", "noise": "shared"}
)
"""The settings of the model of Dai, Álvarez and Lawrence (2017)."""
_CHOICES: dict[str, tuple[Any, ...]] = {
    "noise": ("shared", "per-condition"),
    "inference": (AUTO, "collapsed", "full", "kronecker", "stochastic", NUTS),
    "output_transform": (*TRANSFORMS, AUTO),
    "unseen": ("error", "prior"),
    "dtype": ("float64", "float32"),
}
# Inducing inputs double from the one number to the other while the bound gains. Where they have few latent features
# beside them, they begin with more: so many pairs cost next to nothing, unless many conditions have own curves.
_FEWEST_INDUCING_INPUTS, _MOST_INDUCING_INPUTS, _FEWEST_PAIRS = 25, 400, 533
# Operations of one bound up to which a fit begins with more inducing inputs beside own curves, and up to which they
# grow: a second, with its gradient.
_MOST_OPERATIONS_AT_START, _MOST_OPERATIONS_WITH_OWN = 1.2e9, 2e10
# Operations of one bound up to which own curves on a grid vary as they like; beyond, they vary as the noise does.
_MOST_WITH_OWN_VARIANCES = 1e8
# Inducing latents by the number of coordinates of a condition. Beside shared or own curves, which leave less to tell by
# latents, a fit begins with half as many, if these are not very few, and has all where the bound gains by them.
_INDUCING_LATENTS, _MOST_INDUCING_LATENTS, _VERY_FEW_LATENTS = {1: 20, 2: 30}, 40, 8
# Pairs of inducing points of which a bound can factorise a matrix, and a fit can store one.
_MOST_COLLAPSED, _MOST_FULL = 2_500, 1_000
# Pairs over which answers keep a matrix where bounds need none.
_MOST_ANSWERING = 4_000
# Against a search without end; a fit stops when it gains too little.
_MAX_ITERATIONS = 3_000
_MOST_AUTO_LATENT = 5
# Operations of one bound, and how many starts they leave time for. Many observations say where to start, and each start
# takes minutes.
_RESTARTS_BY_COST = ((1e9, 6), (1e10, 3), (np.inf, 1))
_MOST_OBSERVATIONS_FOR_RESTARTS = 50_000
# A gain of the bound that is worth twenty more iterations; of very many observations, this much for each.
_LEAST_GAIN, _LEAST_GAIN_PER_OBSERVATION, _MANY_OBSERVATIONS = 0.02, 5e-5, 20_000


@dataclass(eq=False, repr=False)  # compared and shown as scikit-learn does it with estimators
class Options:
    """The settings of the estimator as they are given; its docstring says what they mean."""

    n_latent: int | str = 2
    _: KW_ONLY
    condition: str | None = None
    shared_kernel: str | Kernel | None = "auto"
    input_kernel: str | Kernel | Sequence[str | Kernel] | None = "auto"
    own_kernel: str | Kernel | None = "auto"
    latent_kernel: str | Kernel = "auto"
    n_inducing_inputs: int | str = "auto"
    n_inducing_latents: int | str = "auto"
    noise: str = "per-condition"
    inference: str = "auto"
    n_restarts: int | str = "auto"
    max_iter: int | str = "auto"
    batch_size: int | str = "auto"
    priors: Priors | None = None
    n_chains: int | str = "auto"
    n_warmup: int | str = "auto"
    n_draws: int | str = "auto"
    input_transform: str | Mapping[Any, str | None] | None = None
    output_transform: str | None = None
    unseen: str = "error"
    dtype: str = "float64"
    random_state: Any = None
    verbose: bool = False


def checked(options: Options, *, described: bool = False) -> Options:
    """Return options that can be honoured, with a seed for ``random_state``; conditions may be ``described``."""
    given = {field.name: getattr(options, field.name) for field in fields(Options)}
    for name, value in given.items():
        is_number = isinstance(value, numbers.Integral) and not isinstance(value, bool)
        if name == "n_latent" and is_number and value == 0:
            if not described:
                raise SettingError(
                    "n_latent=0 leaves nothing to tell conditions apart; give their condition_features, or use 1"
                )
        elif Options.__annotations__[name] == int | str and value != AUTO and not (is_number and int(value) >= 1):
            raise SettingError(f'{name} must be a whole number of at least 1 or "auto", got {value!r}')
        elif value not in _CHOICES.get(name, (value,)):
            raise SettingError(f"{name} must be one of {list(_CHOICES[name])}, got {value!r}")
    latent_kernels(options)
    described_kernels(options, RBF(), RBF(), np.ones(1))
    if not _are_logarithms(options.input_transform):
        raise SettingError(
            'input_transform must be None, "auto" or say which columns become their logarithms, as in '
            f'{{"substrate": "log"}} or {{0: "log"}}, got {options.input_transform!r}'
        )
    if not isinstance(options.priors, Priors | None):
        raise SettingError(f"priors must be None or Priors(...), got {options.priors!r}")
    seed = options.random_state or 0
    if not isinstance(seed, numbers.Integral):
        # Drawn once: a RandomState would give each part of the fit another seed, and none to write down.
        seed = check_random_state(seed).randint(2**31)
    elif seed < 0:
        raise SettingError(f"random_state must not be negative, got {seed!r}")
    return Options(**given | {"priors": options.priors and options.priors.checked(), "random_state": int(seed)})


def _are_logarithms(given: Any) -> bool:
    if isinstance(given, Mapping):
        return all(value in (None, "log") for value in given.values())
    return given is None or (isinstance(given, str) and given == AUTO)


class DescribedKernels(NamedTuple):
    """The kernels of a model as described: shared curve, terms with latents and own curves, each in the user's units.

    ``of_inputs`` are those of the terms with latents; ``scale`` is what each input column was divided by.
    """

    shared: Kernel | None
    of_inputs: tuple[Kernel, ...]
    own: Kernel | None
    of_latents: Kernel
    scale: HostFloat

    @property
    def is_plain(self) -> bool:
        """Whether this is the paper's model."""
        return self.shared is None and self.own is None and len(self.of_inputs) == 1

    @property
    def has_shared(self) -> bool:
        """Whether there is a curve that all conditions share."""
        return self.shared is not None

    @property
    def first(self) -> Kernel:
        """The kernel from which independent GPs start, and all that are described alike."""
        return next(each for each in (*self.of_inputs, self.shared, self.own) if each is not None)

    @property
    def together(self) -> Kernel:
        """The kernel of GPs that know nothing of each other."""
        return Sum(self.of_inputs) if len(self.of_inputs) > 1 else self.first


class Settings(NamedTuple):
    """What a fit needs to know beyond the data."""

    kernels: DescribedKernels
    n_latent: int
    n_inducing_inputs: int
    most_inducing_inputs: int
    most_at_start: int
    n_distinct_inputs: int
    n_inducing_latents: int
    most_inducing_latents: int
    noise_per_condition: bool
    own_variances: bool
    inference: str
    n_restarts: int
    max_iterations: int
    seed: int
    tolerance: float = _LEAST_GAIN
    recipe: str | None = None

    def with_inducing_inputs(self, parameters: Parameters, points: Array) -> Parameters:
        """Return parameters with these inducing inputs, which stay where they are if they are all inputs there are."""
        fixed = ("inducing_inputs",) if len(points) == self.n_distinct_inputs else ()
        return replace(parameters, inducing_inputs=points, fixed=fixed)

    def operations(self, data: Data) -> float:
        """Operations of one bound with its gradient, to the order of magnitude."""
        n_inputs, n_latents = self.n_inducing_inputs, self.n_inducing_latents * max(len(self.kernels.of_inputs), 1)
        if not (isinstance(data, GridData) and len(self.kernels.of_inputs) <= 1) or self.own_variances:
            if self.kernels.own is not None:
                return _operations_with_own(data, self.kernels, n_latents + self.kernels.has_shared, n_inputs)
            return _long_operations(data, n_inputs, n_latents, dense=self.inference != "kronecker")
        n_rows, conditions = data.inputs.shape[0], data.n_conditions * n_latents**2
        return n_rows * n_inputs**2 + conditions + data.n_observations * n_inputs + n_inputs**3 + n_latents**3


def _long_operations(data: Data, n_inputs: int, n_latents: int, *, dense: bool = True) -> float:
    # Of a bound that does without the Kronecker form; where dense, it factorises a matrix over all pairs.
    factor = float(n_inputs * n_latents) ** 3 if dense else 0.0
    conditions = data.n_conditions * n_latents**2 * (n_latents + n_inputs**2)
    return data.n_observations * n_inputs**2 + conditions + factor


def _operations_with_own(data: Data, kernels: DescribedKernels, n_features: int, n_inputs: int) -> float:
    # Of a bound that integrates own curves out: sums over observations, a factor with its products for each condition,
    # and one over all pairs. The first two are many small products, where an operation takes some four times as long.
    sums = data.n_observations * ((len(kernels.of_inputs) + kernels.has_shared + 1) * n_inputs) ** 2.0
    return 4 * (sums + 10.0 * data.n_conditions * n_inputs**3.0) + float(n_inputs * n_features) ** 3


def latent_dimensions(options: Options, n_conditions: int, *, n_known: int = 0) -> list[int]:
    """Return numbers of latent dimensions to try, from none at all where features give ``n_known`` coordinates."""
    if options.n_latent != AUTO:
        return [int(options.n_latent)]
    return list(range(0 if n_known else 1, min(_MOST_AUTO_LATENT, max(n_conditions - 1, 1)) + 1))


def latent_kernels(options: Options) -> list[Kernel]:
    """Return latent kernels to try: with ``"auto"``, curves that change in proportion to the latents, or smoothly.

    The constant, a part that latents do not change, is the shared curve where there is one.
    """
    if is_auto(options.latent_kernel):
        return [Linear() + Constant() if options.shared_kernel is None else Linear(), RBF()]
    return [named(options.latent_kernel)]


def input_kernels(options: Options) -> list[Kernel]:
    """Return what ``"auto"`` may stand for in kernels over inputs: very smooth curves and less smooth ones."""
    asked = (options.shared_kernel, options.own_kernel) if options.input_kernel is None else (options.input_kernel,)
    return [RBF(), Matern52()] if any(map(is_auto, asked)) else [RBF()]


def described_kernels(options: Options, latent_kernel: Kernel, auto: Kernel, scale: HostFloat) -> DescribedKernels:
    """Return the kernels that the options ask for.

    ``"auto"`` is the first kernel over inputs; where that is open too, or there is none, it is ``auto``.
    """
    asked = options.input_kernel
    terms = () if asked is None else (asked,) if isinstance(asked, str | Kernel) else tuple(asked)
    of_inputs = tuple(auto if is_auto(each) else named(each) for each in terms)
    first = of_inputs[0] if of_inputs else auto

    def optional(kernel: str | Kernel | None) -> Kernel | None:
        return first if is_auto(kernel) else None if kernel is None else named(kernel)

    found = DescribedKernels(
        optional(options.shared_kernel), of_inputs, optional(options.own_kernel), latent_kernel, scale
    )
    if not of_inputs and found.shared is None:
        raise SettingError(
            "without an input_kernel conditions have only what they share and what is their own: give a shared_kernel, "
            'such as "auto"'
        )
    return found


def is_auto(kernel: Any) -> bool:
    """Return whether a kernel is left open."""
    return isinstance(kernel, str) and kernel == AUTO


def fit_settings(
    options: Options,
    data: Data,
    inputs: HostFloat,
    *,
    n_latent: int,
    kernels: DescribedKernels,
    n_known: int = 0,
) -> Settings:
    """Return sizes and numbers of starts for these data, ``n_known`` coordinates of each condition being known."""
    is_grid, n_distinct = isinstance(data, GridData), len(np.unique(inputs, axis=0))
    own_noise, own_variances = options.noise == "per-condition", False
    most_latents = inducing_latents(options, data.n_conditions, n_latent + n_known, kernels.of_latents)
    n_features = most_latents * len(kernels.of_inputs) + kernels.has_shared  # of latents, in all terms
    if options.n_inducing_inputs != AUTO:
        fewest = most = _capped("n_inducing_inputs", options, n_distinct, "different inputs")
    else:
        # The same for all latent kernels that are tried: their bounds are compared.
        tried = latent_kernels(options)
        widest = max(inducing_latents(options, data.n_conditions, n_latent + n_known, each) for each in tried)
        enough = _FEWEST_PAIRS // (widest * len(kernels.of_inputs) + kernels.has_shared)
        fewest = min(max(_FEWEST_INDUCING_INPUTS, enough), n_distinct)
        most = min(_MOST_INDUCING_INPUTS, n_distinct)
    if kernels.own is not None and own_noise:
        own_variances = not is_grid or _long_operations(data, fewest, n_features) <= _MOST_WITH_OWN_VARIANCES
    is_kronecker = is_grid and len(kernels.of_inputs) <= 1 and not own_variances

    at_start = fewest
    if options.n_inducing_inputs == AUTO and is_grid and kernels.is_plain:
        at_start = most  # a grid of the paper's model never forms a matrix over all pairs
    elif options.n_inducing_inputs == AUTO:
        # With a shared curve, or own ones, answers do; where bounds do too, only the best start goes on with more.
        most = max(min(most, (_MOST_ANSWERING if is_kronecker else _MOST_COLLAPSED) // n_features), fewest)
        if kernels.own is not None and not is_kronecker:
            cost = partial(_operations_with_own, data, kernels, n_features)
            fewest = _affordable(min(_FEWEST_INDUCING_INPUTS, n_distinct), fewest, cost, _MOST_OPERATIONS_AT_START)
            most = _affordable(fewest, most, cost, _MOST_OPERATIONS_WITH_OWN)
            at_start = _affordable(fewest, most, cost, _MOST_OPERATIONS_AT_START)
    if options.inference == "full" and most * n_features > _MOST_FULL:
        raise SettingError(
            f'inference="full" keeps a covariance over all pairs of inducing points, here {most * n_features}; it is '
            f'limited to {_MOST_FULL}: use fewer inducing points, or inference="collapsed"'
        )
    fastest = "collapsed" if is_kronecker or most * n_features <= _MOST_COLLAPSED else "kronecker"
    inference = fastest if options.inference in (AUTO, NUTS) else options.inference
    n_latents = most_latents
    if options.n_inducing_latents == AUTO and inference == "collapsed" and not kernels.is_plain:
        n_latents = min(max(most_latents // 2, _VERY_FEW_LATENTS), most_latents)
    n_scattered = 0 if is_grid else data.n_observations  # a grid costs the same however many observations it holds
    settings = Settings(
        kernels=kernels,
        n_latent=n_latent,
        n_inducing_inputs=fewest,
        most_inducing_inputs=most,
        most_at_start=at_start,
        n_distinct_inputs=n_distinct,
        n_inducing_latents=n_latents,
        most_inducing_latents=most_latents,
        noise_per_condition=own_noise,
        own_variances=own_variances,
        inference=inference,
        n_restarts=1,
        max_iterations=or_default(options.max_iter, _MAX_ITERATIONS),
        seed=options.random_state,
        tolerance=max(_LEAST_GAIN, _LEAST_GAIN_PER_OBSERVATION * (n_scattered - _MANY_OBSERVATIONS)),
    )
    if options.n_restarts == AUTO and (data.n_conditions == 1 or n_scattered > _MOST_OBSERVATIONS_FOR_RESTARTS):
        return settings
    enough = next(count for limit, count in _RESTARTS_BY_COST if settings.operations(data) <= limit)
    return settings._replace(n_restarts=or_default(options.n_restarts, enough))


def _affordable(least: int, number: int, cost: Callable[[int], float], most: float) -> int:
    # As many inducing inputs as that, or as leave the cost of a bound below the most that it may be.
    while number > least and cost(number) > most:
        number = max(9 * number // 10, least)
    return number


def or_default(asked: int | str, default: int) -> int:
    """Return the number that was asked for, if any was."""
    return default if asked == AUTO else int(asked)


def inducing_latents(options: Options, n_conditions: int, n_latent: int, kernel: Kernel) -> int:
    """Return the number of inducing latents, at most as many as there are conditions."""
    if options.n_inducing_latents == AUTO:
        enough = min(_INDUCING_LATENTS.get(n_latent, _MOST_INDUCING_LATENTS), rank(kernel, n_latent))
        return int(min(n_conditions, enough))
    return _capped("n_inducing_latents", options, n_conditions, "conditions")


def _capped(name: str, options: Options, available: int, what: str) -> int:
    asked = int(getattr(options, name))
    if asked > available:
        warn(f"{name}={asked} is more than the {available} {what} in the data; {available} are used")
    return min(asked, available)
