"""`argrad segment`: label maps from one study and scans from another, to labelled scans."""

from __future__ import annotations

import math
import statistics
import time
from collections.abc import Sequence
from dataclasses import dataclass, field, replace
from functools import partial
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

from tyro.conf import Positional, arg

from argrad.cli.out import Out, use_threads
from argrad.cli.training import (
    OptionalFile,
    OptionalNumber,
    OptionalPath,
    asked_for,
    default_folder,
    default_settings,
    outcome,
    refuse_others,
    watched,
    with_types,
)

if TYPE_CHECKING:
    import numpy as np
    from numpy.typing import NDArray

    from argrad.data.label_table import LabelTable
    from argrad.data.nifti import Volume
    from argrad.training import RunFolder

__all__ = ["STAGES", "Segment", "segment_command"]

STAGES = ("prior", "fit", "apply", "evaluate")
SAME_AFFINE = 1e-3
"""How far, in millimetres, the affines of two files on the same grid may differ by rounding."""


@dataclass
class Segment:
    """Label scans with a shape prior learnt from label maps of other people; no scan needs a label map.

    For example,
      argrad segment prior --labels study-a/labelsTr --run-folder prior     learn the shapes
      argrad segment fit --scans study-b/imagesTr --prior prior --run-folder model
      argrad segment apply scan.nii.gz --run model -o labels.nii.gz         label one scan
      argrad segment evaluate found/ reference/                             Dice and distances

    Files are NIfTI (or .mgz) in any orientation; a folder may be an nnU-Net data set. Needs argrad[medical].
    `argrad segment prior --help` lists the settings.
    """

    what: Positional[str]
    """prior, fit, apply or evaluate."""
    json: bool = False
    """Print one line of JSON at the end, and all else to standard error."""

    def run(self, out: Out) -> int:
        """Reached only with a word that is none of the four: main() reads their settings on its own."""
        raise ValueError(f"argrad segment {self.what}: choose one of {', '.join(STAGES)}")


def segment_command(name: str, arguments: Sequence[str] = ()) -> type[Any]:
    """The command `segment NAME`; the settings of the first two live with the model, which takes a while to import."""
    if name == "apply":
        return Apply
    if name == "evaluate":
        return EvaluateSegmentation
    from argrad.models.anatomy.run import FitSettings, PriorSettings, settings_from

    of_prior = default_settings(PriorSettings, partial(settings_from, PriorSettings), arguments)
    of_fit = default_settings(FitSettings, partial(settings_from, FitSettings), arguments)

    @dataclass
    class Prior:
        """Stage 1: learn the shapes of structures from label maps alone.

        For example, argrad segment prior --labels Task04_Hippocampus --run-folder prior
        """

        labels: OptionalFile = None
        """A folder of label maps, or an nnU-Net data set (its labelsTr is read)."""
        settings: PriorSettings = field(default_factory=lambda: of_prior)
        names: OptionalFile = None
        """Names of the labels: dataset.json, other JSON, or a FreeSurfer colour table; it must have all ids."""
        run_folder: OptionalPath = None
        """Folder to write to; runs/prior-DATE-TIME unless given."""
        resume: OptionalPath = None
        """Go on with this run; of the other settings only --epochs may change."""
        device: str = "auto"
        """cpu, cuda, cuda:1 …; auto takes a GPU where there is one."""
        threads: OptionalNumber = None
        """Threads that PyTorch may use."""
        json: bool = False
        """Print one line of JSON at the end, and all else to standard error."""

        def run(self, out: Out) -> int:
            return run_prior(self, out)

    @dataclass
    class Fit:
        """Stage 2: learn from scans without labels, with the shapes of stage 1.

        For example, argrad segment fit --scans study-b/imagesTr --prior prior --run-folder model
        """

        scans: OptionalFile = None
        """A folder of scans, or an nnU-Net data set (its imagesTr is read)."""
        prior: OptionalPath = None
        """The run of stage 1."""
        settings: FitSettings = field(default_factory=lambda: of_fit)
        run_folder: OptionalPath = None
        """Folder to write to; runs/segment-DATE-TIME unless given."""
        resume: OptionalPath = None
        """Go on with this run; of the other settings only --epochs may change."""
        device: str = "auto"
        """cpu, cuda, cuda:1 …; auto takes a GPU where there is one."""
        threads: OptionalNumber = None
        """Threads that PyTorch may use."""
        json: bool = False
        """Print one line of JSON at the end, and all else to standard error."""

        def run(self, out: Out) -> int:
            return run_fit(self, out)

    if name == "prior":
        return with_types(Prior, labels=OptionalFile, names=OptionalFile, settings=PriorSettings)
    return with_types(Fit, scans=OptionalFile, prior=OptionalPath, settings=FitSettings)


def run_prior(command: Any, out: Out) -> int:
    """Train the prior, or go on."""
    if command.threads is not None:
        use_threads(command.threads)
    import torch

    from argrad.models.anatomy.run import PRIOR, grid_labels, prior_config, table_of, train_prior
    from argrad.models.discrete_vae.run import choose_device
    from argrad.training import RunFolder

    folder, settings, source = None, command.settings, command.labels
    if command.resume is not None:
        folder, settings = reopen_stage(command, PRIOR, labels=source)
        source = Path(folder.config["labels"])
    if source is None:
        raise ValueError("give the label maps with --labels FOLDER, or a run to go on with by --resume RUN")
    device, source = choose_device(command.device), source.expanduser()
    known = table_of(folder.config) if folder is not None else None
    indices, table = read_label_maps(source, command.names, known)
    gridded, settings = grid_labels([torch.from_numpy(one) for one in indices], settings)
    # The folder is made only now, so that a mistake in what was given leaves nothing behind.
    if folder is None:
        where = command.run_folder or default_folder("prior")
        folder = RunFolder.create(where, prior_config(settings, table, str(source)))
    out.say(f"{len(indices)} label maps, {len(table) - 1} structures, grid {settings.grid} → {folder.path}")
    trained = watched(
        out,
        folder,
        settings.epochs,
        "argrad segment prior",
        lambda bar: train_prior(gridded, len(table), settings, folder, device=device, progress=bar)[1],
    )
    if trained is None:
        return 130
    out.result(
        f"Best epoch {trained.best_epoch} of {trained.epoch}: {trained.best_loss:.1f} nats per label map\n"
        f"Prior: {folder.path}"
    )
    out.machine({"run": str(folder.path), "label_maps": len(indices), **outcome(trained)})
    return 0


def run_fit(command: Any, out: Out) -> int:
    """Train the model of stage 2, or go on."""
    if command.threads is not None:
        use_threads(command.threads)
    import torch

    from argrad.data.nifti import find_cases, read_scan
    from argrad.models.anatomy.run import MODEL, grid_scans, load_prior, model_config, train_model
    from argrad.models.discrete_vae.run import choose_device
    from argrad.training import RunFolder

    folder, settings, source, prior_path = None, command.settings, command.scans, command.prior
    if command.resume is not None:
        folder, settings = reopen_stage(command, MODEL, scans=source, prior=prior_path)
        source, prior_path = Path(folder.config["scans"]), Path(folder.config["prior"])
    if source is None or prior_path is None:
        raise ValueError("give --scans FOLDER and --prior RUN, or a run to go on with by --resume RUN")
    if settings.intensities == "fixed":
        raise ValueError("fixed intensities are for Python, AnatomicalSegmenter(fixed=...); choose image or global")
    device, source = choose_device(command.device), source.expanduser()
    prior, of_prior, table, prior_run = load_prior(prior_path.expanduser())
    settings.classes(table.ids)
    cases = find_cases(source, ("imagesTr", "imagesTs"))
    scans = [torch.from_numpy(read_scan(case.path).data) for case in cases]
    gridded = grid_scans(scans, of_prior.grid, of_prior.align)
    if folder is None:
        where = command.run_folder or default_folder("segment")
        folder = RunFolder.create(where, model_config(settings, prior_run, str(source)))
    out.say(f"{len(cases)} scans, {prior.labels - 1} structures, grid {of_prior.grid} → {folder.path}")
    trained = watched(
        out,
        folder,
        settings.epochs,
        "argrad segment fit",
        lambda bar: train_model(
            prior, table.ids, gridded, settings, of_prior.align, folder, device=device, progress=bar
        )[1],
    )
    if trained is None:
        return 130
    out.result(
        f"Best epoch {trained.best_epoch} of {trained.epoch}\n"
        f"Label a scan with: argrad segment apply SCAN --run {folder.path} -o SEGMENTATION"
    )
    out.machine({"run": str(folder.path), "scans": len(cases), **outcome(trained)})
    return 0


def reopen_stage(command: Any, kind: str, **sources: Path | None) -> tuple[RunFolder, Any]:
    """The run that a command resumes, and its settings; more epochs may be asked for, other changes are refused."""
    from argrad.models.anatomy.run import as_json, open_run, settings_from

    folder = open_run(command.resume.expanduser(), kind)
    settings = settings_from(type(command.settings), folder.config, folder.path / "config.json")
    changed = as_json(asked_for(command))
    changed |= {name: str(value.expanduser()) for name, value in sources.items() if value is not None}
    refuse_others([name for name, value in changed.items() if name != "epochs" and value != folder.config[name]])
    if "epochs" in changed:
        settings = replace(settings, epochs=changed["epochs"])
        with folder.locked():
            folder.change(epochs=settings.epochs)
    return folder, settings


def read_label_maps(
    source: Path, names: Path | None, known: LabelTable | None
) -> tuple[list[NDArray[np.int16]], LabelTable]:
    """All label maps of a folder as numbers from 0, and the table: a known one, the one that is named, or found."""
    from argrad.data.label_table import LabelTable, read_label_table
    from argrad.data.nifti import find_cases, find_table, read_labels

    cases = find_cases(source, ("labelsTr",))
    maps = [read_labels(case.path).data for case in cases]
    table = known or (read_label_table(names.expanduser()) if names is not None else find_table(source))
    table = table or LabelTable.from_maps(maps)
    return [table.to_indices(one, str(case.path)) for one, case in zip(maps, cases, strict=True)], table


@dataclass
class Apply:
    """Label one scan: a label map that overlays it, and beside it probabilities, volumes and a page to look it over.

    For example, argrad segment apply scan.nii.gz --run model -o labels.nii.gz
    writes labels.nii.gz, labels-posterior.nii.gz (one map per label), labels-volumes.csv and labels.html.
    """

    scan: Positional[Path]
    """NIfTI or .mgz, any orientation."""
    model: Annotated[Path, arg(name="run", metavar="RUN")]
    """The run of stage 2."""
    output: Annotated[Path, arg(aliases=("-o",), metavar="SEGMENTATION")]
    """The label map to write: .nii, .nii.gz or .mgz."""
    overwrite: bool = False
    """Write over files that exist."""
    device: str = "cpu"
    """cpu, cuda …"""
    threads: OptionalNumber = None
    """Threads that PyTorch may use."""
    json: bool = False
    """Print one line of JSON at the end, and all else to standard error."""

    def run(self, out: Out) -> int:
        """Read, label, and only then write."""
        if self.threads is not None:
            use_threads(self.threads)
        from argrad.data.nifti import read_scan
        from argrad.models.anatomy.files import label_scan
        from argrad.models.anatomy.run import load_model
        from argrad.models.discrete_vae.run import choose_device
        from argrad.training.files import write_atomically

        began = time.monotonic()
        scan_path = self.scan.expanduser()
        files = output_files(self.output.expanduser(), scan_path, overwrite=self.overwrite)
        volume = read_scan(scan_path)
        model, table, folder = load_model(self.model.expanduser(), device=choose_device(self.device))
        labelled = label_scan(model, table, volume)
        seconds = time.monotonic() - began
        details = {"scan": scan_path.name, "run": folder.path, "shape": volume.data.shape}
        details["seconds"] = f"{seconds:.1f}"
        contents = {
            "output": labelled.label_map(files["output"]),
            "posterior": labelled.posterior(files["posterior"]),
            "volumes": labelled.volumes().encode(),
            "page": labelled.page(scan_path.name, details).encode(),
        }
        for name, content in contents.items():
            write_atomically(files[name], content)
        volumes = labelled.millilitres()
        out.result(
            "\n".join(f"  {name:24s} {value:10.3f} ml" for name, value in volumes.items())
            + f"\nSegmentation: {files['output']}\nPage: {files['page']}"
        )
        out.machine({**{name: str(path) for name, path in files.items()}, "volumes_ml": volumes, "seconds": seconds})
        return 0


def output_files(output: Path, scan: Path, *, overwrite: bool) -> dict[str, Path]:
    """What is written, by what it is; refuses to write over anything unasked, and over the scan in any case."""
    from argrad.data.nifti import suffix_of

    suffix = suffix_of(output)
    stem = output.name[: -len(suffix)]
    files = {
        "output": output,
        "posterior": output.with_name(f"{stem}-posterior{'.nii.gz' if suffix == '.mgz' else suffix}"),
        "volumes": output.with_name(f"{stem}-volumes.csv"),
        "page": output.with_name(f"{stem}.html"),
    }
    taken = [str(path) for path in files.values() if path.exists()]
    if taken and not overwrite:
        raise ValueError(f"{', '.join(taken)}: already there; give --overwrite, or another name")
    if scan.resolve() in [path.resolve() for path in files.values()]:
        raise ValueError(f"{scan} is the scan itself; give the segmentation a name of its own")
    if not output.parent.is_dir():
        raise ValueError(f"{output.parent} is not a folder; make it first")
    return files


@dataclass
class EvaluateSegmentation:
    """Compare label maps with reference label maps of the same names: Dice and the 95 % Hausdorff distance.

    For example, argrad segment evaluate found/ reference/ --json

    Background is left out. A structure that both maps lack is left out of the means; one that only one of them has
    counts as Dice 0 and as the diagonal of the volume.
    """

    found: Positional[Path]
    """A label map, or a folder of them."""
    reference: Positional[Path]
    """The reference, or a folder; an nnU-Net data set's labelsTr is read."""
    names: OptionalFile = None
    """Names of the labels, as for `segment prior`."""
    json: bool = False
    """Print one line of JSON at the end, and all else to standard error."""

    def run(self, out: Out) -> int:
        """Match cases by name, measure, show."""
        from argrad.data.label_table import LabelTable, read_label_table
        from argrad.data.nifti import find_table, read_labels

        pairs = matched(self.found.expanduser(), self.reference.expanduser())
        given = self.names.expanduser() if self.names is not None else None
        table = read_label_table(given) if given is not None else find_table(self.reference.expanduser())
        table = table or LabelTable.from_maps(read_labels(path).data for both in pairs.values() for path in both)
        rows = [
            row
            for name, (ours, theirs) in pairs.items()
            for row in measured(name, read_labels(ours), read_labels(theirs), table)
        ]
        summary = {
            structure: means([row for row in rows if row["structure"] == structure]) for structure in table.names[1:]
        }
        lines = [f"{len(pairs)} cases           Dice   (sd)     HD95 (mm)"]
        for structure, numbers in summary.items():
            lines.append(
                f"  {structure:18s} {numbers['dice']:.3f} ({numbers['sd']:.3f})  {numbers['hd95']:8.2f}"
                if numbers
                else f"  {structure:18s} in no case"
            )
        out.result("\n".join(lines))
        out.machine({"cases": len(pairs), "structures": summary, "rows": rows})
        return 0


def matched(found: Path, reference: Path) -> dict[str, tuple[Path, Path]]:
    """A segmentation and its reference for every case; two single files belong together whatever they are called."""
    from argrad.data.nifti import find_cases

    theirs = {case.name: case.path for case in find_cases(reference, ("labelsTr",))}
    ours = {case.name: case.path for case in find_cases(found, ()) if not case.name.endswith("-posterior")}
    if not ours:
        raise ValueError(f"{found} holds probabilities only; give the label maps that lie beside them")
    if found.is_file() and reference.is_file():
        ours = dict(zip(theirs, ours.values(), strict=True))
    missing = sorted(set(ours) - set(theirs))
    if missing:
        raise ValueError(f"there is no reference for {', '.join(missing[:5])} in {reference}")
    return {name: (path, theirs[name]) for name, path in ours.items()}


def measured(name: str, found: Volume, reference: Volume, table: LabelTable) -> list[dict[str, Any]]:
    """One row for each structure that one of the two has."""
    import torch

    from argrad.models.anatomy.overlap import dice, hausdorff95

    if found.data.shape != reference.data.shape or abs(found.affine - reference.affine).max() > SAME_AFFINE:
        raise ValueError(f"{name}: segmentation and reference are not on the same grid; resample one of them")
    a, b = (torch.from_numpy(table.to_indices(volume.data, name, empty=True)) for volume in (found, reference))
    scores = zip(
        table.names[1:],
        dice(a, b, len(table)).tolist(),
        hausdorff95(a, b, len(table), found.voxel_sizes).tolist(),
        strict=True,
    )
    return [
        {"case": name, "structure": structure, "dice": overlap, "hd95": distance}
        for structure, overlap, distance in scores
        if not math.isnan(overlap)
    ]


def means(rows: list[dict[str, Any]]) -> dict[str, float]:
    """Means over cases, and the spread of Dice."""
    if not rows:
        return {}
    scores = [row["dice"] for row in rows]
    return {
        "dice": statistics.fmean(scores),
        "sd": statistics.stdev(scores) if len(scores) > 1 else 0.0,
        "hd95": statistics.fmean(row["hd95"] for row in rows),
    }
