// Runs the kernels over many shapes and nothing else: built with sanitizers, it finds what reads or
// writes where it should not. Prints how many calls it made.

#include "call.h"

#include <cmath>
#include <cstdio>
#include <random>
#include <vector>

extern "C" int mixerloop_best_set();
extern "C" int mixerloop_run(int, int, const void*, int, int, void*);

using Bits = std::uint16_t;  // a bfloat16

std::mt19937 generator(0);

std::int64_t number(int most) { return 1 + static_cast<int>(generator() % most); }

// Exactly as many numbers as a tensor has, so that one more is one too many.
template <class S>
std::vector<S> values(std::int64_t size, float low = -1, float high = 1) {
    std::vector<S> result(size);
    std::uniform_real_distribution<float> draw(low, high);
    for (S& value : result) value = static_cast<S>(draw(generator));
    return result;
}

template <>
std::vector<Bits> values(std::int64_t size, float, float) {
    std::vector<Bits> result(size);
    for (Bits& value : result) value = 0x3e00 + generator() % 256;  // about an eighth to a half
    return result;
}

// Any member of the family: decays of a head, of channels or none; erase keys, write strengths or
// neither; with an initial state or without.
template <class T, class S>
bool rule(int type, int set) {
    const std::int64_t batch = number(3), seq = number(150), heads = number(3);
    const std::int64_t dk = number(90), dv = number(90), groups = (seq + 63) / 64;
    const std::int64_t tokens = batch * seq * heads, states = batch * heads * dk * dv;
    const int decay = generator() % 3, erase = generator() % 3;
    const std::int64_t by_channel = decay == 2;
    auto q = values<S>(tokens * dk, -0.2f, 0.2f), k = q, v = values<S>(tokens * dv), e = q;
    auto g = values<T>(tokens * (by_channel ? dk : 1), -3, 0), b = values<T>(tokens, 0, 1);
    auto s0 = values<T>(states);
    if (generator() % 4 == 0) b[generator() % tokens] = NAN;
    if (generator() % 4 == 0) g[generator() % g.size()] = -INFINITY;
    auto o = v, d_o = v, dq = q, d_k = k, d_v = v, d_e = e;
    auto sf = s0, kept = values<T>(states * groups), d_sf = s0, ds = s0, dg = g, db = b;
    RuleCall call{};
    call.batch = batch, call.seq = seq, call.heads = heads, call.d_key = dk, call.d_value = dv;
    call.decays_by_channel = by_channel;
    call.query = q.data(), call.key = k.data(), call.value = v.data();
    if (decay > 0) call.log_decay = g.data(), call.d_log_decay = dg.data();
    if (erase == 1) call.erase_key = e.data(), call.d_erase_key = d_e.data();
    if (erase == 2) call.write_strength = b.data(), call.d_write_strength = db.data();
    if (generator() % 2) call.initial_state = s0.data();
    call.output = o.data(), call.final_state = sf.data(), call.states = kept.data();
    call.d_output = d_o.data(), call.d_final_state = d_sf.data();
    call.d_query = dq.data(), call.d_key_out = d_k.data(), call.d_value_out = d_v.data();
    call.d_initial_state = ds.data();
    RuleCall forgetful = call;
    forgetful.states = nullptr;
    return !mixerloop_run(RULE, type, &forgetful, set, 1, nullptr) &&
           !mixerloop_run(RULE, type, &call, set, 1, nullptr) &&
           !mixerloop_run(RULE_BACKWARD, type, &call, set, 1, nullptr);
}

template <class T, class S>
bool mixing(int type, int set) {
    const std::int64_t batch = number(2), seq = number(100), heads = number(3), d = number(90);
    const std::int64_t width = number(17), inner = heads * d, tokens = batch * seq;
    const std::int64_t states = batch * heads * d * d, groups = (seq + 63) / 64;
    auto qkv = values<S>(tokens * 3 * inner), gate = values<S>(tokens * inner);
    auto decay = values<S>(tokens * heads), write = decay, output = gate, d_output = gate;
    auto conv = values<T>(3 * inner * width), history = values<T>(batch * (width - 1) * 3 * inner);
    auto A_log = values<T>(heads), dt_bias = A_log, norm = values<T>(d), s0 = values<T>(states);
    auto sf = s0, kept = values<T>(states * groups), d_sf = s0, ds = s0, d_history = history;
    auto d_qkv = qkv, d_gate = gate, d_decay = decay, d_write = write;
    auto d_conv = values<T>(batch * 3 * inner * width), d_A = values<T>(batch * heads), d_dt = d_A;
    auto d_norm = values<T>(batch * heads * d);
    const MixingCall call{
        batch, seq, heads, d, width, 1e-5, 1e-6, 0.1, qkv.data(), gate.data(), decay.data(),
        write.data(), conv.data(), history.data(), A_log.data(), dt_bias.data(), norm.data(),
        s0.data(), output.data(), sf.data(), kept.data(), d_output.data(), d_sf.data(),
        d_qkv.data(), d_gate.data(), d_decay.data(), d_write.data(), d_conv.data(),
        d_history.data(), d_A.data(), d_dt.data(), d_norm.data(), ds.data()};
    MixingCall forgetful = call;
    forgetful.states = nullptr;
    return !mixerloop_run(MIXING, type, &forgetful, set, 1, nullptr) &&
           !mixerloop_run(MIXING, type, &call, set, 1, nullptr) &&
           !mixerloop_run(MIXING_BACKWARD, type, &call, set, 1, nullptr);
}

template <class T, class S>
bool rows(int type, int set) {
    const std::int64_t num = number(20), width = number(200);
    auto gate_up = values<S>(num * 2 * width), output = values<S>(num * width);
    auto d_output = output, d_gate_up = gate_up;
    const SwigluCall swiglu{num, width, gate_up.data(), output.data(), d_output.data(),
                            d_gate_up.data()};
    std::vector<std::int64_t> labels(num);
    for (std::int64_t& label : labels) label = number(width + 1) - 2;  // -1 is none
    auto x = values<T>(num * width), weight = values<T>(width), d_x = x;
    auto d_weight = values<T>((num + 7) / 8 * width);
    const RmsNormCall norm{num, width, 1e-5, x.data(), weight.data(), output.data(),
                           d_output.data(), d_x.data(), d_weight.data()};
    auto logits = output;
    auto losses = values<T>(num);
    const CrossEntropyCall loss_alone{num, width, 0, logits.data(), labels.data(), losses.data()};
    const CrossEntropyCall loss{num, width, 1, logits.data(), labels.data(), losses.data()};
    return !mixerloop_run(SWIGLU, type, &swiglu, set, 1, nullptr) &&
           !mixerloop_run(SWIGLU_BACKWARD, type, &swiglu, set, 1, nullptr) &&
           !mixerloop_run(RMS_NORM, type, &norm, set, 1, nullptr) &&
           !mixerloop_run(RMS_NORM_BACKWARD, type, &norm, set, 1, nullptr) &&
           !mixerloop_run(CROSS_ENTROPY, type, &loss_alone, set, 1, nullptr) &&
           !mixerloop_run(CROSS_ENTROPY, type, &loss, set, 1, nullptr);
}

// Weights are as wide as the tokens: bfloat16 has no such product.
template <class T>
bool product(int type, int set) {
    const std::int64_t num = number(4), d_input = number(90), d_output = number(90);
    auto x = values<T>(num * d_input), weight = values<T>(d_output * d_input);
    auto bias = values<T>(d_output), y = values<T>(num * d_output);
    const bool has_bias = generator() % 2;
    const RowProductCall call{num, d_input, d_output, x.data(), weight.data(),
                              has_bias ? bias.data() : nullptr, y.data()};
    return !mixerloop_run(ROW_PRODUCT, type, &call, set, 1, nullptr);
}

template <class T, class S>
bool all(int type, int set) {
    return rule<T, S>(type, set) && mixing<T, S>(type, set) && rows<T, S>(type, set) &&
           (type == BFLOAT16 || product<T>(type, set));
}

int main() {
    int calls = 0;
    for (int set = 0; set <= mixerloop_best_set(); ++set)
        for (int times = 0; times < 40; ++times, calls += 38)
            if (!(all<float, float>(FLOAT32, set) && all<double, double>(FLOAT64, set) &&
                  all<float, Bits>(BFLOAT16, set)))
                return 1;
    std::printf("%d calls\n", calls);
    return 0;
}
