/* Checks of the columns that Python gives. */
#pragma once
#include <stdint.h>

/* Whether all of `count` numbers are at least `least` and below `most`. */
static int within(const int64_t *numbers, int64_t count, int64_t least, int64_t most) {
    for (int64_t i = 0; i < count; i++)
        if (numbers[i] < least || numbers[i] >= most) return 0;
    return 1;
}

/* Whether `count` + 1 offsets rise from 0 to `last`. */
static int are_offsets(const int64_t *offsets, int64_t count, int64_t last) {
    if (offsets[0] || offsets[count] != last) return 0;
    for (int64_t i = 0; i < count; i++)
        if (offsets[i] > offsets[i + 1]) return 0;
    return 1;
}
