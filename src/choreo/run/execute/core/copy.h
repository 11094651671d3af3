/* Copying bytes: within the caches, and to memory past the caches. */
#include <math.h>
#include <stddef.h>
#include <stdint.h>
#include <string.h>

/* Compiled twice, and chosen by what the processor can do, where the C library supports that. Sanitizers start too late for
 * it. No fused multiply-add, because it rounds differently. */
#if defined(__x86_64__) && defined(__GLIBC__) && defined(__GNUC__) && !defined(__clang__) && \
    !defined(__SANITIZE_THREAD__) && !defined(__SANITIZE_ADDRESS__)
#define WIDE __attribute__((target_clones("avx2", "default")))
#else
#define WIDE
#endif

typedef int8_t i8;
typedef uint8_t u8;
typedef int16_t i16 __attribute__((aligned(1), may_alias));
typedef int32_t i32 __attribute__((aligned(1), may_alias));
typedef int64_t i64 __attribute__((aligned(1), may_alias));
typedef uint16_t u16 __attribute__((aligned(1), may_alias));
typedef uint32_t u32 __attribute__((aligned(1), may_alias));
typedef uint64_t u64 __attribute__((aligned(1), may_alias));
typedef float f32 __attribute__((aligned(1), may_alias));
typedef double f64 __attribute__((aligned(1), may_alias));

/* A plain loop, because some C libraries' memcpy is fifty times slower at some distances between the two. Stores are aligned to
 * cache lines: NumPy's arrays are 16 bytes off, and would need twice as many. */
WIDE static void copy_bytes(char *to, const char *from, size_t length) {
    typedef long long wide __attribute__((vector_size(32), aligned(1), may_alias));
    size_t at = 0;
    if (to == from || !length) return;
    if (length >= (size_t)4 << 20 || length < 256) { memcpy(to, from, length); return; }
    size_t head = -(uintptr_t)to & 63;
    memcpy(to, from, 64);
    to += head, from += head, length -= head;
#pragma GCC ivdep
    for (; at + 128 <= length; at += 128) {
        wide a = *(const wide *)(from + at), b = *(const wide *)(from + at + 32);
        wide c = *(const wide *)(from + at + 64), d = *(const wide *)(from + at + 96);
        *(wide *)(to + at) = a; *(wide *)(to + at + 32) = b;
        *(wide *)(to + at + 64) = c; *(wide *)(to + at + 96) = d;
    }
    memcpy(to + at, from + at, length - at);
}

/* To memory past the caches, so that what is overwritten is not read first. A source that is in memory too (`scattered`) is
 * read from four pages at once. A line must be written by few stores in a row: partial lines are ten times as slow. */
#if defined(__x86_64__) && defined(__GNUC__) && !defined(__SANITIZE_THREAD__) && !defined(__SANITIZE_ADDRESS__)
#include <immintrin.h>
#define STREAM(name, isa, LINE)                                                                                 \
    __attribute__((target(isa))) static void name(char *to, const char *from, size_t length, int scattered) {   \
        size_t at = 0, page = 4096;                                                                             \
        for (; scattered && at + 4 * page <= length; at += 4 * page)                                            \
            for (size_t line = at; line < at + page; line += 64)                                                \
                for (size_t offset = line; offset < line + 4 * page; offset += page) {                             \
                    __builtin_prefetch(from + offset + 4 * page);                                                \
                    LINE;                                                                                       \
                }                                                                                               \
        for (size_t offset = at; offset + 64 <= length; offset += 64) LINE;                                        \
        _mm_sfence();                                                                                           \
    }
#define LINE_IN_TWO                                                                                     \
    __m256i a = _mm256_loadu_si256((const __m256i *)(from + offset));                                    \
    __m256i b = _mm256_loadu_si256((const __m256i *)(from + offset + 32));                               \
    _mm256_stream_si256((__m256i *)(to + offset), a), _mm256_stream_si256((__m256i *)(to + offset + 32), b)
STREAM(stream_in_two, "avx2", { LINE_IN_TWO; })
STREAM(stream_whole, "avx512f", { _mm512_stream_si512((void *)(to + offset), _mm512_loadu_si512(from + offset)); })

static void stream_bytes(char *to, const char *from, size_t length, int scattered) {
    size_t head = -(uintptr_t)to & 63, whole = length < 256 ? 0 : (length - head) / 64 * 64;
    if (whole && __builtin_cpu_supports("avx512f")) stream_whole(to + head, from + head, whole, scattered);
    else if (whole && __builtin_cpu_supports("avx2")) stream_in_two(to + head, from + head, whole, scattered);
    else whole = head = 0;
    copy_bytes(to, from, head);
    copy_bytes(to + head + whole, from + head + whole, length - head - whole);
}
#else
static void stream_bytes(char *to, const char *from, size_t length, int scattered) {
    (void)scattered;
    copy_bytes(to, from, length);
}
#endif

/* To where another core has read before. A plain store must first take the line away from that core's cache, which is ten times
 * as slow as to write it past the caches. */
#define PAST_CACHES 2048
static void share_bytes(char *to, const char *from, size_t length) {
    if (length < PAST_CACHES) copy_bytes(to, from, length);
    else stream_bytes(to, from, length, 0);
}
