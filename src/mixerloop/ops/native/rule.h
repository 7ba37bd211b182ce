// The gated delta rule over one head, a chunk of 16 tokens at a time.
//
// Names are those of ops/chunked.py, whose equations these are: E, D and z are the decays from the
// chunk's start to a token, from token to token and from a token to the chunk's end; A and P the
// decayed overlaps of keys with keys and of queries with keys; U what each token really writes.
// Chunks of a head follow one another and the state stays in cache. Tokens of a chunk are either the
// rows of a matrix (16 x width) or its lanes (width x 16), whichever a product needs.

constexpr Index CHUNK = LANE_PAD;
constexpr Index GROUP = 4;  // chunks between two states that are kept for the backward

// Where the tensors of one head lie: token after token, `heads` heads apart.
template <class T>
struct Head {
    Index seq, d_key, d_value, key_stride, value_stride, gate_stride;
    const T *query, *key, *value, *log_decay, *write_strength;
};

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
    T *start, *end, *strength;  // E, z, b
    T whole;        // E_C

    void place(Arena<T>& arena, Index dk, Index dv) {
        key_query = arena.take(2 * CHUNK * dk), value = arena.take(CHUNK * dv);
        overlap = arena.take(2 * CHUNK * CHUNK), read = arena.take(2 * CHUNK * dv);
        write = arena.take(CHUNK * dv), pairs = arena.take(CHUNK * CHUNK);
        below = arena.take(CHUNK * CHUNK), scores = arena.take(CHUNK * CHUNK);
        start = arena.take(CHUNK), end = arena.take(CHUNK), strength = arena.take(CHUNK);
    }

    static Index size(Index dk, Index dv) {
        return 2 * CHUNK * dk + 4 * CHUNK * dv + 5 * CHUNK * CHUNK + 3 * CHUNK;
    }
};

template <class T>
inline void load_rows(T* to, Index to_row, const T* from, Index stride, Index width, Index num) {
    for (Index i = 0; i < CHUNK; ++i) {
        if (i < num) {
            std::memcpy(to + i * to_row, from + i * stride, width * sizeof(T));
            std::memset(to + i * to_row + width, 0, (to_row - width) * sizeof(T));
        } else {
            std::memset(to + i * to_row, 0, to_row * sizeof(T));
        }
    }
}

// Decays in double: differences of sums would lose the digits of mild tokens after a brutal one.
template <class T>
inline void load_decays(Chunk<T>& c, const Head<T>& head, Index first, Index num) {
    double total[CHUNK], sum = 0;
    for (Index i = 0; i < CHUNK; ++i) {
        if (i < num) sum += head.log_decay[(first + i) * head.gate_stride];
        total[i] = sum;
        c.strength[i] = i < num ? head.write_strength[(first + i) * head.gate_stride] : T(0);
    }
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
inline void enter(Chunk<T>& c, const Head<T>& head, Index first, Index num, const T* state,
                  T* key_lanes) {
    const Index dk = padded(head.d_key), dv = padded(head.d_value);
    load_rows(c.key_query, dk, head.key + first * head.key_stride, head.key_stride, head.d_key, num);
    load_rows(c.key_query + CHUNK * dk, dk, head.query + first * head.key_stride, head.key_stride,
              head.d_key, num);
    load_rows(c.value, dv, head.value + first * head.value_stride, head.value_stride, head.d_value,
              num);
    load_decays(c, head, first, num);
    transpose(c.key_query, dk, head.d_key, key_lanes, CHUNK);
    multiply(2 * CHUNK, CHUNK, head.d_key, rows_of(c.key_query, dk), key_lanes, CHUNK, c.overlap,
             CHUNK);
    multiply(2 * CHUNK, dv, head.d_key, rows_of(c.key_query, dk), state, dv, c.read, dv);
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
        std::memcpy(to + i * dv, from + i * d_value, d_value * sizeof(T));
        std::memset(to + i * dv + d_value, 0, (dv - d_value) * sizeof(T));
    }
}

template <class T>
inline void unpack_state(T* to, const T* from, Index d_key, Index d_value) {
    const Index dv = padded(d_value);
    for (Index i = 0; i < d_key; ++i)
        std::memcpy(to + i * d_value, from + i * dv, d_value * sizeof(T));
}

template <class T>
inline Index forward_memory(Index d_key, Index d_value) {
    const Index dk = padded(d_key), dv = padded(d_value);
    return Chunk<T>::size(dk, dv) + dk * dv + dk * CHUNK + CHUNK * dk + CHUNK * dv;
}

// A single token, as in decoding: the recurrence itself, without the bookkeeping of chunks.
template <class T>
void forward_token(const Head<T>& head, const T* initial_state, T* output, T* state) {
    const T decay = std::exp(head.log_decay[0]), strength = head.write_strength[0];
    for (Index j = 0; j < head.d_value; ++j) output[j] = T(0);
    for (Index i = 0; i < head.d_key; ++i)
        for (Index j = 0; j < head.d_value; ++j)
            output[j] += head.key[i] * initial_state[i * head.d_value + j];
    for (Index j = 0; j < head.d_value; ++j)
        output[j] = strength * (head.value[j] - decay * output[j]);  // what the token writes
    for (Index i = 0; i < head.d_key; ++i)
        for (Index j = 0; j < head.d_value; ++j) {
            const Index at = i * head.d_value + j;
            state[at] = decay * initial_state[at] + head.key[i] * output[j];
        }
    for (Index j = 0; j < head.d_value; ++j) output[j] = T(0);
    for (Index i = 0; i < head.d_key; ++i)
        for (Index j = 0; j < head.d_value; ++j)
            output[j] += head.query[i] * state[i * head.d_value + j];
}

// One head, first token to last. `states` gets the state that enters every GROUP-th chunk, if given.
template <class T>
void forward_head(const Head<T>& head, const T* initial_state, T* output, T* final_state, T* states,
                  T* memory) {
    const Index dk = padded(head.d_key), dv = padded(head.d_value);
    const Index state_size = head.d_key * head.d_value;
    if (head.seq == 1) {
        if (states != nullptr) std::memcpy(states, initial_state, state_size * sizeof(T));
        return forward_token(head, initial_state, output, final_state);
    }
    Arena<T> arena{memory};
    Chunk<T> c;
    c.place(arena, dk, dv);
    T* state = arena.take(dk * dv);
    T* key_lanes = arena.take(dk * CHUNK);
    T* kept = arena.take(CHUNK * dk);
    T* out = arena.take(CHUNK * dv);
    pack_state(state, initial_state, head.d_key, head.d_value);
    for (Index first = 0, number = 0; first < head.seq; first += CHUNK, ++number) {
        const Index num = head.seq - first < CHUNK ? head.seq - first : CHUNK;
        if (states != nullptr && number % GROUP == 0)
            unpack_state(states + number / GROUP * state_size, state, head.d_key, head.d_value);
        enter(c, head, first, num, state, key_lanes);
        for (Index i = 0; i < CHUNK; ++i)
            for (Index at = 0; at < dv; ++at)
                out[i * dv + at] = c.start[i] * c.read[(CHUNK + i) * dv + at];
        multiply(CHUNK, dv, CHUNK, rows_of(c.scores, CHUNK), c.write, dv, out, dv, T(1));
        for (Index i = 0; i < num; ++i)
            std::memcpy(output + (first + i) * head.value_stride, out + i * dv,
                        head.d_value * sizeof(T));
        advance(c, head.d_key, dk, dv, state, kept);
    }
    unpack_state(final_state, state, head.d_key, head.d_value);
}

template <class T>
struct HeadGradients {
    const T *d_output, *d_final_state;
    T *d_query, *d_key, *d_value, *d_log_decay, *d_write_strength, *d_initial_state;
};

template <class T>
inline Index backward_memory(Index d_key, Index d_value) {
    const Index dk = padded(d_key), dv = padded(d_value);
    return GROUP * (Chunk<T>::size(dk, dv) + dk * dv) + 2 * dk * dv + 2 * dk * CHUNK +
           4 * CHUNK * dk + dv * 3 * CHUNK + 6 * CHUNK * dv + 8 * CHUNK * CHUNK + 64 * CHUNK;
}

template <class T>
inline T dot(const T* x, const T* y, Index size) {
    constexpr Index lanes = Lanes<T>::count;
    Vector<T> sum{};
    for (Index at = 0; at < size; at += lanes) sum += load(x + at) * load(y + at);
    T total = 0;
    for (Index lane = 0; lane < lanes; ++lane) total += sum[lane];
    return total;
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

    void place(Arena<T>& arena, Index dk, Index dv) {
        d_state = arena.take(dk * dv), right_out = arena.take(2 * CHUNK * dv);
        stored_out = arena.take(2 * CHUNK * dv), lanes = arena.take(3 * CHUNK * dv);
        products = arena.take(2 * CHUNK * CHUNK), d_scores = arena.take(CHUNK * CHUNK);
        d_scores_lanes = arena.take(CHUNK * CHUNK), d_overlap = arena.take(CHUNK * CHUNK);
        d_kept = arena.take(dk * CHUNK), d_keys = arena.take(2 * dk * CHUNK);
        d_queries = d_keys + CHUNK;  // side by side: d_key x 32
    }
};

template <class T>
void backward_chunk(const Chunk<T>& c, const Head<T>& head, Index first, Index num, const T* state,
                    const HeadGradients<T>& grads, BackwardSpace<T>& s) {
    const Index d_key = head.d_key, d_value = head.d_value;
    const Index dk = padded(d_key), dv = padded(d_value);
    const T *keys = c.key_query, *queries = c.key_query + CHUNK * dk;
    T *d_right = s.right_out, *d_out = s.right_out + CHUNK * dv;
    T *d_stored = s.stored_out, *scaled_out = s.stored_out + CHUNK * dv;

    load_rows(d_out, dv, grads.d_output + first * head.value_stride, head.value_stride, d_value, num);

    // dU = z (K dS') + P^T dO, and through the solve dR = M^-T dU
    multiply(CHUNK, dv, d_key, rows_of(keys, dk), s.d_state, dv, d_right, dv);
    for (Index i = 0; i < CHUNK; ++i)
        for (Index at = 0; at < dv; ++at) d_right[i * dv + at] *= c.end[i];
    multiply(CHUNK, dv, CHUNK, columns_of(c.scores, CHUNK), d_out, dv, d_right, dv, T(1));
    solve_up(c.below, d_right, dv);

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
    T d_total[CHUNK] = {}, d_strength[CHUNK], overlap_grad[CHUNK][CHUNK];
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

    // Gates, and the rows back to where they belong
    T ends = 0;
    for (Index i = 0; i < CHUNK; ++i) {
        const T *right = d_right + i * dv, *stored = c.read + i * dv;
        const T right_stored = dot(right, stored, dv);
        const T d_start = dot(d_out + i * dv, c.read + (CHUNK + i) * dv, dv) -
                          c.strength[i] * right_stored;
        d_strength[i] += dot(right, c.value + i * dv, dv) - c.start[i] * right_stored;
        d_total[i] += d_start * c.start[i] - d_end[i] * c.end[i];
        ends += d_end[i] * c.end[i];
    }
    d_total[CHUNK - 1] += ends + d_whole;
    T d_log_decay = 0;
    for (Index i = CHUNK - 1; i >= 0; --i) {
        d_log_decay += d_total[i];
        if (i >= num) continue;
        grads.d_log_decay[(first + i) * head.gate_stride] = d_log_decay;
        grads.d_write_strength[(first + i) * head.gate_stride] = d_strength[i];
        T* to_value = grads.d_value + (first + i) * head.value_stride;
        for (Index at = 0; at < d_value; ++at) to_value[at] = c.strength[i] * d_right[i * dv + at];
        T* to_key = grads.d_key + (first + i) * head.key_stride;
        T* to_query = grads.d_query + (first + i) * head.key_stride;
        for (Index at = 0; at < d_key; ++at) {
            to_key[at] = s.d_keys[at * 2 * CHUNK + i];
            to_query[at] = s.d_queries[at * 2 * CHUNK + i];
        }
    }
}

// One head, last token to first. Within a group of chunks the forward is run again from its state.
template <class T>
void backward_head(const Head<T>& head, const T* states, const HeadGradients<T>& grads, T* memory) {
    const Index dk = padded(head.d_key), dv = padded(head.d_value);
    const Index num_chunks = (head.seq + CHUNK - 1) / CHUNK;
    Arena<T> arena{memory};
    Chunk<T> chunks[GROUP];
    T* entering[GROUP + 1];
    for (Index n = 0; n < GROUP; ++n) {
        chunks[n].place(arena, dk, dv);
        entering[n] = arena.take(dk * dv);
    }
    T* key_lanes = arena.take(dk * CHUNK);
    T* kept = arena.take(CHUNK * dk);
    BackwardSpace<T> space;
    space.place(arena, dk, dv);
    pack_state(space.d_state, grads.d_final_state, head.d_key, head.d_value);
    for (Index group = (num_chunks + GROUP - 1) / GROUP - 1; group >= 0; --group) {
        const Index begin = group * GROUP;
        const Index size = num_chunks - begin < GROUP ? num_chunks - begin : GROUP;
        pack_state(entering[0], states + group * head.d_key * head.d_value, head.d_key, head.d_value);
        for (Index n = 0; n < size; ++n) {
            const Index first = (begin + n) * CHUNK;
            const Index num = head.seq - first < CHUNK ? head.seq - first : CHUNK;
            enter(chunks[n], head, first, num, entering[n], key_lanes);
            if (n + 1 < size) {
                std::memcpy(entering[n + 1], entering[n], head.d_key * dv * sizeof(T));
                advance(chunks[n], head.d_key, dk, dv, entering[n + 1], kept);
            }
        }
        for (Index n = size - 1; n >= 0; --n) {
            const Index first = (begin + n) * CHUNK;
            const Index num = head.seq - first < CHUNK ? head.seq - first : CHUNK;
            backward_chunk(chunks[n], head, first, num, entering[n], grads, space);
        }
    }
    unpack_state(grads.d_initial_state, space.d_state, head.d_key, head.d_value);
}
