//! Manages the datasets of a node for clients: the catalog, the maps of spread datasets, and removal.

use std::time::Instant;

use inshore_store::{Budget, Cancel, CheckedFile, Dataset, FileReader, Job, format_bytes};
use serde_json::value::RawValue;

use super::{Agent, audit::Audit};
use crate::{
    Error, Result,
    protocol::{
        DatasetKey, DatasetReplica, Generation, MAP, MAP_BYTES_MAX, MAPS_MAX, REMOVED, RemoveRequest, SPREAD,
    },
    server::tombstones,
};

impl Agent {
    /// Lists the datasets and tombstones of the store.
    pub(super) fn catalog(&self) -> Result<Vec<DatasetReplica>> {
        let mut all = Vec::new();
        for dataset in self.0.store.datasets()? {
            if dataset.kind() == REMOVED {
                let mark = tombstones::read_mark(&self.0.store, &dataset)?;
                all.push(DatasetReplica {
                    name: mark.name.clone(),
                    id: 0,
                    kind: REMOVED.to_string(),
                    files: Vec::new(),
                    generation: Some(mark.generation),
                    mark: Some(mark),
                });
                continue;
            }
            let is_spread = dataset.kind() == SPREAD;
            let generation = Generation::of_attributes(dataset.attributes()).filter(|_| is_spread);
            let named = dataset.file_names().filter(|_| !is_spread);
            let files = named.map(|name| (name.to_string(), dataset.file(name).map_or(0, |file| file.len())));
            all.push(DatasetReplica {
                name: dataset.name().to_string(),
                id: dataset.id(),
                kind: dataset.kind().to_string(),
                files: files.collect(),
                generation,
                mark: None,
            });
        }
        Ok(all)
    }

    /// Returns the maps of spread datasets as [`MapAnswer`]s, concatenated.
    pub(super) fn maps(&self, keys: &[DatasetKey]) -> Result<bytes::Bytes> {
        let job = self.0.store.job(Budget::new(16 << 20, 1), Cancel::default())?;
        let datasets = self.0.store.datasets()?;
        let mut answers = Vec::new();
        for key in keys.iter().take(MAPS_MAX) {
            let file = self.map_file(&datasets, key);
            let bytes = file.as_ref().map_or(0, |file| file.len() as usize);
            if !answers.is_empty() && answers.len() + bytes > MAP_BYTES_MAX {
                break;
            }
            let read = file.and_then(|file| read_map(&job, &file));
            let map = match &read {
                Ok(bytes) => serde_json::from_slice::<&RawValue>(bytes).map_err(|error| error.to_string()),
                Err(error) => Err(error.to_string()),
            };
            serde_json::to_writer(&mut answers, &map).expect("memory takes all");
        }
        Ok(answers.into())
    }

    /// Returns the map file of one dataset. `datasets` has to be sorted by name.
    fn map_file(&self, datasets: &[Dataset], key: &DatasetKey) -> Result<CheckedFile> {
        let not_found = || inshore_store::Error::NotFound {
            name: key.name.clone(),
            store: self.0.store.path().to_path_buf(),
        };
        let place = datasets.binary_search_by(|dataset| dataset.name().cmp(&key.name));
        let dataset = place.ok().map(|place| &datasets[place]).filter(|dataset| dataset.id() == key.id);
        let file = dataset.and_then(|dataset| dataset.file(MAP)).ok_or_else(not_found)?;
        if file.len() > MAP_BYTES_MAX as u64 {
            let what = format!("the map of pieces has {}, more than the limit", format_bytes(file.len()));
            return Err(Error::BadAnswer { node: self.0.config.name.clone(), what });
        }
        Ok(file)
    }

    /// Removes a dataset for a client, or writes or removes a tombstone.
    pub(super) fn remove(&self, who: &str, removal: &RemoveRequest) -> Result<()> {
        let began = Instant::now();
        let removed = tombstones::remove(&self.0.store, removal);
        let failed = removed.as_ref().err().map(ToString::to_string);
        self.audit(&Audit {
            action: "rm",
            who,
            dataset: &removal.name,
            bytes: removed.as_ref().copied().unwrap_or(0),
            seconds: began.elapsed().as_secs_f64(),
            failed: failed.as_deref(),
            trace: None,
        });
        removed.map(drop)?;
        Ok(())
    }
}

/// Reads the stored map of a spread dataset.
fn read_map(job: &Job, file: &CheckedFile) -> Result<Vec<u8>> {
    let buffer_bytes =
        (file.len() as usize).next_multiple_of(file.block_bytes()).clamp(file.block_bytes(), 1 << 20);
    let mut reader = FileReader::new(job, file, 0..file.len(), buffer_bytes)?;
    let mut bytes = Vec::new();
    while let Some(piece) = reader.next_piece()? {
        bytes.extend_from_slice(piece);
    }
    Ok(bytes)
}
