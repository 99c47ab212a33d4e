"""Files of users, and a model fitted to them by the command line, once for all tests."""

import numpy as np
import pandas as pd
import pytest
from command_line import ROLES, SMALL, data, succeeded


@pytest.fixture(scope="session")
def folder(tmp_path_factory):
    path = tmp_path_factory.mktemp("commands")
    data().to_csv(path / "data.csv", index=False)
    data().to_parquet(path / "data.parquet")
    pd.DataFrame({"speed": [1.5, 3.0, 4.5]}).to_csv(path / "new.csv", index=False)
    pd.DataFrame({"speed": np.linspace(1, 5, 9), "note": "x"}).to_csv(path / "candidates.csv", index=False)
    (path / "text.csv").write_text((path / "data.csv").read_text() + "fast,000,3\n")
    (path / "no-ids.csv").write_text("speed,distance\n1,2\n")
    return path


@pytest.fixture(scope="session")
def fitted(folder):
    """What fitting the data printed; the model is in brakes.lvmogp."""
    return succeeded("fit", folder / "data.csv", *ROLES, "--model", folder / "brakes.lvmogp", *SMALL)
