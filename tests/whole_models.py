"""Models put together by hand that hold all that a model file can, and whether what comes back is the same."""

import copy
import dataclasses
import datetime
from pathlib import Path
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
from drawn_models import fitted

from lvmogp.conditions.condition import Condition, condition_of_gaussian, condition_of_particles
from lvmogp.conditions.curves import FewObservations
from lvmogp.fitted.model import AddedCondition, Fit, FittedModel, Origin, fitted_model, observations_of
from lvmogp.ground.precision import in_precision
from lvmogp.inference.optimise import Status
from lvmogp.inference.restarts import Outcome, Restart
from lvmogp.kernels.psi_statistics import LatentGaussians
from lvmogp.storage.codec import Content
from lvmogp.storage.tensor_file import MODEL, opened
from lvmogp.tables.features import CATEGORY, Feature

IDS = (("ω", 1), datetime.date(2020, 1, 2), 3, "a", 2.5)
NAMES = {"ids": IDS, "columns": ("speed", "Größe"), "output_name": "time", "date_columns": ("speed",)}


def particles(model: FittedModel, seen: FewObservations) -> Condition:
    """A condition of five made-up particles."""
    rng, ensemble = np.random.default_rng(6), model.ensemble
    n_coordinates = model.posterior.parameters.inducing_latents.shape[1]
    latents, noise = rng.normal(size=(1, 5, n_coordinates)), rng.uniform(0.1, 1, (1, 5))
    found = latents, noise, np.ones((1, 5)), np.log(rng.dirichlet(np.ones(5)))[None]
    return condition_of_particles(ensemble, *(jnp.asarray(each, ensemble.dtype) for each in found), seen)


def one_gaussian(model: FittedModel, _: FewObservations) -> Condition:
    ensemble = model.ensemble
    latents = LatentGaussians(*(jnp.asarray(each, ensemble.dtype) for each in ([[0.3, -0.2]], [[0.1, 0.2]])))
    return condition_of_gaussian(ensemble, latents, *jnp.array([0.3, 1.0], ensemble.dtype))


def whole_model(form: str, dtype: str = "float64", added=None) -> FittedModel:
    """Five conditions on a grid, or in long form with noises and features of their own, errors and transforms."""
    more = {"noise": "per-condition", "transform": "log", "error": 0.1, "features": True, "log_columns": (0,)}
    more = more if form == "long" else {}
    made = fitted(form, answers="fit", n_latent=2, n_columns=2, **more).model_
    posterior, features = in_precision(made.posterior, dtype), made.condition_features
    restarts = (
        Restart("isomap of 8 neighbours", 1.25, Status.ITERATION_LIMIT, (-3.0, 1.0, 1.25), 5, 0.1),
        Restart("random latents", -np.inf, Status.NOT_FINITE, (), 1, 0.2),
    )
    outcome = Outcome(posterior.parameters, 1.25, Status.ITERATION_LIMIT, restarts, 1e-10, 0.0, 0.3)
    origin = Origin(7, {"jax": "0.1", "numpy": "2"}, "abacus")
    if features is not None:
        features = features._replace(ids=IDS, features=(Feature("load", CATEGORY, ("heavy",)),))
    model = fitted_model(
        made.schema._replace(**NAMES),
        made.scaling,
        Fit(posterior, outcome, {2: 1.25, 1: 0.5}, {None: 1.25, "log": -2.0}, {(): 1.25, (0,): -1.0}, origin),
        condition_features=features,
    )
    if added is None:
        return model
    points, values, errors = np.random.default_rng(7).uniform(1, 2, (2, 2)), np.array([1.0, 2.0]), np.ones(2)
    condition = added(model, observations_of(model, points, values, errors))
    own_features = None if features is None else np.array([0.5])
    method = "exact" if added is particles else "gaussian"
    entry = AddedCondition(points, values, errors, own_features, method, condition)
    return model._replace(added={("new", "✓"): entry})


def edited(content: Content, place: str, value: Any) -> Content:
    """The content with another entry in its document, or with what a function makes of one of its arrays."""
    content = content._replace(document=copy.deepcopy(content.document))
    if place in content.tensors and callable(value):
        return content._replace(tensors={**content.tensors, place: value(content.tensors[place])})
    *outer, last = (int(name) if name.isdecimal() else name for name in place.split("."))
    holder = content.document
    for name in outer:
        holder = holder[name]
    holder[last] = value
    return content


def read(path: str | Path, form: str = MODEL) -> Content:
    """All that a file holds."""
    with opened(path, form) as file:
        return Content(file.tensors(), file.document)


def assert_same(found: Any, wanted: Any) -> None:
    """Of the same types, bit for bit."""
    if isinstance(wanted, np.ndarray | jax.Array):
        assert (found.dtype, found.shape) == (wanted.dtype, wanted.shape)
        assert np.asarray(found).tobytes() == np.asarray(wanted).tobytes()
        return
    assert type(found) is type(wanted)
    if dataclasses.is_dataclass(wanted):
        found, wanted = vars(found), vars(wanted)
    if isinstance(wanted, tuple):
        found, wanted = dict(enumerate(found)), dict(enumerate(wanted))
    if isinstance(wanted, dict):
        assert found.keys() == wanted.keys()
        for name, part in wanted.items():
            assert_same(found[name], part)
    else:
        assert found.hex() == wanted.hex() if isinstance(wanted, float) else found == wanted
