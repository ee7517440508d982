"""The papers' own numbers, as printed."""

__all__ = ["GENERAL_OVERTAKES_SUPERMODULAR", "TABLE_1", "TABLE_2"]

TABLE_1: dict[str, dict[int, dict[str, float]]] = {
    "mnist": {
        10: {"unbiased": 164.53, "direct": 165.26, "gumbel-softmax": 167.88},
        20: {"unbiased": 152.31, "direct": 153.08, "gumbel-softmax": 156.41},
        30: {"unbiased": 149.17, "direct": 147.38, "gumbel-softmax": 152.15},
        40: {"unbiased": 142.86, "direct": 143.95, "gumbel-softmax": 147.56},
        50: {"unbiased": 155.37, "direct": 140.38, "gumbel-softmax": 146.12},
    },
    "fashion-mnist": {
        10: {"unbiased": 228.46, "direct": 222.86, "gumbel-softmax": 238.37},
        20: {"unbiased": 206.40, "direct": 198.39, "gumbel-softmax": 211.87},
        30: {"unbiased": 205.60, "direct": 189.44, "gumbel-softmax": 197.01},
        40: {"unbiased": 205.68, "direct": 184.21, "gumbel-softmax": 195.22},
        50: {"unbiased": 200.88, "direct": 180.31, "gumbel-softmax": 191.00},
    },
    "omniglot": {
        10: {"unbiased": 155.44, "direct": 155.94, "gumbel-softmax": 160.13},
        20: {"unbiased": 152.05, "direct": 152.13, "gumbel-softmax": 166.76},
        30: {"unbiased": 152.10, "direct": 150.14, "gumbel-softmax": 157.33},
        40: {"unbiased": 151.38, "direct": 150.33, "gumbel-softmax": 156.09},
        50: {"unbiased": 156.84, "direct": 149.12, "gumbel-softmax": 164.01},
    },
}
"""Table 1 of the direct optimisation paper (NeurIPS 2019): test loss in nats by data set, k and method."""

TABLE_2: dict[str, dict[int, dict[str, tuple[float, float]]]] = {
    "mnist": {
        50: {"direct": (92.6, 90.24), "gumbel-softmax": (84.7, 91.23)},
        100: {"direct": (95.4, 90.93), "gumbel-softmax": (88.4, 90.64)},
        300: {"direct": (96.4, 90.39), "gumbel-softmax": (91.7, 90.01)},
        600: {"direct": (96.7, 90.78), "gumbel-softmax": (92.3, 89.77)},
        1200: {"direct": (96.8, 90.45), "gumbel-softmax": (92.7, 90.37)},
    },
    "fashion-mnist": {
        50: {"direct": (63.3, 129.66), "gumbel-softmax": (61.2, 129.813)},
        100: {"direct": (67.2, 130.822), "gumbel-softmax": (64.2, 129.054)},
        300: {"direct": (70.0, 130.653), "gumbel-softmax": (69.3, 130.371)},
        600: {"direct": (72.1, 130.81), "gumbel-softmax": (71.6, 129.973)},
        1200: {"direct": (73.7, 130.921), "gumbel-softmax": (73.2, 130.063)},
    },
}
"""Table 2 of the same paper: accuracy in percent and bound in nats, by data set, number of labels and method."""

GENERAL_OVERTAKES_SUPERMODULAR = 85
"""Of the same paper, the text to Figure 3 (second experiment with a structured decoder): the epoch in which the general
pairwise encoder, by CPLEX, "becomes better than" the supermodular one, by max-flow."""
