// What Python hands over, and what each instruction set offers. Plain C, so that nothing here needs
// torch or Python to be built.

#pragma once

#include <cstddef>
#include <cstdint>

extern "C" {

// All tensors are contiguous: [batch, seq, heads, width], gates [batch, seq, heads], states
// [batch, heads, d_key, d_value], kept states [batch, heads, groups, d_key, d_value].
struct RuleCall {
    std::int64_t batch, seq, heads, d_key, d_value;
    const void *query, *key, *value, *log_decay, *write_strength, *initial_state;
    void *output, *final_state, *states;
    const void *d_output, *d_final_state;
    void *d_query, *d_key_out, *d_value_out, *d_log_decay, *d_write_strength, *d_initial_state;
};
}

using RunItem = void (*)(const RuleCall&, std::ptrdiff_t item, void* memory);
using MemoryBytes = std::ptrdiff_t (*)(const RuleCall&);

struct Kernel {
    RunItem run;
    MemoryBytes memory;
};

// Indexed by [is_double][is_backward].
struct Kernels {
    Kernel rule[2][2];
};

extern const Kernels portable_kernels, avx2_kernels, avx512_kernels;
