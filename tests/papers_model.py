"""The paper's model as an estimator of its own, for tests that any model would do for: it is the quickest to fit."""

from dataclasses import dataclass

from lvmogp.estimator import LVMOGPRegressor
from lvmogp.inference.options import PAPERS_MODEL


@dataclass(eq=False, repr=False)
class PapersModel(LVMOGPRegressor):
    """The estimator with other defaults."""

    shared_kernel: object = PAPERS_MODEL["shared_kernel"]
    input_kernel: object = PAPERS_MODEL["input_kernel"]
    own_kernel: object = PAPERS_MODEL["own_kernel"]
    latent_kernel: object = PAPERS_MODEL["latent_kernel"]
    noise: str = "shared"
