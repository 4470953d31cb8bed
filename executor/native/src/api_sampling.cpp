#include "api.h"
#include "sampling.h"

using namespace octavo;

OCTAVO_API int64_t octavo_sampling_workspace_bytes(int64_t vocab) {
  return static_cast<int64_t>(sampling_workspace_bytes(vocab));
}

OCTAVO_API void octavo_choose(Crew* crew, const float* logits, int64_t stride, int64_t vocab, const Draw* draws,
                              int64_t num_draws, uint8_t* workspace, const Choices* choices) {
  choose(*crew, {logits, stride, vocab}, draws, num_draws, workspace, *choices);
}
