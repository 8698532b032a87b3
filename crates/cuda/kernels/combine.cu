// Combines memory elementwise: one kernel for each operation and type, combine_<op>_<type>.
//
// The arithmetic is that of crates/kernels/src/reduce: a sum or product is rounded after every operation and never contracted,
// equal zeros and NaNs do not depend on the order of the operands, every NaN result is the same (quiet, positive, no payload),
// and integers wrap. float16 and bfloat16 differ in one thing: they are combined in binary32 over all sources, and rounded
// once at the end. One source without a factor is copied bit by bit.
//
// A source may be a target. So nothing is __restrict__, and loads and stores are volatile assembly: all sources of an element
// are read before any target is written, by the same thread.
//
// Compiled by build.py without any header; crates/cuda/src/kernels.rs launches it.

typedef unsigned int u32;
typedef unsigned long long u64;
typedef int i32;
typedef long long i64;

/// The twin of `Arguments` in crates/cuda/src/kernels.rs: 160 bytes.
struct CombineArguments {
    u64 to[8];
    u64 from[8];
    u64 elements;
    double factor;
    u32 targets;
    u32 sources;
    u32 scaled;
    u32 unused;
};
static_assert(sizeof(CombineArguments) == 160, "the layout of kernels.rs");

/// Threads of a block, and blocks that a multiprocessor must be able to hold: at most 64 registers a thread.
#define THREADS 512
#define BLOCKS 2
#define INLINE static __device__ __forceinline__

// --- Memory -------------------------------------------------------------------------------------------------------------

/// What one instruction loads or stores: the fewest words that hold it.
template <int BYTES> struct Packet {
    u32 word[(BYTES + 3) / 4];
};

INLINE void load(Packet<16> &to, u64 from) {
    asm volatile("ld.global.v4.u32 {%0, %1, %2, %3}, [%4];"
                 : "=r"(to.word[0]), "=r"(to.word[1]), "=r"(to.word[2]), "=r"(to.word[3])
                 : "l"(from));
}
INLINE void load(Packet<8> &to, u64 from) {
    asm volatile("ld.global.v2.u32 {%0, %1}, [%2];" : "=r"(to.word[0]), "=r"(to.word[1]) : "l"(from));
}
INLINE void load(Packet<4> &to, u64 from) { asm volatile("ld.global.u32 %0, [%1];" : "=r"(to.word[0]) : "l"(from)); }
INLINE void load(Packet<2> &to, u64 from) { asm volatile("ld.global.u16 %0, [%1];" : "=r"(to.word[0]) : "l"(from)); }
INLINE void load(Packet<1> &to, u64 from) { asm volatile("ld.global.u8 %0, [%1];" : "=r"(to.word[0]) : "l"(from)); }

INLINE void store(u64 to, const Packet<16> &from) {
    asm volatile("st.global.v4.u32 [%0], {%1, %2, %3, %4};" ::"l"(to), "r"(from.word[0]), "r"(from.word[1]),
                 "r"(from.word[2]), "r"(from.word[3])
                 : "memory");
}
INLINE void store(u64 to, const Packet<8> &from) {
    asm volatile("st.global.v2.u32 [%0], {%1, %2};" ::"l"(to), "r"(from.word[0]), "r"(from.word[1]) : "memory");
}
INLINE void store(u64 to, const Packet<4> &from) {
    asm volatile("st.global.u32 [%0], %1;" ::"l"(to), "r"(from.word[0]) : "memory");
}
INLINE void store(u64 to, const Packet<2> &from) {
    asm volatile("st.global.u16 [%0], %1;" ::"l"(to), "r"(from.word[0]) : "memory");
}
INLINE void store(u64 to, const Packet<1> &from) {
    asm volatile("st.global.u8 [%0], %1;" ::"l"(to), "r"(from.word[0]) : "memory");
}

/// The bits of an element of a packet, and their place in one that is zero there.
template <int SIZE> struct Lane {
    typedef u32 Bits;
    template <int BYTES> INLINE u32 get(const Packet<BYTES> &packet, int lane) {
        const int bit = lane * SIZE * 8;
        return packet.word[bit / 32] >> (bit % 32) & ((1u << (SIZE * 8)) - 1);
    }
    template <int BYTES> INLINE void put(Packet<BYTES> &packet, int lane, u32 bits) {
        const int bit = lane * SIZE * 8;
        packet.word[bit / 32] |= bits << (bit % 32);
    }
};
template <> struct Lane<4> {
    typedef u32 Bits;
    template <int BYTES> INLINE u32 get(const Packet<BYTES> &packet, int lane) { return packet.word[lane]; }
    template <int BYTES> INLINE void put(Packet<BYTES> &packet, int lane, u32 bits) { packet.word[lane] = bits; }
};
template <> struct Lane<8> {
    typedef u64 Bits;
    template <int BYTES> INLINE u64 get(const Packet<BYTES> &packet, int lane) {
        return (u64)packet.word[2 * lane + 1] << 32 | packet.word[2 * lane];
    }
    template <int BYTES> INLINE void put(Packet<BYTES> &packet, int lane, u64 bits) {
        packet.word[2 * lane] = (u32)bits;
        packet.word[2 * lane + 1] = (u32)(bits >> 32);
    }
};

// --- Operations ---------------------------------------------------------------------------------------------------------

INLINE u32 bits_of(float value) { return __float_as_uint(value); }
INLINE u64 bits_of(double value) { return (u64)__double_as_longlong(value); }
INLINE float number(u32 bits) { return __uint_as_float(bits); }
INLINE double number(u64 bits) { return __longlong_as_double((i64)bits); }
INLINE bool is_nan(float value) { return value != value; }
INLINE bool is_nan(double value) { return value != value; }
INLINE float multiply(float a, float b) { return __fmul_rn(a, b); }
INLINE double multiply(double a, double b) { return __dmul_rn(a, b); }

struct Sum {
    INLINE float apply(float a, float b) { return __fadd_rn(a, b); }
    INLINE double apply(double a, double b) { return __dadd_rn(a, b); }
    INLINE u32 apply(u32 a, u32 b) { return a + b; }
    INLINE i32 apply(i32 a, i32 b) { return (i32)((u32)a + (u32)b); }
    INLINE i64 apply(i64 a, i64 b) { return (i64)((u64)a + (u64)b); }
};
struct Product {
    INLINE float apply(float a, float b) { return multiply(a, b); }
    INLINE double apply(double a, double b) { return multiply(a, b); }
    INLINE u32 apply(u32 a, u32 b) { return a * b; }
    INLINE i32 apply(i32 a, i32 b) { return (i32)((u32)a * (u32)b); }
    INLINE i64 apply(i64 a, i64 b) { return (i64)((u64)a * (u64)b); }
};
/// Of equal numbers, which differ at most in the sign of zero, the negative one; a NaN wins.
template <class Float> INLINE Float smaller(Float a, Float b) {
    const Float one = a < b ? a : b;
    const Float either = a == b ? number(bits_of(a) | bits_of(b)) : one;
    return is_nan(a) ? a : is_nan(b) ? b : either;
}
/// Of equal numbers the positive one; a NaN wins.
template <class Float> INLINE Float larger(Float a, Float b) {
    const Float one = a > b ? a : b;
    const Float either = a == b ? number(bits_of(a) & bits_of(b)) : one;
    return is_nan(a) ? a : is_nan(b) ? b : either;
}
struct Min {
    INLINE float apply(float a, float b) { return smaller(a, b); }
    INLINE double apply(double a, double b) { return smaller(a, b); }
    template <class Integer> INLINE Integer apply(Integer a, Integer b) { return a < b ? a : b; }
};
struct Max {
    INLINE float apply(float a, float b) { return larger(a, b); }
    INLINE double apply(double a, double b) { return larger(a, b); }
    template <class Integer> INLINE Integer apply(Integer a, Integer b) { return a > b ? a : b; }
};

// --- Types --------------------------------------------------------------------------------------------------------------
// `Value` is what is combined; `widen` and `narrow` convert the bits of an element to it and back; `Factor` is a factor,
// converted once a thread. Integers are scaled element by element (FLOAT 0): nobody averages many, and the code is long.

struct FloatFactor {
    float times;
    INLINE FloatFactor of(double factor) { return FloatFactor{__double2float_rn(factor)}; }
};

struct Float32 {
    enum { SIZE = 4, FLOAT = 1 };
    typedef float Value;
    typedef FloatFactor Factor;
    INLINE float widen(u32 bits) { return number(bits); }
    INLINE u32 narrow(float value) { return is_nan(value) ? 0x7fc00000u : bits_of(value); }
    INLINE float scale(float value, Factor factor) { return multiply(value, factor.times); }
};

struct Float64 {
    enum { SIZE = 8, FLOAT = 1 };
    typedef double Value;
    struct Factor {
        double times;
        INLINE Factor of(double factor) { return Factor{factor}; }
    };
    INLINE double widen(u64 bits) { return number(bits); }
    INLINE u64 narrow(double value) { return is_nan(value) ? 0x7ff8000000000000ull : bits_of(value); }
    INLINE double scale(double value, Factor factor) { return multiply(value, factor.times); }
};

struct Float16 {
    enum { SIZE = 2, FLOAT = 1 };
    typedef float Value;
    typedef FloatFactor Factor;
    INLINE float widen(u32 bits) {
        float value;
        asm("cvt.f32.f16 %0, %1;" : "=f"(value) : "h"((unsigned short)bits));
        return value;
    }
    INLINE u32 narrow(float value) {
        unsigned short bits;
        asm("cvt.rn.f16.f32 %0, %1;" : "=h"(bits) : "f"(value));
        return is_nan(value) ? 0x7e00u : (u32)bits;
    }
    INLINE float scale(float value, Factor factor) { return multiply(value, factor.times); }
};

struct Bfloat16 {
    enum { SIZE = 2, FLOAT = 1 };
    typedef float Value;
    typedef FloatFactor Factor;
    INLINE float widen(u32 bits) { return number(bits << 16); }
    INLINE u32 narrow(float value) {
        // Just under half a unit of the upper half, and slightly more if that is odd: ties go to even. A carry out of the
        // fraction raises the exponent, up to infinity.
        const u32 bits = bits_of(value);
        return is_nan(value) ? 0x7fc0u : (bits + 0x7fffu + (bits >> 16 & 1u)) >> 16;
    }
    INLINE float scale(float value, Factor factor) { return multiply(value, factor.times); }
};

/// The binary64 nearest to 1/n means a division by n, toward zero; what else there is, a product in binary64, toward zero and
/// clamped to the type's range; a NaN becomes 0.
struct IntegerFactor {
    double times;
    /// 0: no division.
    u32 over;
    INLINE IntegerFactor of(double factor) {
        const double whole = round(__ddiv_rn(1.0, factor));
        const bool division =
            whole >= 2.0 && whole <= 4294967295.0 && bits_of(__ddiv_rn(1.0, whole)) == bits_of(factor);
        return IntegerFactor{factor, division ? __double2uint_rz(whole) : 0u};
    }
};

struct Int32 {
    enum { SIZE = 4, FLOAT = 0 };
    typedef i32 Value;
    typedef IntegerFactor Factor;
    INLINE i32 widen(u32 bits) { return (i32)bits; }
    INLINE u32 narrow(i32 value) { return (u32)value; }
    INLINE i32 scale(i32 value, Factor factor) {
        if (factor.over != 0) {
            const u32 quotient = (value < 0 ? 0u - (u32)value : (u32)value) / factor.over;
            return (i32)(value < 0 ? 0u - quotient : quotient);
        }
        const double product = multiply((double)value, factor.times);
        return is_nan(product) ? 0 : __double2int_rz(product);
    }
};

struct Int64 {
    enum { SIZE = 8, FLOAT = 0 };
    typedef i64 Value;
    typedef IntegerFactor Factor;
    INLINE i64 widen(u64 bits) { return (i64)bits; }
    INLINE u64 narrow(i64 value) { return (u64)value; }
    INLINE i64 scale(i64 value, Factor factor) {
        if (factor.over != 0) {
            return value / (i64)factor.over;
        }
        const double product = multiply(__ll2double_rn(value), factor.times);
        return is_nan(product) ? 0 : __double2ll_rz(product);
    }
};

struct Uint8 {
    enum { SIZE = 1, FLOAT = 0 };
    /// Sums and products may have upper bits, which do not count.
    typedef u32 Value;
    typedef IntegerFactor Factor;
    INLINE u32 widen(u32 bits) { return bits; }
    INLINE u32 narrow(u32 value) { return value & 0xffu; }
    INLINE u32 scale(u32 value, Factor factor) {
        value &= 0xffu;
        if (factor.over != 0) {
            return value / factor.over;
        }
        const double product = multiply((double)value, factor.times);
        return product >= 255.0 ? 255u : product > 0.0 ? __double2uint_rz(product) : 0u;
    }
};

// --- The loop -----------------------------------------------------------------------------------------------------------

/// Where packets lie: packet i at byte `i * BYTES`, those from `before` on another `gap` bytes further.
struct Range {
    u64 packets;
    u64 start;
    u64 before;
    u64 gap;
};

/// Combines the packets of a range. `SOURCES` 0: as many as `arguments` says; 1: copies, without a factor.
template <class Type, class Op, int SOURCES, int BYTES>
INLINE void pass(const CombineArguments &arguments, const Range &range, typename Type::Factor factor) {
    typedef Lane<Type::SIZE> Lanes;
    typedef typename Type::Value Value;
    const int LANES = BYTES / Type::SIZE;
    // Loads under way at once in a thread; fewer where their values would not fit into registers.
    const int DEEP = SOURCES == 0 && Type::SIZE <= 2 ? 2 : 4;
    const bool SCALES = Type::FLOAT || BYTES == Type::SIZE;
    const u64 threads = (u64)gridDim.x * THREADS;
    for (u64 first = (u64)blockIdx.x * THREADS + threadIdx.x; first < range.packets; first += threads * DEEP) {
        u64 at[DEEP];
        bool inside[DEEP];
#pragma unroll
        for (int deep = 0; deep < DEEP; deep++) {
            const u64 index = first + deep * threads;
            inside[deep] = index < range.packets;
            // Beyond the end the last packet is read, so that loads need no branches, and nothing is written.
            const u64 packet = inside[deep] ? index : range.packets - 1;
            at[deep] = range.start + packet * BYTES + (packet < range.before ? 0 : range.gap);
        }
        Packet<BYTES> result[DEEP];
        if (SOURCES == 1) {
#pragma unroll
            for (int deep = 0; deep < DEEP; deep++) {
                load(result[deep], arguments.from[0] + at[deep]);
            }
        } else if (SOURCES == 2) {
            Packet<BYTES> one[DEEP], other[DEEP];
#pragma unroll
            for (int deep = 0; deep < DEEP; deep++) {
                load(one[deep], arguments.from[0] + at[deep]);
            }
#pragma unroll
            for (int deep = 0; deep < DEEP; deep++) {
                load(other[deep], arguments.from[1] + at[deep]);
            }
#pragma unroll
            for (int deep = 0; deep < DEEP; deep++) {
                result[deep] = Packet<BYTES>{};
#pragma unroll
                for (int lane = 0; lane < LANES; lane++) {
                    Value value =
                        Op::apply(Type::widen(Lanes::get(one[deep], lane)), Type::widen(Lanes::get(other[deep], lane)));
                    if (SCALES && arguments.scaled != 0) {
                        value = Type::scale(value, factor);
                    }
                    Lanes::put(result[deep], lane, Type::narrow(value));
                }
            }
        } else {
            Value values[DEEP][LANES];
            Packet<BYTES> next[DEEP];
#pragma unroll
            for (int deep = 0; deep < DEEP; deep++) {
                load(next[deep], arguments.from[0] + at[deep]);
            }
#pragma unroll
            for (int deep = 0; deep < DEEP; deep++) {
#pragma unroll
                for (int lane = 0; lane < LANES; lane++) {
                    values[deep][lane] = Type::widen(Lanes::get(next[deep], lane));
                }
            }
#pragma unroll 1
            for (u32 source = 1; source < arguments.sources; source++) {
                const u64 from = arguments.from[source];
#pragma unroll
                for (int deep = 0; deep < DEEP; deep++) {
                    load(next[deep], from + at[deep]);
                }
#pragma unroll
                for (int deep = 0; deep < DEEP; deep++) {
#pragma unroll
                    for (int lane = 0; lane < LANES; lane++) {
                        values[deep][lane] =
                            Op::apply(values[deep][lane], Type::widen(Lanes::get(next[deep], lane)));
                    }
                }
            }
#pragma unroll
            for (int deep = 0; deep < DEEP; deep++) {
                result[deep] = Packet<BYTES>{};
#pragma unroll
                for (int lane = 0; lane < LANES; lane++) {
                    Value value = values[deep][lane];
                    if (SCALES && arguments.scaled != 0) {
                        value = Type::scale(value, factor);
                    }
                    Lanes::put(result[deep], lane, Type::narrow(value));
                }
            }
        }
#pragma unroll 1
        for (u32 target = 0; target < arguments.targets; target++) {
            const u64 to = arguments.to[target];
#pragma unroll
            for (int deep = 0; deep < DEEP; deep++) {
                if (inside[deep]) {
                    store(to + at[deep], result[deep]);
                }
            }
        }
    }
}

template <class Type, class Op> INLINE void combine(const CombineArguments &arguments) {
    const int LANES = 16 / Type::SIZE;
    typename Type::Factor factor = {};
    if (arguments.scaled != 0) {
        factor = Type::Factor::of(arguments.factor);
    }
    // Vectors of 16 bytes where all addresses lie alike relative to such; what is before and after, element by element.
    const u32 misaligned = (u32)arguments.from[0] & 15u;
    bool alike = true;
#pragma unroll 1
    for (u32 source = 1; source < arguments.sources; source++) {
        alike &= ((u32)arguments.from[source] & 15u) == misaligned;
    }
#pragma unroll 1
    for (u32 target = 0; target < arguments.targets; target++) {
        alike &= ((u32)arguments.to[target] & 15u) == misaligned;
    }
    const u64 head = (16u - misaligned) % 16u / Type::SIZE;
    Range rest = {arguments.elements, 0, arguments.elements, 0};
    const bool copies = arguments.sources == 1 && arguments.scaled == 0;
    if (alike && (Type::FLOAT || arguments.scaled == 0) && arguments.elements >= head + LANES) {
        const u64 vectors = (arguments.elements - head) / LANES;
        const Range whole = {vectors, head * Type::SIZE, vectors, 0};
        if (copies) {
            pass<Type, Op, 1, 16>(arguments, whole, factor);
        } else if (arguments.sources == 2) {
            pass<Type, Op, 2, 16>(arguments, whole, factor);
        } else {
            pass<Type, Op, 0, 16>(arguments, whole, factor);
        }
        rest = Range{arguments.elements - vectors * LANES, 0, head, vectors * 16};
    }
    if (copies) {
        pass<Type, Op, 1, Type::SIZE>(arguments, rest, factor);
    } else {
        pass<Type, Op, 0, Type::SIZE>(arguments, rest, factor);
    }
}

#define KERNEL(op, Op, type, Type)                                                                                     \
    extern "C" __global__ void __launch_bounds__(THREADS, BLOCKS)                                                      \
        combine_##op##_##type(const __grid_constant__ CombineArguments arguments) {                                    \
        combine<Type, Op>(arguments);                                                                                  \
    }
#define KERNELS(type, Type)                                                                                            \
    KERNEL(sum, Sum, type, Type)                                                                                       \
    KERNEL(min, Min, type, Type)                                                                                       \
    KERNEL(max, Max, type, Type)                                                                                       \
    KERNEL(product, Product, type, Type)

KERNELS(f32, Float32)
KERNELS(f64, Float64)
KERNELS(f16, Float16)
KERNELS(bf16, Bfloat16)
KERNELS(i32, Int32)
KERNELS(i64, Int64)
KERNELS(u8, Uint8)
