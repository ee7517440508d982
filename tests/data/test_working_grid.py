"""The working grid: onto it and back."""

import pytest
import torch

from argrad.data.working_grid import common_grid, from_grid, scale_intensities, to_grid


@pytest.mark.parametrize("shape", [(5, 8, 9), (12, 7, 8), (8, 8, 8), (16, 3, 11)])
def test_the_way_back_is_exact_where_scan_and_grid_overlap(shape, generator):
    grid = (8, 8, 8)
    volume = torch.rand(2, *shape, generator=generator)
    back = from_grid(to_grid(volume, grid, "centre"), shape, "centre", beyond=-1)
    inside = back >= 0
    assert torch.equal(back[inside], volume[inside])
    assert int(inside[0].sum()) == torch.tensor([min(a, b) for a, b in zip(shape, grid, strict=True)]).prod()


def test_labels_are_padded_with_background_and_intensities_with_the_edge():
    volume = torch.full((1, 4, 4), 3)
    assert to_grid(volume, (8, 8), "centre", labels=True).sum() == 48
    assert bool((to_grid(volume.float(), (8, 8), "centre") == 3).all())


def test_fitting_keeps_labels_whole_and_places_in_proportion():
    labels = torch.zeros(1, 10, 20, dtype=torch.int16)
    labels[:, 5:], labels[:, :, 15:] = 2, 7
    fitted = to_grid(labels, (16, 16), "fit", labels=True)
    assert fitted.dtype == torch.int16
    assert set(fitted.unique().tolist()) == {0, 2, 7}
    assert bool((fitted[0, 8:, :12] == 2).all() and (fitted[0, :8, :12] == 0).all() and (fitted[0, :, 12:] == 7).all())


def test_fitting_forth_and_back_keeps_a_linear_ramp():
    ramp = torch.arange(20.0).expand(1, 12, 20)
    back = from_grid(to_grid(ramp, (16, 24), "fit"), (12, 20), "fit")
    torch.testing.assert_close(back[0, :, 2:-2], ramp[0, :, 2:-2], atol=1e-4, rtol=0)


def test_scaling_ignores_units_offset_and_a_few_wild_voxels(generator):
    scan = torch.rand(10, 10, 10, generator=generator)
    scaled = scale_intensities(scan)
    torch.testing.assert_close(scale_intensities(scan * 1e6 + 3e4), scaled, atol=1e-4, rtol=0)
    scan[0, 0, 0] = 1e9
    torch.testing.assert_close(scale_intensities(scan)[1:], scaled[1:], atol=0.02, rtol=0)
    with pytest.raises(ValueError, match="nothing to be told apart"):
        scale_intensities(torch.ones(3, 3))


def test_almost_empty_scans_use_their_whole_range():
    scan = torch.zeros(1000)
    scan[0] = 5
    assert scale_intensities(scan).max() == 1


def test_common_grid_is_a_multiple_of_eight():
    assert common_grid([(3, 60), (5, 66)]) == (8, 64)
