"""`argrad demo`: what `make demo` shows."""

from __future__ import annotations

from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any

from argrad.cli.diagnose import run_diagnosis, write_diagnosis
from argrad.cli.out import Out, settings_of, use_threads
from argrad.cli.progress import Bar
from argrad.cli.training import default_folder

__all__ = ["Demo"]


@dataclass
class Demo:
    """Show argrad at work on the handwritten digits that ship with scikit-learn, in less than a minute.

    Trains a discrete VAE three times, with the direct gradient, with Gumbel-softmax and with the exact gradient,
    compares the results and writes a report on each; then measures bias, variance and time of every estimator.
    """

    epochs: int = 150
    """Passes over the 1,437 training images, with each of the three."""
    samples: int = 2000
    """Draws of every estimator's gradient."""
    seed: int = 0
    """Decides first weights, batches and noise."""
    output: Path | None = None
    """Folder for the runs and the picture; runs/demo-DATE-TIME unless given."""
    json: bool = False
    """Print one line of JSON at the end, and all else to standard error."""

    def run(self, out: Out) -> int:
        """Train, compare, diagnose."""
        if self.samples < 100:
            raise ValueError(f"--samples must be at least 100, got {self.samples}")
        out.say("Loading PyTorch …")
        use_threads(1)
        folder = (self.output or default_folder("demo")).expanduser()
        training = self.train(folder, out)
        out.say("\nNow the gradients themselves, early in training, estimator by estimator …\n")
        from argrad.experiments.digits_problem import DigitsProblem, make_problem

        problem, _ = make_problem(DigitsProblem(seed=self.seed))
        diagnosis = run_diagnosis(problem, self.samples, 300, 100, self.seed, out)
        out.result(diagnosis.table())
        record = {"settings": settings_of(self), "problem": problem.description, **diagnosis.to_dict()}
        written = write_diagnosis(diagnosis, record, folder)
        out.result(f"\nReport:  {training[0]['report']}\nPicture: {written[-1]}")
        out.say(f"To look inside these models in a browser: argrad app {folder}, or in a checkout make app")
        out.machine({"training": training, **record})
        return 0

    def train(self, folder: Path, out: Out) -> list[dict[str, Any]]:
        """Three runs of the same model; a line about each."""
        from argrad.data import load
        from argrad.models.discrete_vae.report import evaluate, write_report
        from argrad.models.discrete_vae.run import TrainSettings, train_run
        from argrad.training import Interrupted, RunFolder

        images = load("digits")
        out.say(f"A discrete VAE on 8×8 digits, one of 10 codes per image, {self.epochs} epochs with each estimator.")
        out.result(f"{'':<16}{'test negative ELBO':>20}{'−log p(x)':>12}{'codes used':>12}{'seconds':>9}")
        rows = []
        for name in ("direct", "gumbel-softmax", "exact"):
            settings = TrainSettings(estimator=name, epochs=self.epochs, seed=self.seed)
            run = RunFolder.create(folder / name, asdict(settings))
            try:
                with Bar(out, self.epochs, None, quiet=True) as bar:
                    module, trained = train_run(settings, run, images=images, progress=bar)
            except Interrupted:
                raise KeyboardInterrupt from None
            scores = evaluate(module.eval(), images)
            report = write_report(run.path, module, images, settings, trained.history, scores)
            rows.append({"estimator": name, **scores, "seconds": trained.seconds, "report": str(report)})
            out.result(
                f"  {name:<14}{scores['negative_elbo']:>20.2f}{scores['nll']:>12.2f}{scores['used_codes']:>12.0%}"
                f"{trained.seconds:>9.1f}"
            )
        return rows
