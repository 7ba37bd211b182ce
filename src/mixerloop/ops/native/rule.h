// Linear attention over one head, a chunk of 16 tokens at a time: one rule with two switches.
//
//     S <- diag(exp g) S        S <- S + k (v - S^T e)^T        o = S^T q
//
// `Decay` says whether g is one number for the head or one for each channel of its keys, `Erase`
// whether there is an erase key e. What a switch turns off costs nothing. With Erase::OWN, the gated
// delta rule, e is the token's own key times its write strength b, and v is b times its value.
//
// Names are those of ops/chunked_linear_attention.py and ops/chunked.py, whose equations these are. A
// and P are the decayed overlaps of erase keys with keys and of queries with keys, U what each token
// really writes. The decays of a head are E, D and z: from the chunk's start to a token, from token to
// token, from a token to the chunk's end. Those of channels are products of single steps, never
// exponentials of sums: a product of numbers up to 1 neither overflows nor cancels.
// Chunks of a head follow one another and the state stays in cache. Tokens of a chunk are either the
// rows of a matrix (16 x width) or its lanes (width x 16), whichever a product needs.
//
// Where a chunk's tokens come from and where its results go is the business of `Tokens`:
//
//     Decay decay, Erase erase                  the switches, known to the compiler
//     Index seq, d_key, d_value
//     fetch(chunk, first, num, rows = 16)       keys, queries, values, log decays; erase keys or b
//     write(first, num, out)                    the rule's output, 16 x d_value
//     d_output(chunk, first, num, out, d_out)   its gradient; `out` may be asked for again
//     d_tokens(chunk, first, num, gradients)    the gradients of what was loaded
//
// with rows padded by zeros, and tokens from `num` to `rows` zero. `chunk.side` is memory for its own use.
//
// A number that is not finite, times a zero of a triangle, would reach earlier tokens of its chunk. A
// chunk with such a number walks its triangle entry by entry, and its backward goes token by token.
// Where every token erases with its own key, the last row of U tells, and the first row of dR in the
// backward; else all of P and U are looked at, and all of dR.

enum class Decay { HEAD, CHANNEL };
enum class Erase { NONE, OWN, GIVEN };

constexpr Index CHUNK = LANE_PAD;
constexpr double FORGETS = -800;  // its exponential is 0; sums of it keep the digits of weak decays
constexpr Index GROUP = 4;  // chunks between two states that are kept for the backward

// Memory of one thread, cut into aligned pieces.
template <class T>
struct Arena {
    T* next;
    T* take(Index size) {
        T* piece = next;
        next += padded(size);
        return piece;
    }
};

template <class T>
struct Chunk {
    T *readers;     // 32 x d_key: erase keys, or keys where those are meant; then queries
    T *key, *query; // 16 x d_key each; the queries are the second half of the readers
    T *value;       // 16 x d_value
    T *read;        // 32 x d_value: what the readers find in S; of channels, in the decayed S
    T *write;       // 16 x d_value: U
    T *below;       // 16 x 16: A, or b A, strictly below the diagonal
    T *scores;      // 16 x 16: P
    T *key_lanes;   // d_key x 16: keys; of channels, at last as the end of the chunk sees them: Z
    T *side;        // what its tokens' source wants to remember
    Index num;      // tokens that are there; the rows after them are zero
    bool finite;    // whether all numbers are that could reach another token than their own
    // Decays of a head
    T *log_decay, *strength, *start, *end;  // g, b, E, z
    T *pairs;       // 16 x 16: D
    T *overlap;     // 32 x 16: readers times keys
    T whole;        // E_C
    // Decays of channels
    T *log_decays, *steps;  // 16 x d_key: g, exp g
    T *from_start;  // 32 x d_key: readers times the decay from the chunk's start
    T *all_steps;   // d_key: the decay of the whole chunk

    // With the decays of a head the key lanes are needed for a moment only: chunks may share them.
    template <class Tokens>
    void place(Arena<T>& arena, Index dk, Index dv, Index side_size, T* shared_lanes) {
        readers = arena.take(2 * CHUNK * dk), query = readers + CHUNK * dk;
        key = Tokens::erase == Erase::OWN ? readers : arena.take(CHUNK * dk);
        value = arena.take(CHUNK * dv), read = arena.take(2 * CHUNK * dv);
        write = arena.take(CHUNK * dv), below = arena.take(CHUNK * CHUNK);
        scores = arena.take(CHUNK * CHUNK), side = arena.take(side_size);
        if constexpr (Tokens::decay == Decay::HEAD) {
            log_decay = arena.take(CHUNK), strength = arena.take(CHUNK);
            start = arena.take(CHUNK), end = arena.take(CHUNK);
            pairs = arena.take(CHUNK * CHUNK), overlap = arena.take(2 * CHUNK * CHUNK);
            key_lanes = shared_lanes;
        } else {
            log_decays = arena.take(CHUNK * dk), steps = arena.take(CHUNK * dk);
            from_start = arena.take(2 * CHUNK * dk), all_steps = arena.take(dk);
            strength = arena.take(CHUNK), key_lanes = arena.take(dk * CHUNK);
        }
    }

    static Index size(Index dk, Index dv, Index side_size) {
        return 9 * CHUNK * dk + 4 * CHUNK * dv + 5 * CHUNK * CHUNK + 4 * CHUNK + padded(side_size);
    }
};

// What a chunk's tokens get back, as rows. Decays of a head and write strengths have one number for
// each token.
template <class T>
struct ChunkGradients {
    T *d_query, *d_key, *d_value, *d_erase_key, *d_log_decays, *d_log_decay, *d_strength;
};

// One row, with zeros after its end.
template <class T, class S>
inline void load_row(T* to, Index to_row, const S* from, Index width) {
    widen(from, to, width);
    clear_row(to + width, to_row - width);
}

template <class T, class S>
inline void load_rows(T* to, Index to_row, const S* from, Index stride, Index width, Index num,
                      Index rows = CHUNK) {
    for (Index i = 0; i < num; ++i) load_row(to + i * to_row, to_row, from + i * stride, width);
    std::memset(to + num * to_row, 0, (rows - num) * to_row * sizeof(T));
}

// Decays in double: differences of sums would lose the digits of mild tokens after a brutal one.
template <class T>
inline void find_decays(Chunk<T>& c) {
    double total[CHUNK], sum = 0;
    for (Index i = 0; i < CHUNK; ++i)
        total[i] = sum += c.log_decay[i] < FORGETS ? FORGETS : c.log_decay[i];
    for (Index i = 0; i < CHUNK; ++i) {
        c.start[i] = T(total[i]);
        c.end[i] = T(sum - total[i]);
        for (Index j = 0; j < CHUNK; ++j)
            c.pairs[i * CHUNK + j] = j <= i ? T(total[i] - total[j]) : T(-INFINITY);
    }
    exponentials(c.start, c.start, CHUNK);
    exponentials(c.end, c.end, CHUNK);
    exponentials(c.pairs, c.pairs, CHUNK * CHUNK);
    c.whole = c.start[CHUNK - 1];
}

// What the readers see of S: each row times the decay from the chunk's start to its token.
template <class T, bool erases>
inline void decay_readers(Chunk<T>& c, Index dk) {
    exponentials(c.log_decays, c.steps, CHUNK * dk);
    for (Index at = 0; at < dk; at += Lanes<T>::count) {
        Vector<T> decay = all(T(1));
        for (Index i = 0; i < CHUNK; ++i) {
            const Index row = i * dk + at, query = (CHUNK + i) * dk + at;
            decay *= load(c.steps + row);
            if (erases) store(c.from_start + row, load(c.readers + row) * decay);
            store(c.from_start + query, load(c.readers + query) * decay);
        }
        store(c.all_steps + at, decay);
    }
}

// Lanes before a token: all ones where lane < token, for the vector of lanes that begins at `first`.
template <class T>
inline auto lanes_before(Index token, Index first) {
    typename Lanes<Integer<T>>::Vector lane;
    for (Index at = 0; at < Lanes<T>::count; ++at) lane[at] = Integer<T>(first + at);
    return lane < Integer<T>(token);
}

// A and P where every channel has its own decays, some rows at a time. Lane j of `keys` is k_j as the
// token sees it that a row belongs to: at each token the lanes before it decay. Lanes from the token
// on hold keys that have not decayed, and what they give is left out.
template <class T, bool erases>
__attribute__((noinline)) void decayed_overlaps(Chunk<T>& c, Index d_key, Index dk) {
    constexpr Index lanes = Lanes<T>::count, ROWS = 4;
    std::memset(c.below, 0, CHUNK * CHUNK * sizeof(T));
    std::memset(c.scores, 0, CHUNK * CHUNK * sizeof(T));
    for (Index first = 0; first < CHUNK; first += lanes)
        for (Index i0 = first / ROWS * ROWS; i0 < CHUNK; i0 += ROWS) {
            Vector<T> erase_sum[ROWS] = {}, query_sum[ROWS] = {};
            const T *steps = c.steps + i0 * dk, *erase = c.readers + i0 * dk;
            const T *query = c.query + i0 * dk;
            const auto before = [&](Index row) { return lanes_before<T>(i0 + row, first); };
            const decltype(before(0)) masks[ROWS] = {before(0), before(1), before(2), before(3)};
            for (Index d = 0; d < d_key; ++d) {
                Vector<T> keys = load(c.key_lanes + d * CHUNK + first);
                for (Index row = 0; row < ROWS; ++row) {
                    const Vector<T> decayed = keys * all(steps[row * dk + d]);
                    keys = masks[row] ? decayed : keys;
                    if (erases) erase_sum[row] += all(erase[row * dk + d]) * keys;
                    query_sum[row] += all(query[row * dk + d]) * keys;
                }
                store(c.key_lanes + d * CHUNK + first, keys);
            }
            for (Index row = 0; row < ROWS; ++row) {
                const Index at = (i0 + row) * CHUNK + first;
                const auto up_to = lanes_before<T>(i0 + row + 1, first);
                if (erases) store(c.below + at, masks[row] ? erase_sum[row] : Vector<T>{});
                store(c.scores + at, up_to ? query_sum[row] : Vector<T>{});
            }
        }
}

// U <- (I + below)^-1 U, four rows at a time.
template <class T>
inline void solve_down(const T* below, T* u, Index dv) {
    constexpr Index lanes = Lanes<T>::count;
    for (Index i0 = 0; i0 < CHUNK; i0 += 4) {
        if (i0 > 0) {
            T minus[4 * CHUNK];
            for (Index i = 0; i < 4; ++i)
                for (Index j = 0; j < i0; ++j) minus[i * CHUNK + j] = -below[(i0 + i) * CHUNK + j];
            multiply(Index(4), dv, i0, rows_of(minus, CHUNK), u, dv, u + i0 * dv, dv, T(1));
        }
        for (Index i = i0 + 1; i < i0 + 4; ++i)
            for (Index j = i0; j < i; ++j) {
                const Vector<T> entry = all(below[i * CHUNK + j]);
                for (Index at = 0; at < dv; at += lanes)
                    store(u + i * dv + at, load(u + i * dv + at) - entry * load(u + j * dv + at));
            }
    }
}

// U <- (I + below)^-T U, from the last rows to the first.
template <class T>
inline void solve_up(const T* below, T* u, Index dv) {
    constexpr Index lanes = Lanes<T>::count;
    for (Index i0 = CHUNK - 4; i0 >= 0; i0 -= 4) {
        const Index after = i0 + 4;
        if (after < CHUNK) {
            T minus[4 * CHUNK];
            for (Index i = 0; i < 4; ++i)
                for (Index j = after; j < CHUNK; ++j)
                    minus[i * CHUNK + j - after] = -below[j * CHUNK + i0 + i];
            multiply(Index(4), dv, CHUNK - after, rows_of(minus, CHUNK), u + after * dv, dv,
                     u + i0 * dv, dv, T(1));
        }
        for (Index i = i0 + 2; i >= i0; --i)
            for (Index j = i + 1; j < i0 + 4; ++j) {
                const Vector<T> entry = all(below[j * CHUNK + i]);
                for (Index at = 0; at < dv; at += lanes)
                    store(u + i * dv + at, load(u + i * dv + at) - entry * load(u + j * dv + at));
            }
    }
}

// What a chunk computes before anything leaves it; S is the state that enters.
template <class Tokens, class T>
inline void enter(Chunk<T>& c, Index d_key, Index dv, const T* state) {
    constexpr bool erases = Tokens::erase != Erase::NONE, has_strength = Tokens::erase == Erase::OWN;
    constexpr Index skipped = erases ? 0 : CHUNK, num_readers = 2 * CHUNK - skipped;
    const Index dk = padded(d_key);
    const T* readers = c.readers + skipped * dk;
    transpose(c.key, dk, d_key, c.key_lanes, CHUNK);
    if constexpr (Tokens::decay == Decay::HEAD) {
        find_decays(c);
        multiply(num_readers, CHUNK, d_key, rows_of(readers, dk), c.key_lanes, CHUNK,
                 c.overlap + skipped * CHUNK, CHUNK);
        for (Index i = 0; i < CHUNK; ++i)
            for (Index j = 0; j < CHUNK; ++j) {
                const T decay = c.pairs[i * CHUNK + j];
                const T erased = has_strength ? c.strength[i] * decay : decay;
                if (erases)
                    c.below[i * CHUNK + j] = j < i ? erased * c.overlap[i * CHUNK + j] : T(0);
                c.scores[i * CHUNK + j] = decay * c.overlap[(CHUNK + i) * CHUNK + j];
            }
    } else {
        decay_readers<T, erases>(c, dk);
        decayed_overlaps<T, erases>(c, d_key, dk);
        readers = c.from_start + skipped * dk;
    }
    multiply(num_readers, dv, d_key, rows_of(readers, dk), state, dv, c.read + skipped * dv, dv);
    for (Index i = 0; i < CHUNK; ++i) {
        const T start = Tokens::decay == Decay::HEAD ? c.start[i] : T(1);
        const T strength = has_strength ? c.strength[i] : T(1);
        for (Index at = 0; at < dv; ++at)
            c.write[i * dv + at] =
                erases ? strength * (c.value[i * dv + at] - start * c.read[i * dv + at])
                       : c.value[i * dv + at];
    }
    if (erases) solve_down(c.below, c.write, dv);
    c.finite = is_finite(c.write + (CHUNK - 1) * dv, dv);
    if (has_strength) return;
    c.finite = c.finite && is_finite(c.write, CHUNK * dv) && is_finite(c.scores, CHUNK * CHUNK);
    if (!c.finite) clear_row(c.write + c.num * dv, (CHUNK - c.num) * dv);  // zero times that key
}

// O = E (Q S) + P U
template <class Tokens, class T>
inline void read_out(const Chunk<T>& c, Index dv, T* out) {
    for (Index i = 0; i < CHUNK; ++i) {
        const T start = Tokens::decay == Decay::HEAD ? c.start[i] : T(1);
        for (Index at = 0; at < dv; ++at)
            out[i * dv + at] = start * c.read[(CHUNK + i) * dv + at];
    }
    if (!c.finite) {
        for (Index i = 0; i < CHUNK; ++i)
            for (Index j = 0; j <= i; ++j)
                for (Index at = 0; at < dv; ++at)
                    out[i * dv + at] += c.scores[i * CHUNK + j] * c.write[j * dv + at];
        return;
    }
    multiply(CHUNK, dv, CHUNK, rows_of(c.scores, CHUNK), c.write, dv, out, dv, T(1));
}

// Row k of a d_key x d_value matrix times scales[k].
template <class T>
inline void scale_rows(T* matrix, const T* scales, Index d_key, Index dv) {
    for (Index k = 0; k < d_key; ++k)
        for (Index at = 0; at < dv; ++at) matrix[k * dv + at] *= scales[k];
}

// S <- E_C S + (z K)^T U
template <class Tokens, class T>
inline void advance(const Chunk<T>& c, Index d_key, Index dk, Index dv, T* state, T* kept) {
    if constexpr (Tokens::decay == Decay::HEAD) {
        for (Index i = 0; i < CHUNK; ++i)
            for (Index at = 0; at < dk; ++at) kept[i * dk + at] = c.end[i] * c.key[i * dk + at];
        multiply(d_key, dv, CHUNK, columns_of(kept, dk), c.write, dv, state, dv, c.whole);
    } else {
        scale_rows(state, c.all_steps, d_key, dv);
        multiply(d_key, dv, CHUNK, rows_of(c.key_lanes, CHUNK), c.write, dv, state, dv, T(1));
    }
}

// A state that is not given is zero.
template <class T>
inline void pack_state(T* to, const T* from, Index d_key, Index d_value) {
    const Index dv = padded(d_value);
    if (from == nullptr) return clear_row(to, d_key * dv);
    for (Index i = 0; i < d_key; ++i) {
        copy_row(from + i * d_value, to + i * dv, d_value);
        clear_row(to + i * dv + d_value, dv - d_value);
    }
}

template <class T>
inline void unpack_state(T* to, const T* from, Index d_key, Index d_value) {
    const Index dv = padded(d_value);
    for (Index i = 0; i < d_key; ++i)
        copy_row(from + i * dv, to + i * d_value, d_value);
}

// A single token, as in decoding: the recurrence itself, over some vectors of columns. The columns of
// a vector lie side by side in registers while the rows of the state pass by once to be read, and once
// to be written and read again.
template <class Tokens, int NUM, class T, class V>
inline void single_token_columns(const Chunk<T>& c, Index d_key, Index d_value, Index first, T decay,
                                 const T* before, T* after, T* out) {
    constexpr bool by_channel = Tokens::decay == Decay::CHANNEL;
    constexpr Index count = sizeof(V) / sizeof(T);
    const auto get = [](const T* from) { V x; std::memcpy(&x, from, sizeof x); return x; };
    const auto put = [](T* to, V x) { std::memcpy(to, &x, sizeof x); };
    V write[NUM] = {}, sum[NUM] = {};
    if (Tokens::erase != Erase::NONE)
        for (Index i = 0; i < d_key; ++i) {
            const T reads = by_channel ? c.readers[i] * c.steps[i] : c.readers[i];
            for (int n = 0; n < NUM; ++n)
                write[n] += reads * get(before + i * d_value + first + n * count);
        }
    for (int n = 0; n < NUM; ++n) {
        write[n] = get(c.value + first + n * count) - decay * write[n];
        if (Tokens::erase == Erase::OWN) write[n] = c.strength[0] * write[n];
    }
    for (Index i = 0; i < d_key; ++i) {
        const T step = by_channel ? c.steps[i] : decay, key = c.key[i], query = c.query[i];
        for (int n = 0; n < NUM; ++n) {
            const Index at = i * d_value + first + n * count;
            const V now = step * get(before + at) + key * write[n];
            put(after + at, now);
            sum[n] += query * now;
        }
    }
    for (int n = 0; n < NUM; ++n) put(out + first + n * count, sum[n]);
}

template <class Tokens, class T>
void single_token(const Chunk<T>& c, Index d_key, Index d_value, const T* before, T* after, T* out) {
    constexpr Index lanes = Lanes<T>::count;
    typedef T Single __attribute__((vector_size(sizeof(T))));
    T decay = 1;
    if constexpr (Tokens::decay == Decay::HEAD)
        decay = std::exp(c.log_decay[0]);
    else
        exponentials(c.log_decays, c.steps, padded(d_key));
    Index at = 0;
    for (; at + 4 * lanes <= d_value; at += 4 * lanes)
        single_token_columns<Tokens, 4, T, Vector<T>>(c, d_key, d_value, at, decay, before, after, out);
    for (; at + lanes <= d_value; at += lanes)
        single_token_columns<Tokens, 1, T, Vector<T>>(c, d_key, d_value, at, decay, before, after, out);
    for (; at < d_value; ++at)
        single_token_columns<Tokens, 1, T, Single>(c, d_key, d_value, at, decay, before, after, out);
}

template <class T>
inline Index forward_memory(Index d_key, Index d_value, Index side_size) {
    const Index dk = padded(d_key), dv = padded(d_value);
    return Chunk<T>::size(dk, dv, side_size) + dk * dv + dk * CHUNK + CHUNK * dk + CHUNK * dv;
}

// One head, first token to last. `states` gets the state that enters every GROUP-th chunk, if given.
template <class T, class Tokens>
void forward_head(Tokens& tokens, const T* initial_state, T* final_state, T* states,
                  Arena<T> arena) {
    const Index d_key = tokens.d_key, d_value = tokens.d_value;
    const Index dk = padded(d_key), dv = padded(d_value), state_size = d_key * d_value;
    Chunk<T> c;
    T* key_lanes = arena.take(dk * CHUNK);
    c.template place<Tokens>(arena, dk, dv, tokens.side_size(), key_lanes);
    T* state = arena.take(dk * dv);
    T* kept = arena.take(CHUNK * dk);
    T* out = arena.take(CHUNK * dv);
    if (tokens.seq == 1) {
        if (initial_state == nullptr) clear_row(state, state_size), initial_state = state;
        if (states != nullptr) copy_row(initial_state, states, state_size);
        tokens.fetch(c, 0, 1, 1);
        clear_row(out, dv);
        single_token<Tokens>(c, d_key, d_value, initial_state, final_state, out);
        return tokens.write(0, 1, out);
    }
    pack_state(state, initial_state, d_key, d_value);
    for (Index first = 0, number = 0; first < tokens.seq; first += CHUNK, ++number) {
        const Index num = tokens.seq - first < CHUNK ? tokens.seq - first : CHUNK;
        if (states != nullptr && number % GROUP == 0)
            unpack_state(states + number / GROUP * state_size, state, d_key, d_value);
        tokens.fetch(c, first, c.num = num);
        enter<Tokens>(c, d_key, dv, state);
        read_out<Tokens>(c, dv, out);
        tokens.write(first, num, out);
        advance<Tokens>(c, d_key, dk, dv, state, kept);
    }
    unpack_state(final_state, state, d_key, d_value);
}

template <class T>
inline Index backward_memory(Index d_key, Index d_value, Index side_size) {
    const Index dk = padded(d_key), dv = padded(d_value);
    return GROUP * (Chunk<T>::size(dk, dv, side_size) + dk * dv) + 3 * dk * dv + 5 * dk * CHUNK +
           8 * CHUNK * dk + dv * 3 * CHUNK + 8 * CHUNK * dv + 8 * CHUNK * CHUNK + 64 * CHUNK;
}

// The scratch of one chunk's backward.
template <class T>
struct BackwardSpace {
    T *d_state;      // d_key x d_value: gradient of the state after the chunk, then before it
    T *right_out;    // 32 x d_value: dR, then dO
    T *stored_out;   // 32 x d_value: gradients of what the readers found, before any decay
    T *lanes;        // d_value x 48: U^T; then the two halves of stored_out^T side by side
    T *products;     // 32 x 16: dR U^T, then dO U^T
    T *d_pairs;      // 32 x 16: dA, then dP; those of a head times D
    T *d_pairs_lanes;  // 16 x 32: dA^T and dP^T side by side
    T *d_overlap;    // 16 x 16: D dA + (D dA)^T
    T *d_kept;       // d_key x 16: dS' U^T
    T *d_readers;    // d_key x 32: gradients of the readers, as lanes
    T *d_keys;       // d_key x 16, or the first half of d_readers where keys erase
    Index d_keys_row;
    T *out;          // 16 x d_value: the rule's output once more
    T *again;        // d_key x d_value: the state before a token
    ChunkGradients<T> rows;

    template <class Tokens>
    void place(Arena<T>& arena, Index dk, Index dv) {
        d_state = arena.take(dk * dv), right_out = arena.take(2 * CHUNK * dv);
        stored_out = arena.take(2 * CHUNK * dv), lanes = arena.take(3 * CHUNK * dv);
        products = arena.take(2 * CHUNK * CHUNK), d_pairs = arena.take(2 * CHUNK * CHUNK);
        d_pairs_lanes = arena.take(2 * CHUNK * CHUNK), d_overlap = arena.take(CHUNK * CHUNK);
        d_kept = arena.take(dk * CHUNK), d_readers = arena.take(2 * dk * CHUNK);
        d_keys = Tokens::erase == Erase::OWN ? d_readers : d_kept;
        d_keys_row = Tokens::erase == Erase::OWN ? 2 * CHUNK : CHUNK;
        // Rows after d_key stay zero
        std::memset(d_readers, 0, 2 * dk * CHUNK * sizeof(T));
        std::memset(d_kept, 0, dk * CHUNK * sizeof(T));
        out = arena.take(CHUNK * dv);
        again = arena.take(dk * dv);
        rows = {arena.take(CHUNK * dk), arena.take(CHUNK * dk), arena.take(CHUNK * dv),
                arena.take(CHUNK * dk), arena.take(CHUNK * dk), arena.take(CHUNK),
                arena.take(CHUNK)};
    }
};

// Whether a column is not finite in `row` and was finite in the state.
template <class T>
__attribute__((noinline)) bool breaks(const T* row, const T* state, Index d_key, Index dv) {
    for (Index at = 0; at < dv; ++at) {
        T column = 0;
        for (Index k = 0; k < d_key; ++k) column += state[k * dv + at] * T(0);
        if (column == T(0) && !(row[at] * T(0) == T(0))) return true;
    }
    return false;
}

// The first half of a token's step: the state decays, and v - S^T e is what it lacks.
template <class Tokens, class T>
void decay_and_read(const Chunk<T>& c, Index i, Index d_key, Index dv, T* state, T* surprise) {
    const Index dk = padded(d_key);
    for (Index at = 0; at < dv; ++at) surprise[at] = T(0);
    for (Index k = 0; k < d_key; ++k) {
        const T decay = Tokens::decay == Decay::HEAD ? std::exp(c.log_decay[i])
                                                     : std::exp(c.log_decays[i * dk + k]);
        for (Index at = 0; at < dv; ++at) {
            state[k * dv + at] *= decay;
            if (Tokens::erase != Erase::NONE)
                surprise[at] += c.readers[i * dk + k] * state[k * dv + at];
        }
    }
    for (Index at = 0; at < dv; ++at) surprise[at] = c.value[i * dv + at] - surprise[at];
}

// The same as backward_chunk, token by token, as autograd goes through the recurrence. The state
// before a token is computed from the chunk's start each time.
template <class Tokens, class T>
__attribute__((noinline)) void backward_tokens(const Chunk<T>& c, Index d_key, Index d_value,
                                               const T* state, BackwardSpace<T>& s) {
    constexpr bool by_channel = Tokens::decay == Decay::CHANNEL;
    constexpr bool erases = Tokens::erase != Erase::NONE, own = Tokens::erase == Erase::OWN;
    const Index dk = padded(d_key), dv = padded(d_value);
    T *surprise = s.stored_out, *d_write = s.stored_out + dv, *before = s.again;
    for (Index i = CHUNK - 1; i >= 0; --i) {
        std::memcpy(before, state, d_key * dv * sizeof(T));
        for (Index j = 0; j < i; ++j) {
            decay_and_read<Tokens>(c, j, d_key, dv, before, surprise);
            const T strength = own ? c.strength[j] : T(1);
            for (Index k = 0; k < d_key; ++k)
                for (Index at = 0; at < dv; ++at)
                    before[k * dv + at] += c.key[j * dk + k] * (strength * surprise[at]);
        }
        decay_and_read<Tokens>(c, i, d_key, dv, before, surprise);
        const T *key = c.key + i * dk, *query = c.query + i * dk, *erase = c.readers + i * dk;
        const T *d_out = s.right_out + (CHUNK + i) * dv, strength = own ? c.strength[i] : T(1);
        T *d_key_row = s.rows.d_key + i * dk, *d_query_row = s.rows.d_query + i * dk;
        T *d_erase_row = own ? d_key_row : s.rows.d_erase_key + i * dk;
        T *d_log_decays = s.rows.d_log_decays + i * dk, d_strength = 0, d_log_decay = 0;
        clear_row(d_erase_row, dk), clear_row(d_key_row, dk), clear_row(d_query_row, dk);
        clear_row(d_write, dv), clear_row(d_log_decays, dk);
        for (Index k = 0; k < d_key; ++k)
            for (Index at = 0; at < d_value; ++at) {
                const T write = strength * surprise[at];
                T& d_state = s.d_state[k * dv + at];
                d_state += query[k] * d_out[at];
                d_query_row[k] += (before[k * dv + at] + key[k] * write) * d_out[at];
                d_key_row[k] += d_state * write;
                d_write[at] += d_state * key[k];
            }
        for (Index at = 0; at < dv; ++at) {
            d_strength += d_write[at] * surprise[at];
            s.rows.d_value[i * dv + at] = strength * d_write[at];
        }
        for (Index k = 0; k < d_key; ++k) {
            const T decay = std::exp(by_channel ? c.log_decays[i * dk + k] : c.log_decay[i]);
            for (Index at = 0; at < d_value; ++at) {
                const T stored = before[k * dv + at], d_stored = -strength * d_write[at];
                T& d_state = s.d_state[k * dv + at];
                if (erases) {
                    d_erase_row[k] += stored * d_stored;
                    d_state += erase[k] * d_stored;
                }
                (by_channel ? d_log_decays[k] : d_log_decay) += d_state * stored;
                d_state *= decay;
            }
        }
        s.rows.d_strength[i] = d_strength, s.rows.d_log_decay[i] = d_log_decay;
    }
}

// The gradients of readers, keys and log decays where channels decay, a vector of channels at a time.
// The rows of `d` begin as what S gives to readers and what the state after the chunk gives to keys,
// both without decay. From the last token i to the first, the sum of each key j < i gathers what the
// reader at i gives, dA_ij e_i + dP_ij q_i, and decays.
//
// The gradient of g_i is what passes the decay of token i: from keys before i, and from S, to readers
// from i on and to the state after the chunk (`d_whole`: from S to that state). All terms have that
// decay as a factor. The difference of what readers get and what keys give, summed from i on, is the
// same number, but its rounding does not shrink with the decay.
template <class T, bool erases>
__attribute__((noinline)) void gather_channels(const Chunk<T>& c, Index d_key, Index dk,
                                               const T* d_pairs, const T* diagonal,
                                               const T* d_whole, const ChunkGradients<T>& d) {
    Vector<T> keys[CHUNK * CHUNK];  // [i, j]: k_j just before token i decays
    Vector<T> starts[CHUNK], sums[CHUNK];
    for (Index at = 0; at < d_key; at += Lanes<T>::count) {
        for (Index i = 0; i < CHUNK; ++i) {
            const Vector<T> step = load(c.steps + i * dk + at);
            starts[i] = i == 0 ? step : starts[i - 1] * step;
            sums[i] = load(d.d_key + i * dk + at);
            if (i + 1 == CHUNK) break;
            for (Index j = 0; j < i; ++j) keys[(i + 1) * CHUNK + j] = keys[i * CHUNK + j] * step;
            keys[(i + 1) * CHUNK + i] = load(c.key + i * dk + at);
        }
        Vector<T> from_state = load(d_whole + at);
        for (Index i = CHUNK - 1; i >= 0; --i) {
            const Index row = i * dk + at;
            const T *d_lower = d_pairs + i * CHUNK, *d_scores = d_pairs + (CHUNK + i) * CHUNK;
            const Vector<T> step = load(c.steps + row), query = load(c.query + row);
            const Vector<T> erase = erases ? load(c.readers + row) : Vector<T>{};
            Vector<T> d_query{}, d_erase{}, d_step{};
            for (Index j = 0; j < i; ++j) {
                const Vector<T> key = keys[i * CHUNK + j], d_score = all(d_scores[j]);
                Vector<T> sum = sums[j] + d_score * query;
                d_query += d_score * key;
                if (erases) {
                    sum += all(d_lower[j]) * erase;
                    d_erase += all(d_lower[j]) * key;
                }
                d_step += sum * key;
                sums[j] = sum * step;
            }
            const Vector<T> query_of_state = starts[i] * load(d.d_query + row);
            from_state += query * query_of_state;
            store(d.d_query + row,
                  query_of_state + step * d_query + all(diagonal[i]) * load(c.key + row));
            store(d.d_key + row, sums[i] + all(diagonal[i]) * query);
            if (erases) {
                const Vector<T> erase_of_state = starts[i] * load(d.d_erase_key + row);
                from_state += erase * erase_of_state;
                store(d.d_erase_key + row, erase_of_state + step * d_erase);
            }
            store(d.d_log_decays + row, from_state + step * d_step);
        }
    }
}

// Lanes of tokens, d_key x 16, as rows.
template <class T>
inline void lanes_to_rows(const T* lanes, Index lanes_row, T* rows, Index dk) {
    for (Index at = 0; at < dk; at += CHUNK)
        transpose(lanes + at * lanes_row, lanes_row, CHUNK, rows + at, dk);
}

// What comes after dR where channels decay.
template <class Tokens, class T>
void backward_channels(const Chunk<T>& c, Index d_key, Index d_value, const T* state,
                       BackwardSpace<T>& s) {
    constexpr bool erases = Tokens::erase != Erase::NONE;
    constexpr Index skipped = erases ? 0 : CHUNK, num_readers = 2 * CHUNK - skipped;
    const Index dk = padded(d_key), dv = padded(d_value);
    T *d_whole = s.again, diagonal[CHUNK];
    for (Index i = 0; i < CHUNK; ++i) {
        for (Index j = 0; j < CHUNK; ++j) {
            const Index at = i * CHUNK + j, query = (CHUNK + i) * CHUNK + j;
            s.d_pairs[at] = erases && j < i ? -s.products[at] : T(0);
            s.d_pairs[query] = j < i ? s.products[query] : T(0);
        }
        diagonal[i] = s.products[(CHUNK + i) * CHUNK + i];
    }
    clear_row(d_whole, dk);
    for (Index k = 0; k < d_key; ++k)
        d_whole[k] = c.all_steps[k] * dot(s.d_state + k * dv, state + k * dv, dv);
    multiply(d_key, num_readers, d_value, rows_of(state, dv), s.lanes + skipped, 2 * CHUNK,
             s.d_readers + skipped, 2 * CHUNK);
    lanes_to_rows(s.d_keys, CHUNK, s.rows.d_key, dk);
    lanes_to_rows(s.d_readers + CHUNK, 2 * CHUNK, s.rows.d_query, dk);
    if (erases) lanes_to_rows(s.d_readers, 2 * CHUNK, s.rows.d_erase_key, dk);
    gather_channels<T, erases>(c, d_key, dk, s.d_pairs, diagonal, d_whole, s.rows);
    scale_rows(s.d_state, c.all_steps, d_key, dv);
    multiply(d_key, dv, num_readers, columns_of(c.from_start + skipped * dk, dk),
             s.stored_out + skipped * dv, dv, s.d_state, dv, T(1));
}

// From dR U^T and dO U^T to D dA, D dP and their transposes, and to what pairs of tokens give to the
// sums of log decays and to write strengths. In double: what two tokens add to and take from the sums
// must cancel where it should.
template <class Tokens, class T>
void backward_pairs(const Chunk<T>& c, BackwardSpace<T>& s, double* d_total, T* d_strength) {
    constexpr bool erases = Tokens::erase != Erase::NONE, own = Tokens::erase == Erase::OWN;
    constexpr Index count = Lanes<T>::count, SIZE = CHUNK * CHUNK;
    typedef double Sums __attribute__((vector_size(count * sizeof(double))));
    T pairs[SIZE], pairs_lanes[SIZE], d_lower[SIZE], d_lower_lanes[SIZE], lower[SIZE];
    T lower_lanes[SIZE];
    for (Index i = 0; i < CHUNK; ++i)
        for (Index first = 0; first < CHUNK; first += count) {
            const Index at = i * CHUNK + first, query = SIZE + at;
            const Vector<T> decay = load(c.pairs + at);
            const Vector<T> d_score = decay * load(s.products + query);
            Vector<T> pair = d_score * load(c.overlap + query), d_erased{};
            if (erases) {
                const Vector<T> overlap = load(c.overlap + at), product = load(s.products + at);
                const Vector<T> d = lanes_before<T>(i, first) ? -product : Vector<T>{};
                d_erased = own ? decay * all(c.strength[i]) * d : decay * d;
                pair = d_score * load(c.overlap + query) + d_erased * overlap;
                store(d_lower + at, d);
                store(lower + at, decay * overlap);
            }
            store(s.d_pairs + at, d_erased);
            store(s.d_pairs + query, d_score);
            store(pairs + at, pair);
        }
    transpose(s.d_pairs, CHUNK, CHUNK, s.d_pairs_lanes, 2 * CHUNK);
    transpose(s.d_pairs + SIZE, CHUNK, CHUNK, s.d_pairs_lanes + CHUNK, 2 * CHUNK);
    transpose(pairs, CHUNK, CHUNK, pairs_lanes, CHUNK);
    if (own) {
        transpose(d_lower, CHUNK, CHUNK, d_lower_lanes, CHUNK);
        transpose(lower, CHUNK, CHUNK, lower_lanes, CHUNK);
    }
    for (Index first = 0; first < CHUNK; first += count) {
        Sums sums{};
        Vector<T> through{};
        for (Index at = first; at < SIZE; at += CHUNK) {
            sums += __builtin_convertvector(load(pairs_lanes + at), Sums);
            if (own) through += load(d_lower_lanes + at) * load(lower_lanes + at);
        }
        for (Index at = first; at < SIZE; at += CHUNK)
            sums -= __builtin_convertvector(load(pairs + at), Sums);
        std::memcpy(d_total + first, &sums, sizeof sums);
        store(d_strength + first, through);
    }
}

// What comes after dR where a head decays as a whole.
template <class Tokens, class T>
void backward_head_decay(const Chunk<T>& c, Index d_key, Index d_value, const T* state,
                         BackwardSpace<T>& s) {
    constexpr bool erases = Tokens::erase != Erase::NONE, own = Tokens::erase == Erase::OWN;
    constexpr Index skipped = erases ? 0 : CHUNK, num_readers = 2 * CHUNK - skipped;
    const Index dk = padded(d_key), dv = padded(d_value);
    T *d_over = s.d_pairs, *d_scores = s.d_pairs + CHUNK * CHUNK;
    double d_total[CHUNK], ends = 0, d_log_decay = 0;
    T d_strength[CHUNK];
    backward_pairs<Tokens>(c, s, d_total, d_strength);
    const T d_whole = c.whole * dot(s.d_state, state, d_key * dv);

    // The readers, side by side: S stored_out^T, then what comes from inside the chunk
    multiply(d_key, num_readers, d_value, rows_of(state, dv), s.lanes + skipped, 2 * CHUNK,
             s.d_readers + skipped, 2 * CHUNK);
    T d_end[CHUNK] = {};
    transpose(c.key, dk, d_key, c.key_lanes, CHUNK);
    for (Index at = 0; at < d_key * CHUNK; at += CHUNK)
        for (Index i = 0; i < CHUNK; ++i) {
            d_end[i] += c.key_lanes[at + i] * s.d_kept[at + i];
            if (!own) s.d_kept[at + i] *= c.end[i];
        }
    if (own) {
        for (Index i = 0; i < CHUNK; ++i)
            for (Index j = 0; j < CHUNK; ++j)
                s.d_overlap[i * CHUNK + j] =
                    d_over[i * CHUNK + j] + s.d_pairs_lanes[i * 2 * CHUNK + j];
        multiply(d_key, CHUNK, CHUNK, columns_of(c.query, dk), d_scores, CHUNK, s.d_readers,
                 2 * CHUNK, T(1));
        multiply(d_key, CHUNK, CHUNK, columns_of(c.key, dk), s.d_overlap, CHUNK, s.d_readers,
                 2 * CHUNK, T(1));
        multiply(d_key, CHUNK, CHUNK, columns_of(c.key, dk), s.d_pairs_lanes + CHUNK, 2 * CHUNK,
                 s.d_readers + CHUNK, 2 * CHUNK, T(1));
        for (Index k = 0; k < d_key; ++k)
            for (Index i = 0; i < CHUNK; ++i)
                s.d_readers[k * 2 * CHUNK + i] += c.end[i] * s.d_kept[k * CHUNK + i];
    } else {
        multiply(d_key, CHUNK, num_readers, columns_of(c.readers + skipped * dk, dk),
                 s.d_pairs + skipped * CHUNK, CHUNK, s.d_keys, CHUNK, T(1));
        multiply(d_key, num_readers, CHUNK, columns_of(c.key, dk), s.d_pairs_lanes + skipped,
                 2 * CHUNK, s.d_readers + skipped, 2 * CHUNK, T(1));
    }

    // dS = E_C dS' + readers^T stored_out
    multiply(d_key, dv, num_readers, columns_of(c.readers + skipped * dk, dk),
             s.stored_out + skipped * dv, dv, s.d_state, dv, c.whole);

    // Decays and write strengths, and tokens as rows again
    const T *d_right = s.right_out, *d_out = s.right_out + CHUNK * dv;
    for (Index i = 0; i < CHUNK; ++i) {
        T d_start = dot(d_out + i * dv, c.read + (CHUNK + i) * dv, dv);
        if (erases) {
            const T right_stored = dot(d_right + i * dv, c.read + i * dv, dv);
            d_start -= own ? c.strength[i] * right_stored : right_stored;
            d_strength[i] +=
                dot(d_right + i * dv, c.value + i * dv, dv) - c.start[i] * right_stored;
        }
        const T d_kept = d_end[i] * c.end[i];
        d_total[i] += double(d_start * c.start[i]) - d_kept;
        ends += d_kept;
        s.rows.d_strength[i] = d_strength[i];
    }
    d_total[CHUNK - 1] += ends + d_whole;
    for (Index i = CHUNK - 1; i >= 0; --i) s.rows.d_log_decay[i] = T(d_log_decay += d_total[i]);
    lanes_to_rows(s.d_keys, s.d_keys_row, s.rows.d_key, dk);
    lanes_to_rows(s.d_readers + CHUNK, 2 * CHUNK, s.rows.d_query, dk);
    if (erases && !own) lanes_to_rows(s.d_readers, 2 * CHUNK, s.rows.d_erase_key, dk);
}

// From the gradient of a chunk's output in s.right_out, and of the state after it in s.d_state, to
// those of its tokens in s.rows and of the state before it.
template <class Tokens, class T>
void backward_chunk(const Chunk<T>& c, Index d_key, Index d_value, const T* state,
                    BackwardSpace<T>& s) {
    constexpr bool by_channel = Tokens::decay == Decay::CHANNEL;
    constexpr bool erases = Tokens::erase != Erase::NONE, own = Tokens::erase == Erase::OWN;
    const Index dk = padded(d_key), dv = padded(d_value);
    T *d_right = s.right_out, *d_out = s.right_out + CHUNK * dv;
    T *d_stored = s.stored_out, *scaled_out = s.stored_out + CHUNK * dv;

    // dU = Z dS' + P^T dO, and through the solve dR = (I + A)^-T dU
    const Scalars<T> kept = by_channel ? columns_of(c.key_lanes, CHUNK) : rows_of(c.key, dk);
    multiply(CHUNK, dv, d_key, kept, s.d_state, dv, d_right, dv);
    if (!by_channel)
        for (Index i = 0; i < CHUNK; ++i)
            for (Index at = 0; at < dv; ++at) d_right[i * dv + at] *= c.end[i];
    multiply(CHUNK, dv, CHUNK, columns_of(c.scores, CHUNK), d_out, dv, d_right, dv, T(1));
    if (erases) solve_up(c.below, d_right, dv);
    const bool broken =
        own ? (!c.finite && breaks(c.write + (CHUNK - 1) * dv, state, d_key, dv)) ||
                  (!is_finite(d_right, dv) && breaks(d_right, s.d_state, d_key, dv))
            : !c.finite || !is_finite(d_right, CHUNK * dv);
    if (broken) return backward_tokens<Tokens>(c, d_key, d_value, state, s);

    for (Index i = 0; i < CHUNK; ++i) {
        const T start = by_channel ? T(1) : c.start[i];
        const T scale = own ? -c.strength[i] * start : -start;
        const T strength = own ? c.strength[i] : T(1);
        for (Index at = 0; at < dv; ++at) {
            if (erases) d_stored[i * dv + at] = scale * d_right[i * dv + at];
            scaled_out[i * dv + at] = start * d_out[i * dv + at];
            s.rows.d_value[i * dv + at] = strength * d_right[i * dv + at];
        }
    }

    // dR U^T, dO U^T and dS' U^T, all that U takes part in; then stored_out^T takes its place
    constexpr Index skipped = erases ? 0 : CHUNK;
    transpose(c.write, dv, d_value, s.lanes, CHUNK);
    multiply(2 * CHUNK - skipped, CHUNK, d_value, rows_of(s.right_out + skipped * dv, dv), s.lanes,
             CHUNK, s.products + skipped * CHUNK, CHUNK);
    multiply(d_key, CHUNK, d_value, rows_of(s.d_state, dv), s.lanes, CHUNK, s.d_kept, CHUNK);
    if (erases) transpose(d_stored, dv, d_value, s.lanes, 2 * CHUNK);
    transpose(scaled_out, dv, d_value, s.lanes + CHUNK, 2 * CHUNK);
    if constexpr (by_channel)
        backward_channels<Tokens>(c, d_key, d_value, state, s);
    else
        backward_head_decay<Tokens>(c, d_key, d_value, state, s);
}

// One head, last token to first. Within a group of chunks the forward is run again from its state.
template <class T, class Tokens>
void backward_head(Tokens& tokens, const T* states, const T* d_final_state, T* d_initial_state,
                   Arena<T> arena) {
    const Index d_key = tokens.d_key, d_value = tokens.d_value;
    const Index dk = padded(d_key), dv = padded(d_value);
    const Index num_chunks = (tokens.seq + CHUNK - 1) / CHUNK;
    Chunk<T> chunks[GROUP];
    T* entering[GROUP];
    T* key_lanes = arena.take(dk * CHUNK);
    for (Index n = 0; n < GROUP; ++n) {
        chunks[n].template place<Tokens>(arena, dk, dv, tokens.side_size(), key_lanes);
        entering[n] = arena.take(dk * dv);
    }
    T* kept = arena.take(CHUNK * dk);
    BackwardSpace<T> space;
    space.template place<Tokens>(arena, dk, dv);
    pack_state(space.d_state, d_final_state, d_key, d_value);
    for (Index group = (num_chunks + GROUP - 1) / GROUP - 1; group >= 0; --group) {
        const Index begin = group * GROUP;
        const Index size = num_chunks - begin < GROUP ? num_chunks - begin : GROUP;
        const auto num_tokens = [&](Index n) {
            const Index left = tokens.seq - (begin + n) * CHUNK;
            return left < CHUNK ? left : CHUNK;
        };
        pack_state(entering[0], states + group * d_key * d_value, d_key, d_value);
        for (Index n = 0; n < size; ++n) {
            tokens.fetch(chunks[n], (begin + n) * CHUNK, chunks[n].num = num_tokens(n));
            enter<Tokens>(chunks[n], d_key, dv, entering[n]);
            if (n + 1 < size) {
                std::memcpy(entering[n + 1], entering[n], d_key * dv * sizeof(T));
                advance<Tokens>(chunks[n], d_key, dk, dv, entering[n + 1], kept);
            }
        }
        for (Index n = size - 1; n >= 0; --n) {
            const Index first = (begin + n) * CHUNK, num = num_tokens(n);
            if (Tokens::output_again) read_out<Tokens>(chunks[n], dv, space.out);
            tokens.d_output(chunks[n], first, num, space.out, space.right_out + CHUNK * dv);
            backward_chunk<Tokens>(chunks[n], d_key, d_value, entering[n], space);
            tokens.d_tokens(chunks[n], first, num, space.rows);
        }
    }
    unpack_state(d_initial_state, space.d_state, d_key, d_value);
}
