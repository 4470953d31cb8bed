#include "truncation.h"

#include <algorithm>
#include <cmath>
#include <functional>
#include <limits>

#include "lanes.h"

namespace octavo {

namespace {

constexpr float kInfinity = std::numeric_limits<float>::infinity();
// So few are sorted.
constexpr int64_t kFew = 64;

int32_t bits_of(float x) {
  int32_t bits;
  std::memcpy(&bits, &x, sizeof bits);
  return bits;
}

float from_bits(int32_t bits) {
  float x;
  std::memcpy(&x, &bits, sizeof x);
  return x;
}

// What `largest` adds up: of one number, of several equal ones, of those of n that reach `smallest`.
struct ByCount {
  static double of(float) { return 1; }
  static double from(const float* values, int64_t n, float smallest) {
    int64_t result = 0;
    for_each_vec(values, n, -1, [&](Vec v, int64_t) { result += count(lanes(v >= broadcast(smallest))); });
    return static_cast<double>(result);
  }
};

struct BySum {
  static double of(float value) { return value; }
  static double from(const float* values, int64_t n, float smallest) {
    WideSum sum;
    for_each_vec(values, n, 0, [&](Vec v, int64_t) { sum.add(v >= broadcast(smallest) ? v : zero()); });
    return sum.total();
  }
};

// In place where out = values: what is written lies never ahead of what is still to be read.
template <typename Keep>
int64_t gather_where(const float* values, int64_t n, float* out, Keep&& keep) {
  int64_t size = 0;
  for_each_vec(values, n, -1, [&](Vec v, int64_t) { size += store_lanes(out + size, v, lanes(keep(v))); });
  return size;
}

// The last steps: the few that are left, one by one.
template <typename Measure>
Cut cut_of_few(float* values, int64_t n, double missing) {
  std::sort(values, values + n, std::greater<>());
  int64_t i = 0;
  while (i + 1 < n && (missing -= Measure::of(values[i])) > 0) ++i;
  return {values[i], i + 1 - (std::find(values, values + i, values[i]) - values)};
}

template <typename Measure>
Cut cut_of_equals(float value, int64_t n, double missing) {
  const double size = Measure::of(value);
  const double needed = size > 0 ? std::ceil(missing / size) : static_cast<double>(n);
  return {value, static_cast<int64_t>(std::clamp(needed, 1.0, static_cast<double>(n)))};
}

// Floats that are not negative are in the order of their bits. The smallest kept number is in [low, high): those above
// are all kept and `missing` what they leave of the target.
template <typename Measure>
Cut largest(const float* values, int64_t n, double missing, float* scratch) {
  const int64_t all = n;
  missing = std::max(missing, std::numeric_limits<double>::min());  // at least one is kept
  int32_t low = 0, high = bits_of(1.0f) + 1;
  while (n > kFew && high - low > 1) {
    const int32_t middle = low + (high - low) / 2;
    const Vec pivot = broadcast(from_bits(middle));
    const double upper = Measure::from(values, n, from_bits(middle));
    if (upper >= missing) {
      low = middle;
      n = gather_where(values, n, scratch, [&](Vec v) { return v >= pivot; });
    } else {
      missing -= upper;
      high = middle;
      n = gather_where(values, n, scratch, [&](Vec v) { return (v < pivot) & (v >= zero()); });
    }
    values = scratch;
  }
  // The target is out of reach, or was by a rounding.
  if (n == 0) return {from_bits(high), all};
  if (n > kFew) return cut_of_equals<Measure>(from_bits(low), n, missing);
  if (values != scratch) std::copy(values, values + n, scratch);
  return cut_of_few<Measure>(scratch, n, missing);
}

// In the order of the values and, where these are equal, against the order of the ids.
uint64_t key_of(float value, int64_t id) {
  const float ordinary = std::isnan(value) ? -kInfinity : value + 0.0f;  // -0 equals 0
  const uint32_t bits = static_cast<uint32_t>(bits_of(ordinary));
  const uint32_t ordered = bits & 0x80000000u ? ~bits : bits | 0x80000000u;
  return static_cast<uint64_t>(ordered) << 32 | (0xffffffffu - static_cast<uint32_t>(id));
}

int64_t id_of(uint64_t key) { return 0xffffffffu - static_cast<uint32_t>(key); }

}  // namespace

int64_t group_maxima_size(int64_t n) {
  constexpr int64_t size = kVecsPerGroup * kLanes;
  return (n + size - 1) / size * kLanes;
}

int64_t group_maxima(const float* values, int64_t n, float* maxima) {
  constexpr int64_t size = kVecsPerGroup * kLanes;
  const Vec none = broadcast(-kInfinity);
  int64_t found = 0;
  for (int64_t begin = 0; begin < n; begin += size, found += kLanes) {
    // Several maxima at a time: each waits for the one before. `max` passes over NaN on the left.
    Vec largest[4] = {none, none, none, none};
    if (begin + size <= n) {
      for (int64_t i = begin; i < begin + size; i += 4 * kLanes)
        for (int j = 0; j < 4; ++j) largest[j] = max(load(values + i + j * kLanes), largest[j]);
    } else {
      for_each_vec(values + begin, n - begin, -kInfinity, [&](Vec v, int64_t) { largest[0] = max(v, largest[0]); });
    }
    store(maxima + found, max(max(largest[0], largest[1]), max(largest[2], largest[3])));
  }
  return found;
}

float reached_by(const float* maxima, int64_t num_maxima, int64_t count, float* scratch) {
  if (count > num_maxima) return -kInfinity;
  std::copy(maxima, maxima + num_maxima, scratch);
  std::nth_element(scratch, scratch + count - 1, scratch + num_maxima, std::greater<>());
  return scratch[count - 1];
}

Cut largest_by_count(const float* values, int64_t n, int64_t target, float* scratch) {
  return largest<ByCount>(values, n, static_cast<double>(target), scratch);
}

Cut largest_by_sum(const float* values, int64_t n, double target, float* scratch) {
  return largest<BySum>(values, n, target, scratch);
}

int64_t gather(const float* values, int64_t n, float smallest, float* out) {
  const Vec bound = broadcast(std::max(smallest, 0.0f));
  return gather_where(values, n, out, [&](Vec v) { return v >= bound; });
}

void list_largest(const float* values, int64_t n, const float* maxima, int64_t num_maxima, int64_t count,
                  float* scratch, uint64_t* keys, int64_t* ids, float* largest) {
  if (count < 1) return;
  const Vec bound = broadcast(reached_by(maxima, num_maxima, count, scratch));
  int64_t size = 0;
  int64_t i = 0;
  for (; i + kLanes <= n; i += kLanes)
    for (uint32_t left = lanes(~(load(values + i) < bound)); left; left &= left - 1, ++size) {
      const int64_t id = i + first(left);
      keys[size] = key_of(values[id], id);
    }
  for (; i < n; ++i) keys[size++] = key_of(values[i], i);
  if (count < size) std::nth_element(keys, keys + count - 1, keys + size, std::greater<>());
  std::sort(keys, keys + count, std::greater<>());
  for (int64_t j = 0; j < count; ++j) {
    ids[j] = id_of(keys[j]);
    largest[j] = std::isnan(values[ids[j]]) ? -kInfinity : values[ids[j]];
  }
}

}  // namespace octavo
