"""How many independent samples a correlated series is worth."""

from __future__ import annotations

import numpy as np
from numpy.typing import ArrayLike

from servebench.analysis.stats.inputs import Floats, numbers

ROUNDING = 1e-12  # less of a sum of squares than this is what rounding left


def effective_size(series: ArrayLike) -> float:
    """n / (1 + 2·Σρ) of a series in order of time: as many independent samples would give as good a mean.

    The sum of autocorrelations is cut by Geyer's initial monotone sequence (1992): sums of neighbouring lags while they
    are positive, never rising. At most n; n itself for a constant series, whose values tell nothing about correlation.

    Raises:
        ValueError: no values, or NaN.
    """
    values = numbers(series, "series")
    correlation = _autocorrelation(values)
    if correlation is None:
        return float(values.size)
    pairs = correlation[: correlation.size // 2 * 2].reshape(-1, 2).sum(axis=1)
    ended = np.flatnonzero(pairs <= 0)
    kept = np.minimum.accumulate(pairs[: ended[0]] if ended.size else pairs)
    return values.size / max(2 * float(kept.sum()) - 1, 1.0)


def _autocorrelation(values: Floats) -> Floats | None:
    """At all lags from 0, by the Fourier transform; None where nothing varies."""
    centred = values - values.mean()
    power = float((centred**2).sum())
    if values.size < 2 or power <= ROUNDING * float((values**2).sum()):
        return None
    width = 1 << (2 * values.size - 1).bit_length()  # zeros keep the ends from meeting
    spectrum = np.abs(np.fft.rfft(centred, width)) ** 2
    correlation: Floats = np.fft.irfft(spectrum, width)[: values.size] / power
    return correlation
