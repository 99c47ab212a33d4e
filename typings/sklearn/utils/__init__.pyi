from typing import Any

from numpy.random import RandomState

def check_random_state(seed: Any) -> RandomState: ...
