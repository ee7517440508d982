"""What can be wrong with data: every message is one line saying what was given, what was expected and what to do."""


class DataError(ValueError):
    """Data could not be found, read or used; the other classes here narrow it down."""


class UnknownData(DataError):
    """The name is not in the catalogue and no such file or folder exists."""


class MissingFiles(DataError):
    """The catalogue knows the data set, but its files are not on this machine."""


class BrokenFile(DataError):
    """A file is cut off, damaged, or not of the kind that its place calls for."""


class WrongImages(DataError):
    """The files could be read, but what they hold is not one set of images with values from 0 to 1."""


class WrongOption(DataError):
    """An argument has a value that does not exist, or that does not apply to this data."""


class DownloadFailed(DataError):
    """A download did not give the expected file; nothing of it was kept."""
