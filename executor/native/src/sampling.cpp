#include "sampling.h"

#include <algorithm>
#include <cmath>
#include <functional>
#include <limits>

#include "lanes.h"
#include "logits_processors.h"
#include "truncation.h"

namespace octavo {

namespace {

constexpr float kInfinity = std::numeric_limits<float>::infinity();
// Smaller temperatures would round to 0 in float32; at this one all but the largest logits already vanish.
constexpr double kColdest = 1e-30;
// Vectors are written up to so many floats past the end.
constexpr int64_t kMargin = 16;
// Waking the other threads takes about as long as reading so many rows once.
constexpr int64_t kAlone = 12;
constexpr int64_t kReadsOfRandomDraw = 4;

// One thread's memory.
class Workspace {
 public:
  Workspace(uint8_t* memory, int64_t vocab) : vocab_(vocab), memory_(reinterpret_cast<uintptr_t>(memory)) {
    row = take<float>(vocab + kMargin);
    gathered = take<float>(vocab + kMargin);
    scratch = take<float>(vocab + kMargin);
    maxima = take<float>(group_maxima_size(vocab));
    sums = take<double>(group_maxima_size(vocab) / kLanes);
    keys = take<uint64_t>(vocab);
    counts = take<int32_t>(vocab);
  }

  int64_t vocab() const { return vocab_; }
  size_t bytes() const { return used_; }

  float* row;       // processed logits, and then weights in their place
  float* gathered;  // the weights that top-k and top-p look at
  float* scratch;
  float* maxima;
  double* sums;
  uint64_t* keys;
  int32_t* counts;  // zeros between draws

 private:
  template <typename T>
  T* take(int64_t size) {
    T* result = reinterpret_cast<T*>(memory_ + used_);
    used_ += (static_cast<size_t>(size) * sizeof(T) + 63) / 64 * 64;
    return result;
  }

  int64_t vocab_;
  uintptr_t memory_;
  size_t used_ = 0;
};

// A row of logits with its largest.
struct Row {
  const float* logits;
  int64_t vocab;
  int64_t num_maxima;
  float largest;
};

Row look_at(const float* logits, Workspace& space) {
  const int64_t num_maxima = group_maxima(logits, space.vocab(), space.maxima);
  return {logits, space.vocab(), num_maxima, *std::max_element(space.maxima, space.maxima + num_maxima)};
}

// The first of the largest. 0 if all are NaN.
int64_t argmax(const Row& row, const Workspace& space) {
  constexpr int64_t size = kVecsPerGroup * kLanes;
  const float* group = std::find(space.maxima, space.maxima + row.num_maxima, row.largest);
  const int64_t begin = (group - space.maxima) / kLanes * size;
  const float* end = row.logits + std::min(begin + size, row.vocab);
  const float* found = std::find(row.logits + begin, end, row.largest);
  return found < end ? found - row.logits : 0;
}

double log_sum_exp(const Row& row) {
  if (!std::isfinite(row.largest)) return row.largest;
  WideSum sum;
  const Vec largest = broadcast(row.largest);
  for_each_vec(row.logits, row.vocab, -kInfinity, [&](Vec v, int64_t) {
    const Vec x = v - largest;
    sum.add(x == x ? exp(x) : zero());
  });
  return row.largest + std::log(sum.total());
}

// Each token's probability over that of the most likely one.
void weigh(const float* logits, int64_t size, float largest, float inverse_temperature, float* weights) {
  for_each_vec(logits, size, -kInfinity, [=](Vec v, int64_t i) {
    const Vec x = (v - broadcast(largest)) * broadcast(inverse_temperature);
    store(weights + i, x == x ? exp(x) : zero());
  });
}

// The tokens that may be drawn: those at least as likely as `smallest` up to `last_equal`, more likely ones behind it.
struct Kept {
  float smallest;
  int64_t last_equal;
};

// The sum of kept weights in [begin, end).
double sum_of(const Kept& kept, const float* weights, int64_t begin, int64_t end) {
  WideSum sum;
  const int64_t middle = std::clamp(kept.last_equal + 1, begin, end);
  const Vec smallest = broadcast(kept.smallest);
  for_each_vec(weights + begin, middle - begin, 0, [&](Vec v, int64_t) { sum.add(v >= smallest ? v : zero()); });
  for_each_vec(weights + middle, end - middle, 0, [&](Vec v, int64_t) { sum.add(v > smallest ? v : zero()); });
  return sum.total();
}

bool is_kept(const Kept& kept, const float* weights, int64_t token) {
  return token <= kept.last_equal ? weights[token] >= kept.smallest : weights[token] > kept.smallest;
}

Kept all_of(int64_t vocab) { return {0, vocab - 1}; }

Kept kept_by(const Cut& cut, const float* weights, int64_t vocab) {
  int64_t left = cut.num_equal;
  const Vec smallest = broadcast(cut.smallest);
  for (int64_t i = 0; i < vocab; i += kLanes) {
    const Vec v = i + kLanes <= vocab ? load(weights + i) : load_part(weights + i, vocab - i, -1);
    uint32_t equal = lanes(v == smallest);
    if (count(equal) < left) {
      left -= count(equal);
      continue;
    }
    for (; left > 1; --left) equal &= equal - 1;
    return {cut.smallest, i + first(equal)};
  }
  return {cut.smallest, vocab - 1};
}

// Nucleus: Holtzman et al., arXiv 1904.09751. maxima: of the weights.
Cut top_p_of_all(double top_p, const float* weights, int64_t num_maxima, Workspace& space) {
  const int64_t vocab = space.vocab();
  const double total = sum_of(all_of(vocab), weights, 0, vocab);
  const double target = top_p * total;
  // Most nuclei are smaller than the number of maxima. Otherwise: tokens below the bound add up to half of what top-p
  // leaves out at most.
  float bound = reached_by(space.maxima, num_maxima, num_maxima / 2 + 1, space.scratch);
  if (sum_of({bound, vocab - 1}, weights, 0, vocab) < target)
    bound = static_cast<float>(std::max(0.0, (1 - top_p) * total / (2 * static_cast<double>(vocab))));
  const int64_t size = gather(weights, vocab, bound, space.gathered);
  return largest_by_sum(space.gathered, size, target, space.scratch);
}

Cut top_k_and_p(const SamplingParams& params, const Row& row, const float* weights, Workspace& space) {
  const float bound = reached_by(space.maxima, row.num_maxima, params.top_k, space.scratch);
  const int64_t size = gather(weights, row.vocab, bound, space.gathered);
  const Cut cut = largest_by_count(space.gathered, size, params.top_k, space.scratch);
  if (params.top_p >= 1) return cut;
  const double above = sum_of({cut.smallest, -1}, space.gathered, 0, size);
  const double total = above + static_cast<double>(cut.num_equal) * static_cast<double>(cut.smallest);
  return largest_by_sum(space.gathered, size, params.top_p * total, space.scratch);
}

// maxima: of the weights.
Kept truncate(const SamplingParams& params, const Row& row, const float* weights, Workspace& space) {
  Kept kept = all_of(row.vocab);
  if (params.top_k > 0 && params.top_k < row.vocab)
    kept = kept_by(top_k_and_p(params, row, weights, space), weights, row.vocab);
  else if (params.top_p < 1)
    kept = kept_by(top_p_of_all(params.top_p, weights, row.num_maxima, space), weights, row.vocab);
  const float min_p = static_cast<float>(params.min_p);
  return min_p > kept.smallest ? Kept{min_p, row.vocab - 1} : kept;
}

// The first token, in order of ids, at which the kept weights add up to more than their sum times `uniform`.
int64_t inverse_cdf(const Kept& kept, const float* weights, double uniform, Workspace& space) {
  constexpr int64_t size = kVecsPerGroup * kLanes;
  const int64_t vocab = space.vocab();
  double total = 0;
  for (int64_t begin = 0; begin < vocab; begin += size)
    total += space.sums[begin / size] = sum_of(kept, weights, begin, std::min(begin + size, vocab));
  // A product rounded up to the total would point past the last token.
  const double target = std::min(uniform * total, std::nextafter(total, 0.0));
  double below = 0;
  int64_t begin = 0;
  while (begin + size < vocab && below + space.sums[begin / size] <= target) {
    below += space.sums[begin / size];
    begin += size;
  }
  // Added up one by one the group may, by a rounding, not get there: then it is its last token.
  int64_t last = begin;
  for (int64_t token = begin; token < std::min(begin + size, vocab); ++token) {
    if (!is_kept(kept, weights, token) || weights[token] == 0) continue;
    last = token;
    if ((below += static_cast<double>(weights[token])) > target) break;
  }
  return last;
}

int64_t draw_random(const Draw& draw, const Row& row, Workspace& space) {
  const auto inverse_temperature = static_cast<float>(1 / std::max(draw.params->temperature, kColdest));
  weigh(row.logits, row.vocab, row.largest, inverse_temperature, space.row);
  weigh(space.maxima, row.num_maxima, row.largest, inverse_temperature, space.maxima);
  return inverse_cdf(truncate(*draw.params, row, space.row, space), space.row, draw.uniform, space);
}

int64_t choose_token(const Draw& draw, const Row& row, Workspace& space) {
  if (draw.params->temperature <= 0 || !std::isfinite(row.largest)) return argmax(row, space);
  return draw_random(draw, row, space);
}

void list_top(const float* logprobs, const Row& row, const Draw& draw, int64_t index, Workspace& space,
              const Choices& choices) {
  list_largest(logprobs, row.vocab, space.maxima, row.num_maxima, draw.num_top, space.scratch, space.keys,
               choices.top_tokens + index * choices.width, choices.top_logprobs + index * choices.width);
}

// Bias, penalties and mask act on log probabilities, which then need not add up to 1.
void report_candidates(const Draw& draw, const Row& row, int64_t index, Workspace& space, const Choices& choices) {
  const auto shift = static_cast<float>(log_sum_exp(row));
  for_each_vec(row.logits, row.vocab, 0, [&](Vec v, int64_t i) { store(space.row + i, v - broadcast(shift)); });
  process_logits(draw, space.row, row.vocab, space.counts);
  list_top(space.row, look_at(space.row, space), draw, index, space, choices);
}

// Log probabilities before bias and penalties.
void report_logprobs(const Draw& draw, const Row& row, int64_t index, Workspace& space, const Choices& choices) {
  const double shift = log_sum_exp(row);
  const auto logprob = [shift](float logit) { return static_cast<float>(static_cast<double>(logit) - shift); };
  choices.logprobs[index] = logprob(row.logits[choices.tokens[index]]);
  list_top(row.logits, row, draw, index, space, choices);
  float* top = choices.top_logprobs + index * choices.width;
  std::transform(top, top + draw.num_top, top, logprob);
}

void choose_one(const Logits& logits, const Draw& draw, int64_t index, Workspace space, const Choices& choices) {
  const float* values = logits.data + draw.row * logits.stride;
  if (draw.purpose == Purpose::kCandidates) {
    report_candidates(draw, look_at(values, space), index, space, choices);
    return;
  }
  if (changes_logits(draw)) {
    std::copy(values, values + logits.vocab, space.row);
    process_logits(draw, space.row, logits.vocab, space.counts);
    choices.tokens[index] = choose_token(draw, look_at(space.row, space), space);
  } else {
    choices.tokens[index] = choose_token(draw, look_at(values, space), space);
  }
  if (draw.purpose == Purpose::kTokenAndLogprob) report_logprobs(draw, look_at(values, space), index, space, choices);
}

// In the order of reading a row once.
int64_t cost_of(const Draw& draw) {
  const bool is_simple = draw.purpose == Purpose::kToken && draw.params->temperature <= 0;
  return is_simple ? 1 : kReadsOfRandomDraw;
}

}  // namespace

size_t sampling_workspace_bytes(int64_t vocab) { return Workspace(nullptr, vocab).bytes(); }

void choose(Crew& crew, const Logits& logits, const Draw* draws, int64_t num_draws, uint8_t* workspace,
            const Choices& choices) {
  const size_t bytes = sampling_workspace_bytes(logits.vocab);
  const auto one = [&](int64_t i, int thread) {
    choose_one(logits, draws[i], i, Workspace(workspace + static_cast<size_t>(thread) * bytes, logits.vocab), choices);
  };
  int64_t cost = 0;
  for (int64_t i = 0; i < num_draws && cost <= kAlone; ++i) cost += cost_of(draws[i]);
  if (num_draws == 1 || cost <= kAlone) {
    for (int64_t i = 0; i < num_draws; ++i) one(i, 0);
    return;
  }
  const auto job = [&](Team& team) { team.parallel(num_draws, [&](int64_t i) { one(i, team.index()); }); };
  // By reference: a function object of its own would be allocated.
  crew.run(std::ref(job));
}

}  // namespace octavo
