//! This module implements the kernel traits for a WebAssembly module: the blocks of sources are passed to
//! instances of the module.

use std::sync::atomic::Ordering;

use base64::{Engine, prelude::BASE64_STANDARD};
use inshore_kernel::{Block, Border, FileBlocks, Kernel, Portable, RequiredRight};
use inshore_sandbox::{BlockPart, WasmResult};
use inshore_store::Context;
use serde_json::Value;

use super::{
    Error, Module, Result, WASM, WasmKernel,
    instances::{ENOUGH, Emitted, Instance, lock},
    module::{Arguments, parsed},
};

impl Kernel for WasmKernel {
    type Error = Error;
    /// The index of the slot whose instance the worker calls.
    type Worker = usize;
    /// The output of the module for a block.
    type Part = Vec<u8>;

    fn border(&self) -> Border {
        Border::Line { numbered: false }
    }

    fn cached_block_bytes(&self) -> usize {
        self.block_bytes
    }

    fn worker(&self, job: &Context) -> Result<usize> {
        let prepared = self.prepared();
        let number = prepared.next.fetch_add(1, Ordering::Relaxed) % prepared.instances.len();
        let mut place = lock(&prepared.instances[number]);
        if matches!(*place, Instance::None) {
            *place = Instance::Runs(Box::new(self.start(job, &prepared.limits)?));
        }
        Ok(number)
    }

    fn reads_files(&self) -> bool {
        true
    }

    fn file_blocks(
        &self,
        number: &mut usize,
        blocks: &FileBlocks<'_>,
        done: &mut Vec<Option<(u64, Vec<u8>)>>,
    ) -> Result<()> {
        let prepared = self.prepared();
        let FileBlocks { file, file_bytes, start, stride, count, base } = *blocks;
        let enough_bytes = prepared.part_bytes_max / ENOUGH;
        let asked = inshore_sandbox::FileBlocks { start, stride, count, file_bytes, base, enough_bytes };
        let mut emitted = Emitted::new(prepared.part_bytes_max);
        let mut place = lock(&prepared.instances[*number]);
        let ended = self.running(&mut place)?.file_blocks(file, &asked, &mut |part: BlockPart<'_>| {
            emitted.add(part.bytes, part.offset)?;
            if part.is_last {
                done.resize_with(part.block as usize, || None);
                done.push(Some((part.end, emitted.take())));
            }
            Ok(())
        });
        let count = self.ended(&mut place, ended, &emitted)?;
        done.resize_with(count as usize, || None);
        Ok(())
    }

    fn block(&self, number: &mut usize, block: &Block<'_>) -> Result<Vec<u8>> {
        if block.bytes.is_empty() {
            return Ok(Vec::new());
        }
        let prepared = self.prepared();
        let offset = block.offset as i64;
        let mut emitted = Emitted::new(prepared.part_bytes_max);
        let mut take = |bytes: &[u8]| emitted.add(bytes, offset);
        let mut place = lock(&prepared.instances[*number]);
        let run = self.running(&mut place)?;
        let mut ended = run.block(block.bytes, offset, &mut take);
        if prepared.result == WasmResult::InOrder {
            // The output of a block is complete only after the module has processed the block.
            ended = ended.and_then(|()| run.settle(&mut take));
        }
        self.ended(&mut place, ended, &emitted)?;
        Ok(emitted.take())
    }

    fn part_bytes(&self, part: &Vec<u8>) -> u64 {
        (part.capacity() + size_of::<Vec<u8>>()) as u64
    }
}

impl Portable for WasmKernel {
    const KIND: &'static str = WASM;
    const NEEDS: RequiredRight = RequiredRight::WebAssembly;

    fn arguments(&self) -> Value {
        let Module { name, bytes, is_pushed } = &self.module;
        let arguments = Arguments {
            name: name.clone(),
            sha256: self.module.sha256(),
            module: (!is_pushed).then(|| BASE64_STANDARD.encode(bytes)),
            args: self.args.clone(),
        };
        serde_json::to_value(arguments).expect("plain data")
    }

    fn of_arguments(arguments: &Value) -> Result<WasmKernel> {
        WasmKernel::requested(&parsed(arguments)?, None)
    }

    fn encode(part: &Vec<u8>, out: &mut Vec<u8>) {
        out.extend_from_slice(part);
    }

    fn decode(bytes: &[u8]) -> Option<Vec<u8>> {
        Some(bytes.to_vec())
    }
}
