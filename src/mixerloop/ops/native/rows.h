// What is done to every row of a matrix by itself: SwiGLU, RMSNorm, and the loss of a row of logits.

constexpr Index BLOCK_ROWS = 8;  // rows a thread takes at a time

template <class T, class S>
void swiglu_forward(const SwigluCall& call, Index row, T* memory) {
    const Index width = call.width, padded_width = padded(width);
    T *gate = memory, *up = memory + padded_width;
    const S* from = static_cast<const S*>(call.gate_up) + row * 2 * width;
    load_row(gate, padded_width, from, width);
    load_row(up, padded_width, from + width, width);
    for (Index at = 0; at < padded_width; at += Lanes<T>::count) {
        const Vector<T> x = load(gate + at);
        store(gate + at, x * sigmoid<T>(x) * load(up + at));
    }
    narrow(gate, static_cast<S*>(call.output) + row * width, width);
}

template <class T, class S>
void swiglu_backward(const SwigluCall& call, Index row, T* memory) {
    const Index width = call.width, padded_width = padded(width);
    T *gate = memory, *up = memory + padded_width, *d_output = memory + 2 * padded_width;
    const S* from = static_cast<const S*>(call.gate_up) + row * 2 * width;
    load_row(gate, padded_width, from, width);
    load_row(up, padded_width, from + width, width);
    load_row(d_output, padded_width, static_cast<const S*>(call.d_output) + row * width, width);
    for (Index at = 0; at < padded_width; at += Lanes<T>::count) {
        const Vector<T> x = load(gate + at), opened = sigmoid<T>(x), d = load(d_output + at);
        store(gate + at, d * load(up + at) * opened * (T(1) + x * (T(1) - opened)));
        store(up + at, d * x * opened);
    }
    S* to = static_cast<S*>(call.d_gate_up) + row * 2 * width;
    narrow(gate, to, width);
    narrow(up, to + width, width);
}

template <class T>
inline T rms_scale(const T* x, Index width, double eps) {
    return T(1) / std::sqrt(dot(x, x, padded(width)) / T(width) + T(eps));
}

template <class T, class S>
void rms_norm(const RmsNormCall& call, Index row, T* memory) {
    const Index width = call.width, padded_width = padded(width);
    load_row(memory, padded_width, static_cast<const T*>(call.x) + row * width, width);
    const T scale = rms_scale(memory, width, call.eps);
    const T* weight = static_cast<const T*>(call.weight);
    for (Index at = 0; at < width; ++at) memory[at] *= scale * weight[at];
    narrow(memory, static_cast<S*>(call.y) + row * width, width);
}

template <class T, class S>
void rms_norm_backward(const RmsNormCall& call, Index row, T* memory) {
    constexpr Index lanes = Lanes<T>::count;
    const Index width = call.width, padded_width = padded(width);
    T *x = memory, *d_y = memory + padded_width, *weight = memory + 2 * padded_width;
    load_row(x, padded_width, static_cast<const T*>(call.x) + row * width, width);
    load_row(d_y, padded_width, static_cast<const S*>(call.d_y) + row * width, width);
    load_row(weight, padded_width, static_cast<const T*>(call.weight), width);
    const T scale = rms_scale(x, width, call.eps);
    T* d_weight = static_cast<T*>(call.d_weight) + row / BLOCK_ROWS * width;
    if (row % BLOCK_ROWS == 0) std::memset(d_weight, 0, width * sizeof(T));
    for (Index at = 0; at < width; ++at) d_weight[at] += d_y[at] * x[at] * scale;
    Vector<T> along{};
    for (Index at = 0; at < padded_width; at += lanes) {
        const Vector<T> d_normed = load(d_y + at) * load(weight + at);
        store(d_y + at, d_normed);
        along += d_normed * load(x + at);
    }
    const T share = sum_of<T>(along) * scale * scale / T(width);
    for (Index at = 0; at < padded_width; at += lanes)
        store(x + at, scale * (load(d_y + at) - share * load(x + at)));
    narrow(x, static_cast<T*>(call.d_x) + row * width, width);
}

// The loss of a row, and in the place of its logits their gradient: probabilities, less one at the
// label. A row without a label has neither.
template <class T, class S>
void cross_entropy(const CrossEntropyCall& call, Index row, T* memory) {
    constexpr Index lanes = Lanes<T>::count;
    const Index vocab = call.vocab, padded_vocab = padded(vocab);
    const std::int64_t label = static_cast<const std::int64_t*>(call.labels)[row];
    S* logits = static_cast<S*>(call.logits) + row * vocab;
    T& loss = static_cast<T*>(call.losses)[row];
    if (label < 0) {
        loss = T(0);
        std::memset(static_cast<void*>(logits), 0, vocab * sizeof(S));
        return;
    }
    widen(logits, memory, vocab);
    for (Index at = vocab; at < padded_vocab; ++at) memory[at] = T(-INFINITY);
    Vector<T> highest = load(memory);
    for (Index at = lanes; at < padded_vocab; at += lanes) {
        const Vector<T> x = load(memory + at);
        highest = x > highest ? x : highest;
    }
    T top = highest[0];
    for (Index lane = 1; lane < lanes; ++lane) top = highest[lane] > top ? highest[lane] : top;
    const T at_label = memory[label] - top;
    Vector<T> sums{};
    for (Index at = 0; at < padded_vocab; at += lanes) {
        const Vector<T> e = exponential(load(memory + at) - top);
        store(memory + at, e);
        sums += e;
    }
    const T sum = sum_of<T>(sums);
    loss = std::log(sum) - at_label;
    if (!call.with_gradient) return;
    for (Index at = 0; at < padded_vocab; at += lanes) store(memory + at, load(memory + at) * (1 / sum));
    memory[label] -= T(1);
    narrow(memory, logits, vocab);
}
