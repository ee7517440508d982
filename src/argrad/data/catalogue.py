"""The catalogue: which data sets argrad knows by name, who made them, under which terms, and where their files are.

Hashes and sizes are those of the public downloads (for MNIST, Fashion-MNIST, binarised MNIST and Omniglot they agree
with the ones that TensorFlow Datasets records). `repacked` lists files with the same content in another wrapping,
which serve just as well.
"""

from collections.abc import Callable, Mapping
from dataclasses import dataclass
from pathlib import Path

from argrad.data.binarized_mnist import read_binarized_mnist
from argrad.data.cmu_faces import read_cmu_faces
from argrad.data.digits import read_digits
from argrad.data.idx import read_idx_set
from argrad.data.olivetti import read_olivetti
from argrad.data.omniglot import read_omniglot
from argrad.data.omniglot_28 import read_omniglot_28
from argrad.data.parts import Raw


@dataclass(frozen=True)
class File:
    """One file of a data set.

    Args:
        name: its name, as downloaded.
        size: in bytes, as downloaded; 0 where it is not known.
        hash: "sha256:..." or "md5:..." of the download.
        urls: where it can be had, best first; none where users have to bring it themselves.
        repacked: (name, hash) of files with the same content in another wrapping.
    """

    name: str
    size: int
    hash: str
    urls: tuple[str, ...] = ()
    repacked: tuple[tuple[str, str], ...] = ()

    @property
    def names(self) -> tuple[str, ...]:
        """Every name that the content may go by, that of the download first."""
        return tuple(dict.fromkeys([self.name, *(name for name, _ in self.repacked)]))

    def hashes(self, name: str) -> tuple[str, ...]:
        """The hashes that a file of this name may have."""
        own = (self.hash,) if name == self.name else ()
        return own + tuple(known for other, known in self.repacked if other == name)


@dataclass(frozen=True)
class Source:
    """One data set of the catalogue.

    Args:
        name: what users call it.
        description: one line.
        licence: as the origin states it.
        files: what it consists of; none where a package ships it.
        read: reader of those files, given their paths by `File.name`.
        folders: folders that may hold the files; the first is where downloads go.
    """

    name: str
    description: str
    licence: str
    files: tuple[File, ...]
    read: Callable[[Mapping[str, Path]], Raw]
    folders: tuple[str, ...]

    @property
    def size(self) -> int:
        """Bytes to download."""
        return sum(file.size for file in self.files)


def download(name: str, size: int, sha256: str, *bases: str, repacked: tuple[tuple[str, str], ...] = ()) -> File:
    """A file that lies under the same name at every one of the addresses."""
    return File(name, size, f"sha256:{sha256}", tuple(f"{base}/{name}" for base in bases), repacked)


MNIST_BASES = ("https://ossci-datasets.s3.amazonaws.com/mnist", "https://storage.googleapis.com/cvdf-datasets/mnist")
FASHION_BASES = (
    "https://raw.githubusercontent.com/zalandoresearch/fashion-mnist/master/data/fashion",
    "http://fashion-mnist.s3-website.eu-central-1.amazonaws.com",
)
BINARIZED_BASES = (
    "http://www.cs.toronto.edu/~larocheh/public/datasets/binarized_mnist",
    "https://raw.githubusercontent.com/riannevdberg/sylvester-flows/master/data/MNIST_static",
)
OMNIGLOT_BASES = (
    "https://raw.githubusercontent.com/brendenlake/omniglot/master/python",
    "https://github.com/brendenlake/omniglot/raw/master/python",
)

DIGITS = Source(
    name="digits",
    description="1,797 handwritten digits, 8x8, grey; ships with scikit-learn",
    licence="CC BY 4.0 (UCI Optical Recognition of Handwritten Digits)",
    files=(),
    read=read_digits,
    folders=(),
)

MNIST = Source(
    name="mnist",
    description="70,000 handwritten digits, 28x28, grey",
    licence="not stated by the origin; commonly listed as CC BY-SA 3.0 (LeCun, Cortes)",
    files=(
        download(
            "train-images-idx3-ubyte.gz",
            9_912_422,
            "440fcabf73cc546fa21475e81ea370265605f56be210a4024d2ca8f203523609",
            *MNIST_BASES,
        ),
        download(
            "train-labels-idx1-ubyte.gz",
            28_881,
            "3552534a0a558bbed6aed32b30c495cca23d567ec52cac8be1a0730e8010255c",
            *MNIST_BASES,
        ),
        download(
            "t10k-images-idx3-ubyte.gz",
            1_648_877,
            "8d422c7b0a1c1c79245a5bcf07fe86e33eeafee792b84584aec276f5a2dbc4e6",
            *MNIST_BASES,
        ),
        download(
            "t10k-labels-idx1-ubyte.gz",
            4_542,
            "f7ae60f92e00ec6debd23a6088c31dbd2371eca3ffa0defaefb259924204aec6",
            *MNIST_BASES,
        ),
    ),
    read=read_idx_set,
    folders=("mnist",),
)

FASHION_MNIST = Source(
    name="fashion-mnist",
    description="70,000 pictures of clothes, 28x28, grey",
    licence="MIT (Zalando SE)",
    files=(
        download(
            "train-images-idx3-ubyte.gz",
            26_421_880,
            "3aede38d61863908ad78613f6a32ed271626dd12800ba2636569512369268a84",
            *FASHION_BASES,
        ),
        download(
            "train-labels-idx1-ubyte.gz",
            29_515,
            "a04f17134ac03560a47e3764e11b92fc97de4d1bfaf8ba1a3aa29af54cc90845",
            *FASHION_BASES,
        ),
        download(
            "t10k-images-idx3-ubyte.gz",
            4_422_102,
            "346e55b948d973a97e58d2351dde16a484bd415d4595297633bb08f03db6a073",
            *FASHION_BASES,
        ),
        download(
            "t10k-labels-idx1-ubyte.gz",
            5_148,
            "67da17c76eaffca5446c3361aaab5c3cd6d1c2608764d35dfb1850b086bf8dd5",
            *FASHION_BASES,
        ),
    ),
    read=read_idx_set,
    folders=("fashion-mnist",),
)

BINARIZED_MNIST = Source(
    name="binarized-mnist",
    description="70,000 MNIST digits binarised once and for all (Larochelle), 28x28, bits, own split, no labels",
    licence="none stated (derived from MNIST)",
    files=(
        download(
            "binarized_mnist_train.amat",
            78_400_000,
            "ad693b29f94c14277b095f5238ddefbbdaaae0939789dd2f4f0205278cee3e4d",
            *BINARIZED_BASES,
            repacked=(
                (
                    "binarized_mnist_train.amat.gz",
                    "sha256:af247bd6075cf9adc4715459dcd5f13eaa99a2c92d8d81379a05da94770b6c0e",
                ),
            ),
        ),
        download(
            "binarized_mnist_valid.amat",
            15_680_000,
            "1de3d397c40fe8eeb33dafd4099a1f665ec01e96d9be234aaeeac8a34930e2e2",
            *BINARIZED_BASES,
            repacked=(
                (
                    "binarized_mnist_valid.amat.gz",
                    "sha256:533b71bc0198f4d73c54ae5fe6c96fc08dc3cf1b3fae24c5521dbc0452507e38",
                ),
            ),
        ),
        download(
            "binarized_mnist_test.amat",
            15_680_000,
            "e6687bfea3f820c174f33b7865140b2a2dd2930ef786f35d45795fc193b5ab2c",
            *BINARIZED_BASES,
            repacked=(
                (
                    "binarized_mnist_test.amat.gz",
                    "sha256:32a3c54d03504632bf9f131b4a148c7567aa6fc87da017049b044bdc14c2a0f2",
                ),
            ),
        ),
    ),
    read=read_binarized_mnist,
    folders=("binarized-mnist",),
)

OMNIGLOT = Source(
    name="omniglot",
    description="32,460 drawings of 1,623 characters, reduced from 105x105 to 28x28, grey",
    licence="MIT (Brenden Lake)",
    files=(
        download(
            "images_background.zip",
            9_464_212,
            "ad41ab679c8b5d90b271ef46be6987cc81211774a695c29dcc5367b2b26ee640",
            *OMNIGLOT_BASES,
            repacked=(
                (
                    "images_background.zip",
                    "sha256:0bd52a6c3e9b67c37260b49aa0ef999a781ce200d5971ac765cf7a4dcab78b9f",
                ),
            ),
        ),
        download(
            "images_evaluation.zip",
            6_462_886,
            "1f61a8f3366785b057fc117d9228e78a16e3d976c8953b2a10fcc74cf0609cee",
            *OMNIGLOT_BASES,
            repacked=(
                (
                    "images_evaluation.zip",
                    "sha256:9d4a06435df3232e1e797949d03addc4bd9874ee5febcfbe49434c889d6f0a3e",
                ),
            ),
        ),
    ),
    read=read_omniglot,
    folders=("omniglot",),
)

OMNIGLOT_28 = Source(
    name="omniglot-28",
    description="Burda's Omniglot, 32,415 drawings, 28x28, grey, no labels; bring your own chardata.mat",
    licence="none stated (github.com/yburda/iwae)",
    files=(File("chardata.mat", 0, "md5:21ecaf34373511aa7691cf2e0802aa3d"),),
    read=read_omniglot_28,
    folders=("omniglot-28", "omniglot"),
)

CMU_FACES = Source(
    name="cmu-faces",
    description="624 face images of 20 people, 60x64, grey, labelled by person; attributes with load_cmu_faces",
    licence="free for any educational purpose with attribution (UCI KDD archive); not to be passed on",
    files=(
        File(
            "cmu_faces_60x64.zip",
            1_783_692,
            "sha256:d0b5f69f5c57117ad4f02be38271070591bf29b9a1083889060d8eeb210cb655",
        ),
    ),
    read=read_cmu_faces,
    folders=("cmu-faces",),
)

OLIVETTI = Source(
    name="olivetti",
    description="400 face images of 40 people, 64x64, grey, labelled by person; people held out with load_olivetti",
    licence="none stated; credit AT&T Laboratories Cambridge; not to be passed on",
    files=(
        File(
            "olivettifaces.mat",
            1_432_511,
            "sha256:b1988d02c72fe5b8ee82b5ef3bb7982eafc74f1e1ff0ae0ade35061ad0af534d",
        ),
    ),
    read=read_olivetti,
    folders=("olivetti",),
)

CATALOGUE: dict[str, Source] = {
    source.name: source
    for source in (DIGITS, MNIST, FASHION_MNIST, BINARIZED_MNIST, OMNIGLOT, OMNIGLOT_28, CMU_FACES, OLIVETTI)
}
