"""Draw the pictures of the tutorials: run the Python of their pages, keep the PNG files that it writes.

python benchmarks/tutorial_pictures.py               # every page with a picture, into docs/images/tutorials
"""

import shutil
import sys
import tempfile
from pathlib import Path

from primer_figures import draw

ROOT = Path(__file__).resolve().parent.parent
PAGES = ("first-model", "structured-latent")
PICTURES = ROOT / "docs" / "images" / "tutorials"


def main() -> int:
    """Draw all."""
    PICTURES.mkdir(parents=True, exist_ok=True)
    for name in PAGES:
        with tempfile.TemporaryDirectory() as folder:
            for picture in draw(ROOT / "docs" / "tutorials" / f"{name}.md", Path(folder)):
                shutil.copy(picture, PICTURES)
                print(f"{name}: {(PICTURES / picture.name).relative_to(ROOT)}")
    return 0


if __name__ == "__main__":
    sys.exit(main())
