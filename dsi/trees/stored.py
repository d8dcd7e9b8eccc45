"""The vectors of a tree on a device: gathered and multiplied there, as they are kept. Knows nothing of trees."""

from dataclasses import dataclass

import torch
from torch import Tensor

from docids.vectors import Product, Scaled, Vectors

_BLOCK = 2**18
"""Numbers that are decoded at a time when all vectors are read: what a cache holds."""


@dataclass(frozen=True, eq=False)
class StoredVectors:
    """`docids.vectors.Vectors` on a device.

    Attributes:
        parts: as there.
        codec: as there; what it knows is in `known`.
        known: the scale of int8, or the codebooks of a product quantiser.
        order: as there.
        dim: of the vectors.
    """

    parts: list[Tensor]
    codec: Scaled | Product | None
    known: Tensor | None
    order: Tensor | None
    dim: int

    @classmethod
    def of(cls, vectors: Vectors, device: torch.device) -> "StoredVectors":
        """The vectors on a device; on the CPU they stay where they are."""
        known = next(iter(vectors.codec.arrays.values())) if vectors.codec else None
        return cls(
            [torch.from_numpy(part).to(device) for part in vectors.parts],
            vectors.codec,
            None if known is None else torch.from_numpy(known).to(device),
            None if vectors.order is None else torch.from_numpy(vectors.order).to(device),
            vectors.shape[1],
        )

    def __len__(self) -> int:
        """How many vectors there are."""
        return len(self.parts[0]) if self.order is None else len(self.order)

    def take(self, rows: Tensor) -> Tensor:
        """[n, dim] the vectors in some rows [n], as float32."""
        if self.order is None:
            return self._decoded(self.parts[0].index_select(0, rows))
        places, first = self.order[rows], self.parts[0]
        later = (places >= len(first))[:, None]
        found = first.index_select(0, places.clamp(max=len(first) - 1))
        if len(self.parts) > 1 and len(self.parts[1]):
            found = torch.where(later, self.parts[1][(places - len(first)).clamp(min=0)], found)
        return self._decoded(found)

    def dot(self, queries: Tensor) -> Tensor:
        """[batch, n] dot products of queries [batch, dim] with all vectors."""
        found = torch.cat([self._products(part, queries) for part in self.parts])  # [rows of the parts, batch]
        return (found if self.order is None else found[self.order]).T

    def _products(self, part: Tensor, queries: Tensor) -> Tensor:
        if part.dtype == torch.float32:
            return part @ queries.T
        if isinstance(self.codec, Scaled):
            assert self.known is not None
            scaled = queries * self.known
            return torch.cat([block.float() @ scaled.T for block in part.split(self._rows)])
        return torch.cat([self._decoded(block) @ queries.T for block in part.split(self._rows)])

    @property
    def _rows(self) -> int:
        return max(1, _BLOCK // self.dim)

    def _decoded(self, codes: Tensor) -> Tensor:
        if self.known is None:
            return codes.float()
        if isinstance(self.codec, Scaled):
            return codes * self.known
        parts = torch.arange(self.known.shape[0], device=codes.device)
        return self.known[parts, codes.long()].flatten(1)
