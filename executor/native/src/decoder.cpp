#include "decoder.h"

#include <algorithm>
#include <new>

#include "embedding.h"
#include "norm.h"
#include "scratch.h"

namespace octavo {

namespace {

// Tokens that one work item normalises, rotates or embeds.
constexpr int64_t kTokensAtOnce = 8;

}  // namespace

// All [tokens][...] floats.
struct Decoder::Buffers {
  Scratch<float> hidden;    // the residual stream
  Scratch<float> normed;    // input of a product
  Scratch<float> qkv;       // queries, keys, values
  Scratch<float> attended;  // output of attention
  Scratch<float> inner;     // between the MLP's products
  Scratch<float> embedded;  // [tokens][embedding_size], only where that is not hidden_size
  Scratch<int64_t> positions;
  Scratch<int64_t> token_ids;
  Scratch<int64_t> sampled_counts;  // the sampled tokens as rows
  Scratch<int64_t> sampled_contexts;
  Scratch<const int64_t*> sampled_tables;
  Scratch<uint8_t> workspace;
  Scratch<uint8_t> attention_workspace;
};

Decoder::Decoder(const DecoderModel& model, const KvCache& first_layer, int64_t layer_stride)
    : model_(model),
      first_layer_(first_layer),
      layer_stride_(layer_stride),
      query_size_(static_cast<int64_t>(model.attention.heads) * first_layer.head_dim),
      qkv_size_(query_size_ + 2 * static_cast<int64_t>(first_layer.kv_heads) * first_layer.head_dim),
      buffers_(std::make_unique<Buffers>()) {}

Decoder::~Decoder() = default;

bool Decoder::run(Crew& crew, const DecoderStep& step) {
  StepRows rows{step.num_rows, 0, step.counts, step.contexts, step.tables};
  for (int64_t row = 0; row < step.num_rows; ++row) rows.num_tokens += step.counts[row];
  if (!reserve(step, rows, crew.size())) return false;
  describe_tokens(step, rows);
  clock_.start();
  crew.run([&](Team& team) { run(team, step, rows); });
  return true;
}

bool Decoder::reserve(const DecoderStep& step, const StepRows& rows, int team_size) {
  Buffers& b = *buffers_;
  const int64_t tokens = rows.num_tokens, samples = step.num_sampled;
  const auto workspace = [&](const Linear& weight, int64_t count) {
    return weight.weights ? linear_workspace_bytes(weight.kind, count, weight.inputs) : size_t{0};
  };
  size_t bytes = std::max(
      {workspace(model_.head, samples), workspace(model_.project_in, tokens), workspace(model_.project_out, samples)});
  for (int64_t i = 0; i < model_.num_layers; ++i) {
    const LayerWeights& layer = model_.layers[i];
    bytes = std::max({bytes, workspace(layer.qkv, tokens), workspace(layer.attention_out, tokens),
                      workspace(layer.mlp_in, tokens), workspace(layer.mlp_out, tokens)});
  }
  const bool projects = model_.project_in.weights != nullptr;
  return b.hidden.reserve(tokens * model_.hidden_size) && b.normed.reserve(tokens * model_.hidden_size) &&
         b.qkv.reserve(tokens * qkv_size_) && b.attended.reserve(tokens * query_size_) &&
         b.inner.reserve(tokens * model_.intermediate_size) &&
         b.embedded.reserve(projects ? tokens * model_.embedding_size : 0) && b.positions.reserve(tokens) &&
         b.token_ids.reserve(tokens) && b.workspace.reserve(bytes) && b.sampled_counts.reserve(samples) &&
         b.sampled_contexts.reserve(samples) && b.sampled_tables.reserve(samples) &&
         b.attention_workspace.reserve(attention_workspace_bytes(first_layer_, rows, model_.attention, team_size));
}

void Decoder::describe_tokens(const DecoderStep& step, const StepRows& rows) {
  Buffers& b = *buffers_;
  int64_t token = 0, sample = 0;
  for (int64_t row = 0; row < rows.num_rows; ++row) {
    for (int64_t i = 0; i < rows.counts[row]; ++i, ++token) {
      const int64_t position = rows.contexts[row] - rows.counts[row] + i;
      b.token_ids.data()[token] = step.tokens[row][i];
      b.positions.data()[token] = position;
      if (sample == step.num_sampled || step.sampled[sample] != token) continue;
      b.sampled_counts.data()[sample] = 1;
      b.sampled_contexts.data()[sample] = position + 1;
      b.sampled_tables.data()[sample++] = rows.tables[row];
    }
  }
}

void Decoder::run(Team& team, const DecoderStep& step, StepRows rows) {
  float *hidden = buffers_->hidden.data(), *normed = buffers_->normed.data();
  embed(team, rows);
  done(team, Phase::kEmbed);
  for (int64_t i = 0; i < model_.num_layers; ++i) {
    const LayerWeights& layer = model_.layers[i];
    if (model_.norm_first) norm(team, layer.attention_norm, hidden, rows.num_tokens, normed);
    write_half(team, i, step, rows, model_.norm_first ? normed : hidden);
    // What comes after the last layer's keys and values matters to the sampled tokens alone.
    if (i + 1 == model_.num_layers && step.num_sampled < rows.num_tokens) rows = keep_sampled(team, step);
    if (rows.num_tokens == 0) return;
    attend_half(team, i, rows);
    if (!model_.norm_first) norm(team, layer.attention_norm, hidden, rows.num_tokens, hidden);
    if (model_.norm_first) norm(team, layer.mlp_norm, hidden, rows.num_tokens, normed);
    mlp_half(team, i, rows.num_tokens, model_.norm_first ? normed : hidden);
    if (!model_.norm_first) norm(team, layer.mlp_norm, hidden, rows.num_tokens, hidden);
  }
  logits(team, step);
}

void Decoder::embed(Team& team, const StepRows& rows) {
  const int64_t tokens = rows.num_tokens, size = model_.hidden_size;
  const bool projects = model_.project_in.weights != nullptr;
  float* hidden = buffers_->hidden.data();
  float* out = projects ? buffers_->embedded.data() : hidden;
  team.parallel(tokens, [&](int64_t token) {
    unpack_row(model_.embedding, buffers_->token_ids.data()[token], out + token * model_.embedding_size);
  });
  if (projects) product(team, model_.project_in, out, tokens, hidden, size, Epilogue::kStore);
  if (!model_.position_embedding) return;
  team.parallel(tokens, [&](int64_t token) {
    const int64_t position = buffers_->positions.data()[token] + model_.position_offset;
    const float* added = model_.position_embedding + position * size;
    for (int64_t i = 0; i < size; ++i) hidden[token * size + i] += added[i];
  });
}

// Keys and values of a layer; leaves the queries.
void Decoder::write_half(Team& team, int64_t index, const DecoderStep& step, const StepRows& rows, const float* input) {
  float* qkv = buffers_->qkv.data();
  product(team, model_.layers[index].qkv, input, rows.num_tokens, qkv, qkv_size_, Epilogue::kStore);
  done(team, Phase::kQkv);
  if (model_.rotary_dim > 0) rotate(team, step, rows.num_tokens);
  done(team, Phase::kRotate);
  const float *keys = qkv + query_size_, *values = keys + (qkv_size_ - query_size_) / 2;
  write_kv(team, cache_of(index), rows, keys, values, qkv_size_);
  done(team, Phase::kWrite);
}

// The sampled tokens' queries and hidden states come together at the front. They become rows of one token each.
StepRows Decoder::keep_sampled(Team& team, const DecoderStep& step) {
  Buffers& b = *buffers_;
  const int64_t size = model_.hidden_size;
  team.parallel(1, [&](int64_t) {
    // In ascending order, so that none is overwritten before it has been moved.
    for (int64_t i = 0; i < step.num_sampled; ++i) {
      std::copy_n(b.hidden.data() + step.sampled[i] * size, size, b.hidden.data() + i * size);
      std::copy_n(b.qkv.data() + step.sampled[i] * qkv_size_, query_size_, b.qkv.data() + i * qkv_size_);
    }
  });
  return {step.num_sampled, step.num_sampled, b.sampled_counts.data(), b.sampled_contexts.data(),
          b.sampled_tables.data()};
}

// All rows' keys and values are written before any row attends: a row may read a block of another row.
void Decoder::attend_half(Team& team, int64_t index, const StepRows& rows) {
  Buffers& b = *buffers_;
  float* attended = b.attended.data();
  attend(team, cache_of(index), rows, model_.attention, b.qkv.data(), qkv_size_, attended, query_size_,
         b.attention_workspace.data());
  done(team, Phase::kAttend);
  product(team, model_.layers[index].attention_out, attended, rows.num_tokens, b.hidden.data(), model_.hidden_size,
          Epilogue::kAdd);
  done(team, Phase::kAttentionOut);
}

void Decoder::mlp_half(Team& team, int64_t index, int64_t tokens, const float* input) {
  const LayerWeights& layer = model_.layers[index];
  float* inner = buffers_->inner.data();
  product(team, layer.mlp_in, input, tokens, inner, model_.intermediate_size, model_.activation);
  done(team, Phase::kMlpIn);
  product(team, layer.mlp_out, inner, tokens, buffers_->hidden.data(), model_.hidden_size, Epilogue::kAdd);
  done(team, Phase::kMlpOut);
}

void Decoder::logits(Team& team, const DecoderStep& step) {
  float *hidden = buffers_->hidden.data(), *last = buffers_->normed.data();
  if (model_.has_final_norm)
    norm(team, model_.final_norm, hidden, step.num_sampled, last);
  else
    last = hidden;
  if (model_.project_out.weights) {
    float* projected = buffers_->embedded.data();
    product(team, model_.project_out, last, step.num_sampled, projected, model_.embedding_size, Epilogue::kStore);
    last = projected;
  }
  product(team, model_.head, last, step.num_sampled, step.logits, model_.vocab_size, Epilogue::kStore);
  done(team, Phase::kHead);
}

void Decoder::norm(Team& team, const NormWeights& weights, const float* x, int64_t tokens, float* y) {
  const int64_t size = model_.hidden_size;
  team.parallel((tokens + kTokensAtOnce - 1) / kTokensAtOnce, [&](int64_t item) {
    const int64_t end = std::min(tokens, (item + 1) * kTokensAtOnce);
    for (int64_t token = item * kTokensAtOnce; token < end; ++token) {
      const float* from = x + token * size;
      float* to = y + token * size;
      if (model_.norm == NormKind::kRms)
        rms_norm(from, weights.weight, model_.norm_epsilon, size, to);
      else
        layer_norm(from, weights.weight, weights.bias, model_.norm_epsilon, size, to);
    }
  });
  done(team, Phase::kNorm);
}

// Turns entry i of each query and key head with entry i + rotary_dim / 2 (Su et al., arXiv 2104.09864).
void Decoder::rotate(Team& team, const DecoderStep& step, int64_t tokens) {
  const int64_t half = model_.rotary_dim / 2, head_dim = first_layer_.head_dim;
  const int64_t heads = model_.attention.heads + first_layer_.kv_heads;
  float* qkv = buffers_->qkv.data();
  team.parallel((tokens + kTokensAtOnce - 1) / kTokensAtOnce, [&](int64_t item) {
    const int64_t end = std::min(tokens, (item + 1) * kTokensAtOnce);
    for (int64_t token = item * kTokensAtOnce; token < end; ++token) {
      const int64_t angle = step.angles_by_token ? token : buffers_->positions.data()[token];
      const float *cosines = step.cosines + angle * half, *sines = step.sines + angle * half;
      for (int64_t h = 0; h < heads; ++h) {
        float *first = qkv + token * qkv_size_ + h * head_dim, *second = first + half;
        for (int64_t i = 0; i < half; ++i) {
          const float a = first[i], b = second[i];
          first[i] = a * cosines[i] - b * sines[i];
          second[i] = b * cosines[i] + a * sines[i];
        }
      }
    }
  });
}

void Decoder::product(Team& team, const Linear& weight, const float* x, int64_t tokens, float* y, int64_t y_stride,
                      Epilogue epilogue) {
  linear(team, weight, x, weight.inputs, tokens, y, y_stride, epilogue, buffers_->workspace.data());
}

void Decoder::done(Team& team, Phase phase) {
  if (team.index() == 0) clock_.mark(phase);
}

KvCache Decoder::cache_of(int64_t layer) const {
  KvCache cache = first_layer_;
  cache.data += layer * layer_stride_;
  return cache;
}

}  // namespace octavo
