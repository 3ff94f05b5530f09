//! The operations. Each file defines one operation, or several operations that share code.

#[cfg(feature = "graph")]
mod algorithms;
#[cfg(any(feature = "nodes", feature = "wasm"))]
mod bytes;
#[cfg(feature = "text")]
mod checksum;
#[cfg(feature = "nodes")]
mod command;
#[cfg(feature = "graph")]
mod graphs;
#[cfg(feature = "wasm")]
mod kernel;
#[cfg(feature = "records")]
mod kmers;
#[cfg(feature = "text")]
mod language;
#[cfg(feature = "vectors")]
mod nearest;
#[cfg(feature = "text")]
mod packing;
#[cfg(feature = "records")]
mod reduce;
#[cfg(feature = "text")]
mod search;
#[cfg(feature = "nodes")]
mod sequential_read;
#[cfg(feature = "records")]
mod sort;
#[cfg(feature = "sql")]
mod sql;
mod stores;
#[cfg(feature = "nodes")]
mod traverse;
#[cfg(feature = "text")]
mod words;

#[cfg(all(feature = "graph", feature = "nodes"))]
pub use self::algorithms::OnCluster;
#[cfg(feature = "wasm")]
pub use self::kernel::{
    CheckedModule, KernelAnswer, KernelsAnswer, ListKernels, ListedKernel, PushAnswer, PushKernel,
    RemoveKernels, RunKernel, read_module,
};
#[cfg(feature = "vectors")]
pub use self::nearest::{
    AddVectors, BuiltIndex, CompactVectors, ContentKind, DedupVectors, DescribeVectors, DescribedVectors,
    Found, HashTables, ImportFiles, ImportVectors, IndexVectors, JoinVectors, ListVectors, MeasureRecall,
    NeighbourGraph, Neighbours, OpenInfo, OpenOptions, OpenVectors, RemoveFromVectors, RemoveVectors,
    SearchVectors, UpsertVectors, VectorId, VectorsAnswer,
};
#[cfg(feature = "sql")]
pub use self::sql::{NamedTable, Sql};
pub use self::stores::{
    GetAnswer, GetDataset, GetPlan, ListAnswer, ListDatasets, Listed, ListedHere, ListedSpread, PutAnswer,
    PutDataset, RemoveAnswer, RemoveDatasets, check_is_outside, dataset_file, dataset_range,
};
#[cfg(feature = "graph")]
pub use self::{
    algorithms::{Algorithm, AlgorithmAnswer, Run},
    graphs::{
        CheckAnswer, CheckGraph, DescribeGraph, ExportAnswer, ExportGraph, GenerateGraph, GraphsAnswer,
        ImportGraph, ListGraphs, RemoveGraphs,
    },
};
#[cfg(feature = "text")]
pub use self::{
    checksum::{Checksum, ChecksumAnswer, ChecksumFiles, FileChecksum},
    language::{IdentifyLanguage, LanguageAnswer, TrainAnswer, TrainLanguage},
    packing::{Compress, Decompress, PackAnswer},
    search::Search,
    words::CountWords,
};
#[cfg(feature = "nodes")]
pub use self::{
    command::{CommandAnswer, NodeResponse, RunCommand},
    traverse::{Traverse, TraverseAnswer},
};
#[cfg(feature = "records")]
pub use self::{
    kmers::CountKmers,
    reduce::{Aggregate, CountValues, Function, Reduce, ReduceAnswer},
    sort::{By, Sort},
};
#[cfg(feature = "text")]
pub use crate::matches::{Matches, Text};
