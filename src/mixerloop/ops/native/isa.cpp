// The kernels of one instruction set. Compiled once for each, with ISA, VECTOR_BYTES and flags to fit.

#include "call.h"

#include <cmath>
#include <cstddef>
#include <cstdint>
#include <cstring>

#define JOINED(a, b) a##_##b
#define JOIN(a, b) JOINED(a, b)

namespace ISA {

#include "simd.h"
#include "rule.h"

template <class T>
Head<T> head_of(const RuleCall& call, Index item) {
    const Index batch = item / call.heads, head = item % call.heads;
    const Index token = batch * call.seq * call.heads + head;
    return {call.seq, call.d_key, call.d_value,
            call.heads * call.d_key, call.heads * call.d_value, call.heads,
            static_cast<const T*>(call.query) + token * call.d_key,
            static_cast<const T*>(call.key) + token * call.d_key,
            static_cast<const T*>(call.value) + token * call.d_value,
            static_cast<const T*>(call.log_decay) + token,
            static_cast<const T*>(call.write_strength) + token};
}

inline Index num_groups(const RuleCall& call) {
    return (call.seq + CHUNK * GROUP - 1) / (CHUNK * GROUP);
}

template <class T>
void forward(const RuleCall& call, Index item, void* memory) {
    const Index token = item / call.heads * call.seq * call.heads + item % call.heads;
    const Index state = item * call.d_key * call.d_value;
    forward_head<T>(head_of<T>(call, item), static_cast<const T*>(call.initial_state) + state,
                    static_cast<T*>(call.output) + token * call.d_value,
                    static_cast<T*>(call.final_state) + state,
                    call.states == nullptr ? nullptr
                                           : static_cast<T*>(call.states) + state * num_groups(call),
                    static_cast<T*>(memory));
}

template <class T>
void backward(const RuleCall& call, Index item, void* memory) {
    const Index token = item / call.heads * call.seq * call.heads + item % call.heads;
    const Index state = item * call.d_key * call.d_value;
    const HeadGradients<T> grads{
        static_cast<const T*>(call.d_output) + token * call.d_value,
        static_cast<const T*>(call.d_final_state) + state,
        static_cast<T*>(call.d_query) + token * call.d_key,
        static_cast<T*>(call.d_key_out) + token * call.d_key,
        static_cast<T*>(call.d_value_out) + token * call.d_value,
        static_cast<T*>(call.d_log_decay) + token,
        static_cast<T*>(call.d_write_strength) + token,
        static_cast<T*>(call.d_initial_state) + state};
    backward_head<T>(head_of<T>(call, item),
                     static_cast<const T*>(call.states) + state * num_groups(call), grads,
                     static_cast<T*>(memory));
}

template <class T>
Index forward_bytes(const RuleCall& call) {
    return forward_memory<T>(call.d_key, call.d_value) * sizeof(T);
}

template <class T>
Index backward_bytes(const RuleCall& call) {
    return backward_memory<T>(call.d_key, call.d_value) * sizeof(T);
}

}  // namespace ISA

const Kernels JOIN(ISA, kernels) = {
    {{{ISA::forward<float>, ISA::forward_bytes<float>},
      {ISA::backward<float>, ISA::backward_bytes<float>}},
     {{ISA::forward<double>, ISA::forward_bytes<double>},
      {ISA::backward<double>, ISA::backward_bytes<double>}}}};
