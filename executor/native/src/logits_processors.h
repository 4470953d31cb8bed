// What a request changes in the logits of single tokens: bias, penalties, and stop tokens before `min_tokens`.
#pragma once

#include "sampling.h"

namespace octavo {

bool changes_logits(const Draw& draw);

// In place, in this order: bias, repetition penalty, presence and frequency penalties, mask.
// counts: [vocab] zeros, and zeros again afterwards.
void process_logits(const Draw& draw, float* logits, int64_t vocab, int32_t* counts);

}  // namespace octavo
