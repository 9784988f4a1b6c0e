#include "parallel/step/link.hpp"

namespace sestina {

template <class Exec, class T>
Link<Exec, T>::Link(const Exec& exec, Communicator& pipeline, const LinkSetting& set)
    : exec_(exec),
      up_(pipeline, "activations of a stage", set.from, set.to, set.rows, set.cols, set.activations),
      down_(pipeline, "gradients of a stage", set.to, set.from, set.rows, set.cols, set.gradients) {}

template <class Exec, class T>
Link<Exec, T>::Way::Way(Communicator& pipeline, const char* name, int from, int to, std::size_t rows, std::size_t cols,
                        int places)
    : places_(places), rows_(rows), cols_(cols) {
  const int me = pipeline.rank();
  if (me == from || me == to)
    values_ = decltype(values_)("sestina::link", static_cast<std::size_t>(places + 1) * rows * cols);
  if (from == to) return;
  for (int i = 0; i <= places; ++i) {
    std::vector<Message> sends, receives;
    if (me == from || me == to) {
      const Block block = block_of(values_.data() + static_cast<std::size_t>(i) * rows * cols, rows * cols * sizeof(T));
      (me == from ? sends : receives).push_back({me == from ? to : from, {block}});
    }
    messages_.push_back(pipeline.make_exchange(name, std::move(sends), std::move(receives)));
  }
}

template <class Exec, class T>
Matrix<T, Exec> Link<Exec, T>::Way::place(std::int64_t micro) const {
  return Matrix<T, Exec>(values_.data() + index(micro) * rows_ * cols_, rows_, cols_);
}

template <class Exec, class T>
Matrix<T, Exec> Link<Exec, T>::Way::to_write(std::int64_t micro) {
  if (!messages_.empty()) messages_[index(micro)]->finish();
  return place(micro);
}

template <class Exec, class T>
void Link<Exec, T>::Way::send(const Exec& exec, std::int64_t micro) {
  if (messages_.empty()) return;
  exec.fence("link");
  messages_[index(micro)]->start();
}

template <class Exec, class T>
Matrix<T, Exec> Link<Exec, T>::Way::receive(std::int64_t micro) {
  if (!messages_.empty() && (micro == evaluation || micro >= here_until_)) {
    messages_[index(micro)]->start();
    messages_[index(micro)]->finish();
  }
  return place(micro);
}

#define SESTINA_LINK(Exec, T) template class Link<Exec, T>;
SESTINA_INSTANTIATE_COMPUTE(SESTINA_LINK)

}  // namespace sestina
