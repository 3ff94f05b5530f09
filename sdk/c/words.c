/* This kernel counts words (the pieces between white space), and returns each word with its count, in the order of bytes. */
#include "inshore.h"

struct slot {
    uint64_t hash, count;
    const uint8_t *word;
    size_t length;
};

/* The hash table has open addressing; at most three quarters of the slots are used. */
static struct slot *slots;
static size_t slot_count, used;

static uint64_t hash_of(const uint8_t *word, size_t length) {
    uint64_t hash = length;
    for (size_t i = 0; i < length; i++)
        hash = (hash << 5 ^ hash >> 59 ^ word[i]) * 0x9e3779b97f4a7c15u;
    return hash ^ hash >> 32;
}

static int compare(const struct slot *a, const struct slot *b) {
    size_t least = a->length < b->length ? a->length : b->length;
    for (size_t i = 0; i < least; i++)
        if (a->word[i] != b->word[i])
            return a->word[i] < b->word[i] ? -1 : 1;
    return a->length < b->length ? -1 : a->length > b->length;
}

static int is_same(const struct slot *slot, const uint8_t *word, size_t length) {
    if (slot->length != length)
        return 0;
    for (size_t i = 0; i < length; i++)
        if (slot->word[i] != word[i])
            return 0;
    return 1;
}

static int32_t grow(void) {
    size_t count = slot_count ? 2 * slot_count : 4096;
    struct slot *more = inshore_take(count * sizeof *more);
    if (!more)
        return -12;
    for (size_t i = 0; i < count; i++)
        more[i].count = 0;
    for (size_t i = 0; i < slot_count; i++)
        if (slots[i].count) {
            size_t place = slots[i].hash & (count - 1);
            while (more[place].count)
                place = (place + 1) & (count - 1);
            more[place] = slots[i];
        }
    slots = more, slot_count = count;
    return 0;
}

static int32_t add(const uint8_t *word, size_t length, uint64_t count) {
    if (used * 4 >= slot_count * 3 && grow() < 0)
        return -12;
    uint64_t hash = hash_of(word, length);
    for (size_t place = hash & (slot_count - 1);; place = (place + 1) & (slot_count - 1)) {
        struct slot *slot = &slots[place];
        if (slot->count == 0) {
            uint8_t *copy = inshore_take(length);
            if (!copy)
                return -12;
            for (size_t i = 0; i < length; i++)
                copy[i] = word[i];
            *slot = (struct slot){hash, count, copy, length};
            used++;
            return 0;
        }
        if (slot->hash == hash && is_same(slot, word, length)) {
            slot->count += count;
            return 0;
        }
    }
}

static int is_space(uint8_t byte) {
    return byte == ' ' || (byte >= 9 && byte <= 13);
}

int32_t inshore_init(const uint8_t *arguments, size_t length) {
    (void)arguments, (void)length;
    return grow();
}

int32_t inshore_block(const uint8_t *block, size_t length, uint64_t offset) {
    (void)offset;
    for (size_t at = 0; at < length;) {
        if (is_space(block[at])) {
            at++;
            continue;
        }
        size_t start = at;
        while (at < length && !is_space(block[at]))
            at++;
        if (add(block + start, at - start, 1) < 0)
            return -12;
    }
    return 0;
}

/* Emits for each word the count and the length, as 8 and 4 bytes, and the word. */
INSHORE_EXPORT(inshore_state) int32_t inshore_state(void) {
    for (size_t i = 0; i < slot_count; i++)
        if (slots[i].count) {
            uint32_t length = (uint32_t)slots[i].length;
            inshore_emit(&slots[i].count, 8);
            inshore_emit(&length, 4);
            inshore_emit(slots[i].word, length);
        }
    return 0;
}

INSHORE_EXPORT(inshore_merge) int32_t inshore_merge(const uint8_t *state, size_t length) {
    while (length > 0) {
        if (length < 12)
            return -1;
        uint64_t count = 0;
        uint32_t word = 0;
        for (int i = 7; i >= 0; i--)
            count = count << 8 | state[i];
        for (int i = 11; i >= 8; i--)
            word = word << 8 | state[i];
        state += 12, length -= 12;
        if (word > length || add(state, word, count) < 0)
            return -1;
        state += word, length -= word;
    }
    return 0;
}

/* Moves a slot down to its place in a heap. */
static void sink(size_t from, size_t count) {
    struct slot slot = slots[from];
    for (;;) {
        size_t child = 2 * from + 1;
        if (child >= count)
            break;
        if (child + 1 < count && compare(&slots[child], &slots[child + 1]) < 0)
            child++;
        if (compare(&slot, &slots[child]) >= 0)
            break;
        slots[from] = slots[child], from = child;
    }
    slots[from] = slot;
}

INSHORE_EXPORT(inshore_finish) int32_t inshore_finish(void) {
    size_t count = 0;
    for (size_t i = 0; i < slot_count; i++)
        if (slots[i].count)
            slots[count++] = slots[i];
    for (size_t i = count / 2; i-- > 0;)
        sink(i, count);
    for (size_t left = count; left > 1;) {
        struct slot greatest = slots[0];
        slots[0] = slots[--left], slots[left] = greatest;
        sink(0, left);
    }
    for (size_t i = 0; i < count; i++) {
        char text[24];
        size_t at = sizeof text;
        uint64_t number = slots[i].count;
        text[--at] = '\n';
        do
            text[--at] = (char)('0' + number % 10);
        while ((number /= 10) > 0);
        text[--at] = '\t';
        inshore_emit(slots[i].word, slots[i].length);
        inshore_emit(text + at, sizeof text - at);
    }
    return 0;
}
