/* This header is the SDK for WebAssembly kernels of Inshore in C; there is no library.
 *
 *   clang --target=wasm32 -O2 -nostdlib -fno-builtin -msimd128 -mbulk-memory -Wl,--no-entry -o kernel.wasm kernel.c
 *
 * A kernel defines inshore_init and inshore_block, each marked INSHORE_EXPORT. The bytes that inshore_block emits come out in
 * the order of the file. Lines may come in blocks of any size and go to any number of instances, so the kernel handles each line
 * independently. Or the kernel adds up blocks in variables; then the kernel also defines inshore_state, inshore_merge and
 * inshore_finish, and inshore_block emits nothing. An error is a negative number, which ends the run; the message names the number.
 */
#ifndef INSHORE_H
#define INSHORE_H

#include <stdint.h>
#include <stddef.h>

#define INSHORE_IMPORT(name) __attribute__((import_module("inshore"), import_name(#name)))
#define INSHORE_EXPORT(name) __attribute__((export_name(#name)))

/* Writes the next bytes of the result. */
INSHORE_IMPORT(emit) void inshore_emit(const void *at, size_t length);
/* Finds the first needle in the hay, at the speed of native code; -1 if there is none. */
INSHORE_IMPORT(memmem) int64_t inshore_memmem(const void *hay, size_t hay_length, const void *needle, size_t needle_length);
/* Returns the XXH64 hash, at the speed of native code. Hash short words in the kernel: the call costs more than the hash. */
INSHORE_IMPORT(hash64) uint64_t inshore_hash64(const void *at, size_t length, uint64_t seed);
/* Decompresses frames of zstd or members of gzip, and returns the number of decompressed bytes; -1 if the input is neither,
 * damaged or cut; -2 if the output does not fit. */
INSHORE_IMPORT(decompress) int64_t inshore_decompress(const void *from, size_t from_length, void *to, size_t to_length);
/* Writes a message to the log of the run, of which the last 8 KiB are kept. */
INSHORE_IMPORT(log) void inshore_log(const void *at, size_t length);

/* Receives the user's arguments, once, before all blocks. */
INSHORE_EXPORT(inshore_init) int32_t inshore_init(const uint8_t *arguments, size_t length);
/* Processes a block of whole lines; only the last line of a file may lack its end. The offset is that of the block in the file. */
INSHORE_EXPORT(inshore_block) int32_t inshore_block(const uint8_t *block, size_t length, uint64_t offset);

/* Kernels that add up blocks define all three. The result must not depend on the order of merges. */

/* Emits the state of this instance, for another instance. The host calls nothing on this instance afterwards. */
int32_t inshore_state(void);
/* Adds the state that another instance emitted in inshore_state. */
int32_t inshore_merge(const uint8_t *state, size_t length);
/* Emits the result, once, after all states were merged. */
int32_t inshore_finish(void);

INSHORE_EXPORT(inshore_abi) int32_t inshore_abi(void) {
    return 1;
}

/* Marks the end of the module's data, where inshore_take begins to hand out memory that is never freed. */
extern unsigned char __heap_base;

static inline void *inshore_take(size_t length) {
    static uintptr_t next = 0;
    if (next == 0)
        next = (uintptr_t)&__heap_base;
    uintptr_t at = (next + 15) & ~(uintptr_t)15;
    if (at < next || length > (uintptr_t)-1 - at)
        return 0;
    uintptr_t end = at + length;
    uintptr_t pages = (end >> 16) + ((end & 0xffff) != 0);
    uintptr_t there = __builtin_wasm_memory_size(0);
    if (pages > there && __builtin_wasm_memory_grow(0, pages - there) == (size_t)-1)
        return 0;
    next = end;
    return (void *)at;
}

/* Returns a buffer for blocks. The host calls this again if blocks become larger. */
INSHORE_EXPORT(inshore_alloc) void *inshore_alloc(size_t length) {
    return inshore_take(length);
}

#endif
