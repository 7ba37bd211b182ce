// The door: choose an instruction set, hand the items of a call to threads.

#include "call.h"

#include <atomic>
#include <cstdlib>
#include <new>

namespace {

constexpr std::size_t ALIGNMENT = 64;
constexpr int NUM_SETS = 3;

// The OpenMP runtime that torch itself uses: its threads are awake already and are not doubled.
using Parallel = void (*)(void (*)(void*), void*, unsigned, unsigned);

const Kernels* const kernels[NUM_SETS] = {
    &portable_kernels,
#if defined(__x86_64__)
    &avx2_kernels, &avx512_kernels,
#else
    nullptr, nullptr,
#endif
};

struct Work {
    const void* call;
    Kernel kernel;
    std::ptrdiff_t num_items;
    std::atomic<std::ptrdiff_t> next{0};
    std::atomic<bool> failed{false};
};

void take_items(void* argument) {
    Work& work = *static_cast<Work*>(argument);
    void* memory = ::operator new(work.kernel.memory_bytes(work.call), std::align_val_t(ALIGNMENT),
                                  std::nothrow);
    if (memory == nullptr) {
        work.failed = true;
        return;
    }
    for (std::ptrdiff_t item; (item = work.next++) < work.num_items;)
        work.kernel.run(work.call, item, memory);
    ::operator delete(memory, std::align_val_t(ALIGNMENT));
}

}  // namespace

#pragma GCC visibility push(default)
extern "C" {

// The best of: 0 portable, 1 AVX2, 2 AVX-512.
int mixerloop_best_set() {
#if defined(__x86_64__)
    __builtin_cpu_init();
    if (__builtin_cpu_supports("avx512f") && __builtin_cpu_supports("avx512dq") &&
        __builtin_cpu_supports("avx512vl") && __builtin_cpu_supports("avx512bw"))
        return 2;
    if (__builtin_cpu_supports("avx2") && __builtin_cpu_supports("fma")) return 1;
#endif
    return 0;
}

// What the caller must agree on, in its order; returns 1 if it expects another number of facts.
int mixerloop_facts(std::int64_t* to, int num) {
    const std::int64_t facts[] = {
        NUM_OPERATORS, NUM_TYPES, portable_kernels.group_tokens, portable_kernels.block_rows,
        sizeof(RuleCall), sizeof(MixingCall), sizeof(SwigluCall), sizeof(RmsNormCall),
        sizeof(CrossEntropyCall), sizeof(RowProductCall)};
    if (num != sizeof facts / sizeof *facts) return 1;
    for (int at = 0; at < num; ++at) to[at] = facts[at];
    return 0;
}

// Returns 0, or 1 when there was no memory left for a thread's scratch.
int mixerloop_run(int which, int type, const void* call, int set, int num_threads,
                  Parallel parallel) {
    const Kernel& kernel = kernels[set]->of[which][type];
    Work work{call, kernel, kernel.num_items(call)};
    // All threads, also where there are fewer items: OpenMP ends the threads that a smaller team
    // leaves over, and creates them anew for the next call.
    if (work.num_items > 1 && num_threads > 1 && parallel != nullptr)
        parallel(take_items, &work, static_cast<unsigned>(num_threads), 0);
    else
        take_items(&work);
    return work.failed ? 1 : 0;
}
}
#pragma GCC visibility pop
