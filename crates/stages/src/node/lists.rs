//! The lists of outputs that a node keeps for its merges.

use inshore_kernel::Failure;
use inshore_store::{Job, Reservation};

use crate::lists::{ListPart, Producer};

/// The outputs of a stage, by partition.
#[derive(Debug)]
pub(super) struct OutputList {
    version: u64,
    outputs: Vec<Option<Producer>>,
    _memory: Reservation,
}

impl OutputList {
    /// Creates an empty list of version 0, in the memory of `job`.
    pub fn new(job: &Job, partitions: u32) -> Result<OutputList, Failure> {
        let bytes = u64::from(partitions) * size_of::<Option<Producer>>() as u64;
        let memory = job.budget().reserve(bytes, "the list of a stage's outputs")?;
        Ok(OutputList { version: 0, outputs: vec![None; partitions as usize], _memory: memory })
    }

    /// Adds a part. Returns false if the list lacks the part before it. A part that is older than the list changes
    /// nothing, so parts may arrive twice and in any order. `nodes` is the number of nodes of the job.
    pub fn add(&mut self, part: &ListPart, nodes: usize) -> Result<bool, Failure> {
        if self.version < part.from {
            return Ok(false);
        }
        if self.version >= part.to {
            return Ok(true);
        }
        let outputs = part.outputs().ok_or("invalid request: an invalid list of outputs")?;
        let is_known = |(partition, output): &(u32, Producer)| {
            (*partition as usize) < self.outputs.len() && (output.node as usize) < nodes
        };
        if !outputs.iter().all(is_known) {
            return Err("invalid request: outputs of unknown partitions or nodes".into());
        }
        for (partition, output) in outputs {
            self.outputs[partition as usize] = Some(output);
        }
        self.version = part.to;
        Ok(true)
    }

    /// Returns the output of each partition, or of one of them. Returns `None` if an output is missing.
    pub fn outputs(&self, only: Option<u32>) -> Option<Vec<Producer>> {
        match only {
            None => self.outputs.iter().copied().collect(),
            Some(partition) => self.outputs.get(partition as usize).copied().flatten().map(|only| vec![only]),
        }
    }
}

#[cfg(test)]
mod tests {
    use inshore_store::{Budget, Cancel, Store};

    use super::*;

    fn part(from: usize, to: usize, outputs: &[(u32, u32)]) -> ListPart {
        let output = |&(partition, token): &(u32, u32)| (partition, Producer { token, node: 1, checksum: 9 });
        ListPart::new((0, 3), (from, to), outputs.iter().map(output))
    }

    fn tokens(list: &OutputList, only: Option<u32>) -> Option<Vec<u32>> {
        list.outputs(only).map(|outputs| outputs.iter().map(|output| output.token).collect())
    }

    #[test]
    fn parts_may_arrive_twice_and_in_any_order_and_none_is_skipped() {
        let folder = tempfile::tempdir().unwrap();
        let job =
            Store::open(folder.path()).unwrap().job(Budget::new(1 << 20, 1), Cancel::default()).unwrap();
        let mut list = OutputList::new(&job, 3).unwrap();
        let (first, second) = (part(0, 2, &[(0, 5), (2, 6)]), part(2, 4, &[(1, 7), (0, 8)]));
        assert!(!list.add(&second, 2).unwrap(), "the first part is missing");
        assert_eq!((tokens(&list, None), tokens(&list, Some(0))), (None, None));
        assert!(list.add(&first, 2).unwrap());
        assert_eq!((tokens(&list, None), tokens(&list, Some(2))), (None, Some(vec![6])));
        assert!(list.add(&second, 2).unwrap());
        assert!(list.add(&first, 2).unwrap(), "an old part changes nothing");
        assert_eq!(tokens(&list, None), Some(vec![8, 7, 6]));
        // The driver begins again after a lost attempt.
        assert!(list.add(&part(0, 5, &[(0, 8), (1, 9), (2, 6)]), 2).unwrap());
        assert!(list.add(&part(5, 5, &[]), 2).unwrap());
        assert_eq!((tokens(&list, None), tokens(&list, Some(3))), (Some(vec![8, 9, 6]), None));
        assert!(list.add(&part(5, 6, &[(3, 1)]), 2).is_err(), "an unknown partition");
        assert!(list.add(&part(5, 6, &[(0, 1)]), 1).is_err(), "an unknown node");
        assert!(OutputList::new(&job, u32::MAX).is_err(), "the memory of the job is the limit");
    }
}
