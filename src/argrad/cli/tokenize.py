"""`argrad tokenize`: images to grids of codes and back, and new images from a prior over codes."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from tyro.conf import Positional

from argrad.cli.out import Out, use_threads
from argrad.cli.training import (
    OptionalFile,
    OptionalNumber,
    OptionalPath,
    default_folder,
    default_settings,
    outcome,
    reopen,
    watched,
    with_types,
)

__all__ = ["ACTIONS", "Tokenize", "tokenize_command"]

TRAIN = "argrad tokenize train"
ACTIONS = ("train", "encode", "decode", "sample")


@dataclass
class Tokenize:
    """Turn images into small grids of codes from one vocabulary, and back; generate images from a prior over codes.

    For example,
      argrad tokenize train --data fashion-mnist --run-folder tokens     learn the vocabulary, with a report
      argrad tokenize encode tokens --images mine.npy                    images to whole numbers, codes.npz
      argrad tokenize decode tokens codes.npz --output decoded.png       and back
      argrad tokenize sample tokens --number 64                          new images

    `argrad tokenize train --help` lists the settings.
    """

    what: Positional[str]
    """train, encode, decode or sample."""
    json: bool = False
    """Print one line of JSON at the end, and all else to standard error."""

    def run(self, out: Out) -> int:
        """Reached only with a word that is none of the four: main() reads their settings on its own."""
        raise ValueError(f"argrad tokenize {self.what}: choose one of {', '.join(ACTIONS)}")


def tokenize_command(name: str, arguments: Sequence[str] = ()) -> type[Any]:
    """The command `tokenize NAME`; the settings of training live with the model, which takes a while to import."""
    if name != "train":
        return {"encode": Encode, "decode": Decode, "sample": SampleImages}[name]
    from argrad.models.tokenizer.run import TokenizerSettings

    usual = default_settings(TokenizerSettings, TokenizerSettings.from_config, arguments)

    @dataclass
    class TrainTokenizer:
        """Train a tokenizer and a prior over its codes, and write a report.

        For example,
          argrad tokenize train --data fashion-mnist
          argrad tokenize train --data my-pictures/ --codes 256 --estimator gumbel-softmax --kl-weight 0.5
          argrad tokenize train --resume runs/fashion-mnist-20190526-101500    go on after an interruption

        Images must have a height and a width divisible by 4, in grey or in colour.
        """

        settings: TokenizerSettings = field(default_factory=lambda: usual)
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

    return with_types(TrainTokenizer, settings=TokenizerSettings)


def run_training(command: Any, out: Out) -> int:
    """Train the tokenizer, then the prior, or go on with whichever is not done."""
    if command.threads is not None:
        use_threads(command.threads)
    from argrad.models.discrete_vae.run import choose_device
    from argrad.models.tokenizer.report import advice, evaluate_tokenizer, write_tokenizer_report
    from argrad.models.tokenizer.run import (
        build_tokenizer,
        load_images,
        tokenizer_config,
        train_prior,
        train_tokenizer,
    )
    from argrad.training import RunFolder, World

    device = choose_device(command.device)
    settings = command.settings
    if command.resume is not None:
        folder, settings = reopen(command, World())
    # Settings, data and model are looked at before the folder is made, so that a mistake in them leaves nothing behind.
    settings.loop()
    images = load_images(settings)
    build_tokenizer(settings, images.shape)
    if command.resume is None:
        where = command.run_folder or default_folder(settings.data)
        folder = RunFolder.create(where, tokenizer_config(settings, images.shape))
    out.say(f"{images!r} → {folder.path}")
    found = watched(
        out,
        folder,
        settings.epochs,
        TRAIN,
        lambda bar: train_tokenizer(settings, folder, images, device=device, progress=bar),
    )
    if found is None:
        return 130
    module, trained = found
    prior, prior_trained = None, None
    if settings.prior_epochs:
        out.say("The prior over its codes:")
        of_prior = watched(
            out,
            folder,
            settings.prior_epochs,
            TRAIN,
            lambda bar: train_prior(settings, folder, module, images, progress=bar),
        )
        if of_prior is None:
            return 130
        prior, prior_trained = of_prior
    scores = evaluate_tokenizer(module, images, prior=prior)
    prior_history = [] if prior_trained is None else prior_trained.history
    report = write_tokenizer_report(
        folder.path, module, prior, images, settings, trained.history, prior_history, scores
    )
    hint = advice(settings, len(images.train), trained.history)
    if hint:
        out.say(hint)
    out.result(
        f"Best epoch {trained.best_epoch} of {trained.epoch}: test squared error per pixel {scores['hard_error']:.5f} "
        f"with hard codes, {scores['soft_error']:.5f} with soft ones; perplexity {scores['perplexity']:.1f} of "
        f"{module.codes} codes\nReport: {report}"
    )
    out.machine({"run": str(folder.path), "report": str(report), **outcome(trained), "test": scores})
    return 0


@dataclass
class Encode:
    """Turn images into codes: whole numbers [N, H / 4, W / 4] in an .npz file.

    For example, argrad tokenize encode runs/digits-20190526-101500 --images mine.npy --output codes.npz
    """

    run_folder: Positional[Path]
    """The folder of a tokenizer's run."""
    images: OptionalFile = None
    """Images to encode: a folder of pictures, an .npy or an .npz file; the run's own data unless given."""
    output: Path = Path("codes.npz")
    """Where to write the codes: as `codes`, in the order of the images; of the run's own data as train, validation and
    test."""
    device: str = "auto"
    """cpu, cuda, cuda:1 …; auto takes a GPU where there is one."""
    json: bool = False
    """Print one line of JSON at the end, and all else to standard error."""

    def run(self, out: Out) -> int:
        """Load, encode, write."""
        check_ending(self.output, ".npz")
        from argrad.models.discrete_vae.run import choose_device
        from argrad.models.tokenizer.run import encode_in_batches, fixed_values, load_images, load_tokenizer

        device = choose_device(self.device)
        module, settings = load_tokenizer(self.run_folder.expanduser(), device=device)
        if self.images is None:
            images = load_images(settings)
            values = fixed_values(images, device)
            arrays = {
                name: encode_in_batches(module, getattr(images, name), values).cpu().numpy()
                for name in ("train", "validation", "test")
            }
        else:
            pixels = read_images(self.images.expanduser(), settings.binarize)
            module.check_images(pixels)
            arrays = {"codes": encode_in_batches(module, pixels, lambda chunk: chunk).cpu().numpy()}
        write_arrays(self.output.expanduser(), arrays)
        number = sum(len(array) for array in arrays.values())
        out.result(f"{number} images, {module.grid[0]} × {module.grid[1]} codes each: {self.output}")
        out.machine({"run": str(self.run_folder), "output": str(self.output), "images": number})
        return 0


@dataclass
class Decode:
    """Turn codes back into images.

    For example, argrad tokenize decode runs/digits-20190526-101500 codes.npz --output decoded.png
    """

    run_folder: Positional[Path]
    """The folder of a tokenizer's run."""
    codes: Positional[Path]
    """An .npz file that `argrad tokenize encode` wrote, or an .npy file of whole numbers [N, H / 4, W / 4]."""
    output: Path = Path("decoded.npz")
    """An .npz file with `images`, or a .png picture of them."""
    number: int = 64
    """How many are in a picture."""
    device: str = "auto"
    """cpu, cuda, cuda:1 …; auto takes a GPU where there is one."""
    json: bool = False
    """Print one line of JSON at the end, and all else to standard error."""

    def run(self, out: Out) -> int:
        """Load, decode, write."""
        check_ending(self.output, ".npz", ".png")
        if self.number < 1:
            raise ValueError(f"--number must be at least 1, got {self.number}")
        from argrad.models.discrete_vae.run import choose_device
        from argrad.models.tokenizer.run import decode_in_batches, load_tokenizer

        module, _ = load_tokenizer(self.run_folder.expanduser(), device=choose_device(self.device))
        codes = read_codes(self.codes.expanduser())
        if self.output.suffix == ".png" and codes.dim():
            codes = codes[: self.number]
        images = decode_in_batches(module, codes)
        write_images(self.output.expanduser(), images, {"images": images.numpy()})
        out.result(f"{len(images)} images: {self.output}")
        out.machine({"run": str(self.run_folder), "output": str(self.output), "images": len(images)})
        return 0


@dataclass
class SampleImages:
    """Draw codes from the prior and decode them.

    For example, argrad tokenize sample runs/digits-20190526-101500 --number 64 --output samples.png
    """

    run_folder: Positional[Path]
    """The folder of a tokenizer's run."""
    number: int = 64
    """How many."""
    output: Path = Path("samples.png")
    """A .png picture, or an .npz file with images and codes."""
    seed: int = 0
    """Of the samples."""
    json: bool = False
    """Print one line of JSON at the end, and all else to standard error."""

    def run(self, out: Out) -> int:
        """Load, draw, write."""
        check_ending(self.output, ".npz", ".png")
        if self.number < 1:
            raise ValueError(f"--number must be at least 1, got {self.number}")
        import torch

        from argrad.models.tokenizer.run import decode_in_batches, load_prior, load_tokenizer

        module, _ = load_tokenizer(self.run_folder.expanduser())
        prior = load_prior(self.run_folder.expanduser())
        codes = prior.sample(self.number, generator=torch.Generator().manual_seed(self.seed))
        images = decode_in_batches(module, codes)
        write_images(self.output.expanduser(), images, {"images": images.numpy(), "codes": codes.numpy()})
        out.result(f"{self.number} samples: {self.output}")
        out.machine({"run": str(self.run_folder), "output": str(self.output), "number": self.number})
        return 0


def check_ending(path: Path, *endings: str) -> None:
    """Raise a ValueError unless a path ends in one of some ways."""
    if path.suffix not in endings:
        raise ValueError(f"--output must end in {' or '.join(endings)}, got {path}")


def read_images(path: Path, binarize: str) -> Any:
    """The images of a folder or a file, in their order, as numbers."""
    import torch

    from argrad.data.loading import read_path

    raw = read_path(path, None, "keep")
    if raw.test is not None:
        raise ValueError(f"{path} holds training and test images; save those to encode as one array, `images`")
    x = torch.tensor(raw.rest.pixels, dtype=torch.float32) / raw.full_scale
    return (x > 0.5).float() if binarize == "round" else x


def read_codes(path: Path) -> Any:
    """Codes from an .npy or .npz file; of several arrays `codes`, or train, validation and test one after another."""
    import zipfile

    import numpy as np
    import torch

    from argrad.models.tokenizer.run import as_whole_numbers

    if path.suffix not in (".npy", ".npz"):
        raise ValueError(f"codes are read from an .npy or .npz file, got {path}")
    if not path.exists():
        raise FileNotFoundError(f"{path} does not exist")
    try:
        found = np.load(path, allow_pickle=False)
        arrays = {"codes": found} if isinstance(found, np.ndarray) else dict(found)
    except (EOFError, OSError, ValueError, zipfile.BadZipFile) as error:
        raise ValueError(f"{path} cannot be read as a NumPy file of numbers; save codes with np.savez") from error
    if "codes" in arrays:
        return as_whole_numbers(arrays["codes"])
    parts = {name: arrays[name] for name in ("train", "validation", "test") if name in arrays}
    if not parts:
        raise ValueError(f"{path} holds {', '.join(arrays) or 'nothing'}: name the array of codes `codes`")
    if len({part.shape[1:] for part in parts.values()}) > 1 or not all(part.ndim for part in parts.values()):
        shapes = ", ".join(f"{name} {part.shape}" for name, part in parts.items())
        raise ValueError(f"the parts of {path} do not go together: {shapes}; save the codes as one array, `codes`")
    return torch.cat([as_whole_numbers(part) for part in parts.values()])


def write_images(path: Path, images: Any, arrays: dict[str, Any]) -> None:
    """A picture of images, or the arrays."""
    if path.suffix == ".npz":
        return write_arrays(path, arrays)
    if len(images) == 0:
        raise ValueError("there is no image to draw; give at least one grid of codes, or an --output that ends in .npz")
    from argrad.models.tokenizer.report import as_pictures
    from argrad.training.files import write_atomically
    from argrad.training.page import mosaic_png

    columns = min(16, round(len(images) ** 0.5 + 0.499))
    write_atomically(path, mosaic_png(as_pictures(images), columns=columns, zoom=4)[0])


def write_arrays(path: Path, arrays: dict[str, Any]) -> None:
    """An .npz file, whole or not at all."""
    import io

    import numpy as np

    from argrad.training.files import write_atomically

    buffer = io.BytesIO()
    np.savez_compressed(buffer, **arrays)
    write_atomically(path, buffer.getvalue())
