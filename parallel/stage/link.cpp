#include "parallel/stage/link.hpp"

#include <algorithm>

#include "core/layout/tensor_spec.hpp"
#include "kernels/base/error.hpp"
#include "parallel/comm/stream_order.hpp"

namespace sestina {

template <class Exec, class T>
Link<Exec, T>::Link(const Exec& exec, Communicator& pipeline, const LinkOptions& set)
    : exec_(exec),
      up_(pipeline, "activations of a stage", set.activations),
      down_(pipeline, "gradients of a stage", set.gradients) {}

template <class Exec, class T>
Channel<Exec, T>::Channel(Communicator& pipeline, const char* name, const ChannelOptions& set)
    : places_(set.places),
      rows_(set.rows),
      cols_(set.cols),
      stride_(aligned_elements(set.rows * set.cols)),
      group_(&pipeline) {
  const int me = pipeline.rank();
  if (set.has_side_on(me)) values_ = decltype(values_)("sestina::link", set.elements());
  if (set.from == set.to) return;
  if constexpr (!is_host<Exec>) {
    own_group_ = pipeline.split(set.has_side_on(me) ? 0 : 1, me);
    group_ = own_group_.get();
  }
  const int other = me == set.from ? set.to : set.from;
  const int peer = own_group_ ? (other > me ? 1 : 0) : other;  // numbers in the channel's group of two
  for (int i = 0; i <= places_; ++i) {
    std::vector<Message> sends, receives;
    if (set.has_side_on(me)) {
      const Block block = block_of(values_.data() + static_cast<std::size_t>(i) * stride_, rows_ * cols_ * sizeof(T));
      (me == set.from ? sends : receives).push_back({peer, {block}});
    }
    messages_.push_back(group_->make_exchange(name, std::move(sends), std::move(receives)));
  }
}

template <class Exec, class T>
Channel<Exec, T>::~Channel() {
  const auto arrived = [](const std::unique_ptr<Exchange>& message) {
    try {
      return message->test();
    } catch (const Error&) {
      return false;
    }
  };
  if (!std::all_of(messages_.begin(), messages_.end(), arrived)) new decltype(values_)(values_);  // never freed
}

template <class Exec, class T>
Matrix<T, Exec> Channel<Exec, T>::place(std::int64_t number) const {
  return Matrix<T, Exec>(values_.data() + index(number) * stride_, rows_, cols_);
}

template <class Exec, class T>
Matrix<T, Exec> Channel<Exec, T>::to_write(std::int64_t number) {
  if (!messages_.empty()) messages_[index(number)]->finish();
  return place(number);
}

template <class Exec, class T>
void Channel<Exec, T>::send(const Exec& exec, std::int64_t number) {
  if (messages_.empty()) return;
  start_after(exec, *group_, "link");
  messages_[index(number)]->start();
}

template <class Exec, class T>
Matrix<T, Exec> Channel<Exec, T>::receive(const Exec& exec, std::int64_t number) {
  if (messages_.empty() || (number != evaluation && number < here_until_)) return place(number);
  const bool under_way = begin_ <= number && number < started_;
  if (!under_way) {
    start_after(exec, *group_, "link");
    messages_[index(number)]->start();
  }
  messages_[index(number)]->finish();
  if (under_way) begin_ = number + 1;
  return place(number);
}

template <class Exec, class T>
void Channel<Exec, T>::start_receive(const Exec& exec, std::int64_t number) {
  if (receives_expected || messages_.empty() || number < here_until_) return;
  if (begin_ == started_) begin_ = started_ = number;
  SESTINA_REQUIRE(number == started_, "message {} is to be received after {}", number, started_ - 1);
  start_after(exec, *group_, "link");
  messages_[index(number)]->start();
  ++started_;
}

template <class Exec, class T>
void Channel<Exec, T>::expect(std::int64_t begin, std::int64_t end, std::int64_t read) {
  if constexpr (receives_expected) begin_ = started_ = std::max(begin, here_until_);
  end_ = end;
  read_ = read;
  start_receives();
}

template <class Exec, class T>
void Channel<Exec, T>::has_read(std::int64_t number) {
  read_ = number + 1;
  start_receives();
}

template <class Exec, class T>
void Channel<Exec, T>::start_receives() {
  if constexpr (receives_expected)
    for (; started_ < std::min(end_, read_ + places_) && !messages_.empty(); ++started_)
      messages_[index(started_)]->start();
}

#define SESTINA_LINK(Exec, T)      \
  template class Channel<Exec, T>; \
  template class Link<Exec, T>;
SESTINA_INSTANTIATE_COMPUTE(SESTINA_LINK)

}  // namespace sestina
