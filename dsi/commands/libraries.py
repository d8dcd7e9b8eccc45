"""What a command does before it computes: chooses the number of threads, imports the libraries, and keeps them quiet.

The libraries compute on OMP_NUM_THREADS threads or, if that is not set, on one per core that this process may use: more would
wait for each other at every step.
"""

import gc
import logging
import os
import sys
import warnings

from dsi.docids.files.threads import allowed_cores

logger = logging.getLogger(__name__)


def set_up() -> None:
    """Show our own messages, and only serious warnings; set what the libraries read when they are imported."""
    quiet_logging()
    _limit_threads()
    os.environ.setdefault("HF_HUB_DISABLE_TELEMETRY", "1")  # a model that is fetched is all that the Hub learns


def load_libraries(*, training: bool = False) -> None:
    """Make ready what every command needs; with `training` also the libraries that train, which take seconds."""
    set_up()
    from dsi.docids.files.ram import keep_few_kernels

    keep_few_kernels()
    os.environ.setdefault("HF_DATASETS_DISABLE_PROGRESS_BARS", "1")  # reading tables takes no time
    if training:
        gc.disable()
        import dsi.training.indexing  # noqa: F401

        gc.enable()
        gc.freeze()  # libraries stay until the process ends; to look through them for garbage takes a fifth of a short training
        from transformers.utils import logging as transformers_logging

        transformers_logging.disable_progress_bar()
        transformers_logging.set_verbosity_error()


def quiet_logging() -> None:
    """Show our own messages, and only serious warnings of the libraries; imports nothing."""
    logging.basicConfig(level=logging.WARNING, format="%(message)s")
    for package in ("dsi", "dsi_experiments"):
        logging.getLogger(package).setLevel(logging.INFO)
    warnings.filterwarnings("ignore", category=FutureWarning)


def _limit_threads() -> None:
    """Set OMP_NUM_THREADS, which the libraries read when they are imported, unless it is set or all cores may be used.

    On macOS it becomes 1: torch, faiss and scikit-learn each bring an OpenMP of their own, and several threads of several
    of them end the process or wait for each other.
    """
    if sys.platform == "darwin":
        os.environ.setdefault("KMP_DUPLICATE_LIB_OK", "TRUE")
        os.environ.setdefault("OMP_NUM_THREADS", "1")
    if "OMP_NUM_THREADS" in os.environ or "torch" in sys.modules:
        return
    cores, allowed = os.cpu_count() or 1, allowed_cores()
    if allowed < cores:
        os.environ["OMP_NUM_THREADS"] = str(allowed)
        threads = "1 thread" if allowed == 1 else f"{allowed} threads"
        logger.info("%d of %d cores may be used: computing on %s (OMP_NUM_THREADS changes it)", allowed, cores, threads)
