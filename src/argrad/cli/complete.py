"""`argrad complete`: fill the hole in a picture in several ways; `argrad complete train`: learn how."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

from tyro.conf import Positional, arg

from argrad.cli.out import Out, use_threads
from argrad.cli.training import (
    OptionalNumber,
    OptionalPath,
    default_folder,
    default_settings,
    outcome,
    reopen,
    watched,
    with_types,
)

if TYPE_CHECKING:
    from numpy.typing import NDArray
    from torch import Tensor

__all__ = ["ACTIONS", "Complete", "complete_command"]

ACTIONS = ("train",)
WORDS = ("centre", "rectangle", "irregular")


@dataclass
class Complete:
    """Fill the hole in a picture in several different ways.

    For example,
      argrad complete train --data fashion-mnist --run-folder clothes       learn, with a report
      argrad complete shirt.png --mask hole.png -n 8 --run clothes          eight completions, completions.png
      argrad complete shirt.png --mask centre --run clothes --output filled/

    `argrad complete train --help` lists the settings of training.
    """

    image: Positional[Path]
    """A picture of the size that the run was trained on, or an .npy file of numbers from 0 to 1; or the word train."""
    mask: str
    """A picture of the same size in which white hides, an .npy file, or centre, rectangle or irregular."""
    run_folder: Annotated[Path, arg(name="run", metavar="RUN")]
    """The folder that `argrad complete train` wrote."""
    number: Annotated[int, arg(aliases=["-n"])] = 8
    """How many completions."""
    output: Annotated[Path, arg(aliases=["-o"])] = Path("completions.png")
    """A .png picture of the hole and all completions; an .npz file with `completions` and `components`; or a folder,
    for a picture of each."""
    seed: int = 0
    """Of the completions, and of a mask that is drawn."""
    device: str = "auto"
    """cpu, cuda, cuda:1 …; auto takes a GPU where there is one."""
    json: bool = False
    """Print one line of JSON at the end, and all else to standard error."""

    def run(self, out: Out) -> int:
        """Load, complete, write."""
        if self.number < 1:
            raise ValueError(f"--number must be at least 1, got {self.number}")
        if self.output.suffix not in ("", ".png", ".npz"):
            raise ValueError(f"--output must end in .png or .npz, or be a folder, got {self.output}")
        import torch

        from argrad.models.completion.run import load_completion
        from argrad.models.discrete_vae.run import choose_device

        device = choose_device(self.device)
        module, _ = load_completion(self.run_folder.expanduser(), device=device)
        x = read_image(self.image.expanduser(), grey=len(module.shape) == 2 or module.shape[0] == 1)
        x = (x.unsqueeze(0) if x.dim() < len(module.shape) else x).unsqueeze(0)  # a grey channel, and a batch of one
        mask = torch.as_tensor(find_mask(self.mask, (x.shape[-2], x.shape[-1]), self.seed)).unsqueeze(0)
        module.check(x, mask)
        generator = torch.Generator(device).manual_seed(self.seed)
        completed, which = module.complete(x.to(device), mask.to(device), self.number, generator=generator)
        write_completions(self.output.expanduser(), x, mask, completed[0].cpu(), which[0].cpu())
        chosen = which[0].tolist()
        several = len(set(chosen))
        out.result(
            f"{self.number} completion{'s' if self.number > 1 else ''} from {several} component"
            f"{'s' if several > 1 else ''}: {self.output}"
        )
        out.machine({"run": str(self.run_folder), "output": str(self.output), "components": chosen})
        return 0


def complete_command(name: str, arguments: Sequence[str] = ()) -> type[Any]:
    """The command `complete train`; its settings live with the model, which takes a while to import."""
    assert name in ACTIONS
    from argrad.models.completion.run import CompletionSettings

    usual = default_settings(CompletionSettings, CompletionSettings.from_config, arguments)

    @dataclass
    class TrainCompletion:
        """Learn to complete images of one kind and size, and write a report.

        For example,
          argrad complete train --data fashion-mnist
          argrad complete train --data my-pictures/ --masks rectangle --components 16 --mirror
          argrad complete train --resume runs/fashion-mnist-20190526-101500    go on after an interruption
        """

        settings: CompletionSettings = field(default_factory=lambda: usual)
        run_folder: OptionalPath = None
        """Folder to write to; runs/DATA-DATE-TIME unless given."""
        resume: OptionalPath = None
        """Go on with this run; of the other settings only --epochs may change."""
        device: str = "auto"
        """cpu, cuda, cuda:1 …; auto takes a GPU where there is one."""
        threads: OptionalNumber = None
        """Threads that PyTorch may use."""
        json: bool = False
        """Print one line of JSON at the end, and all else to standard error."""

        def run(self, out: Out) -> int:
            return run_training(self, out)

    return with_types(TrainCompletion, settings=CompletionSettings)


def run_training(command: Any, out: Out) -> int:
    """Train or go on, evaluate, write the report."""
    if command.threads is not None:
        use_threads(command.threads)
    from argrad.models.completion.report import write_completion_report
    from argrad.models.completion.run import build_completion, completion_config, load_pictures, train_completion
    from argrad.models.completion.scores import evaluate_completion
    from argrad.models.discrete_vae.run import choose_device
    from argrad.training import RunFolder, World

    device = choose_device(command.device)
    settings = command.settings
    if command.resume is not None:
        folder, settings = reopen(command, World())
    # Settings, data and model are looked at before the folder is made, so that a mistake in them leaves nothing behind.
    settings.loop()
    images = load_pictures(settings.data, settings.split_seed)
    build_completion(settings, images.shape)
    if command.resume is None:
        where = command.run_folder or default_folder(settings.data)
        folder = RunFolder.create(where, completion_config(settings, images.shape))
    out.say(f"{images!r} → {folder.path}")
    found = watched(
        out,
        folder,
        settings.epochs,
        "argrad complete train",
        lambda bar: train_completion(settings, folder, images, device=device, progress=bar),
    )
    if found is None:
        return 130
    module, trained = found
    scores = evaluate_completion(module, images, masks=settings.masks)
    report = write_completion_report(folder.path, module, images, settings, trained.history, scores)
    out.result(
        f"Best epoch {trained.best_epoch} of {trained.epoch}: test squared error per hidden pixel "
        f"{scores['best_error']:.5f} (best of 8), {scores['mean_error']:.5f} (mean), {scores['components']:.1f} of "
        f"{module.components} components in use\nReport: {report}"
    )
    out.machine({"run": str(folder.path), "report": str(report), **outcome(trained), "test": scores})
    return 0


def read_image(path: Path, *, grey: bool) -> Tensor:
    """One image as numbers from 0 to 1, ``[H, W]`` or ``[3, H, W]``."""
    import numpy as np
    import torch

    from argrad.data.folder import SUFFIXES, read_picture

    if not path.exists():
        raise ValueError(f"{str(path)!r} is no file; give a picture, or train first: argrad complete train --help")
    if path.suffix.lower() in SUFFIXES:
        picture = read_picture(path, colour="grey" if grey else "rgb")
        return torch.tensor(picture, dtype=torch.float32) / (255 if picture.dtype == np.uint8 else 1)
    if path.suffix.lower() != ".npy":
        raise ValueError(f"{path} is no picture and no .npy file; give one image")
    try:
        array = np.load(path, allow_pickle=False)
        image = torch.tensor(array, dtype=torch.float32) / (255 if array.dtype == np.uint8 else 1)
    except (OSError, ValueError, TypeError, EOFError) as error:
        raise ValueError(f"{path} cannot be read as an .npy file of numbers ({error}); use np.save") from error
    if image.dim() not in (2, 3):
        raise ValueError(f"{path} has shape {tuple(image.shape)}; give one image, [H, W] or [3, H, W]")
    return image


def find_mask(mask: str, size: tuple[int, int], seed: int) -> NDArray[Any]:
    """A mask from a file, or drawn where a word says which kind."""
    import torch

    from argrad.data.masks import draw_masks, read_mask

    if mask in WORDS:
        return draw_masks(mask, 1, size, generator=torch.Generator().manual_seed(seed))[0].numpy()  # type: ignore[arg-type]
    return read_mask(Path(mask).expanduser())


def write_completions(path: Path, x: Tensor, mask: Tensor, completed: Tensor, which: Tensor) -> None:
    """One picture of all, an .npz file, or a folder with a picture of each."""
    from argrad.models.completion.files import completions_npz, completions_png
    from argrad.models.completion.report import as_pictures
    from argrad.training.files import write_atomically
    from argrad.training.page import mosaic_png

    if path.suffix == ".npz":
        return write_atomically(path, completions_npz(completed, which))
    if path.suffix == ".png":
        return write_atomically(path, completions_png(x, mask, completed))
    path.mkdir(parents=True, exist_ok=True)
    for number, one in enumerate(as_pictures(completed), start=1):
        write_atomically(path / f"{number}.png", mosaic_png(one[None], columns=1)[0])
    return None
