"""Keep the answers of today's code in place of those that a changed rule no longer gives.

    python tests/golden/refreeze.py --kinds "unseen" "left out" --models grid long

looks at answers of these kinds and prints how far those moved that are no longer within the tolerance, relative to
their size. To be run when a rule was changed on purpose, with the reason in ``CHANGED`` of frozen.py, and never to
make a test pass.
"""

import argparse

import numpy as np
from answers import of_kind
from frozen import FILES, PREFIX, arrays_of, is_same, thawed_model


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--kinds", nargs="+", required=True)
    parser.add_argument("--models", nargs="+", default=sorted(FILES))
    given = parser.parse_args()
    for model in given.models:
        arrays = dict(arrays_of(model))
        own = {name.removeprefix(PREFIX).partition(":")[0] for name in arrays if name.startswith(PREFIX)}
        for kind in sorted(own & set(given.kinds)):
            for name, values in of_kind(kind, *thawed_model(model)).items():
                before = arrays[PREFIX + name]
                if is_same(model, values, before):
                    continue
                finite = np.isfinite(before) & np.isfinite(values)
                scale = np.abs(before[finite]).max(initial=1e-300)
                print(f"{np.abs(values - before)[finite].max(initial=0.0) / scale:.1e}  {model}  {name}", flush=True)
                arrays[PREFIX + name] = np.asarray(values)
        np.savez_compressed(FILES[model], **arrays)


if __name__ == "__main__":
    main()
