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
void sleep_while(std::atomic<uint32_t>& word, uint32_t value) {
#if defined(__linux__)
  syscall(SYS_futex, reinterpret_cast<uint32_t*>(&word), FUTEX_WAIT_PRIVATE, value, nullptr, nullptr, 0);
#else
  std::this_thread::yield();
#endif
}

void wake_all(std::atomic<uint32_t>& word) {
#if defined(__linux__)
  syscall(SYS_futex, reinterpret_cast<uint32_t*>(&word), FUTEX_WAKE_PRIVATE, INT32_MAX, nullptr, nullptr, 0);
#endif
}

// Whether the condition holds within some microseconds.
template <typename F>
bool soon(F&& condition) {
  for (int look = 0; look < kLooks; ++look) {
    if (condition()) return true;
    relax();
  }
  return false;
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
  left_.store(1, std::memory_order_relaxed);
  Team team(*this, 0, phase_.load(std::memory_order_relaxed));
  if (size_ > 1) {
    run_.fetch_add(1, std::memory_order_release);
    wake_all(run_);
  }
  f(team);

  const auto threads = static_cast<uint32_t>(size_);
  if (soon([&] { return left_.load(std::memory_order_acquire) == threads; })) return;
  // Sequentially consistent with the last one that leaves: either it sees that this sleeps, or this sees that it left.
  caller_sleeps_.store(true, std::memory_order_seq_cst);
  for (uint32_t left; (left = left_.load(std::memory_order_seq_cst)) != threads;) sleep_while(left_, left);
  caller_sleeps_.store(false, std::memory_order_relaxed);
}

void Crew::work(int index) {
  // Phases are counted alike by all: none begins outside of a run, which ends when all have left it.
  uint32_t first_phase = 0;
  for (uint32_t seen = 0;; ++seen) {
    while (run_.load(std::memory_order_acquire) == seen) sleep_while(run_, seen);
    if (ending_) return;
    Team team(*this, index, first_phase);
    (*job_)(team);
    first_phase = team.phase();
    if (left_.fetch_add(1, std::memory_order_seq_cst) + 1 == static_cast<uint32_t>(size_) &&
        caller_sleeps_.load(std::memory_order_seq_cst))
      wake_all(left_);
  }
}

void Crew::finish(uint32_t phase, int64_t n) {
  if (finished_.fetch_add(1, std::memory_order_acq_rel) != n - 1) return;
  // All items are done, so nobody touches these before the next phase has begun.
  finished_.store(0, std::memory_order_relaxed);
  claimed_.store(static_cast<uint64_t>(phase + 1) << 32, std::memory_order_relaxed);
  // Sequentially consistent with the sleepers' count: either this sees the sleeper, or the sleeper sees the new phase.
  phase_.store(phase + 1, std::memory_order_seq_cst);
  if (sleeping_.load(std::memory_order_seq_cst) > 0) wake_all(phase_);
}

void Crew::wait(uint32_t phase) {
  if (soon([&] { return phase_.load(std::memory_order_acquire) != phase; })) return;
  sleeping_.fetch_add(1, std::memory_order_seq_cst);
  while (phase_.load(std::memory_order_seq_cst) == phase) sleep_while(phase_, phase);
  sleeping_.fetch_sub(1, std::memory_order_seq_cst);
}

}  // namespace octavo
