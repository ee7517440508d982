import numpy as np

from argrad.data.digits import read_digits


def test_digits_are_sixteenths_with_labels() -> None:
    rest = read_digits().rest
    assert rest.pixels.shape == (1797, 8, 8)
    assert rest.pixels.dtype == np.float32
    assert set(np.unique(rest.pixels * 16)) == set(range(17))
    assert rest.labels is not None
    assert sorted(set(rest.labels.tolist())) == list(range(10))
