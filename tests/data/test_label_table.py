"""Label ids and names: contiguous inside, as given outside, read from what people have."""

import json

import numpy as np
import pytest

from argrad.data.errors import BrokenFile
from argrad.data.label_table import LabelTable, WrongLabels, read_label_table


def test_ids_become_numbers_from_zero_and_back():
    table = LabelTable.of({17: "hippocampus", 4: "ventricle"})
    assert table.ids == (0, 4, 17)
    assert table.names == ("background", "ventricle", "hippocampus")
    ids = np.array([[0, 17], [4, 17]])
    np.testing.assert_array_equal(table.to_indices(ids, "map"), [[0, 2], [1, 2]])
    np.testing.assert_array_equal(table.to_ids(table.to_indices(ids, "map")), ids)
    assert LabelTable.of({int(number): name for number, name in table.as_json().items()}) == table


def test_names_are_numbers_where_nothing_else_is_known():
    table = LabelTable.from_maps(np.array(one) for one in ([0, 9], [5, 0]))
    assert table == LabelTable((0, 5, 9), ("background", "5", "9"))


def test_wrong_ids_and_empty_maps_are_refused():
    table = LabelTable.of({4: "ventricle"})
    with pytest.raises(WrongLabels, match=r"one\.nii has label ids that the table does not know: 7, 9; known are 0, 4"):
        table.to_indices(np.array([0, 9, 4, 7]), "one.nii")
    with pytest.raises(WrongLabels, match=r"does not know: 10, 11, 12, 13, 14 …"):
        table.to_indices(np.arange(10, 20), "one.nii")
    with pytest.raises(WrongLabels, match=r"one\.nii is empty"):
        table.to_indices(np.zeros(3, int), "one.nii")
    assert not table.to_indices(np.zeros(3, int), "one.nii", empty=True).any()
    with pytest.raises(WrongLabels, match="negative, got -2"):
        LabelTable.of({-2: "nothing"})
    with pytest.raises(WrongLabels, match="no label but background"):
        LabelTable.of({0: "background"})


@pytest.mark.parametrize("labels", [{"0": "background", "1": "Anterior"}, {"background": 0, "Anterior": 1}])
@pytest.mark.parametrize("whole", [True, False], ids=["dataset", "plain"])
def test_json_tables_of_both_kinds(tmp_path, labels, whole):
    (tmp_path / "names.json").write_text(json.dumps({"name": "study", "labels": labels} if whole else labels))
    assert read_label_table(tmp_path / "names.json") == LabelTable((0, 1), ("background", "Anterior"))


def test_colour_tables_name_labels(tmp_path):
    (tmp_path / "colours.txt").write_text("# id name r g b a\n0 Unknown 0 0 0 0\n\n17 Left-Hippocampus 220 216 20 0\n")
    table = read_label_table(tmp_path / "colours.txt")
    assert table == LabelTable((0, 17), ("Unknown", "Left-Hippocampus"))
    (tmp_path / "colours.txt").write_text("seventeen Left-Hippocampus\n")
    with pytest.raises(BrokenFile, match="line 1"):
        read_label_table(tmp_path / "colours.txt")
    (tmp_path / "list.json").write_text("[1, 2]")
    with pytest.raises(BrokenFile, match="no table of labels"):
        read_label_table(tmp_path / "list.json")
