//! Defines the compute kernel that returns file contents unchanged.

use inshore_store::Context;
use serde_json::{Value, json};

use super::{RequiredRight, portable::Portable};
use crate::{Block, Border, Error, Kernel};

/// The compute kernel that returns the bytes of its sources unchanged. Clients use it to read data from nodes if the
/// nodes need not compute anything.
#[derive(Clone, Copy, Debug)]
pub struct Contents;

impl Kernel for Contents {
    type Error = Error;
    type Worker = ();
    type Part = Vec<u8>;

    fn border(&self) -> Border {
        Border::Byte
    }

    fn worker(&self, _: &Context) -> Result<(), Error> {
        Ok(())
    }

    fn block(&self, _: &mut (), block: &Block<'_>) -> Result<Vec<u8>, Error> {
        Ok(block.bytes.to_vec())
    }

    fn part_bytes(&self, part: &Vec<u8>) -> u64 {
        part.len() as u64
    }
}

impl Portable for Contents {
    const KIND: &'static str = "read";
    const NEEDS: RequiredRight = RequiredRight::Data;

    fn arguments(&self) -> Value {
        json!({})
    }

    fn of_arguments(_: &Value) -> Result<Self, Error> {
        Ok(Contents)
    }

    fn encode(part: &Vec<u8>, out: &mut Vec<u8>) {
        out.extend_from_slice(part);
    }

    fn decode(bytes: &[u8]) -> Option<Vec<u8>> {
        Some(bytes.to_vec())
    }
}
