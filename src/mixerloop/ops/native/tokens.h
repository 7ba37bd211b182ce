// The tokens of the rule by itself: queries, keys, values, decays and erase keys as tensors, token
// after token, the heads of a token side by side. A tensor that a call leaves out is a null pointer.

template <class T, class S, Decay DECAY, Erase ERASE>
struct PlainTokens {
    static constexpr Decay decay = DECAY;
    static constexpr Erase erase = ERASE;
    static constexpr bool output_again = false;
    Index seq, d_key, d_value;

    PlainTokens(const RuleCall& call, Index item)
        : seq(call.seq), d_key(call.d_key), d_value(call.d_value), call_(call), heads_(call.heads),
          token_(item / heads_ * seq * heads_ + item % heads_) {}

    static Index side_size() { return 0; }

    void fetch(Chunk<T>& c, Index first, Index num, Index rows = CHUNK) const {
        const Index dk = padded(d_key);
        fetch_rows(c.key, call_.key, d_key, first, num, rows);
        fetch_rows(c.query, call_.query, d_key, first, num, rows);
        fetch_rows(c.value, call_.value, d_value, first, num, rows);
        if (call_.write_strength != nullptr)
            fetch_numbers(c.strength, call_.write_strength, first, num);
        if constexpr (decay == Decay::HEAD)
            fetch_numbers(c.log_decay, call_.log_decay, first, num);
        else
            load_rows(c.log_decays, dk, at<T>(call_.log_decay, first, d_key), heads_ * d_key, d_key,
                      num, rows);
        if constexpr (erase == Erase::GIVEN) {
            if (strength_is_folded()) {
                for (Index i = 0; i < rows; ++i) {  // padding stays zero, whatever the strength
                    T *readers = c.readers + i * dk, *value = c.value + i * padded(d_value);
                    scale_row(c.key + i * dk, c.strength[i], readers, d_key);
                    clear_row(readers + d_key, dk - d_key);
                    scale_row(value, c.strength[i], value, d_value);
                }
            } else {
                fetch_rows(c.readers, call_.erase_key, d_key, first, num, rows);
            }
        }
    }

    void write(Index first, Index num, const T* out) const {
        for (Index i = 0; i < num; ++i)
            narrow(out + i * padded(d_value), at<S>(call_.output, first + i, d_value), d_value);
    }

    void d_output(const Chunk<T>&, Index first, Index num, const T*, T* d_out) const {
        fetch_rows(d_out, call_.d_output, d_value, first, num);
    }

    void d_tokens(const Chunk<T>& c, Index first, Index num, const ChunkGradients<T>& d) const {
        const Index dk = padded(d_key), dv = padded(d_value);
        for (Index i = 0; i < num; ++i) {
            if (strength_is_folded()) unfold_strength(c, first, i, d);
            narrow(d.d_query + i * dk, at<S>(call_.d_query, first + i, d_key), d_key);
            narrow(d.d_key + i * dk, at<S>(call_.d_key_out, first + i, d_key), d_key);
            narrow(d.d_value + i * dv, at<S>(call_.d_value_out, first + i, d_value), d_value);
            if (call_.d_erase_key != nullptr)
                narrow(d.d_erase_key + i * dk, at<S>(call_.d_erase_key, first + i, d_key), d_key);
            if (call_.d_write_strength != nullptr)
                *at<T>(call_.d_write_strength, first + i, 1) = d.d_strength[i];
            if (call_.d_log_decay == nullptr) continue;
            if constexpr (decay == Decay::HEAD)
                *at<T>(call_.d_log_decay, first + i, 1) = d.d_log_decay[i];
            else
                narrow(d.d_log_decays + i * dk, at<T>(call_.d_log_decay, first + i, d_key), d_key);
        }
    }

  private:
    // Where channels decay, write strengths become part of erase keys and values.
    bool strength_is_folded() const {
        return erase == Erase::GIVEN && call_.write_strength != nullptr;
    }

    // e = b k and the rule's value is b v: gradients of e and of b v become those of k, v and b.
    void unfold_strength(const Chunk<T>& c, Index first, Index i, const ChunkGradients<T>& d) const {
        const Index dk = padded(d_key), dv = padded(d_value);
        const T strength = c.strength[i], *key = c.key + i * dk, *d_erase = d.d_erase_key + i * dk;
        T *value = c.value + i * dv, *d_value_row = d.d_value + i * dv;
        widen(at<S>(call_.value, first + i, d_value), value, d_value);
        d.d_strength[i] = dot(d_erase, key, dk) + dot(d_value_row, value, dv);
        for (Index j = 0; j < dk; ++j) d.d_key[i * dk + j] += strength * d_erase[j];
        scale_row(d_value_row, strength, d_value_row, dv);
    }

    static void scale_row(const T* from, T scale, T* to, Index size) {
        for (Index j = 0; j < size; ++j) to[j] = scale * from[j];
    }

    void fetch_rows(T* to, const void* tensor, Index width, Index first, Index num,
                    Index rows = CHUNK) const {
        load_rows(to, padded(width), at<S>(tensor, first, width), heads_ * width, width, num, rows);
    }

    // One number for each token; zero where there is none.
    void fetch_numbers(T* to, const void* tensor, Index first, Index num) const {
        for (Index i = 0; i < CHUNK; ++i)
            to[i] = i < num && tensor != nullptr ? *at<T>(tensor, first + i, 1) : T(0);
    }

    template <class N>
    const N* at(const void* tensor, Index token, Index width) const {
        return static_cast<const N*>(tensor) + (token_ + token * heads_) * width;
    }

    template <class N>
    N* at(void* tensor, Index token, Index width) const {
        return static_cast<N*>(tensor) + (token_ + token * heads_) * width;
    }

    const RuleCall& call_;
    Index heads_, token_;
};
