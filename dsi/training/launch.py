"""The processes of `accelerate launch`. Knows nothing of what they do."""

from accelerate import PartialState
from accelerate.utils import gather_object

from docids.files.processes import Processes


def launch(device: str | None) -> Processes:
    """Return this process among those started by `accelerate launch`; without a launcher it is alone.

    Args:
        device: "cpu" makes the processes communicate without GPUs.
    """
    state = PartialState(cpu=device == "cpu")
    return Processes(state.process_index, state.num_processes, lambda own: gather_object([own]))
