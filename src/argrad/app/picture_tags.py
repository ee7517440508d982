"""Pictures inside a page, each with words for those who cannot see it."""

from __future__ import annotations

import base64
import html

__all__ = ["picture_tag"]


def picture_tag(png: bytes, words: str, *, width: str = "100%", caption: str = "") -> str:
    """A figure with the picture in it.

    Args:
        png: the picture; its pixels stay sharp when it is enlarged.
        words: what is to be seen, instead of the picture.
        width: as CSS has it; never more than there is room for.
        caption: a line below it, none where it is empty.

    >>> picture_tag(b"PNG", 'a "7"', width="8rem", caption="component 1")[:74]
    '<figure style="margin:0"><img alt="a &quot;7&quot;" style="width:8rem;max-'
    """
    data = base64.b64encode(png).decode()
    below = f'<figcaption style="font-size:.9em">{html.escape(caption)}</figcaption>' if caption else ""
    style = f"width:{width};max-width:100%;height:auto;image-rendering:pixelated;border-radius:.25rem"
    image = f'<img alt="{html.escape(words, quote=True)}" style="{style}" src="data:image/png;base64,{data}">'
    return f'<figure style="margin:0">{image}{below}</figure>'
