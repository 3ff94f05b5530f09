"""Makes vectors of texts (fbin) for the benchmarks of vectors.

    embed.py OUT COUNT TEXT...              vectors of COUNT windows of the texts
    embed.py OUT COUNT --like BASE TEXT...  vectors of other texts by the same model

A window has 256 bytes. Its vector is the truncated singular value decomposition, to 768 dimensions, of its tf-idf weights
of sequences of three letters (hashed to 65,536 features), of length 1. The model is fitted to 40,000 windows, and kept
beside OUT as OUT.model. Windows of texts that are shorter than COUNT windows overlap. Runs in an interpreter with numpy and
scikit-learn.
"""

from __future__ import annotations

import pickle
import sys
from concurrent.futures import ProcessPoolExecutor
from pathlib import Path

import numpy as np
from sklearn.decomposition import TruncatedSVD
from sklearn.feature_extraction.text import HashingVectorizer, TfidfTransformer
from sklearn.preprocessing import normalize

DIMENSIONS = 768
WINDOW = 256
SAMPLE = 40_000
BLOCK = 10_000

hashed = HashingVectorizer(
    analyzer="char", ngram_range=(3, 3), n_features=1 << 16, alternate_sign=False, norm=None, dtype=np.float32
)
model: tuple[TfidfTransformer, TruncatedSVD]


def windows(text: bytes, starts: np.ndarray) -> list[str]:
    return [text[start : start + WINDOW].decode("utf-8", "replace") for start in starts]


def load(path: str) -> None:
    """Load the model in a process of the pool."""
    global model
    model = pickle.loads(Path(path).read_bytes())


def vectors(texts: list[str]) -> np.ndarray:
    weigh, reduce = model
    return normalize(reduce.transform(weigh.transform(hashed.transform(texts)))).astype("<f4")


def main() -> None:
    """Write the vectors."""
    out, count, texts = Path(sys.argv[1]), int(sys.argv[2]), sys.argv[3:]
    known = Path(f"{texts[1]}.model") if texts[0] == "--like" else None
    text = b"\n".join(Path(path).read_bytes() for path in texts[2 if known else 0 :])
    starts = np.linspace(0, len(text) - WINDOW, count).astype(np.int64)
    place = known or Path(f"{out}.model")
    if not known:
        sample = windows(
            text, np.sort(np.random.default_rng(1).choice(starts, min(SAMPLE, count), replace=False))
        )
        counts = hashed.transform(sample)
        weigh = TfidfTransformer(sublinear_tf=True).fit(counts)
        reduce = TruncatedSVD(DIMENSIONS, n_iter=2, random_state=1).fit(weigh.transform(counts))
        place.write_bytes(pickle.dumps((weigh, reduce)))
    blocks = (windows(text, starts[first : first + BLOCK]) for first in range(0, count, BLOCK))
    with open(out, "wb") as file, ProcessPoolExecutor(2, initializer=load, initargs=(str(place),)) as pool:
        np.array([count, DIMENSIONS], "<u4").tofile(file)
        for made in (
            pool.map(vectors, blocks, buffersize=4)
            if sys.version_info >= (3, 14)
            else pool.map(vectors, [*blocks])
        ):
            made.tofile(file)


if __name__ == "__main__":
    main()
