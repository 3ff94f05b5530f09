//! Helper functions that several tests of operations on nodes use.

use std::{fs, path::Path, sync::Arc};

use inshore_store::{Budget, Limits, Memory, Store, Throttled};
use inshore_tables::{Input, TableReader};
use parquet::{arrow::ArrowWriter, file::properties::WriterProperties};

/// Opens a store on a throttled device in memory.
pub(crate) fn slow_store(folder: &Path, limits: Limits) -> Store {
    let drive = Throttled::new(Arc::new(Memory::new(1024)), limits);
    Store::open_on(folder, vec![Arc::new(drive)]).unwrap()
}

/// Writes a CSV table as Parquet with `group_rows` rows in each row group.
pub(crate) fn write_parquet(csv: &Path, parquet: &Path, group_rows: usize) {
    let budget = Budget::new(64 << 20, 1);
    let mut reader =
        TableReader::open_stored(&Input::new(csv), None, &[], group_rows, &budget, (0, 1)).unwrap();
    let mut writer = None;
    while let Some(batch) = reader.next_batch().unwrap() {
        let writer = writer.get_or_insert_with(|| {
            let groups = WriterProperties::builder().set_max_row_group_row_count(Some(group_rows));
            let file = fs::File::create(parquet).unwrap();
            ArrowWriter::try_new(file, batch.schema(), Some(groups.build())).unwrap()
        });
        writer.write(&batch).unwrap();
    }
    writer.unwrap().close().unwrap();
}
