"""Makes a larger set of bytes (u8bin) for bench/nearest_recall.py from a real one.

    tenfold.py BASE OUT [TIMES]

The vectors of BASE come first. Each further copy of a vector is the centroid of its cluster and the residual (the vector
without its centroid) of another vector, which is drawn at random, rounded and cut to 0 to 255. The 4,096 clusters are
those of Faiss's k-means on 200,000 vectors. The made vectors keep the
density of the clusters and the spread of each dimension, but near vectors are less alike than in the real set. Runs in an interpreter with numpy and faiss-cpu.
"""

from __future__ import annotations

import sys

import faiss
import numpy as np

CLUSTERS = 4096
BLOCK = 100_000


def main() -> None:
    """Write the larger file."""
    base, out = sys.argv[1], sys.argv[2]
    times = int(sys.argv[3]) if len(sys.argv) > 3 else 10
    rng = np.random.default_rng(1)
    dimensions = int(np.fromfile(base, "<u4", 2)[1])
    vectors = np.fromfile(base, np.uint8, offset=8).reshape(-1, dimensions)
    faiss.omp_set_num_threads(2)
    clusters = faiss.Kmeans(dimensions, CLUSTERS, niter=6, seed=1, max_points_per_centroid=50)
    clusters.train(
        vectors[np.sort(rng.choice(len(vectors), min(len(vectors), 200_000), replace=False))].astype("f4")
    )
    nearest = np.empty(len(vectors), np.int32)
    for first in range(0, len(vectors), BLOCK):
        found = clusters.index.search(vectors[first : first + BLOCK].astype("f4"), 1)[1]
        nearest[first : first + BLOCK] = found[:, 0]
    with open(out, "wb") as file:
        np.array([len(vectors) * times, dimensions], "<u4").tofile(file)
        vectors.tofile(file)
        for _ in range(times - 1):
            for first in range(0, len(vectors), BLOCK):
                centers = clusters.centroids[nearest[first : first + BLOCK]]
                others = rng.integers(0, len(vectors), len(centers))
                residuals = vectors[others].astype("f4") - clusters.centroids[nearest[others]]
                np.clip(np.rint(centers + residuals), 0, 255).astype(np.uint8).tofile(file)


if __name__ == "__main__":
    main()
