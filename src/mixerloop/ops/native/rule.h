// The gated delta rule over one head, a chunk of 16 tokens at a time.
//
// Names are those of ops/chunked.py, whose equations these are: E, D and z are the decays from the
// chunk's start to a token, from token to token and from a token to the chunk's end; A and P the
// decayed overlaps of keys with keys and of queries with keys; U what each token really writes.
// Chunks of a head follow one another and the state stays in cache. Tokens of a chunk are either the
// rows of a matrix (16 x width) or its lanes (width x 16), whichever a product needs.
//
// Where a chunk's tokens come from and where its results go is the business of `Tokens`:
//
//     Index seq, d_key, d_value
//     fetch(chunk, first, num)                  keys, queries, values, log decays, write strengths
//     write(first, num, out)                    the rule's output, 16 x d_value
//     d_output(chunk, first, num, out, d_out)   its gradient; `out` may be asked for again
//     d_tokens(chunk, first, num, gradients)    the gradients of what was loaded
//
// with rows padded by zeros, and tokens from `num` on zero. `chunk.side` is memory for its own use.
//
// A number that is not finite, times a zero of a triangle, would reach earlier tokens of its chunk. The
// last row of U tells whether a chunk has such a number, and the first row of dR in the backward; then
// the triangle is walked entry by entry, and the backward goes token by token.

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
    T *key_query;   // 32 x d_key: keys, then queries
    T *value;       // 16 x d_value
    T *overlap;     // 32 x 16: K K^T, then Q K^T
    T *read;        // 32 x d_value: K S, then Q S
    T *write;       // 16 x d_value: U
    T *pairs;       // 16 x 16: D
    T *below;       // 16 x 16: b A, strictly below the diagonal
    T *scores;      // 16 x 16: P
    T *start, *end, *strength, *log_decay;  // E, z, b, g
    T *side;        // what its tokens' source wants to remember
    T whole;        // E_C
    bool finite;    // whether U is, and with it keys, values, gates and the state that entered

    void place(Arena<T>& arena, Index dk, Index dv, Index side_size) {
        key_query = arena.take(2 * CHUNK * dk), value = arena.take(CHUNK * dv);
        overlap = arena.take(2 * CHUNK * CHUNK), read = arena.take(2 * CHUNK * dv);
        write = arena.take(CHUNK * dv), pairs = arena.take(CHUNK * CHUNK);
        below = arena.take(CHUNK * CHUNK), scores = arena.take(CHUNK * CHUNK);
        start = arena.take(CHUNK), end = arena.take(CHUNK), strength = arena.take(CHUNK);
        log_decay = arena.take(CHUNK), side = arena.take(side_size);
    }

    static Index size(Index dk, Index dv, Index side_size) {
        return 2 * CHUNK * dk + 4 * CHUNK * dv + 5 * CHUNK * CHUNK + 4 * CHUNK + padded(side_size);
    }
};

// What a chunk's tokens get back, as rows; the gates' one number for each token.
template <class T>
struct ChunkGradients {
    T *d_query, *d_key, *d_value, *d_log_decay, *d_strength;
};

// One row, with zeros after its end.
template <class T, class S>
inline void load_row(T* to, Index to_row, const S* from, Index width) {
    widen(from, to, width);
    clear_row(to + width, to_row - width);
}

template <class T, class S>
inline void load_rows(T* to, Index to_row, const S* from, Index stride, Index width, Index num) {
    for (Index i = 0; i < num; ++i) load_row(to + i * to_row, to_row, from + i * stride, width);
    std::memset(to + num * to_row, 0, (CHUNK - num) * to_row * sizeof(T));
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
template <class T>
inline void enter(Chunk<T>& c, Index d_key, Index dv, const T* state, T* key_lanes) {
    const Index dk = padded(d_key);
    find_decays(c);
    transpose(c.key_query, dk, d_key, key_lanes, CHUNK);
    multiply(2 * CHUNK, CHUNK, d_key, rows_of(c.key_query, dk), key_lanes, CHUNK, c.overlap, CHUNK);
    multiply(2 * CHUNK, dv, d_key, rows_of(c.key_query, dk), state, dv, c.read, dv);
    for (Index i = 0; i < CHUNK; ++i)
        for (Index j = 0; j < CHUNK; ++j) {
            const T decay = c.pairs[i * CHUNK + j];
            c.below[i * CHUNK + j] =
                j < i ? c.strength[i] * decay * c.overlap[i * CHUNK + j] : T(0);
            c.scores[i * CHUNK + j] = decay * c.overlap[(CHUNK + i) * CHUNK + j];
        }
    for (Index i = 0; i < CHUNK; ++i)
        for (Index at = 0; at < dv; ++at)
            c.write[i * dv + at] =
                c.strength[i] * (c.value[i * dv + at] - c.start[i] * c.read[i * dv + at]);
    solve_down(c.below, c.write, dv);
    c.finite = is_finite(c.write + (CHUNK - 1) * dv, dv);
}

// O = E (Q S) + P U
template <class T>
inline void read_out(const Chunk<T>& c, Index dv, T* out) {
    for (Index i = 0; i < CHUNK; ++i)
        for (Index at = 0; at < dv; ++at)
            out[i * dv + at] = c.start[i] * c.read[(CHUNK + i) * dv + at];
    if (!c.finite) {
        for (Index i = 0; i < CHUNK; ++i)
            for (Index j = 0; j <= i; ++j)
                for (Index at = 0; at < dv; ++at)
                    out[i * dv + at] += c.scores[i * CHUNK + j] * c.write[j * dv + at];
        return;
    }
    multiply(CHUNK, dv, CHUNK, rows_of(c.scores, CHUNK), c.write, dv, out, dv, T(1));
}

// S <- E_C S + (z K)^T U
template <class T>
inline void advance(const Chunk<T>& c, Index d_key, Index dk, Index dv, T* state, T* kept) {
    for (Index i = 0; i < CHUNK; ++i)
        for (Index at = 0; at < dk; ++at) kept[i * dk + at] = c.end[i] * c.key_query[i * dk + at];
    multiply(d_key, dv, CHUNK, columns_of(kept, dk), c.write, dv, state, dv, c.whole);
}

template <class T>
inline void pack_state(T* to, const T* from, Index d_key, Index d_value) {
    const Index dv = padded(d_value);
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

// A single token, as in decoding: the recurrence itself, without the bookkeeping of chunks.
template <class T>
void single_token(const Chunk<T>& c, Index d_key, Index d_value, const T* before, T* after, T* out) {
    const T *key = c.key_query, *query = c.key_query + CHUNK * padded(d_key);
    const T decay = std::exp(c.log_decay[0]);
    for (Index j = 0; j < d_value; ++j) out[j] = T(0);
    for (Index i = 0; i < d_key; ++i)
        for (Index j = 0; j < d_value; ++j) out[j] += key[i] * before[i * d_value + j];
    for (Index j = 0; j < d_value; ++j)
        out[j] = c.strength[0] * (c.value[j] - decay * out[j]);  // what the token writes
    for (Index i = 0; i < d_key; ++i)
        for (Index j = 0; j < d_value; ++j)
            after[i * d_value + j] = decay * before[i * d_value + j] + key[i] * out[j];
    for (Index j = 0; j < d_value; ++j) out[j] = T(0);
    for (Index i = 0; i < d_key; ++i)
        for (Index j = 0; j < d_value; ++j) out[j] += query[i] * after[i * d_value + j];
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
    c.place(arena, dk, dv, tokens.side_size());
    T* state = arena.take(dk * dv);
    T* key_lanes = arena.take(dk * CHUNK);
    T* kept = arena.take(CHUNK * dk);
    T* out = arena.take(CHUNK * dv);
    if (tokens.seq == 1) {
        if (states != nullptr) std::memcpy(states, initial_state, state_size * sizeof(T));
        tokens.fetch(c, 0, 1);
        std::memset(out, 0, dv * sizeof(T));
        single_token(c, d_key, d_value, initial_state, final_state, out);
        return tokens.write(0, 1, out);
    }
    pack_state(state, initial_state, d_key, d_value);
    for (Index first = 0, number = 0; first < tokens.seq; first += CHUNK, ++number) {
        const Index num = tokens.seq - first < CHUNK ? tokens.seq - first : CHUNK;
        if (states != nullptr && number % GROUP == 0)
            unpack_state(states + number / GROUP * state_size, state, d_key, d_value);
        tokens.fetch(c, first, num);
        enter(c, d_key, dv, state, key_lanes);
        read_out(c, dv, out);
        tokens.write(first, num, out);
        advance(c, d_key, dk, dv, state, kept);
    }
    unpack_state(final_state, state, d_key, d_value);
}

template <class T>
inline Index backward_memory(Index d_key, Index d_value, Index side_size) {
    const Index dk = padded(d_key), dv = padded(d_value);
    return GROUP * (Chunk<T>::size(dk, dv, side_size) + dk * dv) + 3 * dk * dv + 2 * dk * CHUNK +
           6 * CHUNK * dk + dv * 3 * CHUNK + 8 * CHUNK * dv + 8 * CHUNK * CHUNK + 64 * CHUNK;
}

// The scratch of one chunk's backward.
template <class T>
struct BackwardSpace {
    T *d_state;      // d_key x d_value: gradient of the state after the chunk, then before it
    T *right_out;    // 32 x d_value: dR, then dO
    T *stored_out;   // 32 x d_value: dKS, then E dO
    T *lanes;        // d_value x 48: U^T; then dKS^T and (E dO)^T side by side
    T *products;     // 32 x 16: dR U^T, then dO U^T
    T *d_scores, *d_scores_lanes, *d_overlap;  // 16 x 16: D dP, its transpose, D dA + (D dA)^T
    T *d_kept;       // d_key x 16: dS' U^T
    T *d_keys, *d_queries;  // d_key x 16
    T *out;          // 16 x d_value: the rule's output once more
    T *again;        // d_key x d_value: the state before a token
    ChunkGradients<T> rows;

    void place(Arena<T>& arena, Index dk, Index dv) {
        d_state = arena.take(dk * dv), right_out = arena.take(2 * CHUNK * dv);
        stored_out = arena.take(2 * CHUNK * dv), lanes = arena.take(3 * CHUNK * dv);
        products = arena.take(2 * CHUNK * CHUNK), d_scores = arena.take(CHUNK * CHUNK);
        d_scores_lanes = arena.take(CHUNK * CHUNK), d_overlap = arena.take(CHUNK * CHUNK);
        d_kept = arena.take(dk * CHUNK), d_keys = arena.take(2 * dk * CHUNK);
        d_queries = d_keys + CHUNK;  // side by side: d_key x 32
        std::memset(d_keys, 0, 2 * dk * CHUNK * sizeof(T));  // rows after d_key stay zero
        out = arena.take(CHUNK * dv);
        again = arena.take(dk * dv);
        rows = {arena.take(CHUNK * dk), arena.take(CHUNK * dk), arena.take(CHUNK * dv),
                arena.take(CHUNK), arena.take(CHUNK)};
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

// The first half of a token's step: the state decays, and v - S^T k is what it lacks.
template <class T>
void decay_and_read(const Chunk<T>& c, Index i, Index d_key, Index dv, T* state, T* surprise) {
    const T *key = c.key_query + i * padded(d_key), decay = std::exp(c.log_decay[i]);
    for (Index at = 0; at < dv; ++at) surprise[at] = T(0);
    for (Index k = 0; k < d_key; ++k)
        for (Index at = 0; at < dv; ++at) {
            state[k * dv + at] *= decay;
            surprise[at] += key[k] * state[k * dv + at];
        }
    for (Index at = 0; at < dv; ++at) surprise[at] = c.value[i * dv + at] - surprise[at];
}

// The same as backward_chunk, token by token, as autograd goes through the recurrence. The state
// before a token is computed from the chunk's start each time.
template <class T>
__attribute__((noinline)) void backward_tokens(const Chunk<T>& c, Index d_key, Index d_value,
                                               const T* state, BackwardSpace<T>& s) {
    const Index dk = padded(d_key), dv = padded(d_value);
    T *surprise = s.stored_out, *d_write = s.stored_out + dv, *before = s.again;
    for (Index i = CHUNK - 1; i >= 0; --i) {
        std::memcpy(before, state, d_key * dv * sizeof(T));
        for (Index j = 0; j < i; ++j) {
            decay_and_read(c, j, d_key, dv, before, surprise);
            for (Index k = 0; k < d_key; ++k)
                for (Index at = 0; at < dv; ++at)
                    before[k * dv + at] += c.key_query[j * dk + k] * (c.strength[j] * surprise[at]);
        }
        decay_and_read(c, i, d_key, dv, before, surprise);
        const T *key = c.key_query + i * dk, *query = c.key_query + (CHUNK + i) * dk;
        const T *d_out = s.right_out + (CHUNK + i) * dv;
        const T strength = c.strength[i], decay = std::exp(c.log_decay[i]);
        T *d_key_row = s.rows.d_key + i * dk, *d_query_row = s.rows.d_query + i * dk;
        T d_strength = 0, d_log_decay = 0;
        clear_row(d_key_row, dk), clear_row(d_query_row, dk), clear_row(d_write, dv);
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
        for (Index k = 0; k < d_key; ++k)
            for (Index at = 0; at < d_value; ++at) {
                const T stored = before[k * dv + at], d_stored = -strength * d_write[at];
                T& d_state = s.d_state[k * dv + at];
                d_key_row[k] += stored * d_stored;
                d_state += key[k] * d_stored;
                d_log_decay += d_state * stored;
                d_state *= decay;
            }
        s.rows.d_strength[i] = d_strength, s.rows.d_log_decay[i] = d_log_decay;
    }
}

// From the gradient of a chunk's output in s.right_out, and of the state after it in s.d_state, to
// those of its tokens in s.rows and of the state before it.
template <class T>
void backward_chunk(const Chunk<T>& c, Index d_key, Index d_value, const T* state,
                    BackwardSpace<T>& s) {
    const Index dk = padded(d_key), dv = padded(d_value);
    const T *keys = c.key_query, *queries = c.key_query + CHUNK * dk;
    T *d_right = s.right_out, *d_out = s.right_out + CHUNK * dv;
    T *d_stored = s.stored_out, *scaled_out = s.stored_out + CHUNK * dv;

    // dU = z (K dS') + P^T dO, and through the solve dR = M^-T dU
    multiply(CHUNK, dv, d_key, rows_of(keys, dk), s.d_state, dv, d_right, dv);
    for (Index i = 0; i < CHUNK; ++i)
        for (Index at = 0; at < dv; ++at) d_right[i * dv + at] *= c.end[i];
    multiply(CHUNK, dv, CHUNK, columns_of(c.scores, CHUNK), d_out, dv, d_right, dv, T(1));
    solve_up(c.below, d_right, dv);
    if ((!c.finite && breaks(c.write + (CHUNK - 1) * dv, state, d_key, dv)) ||
        (!is_finite(d_right, dv) && breaks(d_right, s.d_state, d_key, dv)))
        return backward_tokens(c, d_key, d_value, state, s);

    for (Index i = 0; i < CHUNK; ++i) {
        const T scale = -c.strength[i] * c.start[i];
        for (Index at = 0; at < dv; ++at) {
            d_stored[i * dv + at] = scale * d_right[i * dv + at];
            scaled_out[i * dv + at] = c.start[i] * d_out[i * dv + at];
        }
    }

    // dR U^T and dO U^T; then everything between two tokens of the chunk
    T* write_lanes = s.lanes;
    transpose(c.write, dv, d_value, write_lanes, CHUNK);
    multiply(2 * CHUNK, CHUNK, d_value, rows_of(s.right_out, dv), write_lanes, CHUNK, s.products,
             CHUNK);
    // In double: what two tokens add to and take from the sums must cancel where it should
    double d_total[CHUNK] = {}, ends = 0, d_log_decay = 0;
    T d_strength[CHUNK], overlap_grad[CHUNK][CHUNK];
    for (Index i = 0; i < CHUNK; ++i) {
        T through_below = 0;
        for (Index j = 0; j < CHUNK; ++j) {
            const T decay = c.pairs[i * CHUNK + j];
            const T d_lower = j < i ? -s.products[i * CHUNK + j] : T(0);
            const T lower = decay * c.overlap[i * CHUNK + j];
            const T d_score = decay * s.products[(CHUNK + i) * CHUNK + j];
            const T d_over = decay * c.strength[i] * d_lower;
            through_below += d_lower * lower;
            s.d_scores[i * CHUNK + j] = d_score;
            s.d_scores_lanes[j * CHUNK + i] = d_score;
            overlap_grad[i][j] = d_over;
            const T pair = d_score * c.overlap[(CHUNK + i) * CHUNK + j] +
                           d_over * c.overlap[i * CHUNK + j];
            d_total[i] += pair, d_total[j] -= pair;
        }
        d_strength[i] = through_below;
    }
    for (Index i = 0; i < CHUNK; ++i)
        for (Index j = 0; j < CHUNK; ++j)
            s.d_overlap[i * CHUNK + j] = overlap_grad[i][j] + overlap_grad[j][i];

    // dS' U^T, for the keys that were kept
    multiply(d_key, CHUNK, d_value, rows_of(s.d_state, dv), write_lanes, CHUNK, s.d_kept, CHUNK);
    const T d_whole = c.whole * dot(s.d_state, state, d_key * dv);

    // d_keys and d_queries side by side: S dKS^T | S (E dO)^T, then what comes from inside the chunk
    T* out_lanes = s.lanes;
    transpose(d_stored, dv, d_value, out_lanes, 2 * CHUNK);
    transpose(scaled_out, dv, d_value, out_lanes + CHUNK, 2 * CHUNK);
    multiply(d_key, 2 * CHUNK, d_value, rows_of(state, dv), out_lanes, 2 * CHUNK, s.d_keys, 2 * CHUNK);
    multiply(d_key, CHUNK, CHUNK, columns_of(queries, dk), s.d_scores, CHUNK, s.d_keys, 2 * CHUNK,
             T(1));
    multiply(d_key, CHUNK, CHUNK, columns_of(keys, dk), s.d_overlap, CHUNK, s.d_keys, 2 * CHUNK,
             T(1));
    multiply(d_key, CHUNK, CHUNK, columns_of(keys, dk), s.d_scores_lanes, CHUNK, s.d_queries,
             2 * CHUNK, T(1));
    T d_end[CHUNK] = {};
    for (Index k = 0; k < d_key; ++k)
        for (Index i = 0; i < CHUNK; ++i) {
            d_end[i] += keys[i * dk + k] * s.d_kept[k * CHUNK + i];
            s.d_keys[k * 2 * CHUNK + i] += c.end[i] * s.d_kept[k * CHUNK + i];
        }

    // dS = E_C dS' + K^T dKS + Q^T (E dO)
    multiply(d_key, dv, 2 * CHUNK, columns_of(c.key_query, dk), s.stored_out, dv, s.d_state, dv,
             c.whole);

    // Gates, and tokens as rows again
    for (Index i = 0; i < CHUNK; ++i) {
        const T *right = d_right + i * dv, *stored = c.read + i * dv;
        const T right_stored = dot(right, stored, dv);
        const T d_start = dot(d_out + i * dv, c.read + (CHUNK + i) * dv, dv) -
                          c.strength[i] * right_stored;
        d_strength[i] += dot(right, c.value + i * dv, dv) - c.start[i] * right_stored;
        const T d_kept = d_end[i] * c.end[i];
        d_total[i] += double(d_start * c.start[i]) - d_kept;
        ends += d_kept;
        for (Index at = 0; at < dv; ++at) s.rows.d_value[i * dv + at] = c.strength[i] * right[at];
        s.rows.d_strength[i] = d_strength[i];
    }
    d_total[CHUNK - 1] += ends + d_whole;
    for (Index i = CHUNK - 1; i >= 0; --i) s.rows.d_log_decay[i] = T(d_log_decay += d_total[i]);
    for (Index at = 0; at < dk; at += CHUNK) {
        transpose(s.d_keys + at * 2 * CHUNK, 2 * CHUNK, CHUNK, s.rows.d_key + at, dk);
        transpose(s.d_queries + at * 2 * CHUNK, 2 * CHUNK, CHUNK, s.rows.d_query + at, dk);
    }
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
    for (Index n = 0; n < GROUP; ++n) {
        chunks[n].place(arena, dk, dv, tokens.side_size());
        entering[n] = arena.take(dk * dv);
    }
    T* key_lanes = arena.take(dk * CHUNK);
    T* kept = arena.take(CHUNK * dk);
    BackwardSpace<T> space;
    space.place(arena, dk, dv);
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
            tokens.fetch(chunks[n], (begin + n) * CHUNK, num_tokens(n));
            enter(chunks[n], d_key, dv, entering[n], key_lanes);
            if (n + 1 < size) {
                std::memcpy(entering[n + 1], entering[n], d_key * dv * sizeof(T));
                advance(chunks[n], d_key, dk, dv, entering[n + 1], kept);
            }
        }
        for (Index n = size - 1; n >= 0; --n) {
            const Index first = (begin + n) * CHUNK, num = num_tokens(n);
            if (Tokens::output_again) read_out(chunks[n], dv, space.out);
            tokens.d_output(chunks[n], first, num, space.out, space.right_out + CHUNK * dv);
            backward_chunk(chunks[n], d_key, d_value, entering[n], space);
            tokens.d_tokens(chunks[n], first, num, space.rows);
        }
    }
    unpack_state(d_initial_state, space.d_state, d_key, d_value);
}
