/* This kernel returns the lines that contain the argument, in order. A missing argument is an error. */
#include "inshore.h"

static uint8_t *needle;
static size_t needle_length;

int32_t inshore_init(const uint8_t *arguments, size_t length) {
    if (length == 0)
        return -22;
    needle = inshore_take(length);
    if (!needle)
        return -12;
    for (size_t i = 0; i < length; i++)
        needle[i] = arguments[i];
    needle_length = length;
    return 0;
}

int32_t inshore_block(const uint8_t *block, size_t length, uint64_t offset) {
    (void)offset;
    int64_t found;
    while ((found = inshore_memmem(block, length, needle, needle_length)) >= 0) {
        size_t start = (size_t)found, end = (size_t)found;
        while (start > 0 && block[start - 1] != '\n')
            start--;
        while (end < length && block[end] != '\n')
            end++;
        if (end < length)
            inshore_emit(block + start, ++end - start);
        else {
            /* The last line of a file may lack its end. */
            inshore_emit(block + start, end - start);
            inshore_emit("\n", 1);
        }
        block += end, length -= end;
    }
    return 0;
}
