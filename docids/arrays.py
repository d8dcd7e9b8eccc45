"""The array types of these packages, by element. Knows nothing of what arrays hold."""

from typing import Any

import numpy as np
from numpy.typing import NDArray

Ints = NDArray[np.int32]
Rows = NDArray[np.int64]
"""What NumPy indexes by fastest."""
Floats = NDArray[np.float32]
Mask = NDArray[np.bool_]
Numbers = NDArray[Any]
