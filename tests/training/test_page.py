"""Pages of a run: pictures have words for those who cannot see them, and nothing that a user wrote becomes markup."""

import numpy as np
from matplotlib.figure import Figure

from argrad.training import page


def drawing() -> Figure:
    figure = Figure(figsize=(3, 2))
    one, other = figure.subplots(1, 2)
    one.plot([1, 2], label="train")
    one.plot([2, 1], label="validation")
    one.set_xlabel("epoch")
    one.set_ylabel("loss <nats>")
    other.set_title("usage", loc="left")
    return figure


def test_a_plot_without_a_caption_is_told_by_its_axes():
    made = page.figure(drawing(), "")
    assert 'alt="Plot. loss &lt;nats&gt; against epoch: train, validation; usage"' in made
    assert "figcaption" not in made


def test_a_caption_is_shown_and_told():
    made = page.figure(drawing(), 'the "best"')
    assert 'alt="the &quot;best&quot;"' in made
    assert "<figcaption>the &quot;best&quot;</figcaption>" in made
    assert 'alt="samples"' in page.mosaic(np.zeros((3, 4, 4)), "samples", columns=2)


def test_words_of_users_are_not_markup():
    made = page.page("<b>", "x & y", [page.section("<i>", "<u>"), page.cards({"<k>": "<v>"}), page.commands(["a < b"])])
    for word in ("<b>&", "<i>", "<u>", "<k>", "<v>", "a < b"):
        assert word not in made.replace("<div><b>", "")
    assert "x &amp; y" in made
