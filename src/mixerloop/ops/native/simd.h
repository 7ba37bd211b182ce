// Vectors of the width this file is compiled for, and matrix products small enough to live in cache.
//
// Included once per instruction set, inside that set's namespace: VECTOR_BYTES and the compiler's
// flags are what differs. Matrices are row-major; a row of a vectorised operand is padded to
// LANE_PAD numbers, so that no loop over columns needs a remainder.

#include <cmath>
#include <cstddef>
#include <cstdint>
#include <cstring>
#include <type_traits>
#include <utility>

using Index = std::ptrdiff_t;

constexpr Index LANE_PAD = 16;

inline Index padded(Index size) { return (size + LANE_PAD - 1) / LANE_PAD * LANE_PAD; }

template <class T>
struct Lanes {
    typedef T Vector __attribute__((vector_size(VECTOR_BYTES)));
    static constexpr Index count = VECTOR_BYTES / sizeof(T);
};

template <class T>
using Vector = typename Lanes<T>::Vector;

// A whole number as wide as T; comparisons of vectors give vectors of these.
template <class T>
using Integer = std::conditional_t<sizeof(T) == sizeof(std::int32_t), std::int32_t, std::int64_t>;

template <class T>
inline Vector<T> load(const T* from) {
    Vector<T> x;
    std::memcpy(&x, from, sizeof x);
    return x;
}

template <class T>
inline void store(T* to, Vector<T> x) {
    std::memcpy(to, &x, sizeof x);
}

template <class T>
inline Vector<T> all(T x) {
    return x - Vector<T>{};  // 0 + x would have to keep the sign of a zero
}

// A matrix whose entries are read one by one: rows and columns may be any distance apart, so its
// transpose is the same memory with the two swapped.
template <class T>
struct Scalars {
    const T* at;
    Index row, column;
};

template <class T>
inline Scalars<T> rows_of(const T* at, Index width) {
    return {at, width, 1};
}

template <class T>
inline Scalars<T> columns_of(const T* at, Index width) {
    return {at, 1, width};
}

// C <- keep C + A B for MR rows and NV vectors of columns, all of C in registers.
template <class T, int MR, int NV>
inline void tile(Index depth, Scalars<T> a, const T* b, Index b_row, T* c, Index c_row, T keep) {
    constexpr Index lanes = Lanes<T>::count;
    Vector<T> sum[MR][NV];
    for (int i = 0; i < MR; ++i)
        for (int j = 0; j < NV; ++j)
            sum[i][j] = keep == T(0) ? Vector<T>{} : load(c + i * c_row + j * lanes) * keep;
    for (Index k = 0; k < depth; ++k) {
        Vector<T> columns[NV];
        for (int j = 0; j < NV; ++j) columns[j] = load(b + k * b_row + j * lanes);
        for (int i = 0; i < MR; ++i) {
            const Vector<T> entry = all(a.at[i * a.row + k * a.column]);
            for (int j = 0; j < NV; ++j) sum[i][j] += entry * columns[j];
        }
    }
    for (int i = 0; i < MR; ++i)
        for (int j = 0; j < NV; ++j) store(c + i * c_row + j * lanes, sum[i][j]);
}

template <class T, int MR, int NV>
inline void panel(Index num_rows, Index depth, Scalars<T> a, const T* b, Index b_row, T* c,
                  Index c_row, T keep) {
    Index i = 0;
    for (; i + MR <= num_rows; i += MR)
        tile<T, MR, NV>(depth, {a.at + i * a.row, a.row, a.column}, b, b_row, c + i * c_row, c_row,
                        keep);
    for (; i < num_rows; ++i)
        tile<T, 1, NV>(depth, {a.at + i * a.row, a.row, a.column}, b, b_row, c + i * c_row, c_row,
                       keep);
}

// C <- keep C + A B, with C num_rows x num_columns and num_columns a multiple of LANE_PAD.
template <class T>
__attribute__((noinline)) void multiply(Index num_rows, Index num_columns, Index depth, Scalars<T> a, const T* b,
                     Index b_row, T* c, Index c_row, T keep = T(0)) {
    constexpr Index lanes = Lanes<T>::count;
    Index left = num_columns / lanes;
    while (left > 0) {
        int taken;
        if (VECTOR_BYTES == 64 && (left == 5 || left > 8)) {
            panel<T, 4, 5>(num_rows, depth, a, b, b_row, c, c_row, keep), taken = 5;
        } else if (VECTOR_BYTES == 64 && left >= 4) {
            panel<T, 4, 4>(num_rows, depth, a, b, b_row, c, c_row, keep), taken = 4;
        } else if (left == 3 || left > 4) {
            panel<T, 4, 3>(num_rows, depth, a, b, b_row, c, c_row, keep), taken = 3;
        } else if (left >= 2) {
            panel<T, 4, 2>(num_rows, depth, a, b, b_row, c, c_row, keep), taken = 2;
        } else {
            panel<T, 8, 1>(num_rows, depth, a, b, b_row, c, c_row, keep), taken = 1;
        }
        b += taken * lanes, c += taken * lanes, left -= taken;
    }
}

// One round of a transpose in registers: in a square of vectors, blocks of `half` rows and columns on
// the other diagonal change places.
template <std::size_t half, class V, std::size_t... lane>
inline void swap_blocks(V& x, V& y, std::index_sequence<lane...>) {
    const V upper = __builtin_shufflevector(
        x, y, (lane & half ? int(sizeof...(lane) + lane - half) : int(lane))...);
    y = __builtin_shufflevector(
        x, y, (lane & half ? int(sizeof...(lane) + lane) : int(lane + half))...);
    x = upper;
}

template <std::size_t half, class T>
inline void transpose_square(Vector<T>* x) {
    constexpr std::size_t lanes = Lanes<T>::count;
    if constexpr (half < lanes) {
        for (std::size_t i = 0; i < lanes; ++i)
            if (!(i & half)) swap_blocks<half>(x[i], x[i + half], std::make_index_sequence<lanes>{});
        transpose_square<2 * half, T>(x);
    }
}

// to[j][i] <- from[i][j] for LANE_PAD rows; the rows of `to` lie to_row apart. Rows of `from` are
// padded, so that whole vectors of columns can be read.
template <class T>
inline void transpose(const T* from, Index from_row, Index num_columns, T* to, Index to_row) {
    constexpr Index lanes = Lanes<T>::count;
    for (Index j0 = 0; j0 < num_columns; j0 += lanes)
        for (Index i0 = 0; i0 < LANE_PAD; i0 += lanes) {
            Vector<T> x[lanes];
            for (Index i = 0; i < lanes; ++i) x[i] = load(from + (i0 + i) * from_row + j0);
            transpose_square<1, T>(x);
            for (Index j = 0; j < lanes && j0 + j < num_columns; ++j)
                store(to + (j0 + j) * to_row + i0, x[j]);
        }
}

// exp(x) for x <= 0; what would be subnormal is zero.
inline Vector<float> exponential(Vector<float> x) {
    using V = Vector<float>;
    using I = typename Lanes<std::int32_t>::Vector;
    constexpr float lowest = -87.33654f;
    const V clamped = x < lowest ? all(lowest) : x;
    const V shifted = clamped * 1.44269504f + 12582912.0f;  // rounds to a whole number
    const V whole = shifted - 12582912.0f;
    const V rest = clamped - whole * 0.693359375f + whole * 2.12194440e-4f;
    V sum = all(1.9875691500e-4f);
    sum = sum * rest + 1.3981999507e-3f;
    sum = sum * rest + 8.3334519073e-3f;
    sum = sum * rest + 4.1665795894e-2f;
    sum = sum * rest + 1.6666665459e-1f;
    sum = sum * rest + 5.0000001201e-1f;
    sum = sum * rest * rest + rest + 1.0f;
    const I power = (__builtin_convertvector(whole, I) + 127) << 23;
    V scale;
    std::memcpy(&scale, &power, sizeof scale);
    return x < lowest ? V{} : sum * scale;
}

inline Vector<double> exponential(Vector<double> x) {
    for (Index lane = 0; lane < Lanes<double>::count; ++lane) x[lane] = std::exp(x[lane]);
    return x;
}

// For any x: what exponential() cannot hold is infinite.
template <class T>
inline void exponentials(const T* x, T* to, Index size) {
    constexpr T highest = sizeof(T) == sizeof(float) ? T(88.72283) : T(709.78271);
    for (Index at = 0; at < size; at += Lanes<T>::count) {
        const Vector<T> given = load(x + at);
        store(to + at, given > highest ? all(T(INFINITY)) : exponential(given));
    }
}

// 1 / x for x from 1 to 2. A division of sixteen floats takes as long as sixteen multiply-adds; an
// estimate of 14 bits and one step of Newton's take four, and are as good.
template <class T>
inline Vector<T> reciprocal(Vector<T> x) {
    return T(1) / x;
}

#if VECTOR_BYTES == 64
template <>
inline Vector<float> reciprocal<float>(Vector<float> x) {
    Vector<float> estimate;
    asm("vrcp14ps %1, %0" : "=v"(estimate) : "v"(x));
    return estimate * (2.0f - x * estimate);
}
#endif

template <class T>
inline Vector<T> sigmoid(Vector<T> x) {
    const Vector<T> small = exponential(x < T(0) ? x : -x);
    const Vector<T> large = reciprocal<T>(T(1) + small);
    return x < T(0) ? small * large : large;
}

// log(1 + exp(x)). With e = exp(-|x|) and s = e / (2 + e), log(1 + e) = 2 (s + s^3/3 + s^5/5 + ...).
inline Vector<float> softplus(Vector<float> x) {
    const Vector<float> small = exponential(x < 0.0f ? x : -x);
    const Vector<float> s = small / (2.0f + small), square = s * s;
    Vector<float> sum = all(1.0f / 15);
    for (int odd = 13; odd >= 1; odd -= 2) sum = sum * square + 1.0f / odd;
    return (x < 0.0f ? Vector<float>{} : x) + 2.0f * s * sum;
}

inline Vector<double> softplus(Vector<double> x) {
    for (Index lane = 0; lane < Lanes<double>::count; ++lane)
        x[lane] = (x[lane] < 0 ? 0 : x[lane]) + std::log1p(std::exp(-std::fabs(x[lane])));
    return x;
}

template <class T>
inline T sum_of(Vector<T> x) {
    T part[Lanes<T>::count];
    store(part, x);
    for (Index half = Lanes<T>::count / 2; half > 0; half /= 2)
        for (Index lane = 0; lane < half; ++lane) part[lane] += part[lane + half];
    return part[0];
}

template <class T>
inline T dot(const T* x, const T* y, Index size) {
    Vector<T> sum{};
    for (Index at = 0; at < size; at += Lanes<T>::count) sum += load(x + at) * load(y + at);
    return sum_of<T>(sum);
}

// Zero times anything finite is zero; `size` is a multiple of LANE_PAD.
template <class T>
inline bool is_finite(const T* x, Index size) {
    Vector<T> sum{};
    for (Index at = 0; at < size; at += Lanes<T>::count) sum += load(x + at) * T(0);
    return sum_of<T>(sum) == T(0);
}

// What a tensor holds may be narrower than what is computed with.
struct BFloat16 {
    std::uint16_t bits;
};

// Rows are short: a call of memcpy would take longer than the copy.
template <class T>
inline void copy_row(const T* from, T* to, Index size) {
    Index at = 0;
    for (; at + Lanes<T>::count <= size; at += Lanes<T>::count) store(to + at, load(from + at));
    for (; at < size; ++at) to[at] = from[at];
}

template <class T>
inline void clear_row(T* to, Index size) {
    for (Index at = 0; at < size; ++at) to[at] = T(0);
}

inline void widen(const float* from, float* to, Index size) { copy_row(from, to, size); }

inline void widen(const double* from, double* to, Index size) { copy_row(from, to, size); }

inline void widen(const BFloat16* from, float* to, Index size) {
    for (Index at = 0; at < size; ++at) {
        const std::uint32_t bits = std::uint32_t(from[at].bits) << 16;
        std::memcpy(to + at, &bits, sizeof bits);
    }
}

inline void narrow(const float* from, float* to, Index size) { widen(from, to, size); }

inline void narrow(const double* from, double* to, Index size) { widen(from, to, size); }

// To the nearest, ties to the even one; what is not a number stays so.
inline void narrow(const float* from, BFloat16* to, Index size) {
    for (Index at = 0; at < size; ++at) {
        std::uint32_t bits;
        std::memcpy(&bits, from + at, sizeof bits);
        const std::uint32_t rounded = (bits + 0x7fff + ((bits >> 16) & 1)) >> 16;
        to[at].bits = (bits & 0x7fffffff) > 0x7f800000 ? 0x7fc0 : std::uint16_t(rounded);
    }
}
