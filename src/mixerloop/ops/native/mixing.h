// The tokens of a whole Gated DeltaNet mixer, between its projections: short convolution, SiLU, unit
// queries and keys and the two gates in front of the rule, the gated output norm behind it. All of
// it is local to a head, so that a chunk is read once, passes through everything while it is in
// cache, and is written once. ops/gated_delta_mixing.py has the same in torch.

template <class T, class S>
class MixingTokens {
  public:
    static constexpr Decay decay = Decay::HEAD;
    static constexpr Erase erase = Erase::OWN;
    static constexpr bool output_again = true;
    Index seq, d_key, d_value;

    MixingTokens(const MixingCall& call, Index item, Arena<T>& arena, bool is_backward)
        : seq(call.seq), d_key(call.d_head), d_value(call.d_head), call_(call),
          batch_(item / call.heads), head_(item % call.heads), inner_(call.heads * call.d_head),
          d_(call.d_head), dp_(padded(d_)), width_(call.width), is_backward_(is_backward),
          rate_(std::exp(static_cast<const T*>(call.A_log)[head_])),
          step_bias_(static_cast<const T*>(call.dt_bias)[head_]) {
        filters_ = arena.take(PARTS * width_ * dp_);
        norm_ = arena.take(dp_);
        window_ = arena.take((CHUNK + width_ - 1) * dp_);
        row_ = arena.take(2 * dp_);
        load_row(norm_, dp_, static_cast<const T*>(call.norm_weight), d_);
        std::memset(filters_, 0, PARTS * width_ * dp_ * sizeof(T));
        for (Index part = 0; part < PARTS; ++part)
            for (Index j = 0; j < d_; ++j)
                for (Index tap = 0; tap < width_; ++tap)
                    filter(part, tap)[j] =
                        static_cast<const T*>(call.conv_weight)[channel(part, j) * width_ + tap];
        if (!is_backward) return;
        d_filters_ = arena.take(PARTS * width_ * dp_);
        d_norm_ = arena.take(dp_);
        d_conv_ = arena.take(PARTS * (CHUNK + width_ - 1) * dp_);
        std::memset(d_filters_, 0, PARTS * width_ * dp_ * sizeof(T));
        std::memset(d_norm_, 0, dp_ * sizeof(T));
        std::memset(d_conv_, 0, PARTS * (CHUNK + width_ - 1) * dp_ * sizeof(T));
    }

    static Index memory(const MixingCall& call, bool is_backward) {
        const Index dp = padded(call.d_head), taps = PARTS * call.width * dp;
        const Index forward = taps + dp + (CHUNK + call.width - 1) * dp + 2 * dp;
        return forward + (is_backward ? taps + dp + PARTS * (CHUNK + call.width - 1) * dp : 0);
    }

    static Index side_size(const MixingCall& call, bool is_backward) {
        return is_backward ? PARTS * CHUNK * padded(call.d_head) + 2 * CHUNK : 0;
    }

    Index side_size() const { return side_size(call_, is_backward_); }

    void fetch(Chunk<T>& c, Index first, Index num, Index rows = CHUNK) {
        load_part(c, QUERY, c.query, first, num, rows);
        load_part(c, KEY, c.key, first, num, rows);
        load_part(c, VALUE, c.value, first, num, rows);
        T steps[CHUNK], strengths[CHUNK];
        load_gate(call_.decay, first, num, steps);
        load_gate(call_.write, first, num, strengths);
        for (Index at = 0; at < CHUNK; at += LANES) {
            store(c.log_decay + at, softplus(load(steps + at) + step_bias_) * -rate_);
            store(c.strength + at, sigmoid<T>(load(strengths + at)));
        }
        for (Index i = num; i < CHUNK; ++i) c.log_decay[i] = c.strength[i] = T(0);
    }

    // norm(out) * silu(gate)
    void write(Index first, Index num, const T* out) const {
        for (Index i = 0; i < num; ++i) {
            const T* o = out + i * dp_;
            const T scale = inverse_root(dot(o, o, dp_) / T(d_), T(call_.norm_eps));
            load_row(row_, dp_, inner_at<S>(call_.gate, first + i), d_);
            for (Index at = 0; at < dp_; at += LANES) {
                const Vector<T> gate = load(row_ + at);
                store(row_ + at, load(o + at) * scale * load(norm_ + at) * gate * sigmoid<T>(gate));
            }
            narrow(row_, inner_at<S>(call_.output, first + i), d_);
        }
    }

    void d_output(const Chunk<T>&, Index first, Index num, const T* out, T* d_out) {
        T *gates = row_, *d_y = row_ + dp_;
        for (Index i = 0; i < num; ++i) {
            const T* o = out + i * dp_;
            T* d_o = d_out + i * dp_;
            const T scale = inverse_root(dot(o, o, dp_) / T(d_), T(call_.norm_eps));
            load_row(gates, dp_, inner_at<S>(call_.gate, first + i), d_);
            load_row(d_y, dp_, inner_at<S>(call_.d_output, first + i), d_);
            Vector<T> along{};
            for (Index at = 0; at < dp_; at += LANES) {
                const Vector<T> gate = load(gates + at), opened = sigmoid<T>(gate);
                const Vector<T> normed = load(o + at) * scale, weight = load(norm_ + at);
                const Vector<T> d = load(d_y + at), d_gated = d * gate * opened;
                store(gates + at, d * normed * weight * opened * (T(1) + gate * (T(1) - opened)));
                store(d_norm_ + at, load(d_norm_ + at) + d_gated * normed);
                store(d_o + at, d_gated * weight);
                along += d_gated * weight * normed;
            }
            const T share = sum_of<T>(along) / T(d_);
            for (Index at = 0; at < dp_; at += LANES)
                store(d_o + at, scale * (load(d_o + at) - load(o + at) * (scale * share)));
            narrow(gates, inner_at<S>(call_.d_gate, first + i), d_);
        }
        std::memset(d_out + num * dp_, 0, (CHUNK - num) * dp_ * sizeof(T));
    }

    void d_tokens(const Chunk<T>& c, Index first, Index num, const ChunkGradients<T>& d) {
        d_part(c, QUERY, c.query, d.d_query, first, num);
        d_part(c, KEY, c.key, d.d_key, first, num);
        d_part(c, VALUE, c.value, d.d_value, first, num);
        T steps[CHUNK];
        load_gate(call_.decay, first, num, steps);
        for (Index at = 0; at < CHUNK; at += LANES)
            store(steps + at, sigmoid<T>(load(steps + at) + step_bias_));
        for (Index i = 0; i < num; ++i) {
            const Index at = gate_at(first + i);
            const T d_decay = -rate_ * d.d_log_decay[i] * steps[i];
            const T d_write = d.d_strength[i] * c.strength[i] * (T(1) - c.strength[i]);
            narrow(&d_decay, static_cast<S*>(call_.d_decay) + at, 1);
            narrow(&d_write, static_cast<S*>(call_.d_write) + at, 1);
            d_A_log_ += d.d_log_decay[i] * c.log_decay[i];
            d_step_bias_ += d_decay;
        }
    }

    // What one sequence gives to the weights, and to the tokens before its first.
    void finish() {
        const Index item = batch_ * call_.heads + head_;
        static_cast<T*>(call_.d_A_log)[item] = d_A_log_;
        static_cast<T*>(call_.d_dt_bias)[item] = d_step_bias_;
        narrow(d_norm_, static_cast<T*>(call_.d_norm_weight) + item * d_, d_);
        for (Index part = 0; part < PARTS; ++part) {
            T* to = static_cast<T*>(call_.d_conv_weight) + batch_ * PARTS * inner_ * width_;
            for (Index j = 0; j < d_; ++j)
                for (Index tap = 0; tap < width_; ++tap)
                    to[channel(part, j) * width_ + tap] = d_filters_[(part * width_ + tap) * dp_ + j];
            for (Index row = 0; row < width_ - 1; ++row) {  // token row - (width - 1)
                d_input(part, row - (width_ - 1), row_);
                narrow(row_, history_at<T>(call_.d_history, part, row), d_);
            }
        }
    }

  private:
    enum Part { QUERY, KEY, VALUE };
    static constexpr Index PARTS = 3, LANES = Lanes<T>::count;

    void load_part(Chunk<T>& c, Part part, T* to, Index first, Index num, Index rows) {
        load_window(part, first, num);
        T* slopes = is_backward_ ? c.side + part * CHUNK * dp_ : nullptr;
        for (Index i = 0; i < num; ++i) {
            T* row = to + i * dp_;
            for (Index at = 0; at < dp_; at += LANES) {
                Vector<T> sum{};
                for (Index tap = 0; tap < width_; ++tap)
                    sum += load(filter(part, tap) + at) * load(window_ + (i + tap) * dp_ + at);
                const Vector<T> opened = sigmoid<T>(sum);
                store(row + at, sum * opened);
                if (is_backward_)
                    store(slopes + i * dp_ + at, opened * (T(1) + sum * (T(1) - opened)));
            }
            if (part == VALUE) continue;
            const T unit = inverse_root(dot(row, row, dp_), T(call_.unit_eps));
            const T scale = part == QUERY ? unit * T(call_.query_scale) : unit;
            for (Index at = 0; at < dp_; ++at) row[at] *= scale;
            if (is_backward_) c.side[PARTS * CHUNK * dp_ + part * CHUNK + i] = unit;
        }
        std::memset(to + num * dp_, 0, (rows - num) * dp_ * sizeof(T));
    }

    // Through unit norm and SiLU to the convolution, and through it to its inputs and weights.
    void d_part(const Chunk<T>& c, Part part, const T* rows, const T* d_rows, Index first,
                Index num) {
        T* d_conv = d_conv_ + part * (CHUNK + width_ - 1) * dp_;
        const T* slopes = c.side + part * CHUNK * dp_;
        for (Index i = 0; i < num; ++i) {
            const T *row = rows + i * dp_, *d_row = d_rows + i * dp_;
            T straight = 1, along = 0;
            if (part != VALUE) {
                const T unit = c.side[PARTS * CHUNK * dp_ + part * CHUNK + i];
                const T scale = part == QUERY ? T(call_.query_scale) : T(1);
                straight = unit * scale;
                along = unit / scale * dot(row, d_row, dp_);
            }
            for (Index at = 0; at < dp_; ++at)
                d_conv[i * dp_ + at] =
                    (straight * d_row[at] - along * row[at]) * slopes[i * dp_ + at];
        }
        std::memset(d_conv + num * dp_, 0, (CHUNK - num) * dp_ * sizeof(T));
        load_window(part, first, num);
        for (Index tap = 0; tap < width_; ++tap) {
            T* sum = d_filters_ + (part * width_ + tap) * dp_;
            for (Index at = 0; at < dp_; at += LANES) {
                Vector<T> total = load(sum + at);
                for (Index i = 0; i < num; ++i)
                    total += load(d_conv + i * dp_ + at) * load(window_ + (i + tap) * dp_ + at);
                store(sum + at, total);
            }
        }
        for (Index i = 0; i < num; ++i) {
            d_input(part, i, row_);
            narrow(row_, inputs_at<S>(call_.d_qkv, part, first + i), d_);
        }
        std::memmove(d_conv + CHUNK * dp_, d_conv, (width_ - 1) * dp_ * sizeof(T));
    }

    // The gradient of token i's input, from the outputs that saw it: its own and width - 1 later ones.
    void d_input(Index part, Index i, T* to) const {
        const T* d_conv = d_conv_ + part * (CHUNK + width_ - 1) * dp_;
        for (Index at = 0; at < dp_; at += LANES) {
            Vector<T> sum{};
            for (Index later = i < 0 ? -i : 0; later < width_; ++later)
                sum += load(filter(part, width_ - 1 - later) + at) *
                       load(d_conv + (i + later) * dp_ + at);
            store(to + at, sum);
        }
    }

    // Inputs of a part from width - 1 tokens before `first`; before the sequence is its history.
    void load_window(Index part, Index first, Index num) {
        for (Index row = 0; row < width_ - 1 + num; ++row) {
            const Index token = first + row - (width_ - 1);
            if (token < 0)
                load_row(window_ + row * dp_, dp_,
                         history_at<const T>(call_.history, part, token + width_ - 1), d_);
            else
                load_row(window_ + row * dp_, dp_, inputs_at<const S>(call_.qkv, part, token), d_);
        }
    }

    static T inverse_root(T square, T eps) { return T(1) / std::sqrt(square + eps); }

    T* filter(Index part, Index tap) const { return filters_ + (part * width_ + tap) * dp_; }

    Index channel(Index part, Index j) const { return part * inner_ + head_ * d_ + j; }

    Index gate_at(Index token) const { return (batch_ * seq + token) * call_.heads + head_; }

    // One number for each token of a chunk.
    void load_gate(const void* tensor, Index first, Index num, T* to) const {
        for (Index i = 0; i < CHUNK; ++i) to[i] = T(0);
        for (Index i = 0; i < num; ++i)
            widen(static_cast<const S*>(tensor) + gate_at(first + i), to + i, 1);
    }

    template <class N, class Void>
    N* inputs_at(Void* tensor, Index part, Index token) const {
        return static_cast<N*>(tensor) + (batch_ * seq + token) * PARTS * inner_ + channel(part, 0);
    }

    template <class N, class Void>
    N* history_at(Void* tensor, Index part, Index row) const {
        return static_cast<N*>(tensor) + (batch_ * (width_ - 1) + row) * PARTS * inner_ +
               channel(part, 0);
    }

    template <class N>
    const N* inner_at(const void* tensor, Index token) const {
        return static_cast<const N*>(tensor) + (batch_ * seq + token) * inner_ + head_ * d_;
    }

    template <class N>
    N* inner_at(void* tensor, Index token) const {
        return static_cast<N*>(tensor) + (batch_ * seq + token) * inner_ + head_ * d_;
    }

    const MixingCall& call_;
    const Index batch_, head_, inner_, d_, dp_, width_;
    const bool is_backward_;
    const T rate_, step_bias_;
    T d_A_log_ = 0, d_step_bias_ = 0;
    T *filters_, *norm_, *window_, *row_;
    T *d_filters_ = nullptr, *d_norm_ = nullptr, *d_conv_ = nullptr;
};
