//! Replaces the reader of JSON lines in a build without the feature `json`. Opening such a file is an error that names
//! the file. No value of [`JsonSource`] exists.

use arrow_array::RecordBatch;
use arrow_schema::{Schema, SchemaRef};
use inshore_store::Budget;

use super::value_classes::ValueClasses;
use crate::{Error, Input, Result};

pub(super) enum JsonSource {}

impl JsonSource {
    pub fn open(input: &Input, _: &Budget) -> Result<Self> {
        let what = "JSON lines are not read by this build, which lacks the feature `json`".to_string();
        Err(Error::Unsupported { file: input.name().to_string(), what })
    }

    pub fn schema(&self) -> &Schema {
        match *self {}
    }

    pub fn position(&self) -> u64 {
        match *self {}
    }

    pub fn take_as_text(&mut self, _: &[usize]) {
        match *self {}
    }

    pub fn is_unseen(&self, _: usize) -> bool {
        match *self {}
    }

    pub fn choose(&mut self, _: &[usize], _: &SchemaRef, _: usize, _: bool) {
        match *self {}
    }

    pub fn scan(&mut self, _: &dyn Fn() -> Result<()>) -> Result<Vec<(String, ValueClasses)>> {
        match *self {}
    }

    pub fn next_batch(&mut self, _: usize) -> Result<Option<RecordBatch>> {
        match *self {}
    }
}
