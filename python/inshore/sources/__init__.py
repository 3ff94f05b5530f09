"""The inputs of verbs.

- `inputs`: files by name, datasets, and Arrow data, which each run writes to a file, and arrays that stay on
  file.
- `variables`: tables that a query names by the caller's variables.
"""

from inshore.sources.inputs import ArrayOnFile, ArrowStream, Inputs, Source, listed
from inshore.sources.variables import FoundTables

__all__ = ["ArrayOnFile", "ArrowStream", "FoundTables", "Inputs", "Source", "listed"]
