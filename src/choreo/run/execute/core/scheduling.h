/* What a thread tells the processor and the scheduler while it waits. */
#ifndef CHOREO_SCHEDULING_H
#define CHOREO_SCHEDULING_H
#include <sched.h>
#include <stdatomic.h>
#include <stdint.h>
#include <sys/syscall.h>
#include <time.h>
#include <unistd.h>

#define SLICE_NS 100000 /* the shortest slice that Linux gives */
/* How long a rank spins at most, if it has a core of its own: longer than a wake-up and an answer take together. Otherwise two
 * ranks that sleep would never find out that spinning is faster. */
#define SPIN_NS 100000

static inline void relax(void) {
#if defined(__x86_64__) || defined(__i386__)
    __builtin_ia32_pause();
#elif defined(__aarch64__)
    __asm__ volatile("yield");
#endif
}

static inline int64_t now_ns(void) {
    struct timespec time;
    clock_gettime(CLOCK_MONOTONIC, &time);
    return (int64_t)time.tv_sec * 1000000000 + time.tv_nsec;
}

/* How long to spin the next time, after a wait of this length: a bit longer than that, if it was short enough that spinning pays;
 * otherwise half as long as this time. One short wait says little. */
static inline void learn_patience(_Atomic int64_t *patience, int64_t waited) {
    int64_t before = atomic_load_explicit(patience, memory_order_relaxed), next = 2 * waited <= 3 * SPIN_NS ? 2 * waited : 0;
    if (next < before / 2) next = before / 2;
    atomic_store_explicit(patience, next > SPIN_NS ? SPIN_NS : next, memory_order_relaxed);
}

/* Ask the scheduler to run this thread soon after it wakes up: a thread with a shorter slice preempts one with a longer slice
 * (Linux 6.12 and later; others ignore it). Its share of the core stays the same. */
static void ask_for_short_slice(void) {
    static _Thread_local int asked;
    struct { uint32_t size, policy; uint64_t flags; int32_t nice; uint32_t priority; uint64_t runtime, deadline, period; } attributes = {0};
    if (asked) return;
    asked = 1;
    if (syscall(SYS_sched_getattr, 0, &attributes, sizeof(attributes), 0) || attributes.policy != SCHED_OTHER) return;
    attributes.runtime = SLICE_NS;
    syscall(SYS_sched_setattr, 0, &attributes, 0);
}
#endif
