// What a step spends its time on.
#pragma once

#include <array>
#include <chrono>
#include <cstdint>

namespace octavo {

enum class Phase : int32_t {
  kEmbed,
  kNorm,
  kQkv,
  kRotate,
  kWrite,
  kAttend,
  kAttentionOut,
  kMlpIn,
  kMlpOut,
  kHead,
  kCount
};

// Adds up wall time by phase over all steps. Looking at the clock costs some 20 ns, some ten times a layer.
class PhaseClock {
 public:
  void start() { last_ = now(); }

  // What has passed since the last mark belongs to this phase.
  void mark(Phase phase) {
    const int64_t time = now();
    nanoseconds_[static_cast<size_t>(phase)] += time - last_;
    last_ = time;
  }

  int64_t nanoseconds(int32_t phase) const { return nanoseconds_[static_cast<size_t>(phase)]; }

 private:
  static int64_t now() {
    const auto time = std::chrono::steady_clock::now().time_since_epoch();
    return std::chrono::duration_cast<std::chrono::nanoseconds>(time).count();
  }

  int64_t last_ = 0;
  std::array<int64_t, static_cast<size_t>(Phase::kCount)> nanoseconds_{};
};

}  // namespace octavo
