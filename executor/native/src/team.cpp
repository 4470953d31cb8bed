#include "team.h"

#if defined(__linux__)
#include <linux/futex.h>
#include <sys/syscall.h>
#include <unistd.h>
#endif

namespace octavo {

namespace {

// About 20 microseconds.
constexpr int kLooks = 600;

inline void relax() {
#if defined(__x86_64__)
  __builtin_ia32_pause();
#elif defined(__aarch64__)
  asm volatile("yield");
#endif
}

// Sleeps while `word` holds `value`; may also wake without a reason.
void sleep_while(std::atomic<int32_t>& word, int32_t value) {
#if defined(__linux__)
  syscall(SYS_futex, reinterpret_cast<int32_t*>(&word), FUTEX_WAIT_PRIVATE, value, nullptr, nullptr, 0);
#else
  std::this_thread::yield();
#endif
}

void wake_all(std::atomic<int32_t>& word) {
#if defined(__linux__)
  syscall(SYS_futex, reinterpret_cast<int32_t*>(&word), FUTEX_WAKE_PRIVATE, INT32_MAX, nullptr, nullptr, 0);
#endif
}

}  // namespace

Crew::Crew(int size) : size_(size < 1 ? 1 : size) {
  for (int index = 1; index < size_; ++index) threads_.emplace_back([this, index] { work(index); });
}

Crew::~Crew() {
  ending_ = true;
  run_.fetch_add(1, std::memory_order_release);
  wake_all(run_);
  for (auto& thread : threads_) thread.join();
}

void Crew::run(const std::function<void(Team&)>& f) {
  job_ = &f;
  if (size_ > 1) {
    run_.fetch_add(1, std::memory_order_release);
    wake_all(run_);
  }
  Team team(*this, 0);
  f(team);
  barrier();
}

void Crew::work(int index) {
  Team team(*this, index);
  for (int32_t seen = 0;; ++seen) {
    while (run_.load(std::memory_order_acquire) == seen) sleep_while(run_, seen);
    if (ending_) return;
    (*job_)(team);
    barrier();
  }
}

void Crew::barrier() {
  if (size_ == 1) {
    next_.store(0, std::memory_order_relaxed);
    return;
  }
  const int32_t generation = generation_.load(std::memory_order_relaxed);
  if (arrived_.fetch_add(1, std::memory_order_acq_rel) == size_ - 1) {
    arrived_.store(0, std::memory_order_relaxed);
    next_.store(0, std::memory_order_relaxed);
    // Sequentially consistent with the sleepers' count: either this sees the sleeper, or the sleeper sees the new
    // generation.
    generation_.store(generation + 1, std::memory_order_seq_cst);
    if (sleeping_.load(std::memory_order_seq_cst) > 0) wake_all(generation_);
    return;
  }
  for (int look = 0; look < kLooks; ++look) {
    if (generation_.load(std::memory_order_acquire) != generation) return;
    relax();
  }
  sleeping_.fetch_add(1, std::memory_order_seq_cst);
  while (generation_.load(std::memory_order_seq_cst) == generation) sleep_while(generation_, generation);
  sleeping_.fetch_sub(1, std::memory_order_seq_cst);
}

}  // namespace octavo
