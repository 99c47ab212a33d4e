"""What Markov chains say about themselves: whether they agree, how many draws count, in numbers and in words."""

import math
from collections.abc import Mapping
from typing import NamedTuple

import numpy as np

from lvmogp.ground.rules import AnyFloat
from lvmogp.inference.nuts.chains import Chain, SamplerSettings, Statistics
from lvmogp.typing import HostFloat

# Beyond this R-hat chains disagree, and below so many effective draws averages are rough.
_LARGEST_R_HAT = 1.1
_FEWEST_EFFECTIVE = 100
_FEWEST_DRAWS = 4
# Share of draws that is worth a remark.
_MANY_DIVERGENCES = 0.005
# A chain counts if its draws have at least this weight; what is said of others is that they do not. A mode that is
# wider by e^(2/√k) in each of k directions, and so of the same mass, has just this weight.
_COUNTING = math.exp(-2.0)
# Draws of the poorest chains still count for something, so that all logarithms of weights are numbers.
_LEAST_LOG_WEIGHT = -300.0


class ChainDiagnostics(NamedTuple):
    """How one chain went: its draws, how it moved, and how much each of its draws counts."""

    n_draws: int
    n_divergences: int
    step_size: AnyFloat
    acceptance: AnyFloat
    tree_depth: AnyFloat
    log_posterior: AnyFloat
    weight: float
    seconds: float


class Convergence(NamedTuple):
    """The worst R-hat and the smallest number of effective draws of a group of numbers; NaN if they cannot be told."""

    r_hat: AnyFloat
    effective_draws: AnyFloat


class SamplingDiagnostics(NamedTuple):
    """How sampling went: each chain, whether chains agree on what does not depend on orientation, remarks in words."""

    chains: tuple[ChainDiagnostics, ...]
    agreement: Mapping[str, Convergence]
    remarks: tuple[str, ...]
    statistics: Statistics
    n_warmup: int
    completed: bool
    seconds: float

    @property
    def n_draws(self) -> int:
        """Draws of all chains together."""
        return sum(chain.n_draws for chain in self.chains)

    def __str__(self) -> str:
        """The account in one sentence."""
        return f"{self.n_draws} draws of {len(self.chains)} chains in {self.seconds:.1f} s; {' '.join(self.remarks)}"


def chain_weights(chains: list[Chain]) -> HostFloat:
    """Return how much a draw of each chain counts, beside one of the chain of highest log posterior (equation 34).

    A chain in a lesser mode has lower log posteriors. So has one in a mode of the same mass that is wider, and how wide
    modes are cannot be told from short chains. Draws therefore lose weight slowly: log posteriors count in units of the
    uncertainty √k of the logarithm of a volume in k directions. With few draws none of this can be told, and all chains
    count alike.
    """
    if min((len(chain.positions) for chain in chains), default=0) < _FEWEST_DRAWS:
        return np.ones(len(chains))
    n_unknowns = chains[0].positions.shape[1]
    means = np.asarray([chain.statistics.log_posterior.mean() for chain in chains])
    # log w = (⟨log p⟩ − max ⟨log p⟩)/√k
    return np.exp(np.maximum((means - means.max()) / math.sqrt(n_unknowns), _LEAST_LOG_WEIGHT))


def agreement(values: Mapping[str, HostFloat], weights: HostFloat) -> dict[str, Convergence]:
    """Return R-hat and effective draws of groups of numbers (chains × draws × numbers), of the chains that count."""
    from numpyro.diagnostics import effective_sample_size, split_gelman_rubin  # takes a second to import

    found = dict.fromkeys(values, Convergence(math.nan, math.nan))
    for name, numbers in values.items():
        counted = numbers[weights >= _COUNTING]
        varying = counted[..., np.ptp(counted, axis=(0, 1)) > 0]
        if counted.shape[1] >= _FEWEST_DRAWS and varying.size > 0:
            with np.errstate(divide="ignore"):
                worst, fewest = split_gelman_rubin(varying).max(), effective_sample_size(varying).min()
            # Of a few draws that swing to and fro any number seems to be known for sure; Stan has the same limit.
            n_draws = varying.shape[0] * varying.shape[1]
            found[name] = Convergence(float(worst), min(float(fewest), n_draws * math.log10(n_draws)))
    return found


def diagnostics(
    chains: list[Chain], found: Mapping[str, Convergence], settings: SamplerSettings, *, completed: bool, seconds: float
) -> SamplingDiagnostics:
    """Put together what is known of the chains; there are none where sampling was interrupted before the first draw."""
    own = tuple(
        ChainDiagnostics(
            n_draws=len(positions),
            n_divergences=int(np.sum(seen.diverging)),
            step_size=step_size,
            acceptance=float(seen.acceptance.mean()),
            tree_depth=float(np.log2(seen.n_leapfrogs + 1).mean()),
            log_posterior=float(seen.log_posterior.mean()),
            weight=float(weight),
            seconds=own_seconds,
        )
        for (positions, seen, step_size, own_seconds), weight in zip(chains, chain_weights(chains), strict=True)
    )
    values = [[getattr(chain.statistics, name) for chain in chains] or [np.empty(0)] for name in Statistics._fields]
    remarks = tuple(_remarks(own, found, settings, completed))
    statistics = Statistics(*map(np.concatenate, values))
    return SamplingDiagnostics(own, found, remarks, statistics, settings.n_warmup, completed, seconds)


def _remarks(
    chains: tuple[ChainDiagnostics, ...], found: Mapping[str, Convergence], settings: SamplerSettings, completed: bool
) -> list[str]:
    # What to know and what to do about it; where there is nothing, that all is well.
    if not chains:
        return ["Sampling was interrupted before the first draw; predictions are those of the variational fit."]
    n_draws, asked = sum(chain.n_draws for chain in chains), settings.n_chains * settings.n_draws
    remarks = [] if completed else [f"Sampling was interrupted after {n_draws} of {asked} draws."]
    apart = {str(number): chain for number, chain in enumerate(chains, 1) if chain.weight < _COUNTING}
    if apart:
        gap = max(chain.log_posterior for chain in chains) - max(chain.log_posterior for chain in apart.values())
        *first, last = apart
        remarks.append(
            f"Of {len(chains)} chains, chain {', '.join(first) + ' and ' if first else ''}{last} found a poorer "
            f"explanation of the data (log posterior {gap:.0f} lower); its draws count for "
            f"{max(chain.weight for chain in apart.values()):.2g} of others at most. There are several modes: use more "
            "chains, or more restarts, to be sure of the best."
        )
    fewest_draws = min(chain.n_draws for chain in chains)
    if fewest_draws < _FEWEST_DRAWS:
        remarks.append(
            f"A chain of {fewest_draws} draws cannot tell whether it has found what others would find. Raise n_draws."
        )
    worst = max(found, key=lambda name: np.nan_to_num(found[name].r_hat))
    if round(found[worst].r_hat, 2) > _LARGEST_R_HAT:
        remarks.append(
            f"The chains do not agree yet on the {worst} (R-hat {found[worst].r_hat:.2f}, should be below "
            f"{_LARGEST_R_HAT}): intervals may be too narrow. Raise n_warmup and n_draws."
        )
    fewest = min(found, key=lambda name: np.nan_to_num(found[name].effective_draws, nan=np.inf))
    if found[fewest].effective_draws < _FEWEST_EFFECTIVE:
        remarks.append(
            f"The draws are worth about {found[fewest].effective_draws:.0f} independent ones for the {fewest}; at "
            f"least {_FEWEST_EFFECTIVE} are better. Raise n_draws."
        )
    n_diverging = sum(chain.n_divergences for chain in chains)
    if n_diverging > _MANY_DIVERGENCES * n_draws:
        remarks.append(
            f"{n_diverging} of {n_draws} draws diverged: parts of the posterior may be missed. Raise n_warmup, or "
            "narrow the priors."
        )
    agree = f"{len(chains)} chains agree" if len(chains) > 1 else "The chain agrees with itself"
    return remarks or [
        f"{agree}: the largest R-hat is {found[worst].r_hat:.2f}, and the draws are worth at least "
        f"{found[fewest].effective_draws:.0f} independent ones."
    ]
