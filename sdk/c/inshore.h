/* What a WebAssembly kernel of Inshore in C is made with: one header, no library.
 *
 *   clang --target=wasm32 -O2 -nostdlib -fno-builtin -msimd128 -mbulk-memory -Wl,--no-entry -o kernel.wasm kernel.c
 *
 * A kernel defines inshore_init and inshore_block, each marked INSHORE_EXPORT. What inshore_block emits comes out in the order
 * of the file, whose lines may come in blocks of any size and go to any number of instances: each line is to be worked on by
 * itself. Or blocks are added up in variables; then inshore_state, inshore_merge and inshore_finish are defined too, and
 * inshore_block emits nothing. An error is a negative number, which ends the run and is told.
 */
#ifndef INSHORE_H
#define INSHORE_H

#include <stdint.h>
#include <stddef.h>

#define INSHORE_IMPORT(name) __attribute__((import_module("inshore"), import_name(#name)))
#define INSHORE_EXPORT(name) __attribute__((export_name(#name)))

/* The next bytes of the result. */
INSHORE_IMPORT(emit) void inshore_emit(const void *at, size_t length);
/* Where the needle is first found in the hay, or -1: at the speed of the host. */
INSHORE_IMPORT(memmem) int64_t inshore_memmem(const void *hay, size_t hay_length, const void *needle, size_t needle_length);
/* XXH64, at the speed of the host. Hash short words in the kernel: a call costs more than that. */
INSHORE_IMPORT(hash64) uint64_t inshore_hash64(const void *at, size_t length, uint64_t seed);
/* Unpacks frames of zstd or members of gzip, and gives how many bytes came of it; -1: neither, damaged or cut; -2: more than
 * there is room. */
INSHORE_IMPORT(decompress) int64_t inshore_decompress(const void *from, size_t from_length, void *to, size_t to_length);
/* Text for whoever runs the kernel: the last 8 KiB are kept. */
INSHORE_IMPORT(log) void inshore_log(const void *at, size_t length);

/* With the arguments that the user gave; once, before all blocks. */
INSHORE_EXPORT(inshore_init) int32_t inshore_init(const uint8_t *arguments, size_t length);
/* A block: whole lines, of which the last of a file may lack its end, and where in the file it begins. */
INSHORE_EXPORT(inshore_block) int32_t inshore_block(const uint8_t *block, size_t length, uint64_t offset);

/* For kernels whose blocks add up, all three. The result may not depend on the order of merges. */

/* Emits all that was counted, for another instance; the last that is asked of this one. */
int32_t inshore_state(void);
/* Adds what another instance has emitted in inshore_state. */
int32_t inshore_merge(const uint8_t *state, size_t length);
/* Emits the result, once, after everything was added. */
int32_t inshore_finish(void);

INSHORE_EXPORT(inshore_abi) int32_t inshore_abi(void) {
    return 1;
}

/* Memory that is never given back: from the end of the module's data on. */
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

/* Where the host puts blocks. It asks anew where they become larger. */
INSHORE_EXPORT(inshore_alloc) void *inshore_alloc(size_t length) {
    return inshore_take(length);
}

#endif
