"""Errors become one line that can be shown."""

import gradio as gr
import pytest

from argrad.app.messages import explained


def test_what_the_visitor_can_mend_is_said_and_quoted_safely() -> None:
    @explained
    def handler(name: str) -> str:
        raise ValueError(f"{name} is\n no picture")

    with pytest.raises(gr.Error) as caught:
        handler("<img src=x>")
    assert caught.value.message == "&lt;img src=x&gt; is no picture"


def test_a_bug_is_logged_and_not_shown(caplog: pytest.LogCaptureFixture) -> None:
    @explained
    def handler() -> None:
        raise KeyError("secret")

    with pytest.raises(gr.Error) as caught:
        handler()
    assert "secret" not in caught.value.message
    assert "KeyError" in caplog.text


def test_handlers_that_answer_in_steps() -> None:
    @explained
    def handler(number: int):
        yield number
        raise OSError("the disk is full")

    steps = handler(3)
    assert next(steps) == 3
    with pytest.raises(gr.Error, match="The disk is full"):
        next(steps)


def test_results_pass_through() -> None:
    assert explained(lambda x: x + 1)(2) == 3
