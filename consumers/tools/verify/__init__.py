"""Is a log whole, and does everything that follows from it follow from it? Nothing is changed.

walk        both topics from Genesis on: hashes, order, each answer with its transaction
deciding    every transaction decided again by the leader's own machine, and compared
files       manifests byte for byte, data and deletion files, and on request the rows
index       the version index against one that is built from the log meanwhile
checkpoint  whether a committer could continue from its checkpoint
witnesses   what others remember of the log's end: a log that lost its tail is whole by itself
"""

from consumers.tools.verify.check import verify
from consumers.tools.verify.findings import PartitionFindings, Problem, ProblemKind
from consumers.tools.verify.options import VerifyOptions

__all__ = ["PartitionFindings", "Problem", "ProblemKind", "VerifyOptions", "verify"]
