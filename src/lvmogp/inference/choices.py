"""How many latents and which kernel over them, where the user leaves that to the bound."""

from collections.abc import Callable

from lvmogp.inference.minibatch.resuming import FinishedRestarts
from lvmogp.inference.optimise import Status
from lvmogp.inference.options import Options, fit_settings, latent_dimensions, latent_kernels
from lvmogp.inference.restarts import Outcome, Progress, fit
from lvmogp.model.layouts import Data
from lvmogp.storage.checkpoints import Checkpoints
from lvmogp.tables.features import FeatureCoordinates
from lvmogp.tables.scaling import Scaling
from lvmogp.typing import HostFloat

_LEAST_GAIN_PER_DIMENSION = 1.0


def search(
    options: Options,
    data: Data,
    inputs: HostFloat,
    scaling: Scaling,
    on_progress: Callable[[Progress], None] | None,
    checkpoints: Checkpoints | None = None,
    *,
    coordinates: FeatureCoordinates | None = None,
    label: str = "",
) -> list[Outcome]:
    """The best outcome for each number of latents that was tried; the checkpoints of each begin with the label."""
    outcomes: list[Outcome] = []
    n_known = 0 if coordinates is None else coordinates.values.shape[1]
    for n_latent in latent_dimensions(options, data.n_conditions, n_known=n_known):
        candidates = []
        for number, latent_kernel in enumerate(latent_kernels(options)):
            series = f"{label}latents{n_latent}kernel{number}"
            keeper = None if checkpoints is None else FinishedRestarts(checkpoints, series)
            settings = fit_settings(
                options, data, inputs, n_latent=n_latent, n_known=n_known, latent_kernel=latent_kernel
            )
            found = fit(data, inputs, scaling.input_scale, settings, on_progress, keeper, coordinates=coordinates)
            candidates.append(found)
            if candidates[-1].status is Status.INTERRUPTED:
                # Whichever is best, the search for it was cut short.
                tried = [*outcomes, _best(candidates)]
                return [outcome._replace(status=Status.INTERRUPTED) for outcome in tried]
        outcomes.append(_best(candidates))
        if len(outcomes) > 1 and outcomes[-1].bound < outcomes[-2].bound + _LEAST_GAIN_PER_DIMENSION:
            break
    return outcomes


def _best(outcomes: list[Outcome]) -> Outcome:
    return max(outcomes, key=lambda candidate: candidate.bound)


def chosen(outcomes: list[Outcome]) -> Outcome:
    """Of outcomes with ever more latents the last that earned its place: a latent that is not used costs nothing."""
    kept = outcomes[0]
    for candidate in outcomes[1:]:
        if candidate.bound >= kept.bound + _LEAST_GAIN_PER_DIMENSION:
            kept = candidate
    return kept
