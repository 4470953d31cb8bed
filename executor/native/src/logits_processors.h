// What a request changes in the logits of single tokens: bias, penalties, stop tokens before `min_tokens`, its guide.
#pragma once

#include "sampling.h"

namespace octavo {

bool changes_logits(const Draw& draw);

// In place, in this order: bias, repetition penalty, presence and frequency penalties, masks.
// counts: [vocab] zeros, and zeros again afterwards.
void process_logits(const Draw& draw, float* logits, int64_t vocab, int32_t* counts);

}  // namespace octavo
