// Runs the kernels over many shapes and nothing else: built with sanitizers, it finds what reads or
// writes where it should not. Prints how many calls it made.

#include "call.h"

#include <cstdio>
#include <random>
#include <vector>

extern "C" int mixerloop_best_set();
extern "C" int mixerloop_rule(const RuleCall*, int, int, int, int, void*);

template <class T>
int run(std::mt19937& random, int set) {
    auto number = [&](int most) { return 1 + static_cast<int>(random() % most); };
    const std::int64_t batch = number(3), seq = number(150), heads = number(3);
    const std::int64_t dk = number(90), dv = number(90), groups = (seq + 63) / 64;
    auto values = [&](std::int64_t size, float low, float high) {
        std::vector<T> result(size);
        std::uniform_real_distribution<float> draw(low, high);
        for (T& value : result) value = draw(random);
        return result;
    };
    const std::int64_t tokens = batch * seq * heads, states = batch * heads * dk * dv;
    auto q = values(tokens * dk, -0.2f, 0.2f), k = values(tokens * dk, -0.2f, 0.2f);
    auto v = values(tokens * dv, -1, 1), g = values(tokens, -3, 0), b = values(tokens, 0, 1);
    auto s0 = values(states, -1, 1), o = v, sf = s0, kept = values(states * groups, 0, 0);
    auto d_o = v, d_sf = s0, dq = q, d_k = k, d_v = v, dg = g, db = b, ds = s0;
    const RuleCall call{batch, seq, heads, dk, dv, q.data(), k.data(), v.data(), g.data(), b.data(),
                        s0.data(), o.data(), sf.data(), kept.data(), d_o.data(), d_sf.data(),
                        dq.data(), d_k.data(), d_v.data(), dg.data(), db.data(), ds.data()};
    const int is_double = sizeof(T) == 8;
    if (mixerloop_rule(&call, is_double, 0, set, 1, nullptr)) return 1;
    return mixerloop_rule(&call, is_double, 1, set, 1, nullptr);
}

int main() {
    std::mt19937 random(0);
    int calls = 0;
    for (int set = 0; set <= mixerloop_best_set(); ++set)
        for (int times = 0; times < 40; ++times, ++calls)
            if (times % 2 ? run<double>(random, set) : run<float>(random, set)) return 1;
    std::printf("%d calls\n", calls);
    return 0;
}
