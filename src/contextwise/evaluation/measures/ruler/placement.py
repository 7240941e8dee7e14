"""Where in a text what matters stands: the position law of the position-weighted RULER (intrinsic entropy, Appendix A.1).

    P(x) ∝ (1 - x/L)^γ

x is the distance of a place from the end of the text, in tokens: how many tokens of the text stand behind what is placed
there, so x = 0 is the nearest place. L is the length of the task in tokens. With γ = 0 all places are as likely as each other,
which is RULER itself (Hsieh et al. 2024); the greater γ, the nearer to the end.

The law is over places, not over tokens: between n paragraphs there are n + 1 places, each with the distance that it has there.
"""

import numpy as np

from contextwise.base.errors import ConfigError


def check_gamma(gamma: float) -> None:
    """
    Raises:
        ConfigError: γ is not a number from 0 on.
    """
    if not 0 <= gamma < float("inf"):
        raise ConfigError(
            f"gamma is {gamma}, but must be a number from 0 on (0: every place is as likely as any other)"
        )


def place_probabilities(distances: np.ndarray, length: int, gamma: float) -> np.ndarray:
    """Probability of each place, (places,) float64; they sum to 1.

    Args:
        distances: (places,) x of each place, tokens; at least 0 and less than ``length``.
        length: L, tokens.
        gamma: γ of the law; 0 for uniform.

    Raises:
        ConfigError: γ is negative or not finite.
        ValueError: a distance is out of range.
    """
    check_gamma(gamma)
    distances = np.asarray(distances, dtype=np.float64)
    if distances.size == 0 or distances.min() < 0 or distances.max() >= length:
        raise ValueError(f"distances must be from 0 to below {length}")
    logarithms = gamma * np.log1p(-distances / length)
    weights = np.exp(logarithms - logarithms.max())
    return weights / weights.sum()


def draw_places(draw: np.random.Generator, probabilities: np.ndarray, count: int = 1) -> np.ndarray:
    """Indices of ``count`` different places, (count,) int64, in the order in which they were drawn.

    The first follows ``probabilities``, each later one the same among the places that are left.
    """
    # The largest of log p + Gumbel noise is a draw from p, the next largest one from the rest, and so on.
    with np.errstate(divide="ignore"):
        keys = np.log(probabilities) + draw.gumbel(size=len(probabilities))
    return np.argsort(-keys)[:count]


def distances_behind(sizes: np.ndarray) -> np.ndarray:
    """Distance of each of the n + 1 places before, between and behind n pieces of a text.

    Args:
        sizes: (n,) tokens of each piece.

    Returns:
        (n + 1,) int64: place i stands before piece i, with pieces i, i + 1, … behind it; the last has nothing behind it.
    """
    return np.append(np.cumsum(np.asarray(sizes, dtype=np.int64)[::-1])[::-1], 0)
