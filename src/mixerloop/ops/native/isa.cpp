// The kernels of one instruction set. Compiled once for each, with ISA, VECTOR_BYTES and flags to fit.

#include "call.h"

#include <cmath>
#include <cstddef>
#include <cstdint>
#include <cstring>
#include <type_traits>
#include <utility>

#define JOINED(a, b) a##_##b
#define JOIN(a, b) JOINED(a, b)

namespace ISA {

#include "simd.h"
#include "rule.h"
#include "tokens.h"
#include "mixing.h"
#include "rows.h"
#include "products.h"

template <class Call>
Index num_heads(const void* given) {
    const Call& call = *static_cast<const Call*>(given);
    return call.batch * call.heads;
}

inline Index num_groups(Index seq) { return (seq + CHUNK * GROUP - 1) / (CHUNK * GROUP); }

// The part of a tensor of states that belongs to an item, if there is such a tensor.
template <class N, class Void>
N* part_of(Void* tensor, Index item, Index size) {
    return tensor == nullptr ? nullptr : static_cast<N*>(tensor) + item * size;
}

// Runs `work` on the tokens of an item, with the switches that the call asks for.
template <class T, class S, class Work>
void with_switches(const RuleCall& call, Index item, Work work) {
    const auto run = [&](auto tokens) { work(tokens); };
    const bool given = call.erase_key != nullptr, own = call.write_strength != nullptr;
    if (call.decays_by_channel) {
        if (given || own)
            run(PlainTokens<T, S, Decay::CHANNEL, Erase::GIVEN>(call, item));
        else
            run(PlainTokens<T, S, Decay::CHANNEL, Erase::NONE>(call, item));
    } else if (given) {
        run(PlainTokens<T, S, Decay::HEAD, Erase::GIVEN>(call, item));
    } else if (own) {
        run(PlainTokens<T, S, Decay::HEAD, Erase::OWN>(call, item));
    } else {
        run(PlainTokens<T, S, Decay::HEAD, Erase::NONE>(call, item));
    }
}

template <class T, class S>
void rule(const void* given, Index item, void* memory) {
    const RuleCall& call = *static_cast<const RuleCall*>(given);
    const Index size = call.d_key * call.d_value;
    with_switches<T, S>(call, item, [&](auto& tokens) {
        forward_head<T>(tokens, part_of<const T>(call.initial_state, item, size),
                        part_of<T>(call.final_state, item, size),
                        part_of<T>(call.states, item, size * num_groups(call.seq)),
                        Arena<T>{static_cast<T*>(memory)});
    });
}

template <class T, class S>
void rule_backward(const void* given, Index item, void* memory) {
    const RuleCall& call = *static_cast<const RuleCall*>(given);
    const Index size = call.d_key * call.d_value;
    with_switches<T, S>(call, item, [&](auto& tokens) {
        backward_head<T>(tokens, part_of<const T>(call.states, item, size * num_groups(call.seq)),
                         part_of<const T>(call.d_final_state, item, size),
                         part_of<T>(call.d_initial_state, item, size),
                         Arena<T>{static_cast<T*>(memory)});
    });
}

template <class T>
Index rule_bytes(const void* given) {
    const RuleCall& call = *static_cast<const RuleCall*>(given);
    return forward_memory<T>(call.d_key, call.d_value, 0) * sizeof(T);
}

template <class T>
Index rule_backward_bytes(const void* given) {
    const RuleCall& call = *static_cast<const RuleCall*>(given);
    return backward_memory<T>(call.d_key, call.d_value, 0) * sizeof(T);
}

template <class T, class S>
void mixing(const void* given, Index item, void* memory) {
    const MixingCall& call = *static_cast<const MixingCall*>(given);
    const Index size = call.d_head * call.d_head;
    Arena<T> arena{static_cast<T*>(memory)};
    MixingTokens<T, S> tokens(call, item, arena, false);
    forward_head<T>(tokens, part_of<const T>(call.initial_state, item, size),
                    part_of<T>(call.final_state, item, size),
                    part_of<T>(call.states, item, size * num_groups(call.seq)), arena);
}

template <class T, class S>
void mixing_backward(const void* given, Index item, void* memory) {
    const MixingCall& call = *static_cast<const MixingCall*>(given);
    const Index size = call.d_head * call.d_head;
    Arena<T> arena{static_cast<T*>(memory)};
    MixingTokens<T, S> tokens(call, item, arena, true);
    backward_head<T>(tokens, part_of<const T>(call.states, item, size * num_groups(call.seq)),
                     part_of<const T>(call.d_final_state, item, size),
                     part_of<T>(call.d_initial_state, item, size), arena);
    tokens.finish();
}

template <class T, class S>
Index mixing_bytes(const void* given) {
    const MixingCall& call = *static_cast<const MixingCall*>(given);
    using Tokens = MixingTokens<T, S>;
    return (Tokens::memory(call, false) +
            forward_memory<T>(call.d_head, call.d_head, Tokens::side_size(call, false))) *
           sizeof(T);
}

template <class T, class S>
Index mixing_backward_bytes(const void* given) {
    const MixingCall& call = *static_cast<const MixingCall*>(given);
    using Tokens = MixingTokens<T, S>;
    return (Tokens::memory(call, true) +
            backward_memory<T>(call.d_head, call.d_head, Tokens::side_size(call, true))) *
           sizeof(T);
}

template <class Call>
Index num_blocks(const void* given) {
    return (static_cast<const Call*>(given)->rows + BLOCK_ROWS - 1) / BLOCK_ROWS;
}

template <class T, class Call, void (*row)(const Call&, Index, T*)>
void block(const void* given, Index item, void* memory) {
    const Call& call = *static_cast<const Call*>(given);
    const Index first = item * BLOCK_ROWS, last = first + BLOCK_ROWS;
    for (Index at = first; at < last && at < call.rows; ++at)
        row(call, at, static_cast<T*>(memory));
}

template <class T, class Call>
Index three_rows(const void* given) {
    return 3 * padded(static_cast<const Call*>(given)->width) * sizeof(T);
}

template <class T>
Index cross_entropy_bytes(const void* given) {
    return padded(static_cast<const CrossEntropyCall*>(given)->vocab) * sizeof(T);
}

template <class T, class S>
constexpr Kernel kernel_of(Operator which) {
    switch (which) {
        case RULE: return {rule<T, S>, num_heads<RuleCall>, rule_bytes<T>};
        case RULE_BACKWARD:
            return {rule_backward<T, S>, num_heads<RuleCall>, rule_backward_bytes<T>};
        case MIXING: return {mixing<T, S>, num_heads<MixingCall>, mixing_bytes<T, S>};
        case MIXING_BACKWARD:
            return {mixing_backward<T, S>, num_heads<MixingCall>, mixing_backward_bytes<T, S>};
        case SWIGLU:
            return {block<T, SwigluCall, swiglu_forward<T, S>>, num_blocks<SwigluCall>,
                    three_rows<T, SwigluCall>};
        case SWIGLU_BACKWARD:
            return {block<T, SwigluCall, swiglu_backward<T, S>>, num_blocks<SwigluCall>,
                    three_rows<T, SwigluCall>};
        case RMS_NORM:
            return {block<T, RmsNormCall, rms_norm<T, S>>, num_blocks<RmsNormCall>,
                    three_rows<T, RmsNormCall>};
        case RMS_NORM_BACKWARD:
            return {block<T, RmsNormCall, rms_norm_backward<T, S>>, num_blocks<RmsNormCall>,
                    three_rows<T, RmsNormCall>};
        case CROSS_ENTROPY:
            return {block<T, CrossEntropyCall, cross_entropy<T, S>>, num_blocks<CrossEntropyCall>,
                    cross_entropy_bytes<T>};
        default: return {row_product<T>, num_output_blocks, no_scratch};  // never bfloat16
    }
}

constexpr Kernels all_kernels() {
    Kernels found{};
    found.group_tokens = CHUNK * GROUP, found.block_rows = BLOCK_ROWS;
    for (int which = 0; which < NUM_OPERATORS; ++which) {
        found.of[which][FLOAT32] = kernel_of<float, float>(static_cast<Operator>(which));
        found.of[which][FLOAT64] = kernel_of<double, double>(static_cast<Operator>(which));
        found.of[which][BFLOAT16] = kernel_of<float, BFloat16>(static_cast<Operator>(which));
    }
    return found;
}

}  // namespace ISA

const Kernels JOIN(ISA, kernels) = ISA::all_kernels();
