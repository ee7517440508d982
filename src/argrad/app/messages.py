"""What a visitor is told when something cannot be done: one line, never a stack trace."""

from __future__ import annotations

import functools
import html
import inspect
import logging
from collections.abc import Callable
from pathlib import Path
from typing import Any, TypeVar

import gradio as gr

__all__ = ["explained"]

Handler = TypeVar("Handler", bound=Callable[..., Any])
log = logging.getLogger("argrad.app")


def explained(handler: Handler) -> Handler:
    """A handler of an event whose errors become messages.

    A ``ValueError`` or ``OSError`` is the visitor's to mend, and says how. Anything else is ours: the terminal gets the
    trace, the visitor an apology. Messages are shown as HTML, so what they quote, such as a file's name, is escaped.
    """
    if inspect.isgeneratorfunction(handler):

        @functools.wraps(handler)
        def stepwise(*arguments: Any, **named: Any) -> Any:
            try:
                yield from handler(*arguments, **named)
            except Exception as error:
                raise as_message(error) from None

        return stepwise  # type: ignore[return-value]

    @functools.wraps(handler)
    def at_once(*arguments: Any, **named: Any) -> Any:
        try:
            return handler(*arguments, **named)
        except Exception as error:
            raise as_message(error) from None

    return at_once  # type: ignore[return-value]


def as_message(error: Exception) -> gr.Error:
    """What to show for an error."""
    if isinstance(error, gr.Error):
        return error
    if isinstance(error, FileNotFoundError):
        return gr.Error(
            "That file is gone: uploads are removed after an hour. Upload it again, or reload the page.",
            title="That cannot be done",
            print_exception=False,
        )
    if isinstance(error, ValueError | OSError):
        said = str(error)
        if isinstance(error, OSError) and error.filename is not None:  # no visitor's business where it lies
            said = f"{Path(str(error.filename)).name}: {error.strerror}"
        words = html.escape(" ".join(said.split()))
        return gr.Error(words[:1].upper() + words[1:], title="That cannot be done", print_exception=False)
    log.exception("an event failed")
    return gr.Error(
        "Something went wrong inside argrad; the terminal where it runs says what.",
        title="A bug",
        print_exception=False,
    )
