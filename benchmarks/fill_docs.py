"""Write what was measured into the documentation, between its markers: ``benchmarks/results`` and ``results``.

python benchmarks/fill_docs.py           # writes
python benchmarks/fill_docs.py --check   # only says whether the documentation is up to date
"""

import json
import re
import sys
from importlib import import_module
from pathlib import Path

ROOT = Path(__file__).resolve().parent.parent
sys.path.insert(0, str(ROOT / "benchmarks"))

import measured  # noqa: E402

TABLES = {
    "measured": ("README.md", "", ""),
    "speed": ("benchmarks/README.md", "benchmarks/results/estimators.json", "argrad.experiments.bench_estimators"),
    "auto-epsilon": ("docs/estimators.md", "benchmarks/results/epsilon.json", "argrad.experiments.auto_epsilon"),
    "solvers": ("docs/solvers.md", "benchmarks/results/solvers.json", "argrad.experiments.bench_solvers"),
    "app-load": ("docs/app.md", "benchmarks/results/app.json", "app_load"),
    "table1": ("docs/results.md", "results/table1.json", "argrad.experiments.table1_page"),
    "figure1": ("docs/results.md", "results/figure1.json", "argrad.experiments.figure1"),
    "figure2": ("docs/results.md", "results/figure2.json", "argrad.experiments.figure2"),
    "figure6": ("docs/results.md", "results/figure6.json", "argrad.experiments.figure2"),
    "figure3": ("docs/results.md", "results/figure3.json", "argrad.experiments.figure3"),
    "epsilon-learning-rate": (
        "docs/results.md",
        "results/epsilon-learning-rate.json",
        "argrad.experiments.epsilon_learning_rate",
    ),
    "step-profile": ("docs/results.md", "results/step-profile.json", "argrad.experiments.step_profile"),
    "table2": ("docs/semi-supervised.md", "results/table2.json", "argrad.experiments.table2"),
    "figure4": ("docs/semi-supervised.md", "results/figure4.json", "argrad.experiments.figure4"),
    "figure5": ("docs/attributes.md", "results/figure5.json", "argrad.experiments.figure5"),
    "hippocampus": ("docs/segmentation.md", "results/hippocampus.json", "argrad.experiments.hippocampus"),
    "whole-brain": ("docs/segmentation.md", "results/whole-brain.json", "argrad.experiments.whole_brain"),
    "completion": ("docs/completion.md", "results/completion.json", "argrad.experiments.completion"),
    "hashing": ("docs/hashing.md", "results/hashing.json", "argrad.experiments.hashing"),
    "trajectory": ("docs/sequence-gan.md", "results/trajectory.json", "argrad.experiments.trajectory"),
    "sequence-gan": ("docs/sequence-gan.md", "results/sequence_gan.json", "argrad.experiments.sequence_gan"),
    "tokenizer": ("docs/tokenizer.md", "results/tokenizer.json", "argrad.experiments.tokenizer"),
    "structures": ("docs/structures.md", "results/structures.json", "argrad.experiments.structures"),
}
"""Marker: the page, the result, and the module whose ``markdown`` turns one into the other. The README's numbers come
from several results."""


def filled(marker: str, root: Path = ROOT) -> tuple[Path, str]:
    """The page of a marker with its table as measured."""
    page, result, module = TABLES[marker]
    inside = contents(marker, root / result, module) if result else measured.markdown(root)
    block = f"<!-- {marker} -->\n\n{inside}\n\n<!-- end of {marker} -->"
    text = (root / page).read_text()
    pattern = rf"<!-- {marker} -->(.*<!-- end of {marker} -->)?"
    assert re.search(pattern, text, re.DOTALL), f"{page} has no marker {marker}"
    return root / page, re.sub(pattern, lambda _: block, text, count=1, flags=re.DOTALL)


def contents(marker: str, result: Path, module: str) -> str:
    """Picture, table and where they come from; or, before the full run, that it has not been made."""
    if not result.exists():
        return f"*The full run has not been made yet.* `argrad reproduce {marker}` makes it."
    found = json.loads(result.read_text())
    if found.get("quick"):
        raise ValueError(f"{result} is a quick run; the documentation shows full ones")
    picture = result.with_suffix(".png")
    shown = [f"![{marker}](../{picture.parent.name}/{picture.name})"] if picture.exists() else []
    source = f"Measured by `{found['command']}` on {found['hardware']} ({found['software']}), {found['date']}."
    return "\n\n".join([*shown, import_module(module).markdown(found), source])


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
