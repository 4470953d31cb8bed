// The threads that run a step together, and how they share its work.
#pragma once

#include <atomic>
#include <cstdint>
#include <functional>
#include <thread>
#include <vector>

namespace octavo {

class Crew;

// One thread's view of the crew. Every thread of the crew runs the same code with its own Team; each call below is made
// by all of them in the same order, with the same n.
//
// A phase is over when its items are done, not when every thread has been there: a thread whose core somebody else has
// taken holds up the others only if it has claimed an item, and later runs through what is over without doing anything.
// So outside of items nothing may depend on what a phase after it writes.
class Team {
 public:
  Team(Crew& crew, int index, uint32_t first_phase) : crew_(crew), index_(index), phase_(first_phase) {}

  int index() const { return index_; }
  uint32_t phase() const { return phase_; }  // the one that this thread is at
  int size() const;

  // Calls f(i) once for each i in [0, n), on whichever thread is free, and returns when all are done.
  template <typename F>
  void parallel(int64_t n, F&& f);

  // The same with f(i, next), where `next` is what this thread's next call will get, or n or more if there is none: for
  // what can be fetched from memory while i is computed.
  template <typename F>
  void parallel_ahead(int64_t n, F&& f);

 private:
  Crew& crew_;
  const int index_;
  uint32_t phase_;
};

// A fixed number of threads, the caller of `run` being the first. Between runs the others sleep. Within a run they wait
// for one another by looking for some microseconds and then sleeping: a step has more than a hundred waits, most of
// them shorter than it takes to wake a thread, and a thread that looks for longer would take the core from others (the
// gateway, the KV manager).
class Crew {
 public:
  explicit Crew(int size);
  ~Crew();
  Crew(const Crew&) = delete;
  Crew& operator=(const Crew&) = delete;

  int size() const { return size_; }

  // Runs f(team) on every thread and returns when all are done. Not to be called from two threads at once, nor from
  // within f.
  void run(const std::function<void(Team&)>& f);

 private:
  friend class Team;

  void work(int index);

  // An item of the phase that nobody has; n or more where there is none, or the phase is over.
  int64_t claim(uint32_t phase, int64_t n);
  // An item is done. The last one ends the phase.
  void finish(uint32_t phase, int64_t n);
  // Returns when the phase is over.
  void wait(uint32_t phase);

  const int size_;
  std::vector<std::thread> threads_;
  const std::function<void(Team&)>* job_ = nullptr;
  bool ending_ = false;
  // Each on a cache line of its own. Futexes are 32 bits.
  alignas(64) std::atomic<uint32_t> run_{0};
  alignas(64) std::atomic<uint32_t> phase_{0};    // the one under way
  alignas(64) std::atomic<uint64_t> claimed_{0};  // the phase under way in the upper half, the next item in the lower
  alignas(64) std::atomic<int64_t> finished_{0};  // items of the phase under way
  alignas(64) std::atomic<int32_t> sleeping_{0};
  alignas(64) std::atomic<uint32_t> left_{0};  // threads that are done with the run
  alignas(64) std::atomic<bool> caller_sleeps_{false};
};

inline int Team::size() const { return crew_.size_; }

inline int64_t Crew::claim(uint32_t phase, int64_t n) {
  uint64_t claimed = claimed_.load(std::memory_order_relaxed);
  do {
    if (claimed >> 32 != phase || static_cast<int64_t>(claimed & UINT32_MAX) >= n) return n;
  } while (!claimed_.compare_exchange_weak(claimed, claimed + 1, std::memory_order_relaxed));
  return static_cast<int64_t>(claimed & UINT32_MAX);
}

template <typename F>
void Team::parallel(int64_t n, F&& f) {
  if (n <= 0) return;
  // One at a time: of few items, a thread that claims ahead would leave none to the others.
  for (int64_t i; (i = crew_.claim(phase_, n)) < n;) {
    f(i);
    crew_.finish(phase_, n);
  }
  crew_.wait(phase_++);
}

template <typename F>
void Team::parallel_ahead(int64_t n, F&& f) {
  if (n <= 0) return;
  for (int64_t i = crew_.claim(phase_, n), next; i < n; i = next) {
    next = crew_.claim(phase_, n);
    f(i, next);
    crew_.finish(phase_, n);
  }
  crew_.wait(phase_++);
}

}  // namespace octavo
