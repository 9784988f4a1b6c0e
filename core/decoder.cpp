#include "core/decoder.hpp"

#include <algorithm>

#include "core/model/block.hpp"
#include "core/model/linear.hpp"
#include "core/model/norm_layer.hpp"
#include "core/model/rope_table.hpp"
#include "core/model/transformer.hpp"
#include "kernels/blas/sums.hpp"
#include "kernels/model/activation.hpp"
#include "kernels/model/attention.hpp"
#include "kernels/model/loss.hpp"
#include "kernels/model/token_sort.hpp"

namespace sestina {
namespace {

// Returns the positions that a sequence has room for: in deterministic mode whole tiles, up to the full window.
int cache_width(const ModelConfig& c, const DecoderOptions& s) {
  if (!s.deterministic) return s.capacity;
  const int tiles = (s.capacity + product_tile - 1) / product_tile * product_tile;
  return static_cast<int>(std::min<std::int64_t>(tiles, c.max_position_embeddings));
}

LayerRange last_layer(const ModelConfig& c) {
  const int layers = static_cast<int>(c.num_hidden_layers);
  return {layers - 1, layers};
}

template <class Exec, class T>
LayerActivations<Exec, T> first_rows(const LayerActivations<Exec, T>& all, int rows) {
  LayerActivations<Exec, T> a = all;
  for (Matrix<T, Exec>* m : {&a.x, &a.h, &a.qkv, &a.qk, &a.attended, &a.projected, &a.x2, &a.h2, &a.up, &a.down})
    if (m->size() > 0) *m = row_range(*m, 0, rows);
  return a;
}

}  // namespace

std::size_t cache_bytes(const ModelConfig& c, const DecoderOptions& s, std::size_t element) {
  const auto width = static_cast<std::size_t>(cache_width(c, s));
  return 2 * element * static_cast<std::size_t>(s.sequences) * width *
         static_cast<std::size_t>(c.num_hidden_layers * c.key_value_width());
}

template <class Exec, class T>
Decoder<Exec, T>::Decoder(const Exec& exec, const ModelConfig& config, const Weights<Exec, T>& weights,
                          const DecoderOptions& options, GroupOps<Exec>* group)
    : options_(options),
      rows_(std::max(options.sequences, std::min(product_tile, cache_width(config, options)))),
      width_(cache_width(config, options)),
      whole_(config),
      weights_(weights),
      gemm_(exec, options.deterministic),
      context_{exec,
               model_part(config, group ? group->size() : 1, group ? group->rank() : 0, false),
               1,
               rows_,
               gemm_,
               workspace_,
               group ? *group : alone_,
               {},
               {}},
      slot_(context_.part, last_layer(config), 1, rows_, true),
      indices_("sestina::decoder_indices", 3, static_cast<std::size_t>(rows_)),
      host_indices_(Kokkos::create_mirror_view(indices_)),
      history_(static_cast<std::size_t>(options.sequences)) {
  SESTINA_REQUIRE(options.sequences > 0 && options.capacity > 0 && options.capacity <= config.max_position_embeddings,
                  "{} sequences of {}, {} positions", options.sequences, options.capacity,
                  config.max_position_embeddings);
  const auto places = static_cast<std::size_t>(options.sequences) * static_cast<std::size_t>(width_);
  cache_ = decltype(cache_)("sestina::key_value_cache", static_cast<std::size_t>(config.num_hidden_layers), 2, places,
                            static_cast<std::size_t>(context_.config().key_value_width()));
  const auto largest = static_cast<std::size_t>(context_.part.largest_vocabulary());
  logits_ = decltype(logits_)("sestina::decoder_logits",
                              static_cast<std::size_t>(context_.part.tp) * history_.size() * largest);
  for (int rank = 0; rank < context_.part.tp; ++rank)
    first_token_.push_back(model_part(config, context_.part.tp, rank).vocabulary_begin);
  first_token_.push_back(config.vocab_size);
  wide_ = Table("sestina::decoder_logits_f32", history_.size(), static_cast<std::size_t>(config.vocab_size));
  host_logits_ = Kokkos::create_mirror_view(wide_);
  for (auto& tokens : history_) tokens.reserve(static_cast<std::size_t>(options.capacity));
  if (config.position != ModelConfig::Position::learned) make_tables();
  workspace_ = Workspace<Exec>(scratch());
}

template <class Exec, class T>
void Decoder<Exec, T>::make_tables() {
  const RopeTable table = rope_table(config(), width_);
  const auto rows = static_cast<std::size_t>(width_), half = static_cast<std::size_t>(config().head_dim / 2);
  const auto upload = [&](const char* label, const std::vector<float>& from) {
    Table to(label, rows, half);
    Kokkos::deep_copy(
        to,
        Kokkos::View<const float**, Kokkos::LayoutRight, Kokkos::HostSpace, Kokkos::MemoryTraits<Kokkos::Unmanaged>>(
            from.data(), rows, half));
    return to;
  };
  cosine_ = upload("sestina::cosine", table.cosine);
  sine_ = upload("sestina::sine", table.sine);
}

// Memory that a pass holds throughout. Rows of a step lie anywhere in the tables of positions and are gathered.
template <class Exec, class T>
struct Decoder<Exec, T>::PassPieces {
  PassPieces(Context<Exec>& context, bool step) {
    const ModelConfig& c = context.config();
    if (step && c.position == ModelConfig::Position::learned) learned = take_rows<T>(context, c.hidden_size);
    if (step && c.position != ModelConfig::Position::learned) {
      cosine = take_rows<float>(context, c.head_dim / 2);
      sine = take_rows<float>(context, c.head_dim / 2);
    }
    branch = take_own_rows<T>(context);
  }
  Matrix<T, Exec> learned, branch;
  Matrix<float, Exec> cosine, sine;
};

template <class Exec, class T>
void Decoder<Exec, T>::declare_pass(Workspace<Exec>& workspace, int rows, bool step) const {
  const ModelConfig& c = context_.config();
  Context<Exec> context = {context_.exec, context_.part, 1, rows, context_.gemm, workspace, context_.group, {}, {}};
  const auto thin = [&](std::int64_t width) {
    if constexpr (std::is_same_v<Exec, Host>)
      if (step)
        declare<ThinProductScratch<T>>(workspace, static_cast<std::size_t>(rows), static_cast<std::size_t>(width));
  };
  if (step) thin(c.hidden_size);  // for the head, after the pass
  const auto frame = workspace.frame();
  const PassPieces pieces(context, step);
  if (step)
    declare<AttentionStepScratch<Exec, T>>(workspace, attention_shape(c, rows, width_));
  else
    declare_attention_continued<Exec, T>(workspace, context_.exec, attention_shape(c, 1, width_), rows);
  thin(c.hidden_size);
  thin(c.query_width());
  if (context.splits_query_norms()) {
    const auto norm_frame = workspace.frame();
    RowSums<T, Exec>{context};  // as query_norms_forward does
  }
  const auto mlp = [&] {
    const auto mlp_frame = workspace.frame();
    take_wide_rows<T>(context, mlp_width(c));  // as mlp_forward_down does
    thin(mlp_width(c));
  };
  if (!c.has_experts()) return mlp();
  declare<TokenSortScratch<Exec>>(workspace, rows, c.num_experts);
  take_rows<T>(context, c.num_experts_per_tok * c.moe_intermediate_size);  // as experts_forward_down does
  take_rows<T>(context, c.num_experts_per_tok * c.hidden_size);
  mlp();  // of the shared expert, which works before the sums
  thin(c.moe_intermediate_size);
  thin(c.hidden_size);
}

template <class Exec, class T>
std::size_t Decoder<Exec, T>::scratch() const {
  return bytes_taken<Exec>([this](Workspace<Exec>& counter) {
    declare_pass(counter, std::min(rows_, width_), false);
    declare_pass(counter, options_.sequences, true);
  });
}

template <class Exec, class T>
Matrix<T, Exec> Decoder<Exec, T>::cached(std::size_t layer, int part) const {
  const std::size_t places = cache_.extent(2), width = cache_.extent(3);
  return Matrix<T, Exec>(cache_.data() + (2 * layer + static_cast<std::size_t>(part)) * places * width, places, width);
}

template <class Exec, class T>
Vector<const std::int32_t, Exec> Decoder<Exec, T>::index(Field field, int rows) const {
  return Vector<const std::int32_t, Exec>(indices_.data() + field * indices_.extent(1), static_cast<std::size_t>(rows));
}

template <class Exec, class T>
void Decoder<Exec, T>::prefill(int sequence, const std::int32_t* tokens, int count) {
  auto& history = history_[static_cast<std::size_t>(sequence)];
  SESTINA_REQUIRE(history.empty() && 0 < count && count <= options_.capacity, "{} tokens after {}, room for {}", count,
                  history.size(), options_.capacity);
  history.assign(tokens, tokens + count);
  int first = 0;
  for (; first + product_tile < count; first += product_tile) chunk(sequence, first, product_tile);
  chunk(sequence, first, options_.deterministic ? std::min(product_tile, width_ - first) : count - first);
  head(count - 1 - first, 1);
}

template <class Exec, class T>
void Decoder<Exec, T>::chunk(int sequence, int first, int rows) {
  const auto& history = history_[static_cast<std::size_t>(sequence)];
  for (int row = 0; row < rows; ++row) {
    const auto at = static_cast<std::size_t>(first + row);
    host_indices_(token_field, row) = at < history.size() ? history[at] : 0;  // not seen: attention is causal
    host_indices_(place_field, row) = sequence * width_ + first + row;
    host_indices_(position_field, row) = first + row;
  }
  Kokkos::deep_copy(context_.exec, indices_, host_indices_);
  run({rows, sequence, first});
}

template <class Exec, class T>
void Decoder<Exec, T>::step(int n, const int* sequences, const std::int32_t* tokens) {
  for (int i = 0; i < n; ++i) {
    auto& history = history_[static_cast<std::size_t>(sequences[i])];
    const int position = static_cast<int>(history.size());
    SESTINA_REQUIRE(0 < position && position < options_.capacity, "position {} of {}", position, options_.capacity);
    history.push_back(tokens[i]);
    if (options_.deterministic) {
      const int first = position / product_tile * product_tile;
      chunk(sequences[i], first, std::min(product_tile, width_ - first));
      const Matrix<T, Exec> row = own_logits(i, i + 1, n);
      forward_product<Exec, T>(context_, weights_.head, row_range(slot_.h, position - first, position - first + 1),
                               row);
      finish_logits<Exec, T>(context_, weights_, row);
      continue;
    }
    host_indices_(token_field, i) = tokens[i];
    host_indices_(place_field, i) = sequences[i] * width_ + position;
    host_indices_(position_field, i) = position;
  }
  if (options_.deterministic) return gather_logits(n);
  Kokkos::deep_copy(context_.exec, indices_, host_indices_);
  run({n});
  head(0, n);
}

template <class Exec, class T>
void Decoder<Exec, T>::head(int row, int rows) {
  context_.thin = !options_.deterministic;
  const Matrix<T, Exec> logits = own_logits(0, rows, rows);
  forward_product<Exec, T>(context_, weights_.head, row_range(slot_.h, row, row + rows), logits);
  finish_logits<Exec, T>(context_, weights_, logits);
  gather_logits(rows);
}

template <class Exec, class T>
Matrix<T, Exec> Decoder<Exec, T>::own_logits(int begin, int end, int rows) const {
  const ModelPart& part = context_.part;
  const auto width = static_cast<std::size_t>(part.config.vocab_size);
  const auto room = static_cast<std::size_t>(rows) * static_cast<std::size_t>(part.largest_vocabulary());
  return Matrix<T, Exec>(
      logits_.data() + static_cast<std::size_t>(part.tp_rank) * room + static_cast<std::size_t>(begin) * width,
      static_cast<std::size_t>(end - begin), width);
}

// Parts of the vocabulary have equal room, whatever they fill of it: they travel as rows of one matrix.
template <class Exec, class T>
void Decoder<Exec, T>::gather_logits(int rows) {
  shown_ = rows;
  const ModelPart& part = context_.part;
  if (part.tp == 1) return;
  const auto room = static_cast<std::size_t>(rows) * static_cast<std::size_t>(part.largest_vocabulary());
  const Matrix<T, Exec> all(logits_.data(), static_cast<std::size_t>(part.tp), room);
  context_.group.gather(context_.exec, Matrix<const T, Exec>(row_range(all, part.tp_rank, part.tp_rank + 1)), all);
}

template <class Exec, class T>
void Decoder<Exec, T>::run(const Pass& pass) {
  auto frame = workspace_.frame();
  context_.sequence = pass.rows;
  context_.thin = pass.step();
  LayerActivations<Exec, T> a = first_rows(slot_.layers[0], pass.rows);
  const PassPieces pieces(context_, pass.step());
  embed_rows(pass, pieces, a.x);
  const Matrix<T, Exec> branch = pieces.branch;
  Matrix<const T, Exec> stream, pending;
  for (std::size_t layer = 0; layer < weights_.layers.size(); ++layer) {
    block(pass, layer, a, stream, pending, branch);
    stream = a.x2;
    pending = branch;
  }
  norm_forward<Exec, T>(context_, weights_.norm, stream, pending, row_range(slot_.output, 0, pass.rows),
                        row_range(slot_.h, 0, pass.rows), slot_.norm);
}

// Embeds the rows, and sets the rotary tables of the pass: those of a step are gathered as rows of an embedding are.
template <class Exec, class T>
void Decoder<Exec, T>::embed_rows(const Pass& pass, const PassPieces& pieces, Matrix<T, Exec> x) {
  const Exec& exec = context_.exec;
  const auto position = index(position_field, pass.rows);
  Matrix<const T, Exec> learned;
  if (!pass.step()) {
    const int end = pass.first + pass.rows;
    if (weights_.position.size() > 0) learned = row_range(weights_.position, pass.first, end);
    if (cosine_.size() > 0) {
      context_.cosine = row_range(Matrix<const float, Exec>(cosine_), pass.first, end);
      context_.sine = row_range(Matrix<const float, Exec>(sine_), pass.first, end);
    }
  } else {
    const auto gather = [&]<class E>(Matrix<const E, Exec> table, Matrix<E, Exec> found, Matrix<const E, Exec>& to) {
      if (table.size() == 0) return;
      embed<Exec, E>(exec, position, table, {}, 1, found);
      to = found;
    };
    gather(weights_.position, pieces.learned, learned);
    gather(Matrix<const float, Exec>(cosine_), pieces.cosine, context_.cosine);
    gather(Matrix<const float, Exec>(sine_), pieces.sine, context_.sine);
  }
  if (context_.part.tp_rank > 0) learned = {};  // the sum over the ranks counts positions once
  sum_rows<T>(context_, x, [&](const Matrix<T, Exec>& rows) {
    embed<Exec, T>(exec, index(token_field, pass.rows), weights_.embedding, learned, pass.rows, rows,
                   static_cast<std::int32_t>(context_.part.vocabulary_begin));
  });
  if (config().embedding_norm)  // the statistics are those of the first norm, which comes later
    norm_forward<Exec, T>(context_, weights_.embedding_norm, x, {}, {}, x, slot_.layers[0].attention_norm);
}

template <class Exec, class T>
void Decoder<Exec, T>::block(const Pass& pass, std::size_t layer, LayerActivations<Exec, T>& a,
                             Matrix<const T, Exec> stream, Matrix<const T, Exec> pending, Matrix<T, Exec> branch) {
  const auto& w = weights_.layers[layer];
  const Matrix<const T, Exec> x = pending.size() > 0 ? stream : Matrix<const T, Exec>(a.x);
  if (!context_.post_norm())
    norm_forward<Exec, T>(context_, w.attention_norm, x, pending, a.x, a.h, a.attention_norm);
  else if (pending.size() > 0)
    add<Exec, T>(context_.exec, x, pending, a.x);
  attend(pass, layer, a, branch);
  if (context_.post_norm())
    add<Exec, T>(context_.exec, a.x, branch, a.x2);
  else
    norm_forward<Exec, T>(context_, w.mlp_norm, a.x, branch, a.x2, a.h2, a.mlp_norm);
  mlp_forward_up<Exec, T>(context_, w, a);
  mlp_forward_down<Exec, T>(context_, w, a, branch);
}

template <class Exec, class T>
void Decoder<Exec, T>::attend(const Pass& pass, std::size_t layer, LayerActivations<Exec, T>& a,
                              Matrix<T, Exec> branch) {
  const ModelConfig& c = context_.config();
  const Exec& exec = context_.exec;
  const auto& w = weights_.layers[layer];
  linear_forward<Exec, T>(context_, w.qkv, a.h, a.qkv);
  const auto out = split<T, Exec>(c, a.qk, a.qkv);
  if (c.query_norms()) query_norms_forward<Exec, T>(context_, w, a, split<T, Exec>(c, a.qkv, a.qkv), out);
  if (context_.cosine.size() > 0) rope<Exec, T>(exec, context_.cosine, context_.sine, pass.rows, 1, a.qk);

  const Matrix<T, Exec> keys = cached(layer, 0), values = cached(layer, 1);
  const auto place = index(place_field, pass.rows);
  store_places<Exec, T>(exec, place, out.k, out.v, keys, values);
  if (pass.step()) {
    attention_step<Exec, T>(exec, attention_shape(c, pass.rows, width_), place, out.q, keys, values, a.attended,
                            workspace_);
  } else {
    const int end = pass.first + pass.rows;
    const std::int64_t base = std::int64_t{pass.sequence} * width_;
    attention_continued<Exec, T>(exec, attention_shape(c, 1, end), pass.first, out.q, row_range(keys, base, base + end),
                                 row_range(values, base, base + end), a.attended, workspace_);
  }
  const Matrix<T, Exec> projected = context_.post_norm() ? a.projected : branch;
  linear_forward_summed<Exec, T>(context_, w.o, a.attended, projected);
  if (context_.post_norm())
    norm_forward<Exec, T>(context_, w.attention_norm, projected, {}, {}, branch, a.attention_norm);
}

template <class Exec, class T>
const float* Decoder<Exec, T>::logits(int row) {
  const auto n = wide_.extent(1), begin = static_cast<std::size_t>(row) * n;
  const auto room = static_cast<std::size_t>(shown_) * static_cast<std::size_t>(context_.part.largest_vocabulary());
  for (std::size_t rank = 0; rank + 1 < first_token_.size(); ++rank) {
    const auto first = static_cast<std::size_t>(first_token_[rank]);
    const auto width = static_cast<std::size_t>(first_token_[rank + 1]) - first;
    const T* part = logits_.data() + rank * room + static_cast<std::size_t>(row) * width;
    convert<Exec, T, float>(context_.exec, Vector<const T, Exec>(part, width),
                            Vector<float, Exec>(wide_.data() + begin + first, width));
  }
  context_.group.complete();
  if constexpr (!is_host<Exec>)
    Kokkos::deep_copy(context_.exec, Vector<float, Host>(host_logits_.data() + begin, n),
                      Vector<const float, Exec>(wide_.data() + begin, n));
  context_.exec.fence("logits");
  return host_logits_.data() + begin;
}

template <class Exec, class T>
void Decoder<Exec, T>::copy(int from, int to) {
  history_[static_cast<std::size_t>(to)] = history_[static_cast<std::size_t>(from)];
  const std::int64_t n = length(from), source = std::int64_t{from} * width_, target = std::int64_t{to} * width_;
  for (std::size_t layer = 0; layer < weights_.layers.size(); ++layer)
    for (const int part : {0, 1}) {
      const Matrix<T, Exec> all = cached(layer, part);
      Kokkos::deep_copy(context_.exec, row_range(all, target, target + n), row_range(all, source, source + n));
    }
}

#define SESTINA_DECODER(Exec, T) template class Decoder<Exec, T>;
SESTINA_INSTANTIATE_COMPUTE(SESTINA_DECODER)

}  // namespace sestina
