"""What results depend on beside an index: packages, and libraries for linear algebra. Knows no folders."""

import platform
import re
import sys
from contextlib import suppress
from importlib.metadata import PackageNotFoundError, version

from threadpoolctl import threadpool_info

_PACKAGES = ("dr-scl", "torch", "transformers", "sentence-transformers", "onnxruntime", "faiss-cpu", "numpy")


def package_versions() -> dict[str, str]:
    """Return the versions of Python, and of the packages and the libraries for linear algebra that results depend on."""
    installed = {}
    for name in _PACKAGES:
        with suppress(PackageNotFoundError):  # searching does without some
            installed[name] = version(name)
    return {"python": platform.python_version(), **installed, "blas": _blas()}


def _blas() -> str:
    """Return the names and versions of the BLAS of NumPy, SciPy and faiss, and the name of the one that torch holds."""
    loaded = {f"{pool['internal_api']} {pool['version']}" for pool in threadpool_info() if pool["user_api"] == "blas"}
    torch = sys.modules.get("torch")
    of_torch = re.findall(r"BLAS_INFO=(\w+)", torch.__config__.show()) if torch else []
    return ", ".join([*sorted(loaded), *(f"{name} in torch" for name in of_torch)])
