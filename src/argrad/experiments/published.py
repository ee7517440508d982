"""The papers' own numbers, as printed."""

__all__ = ["TABLE_1"]

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
