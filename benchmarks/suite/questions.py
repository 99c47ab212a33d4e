"""The questions of the suite: what is asked, how it is measured, in which words the page introduces it."""

from collections.abc import Callable
from typing import NamedTuple, Protocol

from benchmarks.suite.bound import against_gpy, against_independent
from benchmarks.suite.fits import complete, missing
from benchmarks.suite.growth import growth
from benchmarks.suite.in_use import adding, command_line, prediction
from benchmarks.suite.memory import memory
from benchmarks.suite.minibatches import minibatches
from benchmarks.suite.real import no_folder, real
from benchmarks.suite.records import Found


class Run(Protocol):
    """A measurement; quick means that it shows only that everything works."""

    def __call__(self, *, quick: bool) -> Found:
        """Measure."""
        ...


class Question(NamedTuple):
    """One question with its measurement; ``gap`` says what lies between the figures and their floors or bars.

    ``missing`` says what must be there first, or nothing if it is.
    """

    title: str
    about: str
    run: Run
    gap: str = ""
    missing: Callable[[], str] = lambda: ""


QUESTIONS: dict[str, Question] = {
    "bound-gpy": Question(
        "Bound with gradient, against GPy",
        "One evaluation of the bound with its gradient in all parameters, as the optimiser asks for it, at another "
        "point each time. GPy has the paper's explicit bound with a Kronecker covariance, so that bound is compared "
        "like for like; our collapsed bound is tighter and stands beside it. GPy runs on one thread, with which it is "
        "quickest. Names give inputs × conditions, or rows / conditions, and inducing inputs/latents.",
        against_gpy,
        "Small problems are calls of many small routines of LAPACK and XLA, whose operations hardly count. On the "
        "large grid more than half of our time is the least that the operations take at the rate of large products, "
        "and the bar leaves room for a fifth above it; the rest is products that are thin and slower than that, "
        "exponentials, and factors of small matrices. For long data a bar of 50 is beyond what arithmetic in double "
        "precision allows on this machine, some 30 times GPy's rate. What we take above the floor are places of "
        "blocks that hold no row (a fifth to two fifths), covariances computed once more backwards, which is quicker "
        "than keeping them, and batched products of small blocks.",
    ),
    "bound-independent": Question(
        "The paper's claim: the cost of independent outputs",
        "Bound with gradient on a complete grid, against a sparse GP with independent outputs that share one kernel, "
        "of the same N, D and M_X, its inducing inputs learnt as ours are. Both are ours, compiled in the same way; "
        "the figure is how many times more our bound costs.",
        against_independent,
        "On the smallest grid neither bound has arithmetic to speak of: ours calls more routines, "
        "since it factorises matrices of latents beside those of inputs.",
    ),
    "growth": Question(
        "Growth with each size",
        "Bound with gradient when one size doubles and the others stay, with the ratio that the paper's formula "
        "O(max(N, M_H) max(D, M_X) max(M_X, M_H)) for complete data predicts. The collapsed bound of long data also "
        "factorises one matrix of size M_X M_H, which the explicit bound does not.",
        growth,
        "Rows of long data lie in blocks of one condition each, of a size that is a power of two. Where a doubled "
        "size meets another size of blocks, a step of some percent up or down comes with it.",
    ),
    "fit-complete": Question(
        "Whole fits on complete data, against GPy",
        "The paper's synthetic data, 50 inputs × 40 conditions, 10/30 inducing points, five data sets. Ours: default "
        "restarts and stopping rule, in a process that finds nothing compiled (cold), in one that finds all programs "
        "in the compilation cache, and once more in that process. GPy: its own start and `optimize_auto` at its "
        "default 10 000 iterations. Imports are on no one's clock, GPy's constructor, which trains two models, is on "
        "GPy's. The ratio is that of the sums over data sets; a bar counts as reached only if our mean RMSE against "
        "noise-free values is no worse.",
        complete,
        "Cold, five sixths of our time is XLA compiling the programs of the optimiser, each once. With a warm cache "
        "half of the time goes into reading those programs and linking them, the other half into the fit itself. GPy "
        "compiles nothing.",
    ),
    "fit-missing": Question(
        "Whole fits on uneven data, against BoTorch and GPy",
        "The paper's synthetic data with uneven conditions, 2 000 rows of 40 conditions. BoTorch's exact models are "
        "fitted by `fit_gpytorch_mll` until they converge or 300 s are over, `LCEMGP` with embeddings of two "
        "dimensions, on the better of one and of all threads. Ours is the time of the first stopped fit from which on "
        "all are better than what the rival ends with; the rival's best error on the way stands beside its last. GPy's "
        "class for uneven data gets `optimize_auto` at its default 10 000 iterations.",
        missing,
    ),
    "minibatches": Question(
        "Very many rows, against GPyTorch's LMC-SVGP",
        "Smooth functions of two inputs and two latents with noise of standard deviation .3; RMSE at 10 000 noise-"
        "free values. Both draw batches of 1 024 rows and have 50 inducing inputs; ours has 20 inducing latents, the "
        "LMC a number of latent functions of its own. GPyTorch runs in single precision, its default, with natural "
        "gradients (NGD, rate .1, with Adam, rate .01) and with Adam alone (rate .05). Its own call computes the "
        "covariance of a whole batch; the other lines ask it for each row by itself, which is all that the bound "
        "needs.",
        minibatches,
        "With five latent functions the LMC does a quarter of the work of one with twenty, and ends with several "
        "times our error; errors are comparable at twenty. Our step is batched products of 1 024 rows with matrices "
        "of 50 × 50 in double precision, then factors of small matrices.",
    ),
    "memory": Question(
        "Memory",
        "The most memory a process had, less what it had once its imports, JAX and the data were there.",
        memory,
    ),
    "prediction": Question(
        "Predictions",
        "Mean and standard deviation of 200 inputs at every condition of a grid, a row being one input at one "
        "condition. Warm.",
        prediction,
    ),
    "adding": Question(
        "A new condition",
        "`add_condition` from five points, its programs compiled. GPy cannot infer a new condition at all.",
        adding,
    ),
    "command-line": Question(
        "From the command line",
        "`lvmogp fit` on the quickstart's 50 rows, each time a process of its own, from its start to its end. With all "
        "programs kept, some 1.5 s go into imports (JAX, SciPy, scikit-learn, pandas), 1 s into reading and linking "
        "programs, the rest into six starts and the summary.",
        command_line,
    ),
    "real": Question(
        "Real data",
        "Errors of predictions of known and of new conditions of eight real data sets, relative to the best of five "
        "rivals on each. All figures are on [a page of their own](real-data.md).",
        real,
        missing=no_folder,
    ),
}
