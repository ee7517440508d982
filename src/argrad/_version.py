"""The version of argrad, read by the build and by ``argrad.__version__``."""

__version__ = "0.1.0"
