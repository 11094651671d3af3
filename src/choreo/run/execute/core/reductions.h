/* Element-wise reductions: one kernel for each element type and operation, in the order of `dtypes.py`.
 *
 * A kernel computes to[i] = ((left[i] op right[0][i]) op right[1][i]) and so on. `to` and `left` may be the same array but
 * never overlap otherwise. Arrays may start at any address. Results have the same bits as NumPy's and as the Python executor's.
 */
enum { SUM, PRODUCT, MINIMUM, MAXIMUM, BIT_AND, BIT_OR, BIT_XOR, OPERATIONS };
enum { I8, I16, I32, I64, U8, U16, U32, U64, F32, F64, F16, BF16, C64, C128, BOOL, TYPES };

typedef void (*Kernel)(void *to, const void *left, const void *const *right, size_t sources, size_t count);

/* Several sources take turns, so that each is read once, and what has been summed stays in the nearest cache. */
#define TURN_BYTES 256
#define MAX_FUSED 64 /* sources at most */

/* The elements before the first whole cache line. */
static inline size_t before_line(const void *to, size_t item, size_t count) {
    size_t head = (-(uintptr_t)to & 63) / item;
    return count < 256 ? 0 : head;
}

/* A kernel from a loop over two arrays: what stands before the first cache line, then turns, then the rest. */
#define IN_TURNS(attributes, name, type, loop)                                                               \
    attributes static void name(void *to, const void *left, const void *const *right, size_t sources, size_t count) { \
        type *out = to;                                                                                      \
        const type *x = left;                                                                                \
        size_t turn = TURN_BYTES / sizeof(type), head = before_line(to, sizeof(type), count), part;          \
        for (size_t at = 0; at < count; at += part) {                                                        \
            size_t rest = count - at;                                                                        \
            part = at < head ? head : sources == 1 || rest < turn ? rest : turn;                             \
            for (size_t i = 0; i < sources; i++) {                                                           \
                const type *base = i ? out + at : x + at, *y = (const type *)right[i] + at;                  \
                if (part == turn) loop(out + at, base, y, turn);                                             \
                else loop(out + at, base, y, part);                                                          \
            }                                                                                                \
        }                                                                                                    \
    }
#define LOOP(name, type, expression)                                                                         \
    static inline __attribute__((always_inline)) void name(type *out, const type *x, const type *y, size_t count) { \
        _Pragma("GCC ivdep") for (size_t i = 0; i < count; i++) {                                            \
            type a = x[i], b = y[i];                                                                         \
            out[i] = (type)(expression);                                                                     \
        }                                                                                                    \
    }
#define KERNEL(name, type, expression)    \
    LOOP(name##_loop, type, expression)   \
    IN_TURNS(WIDE, name, type, name##_loop)
#define BITWISE(suffix, type)         \
    KERNEL(and_##suffix, type, a & b) \
    KERNEL(or_##suffix, type, a | b)  \
    KERNEL(xor_##suffix, type, a ^ b)
#define ORDERED(suffix, type)                     \
    KERNEL(minimum_##suffix, type, b < a ? b : a) \
    KERNEL(maximum_##suffix, type, b > a ? b : a)

/* Signed sums and products wrap as NumPy's do: the unsigned ones have the same bits. */
KERNEL(sum_u8, u8, a + b) KERNEL(sum_u16, u16, a + b) KERNEL(sum_u32, u32, a + b) KERNEL(sum_u64, u64, a + b)
KERNEL(product_u8, u8, a *b) KERNEL(product_u16, u16, (uint32_t)a *b) /* as int, two uint16 would overflow */
KERNEL(product_u32, u32, a *b) KERNEL(product_u64, u64, a *b)
BITWISE(u8, u8) BITWISE(u16, u16) BITWISE(u32, u32) BITWISE(u64, u64)
ORDERED(u8, u8) ORDERED(u16, u16) ORDERED(u32, u32) ORDERED(u64, u64)
ORDERED(i8, i8) ORDERED(i16, i16) ORDERED(i32, i32) ORDERED(i64, i64)
KERNEL(or_bool, u8, (a | b) != 0) KERNEL(and_bool, u8, (a != 0) & (b != 0)) KERNEL(xor_bool, u8, (a != 0) != (b != 0))

/* A NaN on either side gives NaN, as in NumPy's minimum. Of equals (0 and -0) the left one is kept. */
#define REAL(suffix, type)                                                                 \
    KERNEL(sum_##suffix, type, a + b)                                                      \
    KERNEL(product_##suffix, type, a *b)                                                   \
    KERNEL(minimum_##suffix, type, a != a ? a : (b < a || b != b) ? b : a)                 \
    KERNEL(maximum_##suffix, type, a != a ? a : (b > a || b != b) ? b : a)
REAL(f32, f32) REAL(f64, f64)

static inline float from_bits(uint32_t bits) {
    float value;
    memcpy(&value, &bits, 4);
    return value;
}

static inline uint32_t to_bits(float value) {
    uint32_t bits;
    memcpy(&bits, &value, 4);
    return bits;
}

static inline float from_half(uint16_t half) {
    uint32_t sign = (uint32_t)(half & 0x8000) << 16, rest = half & 0x7FFF;
    if (rest >= 0x7C00) return from_bits(sign | 0x7F800000 | (rest & 0x3FF) << 13);
    if (rest >= 0x400) return from_bits(sign | ((rest << 13) + 0x38000000));
    return from_bits(sign | to_bits((float)rest * 0x1p-24f));
}

static inline uint16_t to_half(float value) {
    uint32_t bits = to_bits(value);
    uint16_t sign = (uint16_t)(bits >> 16 & 0x8000);
    bits &= 0x7FFFFFFF;
    if (bits > 0x7F800000) return (uint16_t)(sign | 0x7E00 | (bits >> 13 & 0x1FF));
    if (bits >= 0x477FF000) return sign | 0x7C00;
    if (bits < 0x38800000) /* subnormal: let the addition round */
        return (uint16_t)(sign | (to_bits(fabsf(value) + 0.5f) - 0x3F000000));
    bits += 0xFFF + (bits >> 13 & 1);
    return (uint16_t)(sign | ((bits >> 13) - 0x1C000));
}

static inline float from_brain(uint16_t half) { return from_bits((uint32_t)half << 16); }

static inline uint16_t to_brain(float value) {
    uint32_t bits = to_bits(value), rounded = (bits + 0x7FFF + (bits >> 16 & 1)) >> 16, quiet = bits >> 16 | 0x40;
    return (uint16_t)((bits & 0x7FFFFFFF) > 0x7F800000 ? quiet : rounded);
}

/* An integer that orders halves by value; both zeros are 0. */
static inline int order(uint16_t half) { return half & 0x8000 ? -(half & 0x7FFF) : half; }

#define NARROW(suffix, from, to_, infinity)                                                                         \
    KERNEL(sum_##suffix, u16, to_(from(a) + from(b)))                                                               \
    KERNEL(product_##suffix, u16, to_(from(a) * from(b)))                                                           \
    KERNEL(minimum_##suffix, u16, (a & 0x7FFF) > infinity ? a : ((b & 0x7FFF) > infinity) | (order(b) < order(a)) ? b : a) \
    KERNEL(maximum_##suffix, u16, (a & 0x7FFF) > infinity ? a : ((b & 0x7FFF) > infinity) | (order(b) > order(a)) ? b : a)
NARROW(f16, from_half, to_half, 0x7C00) NARROW(bf16, from_brain, to_brain, 0x7F80)

#if defined(__x86_64__) && defined(__GNUC__) && !defined(__SANITIZE_THREAD__) && !defined(__SANITIZE_ADDRESS__)
#include <immintrin.h>
#define HALF(name, operation, rest)                                                                                \
    __attribute__((target("avx2,f16c"))) static void name##_wide(u16 *out, const u16 *x, const u16 *y, size_t count) { \
        size_t i = 0;                                                                                              \
        for (; i + 8 <= count; i += 8) {                                                                           \
            __m256 a = _mm256_cvtph_ps(_mm_loadu_si128((const __m128i *)(x + i)));                                 \
            __m256 b = _mm256_cvtph_ps(_mm_loadu_si128((const __m128i *)(y + i)));                                 \
            _mm_storeu_si128((__m128i *)(out + i), _mm256_cvtps_ph(operation(a, b), _MM_FROUND_TO_NEAREST_INT));   \
        }                                                                                                          \
        rest##_loop(out + i, x + i, y + i, count - i);                                                             \
    }                                                                                                              \
    IN_TURNS(__attribute__((target("avx2,f16c"))), name##_in_turns, u16, name##_wide)                              \
    static void name(void *to, const void *left, const void *const *right, size_t sources, size_t count) {         \
        int wide = __builtin_cpu_supports("f16c") && __builtin_cpu_supports("avx2");                               \
        (wide ? name##_in_turns : rest)(to, left, right, sources, count);                                          \
    }
#else
#define HALF(name, operation, rest)                                                                        \
    static void name(void *to, const void *left, const void *const *right, size_t sources, size_t count) { \
        rest(to, left, right, sources, count);                                                             \
    }
#endif
HALF(fast_sum_f16, _mm256_add_ps, sum_f16) HALF(fast_product_f16, _mm256_mul_ps, product_f16)

/* Complex numbers are pairs. */
#define COMPLEX(suffix, part)                                                                                       \
    static void sum_##suffix(void *to, const void *left, const void *const *right, size_t sources, size_t count) {  \
        sum_f##part(to, left, right, sources, 2 * count);                                                           \
    }                                                                                                               \
    typedef struct { f##part real, imaginary; } suffix;                                                             \
    static inline __attribute__((always_inline)) void product_##suffix##_loop(suffix *out, const suffix *x, const suffix *y, size_t count) { \
        _Pragma("GCC ivdep") for (size_t i = 0; i < count; i++) {                                                   \
            f##part a = x[i].real, b = x[i].imaginary, c = y[i].real, d = y[i].imaginary;                           \
            out[i].real = a * c - b * d;                                                                            \
            out[i].imaginary = a * d + b * c;                                                                       \
        }                                                                                                           \
    }                                                                                                               \
    IN_TURNS(WIDE, product_##suffix, suffix, product_##suffix##_loop)
COMPLEX(c64, 32) COMPLEX(c128, 64)

static const Kernel KERNELS[TYPES][OPERATIONS] = {
    [I8] = {sum_u8, product_u8, minimum_i8, maximum_i8, and_u8, or_u8, xor_u8},
    [I16] = {sum_u16, product_u16, minimum_i16, maximum_i16, and_u16, or_u16, xor_u16},
    [I32] = {sum_u32, product_u32, minimum_i32, maximum_i32, and_u32, or_u32, xor_u32},
    [I64] = {sum_u64, product_u64, minimum_i64, maximum_i64, and_u64, or_u64, xor_u64},
    [U8] = {sum_u8, product_u8, minimum_u8, maximum_u8, and_u8, or_u8, xor_u8},
    [U16] = {sum_u16, product_u16, minimum_u16, maximum_u16, and_u16, or_u16, xor_u16},
    [U32] = {sum_u32, product_u32, minimum_u32, maximum_u32, and_u32, or_u32, xor_u32},
    [U64] = {sum_u64, product_u64, minimum_u64, maximum_u64, and_u64, or_u64, xor_u64},
    [F32] = {sum_f32, product_f32, minimum_f32, maximum_f32},
    [F64] = {sum_f64, product_f64, minimum_f64, maximum_f64},
    [F16] = {fast_sum_f16, fast_product_f16, minimum_f16, maximum_f16},
    [BF16] = {sum_bf16, product_bf16, minimum_bf16, maximum_bf16},
    [C64] = {sum_c64, product_c64},
    [C128] = {sum_c128, product_c128},
    [BOOL] = {or_bool, and_bool, and_bool, or_bool, and_bool, or_bool, xor_bool},
};
static const uint8_t ITEM[TYPES] = {1, 2, 4, 8, 1, 2, 4, 8, 4, 8, 2, 2, 8, 16, 1};
