// The threads that run a step together, and how they share its work.
#pragma once

#include <atomic>
#include <cstdint>
#include <functional>
#include <memory>
#include <thread>
#include <vector>

namespace octavo {

class Crew;

// One thread's view of the crew. Every thread of the crew runs the same code with its own Team; each call below is made
// by all of them in the same order.
class Team {
 public:
  Team(Crew& crew, int index) : crew_(crew), index_(index) {}

  int index() const { return index_; }
  int size() const;

  // Calls f(i) once for each i in [0, n), on whichever thread is free, and returns when all are done.
  template <typename F>
  void parallel(int64_t n, F&& f);

  // The same with f(i, next), where `next` is what this thread's next call will get, or n or more if there is none: for
  // what can be fetched from memory while i is computed.
  template <typename F>
  void parallel_ahead(int64_t n, F&& f);

  // Returns once every thread has called it.
  void barrier();

 private:
  Crew& crew_;
  const int index_;
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
  void barrier();

  const int size_;
  std::vector<std::thread> threads_;
  const std::function<void(Team&)>* job_ = nullptr;
  bool ending_ = false;
  // Each on a cache line of its own. Futexes are 32 bits.
  alignas(64) std::atomic<int32_t> run_{0};
  alignas(64) std::atomic<int32_t> generation_{0};
  alignas(64) std::atomic<int32_t> arrived_{0};
  alignas(64) std::atomic<int32_t> sleeping_{0};
  alignas(64) std::atomic<int64_t> next_{0};
};

inline int Team::size() const { return crew_.size_; }

inline void Team::barrier() { crew_.barrier(); }

template <typename F>
void Team::parallel(int64_t n, F&& f) {
  // The last one to arrive at the barrier sets `next_` back to 0.
  for (int64_t i; (i = crew_.next_.fetch_add(1, std::memory_order_relaxed)) < n;) f(i);
  crew_.barrier();
}

template <typename F>
void Team::parallel_ahead(int64_t n, F&& f) {
  const auto claim = [this] { return crew_.next_.fetch_add(1, std::memory_order_relaxed); };
  for (int64_t i = claim(), next; i < n; i = next) {
    next = claim();
    f(i, next);
  }
  crew_.barrier();
}

}  // namespace octavo
