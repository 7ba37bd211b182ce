// Products of a weight matrix with a few rows: y[row][at] = x[row] . weight[at] + bias[at]. Decoding
// reads every weight once for each token, so memory sets the pace: a row of the weight is read once
// and multiplied with every row of x while it is in the cache.

constexpr Index BLOCK_OUTPUTS = 16;  // outputs a thread takes at a time

// Four sums, so that a multiply-add does not wait for the one before.
template <class T>
inline T long_dot(const T* x, const T* y, Index size) {
    constexpr Index lanes = Lanes<T>::count, step = 4 * lanes;
    Vector<T> sums[4] = {};
    Index at = 0;
    for (; at + step <= size; at += step)
        for (Index part = 0; part < 4; ++part)
            sums[part] += load(x + at + part * lanes) * load(y + at + part * lanes);
    for (; at + lanes <= size; at += lanes) sums[0] += load(x + at) * load(y + at);
    T total = sum_of<T>((sums[0] + sums[1]) + (sums[2] + sums[3]));
    for (; at < size; ++at) total += x[at] * y[at];
    return total;
}

template <class T>
void row_product(const void* given, Index item, void*) {
    const RowProductCall& call = *static_cast<const RowProductCall*>(given);
    const T *x = static_cast<const T*>(call.x), *weight = static_cast<const T*>(call.weight);
    const T* bias = static_cast<const T*>(call.bias);
    T* y = static_cast<T*>(call.y);
    const Index first = item * BLOCK_OUTPUTS, last = first + BLOCK_OUTPUTS;
    for (Index at = first; at < last && at < call.d_output; ++at)
        for (Index row = 0; row < call.rows; ++row)
            y[row * call.d_output + at] =
                long_dot(x + row * call.d_input, weight + at * call.d_input, call.d_input) +
                (bias == nullptr ? T(0) : bias[at]);
}

inline Index num_output_blocks(const void* given) {
    const Index outputs = static_cast<const RowProductCall*>(given)->d_output;
    return (outputs + BLOCK_OUTPUTS - 1) / BLOCK_OUTPUTS;
}

inline Index no_scratch(const void*) { return 0; }
