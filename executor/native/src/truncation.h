// The largest of many numbers, and what top-k, top-p and min-p keep of a distribution. None of it sorts more than a
// few: the smallest number that is kept is found by halving the range of floats that it may be in.
#pragma once

#include <cstdint>

namespace octavo {

// So many vectors share a maximum in each lane.
constexpr int64_t kVecsPerGroup = 64;

// Maxima of groups of numbers that don't overlap, at most group_maxima_size(n) of them. NaN is passed over.
int64_t group_maxima_size(int64_t n);
int64_t group_maxima(const float* values, int64_t n, float* maxima);

// A number that at least `count` of those behind the maxima reach; -infinity where the maxima can't tell.
// scratch: [num_maxima].
float reached_by(const float* maxima, int64_t num_maxima, int64_t count, float* scratch);

// What is kept of numbers: all above `smallest`, and the first `num_equal` (at least 1) of those that equal it.
struct Cut {
  float smallest;
  int64_t num_equal;
};

// The fewest of the largest of n numbers in [0, 1] whose number (`largest_by_count`) or sum (`largest_by_sum`) reaches
// `target`; all of them where it does not. n is at least 1. scratch: [n + 16].
Cut largest_by_count(const float* values, int64_t n, int64_t target, float* scratch);
Cut largest_by_sum(const float* values, int64_t n, double target, float* scratch);

// Copies the numbers from `smallest` up to `out` ([n + 16]), and returns how many there are.
int64_t gather(const float* values, int64_t n, float smallest, float* out);

// Ids and values of the `count` largest, in order, of equal ones lower ids first; NaN counts as -infinity.
// maxima: as from group_maxima. keys: [n].
void list_largest(const float* values, int64_t n, const float* maxima, int64_t num_maxima, int64_t count,
                  float* scratch, uint64_t* keys, int64_t* ids, float* largest);

}  // namespace octavo
