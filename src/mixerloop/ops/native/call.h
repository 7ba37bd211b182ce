// What Python hands over, and what each instruction set offers. Plain C, so that nothing here needs
// torch or Python to be built. All tensors are contiguous.

#pragma once

#include <cstddef>
#include <cstdint>

extern "C" {

// Tokens [batch, seq, heads, width], write strengths [batch, seq, heads], log decays the same or, by
// channel, [batch, seq, heads, d_key]; states [batch, heads, d_key, d_value], kept states [batch,
// heads, groups, d_key, d_value]. Decays, erase keys, write strengths and the initial state may be
// left out; a call has erase keys or write strengths, not both.
struct RuleCall {
    std::int64_t batch, seq, heads, d_key, d_value, decays_by_channel;
    const void *query, *key, *value, *log_decay, *erase_key, *write_strength, *initial_state;
    void *output, *final_state, *states;
    const void *d_output, *d_final_state;
    void *d_query, *d_key_out, *d_value_out, *d_log_decay, *d_erase_key, *d_write_strength;
    void *d_initial_state;
};

// qkv [batch, seq, 3 heads d_head], gate [batch, seq, heads d_head], decay and write [batch, seq,
// heads], conv_weight [3 heads d_head, width], history [batch, width - 1, 3 heads d_head]. The
// gradients of weights have one entry for each sequence, the norm's one for each of its heads.
struct MixingCall {
    std::int64_t batch, seq, heads, d_head, width;
    double norm_eps, unit_eps, query_scale;
    const void *qkv, *gate, *decay, *write;
    const void *conv_weight, *history, *A_log, *dt_bias, *norm_weight, *initial_state;
    void *output, *final_state, *states;
    const void *d_output, *d_final_state;
    void *d_qkv, *d_gate, *d_decay, *d_write;
    void *d_conv_weight, *d_history, *d_A_log, *d_dt_bias, *d_norm_weight, *d_initial_state;
};

// gate_up [rows, 2 width], output [rows, width].
struct SwigluCall {
    std::int64_t rows, width;
    const void *gate_up;
    void *output;
    const void *d_output;
    void *d_gate_up;
};

// x and its gradient are as wide as the weights; y [rows, width]. The gradient of the weight has one
// row for each block of rows.
struct RmsNormCall {
    std::int64_t rows, width;
    double eps;
    const void *x, *weight;
    void *y;
    const void *d_y;
    void *d_x, *d_weight;
};

// logits [rows, vocab], replaced by their gradient; labels [rows], below zero where there is none.
struct CrossEntropyCall {
    std::int64_t rows, vocab, with_gradient;
    void *logits;
    const void *labels;
    void *losses;
};

// x [rows, d_input], weight [d_output, d_input], bias [d_output] or none, y [rows, d_output].
struct RowProductCall {
    std::int64_t rows, d_input, d_output;
    const void *x, *weight, *bias;
    void *y;
};
}

// One operator on one type: a call is cut into items that do not touch each other's results.
struct Kernel {
    void (*run)(const void* call, std::ptrdiff_t item, void* memory);
    std::ptrdiff_t (*num_items)(const void* call);
    std::ptrdiff_t (*memory_bytes)(const void* call);  // of one thread
};

enum Operator { RULE, RULE_BACKWARD, MIXING, MIXING_BACKWARD, SWIGLU, SWIGLU_BACKWARD, RMS_NORM,
                RMS_NORM_BACKWARD, CROSS_ENTROPY, ROW_PRODUCT, NUM_OPERATORS };
enum Type { FLOAT32, FLOAT64, BFLOAT16, NUM_TYPES };  // of tokens; all else is float32, or float64

struct Kernels {
    Kernel of[NUM_OPERATORS][NUM_TYPES];
    std::int64_t group_tokens, block_rows;  // what the caller must know to make room for results
};

extern const Kernels portable_kernels, avx2_kernels, avx512_kernels;
