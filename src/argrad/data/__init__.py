"""Image data sets by name or path, split by seed, binarised on request; nothing downloads without being asked.

Load with `load`; manage files with `available`, `get` and `check`. Files are looked up in `$ARGRAD_DATA/<name>/`,
then in the user's cache folder. Every error is a `DataError` with a message of one line.

Example:
    >>> from argrad.data import load
    >>> digits = load("digits", split_seed=1)
    >>> digits.shape, len(digits.train), len(digits.validation), len(digits.test)
    ((8, 8), 1437, 180, 180)
"""

from argrad.data.attribute_images import AttributeImages
from argrad.data.binarization import Binarization, binarize
from argrad.data.catalogue import CATALOGUE, File, Source
from argrad.data.celeba import load_celeba
from argrad.data.cmu_faces import load_cmu_faces
from argrad.data.download import FileReport, Listing, Progress, available, check, get
from argrad.data.errors import (
    BrokenFile,
    DataError,
    DownloadFailed,
    MissingFiles,
    UnknownData,
    WrongImages,
    WrongOption,
)
from argrad.data.folder import Colour
from argrad.data.images import Images
from argrad.data.loading import from_arrays, load
from argrad.data.locate import data_folders
from argrad.data.masks import MaskKind, draw_masks, read_mask
from argrad.data.olivetti import load_olivetti
from argrad.data.splits import Fractions
from argrad.data.text import Text, Vocabulary, as_text, load_text

__all__ = [
    "CATALOGUE",
    "AttributeImages",
    "Binarization",
    "BrokenFile",
    "Colour",
    "DataError",
    "DownloadFailed",
    "File",
    "FileReport",
    "Fractions",
    "Images",
    "Listing",
    "MaskKind",
    "MissingFiles",
    "Progress",
    "Source",
    "Text",
    "UnknownData",
    "Vocabulary",
    "WrongImages",
    "WrongOption",
    "as_text",
    "available",
    "binarize",
    "check",
    "data_folders",
    "draw_masks",
    "from_arrays",
    "get",
    "load",
    "load_celeba",
    "load_cmu_faces",
    "load_olivetti",
    "load_text",
    "read_mask",
]
