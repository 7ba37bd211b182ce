// The tokens of the rule by itself: queries, keys, values and gates as tensors, token after token,
// the heads of a token side by side.

template <class T, class S>
struct PlainTokens {
    static constexpr bool output_again = false;
    Index seq, d_key, d_value;

    PlainTokens(const RuleCall& call, Index item)
        : seq(call.seq), d_key(call.d_key), d_value(call.d_value), call_(call), heads_(call.heads),
          token_(item / heads_ * seq * heads_ + item % heads_) {}

    static Index side_size() { return 0; }

    void fetch(Chunk<T>& c, Index first, Index num) const {
        const Index dk = padded(d_key);
        load_rows(c.key_query, dk, at<S>(call_.key, first, d_key), heads_ * d_key, d_key, num);
        load_rows(c.key_query + CHUNK * dk, dk, at<S>(call_.query, first, d_key), heads_ * d_key,
                  d_key, num);
        load_rows(c.value, padded(d_value), at<S>(call_.value, first, d_value), heads_ * d_value,
                  d_value, num);
        for (Index i = 0; i < CHUNK; ++i) {
            c.log_decay[i] = i < num ? *at<T>(call_.log_decay, first + i, 1) : T(0);
            c.strength[i] = i < num ? *at<T>(call_.write_strength, first + i, 1) : T(0);
        }
    }

    void write(Index first, Index num, const T* out) const {
        for (Index i = 0; i < num; ++i)
            narrow(out + i * padded(d_value), at<S>(call_.output, first + i, d_value), d_value);
    }

    void d_output(const Chunk<T>&, Index first, Index num, const T*, T* d_out) const {
        load_rows(d_out, padded(d_value), at<S>(call_.d_output, first, d_value), heads_ * d_value,
                  d_value, num);
    }

    void d_tokens(const Chunk<T>&, Index first, Index num, const ChunkGradients<T>& d) const {
        const Index dk = padded(d_key), dv = padded(d_value);
        for (Index i = 0; i < num; ++i) {
            narrow(d.d_query + i * dk, at<S>(call_.d_query, first + i, d_key), d_key);
            narrow(d.d_key + i * dk, at<S>(call_.d_key_out, first + i, d_key), d_key);
            narrow(d.d_value + i * dv, at<S>(call_.d_value_out, first + i, d_value), d_value);
            *at<T>(call_.d_log_decay, first + i, 1) = d.d_log_decay[i];
            *at<T>(call_.d_write_strength, first + i, 1) = d.d_strength[i];
        }
    }

  private:
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
