"""This package's own version.

It is not `openmind_compat.__version__`: see the package's `__init__.py`.
"""

from importlib.metadata import PackageNotFoundError, version

try:
    __version__ = version("openmind-compat")
except PackageNotFoundError:  # a source tree on sys.path that was never installed
    __version__ = "0+unknown"
