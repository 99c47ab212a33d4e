"""How the cost of a bound with its gradient grows when one size doubles, against the paper's formula."""

from benchmarks.suite.bound import Size, asked
from benchmarks.suite.processes import in_turns
from benchmarks.suite.records import Bar, Found, Record, dearer

# Large enough to take some tens of milliseconds.
_GRID = Size(True, 2000, 1000, 2, 60, 30)
_LONG = Size(False, 40_000, 200, 2, 50, 20)
_LONG_COLLAPSED = Size(False, 40_000, 200, 2, 30, 10)
_CASES = (
    (_GRID, "collapsed"),
    (_GRID, "explicit"),
    (_GRID, "independent"),
    (_LONG, "explicit"),
    (_LONG_COLLAPSED, "collapsed"),
)
_QUICK = ((Size(True, 200, 100, 2, 20, 10), "collapsed"),)
_BOUND = Bar(2.2, at_least=False)
_FIELDS = {"N": "n", "D": "n_conditions", "M_X": "m_x", "M_H": "m_h"}


def growth(*, quick: bool) -> Found:
    """Each size doubled by itself, taking turns with the base."""
    cases = _QUICK if quick else _CASES
    symbols = ("N",) if quick else tuple(_FIELDS)
    return Found([line for base, bound in cases for line in _doubled(base, bound, symbols, 2 if quick else 12)])


def _doubled(base: Size, bound: str, symbols: tuple[str, ...], seconds: float) -> list[Record]:
    larger = {
        symbol: base._replace(**{_FIELDS[symbol]: 2 * getattr(base, _FIELDS[symbol])})
        for symbol in symbols
        if bound != "independent" or symbol != "M_H"  # independent outputs have no latents
    }
    # On one thread, lest a second one that pays at the larger size only should hide the growth.
    sizes = {"base": base, **larger}
    found = in_turns({name: asked(size, bound, one_thread=True) for name, size in sizes.items()}, seconds)
    return [
        dearer(
            f"{base}, {bound}: twice {symbol if base.is_grid or symbol != 'N' else 'n'}",
            found[symbol]["seconds"],
            found["base"]["seconds"],
            "itself before",
            bar=_BOUND if symbol in "ND" else None,
            predicted=_formula(size) / _formula(base) if base.is_grid else None,
            floor=size.floor,
            threads=found[symbol]["threads"],
        )
        for symbol, size in larger.items()
    ]


def _formula(size: Size) -> int:
    # O(max(N, M_H) max(D, M_X) max(M_X, M_H)), of complete data
    return max(size.n, size.m_h) * max(size.n_conditions, size.m_x) * max(size.m_x, size.m_h)
