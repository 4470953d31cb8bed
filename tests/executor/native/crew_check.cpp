// Phases of all sizes whose items build on every item of the phase before, run by a crew and again by one loop.
#include <cstdint>
#include <random>
#include <vector>

#include "api.h"
#include "team.h"

namespace {

constexpr int64_t kValues = 500, kModulus = 1000003;

int64_t digest(const std::vector<int64_t>& values) {
  int64_t sum = 0;
  for (const int64_t value : values) sum += value % 97;
  return sum;
}

void change(std::vector<int64_t>& values, int64_t i, int64_t digest) {
  values[i] = (values[i] * 3 + digest) % kModulus;
}

}  // namespace

// How many of the runs came out wrong.
OCTAVO_API int32_t crew_errors(int32_t threads, int32_t runs, uint32_t seed) {
  octavo::Crew crew(threads);
  std::mt19937 random(seed);
  int32_t errors = 0;
  for (int32_t run = 0; run < runs; ++run) {
    std::vector<int64_t> sizes(random() % 40);
    for (auto& size : sizes) size = random() % (random() % 2 ? 4 : kValues);
    std::vector<int64_t> expected(kValues, 1), values(kValues, 1);
    for (const int64_t size : sizes) {
      const int64_t before = digest(expected);
      for (int64_t i = 0; i < size; ++i) change(expected, i, before);
    }
    int64_t before = 0;
    crew.run([&](octavo::Team& team) {
      for (const int64_t size : sizes) {
        team.parallel(1, [&](int64_t) { before = digest(values); });
        team.parallel_ahead(size, [&](int64_t i, int64_t) { change(values, i, before); });
      }
    });
    errors += values != expected;
  }
  return errors;
}
