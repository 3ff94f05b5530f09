//! These tests replace a dataset by another dataset. Readers of the old dataset can continue. A replacement that is
//! dropped, or that another commit precedes, changes nothing. `crash.rs` and `errors.rs` test crashes and failures
//! during replacements.

use std::sync::Arc;

use inshore_store::{
    Budget, Cancel, CheckedFile, DatasetBuilder, Error, FileReader, Job, Memory, Result, Store,
};

const BYTES: usize = 3_000_000;

struct Scene {
    store: Store,
    _home: tempfile::TempDir,
}

impl Scene {
    /// Returns a store with the dataset "a", whose bytes are all 1.
    fn new() -> Scene {
        let home = tempfile::tempdir().unwrap();
        let store = Store::open_on(home.path(), vec![Arc::new(Memory::new(60))]).unwrap();
        let scene = Scene { store, _home: home };
        scene.replacement(&scene.job(), 1).commit(b"1").unwrap();
        scene
    }

    fn job(&self) -> Job {
        self.store.job(Budget::new(16 << 20, 1), Cancel::default()).unwrap()
    }

    /// Begins to replace "a" by a dataset whose bytes are all `value`.
    fn replacement(&self, job: &Job, value: u8) -> DatasetBuilder {
        let mut builder = self.store.replace_dataset(job, "a", "test").unwrap();
        let mut writer = builder.file("bytes", 4096, 65_536).unwrap();
        writer.write(&vec![value; BYTES]).unwrap();
        builder.add(writer).unwrap();
        builder
    }

    /// Returns the value that all bytes of a file have.
    fn value(&self, file: &CheckedFile) -> Result<u8> {
        let job = self.job();
        let mut reader = FileReader::new(&job, file, 0..file.len(), 65_536)?;
        let (mut value, mut len) = (None, 0);
        while let Some(piece) = reader.next_piece()? {
            assert!(piece.iter().all(|byte| *byte == *value.get_or_insert(piece[0])));
            len += piece.len();
        }
        assert_eq!(len, BYTES);
        Ok(value.unwrap())
    }

    fn file(&self) -> CheckedFile {
        self.store.dataset("a").unwrap().file("bytes").unwrap()
    }

    /// Checks the bytes and the attributes of the dataset "a", which must be the only dataset.
    fn assert_holds(&self, value: u8) {
        let attributes = self.store.dataset("a").unwrap().attributes().to_vec();
        assert_eq!((self.value(&self.file()).unwrap(), attributes), (value, value.to_string().into_bytes()));
        assert_eq!(self.store.list().unwrap().len(), 1);
    }
}

#[test]
fn readers_of_the_old_dataset_go_on_and_others_see_the_new_one() {
    let scene = Scene::new();
    let (old, job) = (scene.file(), scene.job());
    let mut reader = FileReader::new(&job, &old, 0..old.len(), 65_536).unwrap();
    assert_eq!(reader.next_piece().unwrap().unwrap()[0], 1);
    let builder = scene.replacement(&scene.job(), 2);
    scene.assert_holds(1);
    builder.commit(b"2").unwrap();
    scene.assert_holds(2);
    // Further replacements would overwrite the extents of the old dataset if these were free.
    for value in 3..10 {
        scene.replacement(&scene.job(), value).commit(value.to_string().as_bytes()).unwrap();
    }
    scene.assert_holds(9);
    while let Some(piece) = reader.next_piece().unwrap() {
        assert!(piece.iter().all(|byte| *byte == 1));
    }
    assert_eq!(scene.value(&old).unwrap(), 1);
}

#[test]
fn the_space_of_replaced_datasets_is_used_again() {
    let scene = Scene::new();
    // The device has 60 extents of 2 MiB, and each dataset takes two.
    for value in 2..100 {
        scene.replacement(&scene.job(), value).commit(value.to_string().as_bytes()).unwrap();
    }
    scene.assert_holds(99);
}

#[test]
fn a_replacement_that_is_given_up_leaves_the_old_dataset() {
    let scene = Scene::new();
    drop(scene.replacement(&scene.job(), 2));
    scene.assert_holds(1);
    // A cancelled job drops a replacement with an unfinished file.
    let job = scene.job();
    let mut builder = scene.store.replace_dataset(&job, "a", "test").unwrap();
    let mut writer = builder.file("bytes", 4096, 65_536).unwrap();
    writer.write(&[3; 100_000]).unwrap();
    job.cancel().cancel();
    drop((writer, builder, job));
    scene.assert_holds(1);
}

#[test]
fn of_two_replacements_the_first_commit_wins_and_the_second_is_an_error() {
    let scene = Scene::new();
    let jobs = [scene.job(), scene.job()];
    let [first, second] = [(&jobs[0], 2), (&jobs[1], 3)].map(|(job, value)| scene.replacement(job, value));
    second.commit(b"3").unwrap();
    let error = first.commit(b"2").unwrap_err();
    assert!(matches!(error, Error::NameExists { .. } | Error::Changed { .. }), "{error}");
    scene.assert_holds(3);
    // The old dataset is removed before the commit of its replacement.
    let job = scene.job();
    let builder = scene.replacement(&job, 4);
    scene.store.remove("a").unwrap();
    let error = builder.commit(b"4").unwrap_err();
    assert!(matches!(error, Error::NotFound { .. } | Error::Changed { .. }), "{error}");
    assert!(scene.store.list().unwrap().is_empty());
}
