"""Write the measured tables of ``benchmarks/results`` into the documentation, between their markers.

python benchmarks/fill_docs.py           # writes
python benchmarks/fill_docs.py --check   # only says whether the documentation is up to date
"""

import json
import re
import sys
from importlib import import_module
from pathlib import Path

ROOT = Path(__file__).resolve().parent.parent
TABLES = {
    "speed": ("README.md", "estimators.json", "argrad.experiments.bench_estimators"),
    "auto-epsilon": ("docs/estimators.md", "epsilon.json", "argrad.experiments.auto_epsilon"),
}
"""Marker: the page, the result, and the module whose ``markdown`` turns one into the other."""


def filled(marker: str) -> tuple[Path, str]:
    """The page of a marker with its table as measured."""
    page, result, module = TABLES[marker]
    measured = json.loads((ROOT / "benchmarks" / "results" / result).read_text())
    source = (
        f"Measured by `{measured['command']}` on {measured['hardware']} ({measured['software']}), {measured['date']}."
    )
    block = f"<!-- {marker} -->\n\n{import_module(module).markdown(measured)}\n\n{source}\n\n<!-- end of {marker} -->"
    text = (ROOT / page).read_text()
    pattern = rf"<!-- {marker} -->(.*<!-- end of {marker} -->)?"
    return ROOT / page, re.sub(pattern, lambda _: block, text, count=1, flags=re.DOTALL)


def main() -> int:
    """Write, or check."""
    stale = []
    for marker in TABLES:
        page, text = filled(marker)
        if page.read_text() != text:
            stale.append(f"{page.relative_to(ROOT)}: {marker}")
            if "--check" not in sys.argv:
                page.write_text(text)
    if "--check" in sys.argv and stale:
        print(f"not as measured: {', '.join(stale)}; run python benchmarks/fill_docs.py", file=sys.stderr)
        return 1
    return 0


if __name__ == "__main__":
    sys.exit(main())
