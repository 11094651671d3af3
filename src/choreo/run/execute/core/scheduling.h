/* Hints to the processor and the scheduler while a thread waits. */
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
#define MOST_FAILURES 4 /* then it tries again after 32 short waits */

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

/* How long to spin, learnt from each wait. Several threads may wait. */
typedef struct {
    _Atomic int64_t ns;
    _Atomic int failures, rest; /* trials in a row that did not pay, and how many short waits there are before the next trial */
} Patience;

/* A wait is over. If spinning has paid, spin a bit longer than this wait took, else half as long as now. A short wait that ended
 * in sleep may be a reason to try again, but ever less often. */
static inline void learn_patience(Patience *patience, int64_t waited, int paid) {
    int64_t before = atomic_load_explicit(&patience->ns, memory_order_relaxed), next = before / 2;
    if (paid) {
        if (next < 2 * waited) next = 2 * waited < SPIN_NS ? 2 * waited : SPIN_NS;
        atomic_store_explicit(&patience->failures, 0, memory_order_relaxed);
    } else if (2 * waited <= 3 * SPIN_NS) {
        int rest = atomic_load_explicit(&patience->rest, memory_order_relaxed), failures = atomic_load_explicit(&patience->failures, memory_order_relaxed);
        if (!rest) {
            next = SPIN_NS;
            if (failures < MOST_FAILURES) atomic_store_explicit(&patience->failures, failures + 1, memory_order_relaxed);
        }
        atomic_store_explicit(&patience->rest, rest ? rest - 1 : 2 << failures, memory_order_relaxed);
    }
    atomic_store_explicit(&patience->ns, next, memory_order_relaxed);
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
