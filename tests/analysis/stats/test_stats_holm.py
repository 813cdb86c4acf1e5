import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from servebench.analysis.stats.holm import holm

family = st.lists(st.floats(0, 1), max_size=8)


@pytest.mark.parametrize(
    ("p", "adjusted"),
    [
        ([0.01, 0.04, 0.03, 0.005], [0.03, 0.06, 0.06, 0.02]),
        ([0.01, 0.02, 0.022], [0.03, 0.04, 0.04]),  # the third may not be below the second
        ([0.5, 0.6], [1.0, 1.0]),
        ([0.03125], [0.03125]),
        ([0.0, 1.0], [0.0, 1.0]),
        ([], []),
    ],
)
def test_against_values_by_hand(p: list[float], adjusted: list[float]) -> None:
    assert holm(p) == pytest.approx(adjusted)


def rejected_step_by_step(p: list[float], alpha: float) -> list[bool]:
    """Holm's own description: go up from the smallest, stop at the first that is too large."""
    rejected = [False] * len(p)
    for step, index in enumerate(np.argsort(p, kind="stable")):
        if p[index] * (len(p) - step) > alpha:
            break
        rejected[index] = True
    return rejected


@given(family, st.sampled_from([0.01, 0.05, 0.2]))
def test_rejects_what_the_step_down_procedure_rejects(p: list[float], alpha: float) -> None:
    assert [bool(x) for x in holm(p) <= alpha] == rejected_step_by_step(p, alpha)


@given(family, st.randoms())
def test_the_order_given_does_not_matter(p: list[float], random: object) -> None:
    order = np.random.default_rng(len(p)).permutation(len(p))
    assert list(holm(np.array(p)[order])) == list(holm(p)[order])


@given(family)
def test_no_p_becomes_smaller_and_none_exceeds_one(p: list[float]) -> None:
    assert (holm(p) >= np.array(p)).all()
    assert (holm(p) <= 1).all()


@pytest.mark.parametrize("p", [[0.5, float("nan")], [1.2], [-0.1, 0.5]])
def test_no_probability_is_an_error(p: list[float]) -> None:
    with pytest.raises(ValueError, match="p values"):
        holm(p)
