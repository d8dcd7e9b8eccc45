"""The processes that `accelerate launch` started, as those that share the work."""

from accelerate import PartialState
from accelerate.utils import gather_object

from docids.processes import Processes


def launched(device: str | None) -> Processes:
    """This process among those it was started with; alone without a launcher.

    Args:
        device: "cpu" makes them talk without GPUs.
    """
    state = PartialState(cpu=device == "cpu")
    return Processes(state.process_index, state.num_processes, lambda own: gather_object([own]))
