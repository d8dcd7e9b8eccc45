"""Types that cross the borders of modules: arrays by element, runs and judgements. Knows nothing of what arrays hold."""

from typing import Any

import numpy as np
from numpy.typing import NDArray

Ints = NDArray[np.integer]
Rows = NDArray[np.int64]
"""The type by which NumPy indexes fastest."""
Floats = NDArray[np.float32]
Reals = NDArray[np.floating]
"""Of any precision."""
Bools = NDArray[np.bool_]
Numbers = NDArray[Any]

Run = dict[str, dict[str, float]]
"""{query_id: {doc_id: score}}."""
Qrels = dict[str, dict[str, float]]
"""{query_id: {doc_id: relevance}}."""
