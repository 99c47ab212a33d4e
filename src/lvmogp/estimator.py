"""The scikit-learn face of the library."""

import numbers
import os
from collections.abc import Callable, Sequence
from typing import Any, Self

import jax.numpy as jnp
import numpy as np
import pandas as pd
from sklearn.base import BaseEstimator, RegressorMixin
from sklearn.metrics import r2_score
from sklearn.utils import check_random_state
from sklearn.utils.validation import check_is_fitted

import lvmogp.fitted.answers as answers
import lvmogp.fitted.parts as parts
import lvmogp.fitted.queries as queries
import lvmogp.fitted.suggestions as suggestions
from lvmogp.errors import DataError, ModelFileError, SettingError, warn
from lvmogp.fitted.calibration import LEVELS, Calibration, Forecasts, checked_levels
from lvmogp.fitted.calibration import calibration as calibration_of
from lvmogp.fitted.model import FittedModel, Origin, absorbed, mapped_arrays, without_condition
from lvmogp.fitted.model_file import load_model, save_model
from lvmogp.ground.compiling import forget_many_programs
from lvmogp.ground.precision import double_precision, in_double_precision
from lvmogp.inference.minibatch.fit import CHECKPOINT_SECONDS
from lvmogp.inference.nuts.diagnostics import SamplingDiagnostics
from lvmogp.inference.options import Options
from lvmogp.inference.restarts import Outcome, Progress
from lvmogp.kernels.covariances import Kernel
from lvmogp.model.parameters import Kernels
from lvmogp.pipeline import train, warn_of_outcome
from lvmogp.progress import progress_bar
from lvmogp.tables.ids import Id
from lvmogp.tables.reading import as_pandas, read_outputs
from lvmogp.typing import HostFloat


class LVMOGPRegressor(RegressorMixin, BaseEstimator, Options):
    """Regression on data from many conditions, each a point in a latent space that is learnt with the curves.

    What was learnt is in attributes whose names end in an underscore, such as ``latents_`` and ``outcome_``.

    Parameters
    ----------
    n_latent : int or "auto", default=2
        Dimensions of the latent space; ``"auto"`` tries 1, 2, … and keeps the number with the best bound. 0 needs
        known features of the conditions, which then are all that tells them apart.
    condition : str, optional
        Name of the column of a DataFrame ``X`` that holds the condition of each row.
    input_kernel, latent_kernel : str or Kernel, default="auto"
        Covariance over inputs and over latents: a name (``"rbf"``, ``"matern52"``, …) or a kernel such as
        ``RBF() + Periodic(period=24.0)``. Lengthscales and periods are in the units of the inputs; of a column whose
        logarithm is modelled, in those of its natural logarithm (a lengthscale of 2.3 is a factor of ten).
        A list of input kernels, ``["rbf", "matern32"]``, makes the curve a sum of as many functions of inputs and
        latents, which may change with the latents each in its own way; ``input_kernel=None`` leaves latents out, so
        that conditions have a shared curve and their own ones only.
        ``input_kernel="auto"`` tries an RBF and a Matérn 5/2, ``latent_kernel="auto"`` an RBF and a linear kernel
        (curves that change in proportion to the latents, which extrapolate to conditions unlike all trained ones);
        the better bound wins.
    shared_kernel, own_kernel : "auto", None, str or Kernel, default="auto"
        Covariance over inputs of a curve that all conditions share, and of a curve that each condition has for itself,
        beside what its latents tell: ``"auto"`` for a kernel like ``input_kernel`` (none with minibatches, nor of a
        single condition), ``None`` for no such curve, or a kernel as there. With ``noise="per-condition"``, conditions
        also differ in the size of their own curves. ``predict_parts`` shows each of the curves.
    n_inducing_inputs, n_inducing_latents : int or "auto", default="auto"
        Numbers of inducing points. More are more exact and cost more.
    noise : {"per-condition", "shared"}, default="per-condition"
        A noise variance for each condition, pooled: how much they differ is learnt, and a condition with few points
        follows the others. Or one for all. ``LVMOGPRegressor(**lvmogp.PAPERS_MODEL)`` is the model of the paper.
    inference : {"auto", "collapsed", "full", "kronecker", "stochastic", "nuts"}, default="auto"
        The variational family of the inducing variables: optimal and never stored, explicit with a full
        covariance, or explicit with a Kronecker covariance (the paper's); or by minibatches, for data of any
        size. ``"auto"`` takes the first while it is affordable, then the Kronecker covariance, and minibatches for
        more than 200 000 observations that are not a grid. ``"nuts"`` goes on from there to
        draws from the posterior of latents and hyperparameters: usually better calibrated, slower.
    n_restarts : int or "auto", default="auto"
        Starts, different in kind, of which the best bound wins. Where it pays they run side by side, one per core;
        the environment variable ``OMP_NUM_THREADS`` limits how many.
    max_iter : int or "auto", default="auto"
        Most iterations of each start; with minibatches, most steps.
    batch_size : int or "auto", default="auto"
        Observations in a minibatch, for ``inference="stochastic"``.
    priors : Priors or None, default=None
        Prior distributions of the hyperparameters, for ``inference="nuts"``.
    n_chains : int or "auto", default="auto"
        Markov chains, for ``inference="nuts"``; as many run at once as there are cores. Up to 500 observations, which
        may have many explanations, 16, else 4.
    n_warmup, n_draws : int or "auto", default="auto"
        Steps in which each chain learns how to move (300), and draws that it keeps after them (250); of 16 chains or
        more 160 and 60.
    input_transform : None, "auto" or mapping of columns to "log", default=None
        Columns of ``X`` whose logarithms are modelled, by name or, of an array, by number from 0:
        ``{"substrate": "log"}``. For positive inputs that span orders of magnitude, such as concentrations, doses
        and frequencies. All that you see stays in your units. ``"auto"`` lets the bound choose among columns
        that are positive and span an order of magnitude; with ``output_transform="auto"``, together with that.
    output_transform : {None, "log", "sqrt", "auto"}, default=None
        ``"log"`` models the logarithm of a positive output, ``"sqrt"`` the square root of one that is not negative, for
        noise that grows with the output; predictions stay positive and in its units. ``"auto"`` lets the bound choose
        where all outputs are positive, with ``inference="nuts"`` not the logarithm: where its variance is uncertain,
        the output has no mean.
    unseen : {"error", "prior"}, default="error"
        What to do with a condition never seen: refuse, or predict it from the prior over latents.
    dtype : {"float64", "float32"}, default="float64"
        Precision of the fitted model and its predictions. Fits are computed in float64, except for parts of those
        by minibatches: the bound is a small difference of large numbers.
    random_state : int, RandomState or None, default=None
        Seed; ``None`` is the same as 0, so that fits are reproducible.
    verbose : bool, default=False
        Show progress while fitting.

    Examples
    --------
    >>> import numpy as np
    >>> from lvmogp import LVMOGPRegressor
    >>> rng = np.random.default_rng(0)
    >>> ids = np.repeat(["a", "b", "c", "d"], 10)
    >>> X = rng.uniform(0, 1, (40, 1))
    >>> slope = np.repeat([1.0, 2.0, 3.0, 4.0], 10)
    >>> y = slope * X[:, 0] + 0.01 * rng.standard_normal(40)
    >>> model = LVMOGPRegressor(n_latent=1).fit(X, y, conditions=ids)
    >>> model = model.add_condition("e", [[0.5]], [1.25])
    >>> round(float(model.predict([[1.0]], "e")[0]), 1)
    2.5
    """

    # Fitting

    @in_double_precision
    def fit(
        self,
        X: Any,
        y: Any = None,
        conditions: Any = None,
        *,
        condition_features: Any = None,
        y_std: Any = None,
        on_progress: Callable[[Progress], None] | None = None,
        checkpoint: str | os.PathLike[str] | None = None,
        checkpoint_seconds: float = CHECKPOINT_SECONDS,
        resume: bool = False,
    ) -> Self:
        """Learn the curves and the latents of all conditions.

        Parameters
        ----------
        X : array or DataFrame of shape (n, columns), or ObservationStore
            Inputs, one row an observation (long form) or one row a point of the grid. A store of observations on disk
            holds outputs and conditions as well, and is fitted by minibatches without being loaded.
        y : array of shape (n,) or (n, conditions)
            Outputs: one per row, or one column per condition (grid form). NaN means not observed.
        conditions : sequence of ids, optional
            The condition of each row (long form), or the names of the columns of ``y`` (grid form).
        condition_features : DataFrame, mapping or array, optional
            What is known of the conditions: numbers, dates or categories, with a row for each condition, found by the
            index or the condition column of a DataFrame or the keys of a mapping; an array has them in the order of
            ``conditions_``. NaN or None where a feature is not known. Rows of other conditions are kept for later.
        y_std : float or array of the shape of y, optional
            Known standard deviations of the measurements, which add to the noise: the variance of an observation is
            σ² + y_std². Of a transform of the output they are carried over, as y_std/y to a logarithm. Standard
            deviations of predictions hold the noise σ only, since the error of a measurement to come is not known.
        on_progress : callable, optional
            Called after every iteration with a ``Progress``, in place of what ``verbose`` shows. It may raise
            ``StopFit`` to end the fit with the best model so far.
        checkpoint : path, optional
            Folder for checkpoints: of minibatches every ``checkpoint_seconds``, else of each start that has ended.
        checkpoint_seconds : float, default=60.0
            Seconds between two checkpoints; what a killed process loses at most.
        resume : bool, default=False
            Go on from the checkpoints in that folder. The result is the same as that of an undisturbed fit.
        """
        forget_many_programs()
        with progress_bar(shown=bool(self.verbose) and on_progress is None) as shown:
            self.model_: FittedModel = train(
                self,
                X,
                y,
                conditions,
                condition_features=condition_features,
                y_std=y_std,
                on_progress=on_progress or shown,
                checkpoint=checkpoint,
                checkpoint_seconds=checkpoint_seconds,
                resume=resume,
            )
        table = as_pandas(X)
        self._note_columns(list(table.columns) if isinstance(table, pd.DataFrame) else None)
        warn_of_outcome(self.model_.fit.outcome)
        return self

    def _note_columns(self, columns: list[Any] | None) -> None:
        # scikit-learn counts and names the columns of X as given, a condition column among them.
        vars(self).pop("feature_names_in_", None)
        self.n_features_in_: int = self.model_.schema.n_columns if columns is None else len(columns)
        if columns is not None and all(isinstance(name, str) for name in columns):
            self.feature_names_in_: np.ndarray = np.asarray(columns, dtype=object)

    # What was learnt

    @property
    def outcome_(self) -> Outcome:
        """How the fit went: bound, status, history, counts and time."""
        return fitted_model(self).fit.outcome

    @property
    def origin_(self) -> Origin | None:
        """Seed, versions and machine of the fit; ``None`` in files written before these were kept."""
        return fitted_model(self).fit.origin

    @property
    def sampling_(self) -> SamplingDiagnostics | None:
        """How Markov chains went: whether they agree, how many draws count, remarks; ``None`` without them."""
        chains = fitted_model(self).chains
        return None if chains is None else chains.diagnostics

    @property
    def n_iter_(self) -> int:
        """Iterations of all starts together."""
        return self.outcome_.n_iterations

    @property
    def conditions_(self) -> tuple[Id, ...]:
        """Ids of all conditions, trained ones first."""
        return fitted_model(self).all_ids

    @property
    def n_latent_(self) -> int:
        """Dimensions of the latent space."""
        return fitted_model(self).n_latent

    @property
    def bounds_by_n_latent_(self) -> dict[int, float]:
        """Best bound of each number of latent dimensions that was tried."""
        return dict(fitted_model(self).fit.bounds_by_n_latent)

    @property
    def input_transform_(self) -> dict[str | int, str]:
        """The columns of ``X`` whose logarithms are modelled, by name or number, each with ``"log"``."""
        keys = fitted_model(self).schema.column_keys
        return {keys[column]: "log" for column in fitted_model(self).scaling.log_columns}

    @property
    def bounds_by_log_columns_(self) -> dict[tuple[str | int, ...], float]:
        """Best bound on the log density of the outputs, in your units, with each set of logarithms that was tried."""
        keys, bounds = fitted_model(self).schema.column_keys, fitted_model(self).fit.bounds_by_log_columns
        return {tuple(keys[column] for column in columns): bound for columns, bound in bounds.items()}

    @property
    def output_transform_(self) -> str | None:
        """The transform of the output that is modelled; ``None`` for the output itself."""
        return fitted_model(self).scaling.transform_name

    @property
    def bounds_by_transform_(self) -> dict[str | None, float]:
        """Best bound on the log density of the outputs, in your units, with each transform that was tried."""
        return dict(fitted_model(self).fit.bounds_by_transform)

    @property
    def _kernels(self) -> Kernels:
        return fitted_model(self).posterior.parameters.kernels

    @property
    def latent_kernel_(self) -> Kernel | None:
        """The fitted kernel over latents, of the first term that has one; ``None`` without latents."""
        return next((term.latent_kernel for term in self._kernels.terms), None)

    @property
    def input_kernel_(self) -> Kernel | None:
        """The fitted kernel over inputs of that term, in standardised units; of logarithms where these are modelled."""
        return self._kernels.terms[0].input_kernel if self._kernels.of_latents else None

    @property
    def shared_kernel_(self) -> Kernel | None:
        """The fitted kernel of the curve that all conditions share, in standardised units, if there is one."""
        return self._kernels.terms[-1].input_kernel if self._kernels.has_shared else None

    @property
    def own_kernel_(self) -> Kernel | None:
        """The fitted kernel of the curves that are each condition's own, in standardised units, if there are any."""
        return self._kernels.own

    @property
    @in_double_precision
    def latents_(self) -> pd.DataFrame:
        """One row for each condition: its id, mean and sd of each latent dimension, whether it was added."""
        return answers.latent_table(fitted_model(self))

    @property
    def condition_features_(self) -> pd.DataFrame | None:
        """One row a condition: its id and known features, whether it was added; ``None`` without features."""
        return answers.condition_feature_table(fitted_model(self))

    @in_double_precision
    def similarities(self) -> pd.DataFrame:
        """How alike the curves of each pair of conditions are expected to be: 1 the same, 0 unrelated."""
        return answers.similarity_table(fitted_model(self))

    # Prediction

    @in_double_precision
    def predict(
        self,
        X: Any,
        conditions: Any = None,
        *,
        condition_features: Any = None,
        return_std: bool = False,
        return_cov: bool = False,
        include_noise: bool = True,
    ) -> Any:
        """Mean of the output, with its standard deviation or joint covariance on request.

        Parameters
        ----------
        X : array or DataFrame of shape (n, columns)
            Inputs in the user's units.
        conditions : id or sequence of ids, optional
            One condition for all rows, or one per row. A list, array or Series is one id per row; a string, number,
            date or tuple is one id for all rows. Left out, a model fitted on a grid predicts all its conditions
            and returns arrays of shape (n, conditions).
        condition_features : DataFrame or mapping, optional
            Features of conditions never seen, by id, as in ``fit``: they are predicted from these and from the prior
            over the latents.
        return_std : bool, default=False
            Return ``(mean, std)``.
        return_cov : bool, default=False
            Return ``(mean, cov)``, the covariance being joint over all rows, across conditions too.
        include_noise : bool, default=True
            Whether std and covariance are those of a new observation, or of the function behind it.
        """
        if return_std and return_cov:
            raise SettingError("return_std and return_cov exclude each other; ask for one of them")
        model, rows = self._asked(X, conditions, condition_features)
        if return_cov:
            mean, joint = answers.moments_and_covariance(model, rows, include_noise=include_noise)
            return queries.checked_numbers("mean", mean), queries.checked_numbers("covariance", joint)
        mean, variance = answers.moments(model, rows, include_noise=include_noise, with_variance=return_std)
        return _mean_and_std(mean, variance, return_std=return_std)

    @in_double_precision
    def predict_interval(
        self,
        X: Any,
        conditions: Any = None,
        *,
        condition_features: Any = None,
        level: float = 0.95,
        include_noise: bool = True,
    ) -> tuple[HostFloat, HostFloat]:
        """Lower and upper end of the central interval that holds the output with probability ``level``.

        Quantiles of the predictive distribution itself, which is a mixture over the latents and no Gaussian.
        """
        wanted = queries.central_levels(level)
        ends = self.predict_quantiles(
            X, conditions, levels=wanted, condition_features=condition_features, include_noise=include_noise
        )
        return ends[..., 0], ends[..., 1]

    @in_double_precision
    def predict_quantiles(
        self,
        X: Any,
        conditions: Any = None,
        *,
        condition_features: Any = None,
        levels: Sequence[float] = (0.05, 0.5, 0.95),
        include_noise: bool = True,
    ) -> HostFloat:
        """Values below which the output lies with the given probabilities, one for each level along the last axis.

        A level of one half is the median, a sturdier answer than the mean where ``output_transform="log"`` has left
        much open: a few unlikely, enormous values decide that mean, and where the noise variance is uncertain it need
        not even exist.
        """
        wanted = checked_levels(levels).tolist()
        model, rows = self._asked(X, conditions, condition_features)
        found = answers.quantiles(model, rows, wanted, include_noise=include_noise)
        return rows.as_columns(queries.checked_numbers("quantile", found))

    @in_double_precision
    def sample(
        self,
        X: Any,
        conditions: Any = None,
        n: int = 1,
        *,
        condition_features: Any = None,
        include_noise: bool = False,
        random_state: Any = None,
    ) -> HostFloat:
        """Draw functions: ``n`` joint draws of the output at all rows, of shape (n, rows).

        For all conditions of a grid the shape is (n, rows, conditions).
        """
        if not isinstance(n, numbers.Integral) or n < 1:
            raise SettingError(f"n must be a whole number of at least 1, got {n!r}")
        model, rows = self._asked(X, conditions, condition_features)
        seed = check_random_state(self.random_state if random_state is None else random_state).randint(2**31)
        rng = np.random.default_rng(seed)
        draws = answers.sample(model, rows, n_draws=int(n), include_noise=include_noise, rng=rng)
        return np.moveaxis(rows.as_columns(queries.checked_numbers("sample", draws).T), -1, 0)

    @in_double_precision
    def predict_gradient(
        self, X: Any, conditions: Any = None, *, condition_features: Any = None, include_noise: bool = True
    ) -> tuple[HostFloat, HostFloat]:
        """Derivatives of the mean and of the variance in each input, two arrays of the shape of ``X``.

        For all conditions of a grid the shape is (rows, conditions, columns).
        """
        model, rows = self._asked(X, conditions, condition_features)
        found = answers.moment_gradients(model, rows, include_noise=include_noise)
        by_mean, by_variance = (rows.as_columns(queries.checked_numbers("gradient", each)) for each in found)
        return by_mean, by_variance

    @in_double_precision
    def predict_parts(self, X: Any, conditions: Any = None, *, condition_features: Any = None) -> pd.DataFrame:
        """The parts of which the predicted curves are sums: what all conditions share, what latents tell, what is own.

        The own part is what is peculiar to a condition. Parts add up to the mean without noise, the shared one (or,
        without it, the latent one) holding the mean of all outputs. Each is known less well than their sum, since what
        one takes another leaves. They are in units of the output, or of its transform where that is modelled, whose
        parts add up.

        Parameters
        ----------
        X, conditions, condition_features
            As for ``predict``.

        Returns
        -------
        DataFrame
            Columns ``row`` (that of ``X``, from 0), ``condition``, ``part`` (``"shared"``, ``"latent"``, ``"own"``;
            only those that the model has), ``mean`` and ``sd``; one part after the other.
        """
        return parts.part_table(*self._asked(X, conditions, condition_features))

    @in_double_precision
    def predict_at_latent(
        self, X: Any, H: Any, *, features: Any = None, return_std: bool = False, include_noise: bool = True
    ) -> Any:
        """Predict at given latents: one for all rows of ``X``, or one per row.

        A model of conditions with known features needs all ``features`` of the one that is imagined.
        """
        model = fitted_model(self)
        inputs = queries.asked_inputs(model, X).values
        latents = queries.asked_latents(model, H, features, n_rows=len(inputs))
        mean, variance = answers.moments_at_latents(model, inputs, latents, include_noise=include_noise)
        return _mean_and_std(mean, variance, return_std=return_std)

    @in_double_precision
    def log_predictive_density(
        self,
        X: Any,
        y: Any,
        conditions: Any = None,
        *,
        include_noise: bool = True,
        condition_features: Any = None,
        y_std: Any = None,
    ) -> HostFloat:
        """Log density of each observation under its predictive distribution, per unit of the output.

        The shape is that of ``y``; NaN where ``y`` is NaN. With ``include_noise=False``, ``y`` are values of the
        function itself, as simulations give them. Known errors of measurements, ``y_std`` as in ``fit``, add to the
        noise.
        """
        model, rows = self._asked(X, conditions, condition_features)
        found = answers.scores(model, rows, *rows.measurements(y, y_std), include_noise=include_noise)
        return rows.as_columns(found.log_density)

    @in_double_precision
    def predictive_cdf(
        self,
        X: Any,
        y: Any,
        conditions: Any = None,
        *,
        include_noise: bool = True,
        condition_features: Any = None,
        y_std: Any = None,
    ) -> HostFloat:
        """Probability, under its predictive distribution, of an output no larger than each observation.

        Uniform between 0 and 1 where predictions are calibrated. The shape is that of ``y``; NaN where ``y`` is NaN.
        With ``include_noise=False``, ``y`` are values of the function itself. Known errors of measurements, ``y_std``
        as in ``fit``, add to the noise.
        """
        model, rows = self._asked(X, conditions, condition_features)
        outputs, errors = rows.measurements(y, y_std)
        found = answers.scores(model, rows, outputs, errors, include_noise=include_noise)
        return rows.as_columns(np.where(np.isnan(outputs), np.nan, found.probability_below))

    @in_double_precision
    def to_arviz(self) -> Any:
        """The draws of ``inference="nuts"`` as ``arviz.InferenceData`` (``pip install "lvmogp[arviz]"``).

        Hyperparameters are in standardised units, latents are turned to those of the variational fit. Draws of chains
        that found poorer explanations count for less in predictions, which ArviZ does not know: ``log_weight`` among
        the sample statistics says how much each counts.
        """
        return answers.inference_data(fitted_model(self))

    @in_double_precision
    def calibration(
        self,
        X: Any,
        y: Any,
        conditions: Any = None,
        *,
        condition_features: Any = None,
        y_std: Any = None,
        levels: Sequence[float] = LEVELS,
    ) -> Calibration:
        """Whether intervals hold as many held-out observations as they promise; a warning if not.

        Parameters
        ----------
        X, y, conditions
            Observations that the model was not fitted to, as for ``predict``; outputs that are NaN do not count.
        condition_features : DataFrame or mapping, optional
            Features of conditions never seen, as for ``predict``.
        y_std : float or array of the shape of y, optional
            Known standard deviations of these measurements, as in ``fit``: their intervals are wider by that.
        levels : sequence of float, default=(0.5, 0.8, 0.9, 0.95)
            Levels of the central intervals to check.
        """
        asked = checked_levels(levels)
        model, rows = self._asked(X, conditions, condition_features)
        outputs, errors = rows.measurements(y, y_std)
        known = np.flatnonzero(np.isfinite(outputs))
        observed, ids = rows.some(known), rows.ids
        mean, _ = answers.moments(model, observed, include_noise=True)
        density, below = answers.scores(model, observed, outputs[known], errors[known], include_noise=True)
        error = mean - outputs[known]
        found = calibration_of(Forecasts(below, density, error, ids.numbers[known], ids.distinct), asked)
        if found.intervals_are_off:
            warn(f"predictions are not calibrated: {found.remarks[0]}")
        return found

    def score(self, X: Any, y: Any, sample_weight: Any = None, *, conditions: Any = None) -> float:
        """Coefficient of determination R² of the predictions; entries of ``y`` that are NaN do not count."""
        predicted = self.predict(X, conditions)
        observed = read_outputs(y, len(predicted))
        known = np.isfinite(observed)
        weights = None if sample_weight is None else np.broadcast_to(np.asarray(sample_weight), observed.shape)[known]
        return float(r2_score(observed[known], predicted[known], sample_weight=weights))

    # New conditions

    @in_double_precision
    def add_condition(
        self, name: Id, X: Any, y: Any, *, features: Any = None, y_std: Any = None, method: str = "exact"
    ) -> Self:
        """Take in a new condition from a few observations; the trained model stays as it is.

        Parameters
        ----------
        name : id
            Name of the condition. For one added earlier, the new points join its earlier ones.
        X, y : arrays of shape (n, columns) and (n,)
            Its observations, none, one or many. Rows whose output is NaN do not count.
        features : mapping or sequence, optional
            Its known features, by name or in the order of the fit, for a model of conditions with features. Left out,
            those that the table of the fit has for it; what is not known is inferred.
        y_std : float or array of shape (n,), optional
            Known standard deviations of its measurements, as in ``fit``.
        method : {"exact", "gaussian"}, default="exact"
            The exact posterior over the latents as weighted particles, or the paper's single Gaussian.
        """
        model = fitted_model(self)
        known = queries.asked_features(model, features)
        self.model_ = queries.with_observations(model, name, X, y, y_std, features=known, method=method)
        return self

    @in_double_precision
    def add_conditions(
        self,
        X: Any,
        y: Any,
        conditions: Any = None,
        *,
        condition_features: Any = None,
        y_std: Any = None,
        method: str = "exact",
    ) -> Self:
        """Take in several new conditions at once, from data in long form, with a table of their features if any."""
        if conditions is None and self.condition is None:
            raise DataError("add_conditions needs to know the condition of each row: pass conditions=, one id per row")
        model = fitted_model(self)
        rows = queries.asked_rows(model, X, conditions, self.condition)
        features = queries.features_by_id(model, condition_features, self.condition)
        self.model_ = queries.with_long_form(model, rows, y, y_std, features=features, method=method)
        return self

    def remove_condition(self, name: Id) -> Self:
        """Forget a condition that was added."""
        model = fitted_model(self)
        self.model_ = without_condition(model, queries.asked_id(model, name))
        return self

    @in_double_precision
    def absorb(self) -> Self:
        """Fold all added conditions into the trained model in closed form, with its hyperparameters as they are."""
        self.model_ = absorbed(fitted_model(self))
        return self

    @in_double_precision
    def suggest(
        self,
        name: Id,
        candidates: Any = None,
        n: int = 1,
        *,
        goal: str = "predictions",
        region: Any = None,
        condition_features: Any = None,
    ) -> suggestions.Suggestion:
        """Choose the inputs whose measurement is expected to tell most about a condition.

        Parameters
        ----------
        name : id
            A condition: trained, added, or new, with nothing measured so far.
        candidates : array or DataFrame of shape (m, columns), optional
            Inputs that could be measured, each once. Left out, they cover the box of the training inputs, evenly in the
            logarithm where that is modelled.
        n : int, default=1
            Number of inputs to choose. Each is the best given those before it, whose outcomes are not known yet; with
            time to measure one after the other, ask for one, add its outcome by ``add_condition`` and ask again.
        goal : {"predictions", "latents"}, default="predictions"
            What to learn about: the condition's curve over the region, or its latents.
        region : array or DataFrame of shape (r, columns), optional
            Inputs where predictions matter; the candidates unless given. Of many, 64 stand for all.
        condition_features : DataFrame or mapping, optional
            Features of a condition that is new, by id, as for ``predict``.
        """
        plain_name = queries.asked_id(fitted_model(self), name)
        model = self._described((plain_name,), condition_features)
        if goal not in suggestions.GOALS:
            raise SettingError(f"goal must be one of {list(suggestions.GOALS)}, got {goal!r}")
        if region is not None and goal == "latents":
            raise SettingError('region says where predictions matter; leave it out with goal="latents"')
        if goal == "latents" and self.n_latent_ == 0:
            raise SettingError('the model has no latents (n_latent=0) to learn about; leave goal="latents" out')
        given = (None if rows is None else queries.asked_inputs(model, rows).values for rows in (candidates, region))
        inputs, wanted = given
        inputs = suggestions.default_candidates(model) if inputs is None else inputs
        if len(inputs) == 0:
            raise DataError("there are no candidates to choose from; give at least one row of inputs or leave them out")
        if not isinstance(n, numbers.Integral) or not 1 <= n <= len(inputs):
            raise SettingError(f"n must be a whole number from 1 to the {len(inputs)} candidates, got {n!r}")
        if wanted is not None and len(wanted) == 0:
            raise DataError("region has no rows; give the inputs where predictions matter, or leave it out")
        return suggestions.suggest(model, plain_name, inputs, n=int(n), goal=goal, region=wanted)

    # Files

    @in_double_precision
    def save(self, path: str | os.PathLike[str], *, include_data: bool = True) -> None:
        """Write the fitted model to a file; ``include_data=False`` leaves the training data out."""
        save_model(path, fitted_model(self), self.get_params(deep=False), include_data=include_data)

    @classmethod
    def load(cls, path: str | os.PathLike[str]) -> Self:
        """Read a fitted model from a file."""
        with double_precision():
            model, settings = load_model(path)
        try:
            estimator = cls(**settings)
        except TypeError as error:
            raise ModelFileError(f"{path} holds a setting that this version does not know ({error})") from error
        estimator.model_ = model
        own = [] if estimator.condition is None else [estimator.condition]
        estimator._note_columns(None if model.schema.columns is None else [*model.schema.columns, *own])
        return estimator

    def __getstate__(self) -> dict[str, Any]:
        state = dict(super().__getstate__())
        if "model_" in state:
            state["model_"] = mapped_arrays(state["model_"], np.asarray)
        return state

    def __setstate__(self, state: dict[str, Any]) -> None:
        super().__setstate__(state)
        if "model_" in state:
            # Where float64 is switched off, JAX would read the arrays back in single precision.
            with double_precision():
                self.model_ = mapped_arrays(self.model_, jnp.asarray)

    # At the door

    def _asked(self, X: Any, conditions: Any, condition_features: Any) -> tuple[FittedModel, queries.Query]:
        # The rows asked about, and the model with the new conditions among them that are described.
        rows = queries.asked_rows(fitted_model(self), X, conditions, self.condition, unseen=self.unseen)
        return self._described(rows.ids.distinct, condition_features), rows

    def _described(self, asked: Sequence[Id], condition_features: Any) -> FittedModel:
        model = fitted_model(self)
        return queries.with_described(model, asked, queries.features_by_id(model, condition_features, self.condition))


def _mean_and_std(mean: HostFloat, variance: HostFloat, *, return_std: bool) -> Any:
    queries.checked_numbers("mean", mean)
    return (mean, queries.checked_numbers("standard deviation", np.sqrt(variance))) if return_std else mean


def fitted_model(estimator: LVMOGPRegressor) -> FittedModel:
    """What an estimator has learnt; one that is not fitted says so."""
    words = "this LVMOGPRegressor is not fitted yet; call fit(X, y, conditions=…) first"
    check_is_fitted(estimator, "model_", msg=words)
    forget_many_programs()  # those of earlier calls
    return estimator.model_
