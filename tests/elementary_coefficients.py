"""Derives the coefficients of csrc/elementary.h: `python tests/elementary_coefficients.py`.

Each polynomial is the one of its degree whose largest error, in parts of the function that is
computed with it, is least: the exchange algorithm of E. Remez (1934), then rounded to the type.
"""

from collections.abc import Callable

import mpmath as mp

Real = mp.mpf
Function = Callable[[Real], Real]

GRID = 300

# Of the significand.
FLOAT32_BITS = 24
FLOAT64_BITS = 53


def minimax(
    f: Function,
    weight: Function,
    degree: int,
    low: float | Real,
    high: float | Real,
    bits: int = FLOAT32_BITS,
) -> list[float]:
    """The coefficients, lowest power first, for which max |weight (polynomial - f)| is least."""
    middle, half = (mp.mpf(low) + high) / 2, (mp.mpf(high) - low) / 2
    xs = [middle - half * mp.cos(mp.pi * (k + mp.mpf(0.5)) / GRID) for k in range(GRID)]
    values, weights = [f(x) for x in xs], [abs(weight(x)) for x in xs]
    count = degree + 2
    peaks: list[int] = []
    nodes = [round((GRID - 1) * k / (count - 1)) for k in range(count)]
    while nodes != peaks:
        # The error is equal at all nodes, of alternating sign ...
        peaks = nodes
        rows = [
            [xs[i] ** power for power in range(degree + 1)] + [(-1) ** k / weights[i]]
            for k, i in enumerate(peaks)
        ]
        solution = mp.lu_solve(mp.matrix(rows), mp.matrix([values[i] for i in peaks]))
        coefficients = list(solution)[:-1]
        errors = [
            w * (mp.polyval(coefficients[::-1], x) - y)
            for x, y, w in zip(xs, values, weights, strict=True)
        ]
        # ... and the next ones are where it is largest, between two changes of sign.
        nodes = [0]
        for i, error in enumerate(errors):
            if error * errors[nodes[-1]] < 0:
                nodes.append(i)
            elif abs(error) > abs(errors[nodes[-1]]):
                nodes[-1] = i
        while len(nodes) > count:
            nodes.pop(0 if abs(errors[nodes[0]]) < abs(errors[nodes[-1]]) else -1)
    return [
        float(mp.ldexp(mp.nint(mp.ldexp(m, bits)), e - bits))
        for m, e in map(mp.frexp, coefficients)
    ]


# For exp(r) - 1, near 0 as accurate as elsewhere.
EXPONENTIAL = (lambda r: (mp.expm1(r) - r) / r**2, lambda r: r**2 / mp.expm1(r))
INVERSE_TANH = (
    lambda q: (mp.atanh(mp.sqrt(q)) / mp.sqrt(q) - 1) / q,
    lambda q: q * mp.sqrt(q) / mp.atanh(mp.sqrt(q)),
)

ERROR = (
    lambda z: mp.erf(mp.sqrt(z)) / mp.sqrt(z) - 1,
    lambda z: mp.sqrt(z) / mp.erf(mp.sqrt(z)),
)


def of_t(t: Real) -> Real:
    return 3 * (1 + t) / (1 - t)


def coefficients() -> dict[str, list[float]]:
    """By what a polynomial stands for in the header."""
    with mp.workdps(30):
        half, third = mp.log(2) * mp.mpf("0.501"), mp.mpf(1) / 3
        root = mp.sqrt
        return {
            "(exp(r) - 1 - r) / r^2": minimax(*EXPONENTIAL, 4, -half, half),
            "(log(1 + f) - f) / f^2": minimax(
                lambda f: (mp.log1p(f) - f) / f**2, lambda f: f**2 / mp.log1p(f), 8, -third, third
            ),
            **{
                f"(tanh(y) / y - 1) / z, z = y^2, {where}": minimax(
                    lambda z: (mp.tanh(root(z)) / root(z) - 1) / z,
                    lambda z: z * root(z) / mp.tanh(root(z)),
                    *(degree, 0, largest**2),
                )
                for where, degree, largest in (("CPU", 4, 0.55), ("device", 3, 0.6))
            },
            "erf(y) / y - 1, of z = y^2": minimax(*ERROR, 5, 0, 0.9**2),
            "log2(1 - erf(y))": minimax(
                lambda y: mp.log(mp.erfc(y), 2), lambda y: mp.erfc(y) / mp.erf(y), 5, 0.9, 3.93
            ),
            "(atanh(s) / s - 1) / q, q = s^2": minimax(*INVERSE_TANH, 3, 0, third**2),
            "2^f": minimax(lambda f: 2**f, lambda f: 2**-f, 6, -0.5, 0.5),
        }


def coefficients_of_double() -> dict[str, list[float]]:
    with mp.workdps(40):
        half, fifth = mp.log(2) * mp.mpf("0.501"), mp.mpf(1) / 5
        return {
            "(exp(r) - 1 - r) / r^2": minimax(*EXPONENTIAL, 10, -half, half, FLOAT64_BITS),
            "(atanh(s) / s - 1) / q, q = s^2": minimax(*INVERSE_TANH, 7, 0, fifth**2, FLOAT64_BITS),
            "erf(y) / y - 1, of z = y^2": minimax(*ERROR, 11, 0, 1, FLOAT64_BITS),
            # J. L. Schonfelder (1978) has it as a series in such a t.
            "e^(y^2) (1 - erf(y)), of t = (y - 3) / (y + 3)": minimax(
                lambda t: mp.exp(of_t(t) ** 2) * mp.erfc(of_t(t)),
                lambda t: mp.exp(-(of_t(t) ** 2)) / mp.erf(of_t(t)),
                *(11, -mp.mpf(1) / 2, mp.mpf(1) / 3, FLOAT64_BITS),
            ),
        }


if __name__ == "__main__":
    for digits, found in ((9, coefficients()), (17, coefficients_of_double())):
        for name, values in found.items():
            print(f"{name}: {', '.join(f'{value:.{digits}g}' for value in values)}")
