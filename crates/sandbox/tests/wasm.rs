//! These tests run ordinary WebAssembly kernels, and modules that attack the sandbox.
#![cfg(feature = "wasm")]

use std::{
    fs::File,
    io::{self, Write},
    os::fd::AsFd,
    sync::{
        Arc,
        atomic::{AtomicBool, Ordering},
    },
    thread,
    time::{Duration, Instant},
};

use inshore_sandbox::{
    BlockPart, Error, FileBlocks, Helper, Policy, Protection, Protections, Result, Sandbox, Termination,
    WasmLimits, WasmResponse, WasmResult, WasmRun,
};

/// The maximum time for which a test waits for an event. Only a failing test waits so long, so a busy machine
/// makes no test fail.
const PATIENCE: Duration = Duration::from_secs(120);

fn sandbox() -> Sandbox {
    let helper = Helper::at(env!("CARGO_BIN_EXE_inshore-sandbox-helper"));
    Sandbox::new(helper, Policy { required: Protections::NONE, ..Policy::default() })
}

fn limits() -> WasmLimits {
    WasmLimits { call: 2 * PATIENCE, ..WasmLimits::default() }
}

/// The code that all modules have in common. Blocks are in the module's memory from address 64 KiB on, and the
/// memory grows with the blocks. Results and arguments are at lower addresses.
const COMMON: &str = r#"
    (import "inshore" "emit" (func $emit (param i32 i32)))
    (import "inshore" "memmem" (func $memmem (param i32 i32 i32 i32) (result i64)))
    (import "inshore" "hash64" (func $hash64 (param i32 i32 i64) (result i64)))
    (import "inshore" "log" (func $log (param i32 i32)))
    (import "inshore" "decompress" (func $decompress (param i32 i32 i32 i32) (result i64)))
    (memory (export "memory") 1)
    (global $end (mut i32) (i32.const 65536))
    (func (export "inshore_alloc") (param $len i32) (result i32) (local $at i32)
        (local.set $at (global.get $end))
        (global.set $end (i32.add (global.get $end) (local.get $len)))
        (if (i32.eq (i32.const -1) (memory.grow
                (i32.sub (i32.shr_u (i32.add (global.get $end) (i32.const 65535)) (i32.const 16)) (memory.size))))
            (then (return (i32.const 0))))
        (local.get $at))
"#;

const ABI: &str = r#"(func (export "inshore_abi") (result i32) (i32.const 1))"#;
const INIT: &str =
    r#"(func (export "inshore_init") (param $at i32) (param $len i32) (result i32) (i32.const 0))"#;
/// The code of a state of eight bytes. The state is the count in the global variable `$count`, which is also the
/// module's result.
const STATE: &str = r#"
    (global $count (mut i64) (i64.const 0))
    (func $say (result i32)
        (i64.store (i32.const 0) (global.get $count))
        (call $emit (i32.const 0) (i32.const 8))
        (i32.const 0))
    (func (export "inshore_state") (result i32) (call $say))
    (func (export "inshore_finish") (result i32) (call $say))
    (func (export "inshore_merge") (param $at i32) (param $len i32) (result i32)
        (if (i32.ne (local.get $len) (i32.const 8)) (then (return (i32.const -7))))
        (global.set $count (i64.add (global.get $count) (i64.load (local.get $at))))
        (i32.const 0))
"#;

fn compile(text: &str) -> Vec<u8> {
    wat::parse_str(format!("(module {text})")).unwrap()
}

/// Makes a module that runs this code on a block of `$len` bytes at `$at`.
fn on_block(body: &str) -> Vec<u8> {
    let block =
        "(func (export \"inshore_block\") (param $at i32) (param $len i32) (param $offset i64) (result i32)";
    compile(&format!("{COMMON} {ABI} {INIT} {block} {body} (i32.const 0))"))
}

/// Makes a module that counts lines and emits their number at the end.
fn line_count() -> Vec<u8> {
    compile(&format!(
        r#"{COMMON} {ABI} {INIT} {STATE}
        (func (export "inshore_block") (param $at i32) (param $len i32) (param $offset i64) (result i32)
            (local $end i32)
            (local.set $end (i32.add (local.get $at) (local.get $len)))
            (block $done (loop $next
                (br_if $done (i32.ge_u (local.get $at) (local.get $end)))
                (global.set $count (i64.add (global.get $count)
                    (i64.extend_i32_u (i32.eq (i32.load8_u (local.get $at)) (i32.const 10)))))
                (local.set $at (i32.add (local.get $at) (i32.const 1)))
                (br $next)))
            (i32.const 0))"#
    ))
}

/// Makes a module that emits the offset of each occurrence of the argument.
fn search() -> Vec<u8> {
    compile(&format!(
        r#"{COMMON} {ABI}
        (global $needle_len (mut i32) (i32.const 0))
        (func (export "inshore_init") (param $at i32) (param $len i32) (result i32)
            (if (i32.gt_u (local.get $len) (i32.const 1024)) (then (return (i32.const -22))))
            (memory.copy (i32.const 1024) (local.get $at) (local.get $len))
            (global.set $needle_len (local.get $len))
            (call $log (local.get $at) (local.get $len))
            (i32.const 0))
        (func (export "inshore_block") (param $at i32) (param $len i32) (param $offset i64) (result i32)
            (local $found i64)
            (block $done (loop $next
                (local.set $found (call $memmem (local.get $at) (local.get $len)
                    (i32.const 1024) (global.get $needle_len)))
                (br_if $done (i64.lt_s (local.get $found) (i64.const 0)))
                (i64.store (i32.const 0) (i64.add (local.get $offset) (local.get $found)))
                (call $emit (i32.const 0) (i32.const 8))
                (local.set $found (i64.add (local.get $found) (i64.const 1)))
                (local.set $offset (i64.add (local.get $offset) (local.get $found)))
                (local.set $at (i32.add (local.get $at) (i32.wrap_i64 (local.get $found))))
                (local.set $len (i32.sub (local.get $len) (i32.wrap_i64 (local.get $found))))
                (br $next)))
            (i32.const 0))"#
    ))
}

/// Runs a module on these blocks.
fn run(module: &[u8], args: &[u8], limits: &WasmLimits, blocks: &[&[u8]]) -> Result<(Vec<u8>, WasmResponse)> {
    let mut result = Vec::new();
    let mut take = |bytes: &[u8]| {
        result.extend_from_slice(bytes);
        Ok(())
    };
    let mut run = sandbox().start_wasm(module, args, limits)?;
    let mut offset = 0;
    for block in blocks {
        run.block(block, offset, &mut take)?;
        offset += block.len() as i64;
    }
    let response = run.finish(&mut take)?;
    Ok((result, response))
}

/// Returns the error of a module that gets one small block.
fn failure(module: &[u8], limits: &WasmLimits) -> Error {
    match run(module, b"", limits, &[b"block"]) {
        Err(error) => error,
        Ok((result, response)) => panic!("it should have failed: {result:?} {response:?}"),
    }
}

fn numbers(bytes: &[u8]) -> Vec<u64> {
    bytes.chunks(8).map(|one| u64::from_le_bytes(one.try_into().unwrap())).collect()
}

#[test]
fn lines_are_counted() {
    let text = b"a\nbc\n\nd".repeat(50_000);
    for block in [1000, 64 << 10, text.len()] {
        let blocks: Vec<_> = text.chunks(block).collect();
        let (result, response) = run(&line_count(), b"", &limits(), &blocks).unwrap();
        assert_eq!(numbers(&result), [150_000]);
        assert_eq!(response.output_bytes, 8);
    }
}

#[test]
fn a_search_finds_what_is_there_and_where() {
    let text = b"needles, a needle and a needle".repeat(30_000);
    let blocks: Vec<_> = text.chunks(30 * 1000).collect();
    let (result, response) = run(&search(), b"needle", &limits(), &blocks).unwrap();
    let expected: Vec<_> = (0..30_000u64).flat_map(|one| [0, 11, 24].map(|at| one * 30 + at)).collect();
    assert_eq!(numbers(&result), expected);
    assert_eq!(response.log, b"needle");
    println!("{response:?}");
}

#[test]
fn a_hash_is_that_of_xxh64() {
    let module = on_block(
        "(i64.store (i32.const 0) (call $hash64 (local.get $at) (local.get $len) (i64.const 0)))
        (call $emit (i32.const 0) (i32.const 8))",
    );
    // The value is from the reference implementation.
    assert_eq!(numbers(&run(&module, b"", &limits(), &[b"abc"]).unwrap().0), [0x44bc_2cf5_ad77_0999]);
}

#[test]
fn simd_is_on() {
    let module = on_block(
        "(v128.store (i32.const 0) (i8x16.eq (v128.load (local.get $at)) (i8x16.splat (i32.const 98))))
        (call $emit (i32.const 0) (i32.const 16))",
    );
    let (result, _) = run(&module, b"", &limits(), &[b"abcb............"]).unwrap();
    assert_eq!(result[..5], [0, 0xff, 0, 0xff, 0]);
}

#[test]
fn no_blocks_and_empty_blocks_are_fine() {
    assert_eq!(numbers(&run(&line_count(), b"", &limits(), &[]).unwrap().0), [0]);
    assert_eq!(numbers(&run(&line_count(), b"", &limits(), &[b"", b"\n", b""]).unwrap().0), [1]);
}

#[test]
fn a_module_that_spins_is_killed() {
    let limits = WasmLimits { call: Duration::from_millis(300), ..limits() };
    let start = Instant::now();
    // The module compiles and starts within the time limit, and then gets a block.
    let error = failure(&on_block("(loop $for_ever (br $for_ever))"), &limits);
    assert!(matches!(error, Error::Ended(Termination::Deadline)), "{error}");
    assert!(start.elapsed() < PATIENCE);
}

#[test]
fn a_module_that_spins_at_its_start_is_killed() {
    let limits = WasmLimits { call: Duration::from_millis(300), ..limits() };
    let spin = "(func $spin (loop $for_ever (br $for_ever))) (start $spin)";
    let module = compile(&format!("{COMMON} {ABI} {INIT} {spin}"));
    assert!(matches!(failure(&module, &limits), Error::Ended(Termination::Deadline)));
}

#[test]
fn the_time_of_a_whole_run_is_limited() {
    let limits = WasmLimits { wall: Duration::from_secs(4), ..limits() };
    let mut run = sandbox().start_wasm(&line_count(), b"", &limits).unwrap();
    run.block(b"\n", 0, &mut |_| Ok(())).unwrap();
    thread::sleep(limits.wall);
    match run.finish(&mut |_| Ok(())) {
        Err(Error::Ended(Termination::Deadline)) => {}
        other => panic!("{other:?}"),
    }
}

#[test]
fn a_pause_between_blocks_is_not_the_modules_fault() {
    let limits = WasmLimits { call: Duration::from_secs(2), ..limits() };
    let pause = Duration::from_millis(2100);
    // The module emits results, continues to compute while the consumer pauses, and then emits more results.
    let emit = on_block(
        "(local $i i32)
        (call $emit (i32.const 0) (i32.const 65536)) (call $emit (i32.const 0) (i32.const 65536))
        (call $emit (i32.const 0) (i32.const 65536)) (call $emit (i32.const 0) (i32.const 65536))
        (loop $more
            (local.set $i (i32.add (local.get $i) (i32.const 1)))
            (i32.store (i32.const 0) (local.get $i))
            (br_if $more (i32.lt_u (local.get $i) (i32.const 10000000))))
        (call $emit (i32.const 0) (i32.const 65536))",
    );
    let mut run = sandbox().start_wasm(&emit, b"", &limits).unwrap();
    let mut result = 0;
    for _ in 0..2 {
        run.block(b"\n", 0, &mut |bytes| {
            result += bytes.len();
            Ok(())
        })
        .unwrap();
    }
    thread::sleep(pause);
    let mut slow = |bytes: &[u8]| {
        if result == 0 {
            thread::sleep(pause);
        }
        result += bytes.len();
        Ok(())
    };
    run.finish(&mut slow).unwrap();
    assert_eq!(result, 10 * 65536);
}

#[test]
fn a_module_over_its_memory_limit_is_refused_memory() {
    let limits = WasmLimits { memory_bytes: 8 << 20, ..limits() };
    // The module emits the number of pages that its memory has at the end.
    let module = on_block(
        "(loop $more (br_if $more (i32.ne (i32.const -1) (memory.grow (i32.const 1)))))
        (i64.store (i32.const 0) (i64.extend_i32_u (memory.size)))
        (memory.fill (i32.const 65536) (i32.const 1) (i32.sub (i32.shl (memory.size) (i32.const 16)) (i32.const 65536)))
        (call $emit (i32.const 0) (i32.const 8))",
    );
    let (result, response) = run(&module, b"", &limits, &[b"block"]).unwrap();
    assert_eq!(numbers(&result), [(8 << 20) / 65536]);
    assert!(response.memory_bytes_max < 100 << 20, "{response:?}");
    // A module that needs more memory at the start isn't started.
    let module = compile(&format!("{ABI} {INIT} (memory (export \"memory\") 200)"));
    assert!(matches!(failure(&module, &limits), Error::Kernel { .. } | Error::Module { .. }));
}

#[test]
fn the_memory_limit_of_the_process_holds_without_a_cgroup() {
    let policy = Policy {
        wanted: Protections::ALL.without(Protection::Memory),
        required: Protections::NONE,
        ..Policy::default()
    };
    let sandbox = Sandbox { policy, ..sandbox() };
    let run = sandbox.start_wasm(&line_count(), b"", &limits()).unwrap();
    let response = run.finish(&mut |_| Ok(())).unwrap();
    assert!(!response.active.contains(Protection::Memory));
}

#[test]
fn a_block_that_does_not_fit_is_an_error() {
    let limits = WasmLimits { memory_bytes: 2 << 20, ..limits() };
    let (fits, large) = (vec![b'\n'; 500_000], vec![b'\n'; 1_000_000]);
    assert_eq!(numbers(&run(&line_count(), b"", &limits, &[&fits]).unwrap().0), [500_000]);
    for blocks in [&[&large[..]][..], &[&vec![0; 3_000_000]]] {
        let error = run(&line_count(), b"", &limits, blocks).unwrap_err();
        assert!(matches!(error, Error::Kernel { .. }), "{error}");
    }
}

#[test]
fn endless_recursion_is_an_error() {
    let recurse = "(func $again (call $again) (call $again))";
    let block =
        "(func (export \"inshore_block\") (param i32 i32 i64) (result i32) (call $again) (i32.const 0))";
    let module = compile(&format!("{COMMON} {ABI} {INIT} {recurse} {block}"));
    let error = failure(&module, &limits());
    assert!(error.to_string().contains("stack"), "{error}");
}

#[test]
fn a_trap_is_an_error_that_names_the_block_and_the_reason() {
    let traps = [
        ("unreachable", "unreachable"),
        ("(drop (i32.div_u (i32.const 1) (i32.const 0)))", "divide by zero"),
        ("(drop (i32.load (i32.const -8)))", "out of bounds"),
    ];
    for (trap, reason) in traps {
        let error = failure(&on_block(trap), &limits()).to_string();
        assert!(error.contains(reason) && error.contains("block at 0"), "{error}");
    }
    let error = failure(&on_block("(return (i32.const -5))"), &limits()).to_string();
    assert!(error.contains("-5"), "{error}");
}

#[test]
fn pointers_that_lead_out_of_its_memory_are_errors() {
    let attacks = [
        "(call $emit (i32.const -1) (i32.const 1))",
        "(call $emit (i32.const 0) (i32.const -1))",
        "(call $emit (i32.const -1) (i32.const -1))",
        "(call $log (i32.const 0x7fffffff) (i32.const 9))",
        "(drop (call $hash64 (i32.const 0) (i32.const 0x7fffffff) (i64.const 0)))",
        "(drop (call $memmem (i32.const 0) (i32.const 9) (i32.const -9) (i32.const 10)))",
        "(drop (call $memmem (i32.const 0xfffffff) (i32.const 9) (i32.const 0) (i32.const 1)))",
    ];
    for attack in attacks {
        let error = failure(&on_block(attack), &limits()).to_string();
        assert!(error.contains("not in its memory"), "{attack}: {error}");
    }
    for (at, reason) in
        [("-1", "is outside its memory"), ("0x10000", "is outside its memory"), ("0", "no room")]
    {
        let alloc = format!(
            "(memory (export \"memory\") 1)
            (func (export \"inshore_alloc\") (param i32) (result i32) (i32.const {at}))
            (func (export \"inshore_block\") (param i32 i32 i64) (result i32) (i32.const 0))"
        );
        let error = failure(&compile(&format!("{ABI} {INIT} {alloc}")), &limits()).to_string();
        assert!(error.contains(reason), "{at}: {error}");
    }
}

#[test]
fn endless_results_are_cut_off() {
    let limits = WasmLimits { output_bytes: 1_000_000, ..limits() };
    let endless = on_block("(loop $more (call $emit (i32.const 0) (i32.const 60000)) (br $more))");
    assert!(matches!(failure(&endless, &limits), Error::Ended(Termination::Output)));
    let log = on_block("(loop $more (call $log (i32.const 0) (i32.const 60000)) (br $more))");
    let limits = WasmLimits { call: Duration::from_millis(500), ..limits };
    let start = Instant::now();
    assert!(matches!(failure(&log, &limits), Error::Ended(Termination::Deadline)));
    assert!(start.elapsed() < PATIENCE, "it was listened to for {:?}", start.elapsed());
}

#[test]
fn an_error_of_the_consumer_ends_the_run() {
    let endless = on_block("(loop $more (call $emit (i32.const 0) (i32.const 60000)) (br $more))");
    let mut run = sandbox().start_wasm(&endless, b"", &limits()).unwrap();
    run.block(b"x", 0, &mut |_| Ok(())).unwrap();
    let error = run.finish(&mut |_| Err(io::Error::other("full"))).unwrap_err();
    assert!(matches!(error, Error::Output(_)), "{error}");
}

#[test]
fn modules_that_are_no_kernels_are_refused() {
    let memory = "(memory (export \"memory\") 1)";
    let rest = "(func (export \"inshore_alloc\") (param i32) (result i32) (i32.const 8))
        (func (export \"inshore_block\") (param i32 i32 i64) (result i32) (i32.const 0))";
    let abi_2 = ABI.replace("i32.const 1", "i32.const 2");
    let cases = [
        (vec![], "unexpected end"),
        (b"\0asm\x01\0\0\0\xff\xff\xff".to_vec(), ""),
        (b"#!/bin/sh\n".to_vec(), "magic"),
        (b"\0asm\x0d\0\x01\0".to_vec(), "component"),
        (compile(&format!("{memory} {rest} {INIT} {abi_2}")), "returns 2, expected 1"),
        (compile(&format!("{memory} {rest} {INIT}")), "inshore_abi"),
        (compile(&format!("{memory} {rest} {ABI}")), "inshore_init"),
        (
            compile(&format!(
                "{memory} {rest} {ABI} {INIT} (func (export \"inshore_state\") (result i32) (i32.const 0))"
            )),
            "it exports inshore_state; a module exports all of",
        ),
        (compile(&format!("{rest} {ABI} {INIT}")), "memory"),
        (
            compile(&format!(
                "{memory} {ABI} {INIT} (func (export \"inshore_alloc\") (param i32) (result i32) (i32.const 8))
                (func (export \"inshore_block\") (param i32 i32) (result i32) (i32.const 0))"
            )),
            "inshore_block",
        ),
        (
            compile(&format!(
                "(import \"env\" \"system\" (func (param i32))) {memory} {rest} {ABI} {INIT}"
            )),
            "env",
        ),
        (
            compile(&format!(
                "(import \"inshore\" \"emit\" (func (param i64))) {memory} {rest} {ABI} {INIT}"
            )),
            "emit",
        ),
        (
            compile(&format!(
                "(import \"wasi_snapshot_preview1\" \"proc_exit\" (func (param i32))) \
                {memory} {rest} {ABI} {INIT}"
            )),
            "wasi_snapshot_preview1",
        ),
        (compile(&format!("(memory (export \"memory\") i64 1) {rest} {ABI} {INIT}")), "memory64"),
    ];
    for (module, reason) in cases {
        match sandbox().check_wasm(&module, &limits()) {
            Err(Error::Module { reason: got }) => assert!(got.contains(reason), "expected '{reason}': {got}"),
            other => panic!("expected '{reason}': {other:?}"),
        }
    }
    sandbox().check_wasm(&line_count(), &limits()).unwrap();
}

#[test]
fn a_module_cut_off_anywhere_is_refused() {
    let module = line_count();
    for length in (0..module.len()).step_by(29) {
        let result = sandbox().check_wasm(&module[..length], &limits());
        assert!(matches!(result, Err(Error::Module { .. })), "{length}: {result:?}");
    }
}

#[test]
fn arguments_that_a_module_refuses_are_an_error() {
    let error = run(&search(), &[b'x'; 2000], &limits(), &[]).unwrap_err();
    assert!(error.to_string().contains("-22"), "{error}");
}

#[test]
fn a_module_is_refused_by_the_name_of_a_missing_protection() {
    let policy = Policy {
        wanted: Protections::ALL.without(Protection::Calls),
        required: Protections::NONE.with(Protection::Calls),
        ..Policy::default()
    };
    let sandbox = Sandbox { policy, ..sandbox() };
    match sandbox.start_wasm(&line_count(), b"", &limits()).map(drop) {
        Err(Error::Missing { protection: Protection::Calls, .. }) => {}
        other => panic!("{other:?}"),
    }
}

#[test]
fn the_example_of_the_documentation_works() {
    let text = include_str!("../../../docs/kernels-wasm.md");
    let example = text.split("```wat\n").nth(1).unwrap().split("```").next().unwrap();
    let module = wat::parse_str(example).unwrap();
    let (result, _) = run(&module, b"x", &limits(), &[&b"xyx".repeat(100_000), b"x"]).unwrap();
    assert_eq!(numbers(&result), [200_001]);
    assert!(run(&module, b"", &limits(), &[]).is_err());
}

#[test]
fn states_of_several_instances_merge_into_one_result() {
    let text = b"a\nbc\n\nd".repeat(50_000);
    let start = || sandbox().start_wasm(&line_count(), b"", &limits()).unwrap();
    let mut refuse = |_: &[u8]| Err(io::Error::other("nothing is expected here"));
    let (mut first, mut second) = (start(), start());
    assert_eq!(first.result(), WasmResult::State);
    for (number, block) in text.chunks(10_000).enumerate() {
        let run = if number % 3 == 0 { &mut first } else { &mut second };
        run.block(block, number as i64 * 10_000, &mut refuse).unwrap();
    }
    let mut state = Vec::new();
    second
        .state(&mut |bytes| {
            state.extend_from_slice(bytes);
            Ok(())
        })
        .unwrap();
    second.end().unwrap();
    first.merge(&state).unwrap();
    let mut result = Vec::new();
    first
        .finish(&mut |bytes| {
            result.extend_from_slice(bytes);
            Ok(())
        })
        .unwrap();
    assert_eq!(numbers(&result), [150_000]);
    let error = start().merge(b"garbage").unwrap_err().to_string();
    assert!(error.contains("inshore_merge") && error.contains("-7"), "{error}");
    assert_eq!(sandbox().check_wasm(&search(), &limits()).unwrap(), WasmResult::InOrder);
}

#[test]
fn emitting_where_it_is_forbidden_is_an_error() {
    let init = r#"(func (export "inshore_init") (param i32 i32) (result i32)
        (call $emit (i32.const 0) (i32.const 1)) (i32.const 0))"#;
    let block = r#"(func (export "inshore_block") (param i32 i32 i64) (result i32)
        (call $emit (i32.const 0) (i32.const 1)) (i32.const 0))"#;
    let error = failure(&compile(&format!("{COMMON} {ABI} {init} {block}")), &limits()).to_string();
    assert!(error.contains("inshore_init emits"), "{error}");
    let error = failure(&compile(&format!("{COMMON} {ABI} {INIT} {STATE} {block}")), &limits()).to_string();
    assert!(error.contains("inshore_block emits"), "{error}");
}

#[test]
fn blocks_stay_intact_as_they_grow() {
    // The module emits the length and the hash of each block.
    let module = on_block(
        "(i64.store (i32.const 0) (i64.extend_i32_u (local.get $len)))
        (i64.store (i32.const 8) (call $hash64 (local.get $at) (local.get $len) (i64.const 0)))
        (call $emit (i32.const 0) (i32.const 16))",
    );
    let text: Vec<u8> = (0..3_000_000u32).map(|n| (n.wrapping_mul(2_654_435_761) >> 13) as u8).collect();
    let lengths = [1, 65_536, 65_537, 3, 400_000, 200_000, 1_000_000, 7, 1_200_000];
    let mut blocks = Vec::new();
    let mut rest = &text[..];
    for length in lengths {
        let (block, more) = rest.split_at(length);
        blocks.push(block);
        rest = more;
    }
    let (result, _) = run(&module, b"", &limits(), &blocks).unwrap();
    let hash = |bytes: &[u8]| {
        let (result, _) = run(&module, b"", &limits(), &[bytes]).unwrap();
        numbers(&result)[1]
    };
    let expected: Vec<u64> = blocks.iter().flat_map(|block| [block.len() as u64, hash(block)]).collect();
    assert_eq!(numbers(&result), expected);
}

#[test]
fn the_host_decompresses_for_a_module() {
    // The module decompresses to 16 MiB, and emits the length and the bytes.
    let module = on_block(
        "(local $got i64)
        (drop (memory.grow (i32.sub (i32.const 300) (memory.size))))
        (local.set $got (call $decompress (local.get $at) (local.get $len) (i32.const 0x1000000) (i32.const 100)))
        (i64.store (i32.const 0) (local.get $got))
        (call $emit (i32.const 0) (i32.const 8))
        (if (i64.gt_s (local.get $got) (i64.const 0))
            (then (call $emit (i32.const 0x1000000) (i32.wrap_i64 (local.get $got)))))",
    );
    let text = b"to be or not to be, to be or not to be";
    let packed = zstd::bulk::compress(text, 3).unwrap();
    let (result, _) = run(&module, b"", &limits(), &[&packed]).unwrap();
    assert_eq!((numbers(&result[..8]), &result[8..]), (vec![text.len() as u64], &text[..]));
    let long = zstd::bulk::compress(&text.repeat(3), 3).unwrap();
    for (bytes, code) in [(&b"neither"[..], -1i64), (&long, -2), (&packed[..9], -1)] {
        assert_eq!(numbers(&run(&module, b"", &limits(), &[bytes]).unwrap().0), [code as u64]);
    }
    let attack =
        "(drop (call $decompress (local.get $at) (local.get $len) (local.get $at) (local.get $len)))";
    let error = failure(&on_block(attack), &limits()).to_string();
    assert!(error.contains("decompress"), "{error}");
}

#[test]
fn the_host_refuses_bytes_of_another_block() {
    let attack = "(call $emit (i32.add (local.get $at) (i32.const 65536)) (i32.const 8))";
    let error = failure(&on_block(attack), &limits()).to_string();
    assert!(error.contains("another block"), "{error}");
}

/// Returns a flag that cancels a run, and the function by which the run reads the flag.
fn wish() -> (Arc<AtomicBool>, Box<dyn Fn() -> bool + Send>) {
    let wish = Arc::new(AtomicBool::new(false));
    let asked = wish.clone();
    (wish, Box::new(move || asked.load(Ordering::Relaxed)))
}

/// Sets the flag after 300 ms, when the caller probably waits already.
fn wish_soon(wish: Arc<AtomicBool>) {
    thread::spawn(move || {
        thread::sleep(Duration::from_millis(300));
        wish.store(true, Ordering::Relaxed);
    });
}

#[test]
fn a_cancelled_run_ends_at_once() {
    let (wish, unwanted) = wish();
    let spins = on_block("(loop $for_ever (br $for_ever))");
    let mut run = sandbox().start_wasm_while_wanted(&spins, b"", &limits(), unwanted).unwrap();
    run.block(b"x", 0, &mut |_| Ok(())).unwrap();
    let began = Instant::now();
    wish_soon(wish);
    let error = run.settle(&mut |_| Ok(())).unwrap_err();
    assert!(matches!(error, Error::Ended(Termination::Cancelled)), "{error}");
    assert!(began.elapsed() < PATIENCE);
}

/// Makes a module that emits blocks unchanged.
fn echo() -> Vec<u8> {
    on_block("(call $emit (local.get $at) (local.get $len))")
}

/// Makes a file of this text, and describes the file's blocks.
fn file_of(text: &[u8], stride: u64) -> (File, FileBlocks) {
    let mut file = tempfile::tempfile().unwrap();
    file.write_all(text).unwrap();
    let (file_bytes, count) = (text.len() as u64, (text.len() as u64).div_ceil(stride));
    (file, FileBlocks { stride, count, file_bytes, enough_bytes: u64::MAX, ..FileBlocks::default() })
}

/// Returns the blocks after the first `done` blocks.
fn from(blocks: &FileBlocks, done: u64) -> FileBlocks {
    FileBlocks { start: blocks.start + done * blocks.stride, count: blocks.count - done, ..*blocks }
}

/// Returns the result of all blocks of a file, and the number of blocks that the module's process did not read.
/// The test sends those blocks.
fn read(run: &mut WasmRun, text: &[u8], (file, blocks): &(File, FileBlocks)) -> (Vec<u8>, u64) {
    let (mut result, mut done, mut left) = (Vec::new(), 0, 0);
    while done < blocks.count {
        let asked = from(blocks, done);
        let begun = asked.start;
        let take = &mut |part: BlockPart<'_>| {
            let start = begun + part.block * asked.stride;
            assert!(part.offset as u64 >= start + asked.base && part.end <= asked.file_bytes);
            result.extend_from_slice(part.bytes);
            Ok(())
        };
        let got = run.file_blocks(file.as_fd(), &asked, take).unwrap();
        done += got;
        if got == 0 {
            let behind = |at: u64| match text[at as usize..].iter().position(|byte| *byte == b'\n') {
                _ if at == 0 => 0,
                Some(end) => at as usize + end + 1,
                None => text.len(),
            };
            let end = (begun + blocks.stride).min(text.len() as u64);
            let mut take = |bytes: &[u8]| {
                result.extend_from_slice(bytes);
                Ok(())
            };
            run.block(&text[behind(begun)..behind(end)], behind(begun) as i64, &mut take).unwrap();
            run.settle(&mut take).unwrap();
            (done, left) = (done + 1, left + 1);
        }
    }
    (result, left)
}

#[test]
fn a_file_read_by_the_modules_process_arrives_intact() {
    let mut seed = 5u64;
    let mut line = |longest: u64| {
        seed = seed.wrapping_mul(6_364_136_223_846_793_005).wrapping_add(1_442_695_040_888_963_407);
        let length = (seed >> 33) % longest;
        let mut line: Vec<u8> = (0..length).map(|at| b'a' + ((seed >> 20) + at) as u8 % 26).collect();
        line.push(b'\n');
        line
    };
    let mut text = |bytes: usize, longest: u64| {
        let mut text = Vec::new();
        while text.len() < bytes {
            text.extend(line(longest));
        }
        text.truncate(bytes);
        text
    };
    let mut run = sandbox().start_wasm(&echo(), b"", &limits()).unwrap();
    for (bytes, longest, stride, leaves) in [
        (0, 10, 4096, false),
        (1, 10, 4096, false),
        (400_000, 60, 4096, false),
        (400_000, 60, 999, false),
        (3_000_000, 20_000, 65_536, false),
        (3_000_000, 60, 524_288, false),
        (5_000_000, 400_000, 65_536, true),
        (500_000, 10_000_000, 4096, true),
    ] {
        let text = text(bytes, longest);
        let file = file_of(&text, stride);
        let (result, left) = read(&mut run, &text, &file);
        assert!(result == text, "{bytes} bytes of lines up to {longest} in blocks of {stride}");
        assert_eq!(left > 0, leaves, "{left} of {} blocks left", file.1.count);
        let stops = FileBlocks { enough_bytes: 1, ..file.1 };
        let (result, _) = read(&mut run, &text, &(file.0, stops));
        assert!(result == text, "{bytes} bytes, one block with a result after the other");
    }
    run.end().unwrap();
}

#[test]
fn reading_stops_at_a_shortened_file_and_at_enough_output() {
    let text = b"a line of a text\n".repeat(10_000);
    let (file, blocks) = file_of(&text, 4096);
    let mut run = sandbox().start_wasm(&echo(), b"", &limits()).unwrap();
    let mut result = Vec::new();
    let mut take = |part: BlockPart<'_>| {
        result.extend_from_slice(part.bytes);
        Ok(())
    };
    let asked = FileBlocks { enough_bytes: 20_000, ..blocks };
    assert_eq!(run.file_blocks(file.as_fd(), &asked, &mut take).unwrap(), 5);
    file.set_len(10 * 4096 + 77).unwrap();
    // The file now ends 77 bytes after block 9. The process cannot read block 9, since it also reads 4 KiB after a
    // block.
    assert_eq!(run.file_blocks(file.as_fd(), &from(&blocks, 5), &mut take).unwrap(), 4);
    assert_eq!(run.file_blocks(file.as_fd(), &from(&blocks, 9), &mut take).unwrap(), 0);
    assert!(text.starts_with(&result) && result.len() > 9 * 4096, "{}", result.len());
    let no_reading = File::options().write(true).open("/dev/null").unwrap();
    assert_eq!(run.file_blocks(no_reading.as_fd(), &blocks, &mut |_| Ok(())).unwrap(), 0);
    run.end().unwrap();
}

#[test]
fn offsets_count_from_the_whole_source_and_errors_name_the_block() {
    let module = on_block(
        "(call $emit (local.get $at) (i32.const 1))
        (if (i64.gt_u (local.get $offset) (i64.const 1040000)) (then (unreachable)))",
    );
    let text = b"a line of a text\n".repeat(10_000);
    let (file, blocks) = file_of(&text, 4096);
    let blocks = FileBlocks { base: 1_000_000, ..blocks };
    let mut run = sandbox().start_wasm(&module, b"", &limits()).unwrap();
    let mut offsets = Vec::new();
    let error = run.file_blocks(file.as_fd(), &blocks, &mut |part| {
        offsets.extend(part.is_last.then_some(part.offset));
        Ok(())
    });
    // The first line of a block is the first line that begins after the block's start.
    let offset = |block: i64| if block == 0 { 1_000_000 } else { 1_000_000 + (block * 4096 / 17 + 1) * 17 };
    // The results of the blocks before the failing block arrive.
    assert_eq!(offsets, (0..10).map(offset).collect::<Vec<_>>());
    let error = error.unwrap_err().to_string();
    assert!(error.contains("unreachable") && error.contains(&format!("block at {}", offset(10))), "{error}");
}

#[test]
fn a_module_that_spins_on_a_file_block_is_killed() {
    let spins = on_block(
        "(if (i64.gt_u (local.get $offset) (i64.const 20000)) (then (loop $for_ever (br $for_ever))))",
    );
    let (file, blocks) = file_of(&b"a line of a text\n".repeat(10_000), 4096);
    let limits = WasmLimits { call: Duration::from_millis(500), ..limits() };
    let mut run = sandbox().start_wasm(&spins, b"", &limits).unwrap();
    let began = Instant::now();
    let error = run.file_blocks(file.as_fd(), &blocks, &mut |_| Ok(())).unwrap_err();
    assert!(matches!(error, Error::Ended(Termination::Deadline)), "{error}");
    assert!(began.elapsed() < PATIENCE, "{:?}", began.elapsed());
    let (wish, unwanted) = wish();
    let mut run = sandbox().start_wasm_while_wanted(&spins, b"", &WasmLimits::default(), unwanted).unwrap();
    wish_soon(wish);
    let error = run.file_blocks(file.as_fd(), &blocks, &mut |_| Ok(())).unwrap_err();
    assert!(matches!(error, Error::Ended(Termination::Cancelled)), "{error}");
}

#[test]
fn a_slow_module_reports_progress() {
    // Each block takes 20 ms or more.
    let slow = on_block(
        "(local $i i32)
        (loop $more
            (local.set $i (i32.add (local.get $i) (i32.const 1)))
            (i32.store (i32.const 0) (local.get $i))
            (br_if $more (i32.lt_u (local.get $i) (i32.const 50000000))))",
    );
    let (file, blocks) = file_of(&b"a line of a text\n".repeat(100_000), 4096);
    // All blocks together take far longer than the limit for a block.
    let limits = WasmLimits { call: Duration::from_secs(3), ..limits() };
    let mut run = sandbox().start_wasm(&slow, b"", &limits).unwrap();
    let mut done = 0;
    for _ in 0..3 {
        let got = run.file_blocks(file.as_fd(), &from(&blocks, done), &mut |_| Ok(())).unwrap();
        assert!((1..20).contains(&got), "{got}");
        done += got;
    }
}

#[test]
fn endless_results_of_a_file_end_by_an_error_of_the_consumer() {
    let endless = on_block("(loop $more (call $emit (i32.const 0) (i32.const 60000)) (br $more))");
    let (file, blocks) = file_of(&b"a line of a text\n".repeat(10_000), 4096);
    let mut run = sandbox().start_wasm(&endless, b"", &limits()).unwrap();
    let mut room = 1_000_000;
    let error = run.file_blocks(file.as_fd(), &blocks, &mut |part| {
        assert!(part.block == 0 && !part.is_last);
        room -= part.bytes.len() as i64;
        if room > 0 { Ok(()) } else { Err(io::Error::other("full")) }
    });
    assert!(matches!(error, Err(Error::Output(_))), "{error:?}");
}
